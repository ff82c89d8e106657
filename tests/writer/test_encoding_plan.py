"""The selected encodings: a dictionary where values repeat, also in a sample that has seen all of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb.format.table_spec import TableSpec
from icedb.writer.encoding.encoding_plan import SAMPLE_ROWS, EncodingPlan, Plans, plan_encodings
from icedb.writer.encoding.parquet_encoder import INSERT_LEVEL, ParquetSettings, encode

CHANCE = np.random.default_rng(7)


def plan(values: Sequence[Any] | pa.Array, rows: int) -> EncodingPlan:
    sample = pa.table({"v": values}).slice(0, SAMPLE_ROWS)
    return plan_encodings(uuid.uuid4().hex, sample, rows, small_plans=Plans(1))


@pytest.mark.parametrize("rows", [1_000, 100_000])
def test_a_column_of_few_values_has_a_dictionary(rows: int) -> None:
    pages = pa.array(CHANCE.choice(["home", "search", "product", "cart"], rows))
    assert plan(pages, rows).dictionaries == ("v",)


def test_a_column_of_distinct_values_has_none() -> None:
    texts = [f"{number:032x}" for number in CHANCE.integers(0, 2**62, 10_000)]
    assert plan(texts, 1_000_000) == EncodingPlan((), {})
    assert plan(np.arange(10_000), 1_000_000) == EncodingPlan((), {"v": "DELTA_BINARY_PACKED"})


def test_values_that_the_sample_has_not_seen_count() -> None:
    """A sample of 4,096 rows has few of 200,000 values twice, and a row group of them has no small dictionary."""
    users = [f"user-{number}" for number in CHANCE.integers(0, 200_000, 50_000)]
    assert plan(users, 100_000).dictionaries == ()


@pytest.mark.parametrize("rows", [500, 1_500, 20_000])
@pytest.mark.parametrize("values", [4, 300, 100_000])
def test_the_selection_is_almost_the_smallest_file(rows: int, values: int) -> None:
    table = pa.table({"v": [f"value {number}" for number in CHANCE.integers(0, values, rows)]})
    settings = ParquetSettings(uuid.uuid4().hex, TableSpec(), INSERT_LEVEL)
    selected = encode([table], settings, rows=rows, path=None).bytes
    smallest = min(_bytes(table, use_dictionary=use) for use in (True, False))
    assert selected < 1.06 * smallest + 100  # the names of sort columns, the page index


def _bytes(table: pa.Table, *, use_dictionary: bool) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", compression_level=1, use_dictionary=use_dictionary, store_schema=False
    )
    return int(sink.getvalue().size)
