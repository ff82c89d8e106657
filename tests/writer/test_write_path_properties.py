"""Random batches are stored and merged as plain DuckDB would: rows, order, partitions, statistics, types, footers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import icedb
from icedb.format.records import Marker
from icedb.operations.rewrite import arrow_merge
from icedb.operations.rewrite.arrow_merge import MergeInputs
from icedb.sql.column_stats import encode_statistics
from icedb.storage.parts import Part
from icedb.util.clock import SystemClock
from icedb.writer import arrow_rows, batch_loader
from icedb.writer.part_writer import write_parts
from tests.support.tables.random_batches import RandomBatch, random_batches

MEMORY_BYTES = 256 * 1024 * 1024
#: The ways of a batch: the divisor of the memory for rows in Arrow.
WAYS = {"in DuckDB": 1 << 60, "in Arrow": 4}
#: The ways of a merge: whether all rows fit into memory, and whether a row group of each part does.
MERGES = {"at once": (True, False), "k-way": (False, True), "in DuckDB": (False, False)}
NULL_PATH = "__HIVE_DEFAULT_PARTITION__"
#: Types whose bounds are in markers.
BOUNDED = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN", "VARCHAR",
    "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "FLOAT", "DOUBLE",
)  # fmt: skip
#: Types by whose order partitions follow each other.
ORDERED = (*BOUNDED[:-3], "FLOAT", "DOUBLE")
#: Footers are checked of so many files.
FILES_MAX = 40
STORED_AS = {"TIMESTAMP_S": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP", "FLOAT[2]": "FLOAT[]"}
#: Partition expressions over the unique `id` of a row, without a column, or over a column that the batch lacks.
EXPRESSIONS = [
    "id % 3", "id % 50", "'x'", "1.50", "NULL::INTEGER", "id % 2 = 0", "(id % 5)::DECIMAL(9,2) / 4",
    "(id % 3)::DECIMAL(4,1)",
    "CASE id % 3 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN -1.5 END", "CASE WHEN id % 4 < 2 THEN 'a/b=c' ELSE '' END",
    "(id % 3 / 0.0)::FLOAT", "md5((id % 3)::VARCHAR)::UUID", "json_object('a', id % 2)", "[id % 2, NULL]",
    "{'a': id % 2, 'b': 'é'}", "strftime(TIMESTAMP '2026-01-01' + to_days((id % 40)::INTEGER), '%Y-%m-%d')",
    "DATE '2026-01-01' + (id % 40)::INTEGER", "'infinity'::DATE", "TIME '12:00:00' + to_seconds(id % 3)",
    "make_timestamptz(id % 3)", "to_days((id % 2)::INTEGER)", "coalesce(late, id % 3)", "late", "(id % 3)::UTINYINT",
    "'\\x00'::BLOB", "list_transform([id], lambda x: x % 2)[1]", "id % 3 - 1",
]  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Partition expressions (without names) and sort columns."""

    partition_by: Sequence[str]
    sort_by: Sequence[str]
    row_group_rows: int
    compression: str

    @property
    def named(self) -> list[str]:
        return [f"{sql} AS p{n}" for n, sql in enumerate(self.partition_by)]


@st.composite
def layouts(draw: st.DrawFn, batch: RandomBatch) -> Layout:
    columns = ["id", *batch.kinds]
    over = st.sampled_from([quoted(c) for c in columns]).flatmap(
        lambda c: st.sampled_from([c, f"{c} IS NULL", f"hash({c}) % 3", f"left(CAST({c} AS VARCHAR), 1)", f"[{c}]"])
    )
    return Layout(
        draw(st.lists(st.sampled_from(EXPRESSIONS) | over, max_size=3)),
        draw(st.lists(st.sampled_from(columns), max_size=4, unique=True)),
        draw(st.sampled_from([2_048, 122_880])),
        draw(st.sampled_from(["zstd", "uncompressed", "snappy"])),
    )


def sql_list(values: Sequence[str]) -> str:
    return "[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def oracle(batch: RandomBatch, layout: Layout, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to a DuckDB that has the rows in `expected`, with the stored types, the texts of each partition, and
    ranks in the order of partitions and of rows. It never uses this library."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.register("arriving", batch.plain)
        # A table, because DuckDB lets pyarrow filter Arrow's rows, which treats NaN otherwise.
        con.execute("CREATE TABLE arrived AS SELECT * FROM arriving")
        types = described(con, "arrived")
        columns = ", ".join(f"CAST({quoted(c)} AS {STORED_AS.get(t, t)}) AS {quoted(c)}" for c, t in types.items())
        con.execute(f"CREATE TABLE stored AS SELECT {columns} FROM arrived")
        values = ", ".join(f"({sql}) AS p{n}" for n, sql in enumerate(layout.partition_by)) or "1 AS nothing"
        con.execute(f"CREATE TABLE valued AS SELECT id, {values} FROM (SELECT *, NULL::INTEGER AS late FROM stored)")
        names = [f"p{n}" for n in range(len(layout.partition_by))]
        values = ", ".join(f"CAST({name} AS VARCHAR)" for name in names)
        kinds = described(con, "valued")
        order = ", ".join(name if kinds[name] in ORDERED else f"CAST({name} AS VARCHAR)" for name in names)
        keys = ", ".join(quoted(c) for c in layout.sort_by)
        ranks = f"SELECT id, dense_rank() OVER ({f'ORDER BY {keys}' if keys else ''}) AS rank FROM stored"
        con.execute(
            f"CREATE TABLE placed AS SELECT id, [{values}]::VARCHAR[] AS texts, "
            f"dense_rank() OVER ({f'ORDER BY {order}' if order else ''}) AS place, rank "
            f"FROM valued JOIN ({ranks}) USING (id)"
        )
        con.execute(f"COPY stored TO '{folder}/oracle.parquet' (FORMAT parquet)")
        yield con


def described(con: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    return {name: type_ for name, type_, *_ in con.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}


def create_table(layout: Layout, folder: Path) -> icedb.Table:
    return icedb.Table.create(
        folder / uuid.uuid4().hex, storage_options={"fsync": "false"}, partition_by=layout.named,
        sort_by=list(layout.sort_by), row_group_rows=layout.row_group_rows, compression=layout.compression,
        schema={"late": "INTEGER"},
    )  # fmt: skip


def write(
    monkeypatch: pytest.MonkeyPatch, way: str, batch: pa.Table, table: icedb.Table, *, part_bytes: int | None = None
) -> tuple[Marker, ...]:
    """Put the parts of a batch, without a commit."""
    with monkeypatch.context() as patch:
        patch.setattr(batch_loader, "_HELD_DIVISOR", WAYS[way])
        patch.setattr(arrow_rows, "ROWS_AT_A_TIME", 1_000)
        patch.setattr(batch_loader, "ROWS_AT_A_TIME", 900)
        written = write_parts(
            table.handle.write_context(), batch.to_reader(), store=table.handle.store, clock=SystemClock(),
            memory_bytes=MEMORY_BYTES, part_bytes=part_bytes,
        )  # fmt: skip
    return written.markers


def path_texts(key: str) -> list[str | None]:
    segments = key.rpartition("/")[0].partition("_data")[2].strip("/")
    values = [segment.partition("=")[2] for segment in segments.split("/") if segment]
    return [None if value == NULL_PATH else unquote(value) for value in values]


def check_parts(
    con: duckdb.DuckDBPyConnection, table: icedb.Table, markers: Sequence[Marker | Part], layout: Layout, way: str
) -> None:
    """Compare parts with the oracle's tables."""
    columns = described(con, "stored")
    files = [str(Path(table.uri, marker.key)) for marker in markers]
    parts = f"read_parquet({sql_list(files)}, hive_partitioning = false"
    assert described(con, f"{parts})") == described(con, f"'{Path(table.uri).parent}/oracle.parquet'")
    assert len({pq.read_schema(file) for file in files}) == 1
    con.execute(
        f"CREATE TABLE numbered AS SELECT id, list_position({sql_list(files)}, filename) AS part, "
        f"file_row_number AS number FROM {parts}, filename = true, file_row_number = true)"
    )
    con.execute(f"CREATE TABLE parts AS SELECT * FROM {parts})")
    assert_same_rows(con, columns, way)
    of_parts = con.execute(
        "SELECT count(*), min(place), max(place), min(rank), max(rank), any_value(texts), "
        "list(rank ORDER BY number) = list(rank ORDER BY rank) "
        "FROM numbered JOIN placed USING (id) GROUP BY part ORDER BY part"
    ).fetchall()
    assert [rows for rows, *_ in of_parts] == [marker.rows for marker in markers]
    assert all(first == last for _, first, last, *_ in of_parts), "each part has rows of one partition"
    places = [first for _, first, *_ in of_parts]
    if all(described(con, "valued")[f"p{n}"] in ORDERED for n in range(len(layout.partition_by))):
        assert places == sorted(places)
    assert len(list(groupby(places))) == len(set(places)), "parts of a partition are adjacent"
    for (_, place, _, _, end, *_), (_, next_place, _, begin, *_) in pairwise(of_parts):
        assert place != next_place or end <= begin, "rows of a partition are sorted across its parts"
    for (*_, texts, is_sorted), marker in zip(of_parts, markers, strict=True):
        assert is_sorted
        assert [normal(t) for t in texts] == [normal(t) for t in path_texts(marker.key)]
    check_markers(con, markers, columns, layout)
    check_footers(con, files, columns, layout)


def assert_same_rows(con: duckdb.DuckDBPyConnection, columns: dict[str, str], way: str) -> None:
    """Compare all values by their texts, in which NaN is equal to NaN.

    Zeros and NaN differ by their signs, unless DuckDB sorts them: it drops the signs in a sorted table of some length.
    """
    unsigned = {c for c, type_ in columns.items() if type_ in ("FLOAT", "DOUBLE") and way == "in DuckDB"}
    values = ", ".join(
        f"replace(replace(CAST({quoted(c)} AS VARCHAR), '-nan', 'nan'), '-0.0', '0.0')"
        if c in unsigned
        else f"CAST({quoted(c)} AS VARCHAR)"
        for c in columns
    )
    expected, stored = (f"SELECT {values} FROM {relation}" for relation in ("stored", "parts"))
    for one, other in ((expected, stored), (stored, expected)):
        assert con.execute(f"({one}) EXCEPT ALL ({other}) LIMIT 3").fetchall() == []


def normal(text: str | None) -> str | None:
    """Return a text for comparison: zeros of both signs, and all NaN, are equal, and DuckDB takes any of them."""
    return {"-0.0": "0.0", "-nan": "nan"}.get(text or "", text)


def check_markers(
    con: duckdb.DuckDBPyConnection, markers: Sequence[Marker | Part], columns: dict[str, str], layout: Layout
) -> None:
    direct = {p.strip('"').replace('""', '"').casefold() for p in layout.partition_by}
    wanted = dict.fromkeys([*layout.sort_by, *(c for c in columns if c.casefold() in direct)])
    bounded = {c: columns[c] for c in wanted if columns[c] in BOUNDED}
    figures = ", ".join(f"CAST({f}(stored.{quoted(c)}) AS VARCHAR)" for c in bounded for f in ("min", "max", "count"))
    rows = con.execute(
        f"SELECT count(*), {figures} FROM stored JOIN numbered USING (id) GROUP BY part ORDER BY part"
    ).fetchall()
    for marker, (count, *row) in zip(markers, rows, strict=True):
        expected = encode_statistics(bounded, [normal(f) for f in row], count)
        if isinstance(marker.stats, msgspec.UnsetType) or isinstance(expected, msgspec.UnsetType):
            assert marker.stats is expected
            continue
        stats = msgspec.json.decode(marker.stats)
        normalised = {c: [normal(b) if isinstance(b, str) else b for b in of] for c, of in stats.items()}
        assert list(normalised.items()) == list(msgspec.json.decode(expected).items())


def check_footers(
    con: duckdb.DuckDBPyConnection, files: Sequence[str], columns: dict[str, str], layout: Layout
) -> None:
    """Check that sorting columns are true, and that statistics of row groups let DuckDB skip no row of an answer."""
    for file in (pq.ParquetFile(path) for path in files[:FILES_MAX]):
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            paths = [file.schema.column(s.column_index).path for s in group.sorting_columns]
            assert paths == list(layout.sort_by)[: len(paths)]
            places = [file.schema.names[s.column_index] for s in group.sorting_columns]
            assert places == paths, "the index is that of the column, not of a nested one"
            assert not any(s.descending or s.nulls_first for s in group.sorting_columns)
    if len(files) > FILES_MAX:
        return
    for column, type_ in columns.items():
        if type_.endswith("]") or type_.startswith(("STRUCT", "MAP")):
            continue
        name = quoted(column)
        [ends] = con.execute(
            f"SELECT CAST(min({name}) AS VARCHAR), CAST(max({name}) AS VARCHAR) FROM stored"
        ).fetchall()
        for end in ends:
            for operator in ("=", "<=", ">="):
                where = f"WHERE {name} {operator} CAST(? AS {type_})"
                of_files, of_rows = (
                    con.execute(f"SELECT count(*) FROM {relation} {where}", [end]).fetchall()
                    for relation in (f"read_parquet({sql_list(files)}, hive_partitioning = false)", "stored")
                )
                assert of_files == of_rows, (column, operator, end)


@contextmanager
def expected(
    data: st.DataObject, folder: Path, rows: list[int]
) -> Iterator[tuple[RandomBatch, Layout, duckdb.DuckDBPyConnection]]:
    """Draw a batch and a layout, and connect to their oracle. The paths of all partitions fit into keys."""
    batch = data.draw(random_batches(rows=rows))
    layout = data.draw(layouts(batch))
    with oracle(batch, layout, folder) as con:
        paths = con.execute("SELECT DISTINCT texts FROM placed").fetchall()
        assume(all(len(text.encode()) <= 70 for (texts,) in paths for text in texts if text))
        yield batch, layout, con


def check_batches(monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject, rows: list[int]) -> None:
    with TemporaryDirectory() as folder, expected(data, Path(folder), rows) as (batch, layout, con):
        table = create_table(layout, Path(folder))
        part_bytes = data.draw(st.sampled_from([None, 5_000, 1 if batch.table.num_rows < 100 else None]))
        markers = write(monkeypatch, way, batch.table, table, part_bytes=part_bytes)
        check_parts(con, table, markers, layout, way)


def check_merges(monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject, rows: list[int]) -> None:
    with TemporaryDirectory() as folder, expected(data, Path(folder), rows) as (batch, layout, con):
        table = create_table(layout, Path(folder))
        for rows in data.draw(slices(batch.table)):
            table.insert(rows)
        fits, streams = MERGES[way]
        with monkeypatch.context() as patch:
            patch.setattr(MergeInputs, "fit", lambda *_: fits)
            patch.setattr(arrow_merge, "_PAGES_SHARE", 0 if streams else 1 << 60)
            patch.setattr(arrow_merge, "_BATCH_ROWS_MAX", 37)
            table.merge()
        parts = table.snapshot().parts
        check_parts(con, table, sorted(parts, key=lambda part: place_of(con, table, part)), layout, way)


@st.composite
def slices(draw: st.DrawFn, rows: pa.Table) -> list[pa.Table]:
    """Cut a batch into up to four pieces that are not empty."""
    cuts = draw(st.lists(st.integers(1, max(1, rows.num_rows - 1)), max_size=3, unique=True))
    ends = [0, *sorted(cut for cut in cuts if cut < rows.num_rows), rows.num_rows]
    return [rows.slice(first, last - first) for first, last in pairwise(ends)]


def place_of(con: duckdb.DuckDBPyConnection, table: icedb.Table, part: Part) -> int:
    """Return the place of a part's partition in the order of partitions."""
    rows = f"read_parquet({sql_list([str(Path(table.uri, part.key))])}, hive_partitioning = false)"
    [(place,)] = con.execute(f"SELECT place FROM placed JOIN {rows} USING (id) LIMIT 1").fetchall()
    return int(place)


# To shrink an example takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": PHASES}
#: Few rows, the same in each run.
FEW = settings(max_examples=15, derandomize=True, **SETTINGS)
FEW_ROWS = [1, 2, 7, 60, 350]
#: Other rows in each run, also of several row groups.
MANY = settings(max_examples=int(os.environ.get("ICEDB_EXAMPLES", "40")), **SETTINGS)
MANY_ROWS = [*FEW_ROWS, 2_500, 5_000]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("way", WAYS)
@FEW
@given(st.data())
def test_a_batch_is_stored_as_duckdb_would_store_it(
    monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject
) -> None:
    check_batches(monkeypatch, way, data, FEW_ROWS)


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("way", MERGES)
@FEW
@given(st.data())
def test_parts_are_merged_as_duckdb_would_merge_them(
    monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject
) -> None:
    check_merges(monkeypatch, way, data, FEW_ROWS)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("way", WAYS)
@MANY
@given(st.data())
def test_many_batches_are_stored_as_duckdb_would_store_them(
    monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject
) -> None:
    check_batches(monkeypatch, way, data, MANY_ROWS)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("way", MERGES)
@MANY
@given(st.data())
def test_many_parts_are_merged_as_duckdb_would_merge_them(
    monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject
) -> None:
    check_merges(monkeypatch, way, data, MANY_ROWS)
