"""Projects of `icedb-dagster init`: the development servers load one, and its asset materializes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import free_port

typer = pytest.importorskip("typer")
dg = pytest.importorskip("dagster")

import icedb
from icedb.errors import InvalidOption, InvalidURI
from icedb_dagster.dev import stack
from icedb_dagster.dev.command import app
from icedb_dagster.dev.project import create_project
from icedb_dagster.dev.stack import processes
from icedb_dagster.dev.stack.graphql import request
from tests.icedb_dagster.dev.test_stack import _processes_of
from tests.support.dagster.dagster_platform import launch_run
from tests.support.processes import run_python
from tests.support.site.pages import blocks
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
PROGRAMS = Path(sys.executable).parent
FILES = {
    ".env.example", ".gitignore", "README.md", "pyproject.toml", "workspace.yaml", "web_shop/__init__.py",
    "web_shop/definitions.py", "web_shop/defs/__init__.py", "web_shop/defs/events/defs.yaml", "tests/test_web_shop.py",
}  # fmt: skip
LOCATIONS = "{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename } } } } }"


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run(folder: Path, *command: str, **environ: str) -> str:
    done = run_python("-m", *command, cwd=folder, env={**os.environ, **environ})
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_project_is_created_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "Web-Shop"
    created = create_project(folder)
    assert written(folder) == {path.relative_to(folder).as_posix() for path in created} == FILES
    for path in created:
        path.write_text("mine")
    with pytest.raises(InvalidOption, match=r"Web-Shop has pyproject\.toml, .* already\. Files are never overwritten"):
        create_project(folder)
    assert {path.read_text() for path in created} == {"mine"}

    half = tmp_path / "half"
    half.mkdir()
    (half / "tests").write_text("a file where a folder is needed")
    with pytest.raises(OSError, match="tests"):
        create_project(half)
    assert written(half) == {"tests"}

    for name, message in (("dagster", "exists already"), ("class", "cannot be"), ("2026", "cannot be")):
        with pytest.raises(InvalidOption, match=message):
            create_project(tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(InvalidURI):
        create_project(tmp_path / "nowhere", root="ftp://host/lake")
    with pytest.raises(InvalidOption, match="is in memory and ends with its process"):
        create_project(tmp_path / "nowhere", root="memory://lake")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_project_requires_the_dagster_version_of_this_library(tmp_path: Path) -> None:
    create_project(tmp_path / "web_shop")
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    its = tomllib.loads((tmp_path / "web_shop" / "pyproject.toml").read_text())
    dg_cli = [d for d in its["project"]["optional-dependencies"]["dev"] if d.startswith("dagster")]
    assert dg_cli == [d for d in ours["project"]["optional-dependencies"]["dev"] if d.startswith("dagster-dg-cli")]
    assert its["project"]["requires-python"] == ours["project"]["requires-python"]
    assert its["project"]["dependencies"] == ["icedb-dagster[dagster]"]


@pytest.mark.sampled(days=3)
@pytest.mark.process
@pytest.mark.parametrize("root", ["lake", "/srv/lake", "s3://bucket/web"])
def test_project_files_pass_ruff_and_contain_no_secret(tmp_path: Path, root: str) -> None:
    folder = tmp_path / "web_shop"
    create_project(folder, root=root)
    for check in (["format", "--check"], ["check", "--select", "E,F,I,UP"]):
        subprocess.run([PROGRAMS / "ruff", *check, "--no-cache", "--line-length=120", "."], cwd=folder, check=True)
    code = (folder / "web_shop" / "definitions.py").read_text()
    assert f'"{root}"' in code
    assert ("EnvVar" in code) == root.startswith("s3:")
    assert re.findall(r"^[A-Z_]+=.+$", (folder / ".env.example").read_text(), flags=re.MULTILINE) == []
    assert ("AWS_SECRET_ACCESS_KEY=" in (folder / ".env.example").read_text()) == root.startswith("s3:")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "web_shop"
    create_project(folder)
    yield folder
    stack.down(folder)
    assert _processes_of(folder) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """Starts a development server, and stops it with all that it has started."""
    started = []

    def start(*command: str | Path, folder: Path, location: str, **environ: str) -> int:
        port = free_port()
        arguments = [*command, "--host", "127.0.0.1", "--port", str(port)]
        log = tmp_path / "server.log"
        process = processes.spawn(arguments, log=log, environ={**os.environ, **environ}, cwd=folder)
        started.append(process)

        def loaded() -> bool:
            assert processes.is_running(process), log.read_text()
            answer: Any = request(port, "POST", "/graphql", {"query": LOCATIONS})
            entries = ((answer or {}).get("data") or {}).get("workspaceOrError", {}).get("locationEntries", ())
            return any((entry["locationOrLoadError"] or {}).get("__typename") for entry in entries) and entries == [
                {"name": location, "locationOrLoadError": {"__typename": "RepositoryLocation"}}
            ]

        wait_until(loaded, "code location", every_seconds=0.2)
        return port

    yield start
    for process in started:
        processes.stop(process, signals=((2, 60), (9, 60)))  # type: ignore[arg-type]


@pytest.mark.slow(seconds=40)
@pytest.mark.dagster
def test_a_new_project_passes_its_test_and_runs_in_dg_dev_on_a_real_postgres(project: Path, server: Any) -> None:
    assert "2 passed" in run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert "All code locations passed validation" in run(project, "dagster", "definitions", "validate")
    running = stack.up(project, services=("postgres",))
    dev = (sys.executable, "-m", "icedb_dagster.dev.command", "run", "-d", project, "dg", "dev")
    port = server(*dev, folder=project, location="web_shop")
    run_id = launch_run(port, "web_shop", "__ASSET_JOB", ["events"], **{"dagster/partition": "2026-01-05"})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stack.environment(running).items():
            patch.setenv(name, value)
        with dg.DagsterInstance.get() as instance:
            wait_until(lambda: instance.get_run_by_id(run_id).is_finished, "end of the run", every_seconds=0.2)
            assert instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.SUCCESS
    table = icedb.Table.open(project / "lake" / "events")
    assert table.query("SELECT day, count(*) FROM t GROUP BY day").fetchall() == [("2026-01-05", 24)]
    assert not list(project.glob(".tmp_dagster_home_*"))
    arguments = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True, text=True).stdout
    assert (project / ".icedb-dagster" / "postgres.password").read_text() not in arguments


@pytest.mark.slow(seconds=40)
@pytest.mark.dagster
def test_dagster_dev_loads_the_repository(server: Any, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    home = {"DAGSTER_HOME": str(tmp_path / "home"), "ICEDB_DEMO_PROJECT": str(tmp_path)}
    server(PROGRAMS / "dagster", "dev", folder=REPOSITORY, location="examples.flights.definitions", **home)


def test_dg_and_workspace_yaml_use_the_same_location_name() -> None:
    """Schedules that run are remembered by the name of their code location."""
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["dg"]
    workspace = (REPOSITORY / "workspace.yaml").read_text()
    assert f"module_name: {config['project']['code_location_target_module']}\n" in workspace
    assert config["project"]["code_location_name"] == config["project"]["code_location_target_module"]
    assert json.dumps(config["cli"]) == '{"telemetry": {"enabled": false}}'


def test_each_verb_has_an_example_that_parses() -> None:
    commands: Any = typer.main.get_command(app)
    for name, verb in commands.commands.items():
        program, example_name, *words = shlex.split(verb.epilog.removeprefix("Example: "))
        assert (program, example_name) == ("icedb-dagster", name)
        verb.make_context(name, words)


def test_the_page_on_running_lists_every_command_and_valid_options() -> None:
    page = REPOSITORY / "docs" / "running.md"
    commands: Any = typer.main.get_command(app)
    table = page.read_text().partition("| command |")[2].partition("\n\n")[0]
    assert commands.commands.keys() == set(re.findall(r"`([a-z]+)`", table.replace("`dg dev`", "")))
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]
    assert len(lines) > 10
    for program, verb, *arguments in lines:
        assert program == "icedb-dagster"
        commands.commands[verb].make_context(verb, arguments)  # raises for what it does not know
