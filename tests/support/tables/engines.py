"""Every engine asked the same: all rows of a snapshot, as tuples in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from icedb import Snapshot
from icedb.engines import arrow, chdb, datafusion, pandas, polars
from icedb.engines.duckdb.attached_tables import attach
from icedb.sql.connections import quote_name
from tests.support.object_stores.stores import Place
from tests.support.site.without_us import NodeReader, SqlReader

Row = tuple[Any, ...]


@dataclass(frozen=True)
class EngineReader:
    name: str
    #: The rows of these columns.
    rows: Callable[[Snapshot, Sequence[str]], Iterable[Row]]

    def answer(self, snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
        return sorted(self.rows(snapshot, columns), key=repr)


def _tuples(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    return list(zip(*(table[c].to_pylist() for c in columns), strict=True))


def _by_query(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    return snapshot.query(f"SELECT {_list(columns)} FROM t").fetchall()


def _by_attached(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    """DuckDB of the user's own, asked for the same time by the macro."""
    with duckdb.connect() as con:
        attach(con, snapshot.handle.table, "events", storage_options=snapshot.handle.location.storage_options)
        return con.execute(f"SELECT {_list(columns)} FROM events(as_of := {snapshot.as_of_ms})").fetchall()


def _by_dataset(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    return _tuples(arrow.dataset(snapshot).to_table(columns=list(columns)), columns)


def _by_batches(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    return _tuples(arrow.record_batches(snapshot, columns=columns).read_all(), columns)


def _by_polars(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    return polars.scan(snapshot).select(columns).collect().rows()


def _by_pandas(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    frame = pandas.read(snapshot, columns=columns)
    return _tuples(pa.Table.from_pandas(frame, preserve_index=False), columns)


def _by_datafusion(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    from datafusion import SessionContext

    context = SessionContext()
    datafusion.register(context, "events", snapshot)
    return _tuples(pa.table(context.sql(f"SELECT {_list(columns)} FROM events")), columns)


def _by_chdb(snapshot: Snapshot, columns: Sequence[str]) -> list[Row]:
    return _tuples(chdb.query(f"SELECT {_list(columns)} FROM t", snapshot), columns)


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(quote_name, columns))


ENGINES = [
    EngineReader("query", _by_query),
    EngineReader("attached", _by_attached),
    EngineReader("dataset", _by_dataset),
    EngineReader("batches", _by_batches),
    EngineReader("polars", _by_polars),
    EngineReader("pandas", _by_pandas),
    EngineReader("datafusion", _by_datafusion),
    EngineReader("chdb", _by_chdb),
]


def without_us(place: Place) -> tuple[SqlReader, NodeReader]:
    return (
        SqlReader(storage_options=place.storage_options),
        NodeReader(storage_options=place.storage_options),
    )
