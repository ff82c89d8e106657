"""The commits sensor reports each commit once, also after faults."""

from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb.errors import InvalidOption, UncoordinatedMaintenance
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore
from tests.reader.test_changes import v3_merge
from tests.support.dagster.dagster_instance import AssetRun, returning
from tests.support.dagster.sensor_scene import SECOND_MS, SensorScene, commits, fill
from tests.support.dagster.sensor_worlds import Daemon, reported_commits

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.sensor_scene"]


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


# ------------------------------------------------------------------------------------------ each once


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


# ------------------------------------------------------------------------------------------ Dagster's own


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


# ------------------------------------------------------------------------------------------ partitions


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


# ------------------------------------------------------------------------------------------ what is unknown


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
