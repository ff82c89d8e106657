"""A partition that is too large for one part becomes several."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import icedb
from icedb.clock import SystemClock
from icedb.parts import WrittenParts, write_parts
from icedb.publishing import publish_append

ROWS = 60_000


def rows() -> pa.Table:
    """Half of the rows are of one partition, the others of many; in no order."""
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


def test_parts_are_about_as_large_as_they_shall_be_and_hold_each_row_once(table: icedb.Table) -> None:
    whole = write(table, None)
    [large] = [m for m in whole.markers if "/p=0/" in m.key]
    written = write(table, large.bytes // 3)
    pieces = [m for m in written.markers if "/p=0/" in m.key]
    assert len(whole.markers) == 51
    assert len(written.markers) == 50 + len(pieces)
    assert len(pieces) == 2  # never fewer rows than are measured
    assert sum(m.rows or 0 for m in pieces) == ROWS // 2
    publish_append(table.handle, written)
    assert table.query("SELECT count(*), count(DISTINCT n), sum(n) FROM t").fetchall() == [
        (ROWS, ROWS, ROWS * (ROWS - 1) // 2)
    ]
    assert table.verify(deep=True).problems == ()


def test_each_piece_is_sorted_and_says_what_it_holds(table: icedb.Table) -> None:
    written = write(table, 1)
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


def test_a_batch_without_rows_has_no_parts(table: icedb.Table) -> None:
    handle = table.handle
    nothing = rows().slice(0, 0).to_reader()
    written = write_parts(handle.write_context(), nothing, store=handle.store, clock=SystemClock(), part_bytes=1)
    assert written.markers == ()
