"""Changes of a spec during writes, maintenance and reads, programs that undo epochs, and wrong clocks."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import (
    ClockSkew,
    IceDBError,
    InvalidOption,
    InvalidPartitionExpression,
    UncoordinatedMaintenance,
    UnknownColumn,
)
from icedb.format.codec import encode
from icedb.format.commit_draft import draft
from icedb.format.keys import partition_of
from icedb.format.records import LogFile, LogTombstoneRecord
from icedb.format.replay import TableState
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    check_sound,
    create_table,
    open_table,
)
from tests.support.tables.fault_walk import SavedState


class AlterWorld:
    """A table with two commits. Rows are counted by a newly opened table."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock)
        table = create_table(self.store, self.clock, partition_by=["k"], sort_by=["n"])
        for n in (3, 1):
            table.insert([{"k": n % 2, "n": n}, {"k": 0, "n": n - 1}])
            self.clock.advance(1_000)
        self._begin = SavedState(self.store, self.clock)

    def reset(self) -> None:
        self._begin.restore()

    def actor(self, *, skew_ms: int = 0) -> tuple[Table, FaultyStore]:
        store = FaultyStore(self.store)
        return open_table(store, self.clock.skewed(skew_ms)), store

    def count(self) -> int:
        check_sound(self.store)
        return int(self.actor()[0].query("SELECT count(*) FROM t").fetchall()[0][0])

    def log(self) -> set[str]:
        return {k for k in self.store.objects if "/_log/" in k}

    def orphans(self) -> set[str]:
        return {i.key for i in self.store.list("table/_data/")} - check_sound(self.store).parts.keys()


@pytest.fixture(scope="module")
def shared_world() -> AlterWorld:
    return AlterWorld()


@pytest.fixture
def world(shared_world: AlterWorld) -> AlterWorld:
    shared_world.reset()
    return shared_world


def newest(world: AlterWorld, table: Table, rows: list[dict[str, int]]) -> list[tuple[str, pq.ParquetFile]]:
    """The partitions and files of what an insert writes."""
    parts = table.insert(rows).parts
    prefix = world.store.location.keys.data_prefix
    return [(partition_of(prefix, p.key), pq.ParquetFile(io.BytesIO(world.store.objects[p.key].body))) for p in parts]


# ------------------------------------------------------------------------------------------ what changes


def test_later_inserts_follow_the_altered_spec(world: AlterWorld) -> None:
    table, _ = world.actor()
    commit = table.alter(sort_by=["k", "n"], compression="snappy", row_group_rows=2_048, partition_by=["n % 2 AS odd"])
    assert commit.committed
    assert (table.spec.sort_by, table.spec.compression, table.spec.revision) == (("k", "n"), "snappy", 1)
    rows = [{"k": -n, "n": 2 * n} for n in range(10_000)]
    ((path, file),) = newest(world, table, rows)
    assert path == "odd=0"
    assert file.read().column("n").to_pylist() == [2 * n for n in reversed(range(10_000))]
    assert file.num_row_groups > 2
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert world.count() == 10_004


def test_an_open_table_uses_the_new_spec_after_it_reads_the_log(world: AlterWorld) -> None:
    table, _ = world.actor()
    other, _ = world.actor()
    other.insert([{"k": 1, "n": 1}])
    table.alter(partition_by=[])
    ((path, _),) = newest(world, other, [{"k": 1, "n": 7}])
    assert path == "k=1", "it has not looked since, and its parts are as good as any"
    other.snapshot()
    assert other.spec == table.spec
    ((path, _),) = newest(world, other, [{"k": 1, "n": 8}])
    assert path == ""
    assert world.actor()[0].handle.spec.revision == 0, "until it looks at the log"
    assert world.count() == 7


def test_an_alter_without_changes_makes_no_commit(world: AlterWorld) -> None:
    table, _ = world.actor()
    before = world.log()
    assert not table.alter().committed
    assert not table.alter(partition_by=["k"], sort_by=["n"], compression="zstd").committed
    assert world.log() == before


def test_concurrent_changes_of_different_fields_are_both_committed(world: AlterWorld) -> None:
    table, store = world.actor()
    table.alter(compression="gzip")
    for request in list(store.requests):
        world.reset()
        table, store = world.actor()
        other, _ = world.actor()
        store.before = partial(_interrupt, store, request.number, partial(other.alter, sort_by=["k"]))
        table.alter(compression="gzip")
        if store.before is None:
            table.snapshot()
            assert (table.spec.compression, table.spec.sort_by, table.spec.revision) == ("gzip", ("k",), 2)


def _interrupt(store: FaultyStore, number: int, then: Callable[[], object], request: Request) -> None:
    if request.number == number:
        store.before = None
        then()


def test_the_spec_outlives_every_kind_of_maintenance(world: AlterWorld) -> None:
    table, _ = world.actor()
    table.alter(sort_by=["k"])
    table.alter(compression="gzip")
    assert sum("gzip" in o.body.decode() for k, o in world.store.objects.items() if "/_log/" in k) == 1
    for act in (table.merge_log, table.merge, partial(table.drop_partitions, ["k=1"]), table.merge_log):
        act()
        for _ in range(2):
            world.clock.advance(2 * HOUR_MS)
            table.cleanup()
        table.insert([{"k": 0, "n": 50}])
        fresh, _ = world.actor()
        fresh.snapshot()
        assert (fresh.spec.sort_by, fresh.spec.compression, fresh.spec.revision) == (("k",), "gzip", 2)


def test_an_empty_table_can_be_altered() -> None:
    clock = ManualClock()
    table = create_table(ClockedStore(clock), clock)
    assert table.alter(sort_by=["later"], partition_by=["later % 2 AS odd"]).committed
    table.insert([{"later": 1}])
    with pytest.raises(UnknownColumn):
        table.alter(sort_by=["nothing"])


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sort_by": ["nothing"]}, UnknownColumn),
        ({"sort_by": ["n", "N"]}, InvalidOption),
        ({"sort_by": "n"}, InvalidOption),
        ({"bloom_filters": ["nothing"]}, UnknownColumn),
        ({"bloom_filters": ["n", "N"]}, InvalidOption),
        ({"bloom_filters": "n"}, InvalidOption),
        ({"partition_by": ["nothing AS x"]}, (UnknownColumn, InvalidPartitionExpression)),
        ({"partition_by": ["random() AS x"]}, InvalidPartitionExpression),
        ({"partition_by": ["k", "k"]}, InvalidPartitionExpression),
        ({"partition_by": ["n +"]}, InvalidPartitionExpression),
        ({"compression": "best"}, InvalidOption),
        ({"row_group_rows": 5}, InvalidOption),
        ({"row_group_rows": 0}, InvalidOption),
        ({"row_group_rows": "many"}, InvalidOption),
    ],
)
def test_an_invalid_change_is_rejected(world: AlterWorld, change: dict[str, object], error: type[IceDBError]) -> None:
    table, _ = world.actor()
    before = dict(world.store.objects)
    with pytest.raises(error):
        table.alter(**change)  # type: ignore[arg-type]
    assert world.store.objects == before
    assert table.spec.revision == 0
    assert world.count() == 4


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_at_any_request_leaves_the_old_or_the_new_spec(world: AlterWorld, fault: Fault) -> None:
    table, store = world.actor()
    table.alter(sort_by=["k"])
    for number in range(2, len(store.requests) + 1):
        world.reset()
        table, store = world.actor()
        store.inject(fault, number=number)
        with pytest.raises(Crash):
            table.alter(sort_by=["k"])
        other, _ = world.actor()
        other.alter(compression="gzip")
        assert other.spec.sort_by in (("n",), ("k",))
        assert (other.spec.compression, other.spec.revision) == ("gzip", 1 + (other.spec.sort_by == ("k",)))
        assert len(check_sound(world.store).live) == 4


# ------------------------------------------------------------------------------------------ foreign maintenance


def _v3_merges(world: AlterWorld) -> dict[str, bytes]:
    """Replace all log files by one without epochs, as a merge and cleanup of v3 do. Return the old log files."""
    world.clock.advance(1_000)
    state = check_sound(world.store)
    old = {k: world.store.objects[k].body for k in state.files}
    t_ms = world.clock.now_ms()
    file = draft(state, t_ms=t_ms, replaces=[*state.effective]).file
    merged = LogFile(t_ms, dict(state.schema), file.markers, tuple(LogTombstoneRecord(k, t_ms) for k in old))
    world.store.create(world.store.location.keys.log_file(t_ms, merged=True, writer="v3"), encode(merged))
    world.store.delete([*old])
    return old


VERBS: dict[str, Callable[[Table], object]] = {
    "merge": lambda table: table.merge(),
    "merge_log": lambda table: table.merge_log(),
    "overwrite": lambda table: table.overwrite([{"k": 0, "n": 9}]),
    "insert a column": lambda table: table.insert([{"k": 0, "n": 9, "c": 1}]),
    "alter": lambda table: table.alter(sort_by=["k"]),
    "drop": lambda table: table.drop_partitions(["k=0"]),
}


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("name", VERBS)
def test_missing_epochs_reject_all_but_plain_appends(world: AlterWorld, name: str, opened: str) -> None:
    table, _ = world.actor()
    table.alter(compression="gzip")
    table.insert([{"k": 1, "n": 5}])
    old = _v3_merges(world)
    world.clock.advance(1_000)
    table.insert([{"k": 1, "n": 6}])  # one log file more than it has merged, so that merge_log has something to do
    before = set(world.store.objects)
    maintainer = table if opened == "before" else world.actor()[0]
    with pytest.raises(UncoordinatedMaintenance, match=r"restore the log files from a backup"):
        VERBS[name](maintainer)
    assert {k for k in set(world.store.objects) - before if "/_claims/epoch" in k or "/_log/" in k} == set()
    world.actor()[0].insert([{"k": 0, "n": 10}])
    assert world.count() == 7
    for key, body in old.items():  # the remedy
        world.store.create(key, body)
    VERBS[name](maintainer)
    check_sound(world.store)


def test_epochs_start_again_after_all_claims_were_deleted(world: AlterWorld) -> None:
    world.actor()[0].alter(compression="gzip")
    _v3_merges(world)
    world.store.delete([k for k in world.store.objects if "_claims/epoch" in k])
    table, _ = world.actor()
    assert table.merge().commit.epoch == 1
    assert world.count() == 4


def test_a_single_missing_epoch_is_voided(world: AlterWorld) -> None:
    # Only the first commit was exclusive. Its claim alone is no evidence, and its content was merged already.
    _v3_merges(world)
    table, _ = world.actor()
    table.merge()
    assert world.count() == 4


def test_commits_of_other_threads_are_not_foreign_maintenance(world: AlterWorld) -> None:
    table, store = world.actor()
    store.after = partial(_two_commits, table, store)
    table.drop_partitions(["k=1"])
    assert world.count() == 2


def _two_commits(table: Table, store: FaultyStore, request: Request) -> None:
    if request.kind == "list" and any("_claims/" in k for r in store.requests for k in r.keys):
        store.after = None
        table.alter(compression="gzip")
        table.alter(compression="snappy")


# ------------------------------------------------------------------------------------------ clocks


INSERTS: dict[str, Callable[[Table], object]] = {
    "insert": lambda table: table.insert([{"k": 0, "n": 9}]),
    "insert once": lambda table: table.insert([{"k": 0, "n": 9}], txn=("app", 1)),
}
#: By a clock ten hours behind, all parts are from a clock far ahead, which merges leave alone.
WRONG_CLOCKS = [
    (name, skew_ms)
    for name in [*INSERTS, *VERBS]
    for skew_ms in (-10 * HOUR_MS, -2 * MINUTE_MS, 2 * MINUTE_MS, 10 * HOUR_MS)
    if skew_ms > -HOUR_MS or not name.startswith("merge")
]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("name", "skew_ms"), WRONG_CLOCKS)
def test_a_wrong_clock_publishes_nothing_and_blocks_no_writer(world: AlterWorld, name: str, skew_ms: int) -> None:
    act = {**INSERTS, **VERBS}[name]
    table, _ = world.actor(skew_ms=skew_ms)
    with pytest.raises(ClockSkew, match="ahead of.*NTP" if skew_ms > 0 else "behind.*NTP"):
        act(table)
    assert world.count() == 4
    assert world.orphans() == set()
    state: TableState = check_sound(world.store)
    assert all(f.file.void or f.file.epoch in (None, 1) for f in state.files.values())
    right, _ = world.actor()
    act(right)
    world.clock.advance(MINUTE_MS)
    right.insert([{"k": 5, "n": 5, "later": 1}])
    assert right.handle.read(fresh=True).epoch > 1
    check_sound(world.store)


@pytest.mark.parametrize("skew_ms", [-MINUTE_MS, MINUTE_MS])
def test_a_clock_within_the_allowed_skew_is_accepted(world: AlterWorld, skew_ms: int) -> None:
    table, _ = world.actor(skew_ms=skew_ms)
    table.insert([{"k": 0, "n": 9}])
    table.merge_log()
    assert world.count() == 5
