"""All engines return the same rows: of a table that has grown, at all times, and during merges and cleanup."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date

import pyarrow as pa
import pytest

from icedb import Snapshot, Table
from tests.support.object_stores.stores import Place
from tests.support.site.without_us import Live, PartReader, Refused
from tests.support.tables.attached_tables import created
from tests.support.tables.engines import ENGINES, EngineReader, Row, without_us
from tests.support.tables.reader_tables import widened

pytestmark = pytest.mark.process

COLUMNS = ["id", "d", "tenant", "price", "later"]
# Short enough that parts are deleted during the test, and longer than a query on an idle machine.
GRACE_MS = 3_000
ROWS_PER_BATCH = 40
SECONDS_MAX = 240


def batch(number: int) -> pa.Table:
    """Return rows whose ids follow those of the batch before, so that the number of rows determines them."""
    ids = range(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array([date(2026, 11, 20 + i % 3) for i in ids]),
        "tenant": pa.array([None if i % 7 == 0 else f"tenant {i % 4}/é" for i in ids]),
        "price": pa.array([None if i % 5 == 0 else i / 4 for i in ids], pa.float64()),
    }
    if number >= 2:  # a later column
        columns["later"] = pa.array([f"x{i}" for i in ids])
    return pa.table(columns)


def row(i: int) -> Row:
    """Return the row with this id as a query returns it."""
    tenant = None if i % 7 == 0 else f"tenant {i % 4}/é"
    price = None if i % 5 == 0 else i / 4
    return (i, date(2026, 11, 20 + i % 3), tenant, price, f"x{i}" if i >= 2 * ROWS_PER_BATCH else None)


def rows_of(ids: range, days: tuple[int, ...] = (20, 21, 22)) -> list[Row]:
    return sorted((row(i) for i in ids if 20 + i % 3 in days), key=repr)


def create(place: Place) -> Table:
    return created(place, partition_by=["day AS d", "tenant"], sort_by=["id"])


@pytest.fixture
def history(shared_place: Place) -> tuple[Place, list[tuple[Snapshot, list[Row]]]]:
    """A table, and its snapshots after each operation with the expected rows."""
    table = create(shared_place)
    snapshots: list[tuple[Snapshot, list[Row]]] = []

    def note(expected: list[Row]) -> None:
        snapshots.append((table.snapshot(), expected))
        time.sleep(0.002)  # the next commit is in another millisecond

    for number in range(3):
        table.insert(batch(number))
        if number != 1:
            note(rows_of(range((number + 1) * ROWS_PER_BATCH)))
    table.merge()
    note(rows_of(range(3 * ROWS_PER_BATCH)))
    table.drop_partitions("d = '2026-11-20'")
    note(rows_of(range(3 * ROWS_PER_BATCH), (21, 22)))
    table.delete(where="id < 10")
    table.merge_log()
    note(rows_of(range(10, 3 * ROWS_PER_BATCH), (21, 22)))
    return shared_place, snapshots


@pytest.mark.sampled(cases=1, days=6)
def test_every_engine_has_the_same_rows_at_every_time(
    history: tuple[Place, list[tuple[Snapshot, list[Row]]]],
) -> None:
    place, snapshots = history
    columns = ["id", "d", "tenant", "price"]
    by_sql, by_node = without_us(place)
    latest = Table.open(place.uri, storage_options=place.storage_options)
    with by_node:
        for snapshot, expected in snapshots:
            then = latest.snapshot(snapshot.as_of_ms)
            assert then.parts == snapshot.parts or then.rows == snapshot.rows
            paths = sorted(p.path for p in then.parts)
            assert sorted(by_sql.live(place.uri, snapshot.as_of_ms)) == paths
            assert sorted(by_node.live(place.uri, snapshot.as_of_ms)) == paths
            for engine in ENGINES:
                assert then.schema == snapshot.schema, "a snapshot has the columns of its time"
                if "later" in snapshot.schema:
                    assert engine.answer(then, COLUMNS) == expected, (engine.name, snapshot)
                else:
                    assert engine.answer(then, columns) == [r[:4] for r in expected], (engine.name, snapshot)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_narrower_types_are_widened_to_those_of_the_table(engine: EngineReader, shared_place: Place) -> None:
    snapshot = widened(shared_place).snapshot()
    columns = ["n", "whole", "small", "double", "count"]
    assert engine.answer(snapshot, columns) == [(1, None, None, None, None), (2, 7, 200, 0.5, 3.0)]


# ------------------------------------------------------------------------------------------ while it is maintained


@contextmanager
def maintained(place: Place) -> Iterator[Counter[str]]:
    """Insert, merge and clean up in another thread until the block ends. Yield the counts of what was done."""
    table = Table.open(place.uri, storage_options=place.storage_options)
    stop = threading.Event()
    errors: list[BaseException] = []
    done = Counter[str]()

    def work() -> None:
        number = 2
        try:
            while not stop.is_set():
                table.insert(batch(number))
                number += 1
                if number % 2:
                    done["merged"] += table.merge().merged_parts
                if number % 3 == 0:
                    table.merge_log()
                    done["deleted"] += len(table.cleanup(grace_ms=GRACE_MS, allow_short_grace=True).deleted_parts)
                stop.wait(0.05)
        except BaseException as error:  # raised in the test
            errors.append(error)
            done["failed"] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(240)
    assert not errors, errors


@pytest.mark.sampled(cases=1, days=6)
def test_every_query_is_exact_while_the_table_is_merged_and_cleaned_up(shared_place: Place) -> None:
    table = create(shared_place)
    for number in range(2):
        table.insert(batch(number))
    for engine in ENGINES:
        engine.answer(table.snapshot(), COLUMNS[:4])  # the first query is slower
    snapshots = set()
    by_sql, by_node = without_us(shared_place)
    with by_node, maintained(shared_place) as done:
        ends = time.monotonic() + SECONDS_MAX
        while not done["failed"] and not (done["merged"] and done["deleted"]) and time.monotonic() < ends:
            for engine in ENGINES:
                snapshot, rows = exact_answer(engine, table)
                snapshots.add(snapshot.id)
                assert rows == [r[:4] for r in rows_of(range(len(rows)))], engine.name
                # An insert with an earlier time may be published later, so a repeated query may contain it.
                assert len(rows) == snapshot.rows or (engine.name == "attached" and len(rows) > (snapshot.rows or 0))
            for reader in (by_sql, by_node):
                parts = live_parts(reader, shared_place.uri).values()
                assert sum(rows or 0 for _, _, rows in parts) % ROWS_PER_BATCH == 0
    assert done["merged"], "nothing was merged meanwhile"
    assert done["deleted"], "nothing was cleaned up meanwhile"
    assert len(snapshots) > 2, "the table did not change"


def live_parts(reader: PartReader, root: str) -> Live:
    """Read the live parts. A listed log file may be deleted before the reader opens it, so it retries."""
    for _ in range(4):
        with suppress(Refused):
            return reader.live(root)
    return reader.live(root)


def exact_answer(engine: EngineReader, table: Table) -> tuple[Snapshot, list[Row]]:
    """Query a new snapshot, and retry if cleanup was faster. The result is never wrong."""
    for _ in range(30):
        started = time.monotonic()
        snapshot = table.snapshot()
        try:
            return snapshot, engine.answer(snapshot, COLUMNS[:4])
        except Exception:
            if (time.monotonic() - started) * 1000 < GRACE_MS:
                raise
    raise AssertionError(f"{engine.name} takes longer than {GRACE_MS} ms for {table.snapshot()!r}")
