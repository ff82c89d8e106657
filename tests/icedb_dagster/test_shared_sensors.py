"""One sensor for many tables does what the tables' own sensors do, with fewer checks and no lost result."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption, StoreUnavailable
from icedb.testing import Fault, FaultyStore
from icedb_dagster import build_table_definitions, share_sensors, table_spec
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor, shared_sensors
from icedb_dagster.sensors.tick_schedule import TickSchedule
from tests.support.dagster.sensor_scene import PARTS
from tests.support.dagster.sensor_worlds import WORLDS, Daemon, SensorWorld, SimulatedLake, reported_commits
from tests.support.waiting import wait_until

pytestmark = pytest.mark.dagster

NAMES = ("a", "b", "c")


class SharedScene(SensorWorld):
    """Three tables, the definitions of their sensors, and a daemon for each of the shared sensors."""

    def __init__(self, root: str, instance: dg.DagsterInstance) -> None:
        super().__init__()
        self.instance = instance
        self.lake = SimulatedLake(root=root)
        self.seconds = 0.0
        self.committed_ms: dict[str, list[int]] = {name: [] for name in NAMES}
        self.tables = {name: self.create(name, partition_by=["p"]) for name in NAMES}
        for table in self.tables.values():
            table.insert([{"p": "earlier", "n": 0}])
        self.shared = share_sensors(definitions(), quiet_interval_s=240)

    def daemon(self, kind: str) -> Daemon:
        sensors = {sensor.name: sensor for sensor in self.shared.sensors or ()}
        return Daemon(self.instance, sensors[f"icedb_{kind}_sensor"], self.lake, definitions=loadable()).begin()

    def insert(self, name: str, rows: int = 1) -> None:
        for n in range(rows):
            self.clock.advance(1)
            self.committed_ms[name].append(self.tables[name].insert([{"p": "x", "n": n}]).created_ms)

    def opened_by_sensor(self, name: str) -> FaultyStore:
        return next(store for store in self.opened if store.inner is self.stores[name])

    def advance(self, seconds: float = 60) -> None:
        self.seconds += seconds
        self.clock.advance(int(seconds * 1000))

    def reported_ms(self, name: str) -> list[int]:
        return [
            event["icedb/commit_time_ms"] for event in reported_commits(self.instance, name, kind="materialization")
        ]


def definitions(**settings: Any) -> dg.Definitions:
    """Return the definitions of the three tables. Their sensors check every minute."""
    tables = [
        build_table_definitions(
            name,
            maintenance_sensor=MaintenanceSensor(PARTS, interval_s=60),
            commits_sensor=CommitsSensor(interval_s=60, settle_s=0, **settings),
        )
        for name in NAMES
    ]
    return dg.Definitions.merge(dg.Definitions(assets=[table_spec(name) for name in NAMES]), *tables)


@cache
def loadable() -> dg.Definitions:
    """Return the definitions with a resource, as a code location has them. The sensors read their asset graph."""
    lake = SimulatedLake(root="memory://elsewhere")
    return dg.Definitions.merge(definitions(), dg.Definitions(resources={"icedb": lake}))


@pytest.fixture
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SharedScene]:
    root = f"memory://{request.node.name}"
    # Not an instance in memory: it has one connection to SQLite, which several threads must not use at a time.
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        WORLDS[root] = made = SharedScene(root, instance)
        monkeypatch.setattr(shared_sensors, "monotonic", lambda: made.seconds)
        yield made
        del WORLDS[root]


def names(definitions: dg.Definitions) -> list[str]:
    return [sensor.name for sensor in definitions.sensors or ()]


def jobs_of(result: dg.SensorResult | None) -> list[str]:
    assert result is not None
    return sorted(str(request.job_name) for request in result.run_requests or ())


# ------------------------------------------------------------------------------------------ the definitions


def test_shared_sensors_replace_those_of_the_tables() -> None:
    @dg.sensor(name="own")
    def own() -> None: ...

    before = dg.Definitions.merge(definitions(), dg.Definitions(sensors=[own]))
    # Dagster copies sensors when it adds metadata, as it does for components.
    before = before.with_definition_metadata_update(lambda metadata: {**metadata, "place": "here"})
    after = share_sensors(before)
    assert names(after) == ["own", "icedb_maintenance_sensor", "icedb_commits_sensor"]
    _, maintenance, commits = after.sensors or ()
    assert {job.name for job in maintenance.jobs} == {
        f"{table}_{verb}"
        for table in NAMES
        for verb in ("merge_newest", "merge_oldest", "merge_log", "cleanup", "maintain")
    }
    assert maintenance.minimum_interval_seconds == commits.minimum_interval_seconds == 60
    assert maintenance.default_status == dg.DefaultSensorStatus.STOPPED
    assert len(list(after.jobs or ())) == len(list(before.jobs or ()))
    dg.Definitions.validate_loadable(
        dg.Definitions.merge(after, dg.Definitions(resources={"icedb": SimulatedLake(root="memory://x")}))
    )
    assert names(share_sensors(after)) == names(after)


def test_tables_that_share_a_sensor_are_all_running_or_none() -> None:
    mixed = dg.Definitions.merge(build_table_definitions("a", running=True), build_table_definitions("b"))
    with pytest.raises(InvalidOption, match=r"others, as b_maintenance_sensor, are not.* give all tables the same"):
        share_sensors(mixed)
    with pytest.raises(InvalidOption, match="quiet_interval_s is 0; give"):
        share_sensors(definitions(), quiet_interval_s=0)
    running = share_sensors(build_table_definitions("a", running=True))
    assert [sensor.default_status for sensor in running.sensors or ()] == [dg.DefaultSensorStatus.RUNNING]


# ------------------------------------------------------------------------------------------ requests and events


def test_due_work_of_all_tables_is_requested_once(scene: SharedScene) -> None:
    scene.insert("a", 5)
    scene.insert("c", 5)
    daemon = scene.daemon("maintenance")
    scene.advance()
    assert jobs_of(daemon.tick()) == ["a_merge_newest", "c_merge_newest"]
    scene.advance()
    assert jobs_of(daemon.tick()) == []
    assert "a_maintenance_sensor: merge_newest is due, but a run of a_merge_newest is queued" in daemon.skip_message
    assert len(set(daemon.created)) == 2


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("seed", range(3))
def test_each_commit_is_reported_once_by_a_daemon_that_dies(scene: SharedScene, seed: int) -> None:
    randomly = random.Random(seed)
    daemon = scene.daemon("commits")
    for _ in range(30):
        scene.advance(randomly.choice([30, 60, 300]))
        for name in NAMES:
            scene.insert(name, randomly.choice([0, 0, 1, 3]))
        daemon.tick(dies_after=randomly.choice([None, None, 0, 1, 2, 4]))
    for _ in range(2):
        scene.advance(300)
        daemon.tick()
    for name in NAMES:
        assert sorted(scene.reported_ms(name)) == scene.committed_ms[name]


def test_a_tick_reports_a_thousand_events_at_most(scene: SharedScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_sensors, "EVENTS_MAX", 4)
    daemon = scene.daemon("commits")
    for name in NAMES:
        scene.insert(name, 3)
    reported = []
    for _ in range(3):
        scene.advance(60)
        result = daemon.tick()
        assert result is not None
        reported.append(len(result.asset_events))
    assert reported == [3, 3, 3]


# ------------------------------------------------------------------------------------------ cost


def test_quiet_tables_are_checked_ever_more_rarely(scene: SharedScene) -> None:
    daemon = scene.daemon("commits")

    def checks() -> int:
        scene.advance(60)
        with scene.counted() as requests:
            daemon.tick()
        assert set(requests) <= {"list"}
        return len(requests)

    scene.advance(60)
    daemon.tick()
    assert [checks() for _ in range(15)] == [3, 0, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 3]
    scene.insert("b")
    assert [checks() for _ in range(3)] == [0, 0, 0]
    scene.advance(60)
    daemon.tick()
    assert scene.reported_ms("b") == scene.committed_ms["b"]
    assert [checks() for _ in range(3)] == [1, 1, 0], "a table that has changed is checked after its own interval"


def test_the_schedule_prefers_the_longest_due() -> None:
    schedule = TickSchedule({"a": 10, "b": 40}, quiet_interval_s=30)

    def first_due(name: str) -> int:
        return next(now for now in range(100, 150, 5) if name in schedule.due(now))

    assert schedule.due(0) == ["a", "b"]
    assert schedule.checked("a", "empty", 0)
    assert schedule.checked("b", "empty", 0)
    assert schedule.due(4) == []
    assert schedule.due(5) == ["a"], "ticks are not exact"
    assert schedule.due(100) == ["a", "b"]
    assert not schedule.checked("a", "empty", 100)
    assert not schedule.checked("b", "empty", 100)
    assert first_due("a") == 115
    assert first_due("b") == 135, "its own interval is longer"
    assert schedule.due(150) == ["a", "b"]
    assert schedule.checked("a", None, 150)
    assert schedule.due(155) == ["b", "a"]


# ------------------------------------------------------------------------------------------ faults


def test_an_error_of_one_table_holds_up_no_other_and_is_raised(scene: SharedScene) -> None:
    daemon = scene.daemon("commits")
    scene.advance()
    daemon.tick()
    for name in NAMES:
        scene.insert(name)
    scene.opened_by_sensor("b").inject(Fault.FAIL, kind="list")
    scene.advance(240)
    daemon.tick()
    assert [len(scene.reported_ms(name)) for name in NAMES] == [1, 0, 1]
    with pytest.raises(StoreUnavailable, match=r"b.*had no answer"):
        daemon.tick()
    scene.advance(240)
    daemon.tick()
    assert [len(scene.reported_ms(name)) for name in NAMES] == [1, 1, 1]


@pytest.mark.sampled(days=3)
def test_a_table_whose_store_hangs_delays_a_tick_only(scene: SharedScene, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = scene.daemon("commits")
    released, requests = threading.Event(), []

    def wait_for_others(checks: Sequence[Future[Any]], timeout: float) -> None:
        hanging = 0 if released.is_set() else 1
        wait_until(lambda: sum(not check.done() for check in checks) == hanging, f"{hanging} of {checks} hangs")

    def hang(request: Any) -> None:
        requests.append(request)
        released.wait()

    monkeypatch.setattr(shared_sensors, "wait", wait_for_others)
    scene.opened_by_sensor("b").before = hang
    for name in NAMES:
        scene.insert(name)
    scene.advance(60)
    daemon.tick()
    assert [len(scene.reported_ms(name)) for name in NAMES] == [1, 0, 1]
    scene.advance(60)
    daemon.tick()
    assert len(requests) == 1, "its check is not repeated while it has not ended"
    released.set()
    wait_until(lambda: not any("icedb-table-checks" in thread.name for thread in threading.enumerate()), "end of it")
    with pytest.raises(
        StoreUnavailable,
        match=rf"b_commits_sensor: the check of its table takes more than {shared_sensors.TICK_S_MAX} s",
    ):
        daemon.tick()
    scene.advance(240)
    daemon.tick()
    assert [len(scene.reported_ms(name)) for name in NAMES] == [1, 1, 1]
