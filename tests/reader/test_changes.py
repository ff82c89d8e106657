"""Changes: each added row is returned once, although its part is merged or dropped, or the reader gets an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from icedb import Table
from icedb.errors import InvalidOption, SnapshotExpired, UncoordinatedMaintenance
from icedb.format.change_feed import (
    BEGINNING,
    Cursor,
    Limits,
    advance,
    at_time,
    between,
    check_order,
    decode_cursor,
    encode_cursor,
)
from icedb.format.codec import encode
from icedb.format.keys import Keys
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import StoredLogFile, TableState, replay
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.reader.changes import settled_ms
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.util.times import UNIX_MS_MIN

KEYS = Keys("table")


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    return create_table(clocked, clock, partition_by=["k"], sort_by=["n"])


def numbers(changes: Any) -> list[int]:
    return sorted(changes.to_arrow(["n"])["n"].to_pylist()) if changes.parts else []


def insert(table: Table, *ns: int) -> None:
    table.insert([{"k": n % 2, "n": n} for n in ns])


# ------------------------------------------------------------------------------------------ a table


def test_each_row_is_returned_once_and_merged_parts_are_not_new(table: Table, clock: ManualClock) -> None:
    insert(table, 0, 1)
    first = table.changes()
    assert numbers(first) == [0, 1]
    assert numbers(table.changes(first.cursor)) == []
    insert(table, 2, 3)
    table.merge()
    insert(table, 4)
    second = table.changes(first.cursor)
    assert numbers(second) == [2, 3, 4]
    assert second.since == first.cursor
    assert numbers(table.changes(second.cursor)) == []
    clock.advance(HOUR_MS)
    third = table.changes(second.cursor)
    assert numbers(third) == []
    assert decode_cursor(third.cursor, table="t").seen == (), "settled log files need not be remembered"


MOVES: dict[str, Callable[[Table], object]] = {
    "merge": lambda t: t.merge(),
    "merge log": lambda t: t.merge_log(),
    "delete": lambda t: t.delete("n = 0"),
    "rewrite": lambda t: t.rewrite_partition("k=0", "SELECT * FROM t WHERE n <> 0"),
    "drop": lambda t: t.drop_partitions(["k=0"]),
    "restore": lambda t: [t.drop_partitions(["k=0"]), t.restore(t.handle.read().newest_ms - 1)],
    "alter": lambda t: t.alter(row_group_rows=10_000),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("move", MOVES)
def test_only_appends_and_overwrites_add_rows(table: Table, clock: ManualClock, move: str) -> None:
    insert(table, 0, 1, 2)
    insert(table, 4, 5)
    cursor = table.changes().cursor
    clock.advance(MINUTE_MS)
    MOVES[move](table)
    clock.advance(MINUTE_MS)
    assert table.changes(cursor).parts == ()
    table.overwrite([{"k": 0, "n": 10}])
    assert numbers(table.changes(cursor)) == [10]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_large_table_is_returned_in_pieces_while_it_changes(table: Table, clock: ManualClock) -> None:
    for n in range(0, 12, 2):
        insert(table, n, n + 1)
    clock.advance(30 * MINUTE_MS)
    received: list[int] = []
    cursor = None
    for round_ in range(100):
        changes = table.changes(cursor, parts_max=2)
        assert len(changes.parts) <= 2
        if not changes.parts:
            break
        received += numbers(changes)
        cursor = changes.cursor
        if round_ == 1:
            table.merge()
            insert(table, 20, 21)
    assert sorted(received) == [*range(12), 20, 21]
    assert round_ > 5


def test_at_least_one_part_is_returned_regardless_of_its_size(table: Table) -> None:
    insert(table, 0, 1)
    assert len(table.changes(bytes_max=1).parts) == 1


@pytest.mark.sampled(days=3)
def test_changes_between_two_times(table: Table, clock: ManualClock) -> None:
    times = []
    for n in range(3):
        insert(table, n)
        times.append(table.handle.read().newest_ms)
        clock.advance(MINUTE_MS)
    table.merge()
    assert numbers(table.changes(times[0])) == [1, 2]
    assert numbers(table.changes(times[0], times[1])) == [1]
    assert numbers(table.changes(times[0] - 1, times[0])) == [0]
    whole = table.changes(times[0], times[1])
    assert numbers(table.changes(whole.since, whole.cursor)) == [1]
    assert whole.as_of_ms == times[1]
    assert repr(whole) == f"Changes({table.uri!r}, parts=1, rows=1, as_of_ms={times[1]})"
    assert whole.query("SELECT k, n FROM t").fetchall() == [(1, 1)]


def test_a_consumer_behind_cleanup_gets_snapshot_expired(table: Table, clock: ManualClock) -> None:
    insert(table, 0, 2)
    cursor = table.changes().cursor
    clock.advance(30 * MINUTE_MS)
    insert(table, 4)
    table.merge()
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    clock.advance(2 * HOUR_MS)
    table.cleanup()
    with pytest.raises(SnapshotExpired, match=r"changes since .* may be among it. Begin anew") as raised:
        table.changes(cursor)
    assert raised.value.horizon_ms == table.handle.read().horizon_ms
    assert numbers(table.changes()) == [0, 2, 4], "a new consumer gets all rows"
    assert numbers(table.changes(raised.value.horizon_ms)) == []


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_consumer_that_keeps_up_is_not_behind_cleanup(table: Table, clock: ManualClock) -> None:
    cursor, got = None, []
    for n in range(40):
        insert(table, n)
        changes = table.changes(cursor)
        cursor = changes.cursor
        got += numbers(changes)
        clock.advance(10 * MINUTE_MS)
        if n % 3 == 0:
            table.merge()
            table.cleanup()
    assert got == list(range(40))


def v3_merge(table: Table, clocked: ClockedStore) -> None:
    """Replace a part by another, as a program without epochs."""
    table.insert([{"k": 0, "n": 0}])
    [part] = table.snapshot().parts
    t_ms = part.created_ms + 1
    merged = table.handle.keys.part("k=0", "f" * 32)
    clocked.create(merged, clocked.get(part.key).body)
    file = LogFile(
        t_ms,
        {},
        (Marker(part.key, part.bytes, part.created_ms, tombstoned_ms=t_ms), Marker(merged, part.bytes, t_ms)),
        tuple(LogTombstoneRecord(key, t_ms) for key in table.handle.read().files),
    )
    clocked.create(table.handle.keys.log_file(t_ms, merged=True, writer="v3"), encode(file))


def test_a_merge_by_a_v3_program_raises_uncoordinated_maintenance(table: Table, clocked: ClockedStore) -> None:
    v3_merge(table, clocked)
    with pytest.raises(UncoordinatedMaintenance, match="a program of IceDB v3 merged"):
        table.changes(UNIX_MS_MIN)


def test_a_merge_by_a_v3_program_is_detected_after_log_merges(
    table: Table, clocked: ClockedStore, clock: ManualClock
) -> None:
    v3_merge(table, clocked)
    clock.advance(MINUTE_MS)
    table.alter(row_group_rows=10_000)
    table.insert([{"k": 0, "n": 1}])
    table.merge()
    assert all(f.file.epoch is not None for f in table.handle.read(fresh=True).effective.values())
    with pytest.raises(UncoordinatedMaintenance, match="Begin anew"):
        table.changes(UNIX_MS_MIN)
    clock.advance(HOUR_MS)
    assert numbers(table.changes()) == [0, 1]


def test_an_end_before_the_start_is_rejected(table: Table) -> None:
    insert(table, 0, 1, 2)
    piece = table.changes(parts_max=1)
    first = table.changes()
    insert(table, 3)
    second = table.changes(first.cursor)
    late_ms = table.handle.clock.now_ms() + MINUTE_MS
    for since, until in ((late_ms, first.cursor), (UNIX_MS_MIN, piece.cursor), (first.cursor, piece.cursor)):
        with pytest.raises(InvalidOption, match="does not come after since"):
            table.changes(since, until)
    assert numbers(table.changes(piece.since, piece.cursor)) == numbers(piece)
    assert numbers(table.changes(first.cursor, second.cursor)) == [3]


def test_limits_count_only_wanted_parts(table: Table) -> None:
    table.insert([{"k": k, "n": k} for k in range(20)])
    end, parts = advance(
        table.handle.read(),
        table.handle.keys,
        BEGINNING,
        settled_ms=0,
        limits=Limits(parts=1),
        counted=lambda markers: {m.key for m in markers if "k=19" in m.key},
    )
    assert len(parts) == 20
    assert end.snapshot is None


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda t: t.changes("{}"), "is no cursor"),
        (lambda t: t.changes('{"t":1,"extra":2}'), "is no cursor"),
        (lambda t: t.changes("yesterday"), "is no cursor"),
        (lambda t: t.changes(until=UNIX_MS_MIN), "until needs since"),
        (lambda t: t.changes(UNIX_MS_MIN + 1, UNIX_MS_MIN), "until .* is before since"),
        (lambda t: t.changes(1_795_313_126), "since is 1795313126, .* probably means seconds"),
        (lambda t: t.changes(parts_max=0), "parts_max is 0"),
        (lambda t: t.changes(bytes_max=-1), "bytes_max is -1"),
        (lambda t: t.changes(True), "since must be"),
    ],
)
def test_invalid_arguments_of_changes_are_rejected(table: Table, call: Callable[[Table], object], reason: str) -> None:
    insert(table, 0)
    with pytest.raises(InvalidOption, match=reason):
        call(table)


# ------------------------------------------------------------------------------------------ any history

SETTLED_AFTER = 20


def history(chance: random.Random) -> list[tuple[int, LogFile]]:
    """Return log files out of order, each with the time at which it appears, which is soon after its own."""
    files, live = [], list[Marker]()
    for number in range(chance.randrange(1, 40)):
        t_ms = 100 + 3 * number
        kind = chance.choice(("append", "append", "append", "merge"))
        if kind == "append" or len(live) < 2:
            new = [
                Marker(KEYS.part(f"k={chance.randrange(3)}", f"{number}-{i}"), chance.randrange(1, 9), t_ms)
                for i in range(chance.randrange(1, 4))
            ]
            live += new
            files.append((t_ms + chance.choice((0, 0, 1, chance.randrange(SETTLED_AFTER))), LogFile(t_ms, {}, (*new,))))
        else:
            inputs = chance.sample(live, 2)
            live = [m for m in live if m not in inputs]
            dead = [msgspec.structs.replace(m, tombstoned_ms=t_ms) for m in inputs]
            into = Marker(KEYS.part("k=0", f"{number}-merged"), 5, t_ms, moved=True)
            live.append(into)
            # As exclusive commits do, it appears after its inputs.
            epoch = 1 + sum(f.epoch is not None for _, f in files)
            file = LogFile(t_ms, {}, (*dead, into), epoch=epoch, live_epochs=tuple(range(1, epoch + 1)))
            files.append((t_ms, file))
    return files


def state_at(files: list[tuple[int, LogFile]], now: int) -> TableState:
    stored = [
        StoredLogFile(KEYS.log_file(f.t_ms, merged=f.carries_tombstones, writer=f"w{n}"), f, at)
        for n, (at, f) in enumerate(files)
        if at <= now
    ]
    return replay(stored, table="t")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(300))
def test_a_consumer_gets_each_row_once_and_repeated_batches_are_equal(seed: int) -> None:
    chance = random.Random(seed)
    files = history(chance)
    last = max(at for at, _ in files) + SETTLED_AFTER + 1
    appended = {m.key for _, f in files for m in f.markers if not m.moved}
    now = chance.randrange(90, last)
    state = first = state_at(files, now)
    start = chance.choice((BEGINNING, at_time(now - SETTLED_AFTER), at_time(0)))
    begun = start
    limits = chance.choice((Limits(), Limits(parts=2), Limits(bytes=7), Limits(parts=1)))
    got: list[str] = []
    batches: list[tuple[Cursor, Cursor, list[str]]] = []
    while True:
        until = None if start == BEGINNING else chance.choice((None, None, now - chance.randrange(30)))
        end, taken = advance(state, KEYS, start, settled_ms=now - SETTLED_AFTER, until_ms=until, limits=limits)
        keys = [m.key for m in between(state, KEYS, start, end)]
        assert keys == [m.key for m in taken]
        check_order(start, end, KEYS, table="t")
        assert end == decode_cursor(encode_cursor(end), table="t")
        if limits.parts is not None:
            assert len(keys) <= limits.parts
        got += keys
        batches.append((start, end, keys))
        start = end
        if now >= last and until is None and not keys:
            break
        now = min(last, now + chance.choice((0, 0, 1, 5, 30)))
        state = state_at(files, now)
    assert len(got) == len(set(got))
    final = state_at(files, last)
    if begun == BEGINNING:  # all live parts, and the parts that were appended since
        expected = {m.key for m in first.live} | (appended - first.parts.keys())
    else:
        expected = {k for k in appended if final.parts[k].created_ms > begun.t_ms}
    assert set(got) == expected
    for begin, end, keys in batches:  # a repeated batch is equal, regardless of later commits
        assert [m.key for m in between(final, KEYS, begin, end)] == keys
    assert start.seen == (), "at the end, nothing needs to be remembered"
    assert start.t_ms == last - SETTLED_AFTER


def test_a_time_is_settled_after_the_limits_of_the_protocol(table: Table, clock: ManualClock) -> None:
    timing = table.handle.timing
    assert settled_ms(table.handle, clock.now_ms()) == clock.now_ms() - 2 * (
        timing.commit_timeout_ms + timing.max_skew_ms
    )


def test_a_time_in_the_future_is_rejected(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    table.insert([{"n": 1}])
    skewed = clock.now_ms() + 2 * table.handle.timing.max_skew_ms
    assert table.changes(skewed).rows == 0  # another machine may have read it from its clock
    assert table.changes(UNIX_MS_MIN, skewed).rows == 1
    for since, until in ((skewed + 1, None), (UNIX_MS_MIN, skewed + 1)):
        with pytest.raises(InvalidOption, match="is in the future"):
            table.changes(since, until)
