"""Rows are stored equally if they are staged in Arrow or in DuckDB."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icedb
from icedb.errors import IceDBError, InvalidBatch
from icedb.sources.batch import Batch
from icedb.sql.connections import connect_sandbox
from icedb.storage.obstore_store import ObjectStore
from icedb.util.clock import SystemClock
from icedb.writer import arrow_rows, batch_loader, part_writer
from icedb.writer.arrow_rows import encode_texts
from icedb.writer.encoding.parquet_encoder import EncodedFile, compact_dictionaries
from icedb.writer.part_writer import put_parts
from icedb.writer.staged_batch import StagedBatch
from icedb.writer.staging import stage_rows

MEMORY_BYTES = 256 * 1024 * 1024
#: The ways of rows: the divisor of the memory for rows in Arrow.
WAYS = {"in DuckDB": 1 << 60, "in Arrow": 4}
TEXTS = [
    None, "", "a", "a\0", "a\0b", "A", "ab", "é", "z", "\U0001f600", "\uffff", "x" * 70, "x" * 70 + "y", " ", "01",
    "1",
]  # fmt: skip


def rows(count: int) -> pa.Table:
    """Return unordered rows of many types, in which `n` is unique."""
    numbers = [(n * 7919) % count for n in range(count)]
    floats = [None, float("nan"), -1.5, 0.0, 1.5, float("-inf"), float("inf")]
    day = dt.datetime(2026, 10, 1)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "text": pa.array([TEXTS[n % len(TEXTS)] for n in numbers]),
            "large": pa.array([TEXTS[n % 7] for n in numbers], pa.large_string()),
            "number": pa.array([floats[n % len(floats)] for n in numbers]),
            "at": pa.array([day + dt.timedelta(hours=n % 100) for n in numbers], pa.timestamp("us")),
            "zoned": pa.array([day + dt.timedelta(hours=n) for n in numbers], pa.timestamp("ms", "UTC")),
            "day": pa.array([(day + dt.timedelta(days=n % 3)).date() for n in numbers]),
            "flag": pa.array([None if n % 5 == 0 else n % 2 == 0 for n in numbers]),
            "price": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(20, 2)),
            "bytes": pa.array([bytes([n % 256]) for n in numbers]),
            "small": pa.array([n % 200 for n in numbers], pa.uint8()),
            "zero": pa.array([0.0 if n % 3 else -0.0 for n in numbers]),
            "nested": pa.array([{"a": n, "b": [str(n), None], "c": {"d": n / 2}} if n % 4 else None for n in numbers]),
            "pairs": pa.array([[("k", n), ("l", None)] for n in numbers], pa.map_(pa.string(), pa.int32())),
        }
    )  # fmt: skip


def stored(
    place: Any, monkeypatch: pytest.MonkeyPatch, way: str, table: pa.Table, **options: Any
) -> list[tuple[str, int, bytes, list[dict[str, Any]], pa.Schema]]:
    """Return the folder, row count, statistics, rows and schema of each part, in the order of markers."""
    target = icedb.Table.create(f"{place.uri}-{way.replace(' ', '-')}", **options)
    with monkeypatch.context() as patch:
        patch.setattr(batch_loader, "_HELD_DIVISOR", WAYS[way])
        context = target.handle.write_context()
        with stage_rows(context, Batch(table.to_reader()), memory_bytes=MEMORY_BYTES) as stage:
            assert (stage.in_arrow is not None) == (way == "in Arrow")
            written = put_parts(stage, store=target.handle.store, clock=SystemClock())
            [(streamed,)] = duckdb.from_arrow(stage.stream()).count("*").fetchall()
    assert streamed == table.num_rows
    parts = []
    for marker in written.markers:
        part = pq.read_table(pa.BufferReader(target.handle.store.get(marker.key).body))
        folder = marker.key.rpartition("/")[0].partition("/_data/")[2]
        parts.append(
            (
                folder,
                marker.rows or 0,
                b"" if isinstance(marker.stats, msgspec.UnsetType) else bytes(marker.stats),
                part.to_pylist(),
                part.schema,
            )
        )
    return parts


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"partition_by": ["text"], "sort_by": ["large", "number", "n"]},
        {"partition_by": ["TEXT AS t", 'CAST("at" AS DATE) AS d'], "sort_by": ["text", "bytes", "n"]},
        {"partition_by": ["nested.a % 3 AS m"], "sort_by": ["flag", "zoned", "price", "n"], "required": ["n", "pairs"]},
        {"sort_by": ["n"]},
        {},
    ],
    ids=["by text", "by text and day", "by nested", "sorted", "as they are"],
)
def test_rows_are_stored_equally(memory: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setattr(arrow_rows, "ROWS_AT_A_TIME", 100)
    monkeypatch.setattr(batch_loader, "ROWS_AT_A_TIME", 130)
    table = rows(509).slice(9)
    in_duckdb, in_arrow = (stored(memory, monkeypatch, way, table, **options) for way in WAYS)
    assert sum(count for _, count, *_ in in_duckdb) == 500
    assert repr(in_arrow) == repr(in_duckdb), "NaN is equal only as text"


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.text(max_size=6)), min_size=1))
def test_ranks_have_the_order_of_texts(texts: list[str | None]) -> None:
    encoded = encode_texts(pa.chunked_array([pa.array(texts[:3], pa.string()), pa.array(texts[3:], pa.string())]))
    assert encoded.type == pa.dictionary(pa.int16(), pa.string())
    assert encoded.to_pylist() == texts
    ranks = pa.table({"text": pa.array(texts, pa.string()), "rank": encoded.combine_chunks().indices})
    by_text = duckdb.from_arrow(ranks).project("text").order("text").fetchall()
    by_rank = duckdb.from_arrow(ranks).order("rank").project("text").fetchall()
    assert by_rank == by_text


@pytest.mark.parametrize(
    "texts", [map(str, range(5_000)), ["a"] * 20_000 + [str(n) for n in range(70_000)]], ids=["at once", "late"]
)
def test_many_values_have_no_ranks(texts: Iterable[str]) -> None:
    assert encode_texts(pa.chunked_array([pa.array(texts)])).type == pa.string()


@pytest.mark.parametrize("nulls", [False, True])
def test_a_part_has_only_its_own_values_of_a_dictionary(nulls: bool) -> None:
    texts = [None if nulls and n % 5 == 0 else f"tenant {n % 40}" for n in range(1_000)]
    rows = pa.table({"tenant": encode_texts(pa.chunked_array([pa.array(texts)]))})
    part = compact_dictionaries(rows.filter(pc.equal(rows["tenant"], "tenant 7")))
    assert part["tenant"].chunk(0).dictionary.to_pylist() == ["tenant 7"]
    assert compact_dictionaries(rows)["tenant"].to_pylist() == texts


def test_invalid_utf8_is_rejected(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    offsets = pa.array([0, 2, 4], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab\xff\xfe")])
    with pytest.raises(InvalidBatch):
        table.insert(pa.table({"n": [2, 1], "text": broken}))
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


def test_a_value_that_cannot_be_converted_leaves_no_part(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, partition_by=["n"])
    late = pa.array([0] * 9 + [2**62], pa.timestamp("s"))
    with pytest.raises(InvalidBatch, match="cannot be read"):
        table.insert(pa.table({"n": range(10), "at": late}))
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


@pytest.mark.parametrize("failing", ["encoding", "putting"])
def test_if_one_part_fails_no_part_stays(memory: Any, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    table = icedb.Table.create(memory.uri, partition_by=["n"])
    lock, calls = threading.Lock(), [0]

    def fails_at_the_fifth() -> None:
        with lock:
            calls[0] += 1
            number = calls[0]
        if number == 5:
            raise IceDBError("the fifth")

    encode, put = StagedBatch.encode, part_writer.put_part

    def encode_some(stage: StagedBatch, *args: Any) -> Any:
        fails_at_the_fifth()
        return encode(stage, *args)

    def create(store: ObjectStore, key: str, file: EncodedFile) -> part_writer.StoredPart:
        stored_part = put(store, key, file)
        fails_at_the_fifth()
        return stored_part

    if failing == "encoding":
        monkeypatch.setattr(StagedBatch, "encode", encode_some)
    else:
        monkeypatch.setattr(part_writer, "put_part", create)
    with pytest.raises(IceDBError, match="the fifth"):
        table.insert(pa.table({"n": range(40)}))
    assert 5 <= calls[0] < 40, "the other parts are not tried"
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


def test_a_cursor_is_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.csv").write_text("a\n1\n")
    with connect_sandbox(tmp_path / "inside") as con, con.cursor() as cursor:
        for sql in (f"SELECT * FROM '{tmp_path / 'outside.csv'}'", "SET threads = 1", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                cursor.execute(sql)
        assert cursor.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
