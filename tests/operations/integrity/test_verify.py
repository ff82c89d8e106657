"""Verify reports each kind of damage, no damage of a sound table, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icedb import Table, VerifyReport
from icedb.errors import InvalidOption, StoreUnavailable
from icedb.format.codec import decode, encode
from icedb.format.records import LogFile, Marker
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.operations.integrity import part_audit
from icedb.storage.obstore_store import StoredObject
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from tests.support.object_stores.interruptions import act_before
from tests.support.tables.numbered_rows import log_keys, put_log

#: A function that damages a table and returns the key that a problem names.
Damage = Callable[[ClockedStore], str]


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """Two plain appends, a merge, a drop, and an append after them."""
    table = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(table)
    return table


def fill(table: Table) -> None:
    for n in range(2):
        table.insert([{"k": k, "n": 10 * n + k} for k in range(3)])
    table.merge()
    table.drop_partitions(["k=2"])
    table.insert([{"k": 0, "n": 100}])


def kinds(report: VerifyReport) -> set[str]:
    return {p.kind for p in report.problems}


def replace(store: ClockedStore, key: str, body: bytes) -> None:
    store.objects[key] = StoredObject(body, store.objects[key].stored_ms)


def read_log(store: ClockedStore, key: str) -> LogFile:
    return decode(store.get(key).body, key, store.location.keys)


def newest_append(store: ClockedStore) -> str:
    """Return the log file of the last append."""
    return [k for k in log_keys(store) if ".e" not in k][-1]


def head(store: ClockedStore) -> str:
    return max((k for k in log_keys(store) if ".e" in k), key=lambda k: read_log(store, k).epoch or 0)


def live_part(store: ClockedStore) -> str:
    return read_log(store, newest_append(store)).markers[0].key


def change_header(store: ClockedStore, key: str, **changes: Any) -> None:
    first, rest = store.get(key).body.split(b"\n", 1)
    header = {**msgspec.json.decode(first), **changes}
    replace(store, key, msgspec.json.encode(header) + b"\n" + rest)


def change_marker(store: ClockedStore, log_file: str, **changes: Any) -> None:
    """Change the last marker of a log file."""
    file = read_log(store, log_file)
    markers = (*file.markers[:-1], msgspec.structs.replace(file.markers[-1], **changes))
    replace(store, log_file, encode(msgspec.structs.replace(file, markers=markers)))


# ------------------------------------------------------------------------------------------------ sound tables


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_table_is_sound_in_every_kind_of_store(place: Any, deep: bool) -> None:
    table = Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
    assert table.verify(deep=deep).ok
    fill(table)
    report = table.verify(deep=deep)
    assert (report.ok, report.problems, report.foreign) == (True, (), ())
    snapshot = table.snapshot()
    assert (report.live_parts, report.live_rows, report.live_bytes) == (3, 5, snapshot.bytes)
    assert report.unchecked_parts == (0 if deep else 3)
    assert report.tombstoned_parts == 7
    table.cleanup(grace_ms=0, allow_short_grace=True)
    report = table.verify(deep=deep)
    assert (report.ok, report.problems, report.tombstoned_parts) == (True, (), 0)
    assert report.horizon_ms > 0


def test_a_table_whose_log_lies_elsewhere_is_sound(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", partition_by=["k"], sort_by=["n"], log_uri=tmp_path / "log")
    fill(table)
    report = Table.open(tmp_path / "table").verify(deep=True)
    assert (report.ok, report.problems) == (True, ())
    assert report.log_files == 5


def test_verify_counts_objects(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.pin("monthly", expires=timedelta(days=1))
    prefix = clocked.location.keys.data_prefix
    clocked.create(f"{prefix}k=1/old.parquet", b"123")
    clock.advance(2 * DAY_MS)
    clocked.create(f"{prefix}k=1/young.parquet", b"12")
    clocked.create("table/notes.txt", b"hello")
    report = table.verify()
    assert report.ok
    assert (report.log_files, report.superseded_log_files, report.epoch) == (5, 3, 3)
    assert (report.claims, report.pins) == (3, 1)
    assert (report.orphans, report.orphan_bytes) == ((f"{prefix}k=1/old.parquet",), 3)
    assert (report.young_parts, report.young_bytes) == (1, 2)
    assert report.foreign == ("table/notes.txt",)
    assert kinds(report) == {"orphans", "foreign_objects"}
    assert {p.severity for p in report.problems} == {"warning"}
    for text in ("3 parts, 5 rows", "1 pins", "delete_orphans", "table/notes.txt", "sound"):
        assert text in str(report)


def test_a_part_that_a_claim_names_is_no_orphan(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    part, t_ms = clocked.location.keys.part("k=1", "claimed"), clock.now_ms()
    clocked.create(part, b"123")
    file = LogFile(t_ms, {}, (Marker(part, 3, t_ms),), epoch=4, live_epochs=(4,))
    log_key = clocked.location.keys.log_file(t_ms, merged=False, writer="w.e4")
    body = {"key": log_key, "t": t_ms, "body": encode(file).decode()}
    clocked.create(clocked.location.keys.epoch_claim(4), msgspec.json.encode(body))
    clock.advance(30 * DAY_MS)
    report = table.verify()
    assert (report.problems, report.orphans, report.claims) == ((), (), 4)


@pytest.mark.sampled(days=3)
def test_verify_writes_and_deletes_nothing(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    store = FaultyStore(clocked)
    watched = open_table(store, clock)
    replace(clocked, live_part(clocked), b"bad")
    assert not watched.verify(deep=True).ok
    assert store.counts.keys() <= {"list", "get", "head"}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_killed_writer_leaves_no_problem(clock: ManualClock) -> None:
    def killed_at(number: int) -> bool:
        """Return whether a writer makes so many requests, and crashes after them."""
        clocked = ClockedStore(clock)
        create_table(clocked, clock, partition_by=["k"]).insert([{"k": k, "n": 0} for k in range(2)])
        dying = FaultyStore(clocked)
        writer = open_table(dying, clock)
        dying.inject(Fault.CRASH_AFTER, number=len(dying.requests) + number)
        with contextlib.suppress(Crash):
            writer.insert([{"k": k, "n": 1} for k in range(2)])
            writer.merge()
        assert open_table(clocked, clock).verify().problems == ()
        return dying.dead

    assert next(number for number in range(1, 100) if not killed_at(number)) > 10


# ------------------------------------------------------------------------------------------------ damaged parts


#: Kinds of problems, with functions that damage the part with a key.
PART_DAMAGES: dict[str, Callable[[ClockedStore, str], None]] = {
    "missing_part": lambda store, key: store.delete([key]),
    "part_size": lambda store, key: replace(store, key, store.get(key).body + b"x"),
    "damaged_part": lambda store, key: replace(store, key, b"x" * len(store.get(key).body)),
    "part_rows": lambda store, _: change_marker(store, newest_append(store), rows=7),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("kind", PART_DAMAGES)
@pytest.mark.parametrize("deep", [False, True])
def test_verify_reports_a_damaged_part(table: Table, clocked: ClockedStore, kind: str, deep: bool) -> None:
    key = live_part(clocked)
    PART_DAMAGES[kind](clocked, key)
    report = table.verify(deep=deep)
    assert not report.ok
    [problem] = [p for p in report.problems if p.kind == kind]
    assert (problem.severity, problem.key) == ("error", key)
    assert key in problem.message
    assert "estore" in problem.message, "the remedy"


def test_only_a_deep_verify_finds_a_changed_byte(table: Table, clocked: ClockedStore) -> None:
    body = bytearray(clocked.get(live_part(clocked)).body)
    body[6] ^= 1  # in a page, not in the footer
    replace(clocked, live_part(clocked), bytes(body))
    assert table.verify().ok
    report = table.verify(deep=True)
    assert not report.ok
    assert "part_digest" in kinds(report)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("kind", ["missing_part", "part_size"])
def test_verify_without_footers_finds_missing_and_resized_parts(table: Table, clocked: ClockedStore, kind: str) -> None:
    key = live_part(clocked)
    PART_DAMAGES[kind](clocked, key)
    report = table.verify(footers=False)
    assert [(p.kind, p.severity, p.key) for p in report.problems] == [(kind, "error", key)]
    assert not report.ok


def test_verify_without_footers_opens_no_part(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    PART_DAMAGES["damaged_part"](clocked, live_part(clocked))
    clocked.create("table/notes.txt", b"hello")
    store = FaultyStore(clocked)
    report = open_table(store, clock).verify(footers=False)
    assert (report.ok, report.footers, report.unchecked_parts) == (True, False, report.live_parts)
    assert kinds(report) == {"foreign_objects"}
    assert {r.kind for r in store.requests if any("/_data/" in key for key in r.keys)} <= {"list"}
    assert "no part opened" in str(report)
    full = table.verify()
    assert (full.ok, full.footers) == (False, True)
    assert "footers read" in str(full)


@pytest.mark.sampled(days=3)
def test_deep_without_footers_is_rejected(table: Table, clock: ManualClock, clocked: ClockedStore) -> None:
    store = FaultyStore(clocked)
    watched = open_table(store, clock)
    before = len(store.requests)
    with pytest.raises(InvalidOption, match="deep"):
        watched.verify(deep=True, footers=False)
    assert len(store.requests) == before


def test_a_part_without_digest_is_counted_as_unchecked(table: Table, clocked: ClockedStore) -> None:
    change_marker(clocked, newest_append(clocked), digest=None, rows=None)
    report = table.verify(deep=True)
    assert (report.ok, report.unchecked_parts, report.live_rows) == (True, 1, None)
    assert "unknown" in str(report)


@pytest.mark.long
@pytest.mark.parametrize("deep", [False, True])
def test_damage_is_found_in_stores_that_duckdb_reads_itself(
    shared_place: Any, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_audit, "FOOTERS_OF_A_CONNECTION", 68)  # two connections
    place = shared_place
    table = Table.create(place.uri, partition_by=["k"], sort_by=["n"], storage_options=place.storage_options)
    table.insert([{"k": k, "n": k} for k in range(70)])  # more than one query's worth of footers
    parts = table.snapshot().parts
    store = table.handle.store
    broken, cut, gone = parts[3], parts[40], parts[69]
    bodies = {broken.key: b"x" * broken.bytes, cut.key: store.get(cut.key).body[:-10]}
    [log_file] = store.list(store.location.keys.log_prefix)
    file = decode(store.get(log_file.key).body, log_file.key, store.location.keys)
    miscounted = file.markers[20]
    markers = [msgspec.structs.replace(m, rows=9) if m is miscounted else m for m in file.markers]
    bodies[log_file.key] = encode(msgspec.structs.replace(file, markers=tuple(markers)))
    store.delete([gone.key, *bodies])
    for key, body in bodies.items():
        store.create(key, body)
    report = table.verify(deep=deep)
    actual = {(p.kind, p.key) for p in report.problems}
    digests = {("part_digest", broken.key), ("part_digest", cut.key)} if deep else set()
    assert actual == digests | {
        ("damaged_part", broken.key),
        ("part_size", cut.key),
        ("damaged_part", cut.key),
        ("missing_part", gone.key),
        ("part_rows", miscounted.key),
    }


def test_a_failing_store_is_not_reported_as_damage(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    store = FaultyStore(clocked)
    unlucky = open_table(store, clock)
    store.inject(Fault.FAIL, kind="get", key="_data/", times=100)
    with pytest.raises(StoreUnavailable):
        unlucky.verify()


def test_a_missing_pinned_part_is_an_error(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    pin = table.pin("before")
    clock.advance(MINUTE_MS)
    dead = live_part(clocked)
    table.drop_partitions(["k=0"])
    assert table.verify().problems == ()
    clocked.delete([dead])
    [problem] = table.verify().problems
    assert (problem.kind, problem.key) == ("missing_pinned_part", dead)
    assert pin.name in problem.message
    table.unpin("before")
    assert table.verify().problems == ()


def test_an_unreadable_pin_is_an_error(table: Table, clocked: ClockedStore) -> None:
    clocked.create(clocked.location.keys.pin("monthly"), b"{}")
    [problem] = table.verify().problems
    assert (problem.kind, problem.severity) == ("damaged_pin", "error")


# ------------------------------------------------------------------------------------------------ damaged logs


def cut_between_lines(store: ClockedStore) -> str:
    key = head(store)
    replace(store, key, store.get(key).body.rpartition(b"\n")[0])
    return key


def stray_file(store: ClockedStore) -> str:
    store.create("table/_log/notes.txt", b"hello")
    return "table/_log/notes.txt"


#: Functions that make a log file unreadable. They return its key, or None for that of the last append.
LOG_DAMAGES: dict[str, Callable[[ClockedStore], str | None]] = {
    "ends in a newline": lambda s: replace(s, newest_append(s), s.get(newest_append(s)).body + b"\n"),
    "cut in a line": lambda s: replace(s, newest_append(s), s.get(newest_append(s)).body[:-5]),
    "cut between lines": cut_between_lines,
    "another version": lambda s: change_header(s, newest_append(s), v=2),
    "names a neighbour": lambda s: change_marker(s, newest_append(s), key="table2/_data/k=0/x.parquet"),
    "leaves its folder": lambda s: change_marker(s, newest_append(s), key="table/_data/../../etc/x.parquet"),
    "stray file": stray_file,
    "empty": lambda s: replace(s, newest_append(s), b""),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", LOG_DAMAGES)
def test_an_unreadable_log_file_is_an_error(table: Table, clocked: ClockedStore, clock: ManualClock, name: str) -> None:
    key = LOG_DAMAGES[name](clocked) or newest_append(clocked)
    clock.advance(30 * DAY_MS)
    report = table.verify()
    assert [p.key for p in report.problems if p.kind == "damaged_log"] == [key]
    assert kinds(report).isdisjoint({"foreign_maintenance", "missing_epoch"})
    assert (report.ok, report.log_files) == (False, len(log_keys(clocked)))
    assert report.live_parts > 0
    for problem in report.problems:
        if problem.kind == "orphans":
            assert "Keep them" in problem.message, "a log file that cannot be read may name them"


def test_the_epoch_of_an_unreadable_log_file_is_not_missing(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    for column in ("a", "b", "c"):
        table.insert([{column: 1}])
    assert table.handle.read().live_epochs == {1, 2, 3}
    first, second, third = log_keys(clocked)
    for key in (first, second):
        replace(clocked, key, clocked.get(key).body[:-1])
    assert kinds(table.verify()) == {"damaged_log"}
    replace(clocked, third, clocked.get(third).body[:-1])
    assert kinds(table.verify()) == {"damaged_log"}, "the claims are of epochs that are there"


def sections(store: ClockedStore) -> str:
    key = head(store)
    change_header(store, key, tmb=None, n=None)  # its log tombstones are in no section, and the lines are not counted
    return key


def epoch_name(store: ClockedStore) -> str:
    key = head(store)
    renamed = key.replace(".e3.", ".e7.")
    store.objects[renamed] = store.objects.pop(key)
    return renamed


def name_time(store: ClockedStore) -> str:
    key = newest_append(store)
    renamed = key.replace("/_log/18", "/_log/19")
    store.objects[renamed] = store.objects.pop(key)
    return renamed


def missing_epoch(store: ClockedStore) -> str:
    change_header(store, head(store), le=[*read_log(store, head(store)).live_epochs, 17])
    return head(store)


def markers_disagree(store: ClockedStore) -> str:
    marker = read_log(store, newest_append(store)).markers[0]
    other = msgspec.structs.replace(marker, bytes=marker.bytes + 1)
    put_log(store, LogFile(marker.created_ms, {}, (other,)))
    return marker.key


def schema_conflict(store: ClockedStore) -> str:
    return put_log(store, LogFile(store.clock.now_ms() + 50, {"n": "VARCHAR"}))


def far_ahead(store: ClockedStore) -> str:
    return put_log(store, LogFile(store.clock.now_ms() + DAY_MS, {}))


def v3_readers(store: ClockedStore) -> str:
    merged = read_log(store, head(store))
    dead = next(m for m in merged.markers if m.tombstoned_ms is not None)
    live = msgspec.structs.replace(dead, tombstoned_ms=None)
    put_log(store, LogFile(store.clock.now_ms() + 50, {}, (live,)))
    return dead.key


def damaged_claim(store: ClockedStore) -> str:
    key = store.location.keys.epoch_claim(4)
    store.create(key, b"{")
    return key


def unknown_claim(store: ClockedStore) -> str:
    store.create("table/_claims/lease-7.json", b"{}")
    return "table/_claims/lease-7.json"


@pytest.mark.parametrize(
    "damage", [sections, epoch_name, missing_epoch, markers_disagree, schema_conflict, v3_readers, damaged_claim]
)
def test_a_broken_log_is_an_error(table: Table, clocked: ClockedStore, damage: Damage) -> None:
    key = damage(clocked)
    assert ("error", damage.__name__, key) in {(p.severity, p.kind, p.key) for p in table.verify().problems}


@pytest.mark.parametrize("damage", [name_time, far_ahead, unknown_claim])
def test_harmless_damage_is_a_warning(table: Table, clocked: ClockedStore, damage: Damage) -> None:
    key = damage(clocked)
    report = table.verify()
    assert [(p.severity, p.kind, p.key) for p in report.problems] == [("warning", damage.__name__, key)]
    assert report.ok


# ------------------------------------------------------------------------------------------------ foreign maintenance


def foreign(report: VerifyReport) -> list[str]:
    actual = [p for p in report.problems if p.kind == "foreign_maintenance"]
    assert all("stop it" in p.message and "restore the log files" in p.message for p in actual)
    return [p.key for p in actual]


def test_two_log_files_of_one_epoch_are_foreign_maintenance(table: Table, clocked: ClockedStore) -> None:
    file = read_log(clocked, head(clocked))
    other = put_log(clocked, msgspec.structs.replace(file, t_ms=file.t_ms + 1), writer="z.e3")
    assert foreign(table.verify()) == [other]


def test_epochs_that_vanish_while_claims_remain_are_foreign_maintenance(table: Table, clocked: ClockedStore) -> None:
    keys = clocked.location.keys
    epochs = [k for k in log_keys(clocked) if ".e" in k]
    # A merge of IceDB v3 puts all markers in a new log file without epochs, and deletes the old log files.
    state = table.handle.read(everything=True)
    file = LogFile(state.newest_ms + 1, dict(state.schema), tuple(m for _, m in sorted(state.parts.items())))
    put_log(clocked, file, writer="v3-host")
    clocked.delete(epochs)
    assert set(foreign(table.verify())) == {keys.epoch_claim(n) for n in (1, 2, 3)}


def test_a_single_missing_epoch_is_detected_by_its_parts(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    table.insert([{"k": 1, "n": 1}])
    [first] = log_keys(clocked)
    file = read_log(clocked, first)
    clocked.delete([first])
    put_log(clocked, LogFile(file.t_ms + 1, file.schema, file.markers), writer="v3-host")
    assert foreign(table.verify()) == [clocked.location.keys.epoch_claim(1)]


# ------------------------------------------------------------------------------------------------ all at once


def test_every_problem_is_listed(table: Table, clocked: ClockedStore) -> None:
    PART_DAMAGES["missing_part"](clocked, live_part(clocked))
    damages = [damaged_claim, unknown_claim, markers_disagree, schema_conflict, far_ahead, stray_file]
    for damage in damages:
        damage(clocked)
    names = {d.__name__ for d in damages} - {"stray_file"} | {"damaged_log", "missing_part"}
    report = table.verify()
    assert kinds(report) == names
    severities = [p.severity for p in report.problems]
    assert severities == sorted(severities), "errors first"
    assert "DAMAGED" in str(report)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_verify_between_any_two_requests_of_a_writer_finds_nothing(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    store = FaultyStore(clocked)
    checker = open_table(clocked, clock)
    reports: list[VerifyReport] = []
    store.before = lambda request: reports.append(checker.verify())
    writer = open_table(store, clock)
    fill(writer)
    writer.insert([{"k": 1, "n": 5}], txn=("app", 1))
    writer.cleanup(grace_ms=0, allow_short_grace=True)
    assert len(reports) > 50
    assert {r.problems for r in reports} == {()}


@pytest.mark.long
@pytest.mark.parametrize("deep", [False, True])
def test_a_concurrent_writer_is_not_reported_as_damage(clocked: ClockedStore, clock: ManualClock, deep: bool) -> None:
    writer = create_table(clocked, clock, partition_by=["k"], sort_by=["n"])
    fill(writer)
    store = FaultyStore(clocked)
    checker = open_table(store, clock)
    acted = number = 0

    def act() -> None:
        nonlocal acted
        acted += 1
        writer.insert([{"k": k, "n": 1000 + acted} for k in range(3)])
        writer.merge()
        clock.advance(2 * HOUR_MS)
        writer.cleanup()

    while acted == number:
        number += 1
        act_before(store, act, number=len(store.requests) + number)
        assert checker.verify(deep=deep).problems == ()
    assert number > 8


def at_the_second_listing(store: FaultyStore, act: Callable[[], object]) -> None:
    """Call `act` right before `verify` lists the claims for the second time."""
    claims = store.location.keys.claims_prefix
    act_before(store, lambda: act_before(store, act, kind="list", key=claims), kind="list", key=claims)


def test_damage_repaired_during_verify_is_not_reported(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    key = live_part(clocked)
    kept = clocked.objects.pop(key)
    store = FaultyStore(clocked)
    at_the_second_listing(store, lambda: clocked.objects.update({key: kept}))
    assert open_table(store, clock).verify().problems == ()
    assert key in clocked.objects


def test_only_problems_of_both_listings_are_reported(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    PART_DAMAGES["damaged_part"](clocked, live_part(clocked))
    [missing] = [p.key for p in table.snapshot().parts if p.partition == "k=1"]
    clocked.delete([missing])
    store = FaultyStore(clocked)
    checker = open_table(store, clock)

    def one_goes_and_one_comes() -> None:
        table.drop_partitions(["k=0"])
        clocked.create(clocked.location.keys.epoch_claim(9), b"{")

    assert kinds(checker.verify()) == {"missing_part", "damaged_part"}
    at_the_second_listing(store, one_goes_and_one_comes)
    assert [p.key for p in checker.verify().problems] == [missing]
