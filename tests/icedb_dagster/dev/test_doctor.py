"""The findings of `icedb-dagster doctor` and `pools`: judgements, real stores, a real instance and its daemon."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")


import icedb
from icedb.errors import StackError
from icedb.format.timing import Timing
from icedb.storage.location import parse_location
from icedb.storage.object_store import ObjectStore
from icedb.storage.obstore_store import open_store
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, create_table
from icedb.util.clock import SystemClock
from icedb_dagster import IceDBResource, build_table_definitions
from icedb_dagster.dev import stack
from icedb_dagster.dev.doctor import DoctorFinding, examine
from icedb_dagster.dev.doctor.automation import AutomationState, FailedTick, judge_automations, read_automations
from icedb_dagster.dev.doctor.daemon import Heartbeat, judge_daemon, watch_heartbeats
from icedb_dagster.dev.doctor.database import judge_schema, judge_server
from icedb_dagster.dev.doctor.disk import judge_free_space
from icedb_dagster.dev.doctor.instance_settings import InstanceSettings, judge_settings, read_settings
from icedb_dagster.dev.doctor.locks import Holder, judge_holders, judge_limits
from icedb_dagster.dev.doctor.maintenance_runs import judge_maintenance, read_failed_jobs, read_late_runs
from icedb_dagster.dev.doctor.runs import Backlog, judge_backlog, judge_runs, read_backlog
from icedb_dagster.dev.doctor.services import judge_services
from icedb_dagster.dev.doctor.store import examine_store, judge_clock
from icedb_dagster.dev.doctor.versions import judge_versions, read_versions
from icedb_dagster.dev.project.automations import Automation
from icedb_dagster.dev.project.workspace import load_code
from icedb_dagster.dev.stack import database
from icedb_dagster.dev.stack.stack_status import ServiceStatus
from icedb_dagster.locking.lock_pools import PoolLimit
from tests.support.object_stores.stores import BUCKET, Place, S3Server
from tests.support.waiting import wait_until

# Judgements


HEALTHY = InstanceSettings(
    storage="PostgresEventLogStorage",
    has_pools=True,
    granularity="op",
    coordinator="QueuedRunCoordinator",
    runs_max=4,
    waits_in_queue=True,
    monitoring=True,
    poll_s=10,
    free_slots_s=30,
    knows_workers=True,
)


@pytest.mark.parametrize(
    ("changed", "check", "status", "remedy"),
    [
        ({"storage": "SqliteEventLogStorage"}, "storage", "problem", "storage: {postgres:"),
        ({"has_pools": False}, "storage", "problem", "dagster instance migrate"),
        ({"granularity": "run"}, "pool granularity", "problem", "granularity: op"),
        ({"granularity": None}, "pool granularity", "warning", "granularity: op"),
        ({"coordinator": "DefaultRunCoordinator", "runs_max": None}, "run queue", "problem", "QueuedRunCoordinator"),
        ({"runs_max": -1}, "run queue", "warning", "max_concurrent_runs: 4"),
        ({"waits_in_queue": False}, "run queue", "warning", "key: icedb/pool"),
        ({"monitoring": False}, "run monitoring", "problem", "enabled: true"),
        ({"free_slots_s": None}, "run monitoring", "problem", "free_slots_after_run_end_seconds: 30"),
        ({"poll_s": 30, "free_slots_s": 120}, "run monitoring", "warning", "poll_interval_seconds: 10"),
        ({"knows_workers": False}, "run monitoring", "warning", "class: MonitoredRunLauncher"),
    ],
)
def test_a_wrong_setting_is_one_finding(changed: dict[str, Any], check: str, status: str, remedy: str) -> None:
    assert {f.status for f in judge_settings(HEALTHY)} == {"ok"}
    (finding,) = [f for f in judge_settings(replace(HEALTHY, **changed)) if f.status != "ok"]
    assert (finding.check, finding.status) == (check, status)
    assert remedy in finding.remedy


def test_an_ephemeral_instance_is_examined() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        findings = judge_settings(read_settings(instance))
    assert {f.check for f in findings if f.status == "problem"} == {"storage", "run queue", "run monitoring"}


KINDS = ("SENSOR", "BACKFILL", "MONITORING")


def beats(*daemons: str, age_s: float = 5) -> tuple[Heartbeat, ...]:
    return tuple(Heartbeat(kind, daemon, age_s) for kind, daemon in zip(KINDS, daemons, strict=False))


@pytest.mark.parametrize(
    ("looks", "status", "expected"),
    [
        ([beats("a", "a", "a")], "ok", "one daemon"),
        ([()], "problem", "no daemon has ever run"),
        ([beats("a", "a", "a", age_s=300)], "problem", "the last heartbeat is 300 s old"),
        ([beats("a", "a")], "warning", "no heartbeat for over 120 s of: MONITORING"),
        ([beats("a", "b", "a")], "problem", "2 daemons"),
        ([beats("a", "a", "a"), beats("b", "b", "b")], "problem", "2 daemons"),
        ([(*beats("a", "a"), Heartbeat("MONITORING", "before", 100))], "ok", "one daemon"),
        ([(*beats("a", "a"), Heartbeat("MONITORING", "a", 5, ("\nno code\nTraceback",)))], "problem", "MONITORING: no"),
    ],
)
def test_a_daemon_is_judged_by_its_heartbeats(looks: list[tuple[Heartbeat, ...]], status: str, expected: str) -> None:
    (finding,) = judge_daemon(KINDS, looks)
    assert finding.status == status
    assert expected in finding.found


def test_a_daemon_is_watched_for_the_requested_time() -> None:
    slept: list[float] = []
    looks = watch_heartbeats(lambda: beats(str(len(slept) // 4)), seconds=35, sleep=slept.append)
    assert sum(slept) == 35
    assert {look[0].daemon for look in looks} == {"0", "1"}
    assert len(watch_heartbeats(lambda: (), seconds=0)) == 1


@pytest.mark.parametrize(
    ("free", "status", "named"),
    [
        ({"the instance": None}, "ok", "no folder"),
        ({"the instance": 50 << 30, "Postgres": 9 << 30, "temporary files": None}, "ok", "9.0 GiB free for Postgres"),
        ({"the instance": 50 << 30, "Postgres": 3 << 30}, "warning", "3.0 GiB free for Postgres"),
        ({"the instance": 0, "Postgres": 3 << 30}, "problem", "0.0 GiB free for the instance"),
    ],
)
def test_the_fullest_disk_is_judged(free: dict[str, int | None], status: str, named: str) -> None:
    finding = judge_free_space(free)
    assert (finding.check, finding.status) == ("disk", status)
    assert named in finding.found


def test_each_started_run_without_a_worker_is_a_problem() -> None:
    assert [f.status for f in judge_runs({})] == ["ok"]
    assert [f.found for f in judge_runs({"a": "", "b": ""})] == ["2 started, none without its worker"]
    (lost,) = judge_runs({"a": "", "b": "its process 7 has ended"})
    assert (lost.status, lost.found) == ("problem", "run b is started, but its process 7 has ended")


@pytest.mark.parametrize(
    ("backlog", "status", "named"),
    [
        (Backlog(), "ok", "no run is queued"),
        (Backlog(3, "a", 600), "ok", "3 runs are queued, run a for 5 min"),
        (Backlog(3, "a", -7_200), "warning", "3 runs are queued, run a for 2 h 15 min"),
        (Backlog(3, "a", -600, moves=False), "warning", "for 25 min"),
        (Backlog(3, "a", -7_200, moves=False), "problem", "and no run started within an hour"),
    ],
)
def test_a_queue_that_does_not_move_is_a_problem(backlog: Backlog, status: str, named: str) -> None:
    now = ManualClock(900_000)
    finding = judge_backlog(backlog, now)
    assert finding.status == status
    assert named in finding.found


NIGHTLY = Automation("schedule", "shop", "__repository__", "events_ttl_schedule", False, ("18 3 * * *",))
SENSOR = Automation("sensor", "shop", "__repository__", "events_maintenance_sensor", True, interval_s=30)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], [("ok", "the code has none")]),
        ([AutomationState(NIGHTLY, is_on=True), AutomationState(SENSOR, is_on=True)], [("ok", "that are on: 2")]),
        ([AutomationState(NIGHTLY, is_on=False)], [("warning", "1 of 1 are off: events_ttl_schedule")]),
        ([AutomationState(SENSOR, is_on=False)], [("problem", "stopped, although the code starts them: events_m")]),
        ([AutomationState(NIGHTLY, is_on=False, on_for="old")], [("warning", "on for code location old, but not for")]),
        ([AutomationState(SENSOR, is_on=True, due_s=1_800)], [("problem", "late, the first for 30 min: events_m")]),
        (
            [
                AutomationState(SENSOR, is_on=True, failed=FailedTick("no bucket", 3_590, 3_500)),
                AutomationState(NIGHTLY, is_on=True, failed=FailedTick("no bucket", 3_590, 3_500)),
                AutomationState(SENSOR, is_on=True, failed=FailedTick("no bucket", 3_590, None)),
            ],
            [
                ("warning", "failed: no bucket; the last one without an error was 1 min 40 s ago"),
                ("problem", "schedule events_ttl_schedule: its last tick failed: no bucket"),
                ("problem", "no recorded tick is without an error"),
            ],
        ),
    ],
)
def test_schedules_and_sensors_that_do_not_work_are_reported(
    states: list[AutomationState], expected: list[tuple[str, str]]
) -> None:
    findings = judge_automations(states, ManualClock(3_600_000))
    assert [f.status for f in findings] == [status for status, _ in expected]
    for finding, (_, text) in zip(findings, expected, strict=True):
        assert text in finding.found
        assert (finding.since != "") == (finding.check == "ticks")


def test_the_stored_states_and_ticks_of_automations_are_read(tmp_path: Path) -> None:
    """As Dagster stores them: by code location, with ticks, of which the newest may be in progress."""
    from dagster._core.remote_origin import (
        RegisteredCodeLocationOrigin,
        RemoteInstigatorOrigin,
        RemoteRepositoryOrigin,
    )
    from dagster._core.scheduler import instigation as stored
    from dagster_shared.error import SerializableErrorInfo

    now_s = 1_799_967_600.0  # 2027-01-14T23:00 UTC
    clock = ManualClock(int(now_s * 1000))

    def state(it: Automation, status: str, data: Any, location: str = "shop") -> Any:
        origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), it.repository)
        kind = stored.InstigatorType(it.kind.upper())
        return instance.add_instigator_state(
            stored.InstigatorState(RemoteInstigatorOrigin(origin, it.name), kind, stored.InstigatorStatus(status), data)
        )

    def tick(of: Any, status: str, at_s: float, error: str = "") -> None:
        failed = SerializableErrorInfo("first", [], None, SerializableErrorInfo(error, [], None)) if error else None
        instance.create_tick(
            stored.TickData(
                of.instigator_origin_id, of.name, of.instigator_type, stored.TickStatus(status), at_s,
                error=failed, selector_id=of.selector_id,
            )
        )  # fmt: skip

    def read(*automations: Automation) -> list[AutomationState]:
        return read_automations(instance, automations, clock)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert [it.is_on for it in read(NIGHTLY, SENSOR)] == [False, True]
        nightly = state(NIGHTLY, "RUNNING", stored.ScheduleInstigatorData("18 3 * * *", now_s - 90_000))
        sensor = state(SENSOR, "DECLARED_IN_CODE", stored.SensorInstigatorData())
        (late,) = read(NIGHTLY)
        assert late.due_s == now_s - 19 * 3600 - 42 * 60  # 03:18
        tick(nightly, "SKIPPED", late.due_s)
        assert read(NIGHTLY, SENSOR) == [AutomationState(NIGHTLY, is_on=True), AutomationState(SENSOR, is_on=True)]
        for age_s, status, error in ((700, "SKIPPED", ""), (60, "FAILURE", "topsecret"), (1, "STARTED", "")):
            tick(sensor, status, now_s - age_s, error and f"postgres://me:{error}@host is gone")
        (failing,) = read(SENSOR)
        assert failing.failed == FailedTick("postgres://me:***@host is gone", now_s - 60, now_s - 700)
        assert [f.status for f in judge_automations([failing], clock)] == ["problem"]
        assert read(replace(SENSOR, location="moved", by_default=False))[0].on_for == ""  # by the code, not by a user
        assert read(replace(NIGHTLY, location="moved"))[0].on_for == "shop"
        clock.advance(1_000_000)
        assert read(SENSOR)[0].due_s == now_s - 60 + 30
        instance.update_instigator_state(sensor.with_status(stored.InstigatorStatus.STOPPED))
        assert not read(SENSOR)[0].is_on


def test_a_job_of_a_table_that_fails_is_reported_until_a_run_succeeds(tmp_path: Path) -> None:
    lake = IceDBResource(root=str(tmp_path))
    defs = dg.Definitions.merge(
        build_table_definitions("events", lock="claim"), dg.Definitions(resources={"icedb": lake})
    )
    merge, clock = defs.resolve_job_def("events_merge_newest"), SystemClock()
    with dg.DagsterInstance.ephemeral() as instance:

        def run(**tags: str) -> str:
            return merge.execute_in_process(instance=instance, raise_on_error=False, tags=tags).run_id

        def findings() -> list[DoctorFinding]:
            return judge_maintenance(read_failed_jobs(instance, clock), read_late_runs(instance, clock), clock)

        assert [f.status for f in findings()] == ["ok"]
        run()
        assert [f.status for f in findings()] == ["warning"]  # started by hand
        last = run(**{"dagster/sensor_name": "events_maintenance_sensor"})
        (failed,) = findings()
        assert failed.status == "problem"
        assert failed.found.startswith("merge_newest of events: its last 2 runs failed, 0 s ago run " + last)
        assert "there is no table" in failed.found
        assert failed.since.startswith("20")
        icedb.Table.create(tmp_path / "events")
        run()
        assert [f.status for f in findings()] == ["ok"]


def test_a_run_of_a_table_that_waits_for_hours_is_reported() -> None:
    clock, tags = ManualClock(SystemClock().now_ms()), {"icedb/table": "events", "icedb/verb": "cleanup"}
    with dg.DagsterInstance.ephemeral() as instance:
        job = dg.GraphDefinition("events_cleanup").to_job()
        for each in (tags, {}):
            instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=each)
        assert read_late_runs(instance, clock) == []
        clock.advance(2 * 3_600_000)
        (late,) = judge_maintenance([], read_late_runs(instance, clock), clock)
    assert late.status == "warning"
    assert "cleanup of events: run " in late.found
    assert " has been started for 1 h 59 min" in late.found or " has been started for 2 h" in late.found
    assert late.since


def test_queued_runs_are_counted_from_the_oldest() -> None:
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

    job, clock = dg.GraphDefinition("work").to_job(), ManualClock(SystemClock().now_ms())
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("shop"), "__repository__"), "work")
    with dg.DagsterInstance.ephemeral() as instance:
        assert read_backlog(instance, clock) == Backlog()
        before_s = time.time()
        queued: dict[str, Any] = {"status": dg.DagsterRunStatus.QUEUED, "remote_job_origin": origin}
        runs = [instance.create_run_for_job(job, **queued) for _ in range(3)]
        waiting = read_backlog(instance, clock)
        assert (waiting.queued, waiting.run_id, waiting.moves) == (3, runs[0].run_id, False)
        assert before_s - 1 <= waiting.queued_s <= time.time() + 1
        assert job.execute_in_process(instance=instance).success
        assert read_backlog(instance, clock).moves
        clock.advance(2 * 3_600_000)
        assert judge_backlog(read_backlog(instance, clock), clock).status == "problem"


def test_pools_without_a_limit_are_reported() -> None:
    good, new, wide = PoolLimit("icedb/a", 1), PoolLimit("icedb/b", None), PoolLimit("icedb/c", 4)
    default = PoolLimit("icedb/d", 1, by_default=True)
    assert judge_limits([good]).status == judge_limits([]).status == "ok"
    finding = judge_limits([good, new, default])
    assert (finding.status, finding.remedy) == ("warning", "after each deployment: icedb-dagster pools")
    assert "2 of 3 are not locks: icedb/b (no limit), icedb/d (default limit 1)" in finding.found
    assert judge_limits([good, wide]).status == "problem"
    assert "and 3 more" in judge_limits([PoolLimit(f"icedb/{n}", None) for n in range(8)]).found


def test_a_slot_held_after_the_end_of_its_run_is_reported() -> None:
    working = Holder("icedb/a", "run1", "STARTED")
    ended = Holder("icedb/a", "run2", "FAILURE", ended_s=200)
    assert [f.status for f in judge_holders([working], slot_free_s=60)] == ["ok"]
    (late,) = judge_holders([working, ended], slot_free_s=60)
    assert (late.status, late.found) == ("problem", "icedb/a is held by run run2, FAILURE 200 s ago")
    assert "run run2" in late.remedy
    assert [f.status for f in judge_holders([replace(ended, ended_s=20)], slot_free_s=60)] == ["warning"]
    assert [f.status for f in judge_holders([replace(ended, ended_s=20)], slot_free_s=None)] == ["problem"]
    assert "which was deleted" in judge_holders([Holder("icedb/a", "gone", None)], slot_free_s=60)[0].found


def test_a_service_that_has_ended_is_reported() -> None:
    log = Path("logs/daemon.log")
    running, stopped = ServiceStatus("postgres", "running", pid=1), ServiceStatus("webserver", "stopped")
    ended = ServiceStatus("daemon", "ended", log=log, ended="2027-01-14T22:48:00+00:00")
    [sound] = judge_services([running, stopped])
    assert (sound.status, sound.found) == ("ok", "running: postgres")
    [finding] = judge_services([running, ended])
    assert (finding.status, finding.found) == ("problem", "daemon has ended without `down`")
    assert (finding.remedy, finding.since) == (f"see its log, {log}, then: icedb-dagster up", ended.ended)
    assert judge_services([stopped]) == []


def test_packages_of_different_releases_are_reported() -> None:
    assert judge_versions(read_versions()).status == "ok"
    finding = judge_versions({"dagster": "1.13.27", "dagster-postgres": "0.29.27", "dagster-webserver": "1.13.26"})
    assert finding.status == "problem"
    assert "dagster-webserver 1.13.26" in finding.found
    assert "dagster-postgres" not in finding.found


def test_a_postgres_is_judged_by_version_latency_and_schema() -> None:
    address = "postgresql://me:***@host/db"
    assert judge_server(database.ServerInfo("18.6", 0.4), address=address).status == "ok"
    assert judge_server(database.ServerInfo("12.4 (Debian)", 0.4), address=address).status == "warning"
    assert judge_server(database.ServerInfo("18.6", 90), address=address).status == "warning"
    assert judge_server("connection refused", address=address).found == f"{address}: connection refused"
    assert judge_schema({("abc", "abc")}).status == "ok"
    assert judge_schema({("abc", "abc"), ("abc", "def")}).remedy.endswith("dagster instance migrate")
    assert judge_schema({(None, "def")}).status == "problem"


@pytest.mark.parametrize(
    ("skew_ms", "status"), [(0, "ok"), (-900, "ok"), (20_000, "ok"), (40_000, "warning"), (-90_000, "problem")]
)
def test_a_clock_is_compared_with_the_store_s(skew_ms: int, status: str) -> None:
    now_ms = 1_800_000_000_000
    finding = judge_clock(put_after_ms=now_ms, stored_ms=now_ms - skew_ms, now_ms=now_ms + 50, max_skew_ms=60_000)
    assert finding.status == status
    assert ("ahead of" in finding.found) == (skew_ms > 1000)


# Stores


def look(store: ObjectStore, **options: Any) -> dict[str, DoctorFinding]:
    clock = options.pop("clock", SystemClock())
    findings = {f.check: f for f in examine_store(store, clock=clock, timing=Timing(), **options)}
    assert all(f.remedy for f in findings.values() if f.status != "ok")
    return findings


def problems(findings: dict[str, DoctorFinding]) -> set[str]:
    return {check for check, finding in findings.items() if finding.status == "problem"}


def store_of(place: Place) -> ObjectStore:
    return open_store(parse_location(place.uri, place.storage_options))


@pytest.mark.sampled(days=3)
def test_examining_a_sound_table_changes_nothing(shared_place: Place) -> None:
    store = store_of(shared_place)
    empty = look(store)
    assert {f.status for c, f in empty.items() if c != "table"} == {"ok"}
    assert (empty["table"].status, empty["table"].found) == ("warning", "the table does not exist")
    assert shared_place.kind == "s3" or not Path(shared_place.uri).exists()
    store = store_of(shared_place)  # the folder that the other one has seen is gone
    table = icedb.Table.create(shared_place.uri, storage_options=shared_place.storage_options)
    table.insert([{"n": 1}])
    before = [o.key for o in store.list(store.location.prefix)]
    findings = look(store)
    assert {f.status for f in findings.values()} == {"ok"}
    assert findings["table"].found == "live parts: 1, log files: 1, epoch 1"
    assert [o.key for o in store.list(store.location.prefix)] == before
    assert table.verify(deep=True).ok


class _Overwrites(ClockedStore):
    """A store that does not know If-None-Match."""

    def create(self, key: str, body: bytes | Path) -> None:
        self.objects.pop(key, None)
        super().create(key, body)


def test_overwriting_stores_wrong_clocks_and_lost_log_files_are_reported(clock: ManualClock) -> None:
    store = _Overwrites(clock)
    assert problems(look(store, clock=clock, table=False)) == {"create-only"}
    assert store.objects == {}
    assert problems(look(ClockedStore(clock), clock=clock.skewed(90_000), table=False)) == {"clock"}

    ours = ClockedStore(clock)
    table = create_table(ours, clock=clock)
    for n in range(3):
        table.insert([{"n": n}])
    table.merge()
    claimed = ours.location.keys.epoch_claim(9)
    ours.create(claimed, b"{}")
    findings = look(ours, clock=clock)
    assert problems(findings) == {"table"}
    assert "were removed by a program that takes no claims" in findings["table"].found


def test_a_failing_store_is_a_finding(clock: ManualClock) -> None:
    for kind, failed in (("list", {"reach"}), ("create", {"create"}), ("get", {"read"}), ("delete", {"delete"})):
        store = FaultyStore(ClockedStore(clock))
        store.inject(Fault.FAIL, kind=kind)  # type: ignore[arg-type]
        assert problems(look(store, clock=clock, table=False)) == failed


@pytest.mark.sampled(days=3)
@pytest.mark.s3
@pytest.mark.parametrize(
    ("actions", "refused"),
    [
        (("s3:ListBucket", "s3:GetObject"), {"create"}),
        (("s3:ListBucket", "s3:GetObject", "s3:PutObject"), {"delete"}),
        (("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), {"list"}),
    ],
)
def test_missing_permissions_are_named(
    s3: Place, s3_server: S3Server, actions: tuple[str, ...], refused: set[str]
) -> None:
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    limited = replace(s3, storage_options=s3_server.as_user(json.dumps(allowed)).storage_options)
    findings = look(store_of(limited), table=False)
    assert problems(findings) == refused
    (check,) = refused
    right = {"create": "s3:PutObject", "delete": "s3:DeleteObject", "list": "s3:ListBucket"}[check]
    assert f"allow {right} on arn:aws:s3:::{BUCKET}" in findings[check].remedy


@pytest.mark.s3
def test_a_wrong_secret_and_a_missing_bucket_are_reported(s3: Place, s3_server: S3Server) -> None:
    wrong = {**s3_server.storage_options, "AWS_SECRET_ACCESS_KEY": "topsecret"}
    findings = look(store_of(replace(s3, storage_options=wrong)))
    assert problems(findings) == {"list", "create"}
    assert "topsecret" not in repr(findings)
    missing = look(open_store(parse_location("s3://no-such-bucket/t", s3_server.storage_options)))
    assert problems(missing) == {"reach"}


# A real instance

DEFINITIONS = """
print("loaded")
import dagster as dg
from icedb_dagster import IceDBResource, build_table_definitions

defs = dg.Definitions.merge(
    dg.Definitions(
        resources={"icedb": IceDBResource(root=dg.EnvVar("LAKE")), "other": IceDBResource(root=dg.EnvVar("NOWHERE"))}
    ),
    build_table_definitions("clicks"),
    build_table_definitions(["shop", "orders"]),
)
"""
POOLS = {"icedb/clicks", "icedb/shop/orders"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a project with two tables and its Postgres."""
    folder = tmp_path_factory.mktemp("doctor") / "project"
    folder.mkdir()
    (folder / "doctored.py").write_text(DEFINITIONS)
    load = "load_from:\n  - python_module: {module_name: doctored, working_directory: .}\n"
    (folder / "workspace.yaml").write_text(load)
    (folder / ".env").write_text(f"LAKE={folder / 'lake'}\n")
    saved = dict(os.environ)
    for name in ("ICEDB_POSTGRES_URL", "DAGSTER_HOME", "ICEDB_DAGSTER_POSTGRES_URL", "NOWHERE"):
        os.environ.pop(name, None)
    stack.up(folder, services=("postgres",))
    yield folder
    stack.down(folder)
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture(scope="module")
def opened(project: Path) -> Iterator[Any]:
    """Return the instance of the project's commands."""
    running = stack.find(project)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stack.environment(running).items():
            patch.setenv(name, value)
        instance = dg.DagsterInstance.get()
    with instance:
        yield instance


def examined(project: Path, **options: Any) -> dict[str, list[DoctorFinding]]:
    """Return the findings with a problem, by check."""
    findings: dict[str, list[DoctorFinding]] = {}
    for finding in examine(project, **options):
        if finding.status != "ok":
            findings.setdefault(finding.check, []).append(finding)
    return findings


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_pools_sets_the_limit_of_each_table_s_pool(project: Path, opened: Any, command: Any) -> None:
    storage = opened.event_log_storage
    dry = command("pools", "--dry-run", "-d", project)
    assert {line.split()[0]: line.split()[1:] for line in dry.stdout.splitlines()[1:]} == {
        "icedb/clicks": ["none", "needs", "1"],
        "icedb/shop/orders": ["none", "needs", "1"],
    }
    assert storage.get_concurrency_keys() == set()
    (before,) = examined(project)["pools"]
    assert (before.status, "2 of 2 are not locks" in before.found) == ("warning", True)
    done = command("pools", "-d", project)
    assert (done.returncode, done.stdout.count("set to 1")) == (1, 2)
    # The other resource of this code has no address: that does not keep the locks from being there.
    assert "the resource 'other' cannot be made" in done.stderr
    assert "NOWHERE" in done.stderr
    assert {key: storage.get_concurrency_info(key).slot_count for key in POOLS} == dict.fromkeys(POOLS, 1)
    assert "pools" not in examined(project)


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_doctor_finds_no_problem_in_a_sound_platform_and_reports_faults(
    project: Path, opened: Any, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._daemon.types import DaemonHeartbeat  # large, and each worker imports this module

    monkeypatch.setenv("NOWHERE", str(tmp_path / "elsewhere"))
    command("pools", "-d", project)
    assert [f.found for f in examined(project)["daemon"]] == [
        "no daemon has ever run on this instance, so queued runs never start"
    ]
    stack.up(project, services=("postgres", "daemon"))
    password = (project / ".icedb-dagster" / "postgres.password").read_text()
    outputs: list[str] = []

    def sound() -> list[dict[str, Any]] | None:
        """Return the findings, or None with warnings: a loaded machine delays heartbeats and queries."""
        done = command("doctor", "-d", project, "--json")
        outputs.append(done.stdout)
        assert done.returncode == 0, done.stdout
        assert len(outputs) < 20, done.stdout
        findings: list[dict[str, Any]] = json.loads(done.stdout)
        # The disk of this machine may be nearly full, and no user has started the schedules and sensors.
        others = {f["status"] for f in findings if f["check"] not in ("disk", "automation")}
        return findings if others == {"ok"} else None

    findings = wait_until(sound, "a doctor without warnings")
    assert findings is not None
    (automation,) = [f for f in findings if f["check"] == "automation"]
    assert (automation["status"], automation["since"]) == ("warning", "")
    assert automation["found"].startswith("6 of 6 are off: clicks_orphans_schedule")
    assert {f["about"] for f in findings} == {"", str(project / "lake"), str(tmp_path / "elsewhere")}
    assert not (project / "lake").exists()
    assert not any(password in output for output in outputs)

    # A second daemon shows in the heartbeats alone.
    beat = next(iter(opened.get_daemon_heartbeats().values()))
    opened.add_daemon_heartbeat(DaemonHeartbeat(beat.timestamp, "SENSOR", str(uuid.uuid4()), []))
    assert "2 daemons" in examined(project)["daemon"][0].found
    stack.down(project, services=("daemon",))

    # A run that has ended, and whose slot is still held.
    storage = opened.event_log_storage
    run = opened.create_run_for_job(dg.GraphDefinition("ended").to_job(), status=dg.DagsterRunStatus.STARTED)
    assert storage.claim_concurrency_slot("icedb/clicks", run.run_id, "work").is_claimed
    assert "slots" not in examined(project)
    opened.report_run_failed(run)
    assert [(f.status, run.run_id in f.found) for f in examined(project)["slots"]] == [("warning", True)]
    opened.delete_run(run.run_id)
    storage.set_concurrency_slots("icedb/shop/orders", 3)
    results = examined(project)
    assert [f.status for f in results.get("slots", results["pools"])] == ["problem"]
    assert "icedb/shop/orders (limit 3)" in results["pools"][0].found

    output = command("doctor", "-d", project, "--table", str(tmp_path / "none"))
    assert output.returncode == 1
    assert "icedb-dagster pools" in output.stdout
    assert "the table does not exist" in output.stdout
    assert command("doctor", "-d", tmp_path / "nowhere").returncode == 2


@pytest.mark.sampled(days=6)
@pytest.mark.dagster
def test_the_instance_of_dagster_home_is_read(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stack.find(project)
    password = (project / ".icedb-dagster" / "postgres.password").read_text()
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("NOWHERE", str(tmp_path))
    storage = f"storage: {{postgres: {{postgres_url: '{running.postgres_url}'}}}}\n"
    rest = "concurrency: {pools: {granularity: run}}\n"
    rest += "run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}\n"
    (home / "dagster.yaml").write_text(storage + rest + "telemetry: {enabled: false}\n")
    findings = examined(project)
    assert {"pool granularity", "run queue", "run monitoring"} <= findings.keys()
    assert {"instance", "storage", "postgres", "schema"}.isdisjoint(findings)

    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert [f.status for f in examined(project)["storage"]] == ["problem"]

    (home / "dagster.yaml").write_text(storage.replace(password, "topsecret") + rest)
    (reported,) = examined(project)["instance"]
    assert "password authentication failed" in reported.found
    assert "topsecret" not in reported.found
    (home / "dagster.yaml").write_text(storage.replace("postgres_url", "postgres_address"))
    (reported,) = examined(project)["instance"]
    assert "postgres_address" in reported.found
    assert password not in reported.found
    (home / "dagster.yaml").write_text("run_coordinator: {module: dagster, class: NoSuchCoordinator}\n")
    assert "NoSuchCoordinator" in examined(project)["instance"][0].found
    (home / "dagster.yaml").write_text("storage: {postgres: {postgres_url: {env: NOT_SET}}}\n")
    assert "NOT_SET" in examined(project)["instance"][0].found
    monkeypatch.delenv("DAGSTER_HOME")
    (project / ".env").rename(tmp_path / ".env")
    try:
        assert "LAKE" in examined(project)["definitions"][0].found
    finally:
        (tmp_path / ".env").rename(project / ".env")


@pytest.mark.sampled(days=3)
@pytest.mark.dagster
def test_a_code_location_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    code = 'import dagster as dg\n@dg.op(pool="icedb/tiny")\ndef work(): ...\n@dg.job\ndef tiny(): work()\n'
    code += "daily = dg.ScheduleDefinition(job=tiny, cron_schedule='@daily')\n"
    code += "@dg.sensor(job=tiny, minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)\n"
    code += "def often(): ...\ndefs = dg.Definitions(schedules=[daily], sensors=[often])\n"
    (tmp_path / "tiny_code.py").write_text(code)
    (tmp_path / "workspace.yaml").write_text(
        "load_from:\n"
        "  - python_module: {module_name: tiny_code, working_directory: .}\n"
        "  - python_module: {module_name: no_such_module, working_directory: .}\n"
    )
    loaded = load_code(tmp_path)
    assert loaded.pools == ("icedb/tiny",)
    assert loaded.automations == (
        Automation("schedule", "tiny_code", "__repository__", "tiny_schedule", False, ("@daily",)),
        Automation("sensor", "tiny_code", "__repository__", "often", True, interval_s=60),
    )
    (problem,) = loaded.problems
    assert problem.endswith("no_such_module cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'")
    (tmp_path / "workspace.yaml").write_text("load_from: 7\n")
    assert "workspace.yaml cannot be read" in load_code(tmp_path).problems[0]


def test_tables_are_examined_without_an_instance(tmp_path: Path) -> None:
    findings = examine(tmp_path, tables=[str(tmp_path / "table"), "ftp://somewhere"])
    problems = {f.check: f for f in findings if f.status == "problem"}
    assert problems.keys() == {"instance", "definitions", "address"}
    assert "icedb-dagster up" in problems["instance"].remedy
    assert [f.check for f in examine(tmp_path) if f.status == "warning"] == ["places"]
    with pytest.raises(StackError, match="is not a folder"):
        examine(tmp_path / "nowhere")


@pytest.mark.long
def test_nested_tables_are_examined_separately(tmp_path: Path) -> None:
    outer, inner = icedb.Table.create(tmp_path / "events"), icedb.Table.create(tmp_path / "events" / "daily")
    for table in (outer, inner):
        table.insert([{"n": 1}])

    def problems(table: icedb.Table) -> set[str]:
        store = open_store(parse_location(table.uri))
        findings = examine_store(store, clock=SystemClock(), timing=Timing())
        return {f.check for f in findings if f.status != "ok"}

    assert (problems(outer), problems(inner)) == (set(), set())
    Path(inner.uri, "_table.json").unlink()
    assert (problems(outer), problems(inner)) == (set(), {"table"})
