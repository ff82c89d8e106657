"""A writer made from docs/format.md alone: the library reads its objects and continues the table."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, check_sound, create_table
from tests.support.site.page_reader import PageReading, read_as_the_page_says

SCHEMA = {"k": "VARCHAR", "n": "BIGINT"}


class PageWriter:
    """The steps of a writer on the page, with JSON and a Parquet library."""

    def __init__(self, store: ClockedStore, clock: ManualClock) -> None:
        self.store, self.clock, self.prefix, self.parts = store, clock, f"{store.location.prefix}/", 0

    def part(self, k: str, *ns: int) -> dict[str, Any]:
        """Put a part; its marker, without a time."""
        buffer = io.BytesIO()
        pq.write_table(pa.table({"k": [k] * len(ns), "n": pa.array(sorted(ns), pa.int64())}), buffer)
        body, self.parts = buffer.getvalue(), self.parts + 1
        key = f"{self.prefix}_data/p={k}/{hashlib.sha256(str(-self.parts).encode()).hexdigest()[:32]}.parquet"
        self.store.create(key, body)
        stats = {"n": [min(ns), max(ns), 0]}
        return {"p": key, "b": len(body), "r": len(ns), "s": stats, "h": hashlib.sha256(body).hexdigest()[:32]}

    def log_file(
        self,
        markers: Sequence[dict[str, Any]],
        *,
        replaces: Sequence[str] = (),
        epoch: int | None = None,
        **header: object,
    ) -> tuple[str, str]:
        """Key and content of a log file, not put yet. Markers without a time are new."""
        t = self.clock.now_ms()
        tombstones = [{"p": key, "t": t} for key in replaces]
        first: dict[str, object] = {"v": 1, "t": t, "sch": 1, "f": 2 + len(tombstones), **header}
        first |= {"n": 2 + len(tombstones) + len(markers)} | ({"tmb": 2} if tombstones else {})
        first |= {} if epoch is None else {"e": epoch}
        lines = [first, SCHEMA, *tombstones, *({"t": t, **m} for m in markers)]
        merged = "_m" if tombstones or any("tmb" in m for m in markers) else ""
        writer = "page-1-00000000cafe" + ("" if epoch is None else f".e{epoch}")
        return f"{self.prefix}_log/{t}{merged}_{writer}.jsonl", "\n".join(map(json.dumps, lines))

    def put(self, key: str, body: str) -> None:
        self.store.create(key, body.encode())

    def claim_epoch(self, key: str, body: str, epoch: int) -> None:
        claim = {"key": key, "t": self.clock.now_ms(), "body": body}
        self.put(f"{self.prefix}_claims/epoch-{epoch}.json", json.dumps(claim))

    def claim_txn(self, application: str, sequence: int, markers: Sequence[dict[str, Any]]) -> tuple[str, str]:
        key, body = self.log_file(markers, txn={application: [sequence, self.clock.now_ms()]})
        claim = {"application": application, "sequence": sequence, "key": key, "t": self.clock.now_ms(), "body": body}
        digest = hashlib.sha256(application.encode()).hexdigest()[:32]
        self.put(f"{self.prefix}_claims/txn-{digest}-{sequence}.json", json.dumps(claim))
        return key, body

    def read(self) -> PageReading:
        stored_ms = {key: o.stored_ms for key, o in self.store.objects.items()}
        bodies = {key: o.body for key, o in self.store.objects.items()}
        return read_as_the_page_says(bodies, self.prefix, stored_ms=stored_ms, now_ms=self.clock.now_ms())


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    table = create_table(clocked, clock, partition_by=["k AS p"], sort_by=["n"])
    table.insert([{"k": "1", "n": 1}, {"k": "2", "n": 2}])
    clock.advance(MINUTE_MS)
    return table


@pytest.fixture
def writer(table: Table, clocked: ClockedStore, clock: ManualClock) -> PageWriter:
    return PageWriter(clocked, clock)


def rows(table: Table) -> list[int]:
    return [n for (n,) in table.query("SELECT n FROM t ORDER BY n").fetchall()]


def sound(table: Table) -> bool:
    check_sound(table.handle.store)
    report = table.verify(deep=True)
    return report.ok and report.unchecked_parts == 0


def test_a_plain_append_made_from_the_page_is_read_and_merged(table: Table, writer: PageWriter) -> None:
    writer.put(*writer.log_file([writer.part("1", 7, 8)]))
    assert rows(table) == [1, 2, 7, 8]
    writer.clock.advance(MINUTE_MS)
    assert table.merge().rows == 3
    assert rows(table) == [1, 2, 7, 8]
    assert sound(table)


def drop_of_1(writer: PageWriter, epoch: int) -> tuple[str, str]:
    """Commit exclusively: tombstone the partition and carry every marker of the replaced log files."""
    state, t = writer.read(), writer.clock.now_ms()
    markers = [{**m, "tmb": t} if "/p=1/" in p else m for p, m in sorted(state.markers.items())]
    return writer.log_file(markers, replaces=state.log_files, epoch=epoch, le=[epoch])


def test_an_exclusive_commit_made_from_the_page_is_the_next_epoch(table: Table, writer: PageWriter) -> None:
    before_ms = table.snapshot().as_of_ms
    key, body = drop_of_1(writer, 2)
    writer.claim_epoch(key, body, 2)
    writer.put(key, body)
    assert rows(table) == [2]
    writer.clock.advance(MINUTE_MS)
    assert table.insert([{"k": "2", "n": 3, "new": "x"}]).epoch == 3
    assert [n for (n,) in table.query("SELECT n FROM t ORDER BY n", as_of=before_ms).fetchall()] == [1, 2]
    assert sound(table)
    writer.clock.advance(2 * HOUR_MS)
    assert len(table.cleanup().deleted_parts) == 1
    assert sound(table)


def test_column_times_made_from_the_page_are_those_of_snapshots(table: Table, writer: PageWriter) -> None:
    first_ms, state = writer.read().came["n"], writer.read()
    markers = [m for _, m in sorted(state.markers.items())]
    times = {"st": first_ms, "ct": {"n": first_ms + 2}}
    key, body = writer.log_file(markers, replaces=state.log_files, epoch=2, le=[2], **times)
    writer.claim_epoch(key, body, 2)
    writer.put(key, body)
    for at_ms, columns in ((first_ms + 1, {"k"}), (first_ms + 2, {"k", "n"})):
        assert set(table.snapshot(at_ms).schema) == columns == writer.read().columns(at_ms)
    writer.clock.advance(MINUTE_MS)
    table.merge_log()
    table.drop_partitions(["p=1"])
    assert set(table.snapshot(first_ms + 1).schema) == {"k"} == writer.read().columns(first_ms + 1)
    assert sound(table)


@pytest.mark.parametrize(("minutes", "expected"), [(1, [2, 3]), (6, [1, 2, 3])])
def test_an_abandoned_claim_is_published_or_voided_by_its_age(
    table: Table, writer: PageWriter, minutes: int, expected: list[int]
) -> None:
    key, body = drop_of_1(writer, 2)
    writer.claim_epoch(key, body, 2)
    writer.clock.advance(minutes * MINUTE_MS)
    assert table.insert([{"k": "2", "n": 3, "new": "x"}]).epoch == 3
    assert rows(table) == expected
    assert (b'"void":true' in writer.store.objects[key].body) == (minutes > 5)
    assert (writer.read().epoch, sound(table)) == (3, True)


@pytest.mark.parametrize("minutes", [1, 6])
def test_an_abandoned_transaction_is_completed_as_claimed(table: Table, writer: PageWriter, minutes: int) -> None:
    key, body = writer.claim_txn("app", 4, [writer.part("2", 7)])
    writer.clock.advance(minutes * MINUTE_MS)
    assert table.insert([{"k": "1", "n": 99}], txn=("app", 4)).repeated
    assert rows(table) == [1, 2, 7]
    stored = writer.store.objects[key].body.decode()
    assert stored == body if minutes <= 5 else stored.endswith("\n{}"), "the key has this content or is void"
    assert writer.read().txn == {"app": 4}
    assert sound(table)


def test_a_transaction_made_from_the_page_is_not_repeated(table: Table, writer: PageWriter) -> None:
    writer.put(*writer.claim_txn("app", 4, [writer.part("2", 7)]))
    assert table.insert([{"k": "1", "n": 99}], txn=("app", 4)).repeated
    assert not table.insert([{"k": "1", "n": 100}], txn=("app", 5)).repeated
    assert rows(table) == [1, 2, 7, 100]


def test_a_pin_made_from_the_page_keeps_its_parts(table: Table, writer: PageWriter) -> None:
    at = table.snapshot().as_of_ms
    pin = {"name": "mine", "as_of": at, "created": writer.clock.now_ms(), "expires": None}
    writer.put(f"{writer.prefix}_claims/pin-mine.json", json.dumps(pin))
    table.drop_partitions(["p=1"])
    writer.clock.advance(MINUTE_MS)
    table.insert([{"k": "2", "n": 3}])
    table.drop_partitions(["p=2"])
    writer.clock.advance(2 * HOUR_MS)
    report = table.cleanup()
    assert (report.kept_for_pins, len(report.deleted_parts)) == (2, 1)
    assert at < report.horizon_ms
    assert sorted(table.query("SELECT n FROM t", as_of=at).fetchall()) == [(1,), (2,)]
    assert writer.read().live(at) == {p.key for p in table.snapshot(at).parts}
