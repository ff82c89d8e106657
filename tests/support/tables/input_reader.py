"""The rows that `open_batch` makes of data, read through DuckDB with casts, as a writer reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from icedb.sources.batch import OnConflict
from icedb.sources.open_source import open_batch
from icedb.sql.connections import quote_name
from icedb.storage.location import Location, parse_location

HERE = "/a/table"


@dataclass(frozen=True)
class Found:
    """A batch: column -> DuckDB type, its rows, and its properties."""

    types: dict[str, str]
    rows: list[tuple[Any, ...]]
    parsed: frozenset[str]
    mixed: frozenset[str]
    source: str

    @property
    def column(self) -> list[Any]:
        """Return the values of the only column."""
        assert len(self.types) == 1, self.types
        return [value for (value,) in self.rows]


def read(
    data: Any,
    schema: Mapping[str, str] | None = None,
    *,
    on_conflict: OnConflict = "raise",
    location: Location | None = None,
    memory_bytes: int | None = None,
) -> Found:
    """Read a batch whole. Columns without a value are of the type NULL."""
    where = location or parse_location(HERE)
    with open_batch(
        data, location=where, table_columns=schema or {}, on_conflict=on_conflict, memory_bytes=memory_bytes
    ) as batch:
        names = batch.stream.schema.names
        if not names:
            assert not list(batch.stream)
            return Found({}, [], batch.parsed, batch.mixed, batch.source)
        untyped = {f.name for f in batch.stream.schema if str(f.type) == "null"}
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'")
            con.register("batch", batch.stream)
            columns = [
                f"CAST({quote_name(c)} AS {batch.types[c]})" if c in batch.types else quote_name(c) for c in names
            ]
            relation = con.sql(
                f"SELECT {', '.join(f'{x} AS {quote_name(c)}' for x, c in zip(columns, names, strict=True))} FROM batch"
            )
            types = {c: "NULL" if c in untyped else str(t) for c, t in zip(names, relation.types, strict=True)}
            return Found(types, relation.fetchall(), batch.parsed, batch.mixed, batch.source)
