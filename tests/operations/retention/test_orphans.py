"""The sweep deletes orphans that no writer can publish any more, and no other object, wherever it is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from icedb import Table, Timing
from icedb.errors import ClockSkew, CommitStateUnknown, CorruptLog, GraceTooShort, StoreUnavailable
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.timing import DAY_MS, HOUR_MS
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import StoredObject, open_store
from icedb.testing import (
    ClockedStore,
    Crash,
    Fault,
    FaultyStore,
    ManualClock,
    Request,
    SkewedClock,
    check_sound,
    create_table,
    open_table,
)
from icedb.transaction.open_table import open_handle
from icedb.util.clock import SystemClock
from tests.support.object_stores.interruptions import act_after, act_before
from tests.support.tables.numbered_rows import data_keys, numbers, put_log
from tests.support.tables.plain_table import PlainTable, live_numbers

SKEW_MS = Timing().max_skew_ms


def orphan(store: ClockedStore, name: str = "orphan", body: bytes = b"12345") -> str:
    key = store.location.keys.part("k=1", name)
    store.create(key, body)
    return key


def table_and_orphan(table: Table, store: ClockedStore) -> str:
    """Insert a row, because a log without commits stops the sweep, and put an orphan. Return its key."""
    table.insert([{"k": 1, "n": 1}])
    return orphan(store)


def put_claim(store: ClockedStore, epoch: int, *, part: str, live_epochs: tuple[int, ...]) -> str:
    """Put the claim of an exclusive commit that publishes a part."""
    t_ms = store.clock.now_ms()
    file = LogFile(t_ms, {"n": "BIGINT"}, (Marker(part, 5, t_ms),), epoch=epoch, live_epochs=live_epochs)
    log_key = store.location.keys.log_file(t_ms, merged=False, writer=f"other.e{epoch}")
    key = store.location.keys.epoch_claim(epoch)
    store.create(key, msgspec.json.encode({"key": log_key, "t": t_ms, "body": encode(file).decode()}))
    return key


def publish(store: ClockedStore, claim: str) -> None:
    """Put the log file of a claim, and delete the claim."""
    body = msgspec.json.decode(store.get(claim).body)
    store.create(body["key"], body["body"].encode())
    store.delete([claim])


# ------------------------------------------------------------------------------------------------ ages


def test_an_orphan_of_the_minimum_age_is_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    clock.advance(DAY_MS + SKEW_MS - 1)
    report = table.delete_orphans()
    assert (report.deleted_parts, report.young_parts, report.young_bytes) == ((), 1, 5)
    clock.advance(1)
    report = table.delete_orphans()
    assert (report.deleted_parts, report.deleted_bytes, report.young_parts) == ((key,), 5, 0)
    assert key not in data_keys(clocked)


def test_an_age_below_the_part_timeout_is_rejected(table: Table) -> None:
    least_ms = 2 * table.handle.timing.part_timeout_ms
    with pytest.raises(GraceTooShort, match=f"min_age_ms={least_ms}"):
        table.delete_orphans(min_age_ms=least_ms - 1)
    table.delete_orphans(min_age_ms=least_ms)


def test_a_clock_that_is_far_ahead_deletes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    fast = open_table(clocked, clock.skewed(2 * DAY_MS))
    before = data_keys(clocked)
    with pytest.raises(ClockSkew):
        fast.delete_orphans()
    assert data_keys(clocked) == before
    assert key in before


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_sweep_compares_clocks_again_if_its_clock_object_is_deleted(
    table: Table, clocked: ClockedStore, clock: ManualClock, times: int
) -> None:
    table.insert([{"k": "1", "n": 0}])
    key = orphan(clocked)
    clock.advance(2 * DAY_MS)
    deleted: list[str] = []

    def sleep(request: Request) -> None:
        if request.kind == "create" and "/_data/" in request.keys[0] and len(deleted) < times:
            clock.advance(2 * DAY_MS)
            clocked.delete([request.keys[0]])  # as another program's sweep, which now takes it for an orphan
            deleted.append(request.keys[0])

    store = FaultyStore(clocked)
    store.after = sleep
    if times < 3:
        assert open_table(store, clock).delete_orphans().deleted_parts == (key,)
    else:
        with pytest.raises(StoreUnavailable, match="could not be compared"):
            open_table(store, clock).delete_orphans()
        assert key in data_keys(clocked)
    assert len(deleted) == times
    check_sound(clocked)


# ------------------------------------------------------------------------------------------------ what names a part


def test_old_parts_that_the_log_names_stay(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for n in range(3):
        table.insert([{"k": 1, "n": n}])
    table.merge()
    key = orphan(clocked)
    clock.advance(30 * DAY_MS)
    before = data_keys(clocked)
    assert table.delete_orphans().deleted_parts == (key,)
    assert data_keys(clocked) == before - {key}, "tombstoned parts are the work of cleanup"
    assert numbers(table) == [0, 1, 2]


@pytest.mark.parametrize("txn", [None, ("stream", 1)])
def test_parts_that_only_a_claim_names_stay(
    table: Table, clocked: ClockedStore, clock: ManualClock, txn: tuple[str, int] | None
) -> None:
    dying = FaultyStore(clocked)
    dying.inject(Fault.CRASH_AFTER, kind="create", key="_claims/txn" if txn else "_claims/epoch")
    with pytest.raises(Crash):
        open_table(dying, clock).insert([{"k": 1, "n": 1}], txn=txn)
    [claimed] = data_keys(clocked)
    clock.advance(30 * DAY_MS)
    assert table.delete_orphans().deleted_parts == ()
    assert data_keys(clocked) == {claimed}


def crashed_overwrite(store: ClockedStore, clock: ManualClock) -> str:
    """Crash an overwrite right after its claim. Return the part that the claim names."""
    dying = FaultyStore(store)
    dying.inject(Fault.CRASH_AFTER, kind="create", key="_claims/epoch")
    before = data_keys(store)
    with pytest.raises(Crash):
        open_table(dying, clock).overwrite([{"k": 1, "n": 2}])
    [claimed] = data_keys(store) - before
    return claimed


@pytest.mark.long
def test_the_part_of_a_void_claim_is_an_orphan(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    """Epoch 1 stays live, so the claim of epoch 2 stays for good: it guards the log against lost epochs."""
    table.insert([{"k": k, "n": k} for k in range(32)])  # too large a log file for merge_log to take with the others
    claimed = crashed_overwrite(clocked, clock)
    clock.advance(2 * table.handle.timing.commit_timeout_ms)
    table.insert([{"k": 0, "n": 32, "new": 1}])  # an exclusive commit: it finds the old claim and puts the void
    for _ in range(3):
        clock.advance(30 * DAY_MS)
        table.merge_log()
        table.cleanup()
    assert clocked.location.keys.epoch_claim(2) in clocked.objects
    [problem] = [p for p in table.verify().problems if p.kind == "orphans"]
    assert claimed in problem.message
    assert table.delete_orphans().deleted_parts == (claimed,)
    assert table.verify().problems == ()
    assert numbers(table) == list(range(33))
    check_sound(clocked)


def test_the_part_of_a_claim_of_a_lost_epoch_stays(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert([{"k": 1, "n": 1}])
    claimed = crashed_overwrite(clocked, clock)
    clock.advance(2 * table.handle.timing.commit_timeout_ms)
    table.alter(row_group_rows=4096)
    keys = clocked.location.keys
    later = [i.key for i in clocked.list(keys.log_prefix) if (keys.parse_log_file(i.key).epoch or 0) > 1]
    assert later
    clocked.delete(later)  # another program; the log no longer shows whether epoch 2 was void
    clock.advance(30 * DAY_MS)
    assert open_table(clocked, clock).delete_orphans().deleted_parts == ()
    assert claimed in data_keys(clocked)


def test_a_writer_of_a_swept_part_publishes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert([{"k": 1, "n": 1}])
    swept: list[str] = []

    def sleep() -> None:
        clock.advance(30 * DAY_MS)
        table.alter(row_group_rows=4096)
        clock.advance(30 * DAY_MS)
        table.cleanup()
        swept.extend(table.delete_orphans().deleted_parts)

    store = FaultyStore(clocked)
    act_after(store, sleep, kind="create", key="_claims/epoch")
    with pytest.raises(CommitStateUnknown):
        open_table(store, clock).overwrite([{"k": 1, "n": 2}])
    assert len(swept) == 1
    assert numbers(table) == [1]
    check_sound(clocked)


def test_parts_that_an_ignored_log_file_names_stay(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    now_ms = clock.now_ms()
    put_log(clocked, LogFile(now_ms + 1, {}, (Marker(key, 5, now_ms),), epoch=2, live_epochs=(2,)), writer="x.e2")
    put_log(clocked, LogFile(now_ms + 2, {}, epoch=3, live_epochs=(1, 3)), writer="x.e3")
    clock.advance(30 * DAY_MS)
    assert any(key.endswith("x.e2.jsonl") for key in table.handle.read(everything=True).ignored)
    assert table.delete_orphans().deleted_parts == ()
    assert key in data_keys(clocked)


WHEN = ["before", "between the looks"]


def damage_log(store: ClockedStore) -> None:
    key = store.list(store.location.keys.log_prefix)[0].key
    intact = store.objects[key]
    store.objects[key] = StoredObject(intact.body[:-20], intact.stored_ms)


def stray_log(store: ClockedStore) -> None:
    store.create(f"{store.location.keys.log_prefix}notes.txt", b"hello")


def damage_epoch_claim(store: ClockedStore) -> None:
    store.create(store.location.keys.epoch_claim(7), b'{"key": "table/_log/x')


def damage_txn_claim(store: ClockedStore) -> None:
    store.create(store.location.keys.txn_claim("app", 7), b'{"key": 1, "t": 2, "body": ""}')


def claim_of_a_later_version(store: ClockedStore) -> None:
    store.create(f"{store.location.keys.claims_prefix}lease-1.json", b"{}")


@pytest.mark.parametrize(
    ("damage", "when"),
    [
        (damage_log, "before"),
        *((d, w) for d in [stray_log, damage_epoch_claim, damage_txn_claim, claim_of_a_later_version] for w in WHEN),
    ],
)
def test_an_unreadable_object_stops_the_sweep_before_it_deletes(
    table: Table, clocked: ClockedStore, clock: ManualClock, damage: Callable[[ClockedStore], None], when: str
) -> None:
    table_and_orphan(table, clocked)
    clock.advance(30 * DAY_MS)
    before = data_keys(clocked)
    store = FaultyStore(clocked)
    if when == "before":
        damage(clocked)
    else:
        act_before(store, lambda: damage(clocked), kind="create")  # the check of the clock
    with pytest.raises(CorruptLog) as error:
        open_table(store, clock).delete_orphans()
    assert error.value.key in str(error.value)
    assert data_keys(clocked) == before


# ------------------------------------------------------------------------------------------------ only its own


def test_foreign_objects_are_reported_and_not_deleted(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert([{"k": "1", "n": 0}])  # a log without commits stops the sweep
    prefix = clocked.location.keys.data_prefix
    foreign = [f"{prefix}k=1/notes.txt", f"{prefix}k=1/x.parquet.crc", f"{prefix}a//b.parquet", f"{prefix}.parquet"]
    neighbours = ["table2/_data/k=1/x.parquet", "table/other.parquet", "table/_delta_log/x.parquet"]
    for key in [*foreign[:3], *neighbours]:
        clocked.create(key, b"x")
    key = orphan(clocked)
    clock.advance(30 * DAY_MS)
    report = table.delete_orphans()
    assert report.deleted_parts == (key,)
    assert report.foreign == tuple(sorted(foreign[:3]))
    assert {*foreign[:3], *neighbours} <= clocked.objects.keys()


def test_a_limited_sweep_deletes_the_oldest_first(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.insert([{"k": "1", "n": 0}])  # a log without commits stops the sweep
    keys = []
    for n in (3, 1, 2):
        keys.append(orphan(clocked, f"orphan{n}"))
        clock.advance(1)
    clock.advance(30 * DAY_MS)
    report = table.delete_orphans(limit=2)
    assert (report.deleted_parts, report.remaining) == (tuple(keys[:2]), 1)
    assert data_keys(clocked) & set(keys) == {keys[2]}
    report = table.delete_orphans(limit=2)
    assert (report.deleted_parts, report.remaining) == ((keys[2],), 0)


def test_a_dry_run_of_the_sweep_writes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    clock.advance(30 * DAY_MS)
    store = FaultyStore(clocked)
    report = open_table(store, clock).delete_orphans(dry_run=True)
    assert (report.deleted_parts, report.dry_run) == ((key,), True)
    assert store.counts["create"] == store.counts["delete"] == 0
    assert key in data_keys(clocked)


# ------------------------------------------------------------------------------------------------ others meanwhile


def test_the_sweep_lists_twice_before_it_deletes(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    clock.advance(30 * DAY_MS)
    store = FaultyStore(clocked)
    open_table(store, clock).delete_orphans()
    keys = clocked.location.keys
    look = [keys.data_prefix, keys.claims_prefix, keys.log_prefix]
    assert [r.keys[0] for r in store.requests if r.kind == "list"] == look * 2
    last = store.requests[-1]
    assert (last.kind, last.keys) == ("delete", (key,))
    read_last = max(r.number for r in store.requests if r.kind == "list")
    assert not [r for r in store.requests[read_last:] if r.kind in ("create", "list")], "nothing in between but reading"


def test_a_part_published_between_the_listings_stays(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = table_and_orphan(table, clocked)
    clock.advance(30 * DAY_MS)
    store = FaultyStore(clocked)
    file = LogFile(clock.now_ms(), {}, (Marker(key, 5, clock.now_ms()),))
    act_before(store, lambda: put_log(clocked, file), kind="create")
    assert open_table(store, clock).delete_orphans().deleted_parts == ()
    assert key in data_keys(clocked)


@pytest.mark.parametrize("look", [1, 2])
def test_a_part_whose_claim_is_published_between_listings_stays(
    table: Table, clocked: ClockedStore, clock: ManualClock, look: int
) -> None:
    key = table_and_orphan(table, clocked)
    clock.advance(30 * DAY_MS)
    claims: list[str] = []
    store = FaultyStore(clocked)

    def claim() -> None:
        claims.append(put_claim(clocked, 2, part=key, live_epochs=(1, 2)))

    if look == 1:
        claim()
    else:
        act_before(store, claim, kind="create")

    def become_a_log_file(request: Request) -> None:
        # After the first of the two listings.
        if request.kind == "list" and "_data" not in request.keys[0] and claims and claims[0] in clocked.objects:
            publish(clocked, claims[0])

    store.after = become_a_log_file
    assert open_table(store, clock).delete_orphans().deleted_parts == ()
    assert claims
    assert claims[0] not in clocked.objects
    assert key in data_keys(clocked)


@pytest.mark.long
def test_sweeping_between_any_two_requests_of_a_writer_loses_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"]).insert([{"k": 1, "n": 0}])
    orphan(clocked)
    clock.advance(30 * DAY_MS)
    store = FaultyStore(clocked)
    sweeper = open_table(clocked, clock)
    swept: list[str] = []
    store.before = lambda request: swept.extend(sweeper.delete_orphans().deleted_parts)
    writer = open_table(store, clock)
    for n in range(1, 4):
        writer.insert([{"k": n, "n": n}])
        writer.insert([{"k": n, "n": 10 + n}], txn=("app", n))
    writer.merge()
    assert len(swept) == 1
    assert numbers(writer) == [0, 1, 2, 3, 11, 12, 13]
    check_sound(clocked)


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_RESPONSE])
def test_the_next_sweep_finishes_one_that_was_interrupted_anywhere(fault: Fault) -> None:
    def sweep(number: int | None) -> int:
        """Sweep with a fault at one of the requests, then without. Return the number of requests of the first sweep."""
        clock = ManualClock()
        clocked = ClockedStore(clock)
        create_table(clocked, clock, partition_by=["k"])
        table = PlainTable.of(clocked, clock)
        for n in range(3):
            table.insert([{"k": n, "n": n}])
        table.merge()
        orphans = {orphan(clocked, f"orphan{n}") for n in range(3)}
        named = data_keys(clocked) - orphans
        clock.advance(30 * DAY_MS)
        store = FaultyStore(clocked)
        interrupted = open_table(store, clock)
        opened = len(store.requests)
        if number is not None:
            store.inject(fault, number=opened + number)
        with contextlib.suppress(Crash, StoreUnavailable):
            interrupted.delete_orphans()
        assert named <= data_keys(clocked)
        # The object of the interrupted clock check is an orphan, too.
        clock.advance(2 * DAY_MS)
        open_table(clocked, clock).delete_orphans()
        assert data_keys(clocked) == named
        assert live_numbers(clocked) == [0, 1, 2]
        return len(store.requests) - opened

    requests = sweep(None)
    assert requests > 10
    for number in range(1, requests + 1):
        sweep(number)


def test_the_sweep_deletes_orphans_of_a_crashed_insert(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"]).insert([{"k": 1, "n": 0}])
    dying = FaultyStore(clocked)
    dying.inject(Fault.CRASH_BEFORE, kind="create", key="_log/")
    with pytest.raises(Crash):
        open_table(dying, clock).insert([{"k": k, "n": 1} for k in range(3)])
    table = open_table(clocked, clock)
    assert len(data_keys(clocked)) == 4
    assert table.delete_orphans().young_parts == 3
    clock.advance(DAY_MS + HOUR_MS)
    assert len(table.delete_orphans().deleted_parts) == 3
    assert numbers(table) == [0]


# ------------------------------------------------------------------------------------------------ real stores


@pytest.mark.sampled(days=3)
def test_a_sweep_in_every_kind_of_store(place: Any) -> None:
    table = Table.create(place.uri, partition_by=["k"], storage_options=place.storage_options)
    table.insert([{"k": k, "n": k} for k in range(3)])
    store = open_store(parse_location(place.uri, place.storage_options))
    keys = store.location.keys
    orphans = [keys.part("k=1", "orphan"), keys.part("city=S%C3%A3o Paulo", "orphan"), keys.part("", "orphan")]
    for key in orphans:
        store.create(key, b"x")
    assert table.delete_orphans(dry_run=True).young_parts == 3
    # Two days later, by a clock that is not checked.
    later = SkewedClock(SystemClock(), 2 * DAY_MS)
    sweeper = Table(open_handle(store, clock=later, fencing="none"))
    report = sweeper.delete_orphans()
    assert sorted(report.deleted_parts) == sorted(orphans)
    assert numbers(Table.open(place.uri, storage_options=place.storage_options)) == [0, 1, 2]
    assert sweeper.delete_orphans().deleted_parts == ()
