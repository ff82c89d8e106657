"""Other programs that write the same rows in the same layout: plain DuckDB and Polars, deltalake, pyiceberg, DuckLake.

Each is given what we are: Arrow rows, an expression that says where a row belongs, an order; and zstd at the level that
we write batches with. What a format keeps beside the rows (a catalog of its own) is there before it is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Schema, WriterProperties, write_deltalake

from benchmarks.figures import OURS
from icedb import Table
from icedb.sql.connections import load_httpfs, quote_text

__all__ = [
    "DELTALAKE",
    "DELTALAKE_UNSORTED",
    "DUCKDB",
    "DUCKLAKE",
    "POLARS",
    "PYICEBERG",
    "UNSYNCED",
    "WRITERS",
    "ZSTD_LEVEL",
    "Append",
    "Layout",
    "Place",
    "Rows",
    "as_arrow",
    "connected",
    "load_extension",
]

#: Ours again, where nothing waits for the disk, as nothing does in the others.
UNSYNCED = "icedb, no fsync"
DUCKDB = "plain DuckDB"
POLARS = "plain Polars"
DELTALAKE = "deltalake, sorted"
DELTALAKE_UNSORTED = "deltalake, unsorted"
PYICEBERG = "pyiceberg, sorted"
DUCKLAKE = "DuckLake, sorted"

#: Of every way; the others would take 3, which is some percent slower and smaller.
ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a row belongs and in which order, in SQL; `polars` is the same expression for Polars."""

    partition: str
    name: str
    sort_by: Sequence[str]
    polars: pl.Expr

    def query(self, *, ordered: bool = True) -> str:
        """Of a relation `rows`, for what does not evaluate expressions itself."""
        order = f" ORDER BY {', '.join((self.name, *self.sort_by))}" if ordered else ""
        return f"SELECT *, {self.partition} AS {self.name} FROM rows{order}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is made: a folder that is there and empty, or an address in S3, and how to get in."""

    uri: str
    #: For files beside the table: a catalog.
    beside: Path
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def parquet(self) -> str:
        """All Parquet files below."""
        return f"{self.uri}/**/*.parquet"


#: A table of Arrow, or a list of dicts.
Rows: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]
#: Adds rows to a table, and makes it first if there is none.
Append = Callable[[Rows], None]
Writer = Callable[[Place, Layout], AbstractContextManager[Append]]


@contextmanager
def connected(place: Place | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """To a database in memory, which can read and write a place in S3."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        if place is not None and place.options:
            load_httpfs(con)
            con.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID {quote_text(place.options['AWS_ACCESS_KEY_ID'])}, "
                f"SECRET {quote_text(place.options['AWS_SECRET_ACCESS_KEY'])}, REGION 'us-east-1', URL_STYLE 'path', "
                f"USE_SSL false, ENDPOINT {quote_text(place.options['AWS_ENDPOINT_URL'].partition('://')[2])})"
            )
        yield con


def load_extension(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """One of DuckDB's, from its wheel, which is nothing but that file."""
    wheel = find_spec(f"duckdb_extension_{name}")
    if wheel is None or not wheel.submodule_search_locations:
        raise SystemExit(f"A peer is missing: pip install duckdb-extension-{name}=={duckdb.__version__}")
    folder = Path(os.fspath(next(iter(wheel.submodule_search_locations)))) / "extensions" / f"v{duckdb.__version__}"
    con.execute(f"LOAD {quote_text(str(folder / f'{name}.duckdb_extension'))}")


def as_arrow(rows: Rows) -> pa.Table:
    """What those that know nothing of dicts are given."""
    return rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)


# ------------------------------------------------------------------------------------------ ours


@contextmanager
def _icedb(place: Place, layout: Layout, *, fsync: bool = True) -> Iterator[Append]:
    table: list[Table] = []

    def append(rows: Rows) -> None:
        if not table:
            table.append(
                Table.create(
                    place.uri,
                    partition_by=[f"{layout.partition} AS {layout.name}"],
                    sort_by=list(layout.sort_by),
                    storage_options=dict(place.options) or {"fsync": str(fsync).lower()},
                )
            )
        table[0].insert(rows)

    yield append


def _icedb_unsynced(place: Place, layout: Layout) -> AbstractContextManager[Append]:
    return _icedb(place, layout, fsync=False)


# ------------------------------------------------------------------------------------------ files alone


@contextmanager
def _duckdb(place: Place, layout: Layout) -> Iterator[Append]:
    with connected(place) as con:

        def append(rows: Rows) -> None:
            con.register("rows", as_arrow(rows))
            con.execute(
                f"COPY ({layout.query()}) TO {quote_text(place.uri)} (FORMAT parquet, PARTITION_BY ({layout.name}), "
                f"COMPRESSION zstd, COMPRESSION_LEVEL {ZSTD_LEVEL}, APPEND)"
            )

        yield append


@contextmanager
def _polars(place: Place, layout: Layout) -> Iterator[Append]:
    number = 0

    def append(rows: Rows) -> None:
        nonlocal number
        number += 1
        frame = pl.DataFrame(rows).lazy().with_columns(layout.polars.alias(layout.name))
        frame.sort(layout.name, *layout.sort_by).sink_parquet(
            pl.PartitionBy(f"{place.uri}/{number}", key=layout.name, include_key=False),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            mkdir=not place.options,
            storage_options=dict(place.options) | {"AWS_ALLOW_HTTP": "true"} if place.options else None,
        )

    yield append


# ------------------------------------------------------------------------------------------ table formats


@contextmanager
def _deltalake(place: Place, layout: Layout, *, ordered: bool = True) -> Iterator[Append]:
    # `etag`: the server has puts that only create, and a commit needs no lock of another kind then.
    options = dict(place.options) | {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"} if place.options else None
    properties = WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL)
    table: list[DeltaTable] = []  # one that is open already: it does not read its log again for each append
    with connected() as con:

        def append(rows: Rows) -> None:
            con.register("rows", as_arrow(rows))
            ordered_rows = con.sql(layout.query(ordered=ordered)).to_arrow_table()
            if not table:
                fields = Schema.from_arrow(ordered_rows.schema)
                made = DeltaTable.create(place.uri, fields, partition_by=[layout.name], storage_options=options)
                table.append(made)
            write_deltalake(table[0], ordered_rows, mode="append", writer_properties=properties)

        yield append


def _deltalake_unsorted(place: Place, layout: Layout) -> AbstractContextManager[Append]:
    return _deltalake(place, layout, ordered=False)


@contextmanager
def _pyiceberg(place: Place, layout: Layout) -> Iterator[Append]:
    from pyiceberg.catalog.sql import SqlCatalog  # it takes a second to load, and only the longest row has it
    from pyiceberg.table import Table as IcebergTable

    catalog = SqlCatalog("c", uri=f"sqlite:///{place.beside}/catalog.db", warehouse=f"file://{place.uri}")
    catalog.create_namespace("n")
    table: list[IcebergTable] = []
    with connected() as con:

        def append(rows: Rows) -> None:
            con.register("rows", as_arrow(rows))
            ordered = con.sql(layout.query()).to_arrow_table()
            if not table:
                codec = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": str(ZSTD_LEVEL)}
                table.append(catalog.create_table("n.t", schema=ordered.schema, properties=codec))
                with table[0].update_spec() as spec:
                    spec.add_identity(layout.name)
            table[0].append(ordered)

        yield append
    catalog.close()


@contextmanager
def _ducklake(place: Place, layout: Layout) -> Iterator[Append]:
    with connected(place) as con:
        load_extension(con, "ducklake")
        catalog = quote_text(f"ducklake:{place.beside}/catalog.ducklake")
        con.execute(f"ATTACH {catalog} AS lake (DATA_PATH {quote_text(place.uri)})")
        con.execute(
            "CALL lake.set_option('parquet_compression', 'zstd'); "
            f"CALL lake.set_option('parquet_compression_level', '{ZSTD_LEVEL}')"
        )
        made = False

        def append(rows: Rows) -> None:
            nonlocal made
            con.register("rows", as_arrow(rows))
            if not made:
                con.execute(f"CREATE TABLE lake.t AS {layout.query(ordered=False)} LIMIT 0")
                con.execute(f"ALTER TABLE lake.t SET PARTITIONED BY ({layout.name})")
                made = True
            con.execute(f"INSERT INTO lake.t {layout.query()}")

        yield append


#: All of them by name, ours first.
WRITERS: Mapping[str, Writer] = {
    OURS: _icedb,
    UNSYNCED: _icedb_unsynced,
    DUCKDB: _duckdb,
    POLARS: _polars,
    DELTALAKE: _deltalake,
    DELTALAKE_UNSORTED: _deltalake_unsorted,
    PYICEBERG: _pyiceberg,
    DUCKLAKE: _ducklake,
}
