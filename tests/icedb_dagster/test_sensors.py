"""Sensors request due work and report commits once, with few requests to the store, also after faults."""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb import Thresholds
from icedb.errors import InvalidOption, StoreUnavailable, UncoordinatedMaintenance
from icedb.format.change_feed import Cursor
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.testing import ClockedStore, Fault, ManualClock
from icedb_dagster import IceDBResource, build_table_definitions, sensors
from icedb_dagster.locking.run_kinds import FAILED_TAG
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor, feed_position, run_requests
from icedb_dagster.sensors.open_tables import OpenTables
from tests.reader.test_changes import v3_merge
from tests.support.dagster.dagster_instance import AssetRun, returning
from tests.support.dagster.sensor_worlds import (
    WORLDS,
    Daemon,
    SensorWorld,
    SimulatedLake,
    add_run,
    end_run,
    reported_commits,
)

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
#: Two small parts in a partition are due, and two log files.
LOW = Thresholds(hot_parts=4, cold_parts=4, log_files=4, expired_objects=2)
#: Small parts only.
PARTS = Thresholds(hot_parts=4, cold_parts=4, log_files=1_000)
KINDS = ("merge_newest", "merge_oldest", "merge_log", "cleanup")


@pytest.fixture(scope="module")
def in_memory() -> Iterator[dg.DagsterInstance]:
    """Return an instance in memory, for tests that need no pools. Each test has its own table, and so its own jobs."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def maintenance(name: str, settings: MaintenanceSensor | None = None, **jobs: Any) -> dg.SensorDefinition:
    by_name = {job.name: job for job in build_table_definitions(name).jobs or ()}
    jobs = jobs or {kind: by_name[f"{name}_{kind}"] for kind in KINDS}
    return sensors.maintenance_sensor(
        dg.AssetKey(name),
        settings or MaintenanceSensor(PARTS),
        jobs=jobs,
        maintain=by_name[f"{name}_maintain"],
        resource_key="icedb",
    )


def commits(name: str, **settings: Any) -> dg.SensorDefinition:
    return sensors.commits_sensor(dg.AssetKey(name), CommitsSensor(**settings), resource_key="icedb")


class SensorScene(SensorWorld):
    """The test's table, its instance, and a daemon for each of its sensors."""

    def __init__(self, instance: dg.DagsterInstance, name: str) -> None:
        super().__init__()
        self.instance, self.name, self.lake = instance, name, SimulatedLake(root=f"memory://{name}")

    def table(self, parts: int = 0, *, partition_by: Sequence[str] = ("p",)) -> icedb.Table:
        """Create the table with this number of parts in the partition `p=a`."""
        table = self.create(self.name, partition_by=list(partition_by))
        fill(table, parts)
        return table

    def maintenance(self, settings: MaintenanceSensor | None = None, **jobs: Any) -> Daemon:
        return Daemon(self.instance, maintenance(self.name, settings, **jobs), self.lake)

    def commits(self, definitions: dg.Definitions | None = None, **settings: Any) -> Daemon:
        return Daemon(self.instance, commits(self.name, **settings), self.lake, definitions=definitions)

    def tick(self, daemon: Daemon, times: int = 1, *, after_ms: int = MINUTE_MS) -> None:
        """Advance the clock, and evaluate the sensor this number of times."""
        self.clock.advance(after_ms)
        for _ in range(times):
            daemon.tick()

    def reported(self, kind: str = "materialization") -> list[dict[str, Any]]:
        """Return the metadata of the reported commits of the table."""
        return reported_commits(self.instance, self.name, kind=kind)

    def reported_ms(self, kind: str = "materialization") -> list[int]:
        return [event["icedb/commit_time_ms"] for event in self.reported(kind)]

    def observations(self) -> Sequence[Any]:
        return self.instance.fetch_observations(dg.AssetKey(self.name), limit=10).records


@pytest.fixture
def scene(in_memory: dg.DagsterInstance, name: str) -> Iterator[SensorScene]:
    WORLDS[f"memory://{name}"] = made = SensorScene(in_memory, name)
    yield made
    del WORLDS[f"memory://{name}"]


#: One sensor of each kind.
BOTH = pytest.mark.parametrize("sensor", [SensorScene.maintenance, SensorScene.commits])


def fill(table: icedb.Table, parts: int, *, p: str = "a") -> None:
    for n in range(parts):
        if isinstance(table.handle.clock, ManualClock):
            table.handle.clock.advance(1)
        table.insert([{"p": p, "n": n}])


def requested(result: dg.SensorResult) -> list[str]:
    return [str(request.job_name) for request in result.run_requests or ()]


# ------------------------------------------------------------------------------------------ due work


@pytest.mark.sampled(days=3)
def test_due_work_is_requested_with_its_reason(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW))
    assert requested(daemon.tick()) == []
    assert "begins now" in daemon.skip_message
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_maintain"]
    assert kinds_of(answer) == ["merge_newest", "merge_log"]
    reason = answer.run_requests[0].tags["icedb/reason"]
    assert re.search("'p=a'.*5 small parts.*; .* 5 log files", reason)
    scene.clock.advance(2 * HOUR_MS)
    table.merge()
    table.merge_log()
    fill(table, 1)
    scene.clock.advance(2 * HOUR_MS)
    fill(table, 1)
    scene.clock.advance(2 * HOUR_MS)
    end_all(scene.instance)
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_maintain"]
    assert kinds_of(answer) == ["merge_log", "merge_oldest", "cleanup"]


def kinds_of(answer: dg.SensorResult, number: int = 0) -> list[str]:
    """Return the kinds of maintenance of a requested run of the job that does several."""
    request = answer.run_requests[number]
    return request.run_config["ops"][f"{request.job_name}_work"]["config"]["kinds"]


def test_a_kind_that_failed_has_a_run_of_its_own_afterwards(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]
    assert requested(daemon.tick()) == []
    for kind in ("merge_newest", "merge_log"):
        assert f"{kind} is due, but a run of {scene.name}_maintain is queued or active" in daemon.skip_message
    run = run_of(scene, "maintain")
    scene.instance.add_run_tags(run.run_id, {FAILED_TAG: "merge_log"})
    end_run(scene.instance, run, dg.DagsterRunStatus.FAILURE)
    table.merge()
    fill(table, 5)
    scene.tick(daemon)
    assert daemon.created[-1].split("/")[1] == "merge_newest", "new work after a success, without the failed kind"
    end_run(scene.instance, run_of(scene, "merge_newest"), dg.DagsterRunStatus.SUCCESS)
    table.merge()
    fill(table, 5)
    scene.clock.advance(2 * MINUTE_MS)
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_merge_newest", f"{scene.name}_merge_log"]
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]


def test_each_kind_failed_in_a_run_that_did_not_report_them(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    elsewhere = add_run(scene.instance, f"{scene.name}_maintain", dg.DagsterRunStatus.STARTED, location="elsewhere")
    daemon = Daemon(scene.instance, daemon.sensor, scene.lake, location="tested").begin()
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"], "that of another code location does not count"
    end_run(scene.instance, elsewhere, dg.DagsterRunStatus.FAILURE)
    end_all(scene.instance, dg.DagsterRunStatus.FAILURE)  # its worker died
    scene.tick(daemon)
    scene.clock.advance(MINUTE_MS)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest", f"{scene.name}_merge_log"]
    end_all(scene.instance)
    by_hand = add_run(scene.instance, f"{scene.name}_maintain", dg.DagsterRunStatus.STARTED)  # without kinds
    table.merge()
    fill(table, 5)
    assert requested(daemon.tick()) == []
    end_run(scene.instance, by_hand, dg.DagsterRunStatus.SUCCESS)
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]


def run_of(scene: SensorScene, kind: str) -> dg.DagsterRun:
    """Return the newest run of a kind's own job."""
    return scene.instance.get_runs(dg.RunsFilter(job_name=f"{scene.name}_{kind}"), limit=1)[0]


def end_all(instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS) -> None:
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        end_run(instance, run, status)


@pytest.mark.sampled(days=3)
def test_the_requested_jobs_leave_nothing_due(instance: Any, lake: IceDBResource, name: str) -> None:
    table = lake.table_or_create(name, partition_by=["p"])
    fill(table, 6)
    defs = dg.Definitions.merge(
        build_table_definitions(name), dg.Definitions(resources={"icedb": lake})
    ).get_repository_def()
    daemon = Daemon(instance, maintenance(name, MaintenanceSensor(LOW)), lake).begin()
    for request in daemon.tick().run_requests:
        job = defs.get_job(request.job_name)
        assert job.execute_in_process(run_config=request.run_config, instance=instance).success
    end_all(instance)
    assert requested(daemon.tick()) == []
    assert daemon.skip_message.startswith("nothing is due. ")
    assert "0 small parts of 1 in 1 partitions, 1 log files" in daemon.skip_message


def test_a_requested_merge_uses_the_part_size_of_the_thresholds(scene: SensorScene) -> None:
    scene.table(5)
    low = Thresholds(hot_parts=4, cold_parts=4, log_files=4, part_bytes_max=123_456)
    daemon = scene.maintenance(MaintenanceSensor(low)).begin()
    hot = daemon.tick().run_requests
    scene.clock.advance(2 * HOUR_MS)  # the partition is cold now
    end_all(scene.instance)
    requested = {str(request.job_name): request.run_config for request in [*hot, *daemon.tick().run_requests]}
    jobs = build_table_definitions(scene.name)
    loaded = dg.Definitions.merge(jobs, dg.Definitions(resources={"icedb": scene.lake})).get_repository_def()
    sizes = {}
    for job, run_config in requested.items():
        config = dg.validate_run_config(loaded.get_job(job), run_config)
        sizes[job] = config["ops"][f"{job}_work"]["config"].get("part_bytes_max")
    assert sizes == {f"{scene.name}_maintain": 123_456, f"{scene.name}_merge_oldest": 123_456}


@pytest.mark.sampled(days=3)
def test_nothing_is_requested_below_half_of_the_thresholds(scene: SensorScene) -> None:
    scene.table(31)
    daemon = scene.maintenance(MaintenanceSensor()).begin()
    assert requested(daemon.tick()) == []
    assert "nothing is due" in daemon.skip_message
    assert "31 small parts of 31 in 1 partitions, 31 log files" in daemon.skip_message
    fill(scene.open(scene.name), 1)
    assert kinds_of(daemon.tick()) == ["merge_newest", "merge_log"]


def test_due_work_without_a_job_is_only_reported(scene: SensorScene) -> None:
    scene.table(5)
    jobs = {job.name: job for job in build_table_definitions(scene.name).jobs or ()}
    daemon = scene.maintenance(MaintenanceSensor(LOW), merge_log=jobs[f"{scene.name}_merge_log"]).begin()
    assert requested(daemon.tick()) == [f"{scene.name}_merge_log"]
    assert requested(daemon.tick()) == []
    assert "merge_newest is due, but has no job" in daemon.skip_message


# ------------------------------------------------------------------------------------------ cost


def test_a_tick_on_a_quiet_table_is_one_list_request(scene: SensorScene) -> None:
    table = scene.table(5)
    daemons = [scene.maintenance(), scene.commits()]
    for daemon in daemons * 2:
        daemon.tick()
        scene.clock.advance(MINUTE_MS)
    assert len(scene.opened) == 1, "both sensors share the open table"
    for daemon in daemons * 3:
        with scene.counted() as requests:
            daemon.tick()
        assert requests == ["list"], daemon.sensor.name
        scene.clock.advance(MINUTE_MS)
    fill(table, 3)
    scene.clock.advance(MINUTE_MS)
    with scene.counted() as requests:
        daemons[1].tick()
    assert sorted(requests) == ["get"] * 3 + ["list"], "a new log file is read once"
    assert len(scene.reported()) == 3


def test_defining_sensors_of_many_tables_opens_none(scene: SensorScene) -> None:
    made = [sensors.commits_sensor(dg.AssetKey(f"t{n}"), CommitsSensor(), resource_key="icedb") for n in range(200)]
    made += [
        sensors.maintenance_sensor(dg.AssetKey(f"t{n}"), MaintenanceSensor(), jobs={}, resource_key="x")
        for n in range(200)
    ]
    assert len({s.name for s in made}) == 400
    assert scene.opened == []
    assert made[0].name == "t0_commits_sensor"
    assert made[200].name == "t0_maintenance_sensor"
    assert {s.default_status for s in made} == {dg.DefaultSensorStatus.STOPPED}
    running = sensors.maintenance_sensor(
        dg.AssetKey(["a", "b"]), MaintenanceSensor(interval_s=5, running=True), jobs={}, resource_key="x"
    )
    assert (running.name, running.minimum_interval_seconds) == ("a__b_maintenance_sensor", 5)
    assert running.default_status == dg.DefaultSensorStatus.RUNNING


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MaintenanceSensor(interval_s=0), "interval_s is 0; give"),
        (lambda: CommitsSensor(interval_s=True), "interval_s must be a whole number, not True"),
        (lambda: CommitsSensor(events="both"), "events must be one of 'materialization', 'observation', not 'both'"),
        (lambda: CommitsSensor(settle_s=-1), "settle_s is -1; give"),
        (lambda: CommitsSensor(events_max=0), "events_max is 0; give"),
    ],
)
def test_invalid_settings_of_a_sensor_are_rejected(make: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        make()


# ------------------------------------------------------------------------------------------ each run once


def test_no_run_is_requested_while_one_is_queued_or_active(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance().begin()
    add_run(scene.instance, "another_merge_newest", dg.DagsterRunStatus.STARTED)
    for status in ("QUEUED", "STARTING", "STARTED", "CANCELING"):
        run = add_run(
            scene.instance, f"{scene.name}_merge_newest", dg.DagsterRunStatus[status]
        )  # launched by a user or a schedule
        assert requested(daemon.tick()) == [], status
        assert "is queued or active" in daemon.skip_message
        end_run(scene.instance, run, dg.DagsterRunStatus.SUCCESS)
        assert requested(daemon.evaluate()) == [f"{scene.name}_merge_newest"]


def test_runs_of_another_code_location_are_ignored(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon, job = (
        Daemon(scene.instance, maintenance(scene.name), scene.lake, location="tested"),
        f"{scene.name}_merge_newest",
    )
    daemon.tick()
    other = add_run(scene.instance, job, dg.DagsterRunStatus.STARTED, location="elsewhere")
    assert requested(daemon.tick()) == [job]
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.skip_message, "the sensor's own run counts"
    end_all(scene.instance)
    table.merge()
    end_run(scene.instance, other, dg.DagsterRunStatus.FAILURE)
    fill(table, 5)
    assert requested(daemon.tick()) == [job], "the sensor's own run succeeded"
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    scene.instance.add_run(
        dg.DagsterRun(job_name=job, run_id=f"{scene.name}-in-a-process", status=dg.DagsterRunStatus.STARTED)
    )
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.skip_message, "a run of unknown origin counts"


def test_a_tick_that_is_evaluated_again_requests_the_same_runs(scene: SensorScene) -> None:
    table = scene.table(5)
    failed = add_run(scene.instance, f"{scene.name}_merge_log", dg.DagsterRunStatus.STARTED)
    end_run(scene.instance, failed, dg.DagsterRunStatus.FAILURE)
    scene.clock.advance(2 * HOUR_MS)  # the partition is cold now
    fill(table, 5, p="b")
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    first = [r.run_key for r in daemon.evaluate().run_requests]
    assert [key.split("/")[1] for key in first] == ["merge_newest+merge_oldest", "merge_log"]
    scene.clock.advance(MINUTE_MS)
    assert [r.run_key for r in daemon.evaluate().run_requests] == first
    daemon.tick(dies_after=1)
    assert daemon.created == first[:1]
    daemon.tick()  # the first is queued, so only the second is requested
    assert (daemon.created, daemon.dropped) == (first, [])


def test_after_a_lost_cursor_the_same_key_is_dropped(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    daemon.tick(dies_after=1)
    [first] = daemon.created
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    daemon.tick()
    assert (daemon.created, daemon.dropped) == ([first], [first])
    fill(table, 1)
    daemon.tick()
    assert daemon.created == [first, first[:-1] + "2"]


def test_a_run_that_never_started_does_not_block_the_sensor(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance().begin()
    add_run(scene.instance, f"{scene.name}_merge_newest", dg.DagsterRunStatus.NOT_STARTED)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]


@pytest.mark.sampled(days=3)
def test_unfinished_work_waits_longer_each_time_up_to_an_hour(scene: SensorScene) -> None:
    scene.table(5)
    always_hot = Thresholds(hot_parts=4, log_files=1_000, hot_ms=1_000 * HOUR_MS)
    daemon = scene.maintenance(MaintenanceSensor(always_hot)).begin()
    daemon.tick()
    ends = ["SUCCESS", "FAILURE", "CANCELED"] * 3
    for minutes, status in zip([1, 2, 4, 8, 16, 32, 60, 60], ends, strict=False):
        end_all(scene.instance, dg.DagsterRunStatus[status])
        scene.clock.advance(20 * MINUTE_MS)  # the wait begins when it is seen that the run has ended
        for advance_ms in (0, minutes * MINUTE_MS - 1):
            scene.clock.advance(advance_ms)
            assert requested(daemon.tick()) == []
            assert "the last run did not help" in daemon.skip_message
        scene.clock.advance(1)
        assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"], minutes
    assert len(set(daemon.created)) == 9


@pytest.mark.sampled(days=3)
def test_new_work_is_requested_immediately_after_a_successful_run(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    for _ in range(3):
        assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]
        table.merge()
        end_all(scene.instance)
        assert requested(daemon.tick()) == []
        fill(table, 3)


def test_new_work_waits_after_a_failed_run(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    daemon.tick()
    end_all(scene.instance, dg.DagsterRunStatus.FAILURE)
    for _ in range(2):
        fill(table, 1)
        assert requested(daemon.tick()) == []
    scene.clock.advance(MINUTE_MS)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]
    end_all(scene.instance)
    fill(table, 1)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"], "a request follows at once"


# ------------------------------------------------------------------------------------------ faults


BAD_CURSORS = [
    "x",
    "{}",
    "[]",
    "zlib:AAAA",
    "zlib:é",
    '{"begun_ms":1,"version":2}',
    '{"changes":{"t":1},"version":2}',
    '{"begun_ms":1,"asked":{"nap":{"number":1,"basis":"","asked_ms":1}}}',
]


@BOTH
def test_an_unreadable_cursor_is_replaced(scene: SensorScene, sensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.table(5)
    warned: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning", lambda _, text, *args: warned.append(text % args))
    for cursor in BAD_CURSORS:
        daemon = sensor(scene)
        daemon.cursor = cursor
        warned.clear()
        daemon.tick()
        assert ["a new one begins" in text for text in warned] == [True], cursor
        assert "begins now" in daemon.skip_message
        daemon.evaluate()
        assert len(warned) == 1, "the new cursor is valid"


def test_a_new_cursor_requests_runs_with_new_keys(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance()
    for _ in range(3):
        daemon.tick()
        daemon.tick()
        end_all(scene.instance)
        daemon.cursor = None
        scene.clock.advance(1)
    assert len(set(daemon.created)) == 3
    assert daemon.dropped == []


@BOTH
def test_a_missing_table_is_no_error(scene: SensorScene, sensor: Any) -> None:
    daemon = sensor(scene)
    for _ in range(2):
        daemon.tick()
        assert "there is no table" in daemon.skip_message
    scene.table(1)
    daemon.tick()
    assert "there is no table" not in daemon.skip_message


@pytest.mark.sampled(days=3)
def test_both_sensors_notice_a_table_that_was_deleted_or_recreated(scene: SensorScene) -> None:
    scene.table(5)
    daemons = [scene.maintenance(), scene.commits()]
    for daemon in daemons:
        daemon.tick()
        objects = dict(scene.stores[scene.name].objects)
        scene.stores[scene.name].objects.clear()
        daemon.tick()
        daemon.tick()
        assert "there is no table" in daemon.skip_message
        scene.stores[scene.name].objects.update(objects)
    scene.stores[scene.name].objects.clear()
    scene.clock.advance(1)
    fill(scene.table(partition_by=["n % 2 AS q"]), 5)
    scene.clock.advance(MINUTE_MS)
    assert requested(daemons[0].tick()) == [f"{scene.name}_merge_newest"]
    daemons[1].tick()
    assert len(scene.reported()) == 5


def test_the_commits_sensor_alone_notices_a_deleted_or_recreated_table(scene: SensorScene) -> None:
    daemon, store = scene.commits(), scene.stores
    for number in (2, 4):
        table = scene.table(partition_by=["n % 2 AS q"])
        scene.tick(daemon)
        fill(table, 2)
        table.merge()
        scene.clock.advance(20 * MINUTE_MS)  # a refresh would not list the log files of before any more
        daemon.tick()
        daemon.tick()
        assert len(scene.reported()) == number
        store[scene.name].objects.clear()
    scene.table(3)
    scene.tick(daemon)
    assert scene.reported()[-1]["dagster/row_count"] == 3, "no event is of the old table"
    store[scene.name].objects.clear()
    daemon.tick()
    daemon.tick()
    assert "there is no table" in daemon.skip_message


def test_commits_during_a_damaged_log_are_reported_after_its_repair(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    daemon, objects = scene.commits(), scene.stores[scene.name].objects
    fill(table, 2)
    table.merge()
    daemon.tick()
    [head] = [key for key in objects if key.endswith(".e2.jsonl")]
    second = head.replace(".e2.jsonl", "0.e2.jsonl")
    objects[second] = objects[head]
    cursor = daemon.cursor
    for _ in range(2):
        scene.clock.advance(10 * MINUTE_MS)
        fill(table, 1)
        scene.clock.advance(MINUTE_MS)
        with pytest.raises(UncoordinatedMaintenance, match="both say they are epoch 2"):
            daemon.tick()
        assert daemon.cursor == cursor
    del objects[second]
    daemon.tick()
    daemon.tick()
    assert len(scene.reported()) == 2
    assert scene.observations() == []


@BOTH
def test_an_unreachable_store_fails_one_tick(scene: SensorScene, sensor: Any) -> None:
    scene.table(5)
    daemon = sensor(scene).begin()
    cursor = daemon.cursor
    scene.opened[-1].inject(Fault.FAIL, kind="list")
    with pytest.raises(StoreUnavailable, match="had no answer"):
        daemon.tick()
    assert daemon.cursor == cursor
    daemon.tick()
    assert len(scene.opened) == 2, "the table was opened again"


# ------------------------------------------------------------------------------------------ open tables


def test_open_tables_keep_no_secret(monkeypatch: pytest.MonkeyPatch, scene: SensorScene, name: str) -> None:
    scene.create("t")
    tables = OpenTables()

    def lake() -> SimulatedLake:
        options = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": dg.EnvVar("SENSOR_SECRET")}
        return SimulatedLake(root=f"memory://{name}", storage_options=options)

    opened = []
    for secret in ("hunter2", "hunter2", "swordfish", "hunter2"):
        monkeypatch.setenv("SENSOR_SECRET", secret)
        with tables.use(lake(), dg.AssetKey("t")) as table:
            opened.append(table)
    assert opened[0] is opened[1] is opened[3]
    assert opened[2] is not opened[0]
    text = f"{tables!r} {vars(tables)!r}"
    assert "hunter2" not in text
    assert "swordfish" not in text
    assert OpenTables()._digest(lake()) != tables._digest(lake()), "digests differ between processes"


def test_at_most_the_configured_number_of_tables_stays_open(scene: SensorScene) -> None:
    tables = OpenTables(tables_max=2)
    for name in ("a", "b", "c", "b", "a", "b"):
        if name not in scene.stores:
            scene.create(name)
        with tables.use(scene.lake, dg.AssetKey(name)):
            pass
    assert len(tables) == 2
    assert [store.location.prefix for store in scene.opened] == ["a", "b", "c", "a"]


@pytest.mark.sampled(days=3)
def test_sensors_of_many_tables_tick_concurrently(instance: Any, scene: SensorScene, name: str) -> None:
    names = [f"{name}_{n}" for n in range(4)]
    for n, table in enumerate(names, start=1):
        fill(scene.create(table, partition_by=["p"]), 2 * n)
    failures: list[BaseException] = []
    messages: dict[str, set[str]] = {table: set() for table in names}

    def ticks(table: str) -> None:
        try:
            daemon = Daemon(instance, maintenance(table, MaintenanceSensor()), scene.lake)
            for _ in range(20):
                daemon.tick()
                messages[table].add(daemon.skip_message.partition(": ")[2])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ticks, args=(table,)) for table in names * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for n, table in enumerate(names, start=1):
        [figures] = messages[table]
        assert figures.startswith(f"{2 * n} small parts of {2 * n}")
    assert len(scene.opened) <= 8


# ------------------------------------------------------------------------------------------ commits: each once


def test_each_commit_is_reported_once_in_order_with_its_figures(scene: SensorScene) -> None:
    table = scene.table()
    table.insert([{"p": "a", "n": 0}])
    daemon = scene.commits().begin()
    made = []
    for n in range(5):
        scene.clock.advance(SECOND_MS)
        made.append(table.insert([{"p": p, "n": n} for p in "abc"[: n % 3 + 1]]))
        daemon.tick()
        assert scene.reported() == [], "the first commit is too recent, and earlier ones are not reported"
    scene.clock.advance(30 * SECOND_MS)
    for _ in range(3):
        daemon.tick()
    reported = scene.reported()
    assert [(t["icedb/commit_time_ms"], t["icedb/log_file"]) for t in reported] == [(c.created_ms, c.key) for c in made]
    assert [t["icedb/rows_written"] for t in reported] == [c.rows for c in made] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_parts"] for t in reported] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_partitions"] for t in reported] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_bytes"] for t in reported] == [c.bytes for c in made]
    assert ["dagster/row_count" in t for t in reported] == [False] * 4 + [True]
    assert reported[-1]["dagster/row_count"] == 10
    assert reported[-1]["icedb/snapshot_id"] == table.snapshot().id


def test_a_young_commit_is_not_reported_yet(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    daemon = scene.commits(settle_s=100).begin()
    scene.clock.advance(1)
    table.insert([{"n": 1}])
    scene.tick(daemon, after_ms=100 * SECOND_MS - 1)
    assert scene.reported() == []
    scene.tick(daemon, after_ms=1)
    assert len(scene.reported()) == 1


def test_a_settle_time_above_half_the_grace_period_is_rejected(scene: SensorScene) -> None:
    scene.table(partition_by=())
    scene.commits(settle_s=1_800).tick()
    with pytest.raises(InvalidOption, match=r"settle_s is 1801 s, .* \(grace_ms\) of 3600 s\. Give at most .* 1800"):
        scene.commits(settle_s=1_801).tick()


@pytest.mark.sampled(days=3)
def test_commits_without_new_rows_are_not_reported(scene: SensorScene) -> None:
    table = scene.table()
    for p in "ab":
        fill(table, 3, p=p)
    daemon = scene.commits().begin()
    for change in (
        table.merge,
        table.merge_log,
        lambda: table.delete("n = 2"),
        lambda: table.drop_partitions(["p=b"]),
        lambda: table.alter(row_group_rows=10_000),
        lambda: table.cleanup(),
    ):
        scene.clock.advance(2 * HOUR_MS)
        change()
        scene.tick(daemon)
        assert scene.reported() == []
        assert "no new commits" in daemon.skip_message
    table.overwrite([{"p": "c", "n": 1}])
    scene.tick(daemon)
    assert [t["icedb/rows_written"] for t in scene.reported()] == [1]


def test_a_commit_whose_log_file_was_merged_is_reported_without_it(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    daemon = scene.commits().begin()
    made = []
    for n in range(3):
        scene.clock.advance(1)
        made.append(table.insert([{"n": n}]))
    scene.clock.advance(SECOND_MS)
    table.merge()
    table.merge_log()
    scene.tick(daemon)
    reported = scene.reported()
    assert [t["icedb/commit_time_ms"] for t in reported] == [c.created_ms for c in made]
    assert not any("icedb/log_file" in t for t in reported)


@pytest.mark.sampled(days=3)
def test_a_tick_reports_a_limited_number_of_commits(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    daemon = scene.commits(events_max=3, from_beginning=True)
    made = []
    for n in range(8):
        made.append(table.insert([{"n": n}]).created_ms)
        scene.clock.advance(n % 2)
    scene.clock.advance(MINUTE_MS)
    counts = []
    for _ in range(5):
        daemon.tick()
        counts.append(len(scene.reported()))
    assert scene.reported_ms() == sorted(made)
    assert counts == [3, 6, 8, 8, 8]


def test_two_commits_of_one_millisecond_are_two_events(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    other = scene.open(scene.name)
    daemon = scene.commits(events_max=1).begin()
    scene.clock.advance(1)
    one, two = table.insert([{"n": 1}]), other.insert([{"n": 2}])
    assert one.created_ms == two.created_ms
    scene.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=1)
    daemon.tick()
    daemon.tick()
    assert sorted(t["icedb/log_file"] for t in scene.reported()) == sorted([one.key, two.key])


def test_a_late_commit_of_a_reported_millisecond_is_reported(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    behind = scene.open(scene.name, skew_ms=-40 * SECOND_MS)
    daemon = scene.commits()
    scene.clock.advance(MINUTE_MS)
    fill(table, 1)
    daemon.tick()
    scene.clock.advance(1)
    first = table.insert([{"p": "a", "n": 1}])
    scene.tick(daemon, after_ms=40 * SECOND_MS)
    late = behind.insert([{"p": "a", "n": 2}])
    assert late.created_ms == first.created_ms
    table.merge_log()
    scene.tick(daemon, 2, after_ms=SECOND_MS)
    reported = scene.reported()
    assert [t["icedb/first_part"] for t in reported] == [first.parts[0].key, late.parts[0].key]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("kind", ["materialization", "observation"])
def test_a_tick_that_died_between_its_events_repeats_none(scene: SensorScene, kind: str) -> None:
    for dies_after in range(6):
        of = f"{scene.name}_{dies_after}"
        table = scene.create(of)
        daemon = Daemon(scene.instance, commits(of, events=kind), scene.lake)
        daemon.tick()
        made = []
        for n in range(5):
            scene.clock.advance(1)
            made.append(table.insert([{"n": n}]).created_ms)
        scene.clock.advance(MINUTE_MS)
        daemon.tick(dies_after=dies_after)
        assert len(reported_commits(scene.instance, of, kind=kind)) == dies_after
        if dies_after % 2:
            table.merge()
            table.merge_log()
        daemon.tick()
        daemon.tick()
        assert [t["icedb/commit_time_ms"] for t in reported_commits(scene.instance, of, kind=kind)] == made


def test_a_commit_that_appears_late_is_reported(scene: SensorScene) -> None:
    clock = scene.clock
    table = scene.table(partition_by=())
    slow = icedb.Table(type(table.handle).of(table.handle.store, table.spec, clock=clock.skewed(-50 * SECOND_MS)))
    daemon = scene.commits()
    clock.advance(MINUTE_MS)
    daemon.tick()
    clock.advance(2 * MINUTE_MS)
    table.insert([{"n": 1}])
    clock.advance(40 * SECOND_MS)
    daemon.tick()
    assert len(scene.reported()) == 1
    late = slow.insert([{"n": 2}])  # its time is before that of the reported commit
    clock.advance(MINUTE_MS)
    daemon.tick()
    daemon.tick()
    assert scene.reported_ms()[1:] == [late.created_ms]


def test_the_first_commits_of_a_missing_table_are_reported(scene: SensorScene) -> None:
    scene.clock.set(scene.clock.now_ms() + 3 * 24 * HOUR_MS)  # then a missing table is noticed at the real time
    daemon = scene.commits().begin()
    scene.table(2, partition_by=())
    scene.tick(daemon)
    assert "2 new commits" in daemon.skip_message


# ------------------------------------------------------------------------------------------ commits: Dagster's own


@pytest.mark.sampled(days=3)
def test_the_io_manager_s_commits_are_skipped(run: AssetRun) -> None:
    def write(**options: Any) -> None:
        run(returning(run.name, pa.table({"n": [1]})), io=options)

    daemon = Daemon(run.instance, commits(run.name, settle_s=0), run.lake).begin()
    write()
    run.table().insert([{"n": 2}])
    write(mode="append")
    write(mode="overwrite")
    run.table().insert([{"n": 3}])
    daemon.tick()
    daemon.tick()
    own = [t for t in reported_commits(run.instance, run.name) if "icedb/mode" not in t]
    assert [t["icedb/rows_written"] for t in own] == [1, 1]
    assert len(reported_commits(run.instance, run.name)) == 5


@pytest.mark.sampled(days=3)
def test_a_commit_of_an_earlier_attempt_is_not_reported_again(run: AssetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(run.instance, commits(run.name, settle_s=0), run.lake).begin()
    original, tries = icedb.Table.snapshot, []

    def fails_first(table: icedb.Table, *args: Any) -> Any:
        tries.append(table)
        if len(tries) == 1:
            raise RuntimeError("the process dies between commit and event")
        return original(table, *args)

    monkeypatch.setattr(icedb.Table, "snapshot", fails_first)
    retried = returning(run.name, pa.table({"n": [1]}), retry_policy=dg.RetryPolicy(max_retries=1))
    run(retried, io={"mode": "append"})
    monkeypatch.undo()
    daemon.tick()
    [event] = reported_commits(run.instance, run.name)
    assert event["icedb/repeated"] is True
    assert run.table().snapshot().rows == 1


def test_a_step_reports_its_commits(run: AssetRun) -> None:
    run.lake.table_or_create(run.name)

    @dg.asset(key=run.name)
    def writes(context: dg.AssetExecutionContext) -> None:
        commits = [run.table().insert([{"n": n}]) for n in range(2)]
        context.add_output_metadata({"icedb/commit_time_ms": [c.created_ms for c in commits]})

    daemon = Daemon(run.instance, commits(run.name, settle_s=0), run.lake).begin()
    run(writes)
    daemon.tick()
    assert len(reported_commits(run.instance, run.name)) == 1


# ------------------------------------------------------------------------------------------ commits: partitions


def test_a_partitioned_asset_gets_an_event_for_each_partition(scene: SensorScene) -> None:
    days = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
    spec = dg.AssetSpec(scene.name, partitions_def=days, metadata={"partition_expr": "Day"})
    table = scene.table(partition_by=["day", "n % 2 AS q"])
    daemon = scene.commits(dg.Definitions(assets=[spec])).begin()
    scene.clock.advance(1)
    table.insert([{"day": d, "n": n} for d in ("mon", "wed", "sun") for n in range(4)])
    scene.clock.advance(1)
    table.insert([{"day": "tue", "n": 1}])
    scene.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=2)
    daemon.tick()
    daemon.tick()
    reported = scene.reported()
    assert [(t["partition"], t["icedb/rows_written"]) for t in reported] == [
        ("mon", 4),
        ("wed", 4),
        (None, 4),
        ("tue", 1),
    ]
    assert [t["icedb/commit_parts"] for t in reported] == [2, 2, 2, 1]
    assert scene.instance.get_materialized_partitions(dg.AssetKey(scene.name)) == {"mon", "tue", "wed"}


@pytest.mark.parametrize("metadata", [{}, {"partition_expr": "elsewhere"}])
def test_events_have_no_partition_without_its_column(scene: SensorScene, metadata: dict[str, str]) -> None:
    spec = dg.AssetSpec(scene.name, partitions_def=dg.StaticPartitionsDefinition(["mon"]), metadata=metadata)
    table = scene.table(partition_by=["day"])
    daemon = scene.commits(dg.Definitions(assets=[spec])).begin()
    scene.clock.advance(1)
    table.insert([{"day": "mon", "n": 1}])
    scene.tick(daemon)
    assert [t["partition"] for t in scene.reported()] == [None]


# ------------------------------------------------------------------------------------------ commits: what is unknown


def test_commits_that_cleanup_forgot_are_reported_as_one_gap(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    daemon = scene.commits().begin()
    fill(table, 3)
    table.merge()
    scene.clock.advance(2 * HOUR_MS)
    table.cleanup()
    scene.clock.advance(1)
    after = table.insert([{"p": "a", "n": 9}])
    scene.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=1)
    daemon.tick()
    assert "cleanup has forgotten" in daemon.skip_message
    daemon.tick()
    daemon.tick()
    [gap] = scene.observations()
    assert "Some commits to this table are not reported" in gap.event_log_entry.asset_observation.description
    assert scene.reported_ms() == [after.created_ms]


@pytest.mark.sampled(days=3)
def test_a_short_grace_period_leaves_no_gap_in_reported_commits(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    slow = icedb.Table(type(table.handle).of(table.handle.store, table.spec, clock=scene.clock.skewed(-50 * SECOND_MS)))
    daemon, made = scene.commits(), []
    daemon.tick()
    for minute in range(1, 17):
        scene.clock.advance(MINUTE_MS)
        writer = slow if minute % 7 == 5 else table
        made.append(writer.insert([{"n": minute}]).created_ms)
        table.merge()
        table.cleanup(grace_ms=10 * MINUTE_MS)
        daemon.tick()
    scene.tick(daemon)
    assert sorted(t["icedb/commit_time_ms"] for t in scene.reported()) == sorted(made)
    assert scene.observations() == []
    fill(table, 3)
    table.merge()
    scene.clock.advance(11 * MINUTE_MS)
    table.cleanup(grace_ms=10 * MINUTE_MS)
    daemon.tick()
    assert "cleanup has forgotten" in daemon.skip_message, "unreported commits are forgotten"


def test_commits_after_the_last_v3_merge_are_reported(scene: SensorScene) -> None:
    table = scene.table(partition_by=["k"])
    daemon = scene.commits().begin()
    scene.clock.advance(MINUTE_MS)
    v3_merge(table, scene.stores[scene.name])
    scene.clock.advance(20 * MINUTE_MS)
    made = [table.insert([{"k": 0, "n": n}]).created_ms for n in range(3)]
    scene.tick(daemon)
    assert "a program of IceDB v3 merged" in daemon.skip_message
    daemon.tick()
    daemon.tick()
    assert scene.reported_ms() == made
    assert len(scene.observations()) == 1


def test_maintenance_by_a_v3_program_is_reported_once(scene: SensorScene) -> None:
    table = scene.table(partition_by=["k"])
    daemon = scene.commits().begin()
    for n in range(3):
        scene.clock.advance(MINUTE_MS)
        v3_merge(table, scene.stores[scene.name]) if n == 0 else v3_drop(table, scene.stores[scene.name])
        scene.tick(daemon)
        assert "a program of IceDB v3 merged" in daemon.skip_message
        fill(table, 1)
    assert len(scene.observations()) == 1
    scene.tick(daemon)
    assert "1 new commits" in daemon.skip_message
    assert len(scene.reported()) == 1


def v3_drop(table: icedb.Table, store: ClockedStore) -> None:
    """Drop a part like a program that knows no epochs."""
    part, t_ms = table.snapshot().parts[0], table.handle.clock.now_ms()
    file = LogFile(t_ms, {}, (Marker(part.key, part.bytes, part.created_ms, tombstoned_ms=t_ms),))
    store.create(table.handle.keys.log_file(t_ms, merged=True, writer="v3"), encode(file))


def test_from_beginning_reports_every_commit_in_the_log(scene: SensorScene) -> None:
    table = scene.table(partition_by=())
    fill(table, 3)
    scene.clock.advance(HOUR_MS)
    table.merge()
    fill(table, 2)
    scene.clock.advance(MINUTE_MS)
    scene.commits(from_beginning=True).tick()
    assert len(scene.reported()) == 5
    scene.clock.advance(2 * HOUR_MS)
    table.cleanup()
    other = scene.commits(from_beginning=True, events="observation")
    other.tick()
    assert "2 new commits; Dagster has events for them" in other.skip_message, (
        "of those before the horizon not all are known"
    )


# ------------------------------------------------------------------------------------------ cursors


def test_cursors_are_decoded_as_they_were_encoded(clock: ManualClock) -> None:
    request = run_requests.RequestedRun(7, "basis", 1, 2, 3)
    memory = run_requests.RequestCursor(5, {"cleanup": request})
    assert run_requests.decode(run_requests.encode(memory)) == memory
    assert run_requests.run_key("s", memory, ["cleanup"]) == "s/cleanup/5/7"
    names = tuple(f"d=2026-11-21/{clock.new_id()}.parquet" for _ in range(1_000))
    for seen in ((), names):
        position = feed_position.FeedPosition(Cursor(5, seen=seen))
        assert feed_position.decode(feed_position.encode(position)) == position
    assert feed_position.decode('{"changes":{"t":5},"foreign":true,"version":1}') == feed_position.FeedPosition(
        Cursor(5), foreign=True
    )
    assert len(feed_position.encode(feed_position.FeedPosition(Cursor(5, seen=names)))) < 0.5 * len(
        msgspec.json.encode(names)
    )


def test_a_clock_that_was_set_back_does_not_block_work() -> None:
    due = icedb.Recommendation("cleanup", "why", "basis")
    before = run_requests.RequestedRun(1, "basis", 0, ended_ms=10 * HOUR_MS)
    held, requested = run_requests.next_request(before, due, now_ms=HOUR_MS, failed=lambda: False)
    assert not requested
    assert held.ended_ms == HOUR_MS
    _, requested = run_requests.next_request(held, due, now_ms=HOUR_MS + run_requests.WAIT_MS, failed=lambda: False)
    assert requested


def test_dagster_accepts_the_results_of_both_sensors(scene: SensorScene) -> None:
    scene.table(5)
    for made, cursor in (
        (maintenance(scene.name), run_requests.encode(run_requests.begin(1))),
        (commits(scene.name, from_beginning=True), None),
    ):
        scene.clock.advance(MINUTE_MS)
        resources = {"icedb": scene.lake}
        with dg.build_sensor_context(instance=scene.instance, cursor=cursor, resources=resources) as context:
            data = made.evaluate_tick(context)
        assert bool(data.run_requests) is (cursor is not None)
        assert len(data.asset_events) == (0 if cursor else 5)
        assert data.cursor != cursor
