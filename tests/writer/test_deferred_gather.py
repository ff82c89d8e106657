"""Rows are stored alike whether they are sorted whole, gathered from what is held, or loaded once they are ordered."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
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
from icedb.writer import batch_loader, deferred_gather, part_writer, staging
from icedb.writer.part_writer import put_parts
from icedb.writer.staging import StagedBatch, stage_rows

MEMORY_BYTES = 256 * 1024 * 1024
#: How rows go: constants of the modules, and whether they are gathered as they are encoded.
WAYS = {
    "sorted whole": ({"_HELD_PART": 1 << 60}, {}, False),
    "gathered": ({}, {"_GATHER_ROWS_MIN": 0}, True),
    "loaded": ({}, {"_GATHER_ROWS_MIN": 1 << 60}, False),
}
TEXTS = [
    None,
    "",
    "a",
    "a\0",
    "a\0b",
    "A",
    "ab",
    "é",
    "z",
    "\U0001f600",
    "\uffff",
    "x" * 70,
    "x" * 70 + "y",
    " ",
    "01",
    "1",
]


def rows(count: int) -> pa.Table:
    """Rows of many types; `n` tells each from the others, and they are in no order."""
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
    """Of each part, in the order of their markers: its folder, number of rows, statistics, rows and schema."""
    target = icedb.Table.create(f"{place.uri}-{way.replace(' ', '-')}", **options)
    of_incoming, of_staging, is_gathered = WAYS[way]
    with monkeypatch.context() as patch:
        for module, constants in ((batch_loader, of_incoming), (staging, of_staging)):
            for name, value in constants.items():
                patch.setattr(module, name, value)
        context = target.handle.write_context()
        with stage_rows(context, Batch(table.to_reader()), memory_bytes=MEMORY_BYTES) as stage:
            assert (stage.held is not None) == is_gathered
            written = put_parts(stage, store=target.handle.store, clock=SystemClock())
            [(streamed,)] = duckdb.from_arrow(stage.stream()).count("*").fetchall()
    assert streamed == table.num_rows
    found = []
    for marker in written.markers:
        part = pq.read_table(pa.BufferReader(target.handle.store.get(marker.key).body))
        folder = marker.key.rpartition("/")[0].partition("/_data/")[2]
        found.append(
            (
                folder,
                marker.rows or 0,
                b"" if isinstance(marker.stats, msgspec.UnsetType) else bytes(marker.stats),
                part.to_pylist(),
                part.schema,
            )
        )
    return found


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
def test_rows_are_stored_alike(memory: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setattr(deferred_gather, "ROWS_AT_A_TIME", 100)
    monkeypatch.setattr(batch_loader, "ROWS_AT_A_TIME", 130)
    table = rows(509).slice(9)
    whole, gathered, loaded = (stored(memory, monkeypatch, way, table, **options) for way in WAYS)
    assert sum(count for _, count, *_ in whole) == 500
    assert repr(gathered) == repr(whole), "of NaN only the texts are equal"
    assert repr(loaded) == repr(whole)


@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.text(max_size=6))))
def test_ranks_have_the_order_of_texts(texts: list[str | None]) -> None:
    ranks = deferred_gather.encode_ranks(
        pa.chunked_array([pa.array(texts[:3], pa.string()), pa.array(texts[3:], pa.string())])
    )
    assert ranks is not None
    both = duckdb.from_arrow(pa.table({"text": pa.array(texts, pa.string()), "rank": ranks.ranks}))
    by_text = both.project("text").order("text").fetchall()
    by_rank = both.order("rank").project("CAST(rank AS VARCHAR)").fetchall()
    assert [ranks.text(rank) for (rank,) in by_rank] == [text for (text,) in by_text]


def test_many_values_have_no_ranks() -> None:
    assert deferred_gather.encode_ranks(pa.chunked_array([pa.array(map(str, range(5_000)))])) is None
    late = ["a"] * 20_000 + [str(n) for n in range(70_000)]
    assert deferred_gather.encode_ranks(pa.chunked_array([pa.array(late)])) is None
    some = deferred_gather.encode_ranks(pa.chunked_array([pa.array([str(n) for n in range(700)])]))
    assert some is not None
    assert some.ranks.type == pa.uint16()


def test_text_that_is_none_is_refused(memory: Any) -> None:
    table = icedb.Table.create(memory.uri, sort_by=["n"])
    offsets = pa.array([0, 2, 4], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab\xff\xfe")])
    with pytest.raises(InvalidBatch):
        table.insert(pa.table({"n": [2, 1], "text": broken}))
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


def test_a_value_that_cannot_be_converted_leaves_nothing(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_GATHER_ROWS_MIN", 0)
    table = icedb.Table.create(memory.uri, partition_by=["n"])
    late = pa.array([0] * 9 + [2**62], pa.timestamp("s"))
    with pytest.raises(InvalidBatch, match="cannot be read"):
        table.insert(pa.table({"n": range(10), "at": late}))
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


@pytest.mark.parametrize("failing", ["encoding", "putting"])
def test_when_one_part_fails_none_stays(memory: Any, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    table = icedb.Table.create(memory.uri, partition_by=["n"])
    lock, calls = threading.Lock(), [0]

    def fails_at_the_fifth() -> None:
        with lock:
            calls[0] += 1
            number = calls[0]
        if number == 5:
            raise IceDBError("the fifth")

    write, put = StagedBatch.write, part_writer.put_part

    def encode(stage: StagedBatch, path: Path, first: int, last: int, *, level: int | None = None) -> int:
        fails_at_the_fifth()
        return write(stage, path, first, last, level=level)

    def create(store: ObjectStore, key: str, path: Path) -> part_writer.StoredPart:
        stored_part = put(store, key, path)
        fails_at_the_fifth()
        return stored_part

    if failing == "encoding":
        monkeypatch.setattr(StagedBatch, "write", encode)
    else:
        monkeypatch.setattr(part_writer, "put_part", create)
    with pytest.raises(IceDBError, match="the fifth"):
        table.insert(pa.table({"n": range(40)}))
    assert 5 <= calls[0] < 40, "the others are not tried"
    assert list(table.handle.store.list(table.handle.location.keys.data_prefix)) == []


def test_a_cursor_is_in_the_sandbox_too(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.csv").write_text("a\n1\n")
    with connect_sandbox(tmp_path / "inside") as con, con.cursor() as cursor:
        for sql in (f"SELECT * FROM '{tmp_path / 'outside.csv'}'", "SET threads = 1", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                cursor.execute(sql)
        assert cursor.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
