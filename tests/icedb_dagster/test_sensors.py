"""Sensors ask for what is due and tell what came: cheaply, once, and again after whatever went wrong."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import logging
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

# ruff: noqa: E402 - without the extra there is nothing to import
import icedb
from icedb import Thresholds
from icedb.errors import InvalidOption, StoreUnavailable, UncoordinatedMaintenance
from icedb.format.change_feed import Cursor
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.testing import ClockedStore, Fault, ManualClock
from icedb_dagster import IceDBResource, build_table_definitions
from icedb_dagster.sensors import (
    CommitsSensor,
    MaintenanceSensor,
    commits_sensor,
    feed_position,
    maintenance_sensor,
    run_requests,
)
from icedb_dagster.sensors.open_tables import OpenTables
from tests.reader.test_changes import v3_merge
from tests.support.dagster.dagster_instance import Materialize, returning
from tests.support.dagster.sensor_worlds import WORLDS, Daemon, SimulatedLake, World, add_run, end_run, told_commits

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


@pytest.fixture
def world(name: str) -> Iterator[World]:
    WORLDS[f"memory://{name}"] = made = World()
    yield made
    del WORLDS[f"memory://{name}"]


@pytest.fixture
def simulated(world: World, name: str) -> SimulatedLake:
    return SimulatedLake(root=f"memory://{name}")


@pytest.fixture(scope="module")
def quick() -> Iterator[dg.DagsterInstance]:
    """An instance in memory, for what needs no pools. Each test has a table, and so jobs, of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def sensor(name: str, settings: MaintenanceSensor | None = None, **jobs: Any) -> dg.SensorDefinition:
    found = {job.name: job for job in build_table_definitions(name).jobs or ()}
    of_table = {kind: found[f"{name}_{kind}"] for kind in KINDS}
    return maintenance_sensor(
        dg.AssetKey(name), settings or MaintenanceSensor(PARTS), jobs=jobs or of_table, resource_key="icedb"
    )


def teller(name: str, **settings: Any) -> dg.SensorDefinition:
    return commits_sensor(dg.AssetKey(name), CommitsSensor(**settings), resource_key="icedb")


def fill(table: icedb.Table, parts: int, *, p: str = "a") -> None:
    for n in range(parts):
        if isinstance(table.handle.clock, ManualClock):
            table.handle.clock.advance(1)
        table.insert([{"p": p, "n": n}])


def requested(answer: dg.SensorResult) -> list[str]:
    return [str(request.job_name) for request in answer.run_requests or ()]


# ------------------------------------------------------------------------------------------ what is due


def test_what_is_due_is_asked_for_and_says_why(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemon = Daemon(quick, sensor(name, MaintenanceSensor(LOW)), simulated)
    assert requested(daemon.tick()) == []
    assert "begins now" in daemon.said
    answer = daemon.tick()
    assert requested(answer) == [f"{name}_merge_newest", f"{name}_merge_log"]
    reasons = [request.tags["icedb/reason"] for request in answer.run_requests]
    assert "'p=a'" in reasons[0]
    assert "5 small parts" in reasons[0]
    assert "5 log files" in reasons[1]
    world.clock.advance(2 * HOUR_MS)
    table.merge()
    table.merge_log()
    fill(table, 1)
    world.clock.advance(2 * HOUR_MS)
    fill(table, 1)
    world.clock.advance(2 * HOUR_MS)
    end_all(quick)
    assert requested(daemon.tick()) == [f"{name}_merge_log", f"{name}_merge_oldest", f"{name}_cleanup"]


def end_all(instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS) -> None:
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        end_run(instance, run, status)


def test_the_jobs_that_are_asked_for_leave_nothing_due(instance: Any, lake: IceDBResource, name: str) -> None:
    table = lake.table_or_create(name, partition_by=["p"])
    fill(table, 6)
    defs = dg.Definitions.merge(
        build_table_definitions(name), dg.Definitions(resources={"icedb": lake})
    ).get_repository_def()
    daemon = Daemon(instance, sensor(name, MaintenanceSensor(LOW)), lake)
    daemon.tick()
    for job in requested(daemon.tick()):
        assert defs.get_job(job).execute_in_process(instance=instance).success
    end_all(instance)
    assert requested(daemon.tick()) == []
    assert daemon.said.startswith("nothing is due. ")
    assert "0 small parts of 1 in 1 partitions, 1 log files" in daemon.said


def test_a_merge_that_is_asked_for_takes_for_small_what_the_thresholds_do(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    low = Thresholds(hot_parts=4, cold_parts=4, log_files=4, part_bytes_max=123_456)
    daemon = Daemon(quick, sensor(name, MaintenanceSensor(low)), simulated)
    daemon.tick()
    hot = daemon.tick().run_requests
    world.clock.advance(2 * HOUR_MS)  # the partition is cold now
    asked = {str(request.job_name): request.run_config for request in [*hot, *daemon.tick().run_requests]}
    jobs = build_table_definitions(name)
    loaded = dg.Definitions.merge(jobs, dg.Definitions(resources={"icedb": simulated})).get_repository_def()
    sizes = {}
    for job, given in asked.items():
        config = dg.validate_run_config(loaded.get_job(job), given)
        sizes[job] = config["ops"][f"{job}_work"]["config"].get("part_bytes_max")
    assert sizes == {f"{name}_merge_newest": 123_456, f"{name}_merge_log": None, f"{name}_merge_oldest": 123_456}


def test_nothing_is_asked_for_below_half_of_the_thresholds(quick: Any, world: World, simulated: Any, name: str) -> None:
    fill(world.create(name, partition_by=["p"]), 31)
    daemon = Daemon(quick, sensor(name, MaintenanceSensor()), simulated)
    daemon.tick()
    assert requested(daemon.tick()) == []
    assert "nothing is due" in daemon.said
    assert "31 small parts of 31 in 1 partitions, 31 log files" in daemon.said
    fill(world.open(name), 1)
    assert requested(daemon.tick()) == [f"{name}_merge_newest", f"{name}_merge_log"]


def test_what_is_due_and_has_no_job_is_only_told(quick: Any, world: World, simulated: Any, name: str) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    jobs = {job.name: job for job in build_table_definitions(name).jobs or ()}
    daemon = Daemon(quick, sensor(name, MaintenanceSensor(LOW), merge_log=jobs[f"{name}_merge_log"]), simulated)
    daemon.tick()
    assert requested(daemon.tick()) == [f"{name}_merge_log"]
    assert requested(daemon.tick()) == []
    assert "merge_newest is due, but has no job" in daemon.said


# ------------------------------------------------------------------------------------------ cost


def test_a_tick_of_either_sensor_on_a_quiet_table_is_one_list(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemons = [Daemon(quick, sensor(name), simulated), Daemon(quick, teller(name), simulated)]
    for daemon in daemons * 2:
        daemon.tick()
        world.clock.advance(MINUTE_MS)
    assert len(world.opened) == 1, "both sensors share the open table"
    for daemon in daemons * 3:
        with world.counted() as requests:
            daemon.tick()
        assert requests == ["list"], daemon.sensor.name
        world.clock.advance(MINUTE_MS)
    fill(table, 3)
    world.clock.advance(MINUTE_MS)
    with world.counted() as requests:
        daemons[1].tick()
    assert sorted(requests) == ["get"] * 3 + ["list"], "a new log file is read once"
    assert len(told_commits(quick, name)) == 3


def test_defining_the_sensors_of_many_tables_touches_nothing(world: World) -> None:
    made = [commits_sensor(dg.AssetKey(f"t{n}"), CommitsSensor(), resource_key="icedb") for n in range(200)]
    made += [
        maintenance_sensor(dg.AssetKey(f"t{n}"), MaintenanceSensor(), jobs={}, resource_key="x") for n in range(200)
    ]
    assert len({s.name for s in made}) == 400
    assert world.opened == []
    assert made[0].name == "t0_commits_sensor"
    assert made[200].name == "t0_maintenance_sensor"
    assert {s.default_status for s in made} == {dg.DefaultSensorStatus.STOPPED}
    running = maintenance_sensor(
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
def test_settings_that_cannot_be_are_refused(make: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        make()


# ------------------------------------------------------------------------------------------ each run once


def test_no_run_is_asked_for_while_one_is_queued_or_under_way(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemon = Daemon(quick, sensor(name), simulated)
    daemon.tick()
    add_run(quick, "another_merge_newest", dg.DagsterRunStatus.STARTED)
    for status in ("QUEUED", "STARTING", "STARTED", "CANCELING"):
        run = add_run(quick, f"{name}_merge_newest", dg.DagsterRunStatus[status])  # by hand, or by a schedule
        assert requested(daemon.tick()) == [], status
        assert "is queued or active" in daemon.said
        end_run(quick, run, dg.DagsterRunStatus.SUCCESS)
        assert requested(daemon.evaluate()) == [f"{name}_merge_newest"]


def test_runs_of_another_code_location_s_job_of_that_name_do_not_count(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemon, job = Daemon(quick, sensor(name), simulated, location="tested"), f"{name}_merge_newest"
    daemon.tick()
    other = add_run(quick, job, dg.DagsterRunStatus.STARTED, location="elsewhere")
    assert requested(daemon.tick()) == [job]
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.said, "its own does count"
    end_all(quick)
    table.merge()
    end_run(quick, other, dg.DagsterRunStatus.FAILURE)
    fill(table, 5)
    assert requested(daemon.tick()) == [job], "its own had worked"
    end_all(quick)
    table.merge()
    fill(table, 5)
    quick.add_run(dg.DagsterRun(job_name=job, run_id=f"{name}-in-a-process", status=dg.DagsterRunStatus.STARTED))
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.said, "nobody knows whose that is"


def test_a_tick_that_is_evaluated_again_asks_for_the_very_same_runs(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemon = Daemon(quick, sensor(name, MaintenanceSensor(LOW)), simulated)
    daemon.tick()
    first = [r.run_key for r in daemon.evaluate().run_requests]
    world.clock.advance(MINUTE_MS)
    assert [r.run_key for r in daemon.evaluate().run_requests] == first
    daemon.tick(dies_after=1)
    assert daemon.created == first[:1]
    daemon.tick()  # the first is queued, so only the second is asked for
    assert (daemon.created, daemon.dropped) == (first, [])


def test_after_a_lost_cursor_the_same_key_is_dropped_and_the_next_asked_for(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemon = Daemon(quick, sensor(name), simulated)
    daemon.tick()
    daemon.tick(dies_after=1)
    [first] = daemon.created
    end_all(quick)
    table.merge()
    fill(table, 5)
    daemon.tick()
    assert (daemon.created, daemon.dropped) == ([first], [first])
    fill(table, 1)
    daemon.tick()
    assert daemon.created == [first, first[:-1] + "2"]


def test_a_run_that_was_created_and_never_started_does_not_stop_the_sensor(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemon = Daemon(quick, sensor(name), simulated)
    daemon.tick()
    add_run(quick, f"{name}_merge_newest", dg.DagsterRunStatus.NOT_STARTED)
    assert requested(daemon.tick()) == [f"{name}_merge_newest"]


def test_work_that_a_run_did_not_do_waits_longer_each_time_up_to_an_hour(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    always_hot = Thresholds(hot_parts=4, log_files=1_000, hot_ms=1_000 * HOUR_MS)
    daemon = Daemon(quick, sensor(name, MaintenanceSensor(always_hot)), simulated)
    daemon.tick()
    daemon.tick()
    ends = ["SUCCESS", "FAILURE", "CANCELED"] * 3
    for minutes, status in zip([1, 2, 4, 8, 16, 32, 60, 60], ends, strict=False):
        end_all(quick, dg.DagsterRunStatus[status])
        world.clock.advance(20 * MINUTE_MS)  # the wait begins when it is seen that the run has ended
        for advance_ms in (0, minutes * MINUTE_MS - 1):
            world.clock.advance(advance_ms)
            assert requested(daemon.tick()) == []
            assert "the last run did not help" in daemon.said
        world.clock.advance(1)
        assert requested(daemon.tick()) == [f"{name}_merge_newest"], minutes
    assert len(set(daemon.created)) == 9


def test_after_a_run_that_did_its_work_new_work_is_asked_for_at_once(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemon = Daemon(quick, sensor(name), simulated)
    daemon.tick()
    for _ in range(3):
        assert requested(daemon.tick()) == [f"{name}_merge_newest"]
        table.merge()
        end_all(quick)
        assert requested(daemon.tick()) == []
        fill(table, 3)


def test_after_a_run_that_failed_new_work_waits_too(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name, partition_by=["p"])
    fill(table, 5)
    daemon = Daemon(quick, sensor(name), simulated)
    daemon.tick()
    daemon.tick()
    end_all(quick, dg.DagsterRunStatus.FAILURE)
    for _ in range(2):
        fill(table, 1)
        assert requested(daemon.tick()) == []
    world.clock.advance(MINUTE_MS)
    assert requested(daemon.tick()) == [f"{name}_merge_newest"]
    end_all(quick)
    fill(table, 1)
    assert requested(daemon.tick()) == [f"{name}_merge_newest"], "and when it works again, at once"


# ------------------------------------------------------------------------------------------ what goes wrong


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


@pytest.mark.parametrize("make", [sensor, teller])
def test_a_cursor_that_cannot_be_read_is_begun_anew_and_told(
    quick: Any, world: World, simulated: Any, name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    warned: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning", lambda _, text, *args: warned.append(text % args))
    for cursor in BAD_CURSORS:
        daemon = Daemon(quick, make(name), simulated, cursor=cursor)
        warned.clear()
        daemon.tick()
        assert ["a new one begins" in text for text in warned] == [True], cursor
        assert "begins now" in daemon.said
        daemon.evaluate()
        assert len(warned) == 1, "the new one can be read"


def test_a_cursor_that_is_begun_anew_asks_with_new_keys(quick: Any, world: World, simulated: Any, name: str) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemon = Daemon(quick, sensor(name), simulated)
    for _ in range(3):
        daemon.tick()
        daemon.tick()
        end_all(quick)
        daemon.cursor = None
        world.clock.advance(1)
    assert len(set(daemon.created)) == 3
    assert daemon.dropped == []


@pytest.mark.parametrize("make", [sensor, teller])
def test_a_table_that_is_not_there_is_no_error(quick: Any, world: World, simulated: Any, name: str, make: Any) -> None:
    daemon = Daemon(quick, make(name), simulated)
    for _ in range(2):
        daemon.tick()
        assert "there is no table" in daemon.said
    fill(world.create(name, partition_by=["p"]), 1)
    daemon.tick()
    assert "there is no table" not in daemon.said


def test_a_table_that_was_deleted_or_made_anew_is_noticed(quick: Any, world: World, simulated: Any, name: str) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemons = [Daemon(quick, sensor(name), simulated), Daemon(quick, teller(name), simulated)]
    for daemon in daemons:
        daemon.tick()
        kept = dict(world.stores[name].objects)
        world.stores[name].objects.clear()
        daemon.tick()
        daemon.tick()
        assert "there is no table" in daemon.said
        world.stores[name].objects.update(kept)
    world.stores[name].objects.clear()
    world.clock.advance(1)
    fill(world.create(name, partition_by=["n % 2 AS q"]), 5)
    world.clock.advance(MINUTE_MS)
    assert requested(daemons[0].tick()) == [f"{name}_merge_newest"]
    daemons[1].tick()
    assert len(told_commits(quick, name)) == 5


def test_the_commits_sensor_alone_notices_that_a_table_was_deleted_or_made_anew(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    daemon, store = Daemon(quick, teller(name), simulated), world.stores
    for told in (2, 4):
        table = world.create(name, partition_by=["n % 2 AS q"])
        world.clock.advance(MINUTE_MS)
        daemon.tick()
        fill(table, 2)
        table.merge()
        world.clock.advance(20 * MINUTE_MS)  # a refresh would not list the log files of before any more
        daemon.tick()
        daemon.tick()
        assert len(told_commits(quick, name)) == told
        store[name].objects.clear()
    fill(world.create(name, partition_by=["p"]), 3)
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert told_commits(quick, name)[-1]["dagster/row_count"] == 3, "nothing of the old one is left"
    store[name].objects.clear()
    daemon.tick()
    daemon.tick()
    assert "there is no table" in daemon.said


def test_a_damaged_log_fails_the_tick_and_what_came_meanwhile_is_told_when_it_is_mended(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    daemon, objects = Daemon(quick, teller(name), simulated), world.stores[name].objects
    fill(table, 2)
    table.merge()
    daemon.tick()
    [head] = [key for key in objects if key.endswith(".e2.jsonl")]
    second = head.replace(".e2.jsonl", "0.e2.jsonl")
    objects[second] = objects[head]
    kept = daemon.cursor
    for _ in range(2):
        world.clock.advance(10 * MINUTE_MS)
        fill(table, 1)
        world.clock.advance(MINUTE_MS)
        with pytest.raises(UncoordinatedMaintenance, match="both say they are epoch 2"):
            daemon.tick()
        assert daemon.cursor == kept
    del objects[second]
    daemon.tick()
    daemon.tick()
    assert len(told_commits(quick, name)) == 2
    assert quick.fetch_observations(dg.AssetKey(name), limit=10).records == []


@pytest.mark.parametrize("make", [sensor, teller])
def test_a_store_that_does_not_answer_fails_the_tick_and_the_next_one_works(
    quick: Any, world: World, simulated: Any, name: str, make: Any
) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    daemon = Daemon(quick, make(name), simulated)
    daemon.tick()
    kept = daemon.cursor
    world.opened[-1].inject(Fault.FAIL, kind="list")
    with pytest.raises(StoreUnavailable, match="had no answer"):
        daemon.tick()
    assert daemon.cursor == kept
    daemon.tick()
    assert len(world.opened) == 2, "it was opened anew"


# ------------------------------------------------------------------------------------------ open tables


def test_no_secret_is_in_what_is_kept_of_a_table_and_a_new_secret_opens_it_anew(
    monkeypatch: pytest.MonkeyPatch, world: World, name: str
) -> None:
    world.create("t")
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
    kept = f"{tables!r} {vars(tables)!r}"
    assert "hunter2" not in kept
    assert "swordfish" not in kept
    assert OpenTables()._digest(lake()) != tables._digest(lake()), "a digest says nothing to another process"


def test_so_many_tables_are_kept_and_no_more(world: World, simulated: Any) -> None:
    tables = OpenTables(tables_max=2)
    for name in ("a", "b", "c", "b", "a", "b"):
        if name not in world.stores:
            world.create(name)
        with tables.use(simulated, dg.AssetKey(name)):
            pass
    assert len(tables) == 2
    assert [store.location.prefix for store in world.opened] == ["a", "b", "c", "a"]


def test_sensors_of_many_tables_may_tick_at_once(instance: Any, world: World, simulated: Any, name: str) -> None:
    names = [f"{name}_{n}" for n in range(4)]
    for n, table in enumerate(names, start=1):
        fill(world.create(table, partition_by=["p"]), 2 * n)
    failures: list[BaseException] = []
    said: dict[str, set[str]] = {table: set() for table in names}

    def ticks(table: str) -> None:
        try:
            daemon = Daemon(instance, sensor(table, MaintenanceSensor()), simulated)
            for _ in range(20):
                daemon.tick()
                said[table].add(daemon.said.partition(": ")[2])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ticks, args=(table,)) for table in names * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for n, table in enumerate(names, start=1):
        [figures] = said[table]
        assert figures.startswith(f"{2 * n} small parts of {2 * n}")
    assert len(world.opened) <= 8


# ------------------------------------------------------------------------------------------ commits: each once


def test_each_commit_is_told_once_in_order_with_its_figures(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["p"])
    table.insert([{"p": "a", "n": 0}])
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    made = []
    for n in range(5):
        world.clock.advance(SECOND_MS)
        made.append(table.insert([{"p": p, "n": n} for p in "abc"[: n % 3 + 1]]))
        daemon.tick()
        assert told_commits(quick, name) == [], "the first is too young, and what was before is not told"
    world.clock.advance(30 * SECOND_MS)
    for _ in range(3):
        daemon.tick()
    told = told_commits(quick, name)
    assert [(t["icedb/commit_time_ms"], t["icedb/log_file"]) for t in told] == [(c.created_ms, c.key) for c in made]
    assert [t["icedb/rows_written"] for t in told] == [c.rows for c in made] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_parts"] for t in told] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_partitions"] for t in told] == [1, 2, 3, 1, 2]
    assert [t["icedb/commit_bytes"] for t in told] == [c.bytes for c in made]
    assert ["dagster/row_count" in t for t in told] == [False] * 4 + [True]
    assert told[-1]["dagster/row_count"] == 10
    assert told[-1]["icedb/snapshot_id"] == table.snapshot().id


def test_a_young_commit_waits(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name)
    daemon = Daemon(quick, teller(name, settle_s=100), simulated)
    daemon.tick()
    world.clock.advance(1)
    table.insert([{"n": 1}])
    world.clock.advance(100 * SECOND_MS - 1)
    daemon.tick()
    assert told_commits(quick, name) == []
    world.clock.advance(1)
    daemon.tick()
    assert len(told_commits(quick, name)) == 1


def test_to_wait_until_cleanup_may_forget_is_refused(quick: Any, world: World, simulated: Any, name: str) -> None:
    world.create(name)
    Daemon(quick, teller(name, settle_s=1_800), simulated).tick()
    with pytest.raises(InvalidOption, match=r"settle_s is 1801 s, .* \(grace_ms\) of 3600 s\. Give at most .* 1800"):
        Daemon(quick, teller(name, settle_s=1_801), simulated).tick()


def test_what_brings_no_rows_is_not_told(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name, partition_by=["p"])
    for p in "ab":
        fill(table, 3, p=p)
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    for change in (
        table.merge,
        table.merge_log,
        lambda: table.delete("n = 2"),
        lambda: table.drop_partitions(["p=b"]),
        lambda: table.alter(row_group_rows=10_000),
        lambda: table.cleanup(),
    ):
        world.clock.advance(2 * HOUR_MS)
        change()
        world.clock.advance(MINUTE_MS)
        daemon.tick()
        assert told_commits(quick, name) == []
        assert "no new commits" in daemon.said
    table.overwrite([{"p": "c", "n": 1}])
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert [t["icedb/rows_written"] for t in told_commits(quick, name)] == [1]


def test_a_commit_whose_log_file_was_merged_is_told_without_its_name(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    made = []
    for n in range(3):
        world.clock.advance(1)
        made.append(table.insert([{"n": n}]))
    world.clock.advance(SECOND_MS)
    table.merge()
    table.merge_log()
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    told = told_commits(quick, name)
    assert [t["icedb/commit_time_ms"] for t in told] == [c.created_ms for c in made]
    assert not any("icedb/log_file" in t for t in told)


def test_a_tick_tells_so_many_and_the_next_goes_on(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name)
    daemon = Daemon(quick, teller(name, events_max=3, from_beginning=True), simulated)
    made = []
    for n in range(8):
        made.append(table.insert([{"n": n}]).created_ms)
        world.clock.advance(n % 2)
    world.clock.advance(MINUTE_MS)
    counts = []
    for _ in range(5):
        daemon.tick()
        counts.append(len(told_commits(quick, name)))
    assert [t["icedb/commit_time_ms"] for t in told_commits(quick, name)] == sorted(made)
    assert counts == [3, 6, 8, 8, 8]


def test_two_commits_of_one_millisecond_are_two_events(quick: Any, world: World, simulated: Any, name: str) -> None:
    table = world.create(name)
    other = world.open(name)
    daemon = Daemon(quick, teller(name, events_max=1), simulated)
    daemon.tick()
    world.clock.advance(1)
    one, two = table.insert([{"n": 1}]), other.insert([{"n": 2}])
    assert one.created_ms == two.created_ms
    world.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=1)
    daemon.tick()
    daemon.tick()
    assert sorted(t["icedb/log_file"] for t in told_commits(quick, name)) == sorted([one.key, two.key])


def test_a_late_commit_of_a_millisecond_that_was_told_is_told_too_when_the_log_is_merged(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    behind = world.open(name)
    behind.handle.clock = world.clock.skewed(-40 * SECOND_MS)
    daemon = Daemon(quick, teller(name), simulated)
    world.clock.advance(MINUTE_MS)
    fill(table, 1)
    daemon.tick()
    world.clock.advance(1)
    first = table.insert([{"p": "a", "n": 1}])
    world.clock.advance(40 * SECOND_MS)
    daemon.tick()
    late = behind.insert([{"p": "a", "n": 2}])
    assert late.created_ms == first.created_ms
    table.merge_log()
    world.clock.advance(SECOND_MS)
    daemon.tick()
    daemon.tick()
    told = told_commits(quick, name)
    assert [t["icedb/first_part"] for t in told] == [first.parts[0].key, late.parts[0].key]


@pytest.mark.parametrize("kind", ["materialization", "observation"])
def test_a_tick_that_died_among_its_events_repeats_none(
    quick: Any, world: World, simulated: Any, name: str, kind: str
) -> None:
    for dies_after in range(6):
        of = f"{name}_{dies_after}"
        table = world.create(of)
        daemon = Daemon(quick, teller(of, events=kind), simulated)
        daemon.tick()
        made = []
        for n in range(5):
            world.clock.advance(1)
            made.append(table.insert([{"n": n}]).created_ms)
        world.clock.advance(MINUTE_MS)
        daemon.tick(dies_after=dies_after)
        assert len(told_commits(quick, of, kind=kind)) == dies_after
        if dies_after % 2:
            table.merge()
            table.merge_log()
        daemon.tick()
        daemon.tick()
        assert [t["icedb/commit_time_ms"] for t in told_commits(quick, of, kind=kind)] == made


def test_a_commit_that_appears_late_is_told(quick: Any, world: World, simulated: Any, name: str) -> None:
    clock = world.clock
    table = world.create(name)
    slow = icedb.Table(type(table.handle)(table.handle.store, table.spec, clock=clock.skewed(-50 * SECOND_MS)))
    daemon = Daemon(quick, teller(name), simulated)
    clock.advance(MINUTE_MS)
    daemon.tick()
    clock.advance(2 * MINUTE_MS)
    table.insert([{"n": 1}])
    clock.advance(40 * SECOND_MS)
    daemon.tick()
    assert len(told_commits(quick, name)) == 1
    late = slow.insert([{"n": 2}])  # with a time before that of the one that was told
    clock.advance(MINUTE_MS)
    daemon.tick()
    daemon.tick()
    assert [t["icedb/commit_time_ms"] for t in told_commits(quick, name)][1:] == [late.created_ms]


def test_the_first_commits_of_a_table_that_was_missing_are_told(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    world.clock.set(world.clock.now_ms() + 3 * 24 * HOUR_MS)  # then a missing table is noticed at the real time
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    fill(world.create(name), 2)
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert "2 new commits" in daemon.said


# ------------------------------------------------------------------------------------------ commits: Dagster's own


def test_commits_of_the_io_manager_are_not_told_again(
    instance: Any, materialize: Materialize, lake: IceDBResource, name: str
) -> None:
    def write(**options: Any) -> None:
        materialize(returning(name, pa.table({"n": [1]})), io=options)

    daemon = Daemon(instance, teller(name, settle_s=0), lake)
    daemon.tick()
    write()
    lake.table(name).insert([{"n": 2}])
    write(mode="append")
    write(mode="overwrite")
    lake.table(name).insert([{"n": 3}])
    daemon.tick()
    daemon.tick()
    own = [t for t in told_commits(instance, name) if "icedb/mode" not in t]
    assert [t["icedb/rows_written"] for t in own] == [1, 1]
    assert len(told_commits(instance, name)) == 5


def test_a_commit_of_an_earlier_try_of_a_step_is_not_told_again(
    instance: Any, materialize: Materialize, lake: IceDBResource, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(instance, teller(name, settle_s=0), lake)
    daemon.tick()
    kept, tries = icedb.Table.snapshot, []

    def fails_first(table: icedb.Table, *args: Any) -> Any:
        tries.append(table)
        if len(tries) == 1:
            raise RuntimeError("the process dies between commit and event")
        return kept(table, *args)

    monkeypatch.setattr(icedb.Table, "snapshot", fails_first)
    retried = returning(name, pa.table({"n": [1]}), retry_policy=dg.RetryPolicy(max_retries=1))
    materialize(retried, io={"mode": "append"})
    monkeypatch.undo()
    daemon.tick()
    [told] = told_commits(instance, name)
    assert told["icedb/repeated"] is True
    assert lake.table(name).snapshot().rows == 1


def test_a_step_that_writes_by_itself_can_say_so(
    instance: Any, materialize: Materialize, lake: IceDBResource, name: str
) -> None:
    lake.table_or_create(name)

    @dg.asset(key=name)
    def writes(context: dg.AssetExecutionContext) -> None:
        commits = [lake.table(name).insert([{"n": n}]) for n in range(2)]
        context.add_output_metadata({"icedb/commit_time_ms": [c.created_ms for c in commits]})

    daemon = Daemon(instance, teller(name, settle_s=0), lake)
    daemon.tick()
    materialize(writes)
    daemon.tick()
    assert len(told_commits(instance, name)) == 1


# ------------------------------------------------------------------------------------------ commits: partitions


def test_an_asset_with_partitions_gets_an_event_for_each_of_a_commit(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    days = dg.StaticPartitionsDefinition(["mon", "tue", "wed"])
    spec = dg.AssetSpec(name, partitions_def=days, metadata={"partition_expr": "Day"})
    table = world.create(name, partition_by=["day", "n % 2 AS q"])
    daemon = Daemon(quick, teller(name), simulated, definitions=dg.Definitions(assets=[spec]))
    daemon.tick()
    world.clock.advance(1)
    table.insert([{"day": d, "n": n} for d in ("mon", "wed", "sun") for n in range(4)])
    world.clock.advance(1)
    table.insert([{"day": "tue", "n": 1}])
    world.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=2)
    daemon.tick()
    daemon.tick()
    told = told_commits(quick, name)
    assert [(t["partition"], t["icedb/rows_written"]) for t in told] == [("mon", 4), ("wed", 4), (None, 4), ("tue", 1)]
    assert [t["icedb/commit_parts"] for t in told] == [2, 2, 2, 1]
    assert quick.get_materialized_partitions(dg.AssetKey(name)) == {"mon", "tue", "wed"}


@pytest.mark.parametrize("metadata", [{}, {"partition_expr": "elsewhere"}])
def test_a_table_that_cannot_tell_the_partitions_gives_events_without(
    quick: Any, world: World, simulated: Any, name: str, metadata: dict[str, str]
) -> None:
    spec = dg.AssetSpec(name, partitions_def=dg.StaticPartitionsDefinition(["mon"]), metadata=metadata)
    table = world.create(name, partition_by=["day"])
    daemon = Daemon(quick, teller(name), simulated, definitions=dg.Definitions(assets=[spec]))
    daemon.tick()
    world.clock.advance(1)
    table.insert([{"day": "mon", "n": 1}])
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert [t["partition"] for t in told_commits(quick, name)] == [None]


# ------------------------------------------------------------------------------------------ commits: what is unknown


def test_what_cleanup_forgot_is_told_as_one_gap_and_the_telling_goes_on(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    fill(table, 3)
    table.merge()
    world.clock.advance(2 * HOUR_MS)
    table.cleanup()
    world.clock.advance(1)
    after = table.insert([{"p": "a", "n": 9}])
    world.clock.advance(MINUTE_MS)
    daemon.tick(dies_after=1)
    daemon.tick()
    assert "cleanup has forgotten" in daemon.said
    daemon.tick()
    daemon.tick()
    [gap] = quick.fetch_observations(dg.AssetKey(name), limit=10).records
    assert "Some commits to this table are not reported" in gap.event_log_entry.asset_observation.description
    assert [t["icedb/commit_time_ms"] for t in told_commits(quick, name)] == [after.created_ms]


def test_a_short_grace_period_leaves_no_gap_where_the_sensor_had_looked(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    slow = icedb.Table(type(table.handle)(table.handle.store, table.spec, clock=world.clock.skewed(-50 * SECOND_MS)))
    daemon, made = Daemon(quick, teller(name), simulated), []
    daemon.tick()
    for minute in range(1, 17):
        world.clock.advance(MINUTE_MS)
        writer = slow if minute % 7 == 5 else table
        made.append(writer.insert([{"n": minute}]).created_ms)
        table.merge()
        table.cleanup(grace_ms=10 * MINUTE_MS)
        daemon.tick()
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert sorted(t["icedb/commit_time_ms"] for t in told_commits(quick, name)) == sorted(made)
    assert quick.fetch_observations(dg.AssetKey(name), limit=10).records == []
    fill(table, 3)
    table.merge()
    world.clock.advance(11 * MINUTE_MS)
    table.cleanup(grace_ms=10 * MINUTE_MS)
    daemon.tick()
    assert "cleanup has forgotten" in daemon.said, "these it had not seen"


def test_what_came_after_the_last_merge_by_a_v3_program_is_told(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["k"])
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    world.clock.advance(MINUTE_MS)
    v3_merge(table, world.stores[name])
    world.clock.advance(20 * MINUTE_MS)
    made = [table.insert([{"k": 0, "n": n}]).created_ms for n in range(3)]
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert "a program of IceDB v3 merged" in daemon.said
    daemon.tick()
    daemon.tick()
    assert [t["icedb/commit_time_ms"] for t in told_commits(quick, name)] == made
    assert len(quick.fetch_observations(dg.AssetKey(name), limit=10).records) == 1


def test_maintenance_by_a_v3_program_is_told_once_however_long_it_goes_on(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name, partition_by=["k"])
    daemon = Daemon(quick, teller(name), simulated)
    daemon.tick()
    for n in range(3):
        world.clock.advance(MINUTE_MS)
        v3_merge(table, world.stores[name]) if n == 0 else v3_drop(table, world.stores[name])
        world.clock.advance(MINUTE_MS)
        daemon.tick()
        assert "a program of IceDB v3 merged" in daemon.said
        fill(table, 1)
    assert len(quick.fetch_observations(dg.AssetKey(name), limit=10).records) == 1
    world.clock.advance(MINUTE_MS)
    daemon.tick()
    assert "1 new commits" in daemon.said
    assert len(told_commits(quick, name)) == 1


def v3_drop(table: icedb.Table, store: ClockedStore) -> None:
    """A program that knows no epochs drops a part."""
    part, t_ms = table.snapshot().parts[0], table.handle.clock.now_ms()
    file = LogFile(t_ms, {}, (Marker(part.key, part.bytes, part.created_ms, tombstoned_ms=t_ms),))
    store.create(table.handle.keys.log_file(t_ms, merged=True, writer="v3"), encode(file))


def test_from_the_beginning_means_every_commit_that_the_log_tells_apart(
    quick: Any, world: World, simulated: Any, name: str
) -> None:
    table = world.create(name)
    fill(table, 3)
    world.clock.advance(HOUR_MS)
    table.merge()
    fill(table, 2)
    world.clock.advance(MINUTE_MS)
    daemon = Daemon(quick, teller(name, from_beginning=True), simulated)
    daemon.tick()
    assert len(told_commits(quick, name)) == 5
    world.clock.advance(2 * HOUR_MS)
    table.cleanup()
    other = Daemon(quick, teller(name, from_beginning=True, events="observation"), simulated)
    other.tick()
    assert "2 new commits; Dagster has events for them" in other.said, "of those before the horizon not all are known"


# ------------------------------------------------------------------------------------------ cursors


def test_cursors_keep_what_they_were_given(clock: ManualClock) -> None:
    asked = run_requests.RequestedRun(7, "basis", 1, 2, 3)
    memory = run_requests.RequestCursor(5, {"cleanup": asked})
    assert run_requests.decode(run_requests.encode(memory)) == memory
    assert run_requests.run_key("s", memory, "cleanup") == "s/cleanup/5/7"
    names = tuple(f"d=2026-11-21/{clock.new_id()}.parquet" for _ in range(1_000))
    for seen in ((), names):
        kept = feed_position.FeedPosition(Cursor(5, seen=seen))
        assert feed_position.decode(feed_position.encode(kept)) == kept
    assert feed_position.decode('{"changes":{"t":5},"foreign":true,"version":1}') == feed_position.FeedPosition(
        Cursor(5), foreign=True
    )
    assert len(feed_position.encode(feed_position.FeedPosition(Cursor(5, seen=names)))) < 0.5 * len(
        msgspec.json.encode(names)
    )


def test_a_clock_that_was_set_does_not_make_work_wait_for_ever() -> None:
    due = icedb.Recommendation("cleanup", "why", "basis")
    before = run_requests.RequestedRun(1, "basis", 0, ended_ms=10 * HOUR_MS)
    held, wanted = run_requests.next_request(before, due, now_ms=HOUR_MS, failed=lambda: False)
    assert not wanted
    assert held.ended_ms == HOUR_MS
    _, wanted = run_requests.next_request(held, due, now_ms=HOUR_MS + run_requests.WAIT_MS, failed=lambda: False)
    assert wanted


def test_dagster_takes_the_answers(quick: Any, world: World, simulated: Any, name: str) -> None:
    fill(world.create(name, partition_by=["p"]), 5)
    for made, cursor in (
        (sensor(name), run_requests.encode(run_requests.begin(1))),
        (teller(name, from_beginning=True), None),
    ):
        world.clock.advance(MINUTE_MS)
        resources = {"icedb": simulated}
        with dg.build_sensor_context(instance=quick, cursor=cursor, resources=resources) as context:
            data = made.evaluate_tick(context)
        assert bool(data.run_requests) is (cursor is not None)
        assert len(data.asset_events) == (0 if cursor else 5)
        assert data.cursor != cursor
