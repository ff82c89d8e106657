"""The example project: its data are reproducible, it loads without a store or Spark, and its results are correct."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest

dg = pytest.importorskip("dagster")

yaml = pytest.importorskip("yaml")

from jsonschema import Draft202012Validator

import icedb
from icedb_dagster import IceDBResource, IceDBTableComponent
from icedb_dagster.dev import stack
from tests.support.processes import clean_environment, run_python

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "examples" / "web_analytics"
DAYS = [date(2026, 9, 1) + timedelta(days=n) for n in range(3)]
# A few days and a few visits, with all that happens to many.
SMALL = {"WEB_ANALYTICS_DAYS": "6", "WEB_ANALYTICS_SCALE": "0.1"}


def environment(**more: str) -> dict[str, str]:
    return clean_environment("WEB_ANALYTICS_", "LAKE_", **more)


def start_example(folder: Path, **more: str) -> subprocess.Popen[str]:
    """Run the example's command, with its data and its Postgres in a separate folder."""
    folder.mkdir(exist_ok=True)
    places = {"WEB_ANALYTICS_DATA": str(folder / "data"), "WEB_ANALYTICS_PROJECT": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "examples.run_web_analytics"],
        cwd=REPOSITORY,
        env=environment(**places, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path):
    yield tmp_path
    stack.down(tmp_path)  # a killed example did not stop its Postgres


def files_of(folder: Path) -> dict[str, str]:
    """Path -> digest."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.jsonl")
    }


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(PROJECT))
    from web_analytics.generate import generate

    return generate


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_generated_events_depend_only_on_seed_and_day(generate, tmp_path: Path) -> None:
    lines = generate(tmp_path / "one", DAYS, scale=0.3)
    assert generate(tmp_path / "two", DAYS, scale=0.3) == lines
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert len(files_of(tmp_path / "one")) == 3 * len(DAYS)
    assert sum(len(p.read_text().splitlines()) for p in (tmp_path / "one").rglob("*.jsonl")) == lines

    generate(tmp_path / "fewer", DAYS[:2], scale=0.3)
    fewer = files_of(tmp_path / "fewer")
    assert fewer == {name: digest for name, digest in files_of(tmp_path / "one").items() if name in fewer}
    generate(tmp_path / "other", DAYS, seed=8, scale=0.3)
    assert not set(files_of(tmp_path / "other").values()) & set(files_of(tmp_path / "one").values())


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_generated_events_are_skewed_late_and_partly_invalid(generate, tmp_path: Path) -> None:
    from examples.run_web_analytics.expected import count_inbox

    generate(tmp_path, DAYS, scale=0.5)
    counted = count_inbox(tmp_path)
    tenants = Counter(event.tenant for event in counted.events)
    assert len(tenants) == 3
    assert max(tenants.values()) > 5 * min(tenants.values())  # the sizes differ
    assert counted.misfits  # rows that do not fit

    second_day = (tmp_path / "aurora-fashion" / f"{DAYS[1]}.jsonl").read_text()
    assert f'"ts":"{DAYS[0]}T' in second_day  # late events
    sessions = counted.sessions()
    users_of_a_day = Counter((s.tenant, s.user, s.day) for s in sessions)
    assert max(users_of_a_day.values()) > 1  # a user returns after a break
    assert any(s.cents > 0 for s in sessions)
    assert sum(s.page_views for s in sessions) == sum(e.kind == "page_view" for e in counted.events)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_trace_of_a_user_in_parts_or_log_is_detected(tmp_path: Path) -> None:
    from examples.run_web_analytics import checks
    from examples.shared.numbers import NumbersDisagree

    user = 1_000_007
    for name, rows in {
        "numbers": [{"user_id": user, "n": 1}, {"user_id": 1_000_008, "n": 2}],
        "texts": [{"row": json.dumps({"user_id": f"user-{user}"})}, {"row": "{}"}],
    }.items():
        table = icedb.Table.create(tmp_path / name)
        table.insert(rows)
        with pytest.raises(NumbersDisagree, match=f"still contains the user {user}"):
            checks.nothing_stored_of(table, user)
        table.delete(f"user_id = {user}" if name == "numbers" else f"contains(row, '{user}')")
        with pytest.raises(NumbersDisagree, match="still contains"):
            checks.nothing_stored_of(table, user)  # superseded, and still stored
        with pytest.raises(NumbersDisagree, match="stored parts"):
            checks.only_live_objects(table)
        table.cleanup(grace_ms=0, allow_short_grace=True)
        checks.only_live_objects(table)
        assert checks.nothing_stored_of(table, user) > 1


def test_a_wrong_metric_is_detected(generate, tmp_path: Path) -> None:
    from examples.run_web_analytics import checks
    from examples.run_web_analytics.expected import count_inbox, metrics_of
    from examples.shared.numbers import NumbersDisagree

    generate(tmp_path / "inbox", DAYS, scale=0.1)
    sessions = count_inbox(tmp_path / "inbox").sessions()
    table = icedb.Table.create(tmp_path / "daily_metrics")
    names = ("visitors", "sessions", "page_views", "bounce_rate", "seconds_median", "purchases", "revenue_cents")
    table.insert(
        [
            {"tenant": tenant, "day": day, **dict(zip(names, figures, strict=True))}
            for (tenant, day), figures in metrics_of(sessions).items()
        ]
    )
    checks.metrics(table, sessions)
    one_less = next(s for s in sessions if s.tenant == "aurora-fashion" and s.day == "2026-09-02")
    with pytest.raises(NumbersDisagree, match=r"metrics: found \{\('aurora-fashion', '2026-09-02'\)"):
        checks.metrics(table, [s for s in sessions if s is not one_less])


LOADED = """
import socket, sys
from datetime import UTC, datetime

def refuse(*_):
    raise AssertionError("a connection while definitions load")

socket.socket.connect = refuse
from web_analytics.definitions import defs
import dagster as dg
loaded = defs()
dg.Definitions.validate_loadable(loaded)
repository = loaded.get_repository_def()
assert not [name for name in sys.modules if name.startswith("matplotlib")]
from pyspark import SparkContext
assert SparkContext._active_spark_context is None

for name, day in (("ingest_yesterday", "2026-09-02"), ("derive_the_day_before", "2026-09-01")):
    for month, expected in ((9, [day]), (12, [])):
        at = dg.build_schedule_context(
            repository_def=repository, scheduled_execution_time=datetime(2026, month, 3, 1, tzinfo=UTC)
        )
        result = repository.get_schedule_def(name).evaluate_tick(at)
        assert [request.partition_key for request in result.run_requests or []] == expected, (name, result)

print(*sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()))
print(*sorted(job.name for job in repository.get_all_jobs()))
"""


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_definitions_load_without_services_and_schedules_request_complete_days(tmp_path: Path) -> None:
    nowhere = {"WEB_ANALYTICS_DATA": str(tmp_path / "nowhere"), "LAKE_ROOT": "s3://no-such-bucket/lake"}
    done = run_python("-W", "ignore", "-c", LOADED, cwd=PROJECT, env=environment(**nowhere))
    assets, jobs = (line.split() for line in done.stdout.splitlines())
    assert set(assets) == {"daily_metrics", "dashboard", "events", "events_quarantine", "page_views", "sessions"}
    assert {"ingest", "derive", "look", "events_ttl", "page_views_refresh", "sessions_delete"} <= set(jobs)
    assert not (tmp_path / "nowhere").exists()


def test_the_yaml_of_each_table_matches_the_schema() -> None:
    schema = Draft202012Validator(IceDBTableComponent.model().model_json_schema())
    documents = [*yaml.safe_load_all((PROJECT / "web_analytics" / "defs" / "tables" / "defs.yaml").read_text())]
    wrong = {d["attributes"]["table"]: [e.message for e in schema.iter_errors(d["attributes"])] for d in documents}
    tables = ("events", "page_views", "events_quarantine", "sessions", "daily_metrics")
    assert wrong == {table: [] for table in tables}  # `dg check yaml` looks at one of them


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_a_day_waits_for_the_files_of_all_tenants(generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from web_analytics.defs import events
    from web_analytics.settings import TENANTS

    monkeypatch.setattr(events, "INBOX", tmp_path / "inbox")
    lake = IceDBResource(root=str(tmp_path / "lake"))
    lines = generate(tmp_path / "inbox", DAYS[:1], scale=0.05)
    late = tmp_path / "inbox" / TENANTS[2] / f"{DAYS[0]}.jsonl"
    content = late.read_bytes()
    late.unlink()
    day = str(DAYS[0])
    with pytest.raises(dg.Failure, match=rf"{TENANTS[2]}/{day}\.jsonl of {day} is missing, and nothing was added"):
        dg.materialize([events.events], partition_key=day, resources={"icedb": lake})
    assert not (tmp_path / "lake").exists()
    late.write_bytes(content)
    assert dg.materialize([events.events], partition_key=day, resources={"icedb": lake}).success
    stored = {name: lake.table(name).snapshot().rows for name in ("events", "events_quarantine")}
    assert all(stored.values())
    assert sum(rows or 0 for rows in stored.values()) == lines


@pytest.mark.slow(seconds=150)  # `make example` is the same, and larger
@pytest.mark.spark
@pytest.mark.dagster
def test_the_example_restarts_after_a_kill_with_right_numbers(folder: Path) -> None:
    killed = start_example(folder, **SMALL)
    assert killed.stdout is not None
    for line in killed.stdout:
        if "ingest the last days again" in line:
            killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert (folder / "data" / "lake" / "events").is_dir()

    again = start_example(folder, **SMALL)
    output, _ = again.communicate(timeout=800)
    assert again.returncode == 0, output
    dashboard, ok = output.splitlines()[-2:]
    assert ok == "example: ok"
    assert dashboard == f"dashboard: {folder / 'data' / 'reports' / 'dashboard.png'}"
    assert (folder / "data" / "reports" / "dashboard.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"[\d,]+ objects, none contains the user", output)
    assert steps_of(output)["ingest 6 days"][1] == steps_of(output)["ingest the last days again"][1]


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_the_example_deletes_no_foreign_files(folder: Path) -> None:
    (folder / "data" / "lake").mkdir(parents=True)
    (folder / "data" / "lake" / "mine").write_text("precious")
    refused = start_example(folder, **SMALL)
    output, _ = refused.communicate(timeout=600)
    assert refused.returncode == 1
    assert "has files that this example did not create" in " ".join(output.split())
    assert "example: ok" not in output
    assert (folder / "data" / "lake" / "mine").read_text() == "precious"


@pytest.mark.slow(seconds=600)
@pytest.mark.spark
@pytest.mark.dagster
@pytest.mark.timeout(1800)
def test_the_whole_example_prints_the_figures_of_its_readme(folder: Path) -> None:
    whole = start_example(folder)
    output, _ = whole.communicate(timeout=1700)
    assert whole.returncode == 0, output
    assert output.splitlines()[-1] == "example: ok"
    assert "events/small_parts" in output
    readme = (PROJECT / "README.md").read_text()
    figures = {step: cells[1:3] for step, cells in steps_of(output).items()}
    assert figures == {step: cells[1:3] for step, cells in steps_of(readme).items()}
    assert len(figures) > 20


def steps_of(output: str) -> dict[str, list[str]]:
    """Return the table of steps: name -> cells."""
    rows = [[cell.strip() for cell in line.strip("│ \n").split("│")] for line in output.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in rows}
