"""Parts whose columns have other types than the table's: found by their footers, checked by value, and rewritten.

Every value is checked before anything is written: converted back, it must be unchanged. Text accepts every value, as
JSON for nested types and DuckDB's text otherwise. A part keeps its partition, its rows and all its other columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.errors import InvariantViolated, SchemaConflict
from icedb.format.records import Marker
from icedb.reader.scan_sql import read_parquet, translated_read_errors
from icedb.sql.casts import Conversion, lossless, stringify
from icedb.sql.column_stats import statistics_columns
from icedb.sql.connection_pool import reader
from icedb.sql.connections import (
    memory_bytes_default,
    quote_name,
    quote_text,
    read_file,
)
from icedb.sql.types import describe
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder
from icedb.writer.encoding.parquet_encoder import MERGE_LEVEL, ParquetSettings
from icedb.writer.encoding.parquet_file import write_query
from icedb.writer.encoding.part_stats import encode_bounds
from icedb.writer.part_writer import discard, put_part

__all__ = ["Miscast", "check_values", "find_miscast", "recast"]

# A footer takes one or two requests; concurrency hides their latency.
FOOTERS_AT_ONCE = 16
RECASTS_AT_ONCE = 2
EXAMPLE_CHARS = 100


@dataclass(frozen=True, slots=True)
class Miscast:
    """A part with columns of another type than the table's, and their conversions."""

    part: Part
    #: All columns of the part, in order, with their target types.
    columns: Mapping[str, str]
    conversions: Mapping[str, Conversion]


def find_miscast(handle: Handle, parts: Sequence[Part], types: Mapping[str, str]) -> list[Miscast]:
    """Return the parts in which one of these columns has another type, by their footers.

    Raises MissingPart, SnapshotExpired and the store's errors.
    """
    with _connected(handle, parts) as (con, folder), ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        stored = {type_: _as_stored(con, folder, type_) for type_ in set(types.values())}
        checked = pool.map(lambda part: _miscast(handle, con, part, types, stored), parts)
        return [miscast for miscast in checked if miscast is not None]


def _as_stored(con: duckdb.DuckDBPyConnection, folder: Path, type_: str) -> str:
    """Return the type that a footer reports for a column of this type. Parquet lacks fixed-size arrays, for example."""
    path = folder / "nothing.parquet"
    con.execute(f"COPY (SELECT CAST(NULL AS {type_}) AS value WHERE false) TO {quote_text(str(path))} (FORMAT parquet)")
    return describe(con, f"SELECT * FROM {read_file(path)}")["value"]


def _miscast(
    handle: Handle, con: duckdb.DuckDBPyConnection, part: Part, types: Mapping[str, str], stored: Mapping[str, str]
) -> Miscast | None:
    with con.cursor() as own:
        present = describe(own, f"SELECT * FROM {read_parquet(handle, [part])}")
    wrong = {c: t for c, t in types.items() if c in present and present[c] not in (t, stored[t])}
    if not wrong:
        return None
    return Miscast(part, present | wrong, {c: _conversion(c, present[c], t) for c, t in wrong.items()})


def _conversion(column: str, source: str, target: str) -> Conversion:
    name = quote_name(column)
    if target == "VARCHAR":
        return Conversion(column, source, target, name if source == "JSON" else stringify(name, source))
    return lossless(column, source, target)


def check_values(handle: Handle, miscasts: Sequence[Miscast]) -> None:
    """Raise SchemaConflict for the first part with a value that the conversion would change, with the value.

    Also raises MissingPart, SnapshotExpired and the store's errors.
    """
    with _connected(handle, [m.part for m in miscasts]) as (con, _), ThreadPoolExecutor(RECASTS_AT_ONCE) as pool:
        for _done in pool.map(lambda miscast: _check_values(handle, con, miscast), miscasts):
            pass


def _check_values(handle: Handle, con: duckdb.DuckDBPyConnection, miscast: Miscast) -> None:
    for conversion in (c for c in miscast.conversions.values() if c.misfit):
        example = f"any_value(CAST({quote_name(conversion.column)} AS VARCHAR)) FILTER (WHERE {conversion.misfit})"
        query = f"SELECT count(*) FILTER (WHERE {conversion.misfit}), {example} "
        try:
            with con.cursor() as own:
                query += f"FROM {read_parquet(handle, [miscast.part])}"
                [(misfits, value)] = own.execute(query).fetchall()
        except (duckdb.BinderException, duckdb.ConversionException, duckdb.NotImplementedException) as error:
            raise _lossy(handle, miscast, conversion, str(error).splitlines()[0]) from None
        if misfits:
            reason = f"{misfits} of its values would change, for example {str(value)[:EXAMPLE_CHARS]!r}"
            raise _lossy(handle, miscast, conversion, reason)


def _lossy(handle: Handle, miscast: Miscast, conversion: Conversion, reason: str) -> SchemaConflict:
    column, source, target = conversion.column, conversion.source, conversion.target
    return SchemaConflict(
        f"{handle.table}: column '{column}' is {source} in the part '{miscast.part.key}' and cannot become {target}: "
        f"{reason}. Nothing was changed. Choose another type: types={{{column!r}: 'VARCHAR'}} accepts every value.",
        column=column,
        types=(source, target),
    )


# ------------------------------------------------------------------------------------------------ writing


def recast(handle: Handle, miscasts: Sequence[Miscast]) -> list[Marker]:
    """Rewrite each part, and return the markers in the same order. After a failure the new parts are deleted.

    Raises MissingPart, SnapshotExpired, InvariantViolated and the store's errors.
    """
    keys = [handle.keys.part(m.part.partition, handle.clock.new_id()) for m in miscasts]
    with _connected(handle, [m.part for m in miscasts]) as (con, folder), ThreadPoolExecutor(RECASTS_AT_ONCE) as pool:
        writes = [
            pool.submit(_recast, handle, con, miscast, key, folder) for miscast, key in zip(miscasts, keys, strict=True)
        ]
        try:
            return [write.result() for write in writes]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            discard(handle.store, keys)
            raise


def _recast(handle: Handle, con: duckdb.DuckDBPyConnection, miscast: Miscast, key: str, folder: Path) -> Marker:
    path = folder / key.rsplit("/", 1)[1]
    part = miscast.part
    select = ", ".join(
        f"{miscast.conversions[c].sql} AS {quote_name(c)}" if c in miscast.conversions else quote_name(c)
        for c in miscast.columns
    )
    order = ", ".join(quote_name(c) for c in handle.spec.sort_by if c in miscast.columns)
    source = read_parquet(handle, [part])
    query = f"SELECT * FROM (SELECT {select} FROM {source}){' ORDER BY ' + order if order else ''}"
    with con.cursor() as own:
        [(expected,)] = own.execute(f"SELECT count(*) FROM {source}").fetchall()
        statistics = statistics_columns(handle.spec.sort_by, miscast.columns, handle.expressions)
        settings = ParquetSettings(handle.table, handle.spec, MERGE_LEVEL)
        new = write_query(own, query, miscast.columns, settings, statistics, rows=expected, path=path)
        rows = new.file.rows
        if not rows == expected == (part.rows if part.rows is not None else rows):
            raise InvariantViolated(
                f"{handle.table}: the rewrite of '{part.key}' has {rows} rows, the part has {expected}, and its marker "
                f"records {part.rows}. Nothing was published."
            )
        [stats] = encode_bounds(own, [new.bounds])
    stored = put_part(handle.store, key, new.file)
    return Marker(key, stored.bytes, 0, rows=rows, stats=stats, digest=stored.digest)


@contextmanager
def _connected(handle: Handle, parts: Sequence[Part]) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """Open a connection that can read these parts, and a folder. DuckDB's errors are translated."""
    started_ms = handle.clock.now_ms()
    with (
        translated_read_errors(handle, parts, as_of_ms=started_ms),
        temporary_folder("repair") as folder,
        reader(
            handle.location,
            read_bytes=sum(p.bytes for p in parts),
            memory_bytes=memory_bytes_default(),
            folder=folder,
            lossless=True,
        ) as con,
    ):
        yield con, folder
