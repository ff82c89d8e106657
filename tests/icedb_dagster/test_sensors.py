"""Both sensors of a table: their settings, cursors, faults, and open tables."""

import logging
import threading
from typing import Any

import msgspec
import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption, StoreUnavailable
from icedb.format.change_feed import Cursor
from icedb.format.timing import MINUTE_MS
from icedb.testing import Fault, ManualClock
from icedb_dagster import sensors
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor, feed_position, run_requests
from icedb_dagster.sensors.open_tables import OpenTables
from tests.support.dagster.sensor_scene import SensorScene, commits, fill, maintenance, requested
from tests.support.dagster.sensor_worlds import Daemon, SimulatedLake

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.sensor_scene"]

#: One sensor of each kind.
BOTH = pytest.mark.parametrize("sensor", [SensorScene.maintenance, SensorScene.commits])


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
