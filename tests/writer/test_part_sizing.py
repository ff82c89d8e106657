"""A partition that is too large for one part becomes several."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import icedb
from icedb.operations.commits.publish import publish_append
from icedb.util.clock import SystemClock
from icedb.writer.part_writer import WrittenParts, write_parts

ROWS = 60_000


def rows() -> pa.Table:
    """Return unordered rows, half in one partition and the others in many."""
    numbers = [(n * 7919) % ROWS for n in range(ROWS)]
    return pa.table({"n": numbers, "p": [0 if n < ROWS // 2 else n % 50 + 1 for n in numbers],
                     "text": [f"{n * 2654435761 % 2**32:08x}" for n in numbers]})  # fmt: skip


def write(table: icedb.Table, part_bytes: int | None) -> WrittenParts:
    handle = table.handle
    return write_parts(
        handle.write_context(), rows().to_reader(), store=handle.store, clock=SystemClock(), part_bytes=part_bytes
    )


@pytest.fixture
def table(memory: Any) -> icedb.Table:
    return icedb.Table.create(memory.uri, partition_by=["p"], sort_by=["n"])


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_have_about_the_requested_size_and_each_row_once(table: icedb.Table) -> None:
    whole = write(table, None)
    [large] = [m for m in whole.markers if "/p=0/" in m.key]
    written = write(table, large.bytes // 3)
    pieces = [m for m in written.markers if "/p=0/" in m.key]
    assert len(whole.markers) == 51
    assert len(written.markers) == 50 + len(pieces)
    assert 3 <= len(pieces) <= 5
    assert all(large.bytes // 7 < m.bytes < large.bytes // 2 for m in pieces)
    assert sum(m.rows or 0 for m in pieces) == ROWS // 2
    publish_append(table.handle, written)
    assert table.query("SELECT count(*), count(DISTINCT n), sum(n) FROM t").fetchall() == [
        (ROWS, ROWS, ROWS * (ROWS - 1) // 2)
    ]
    assert table.verify(deep=True).problems == ()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_each_part_is_sorted_and_has_exact_statistics(table: icedb.Table) -> None:
    written = write(table, 20_000)
    publish_append(table.handle, written)
    bounds = []
    for part in table.snapshot().files("p = 0"):
        [(low, high, nulls)] = [json.loads(bytes(table.handle.read().parts[part.key].stats))["n"]]
        [(least, most, count)] = table.query(
            f"SELECT min(n), max(n), count(*) FROM t WHERE p = 0 AND n BETWEEN {low} AND {high}"
        ).fetchall()
        assert (least, most, count, nulls) == (low, high, part.rows, 0)
        bounds.append((low, high))
    bounds.sort()
    assert len(bounds) > 1
    assert all(high < low for (_, high), (low, _) in pairwise(bounds))


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("width", [4_000, 16_000])
def test_wide_rows_are_split_within_little_memory(memory: Any, width: int) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    handle = table.handle
    text = [hashlib.sha512(str(n).encode()).hexdigest() * (width // 128) for n in range(2_000)]
    batches = pa.table({"n": range(2_000), "text": text}).to_batches(max_chunksize=100)
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    written = write_parts(
        handle.write_context(), reader, store=handle.store, clock=SystemClock(), memory_bytes=192 * 1024 * 1024,
        threads=1, part_bytes=100_000,
    )  # fmt: skip
    assert len(written.markers) > 1
    assert all(m.bytes < 300_000 for m in written.markers)
    publish_append(handle, written)
    assert table.query("SELECT count(*), count(DISTINCT text) FROM t").fetchall() == [(2_000, 2_000)]


@pytest.mark.sampled(days=3)
def test_a_batch_without_rows_has_no_parts(table: icedb.Table) -> None:
    handle = table.handle
    nothing = rows().slice(0, 0).to_reader()
    written = write_parts(handle.write_context(), nothing, store=handle.store, clock=SystemClock(), part_bytes=1)
    assert written.markers == ()
