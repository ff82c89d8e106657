"""The examples run offline with correct results, an incorrect one fails, and the stored notebooks are current."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import icedb
from examples.replacing import __main__ as replacing
from examples.shared.alone import run_alone
from tests.support.processes import clean_environment, run_python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUNS = (
    "http_sink", "segment_webhook", "simple.v3", "aggregating.v3", "materialized_view", "simple", "aggregating",
    "replacing", "schema_verification",
)  # fmt: skip
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("notebooks/*.ipynb"))
PAGE = ROOT / "docs" / "examples.md"

Done = subprocess.CompletedProcess[str]


def run(*arguments: str, folder: Path) -> Done:
    """Run a module without the developer's environment, with its temporary files in a folder."""
    return run_python("-m", *arguments, cwd=ROOT, env=clean_environment(TMPDIR=str(folder), COLUMNS="100"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Done]]:
    """Run an example once, and return its result."""
    folder = tmp_path_factory.mktemp("e")
    yield cache(lambda name: run(f"examples.{name}", folder=folder))
    assert list(folder.iterdir()) == [], "files remain"


@pytest.mark.process
@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_and_its_numbers_agree(name: str, done: Callable[[str], Done]) -> None:
    result = done(name)
    assert result.stdout.splitlines()[-1] == f"examples.{name}: ok"
    assert "┏" in result.stdout, "it prints a table"
    assert result.stderr == ""


def test_every_example_is_run_and_listed() -> None:
    modules = {path.parent.name for path in EXAMPLES.glob("*/__main__.py")}
    elsewhere = {"flights", "run_web_analytics", "notebooks"}
    assert modules - elsewhere == {name.partition(".")[0] for name in RUNS}
    assert {path.parent.name for path in EXAMPLES.glob("*/v3.py")} == {n[:-3] for n in RUNS if n.endswith(".v3")}
    readme = (EXAMPLES / "README.md").read_text()
    for name in RUNS:
        assert f"`examples.{name}`" in readme
    for file in re.findall(r"\]\(\.\./(examples/[^)]+)\)", PAGE.read_text()) + [
        f"examples/{link}" for link in re.findall(r"\]\(([^)]+)\)", readme)
    ]:
        assert (ROOT / file).is_file(), file


@pytest.mark.sampled(days=3)
@pytest.mark.process
@pytest.mark.parametrize("name", ["simple", "segment_webhook"])
def test_the_page_shows_what_an_example_prints(name: str, done: Callable[[str], Done]) -> None:
    outputs = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    printed = done(name).stdout
    assert [text for text in outputs if text in printed], f"no output of the page is in:\n{printed}"


def test_programs_to_copy_import_only_the_library() -> None:
    """Neither rich nor our checks, and those for clients not even the library."""
    programs = [
        *EXAMPLES.glob("*/program.py"),
        *EXAMPLES.glob("*/v3_program.py"),
        EXAMPLES / "segment_webhook/funnel.py",
    ]
    assert len(programs) == 8
    for path in (*programs, EXAMPLES / "http_sink/sink.py", EXAMPLES / "segment_webhook/sending.py"):
        imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), flags=re.MULTILINE))
        assert imported <= {*sys.stdlib_module_names, *(["icedb"] if path in programs else [])}, path


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_wrong_number_fails_the_example(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["replacing"])
    monkeypatch.setitem(replacing.CHANGES, 9, [(1, "pro", 999)])  # is counted, and never inserted
    assert run_alone(replacing.story) == 1
    printed = capfd.readouterr().out
    assert re.search(
        r"^examples\.replacing: NumbersDisagree: accounts by plan: found .* counted", printed, re.MULTILINE
    )
    assert "examples.replacing: ok" not in printed


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_tables_stay_in_the_folder_of_the_argument(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["replacing", str(tmp_path / "lake")])
    assert run_alone(replacing.story) == 0
    assert icedb.Table.open(tmp_path / "lake" / "accounts").snapshot().rows == len(replacing.ACCOUNTS)
    assert run_alone(replacing.story) == 1
    assert "examples.replacing: TableExists: " in capfd.readouterr().out


@pytest.mark.sampled(days=3)
def test_every_notebook_is_run() -> None:
    execution = pytest.importorskip("examples.notebooks.execution")
    assert [path.stem for path in execution.NOTEBOOKS] == NOTEBOOKS


@pytest.mark.process
@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_with_its_stored_outputs(name: str, tmp_path: Path) -> None:
    execution = pytest.importorskip("examples.notebooks.execution")
    nbformat = pytest.importorskip("nbformat")
    [path] = [path for path in execution.NOTEBOOKS if path.stem == name]
    (folder := tmp_path / name).mkdir()
    ran = execution.execute(path, folder)
    stored = nbformat.read(path, as_version=4)
    for mine, theirs in zip(ran.cells, stored.cells, strict=True):
        assert texts(mine) == texts(theirs), f"{path.name}: update it: python -m examples.notebooks {name}"
    assert (folder / "lake").is_dir()
    assert set(execution.pictures(ran)) == set(execution.pictures(stored))
    for image, picture in execution.pictures(stored).items():
        assert (ROOT / "docs" / "images" / image).read_bytes() == picture
        assert f"images/{image}" in PAGE.read_text()


def texts(cell: dict[str, object]) -> list[object]:
    """Return the texts of a cell's outputs. Pictures depend on the machine's fonts."""
    outputs = cell.get("outputs", ())
    assert isinstance(outputs, list | tuple)
    assert all(output["output_type"] != "error" for output in outputs)
    return [
        (sorted(output.get("data", ())), output.get("data", {}).get("text/plain"), output.get("text"))
        for output in outputs
    ]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_notebook_that_raises_fails(tmp_path: Path) -> None:
    execution = pytest.importorskip("examples.notebooks.execution")
    v4 = pytest.importorskip("nbformat").v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell("1 / 0")])
    path = tmp_path / "wrong.ipynb"
    path.write_text(execution.text_of(notebook))
    with pytest.raises(execution.NotebookFailed, match=r"wrong\.ipynb.*(?s:.)*ZeroDivisionError"):
        execution.execute(path, tmp_path)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_has_outputs_and_no_local_paths(name: str) -> None:
    nbformat = pytest.importorskip("nbformat")
    text = (EXAMPLES / "notebooks" / f"{name}.ipynb").read_text()
    assert not re.search(r"/tmp/|/home/|/work/|/Users/", text)
    cells = nbformat.reads(text, as_version=4).cells
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))
    assert len(text) < 200_000
