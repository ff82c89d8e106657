"""The README: its Python runs and its commands exist. test_demo.py compares the demo's output."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from icedb_dagster.dev.command import main
from tests.support.site.pages import ROOT, blocks, run_page

README_PATH = ROOT / "README.md"
README = README_PATH.read_text()
PYTHON = blocks(README_PATH, "python")
COMMANDS = [line for code in blocks(README_PATH, "sh") for line in code.splitlines()]
ICEDB = [command for command in COMMANDS if command.startswith("icedb ")]
INLINE = re.findall(r"`((?:make|icedb-dagster) \w+)`", README)


def test_the_readme_begins_with_the_two_commands() -> None:
    assert [line.split("#")[0].strip() for line in COMMANDS[:2]] == ["make demo", "make test"]
    assert README.index("make demo") < 60


@pytest.mark.process
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.spark] if "pyspark" in code else []) for n, code in enumerate(PYTHON)]
)
def test_the_python_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    """The first block creates the table of the commands."""
    lines = [f"{line.partition('#')[0]} --yes" if "cleanup" in line else line for line in ICEDB] if number == 0 else []
    done = run_page(README_PATH, tmp_path, number=number, lines=lines)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lake").is_dir()


@pytest.mark.process
@pytest.mark.parametrize("command", [*COMMANDS, *INLINE])
def test_the_commands_of_the_readme_exist(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        subprocess.run(["make", "-n", words[1]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == "icedb":
        assert command in ICEDB, "another test runs it"
    elif words[0] == "icedb-dagster":
        with pytest.raises(SystemExit) as ended:
            main([words[1], "--help"])
        assert not ended.value.code
    else:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words[:2] == ["pip", "install"]
        name, _, extra = words[2].rstrip("]").partition("[")
        assert name == project["name"]
        assert not extra or extra in project["optional-dependencies"]


def test_the_links_of_the_readme_resolve() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).is_file(), target
