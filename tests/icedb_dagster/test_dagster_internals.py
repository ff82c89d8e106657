"""Each private name of Dagster that is used exists, and what fails without it has a message."""

import logging
from pathlib import Path

import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import StackError
from icedb_dagster import launcher as launchers
from icedb_dagster.dagster_internals import INTERNALS, internal, lacking
from icedb_dagster.dev.project.workspace import load_code
from icedb_dagster.launcher import MonitoredRunLauncher

NEEDED_TO = {name: used.needed_to for name, used in INTERNALS.items()}
DETECT, REPORT = "detect dead run workers", "report the error of a Spark program"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Make a name of Dagster missing, as in a version that has renamed it."""
    monkeypatch.setitem(INTERNALS, name, INTERNALS[name].__class__("dagster", f"{name}_of_1_13", NEEDED_TO[name]))
    return name


@pytest.mark.parametrize("name", INTERNALS)
def test_this_version_of_dagster_has_each_name(name: str) -> None:
    assert internal(name) is INTERNALS[name].load()
    assert lacking(NEEDED_TO[name]) is None


@pytest.mark.parametrize("name", [n for n, purpose in NEEDED_TO.items() if purpose == DETECT])
def test_the_launcher_works_without_a_name(
    without: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs start, and dead workers are not detected."""
    monkeypatch.setattr(launchers, "_UNAVAILABLE", lacking(DETECT))
    with caplog.at_level(logging.WARNING, "icedb_dagster"):
        launcher = MonitoredRunLauncher()
    assert isinstance(launcher, dg.DefaultRunLauncher)
    assert not launcher.supports_check_run_worker_health
    assert "cannot detect dead run workers" in caplog.text
    assert f"{without}_of_1_13" in caplog.text


@pytest.mark.parametrize("name", ["WorkspaceOpts", "workspace_opts_to_load_target", "InProcessWorkspaceLoadTarget"])
def test_a_workspace_cannot_be_read_without_a_name(without: str, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    with pytest.raises(StackError, match=rf"needed to load the code of a project \(.*'{without}_of_1_13'\). Install"):
        load_code(tmp_path)


@pytest.mark.parametrize(
    ("name", "locations"), [("LoadedRepositories", ["code.py"]), ("WorkspaceProcessContext", ["code.py", "more.py"])]
)
def test_code_cannot_be_loaded_without_a_name(without: str, locations: list[str], tmp_path: Path) -> None:
    lines = [f"  - python_file: {{relative_path: {file}, location_name: {file[:4]}}}\n" for file in locations]
    (tmp_path / "workspace.yaml").write_text("load_from:\n" + "".join(lines))
    with pytest.raises(StackError, match=f"needed to load the code of a project .*{without}_of_1_13"):
        load_code(tmp_path)


@pytest.mark.parametrize("name", [n for n, purpose in NEEDED_TO.items() if purpose == REPORT])
def test_the_error_names_what_is_not_possible_without_a_name(without: str) -> None:
    with pytest.raises(StackError, match=f"lacks a name that is needed to {REPORT} .*'{without}_of_1_13'"):
        internal(without)


def test_a_name_that_is_not_listed_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        internal("DagsterInstance")
