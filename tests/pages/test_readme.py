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
EXTRAS = re.findall(r"`(\w[\w-]*)`", (ROOT / "docs" / "quickstart.md").read_text().partition("| extra |")[2])
INLINE = re.findall(r"`((?:make|icedb-dagster) \w+)`", README)


def test_the_readme_ends_with_the_two_commands() -> None:
    assert [line.split("#")[0].strip() for line in COMMANDS if line.startswith("make ")] == ["make demo", "make test"]


def test_two_screens_of_the_readme_introduce_the_project() -> None:
    """The list of links follows the introduction, an example with its output, installation, use cases and cost."""
    assert re.findall(r"^## (.*)$", README, flags=re.MULTILINE)[:5] == [
        "Install", "Use it if, do not use it if", "What it costs", "How it works", "Where to begin",
    ]  # fmt: skip
    before = README.partition("## Where to begin")[0].splitlines()
    assert len(before) < 80
    assert len(PYTHON[0].splitlines()) <= 13


@pytest.mark.process
def test_the_example_of_the_readme_prints_its_output(tmp_path: Path) -> None:
    done = run_page(README_PATH, tmp_path, number=0)
    assert done.stdout.strip() == blocks(README_PATH, "text")[0].strip()


def test_the_costs_of_the_readme_are_those_of_the_page() -> None:
    table = README.partition("## What it costs")[2].partition("\n\n[Cost")[0]
    page = (ROOT / "docs" / "cost-and-sizing.md").read_text().partition("## Cost of a month")[2]
    requests, storage, machines = (
        [cell.strip() for cell in re.findall(rf"^\| {name} \|(.*)\|$", page, flags=re.MULTILINE)[0].split("|")]
        for name in ("dollars: PUT, LIST, GET", "dollars: storage", "machines of 2 processors: insert, merge")
    )
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| [\d].*\|$", table, re.MULTILINE)
    ]
    assert len(rows) == 3
    for n, (_, _, of_requests, of_storage, _) in enumerate(rows):
        assert int(of_requests) == round(sum(map(float, requests[n].split(","))))
        assert float(of_storage.replace(",", "")) == round(float(storage[n].replace(",", "")))
    assert rows[2][-1] == machines[2].split(",")[0]


@pytest.mark.process
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.spark] if "pyspark" in code else []) for n, code in enumerate(PYTHON)]
)
def test_the_python_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    done = run_page(README_PATH, tmp_path, number=number)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lake").is_dir()


@pytest.mark.process
@pytest.mark.parametrize("command", [*COMMANDS, *INLINE])
def test_the_commands_of_the_readme_exist(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        subprocess.run(["make", "-n", words[1]], cwd=ROOT, check=True, capture_output=True)
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


def test_the_quickstart_lists_the_extras_of_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    development = {"demo", "bench", "docs", "dev", "dbt-tests", "ui"}
    assert set(EXTRAS) & set(project["optional-dependencies"]) == set(project["optional-dependencies"]) - development


def test_the_links_of_the_readme_resolve() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).is_file(), target
