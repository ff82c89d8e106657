"""The figures of a Dagster instance for the exporter: runs, locks, sensors, the daemon, the doctor."""

import asyncio
from pathlib import Path

import pytest

dg = pytest.importorskip("dagster")

from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo
from prometheus_client import CollectorRegistry

from icedb.util.clock import SystemClock
from icedb_dagster import icedb_pool
from icedb_dagster.dev.exporter import source as source_module
from icedb_dagster.dev.exporter.source import DagsterFigures
from tests.support.dagster.dagster_jobs import TableJobs

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.dagster_jobs"]

NOW_S = SystemClock().now_ms() / 1000


class Figures:
    """The figures of an instance, with their registry."""

    def __init__(self, instance: dg.DagsterInstance, project: Path = Path()) -> None:
        self.registry = CollectorRegistry()
        self.source = DagsterFigures(instance, project)
        self.source.register(self.registry)
        self.source.read()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"icedb_dagster_{name}", labels)


def test_runs_are_counted_once_with_their_status(jobs: TableJobs, instance: dg.DagsterInstance) -> None:
    jobs.dated("2024-01-01")
    jobs.run("verify")
    figures = Figures(instance)
    labels = {"table": jobs.name.replace("__", "/"), "verb": "verify", "status": "success"}
    last = figures.value("last_run_timestamp_seconds", **labels)
    assert last is not None
    assert last > NOW_S, "known from before the start"
    assert figures.value("runs_total", **labels) == 0, "and not counted"
    jobs.run("verify")
    with pytest.raises(Exception, match="nonsense"):
        jobs.run("delete", where="nonsense = 1")
    for _ in range(2):
        figures.source.read()
        assert figures.value("runs_total", **labels) == 1
        failed = figures.value("runs_total", table=jobs.name, verb="delete", status="failure")
        assert failed == 1, "the run has a pool, whose name has the table's"
        assert figures.value("run_duration_seconds_count", verb="verify", status="success") == 1
        assert figures.value("run_wait_seconds_count", verb="verify") == 1
    assert figures.value("active_runs", verb="verify", status="started") == 0
    assert figures.value("up") == 1


def test_locks_sensors_and_the_daemon(instance: dg.DagsterInstance, name: str) -> None:
    pool, storage = icedb_pool(name), instance.event_log_storage
    storage.set_concurrency_slots(pool, 1)
    runs = [
        dg.DagsterRun(
            "job", tags={"icedb/pool": pool, "icedb/verb": "merge_newest"}, status=dg.DagsterRunStatus.STARTED
        )
        for _ in range(3)
    ]
    for run in runs:
        instance.add_run(run)
    storage.claim_concurrency_slot(pool, runs[0].run_id, "step")
    origin = RemoteInstigatorOrigin(
        repository_origin=RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("code"), "repository"),
        instigator_name=f"{name}_sensor",
    )
    state = InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData())
    instance.add_instigator_state(state)
    ids, kind = (state.instigator_origin_id, state.name), InstigatorType.SENSOR
    for at_s, status, error in (
        (NOW_S - 60, TickStatus.SKIPPED, None),
        (NOW_S, TickStatus.FAILURE, SerializableErrorInfo("no answer", [], None)),
    ):
        instance.create_tick(TickData(*ids, kind, status, at_s, run_ids=[], error=error, selector_id=state.selector_id))
    instance.add_daemon_heartbeat(DaemonHeartbeat(NOW_S, "SENSOR", "id", []))
    figures = Figures(instance)
    assert (figures.value("lock_held", table=name), figures.value("lock_waiting", table=name)) == (1, 2)
    assert figures.value("active_runs", verb="merge_newest", status="started") == 3
    assert figures.value("runs_total", table=name, verb="cleanup", status="failure") == 0, "for a rate of the first"
    assert figures.value("sensor_tick_timestamp_seconds", sensor=f"{name}_sensor") == pytest.approx(NOW_S)
    assert figures.value("sensor_failed", sensor=f"{name}_sensor") == 1
    assert figures.value("daemon_heartbeat_timestamp_seconds", daemon="SENSOR") == pytest.approx(NOW_S)


def test_an_unreadable_instance_is_a_figure(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Figures(instance)

    def fail(*_: object) -> None:
        raise ConnectionError("postgresql://dagster:secret@host is down")

    with monkeypatch.context() as patch:
        patch.setattr(source_module, "read_instance", fail)
        figures.source.read()
    assert (figures.value("up"), figures.value("errors_total")) == (0, 1)
    figures.source.read()
    assert (figures.value("up"), figures.value("errors_total")) == (1, 1)


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program instead of the doctor, whose code the test writes."""
    program = tmp_path / "doctor"
    monkeypatch.setattr(source_module.sys, "executable", str(program))
    return program


def test_the_findings_of_the_doctor(instance: dg.DagsterInstance, doctor: Path) -> None:
    finding = '{"check": "%s", "status": "%s", "found": "", "remedy": "", "about": ""}'
    findings = ", ".join(finding % pair for pair in (("disk", "ok"), ("pools", "problem"), ("pools", "problem")))
    doctor.write_text(f"#!/bin/sh\necho '[{findings}]'\nexit 1\n")
    doctor.chmod(0o755)
    figures = Figures(instance)
    asyncio.run(figures.source.examine_if_due())
    assert figures.value("doctor_findings", check="pools", status="problem") == 2
    assert figures.value("doctor_findings", check="disk", status="problem") == 0
    at = figures.value("doctor_timestamp_seconds")
    doctor.write_text("#!/bin/sh\nexit 2\n")
    asyncio.run(figures.source.examine_if_due())
    assert figures.value("doctor_timestamp_seconds") == at, "not due before an hour"
    assert figures.value("errors_total") == 0


def test_a_doctor_that_fails_is_an_error(instance: dg.DagsterInstance, doctor: Path) -> None:
    doctor.write_text("#!/bin/sh\nexit 2\n")
    doctor.chmod(0o755)
    figures = Figures(instance)
    asyncio.run(figures.source.examine_if_due())
    assert figures.value("errors_total") == 1
