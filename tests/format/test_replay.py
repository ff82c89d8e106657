"""Replay of a set of log files, which is independent of their order, and reading them from a store."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from icedb.errors import CorruptLog, SchemaConflict, SnapshotExpired, UncoordinatedMaintenance
from icedb.format.codec import encode
from icedb.format.keys import Keys
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import StoredLogFile, TableState, live_markers, replay
from icedb.testing import ClockedStore, FaultyStore, ManualClock, Request, live_to_v3_readers
from icedb.transaction.log_reader import LogReader

KEYS = Keys("table")


def part(name: str, t: int, tmb: int | None = None) -> Marker:
    return Marker(f"table/_data/{name}.parquet", 10, t, tmb)


def log(t: int, *markers: Marker, writer: str = "w", stored: int | None = None, **rest: object) -> StoredLogFile:
    file = LogFile(t, **{"schema": {}, "markers": markers, **rest})  # type: ignore[arg-type]
    name = writer if file.epoch is None else f"{writer}.e{file.epoch}"
    return StoredLogFile(KEYS.log_file(t, merged=file.carries_tombstones, writer=name), file, stored or t)


def tombstones(*files: StoredLogFile, t: int) -> tuple[LogTombstoneRecord, ...]:
    return tuple(LogTombstoneRecord(f.key, t) for f in files)


def names(markers: Sequence[Marker]) -> list[str]:
    return [m.key.split("/")[-1].removesuffix(".parquet") for m in markers]


def replayed(*files: StoredLogFile) -> TableState:
    return replay(files, table="table")


def test_a_tombstone_wins_over_a_live_marker_in_any_order() -> None:
    files = [log(1, part("a", 1), part("b", 1)), log(2, part("a", 1, tmb=2)), log(3, part("a", 1), writer="late")]
    for order in itertools.permutations(files):
        assert names(replayed(*order).live) == ["b"]


def test_a_part_has_the_smallest_of_its_times() -> None:
    for order in itertools.permutations([log(5, part("a", 5, 9)), log(3, part("a", 3)), log(8, part("a", 4, 7))]):
        marker = replayed(*order).parts["table/_data/a.parquet"]
        assert (marker.created_ms, marker.tombstoned_ms) == (3, 7)


def test_a_part_has_the_details_of_any_of_its_markers() -> None:
    counted = Marker("table/_data/a.parquet", 10, 1, rows=7)
    for order in itertools.permutations([log(1, part("a", 1)), log(2, counted)]):
        assert replayed(*order).parts["table/_data/a.parquet"].rows == 7


def test_the_schema_is_the_union_of_all() -> None:
    state = replayed(log(1, schema={"a": "BIGINT"}), log(2, schema={}), log(3, schema={"b": "VARCHAR", "a": "BIGINT"}))
    assert state.schema == {"a": "BIGINT", "b": "VARCHAR"}


def test_a_conflict_names_the_column_both_types_and_both_log_files() -> None:
    one, other = log(1, schema={"a": "BIGINT"}), log(2, schema={"a": "VARCHAR"})
    with pytest.raises(SchemaConflict) as caught:
        replayed(other, log(3, schema={"a": "BIGINT"}), one)
    assert (caught.value.column, caught.value.types) == ("a", ("BIGINT", "VARCHAR"))
    assert caught.value.log_files == (one.key, other.key)
    for text in ("'a'", "BIGINT", "VARCHAR", one.key, other.key):
        assert text in str(caught.value)


def test_an_epoch_that_the_head_does_not_list_is_ignored() -> None:
    one = log(1, part("a", 1), epoch=1, live_epochs=(1,))
    stale = log(9, part("old", 9), epoch=2, live_epochs=(1, 2))
    head = log(5, part("b", 5), epoch=3, live_epochs=(1, 3))
    state = replayed(one, stale, head)
    assert names(state.live) == ["a", "b"]
    assert (state.epoch, state.ignored) == (3, {stale.key})


def test_a_replaced_log_file_is_ignored_and_its_markers_are_carried() -> None:
    plain = log(1, part("a", 1), part("b", 1))
    merged = log(
        2, part("a", 1, 2), part("b", 1), part("c", 2), epoch=1, live_epochs=(1,), tombstones=tombstones(plain, t=2)
    )
    state = replayed(plain, merged)
    assert names(state.live) == ["b", "c"]
    assert state.ignored == {plain.key}
    assert state.replaceable(["table/_data/b.parquet"], t_ms=10**13) == [merged.key]
    # Parts of a replaced file do not come back after cleanup forgot them.
    forgot = log(3, part("b", 1), epoch=2, live_epochs=(2,), tombstones=tombstones(plain, merged, t=3), horizon_ms=2)
    assert replayed(plain, merged, forgot).parts.keys() == {"table/_data/b.parquet"}


def test_a_v3_tombstone_of_a_log_file_does_not_hide_it() -> None:
    # A v3 drop carries only some of the markers of the file that it tombstones.
    plain = log(1, part("a", 1), part("b", 1))
    drop = log(2, part("a", 1, 2), tombstones=tombstones(plain, t=2))
    state = replayed(plain, drop)
    assert names(state.live) == ["b"]
    assert state.ignored == set()
    assert state.log_tombstones == {plain.key: 2}


def test_two_files_of_one_epoch_raise_uncoordinated_maintenance() -> None:
    one, other = log(1, epoch=1, live_epochs=(1,)), log(2, epoch=1, live_epochs=(1,))
    with pytest.raises(UncoordinatedMaintenance, match="epoch 1") as caught:
        replayed(one, other)
    assert one.key in str(caught.value)
    assert other.key in str(caught.value)


def test_a_void_changes_nothing_and_counts_as_an_epoch() -> None:
    one = log(1, part("a", 1), epoch=1, live_epochs=(1,))
    void = log(2, epoch=2, live_epochs=(1, 2), void=True)
    state = replayed(one, void)
    assert (names(state.live), state.epoch) == (["a"], 2)


def test_transactions_keep_the_greatest_sequence() -> None:
    state = replayed(log(1, txn={"app": (3, 1), "b": (1, 1)}), log(2, txn={"app": (2, 2)}))
    assert state.txn == {"app": (3, 1), "b": (1, 1)}


# ------------------------------------------------------------------------------------------ time travel


def test_a_snapshot_has_the_parts_that_were_live_at_its_time() -> None:
    state = replayed(log(10, part("a", 10)), log(20, part("b", 20)), log(30, part("a", 10, 30), part("c", 30)))
    live = {9: [], 10: ["a"], 19: ["a"], 20: ["a", "b"], 29: ["a", "b"], 30: ["b", "c"], 99: ["b", "c"]}
    assert {t_ms: names(live_markers(state, t_ms)) for t_ms in live} == live
    assert names(live_markers(state, None)) == ["b", "c"]


def test_before_the_horizon_a_snapshot_has_expired() -> None:
    state = replayed(log(10, part("a", 10)), log(30, horizon_ms=25), log(40, horizon_ms=20))
    assert state.horizon_ms == 25
    assert names(live_markers(state, 25)) == ["a"]
    with pytest.raises(SnapshotExpired, match="25") as caught:
        live_markers(state, 24)
    assert caught.value.horizon_ms == 25


def test_for_a_v3_reader_the_last_marker_in_key_order_decides() -> None:
    state = replayed(log(1, part("a", 1), part("b", 1)), log(2, part("a", 1, 2)))
    assert live_to_v3_readers(state) == {"table/_data/b.parquet"}


# ------------------------------------------------------------------------------------------ reading from a store


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(ClockedStore(ManualClock()))


def put(store: FaultyStore, *files: StoredLogFile) -> None:
    for file in files:
        store.inner.create(file.key, encode(file.file))


def test_the_reader_lists_again_if_a_log_file_is_deleted_between_list_and_get(store: FaultyStore) -> None:
    plain = log(1, part("a", 1))
    merged = log(2, part("a", 1, 2), part("b", 2), epoch=1, live_epochs=(1,), tombstones=tombstones(plain, t=2))
    put(store, plain)

    def merged_and_cleaned(request: Request) -> None:
        if request.kind == "get" and store.counts["get"] == 1:
            put(store, merged)
            store.inner.delete([plain.key])

    store.before = merged_and_cleaned
    assert names(LogReader(store, KEYS).read().live) == ["b"]


def test_a_foreign_object_in_the_log_raises_corrupt_log(store: FaultyStore) -> None:
    put(store, log(1, part("a", 1)))
    store.inner.create("table/_log/notes.txt", b"hello")
    with pytest.raises(CorruptLog, match=r"notes\.txt"):
        LogReader(store, KEYS).read()


def test_a_truncated_log_file_raises_corrupt_log(store: FaultyStore) -> None:
    whole = log(1, part("a", 1))
    store.inner.create(whole.key, encode(whole.file)[:-3])
    with pytest.raises(CorruptLog) as caught:
        LogReader(store, KEYS).read()
    assert caught.value.key == whole.key
