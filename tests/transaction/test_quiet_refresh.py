"""A refresh with an unchanged listing returns the last state, and replays nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import icedb.transaction.log_reader
from icedb import Table
from icedb.errors import SchemaConflict
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.replay import TableState, replay
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from icedb.transaction.append import append


class ReplayCounter:
    """Counts the replays that it runs."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *arguments: Any, **options: Any) -> TableState:
        self.count += 1
        return replay(*arguments, **options)

    def of(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> ReplayCounter:
    counted = ReplayCounter()
    monkeypatch.setattr(icedb.transaction.log_reader, "replay", counted)
    return counted


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(clocked, clock, partition_by=["k"])
    for n in range(3):
        commit(table)
        clock.advance(MINUTE_MS * n)
    return table


def commit(table: Table, *, t_ms: int | None = None) -> None:
    """Commit a part that is not a Parquet file, because no test opens it."""
    handle = table.handle
    now_ms = handle.clock.now_ms()
    marker = Marker(handle.keys.part("k=0", handle.clock.new_id()), 10, now_ms, rows=1)
    handle.store.create(marker.key, b"x" * 10)
    if t_ms is None:
        append(handle, [marker], {"n": "BIGINT"}, oldest_part_ms=now_ms)
    else:
        key = handle.keys.log_file(t_ms, merged=False, writer=handle.clock.new_id())
        handle.store.create(key, encode(LogFile(t_ms, {"n": "BIGINT"}, (marker,))))


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_quiet_refresh_replays_nothing_and_returns_the_state_of_a_first_read(
    table: Table, clocked: ClockedStore, clock: ManualClock, replays: ReplayCounter, everything: bool, fresh: bool
) -> None:
    table.merge_log()
    reader = open_table(clocked, clock).handle

    def read() -> TableState:
        return reader.read(everything=everything, fresh=fresh)

    assert replays.of(read) == 1
    for by_ms in (0, MINUTE_MS, 20 * MINUTE_MS):
        clock.advance(by_ms)
        # The first refresh that lists only a part of the log omits log files that had been superseded before.
        assert replays.of(read) <= (by_ms == 20 * MINUTE_MS and not (fresh or everything))
    first = open_table(clocked, clock).handle.read(everything=everything)
    assert (read().live, read().schema, read().horizon_ms) == (first.live, first.schema, first.horizon_ms)


CHANGES: dict[str, Callable[[Table], object]] = {
    "an append": commit,
    "an append that was late": lambda t: commit(t, t_ms=t.handle.clock.now_ms() - 5 * MINUTE_MS),
    "an append from a clock far ahead": lambda t: commit(t, t_ms=t.handle.clock.now_ms() + HOUR_MS),
    "a merge of log files": lambda t: t.merge_log(),
    "a drop": lambda t: t.drop_partitions(["k=0"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_is_replayed_once(
    table: Table, clocked: ClockedStore, clock: ManualClock, replays: ReplayCounter, change: Callable[[Table], object]
) -> None:
    reader = open_table(clocked, clock).handle
    reader.read()
    change(table)
    assert replays.of(reader.read) == 1
    first = open_table(clocked, clock).handle.read()
    assert (reader.read().parts, reader.read().files.keys()) == (first.parts, first.files.keys())
    assert replays.of(reader.read) == 0


def test_states_with_and_without_ignored_log_files_differ(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    table.merge_log()
    reader = open_table(clocked, clock).handle
    for everything in (False, True, False, True):
        state = reader.read(everything=everything, fresh=True)
        assert (len(state.files), len(state.effective), len(state.listed_ms)) == (4 if everything else 1, 1, 4)


def test_cleanup_finds_superseded_objects_after_reads(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.drop_partitions(["k=0"])
    for _ in range(20):
        clock.advance(4 * MINUTE_MS)
        table.snapshot()
    report = table.cleanup()
    assert (len(report.deleted_parts), report.forgotten, report.remaining) == (3, 3, 0)
    again = table.cleanup()
    assert (again.deleted_parts, again.deleted_log_files) == ((), ())


def test_a_conflict_raises_at_each_read_until_it_is_repaired(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    reader = open_table(clocked, clock).handle
    before = reader.read()
    key = reader.keys.log_file(clock.now_ms(), merged=False, writer="other")
    clocked.create(key, encode(LogFile(clock.now_ms(), {"n": "VARCHAR"})))
    for _ in range(2):
        with pytest.raises(SchemaConflict):
            reader.read()
        assert reader.tolerant().read().conflicts
    clocked.delete([key])
    assert reader.read().parts == before.parts
