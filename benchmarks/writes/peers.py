"""Other programs that write the same rows in the same layout: plain DuckDB and Polars, deltalake, pyiceberg, DuckLake.

Each gets the same input: Arrow rows, a partition expression, an order, and zstd at the same level. A format's catalog
is created before the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Schema, WriterProperties, write_deltalake

from benchmarks.harness.connections import connected, load_extension
from benchmarks.harness.figures import OURS
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
    "TablePlace",
    "Rows",
    "as_arrow",
    "connected_to",
]

#: Ours without syncs to disk, which the others omit.
UNSYNCED = "icedb, no fsync"
DUCKDB = "plain DuckDB"
POLARS = "plain Polars"
DELTALAKE = "deltalake, sorted"
DELTALAKE_UNSORTED = "deltalake, unsorted"
PYICEBERG = "pyiceberg, sorted"
DUCKLAKE = "DuckLake, sorted"

#: The level of every way. The default of the others is 3, which is some percent slower and smaller.
ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The partition expression and the order of rows in SQL. `polars` is the expression for Polars."""

    partition: str
    name: str
    sort_by: Sequence[str]
    polars: pl.Expr

    def query(self, *, ordered: bool = True) -> str:
        """Return a query over `rows` with the partition column, for programs without expressions."""
        order = f" ORDER BY {', '.join((self.name, *self.sort_by))}" if ordered else ""
        return f"SELECT *, {self.partition} AS {self.name} FROM rows{order}"


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The place of a table: an empty folder, or an address in S3 with its storage options."""

    uri: str
    #: For files beside the table: a catalog.
    beside: Path
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def parquet(self) -> str:
        """The pattern of all Parquet files."""
        return f"{self.uri}/**/*.parquet"


#: An Arrow table, or a list of dicts.
Rows: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]
#: Adds rows to a table, which it creates if necessary.
Append = Callable[[Rows], None]
Writer = Callable[[TablePlace, Layout], AbstractContextManager[Append]]


@contextmanager
def connected_to(place: TablePlace) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to a database in memory, which can read and write a place in S3."""
    with connected() as con:
        if place.options:
            load_httpfs(con)
            con.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID {quote_text(place.options['AWS_ACCESS_KEY_ID'])}, "
                f"SECRET {quote_text(place.options['AWS_SECRET_ACCESS_KEY'])}, REGION 'us-east-1', URL_STYLE 'path', "
                f"USE_SSL false, ENDPOINT {quote_text(place.options['AWS_ENDPOINT_URL'].partition('://')[2])})"
            )
        yield con


def as_arrow(rows: Rows) -> pa.Table:
    """Convert rows to Arrow, for programs that do not accept dicts."""
    return rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)


# ------------------------------------------------------------------------------------------ ours


@contextmanager
def _icedb(place: TablePlace, layout: Layout, *, fsync: bool = True) -> Iterator[Append]:
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


def _icedb_unsynced(place: TablePlace, layout: Layout) -> AbstractContextManager[Append]:
    return _icedb(place, layout, fsync=False)


# ------------------------------------------------------------------------------------------ files alone


@contextmanager
def _duckdb(place: TablePlace, layout: Layout) -> Iterator[Append]:
    with connected_to(place) as con:

        def append(rows: Rows) -> None:
            con.register("rows", as_arrow(rows))
            con.execute(
                f"COPY ({layout.query()}) TO {quote_text(place.uri)} (FORMAT parquet, PARTITION_BY ({layout.name}), "
                f"COMPRESSION zstd, COMPRESSION_LEVEL {ZSTD_LEVEL}, APPEND)"
            )

        yield append


@contextmanager
def _polars(place: TablePlace, layout: Layout) -> Iterator[Append]:
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
def _deltalake(place: TablePlace, layout: Layout, *, ordered: bool = True) -> Iterator[Append]:
    # `etag`: the server supports create-only puts, so a commit needs no other lock.
    options = dict(place.options) | {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"} if place.options else None
    properties = WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL)
    table: list[DeltaTable] = []  # stays open, so that it does not read its log again for each append
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


def _deltalake_unsorted(place: TablePlace, layout: Layout) -> AbstractContextManager[Append]:
    return _deltalake(place, layout, ordered=False)


@contextmanager
def _pyiceberg(place: TablePlace, layout: Layout) -> Iterator[Append]:
    from pyiceberg.catalog.sql import SqlCatalog  # takes a second to load, and only one row needs it
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
def _ducklake(place: TablePlace, layout: Layout) -> Iterator[Append]:
    with connected_to(place) as con:
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
