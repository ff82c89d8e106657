"""The data of a snapshot that all engines use: parts, columns as Arrow types, and partition values in paths.

An engine that reads lazily filters rows by itself. `parts_where`, a DuckDB predicate, skips whole parts beforehand. All
rows of the remaining parts are returned, whether or not the predicate is true of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import duckdb
import pyarrow as pa

from icedb.errors import InvalidOption, UnknownColumn, UnsupportedType
from icedb.reader.snapshot import Snapshot
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name, quote_texts
from icedb.sql.types import typed_nothing
from icedb.storage.parts import Part

__all__ = ["arrow_schema", "chosen_parts", "lossless_schema", "path_values", "selection"]

# 38 digits are as many as Arrow has; DuckDB hands out decimals of that precision for them, too.
_AS_DECIMAL = {"HUGEINT": "DECIMAL(38,0)", "UHUGEINT": "DECIMAL(38,0)"}


def chosen_parts(snapshot: Snapshot, parts_where: str | None) -> list[Part]:
    """Return the parts that may contain a row for which `parts_where` is true (see `Snapshot.files`).

    The engine reads the partition columns from the paths. Raises InvalidOption for a part that was written before the
    last `alter` of the partitioning, because its path lacks partition columns, and the errors of `Snapshot.files`.
    """
    visible = snapshot.visible_partitions
    parts = snapshot.files(parts_where)
    if older := next((p for p in parts if not visible.keys() <= p.values.keys()), None):
        lacking = sorted(visible.keys() - older.values.keys())
        raise InvalidOption(
            f"{snapshot.table}: the part '{older.key}' was written before the table was partitioned by {lacking}, "
            "so its path lacks these columns, and only a query can compute them. Query the snapshot, read it as record "
            "batches, or rewrite the partition."
        )
    return parts


def selection(snapshot: Snapshot, columns: Sequence[str] | None) -> str:
    """Return the SELECT list of these columns; None selects all. Raises UnknownColumn, InvalidOption."""
    if columns is None:
        return "*"
    if isinstance(columns, str) or not columns:
        raise InvalidOption(f"{snapshot.table}: columns is {columns!r}; pass a list of names, or None for all.")
    present = snapshot.columns
    if unknown := [c for c in columns if c not in present]:
        raise UnknownColumn(f"{snapshot.table}: there is no column {unknown[0]!r}; the snapshot has {[*present]}.")
    return ", ".join(map(quote_name, columns))


def arrow_schema(types: Mapping[str, str], *, uuid: pa.DataType | None = None) -> pa.Schema:
    """Return the Arrow schema of columns with these DuckDB types; a UUID is `uuid`, by default Arrow's own type.

    Raises UnsupportedType if Arrow can represent a type only with DuckDB's extensions.
    """
    return pa.schema([_stored(field, uuid or pa.uuid()) for field in lossless_schema(types)])


def lossless_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return the same schema with Arrow's extension types for booleans, JSON and UUIDs. Raises UnsupportedType."""
    schema = _lossless(tuple(types.items()))
    for field in schema:
        if isinstance(field.type, pa.OpaqueType):
            raise UnsupportedType(
                f"The column '{field.name}' is {types[field.name]}, for which Arrow has no type. Query the snapshot, "
                "or partition by something else."
            )
    return schema


@lru_cache(maxsize=64)  # repeated scans usually have the same columns
def _lossless(types: tuple[tuple[str, str], ...]) -> pa.Schema:
    if not types:
        return pa.schema([])
    with scratch_connection() as con:
        return con.execute(typed_nothing({c: _AS_DECIMAL.get(t, t) for c, t in types})).to_arrow_table().schema


def _stored(field: pa.Field, uuid: pa.DataType) -> pa.Field:
    """Convert a field to types that Arrow can filter, instead of DuckDB's extension types for booleans and JSON."""
    type_ = field.type
    if isinstance(type_, pa.Bool8Type):
        stored = pa.bool_()
    elif isinstance(type_, pa.JsonType):
        stored = type_.storage_type
    elif isinstance(type_, pa.UuidType):
        stored = uuid
    elif pa.types.is_struct(type_):
        stored = pa.struct([_stored(child, uuid) for child in type_])
    elif pa.types.is_list(type_):
        stored = pa.list_(_stored(type_.value_field, uuid))
    elif pa.types.is_map(type_):
        stored = pa.map_(_stored(type_.key_field, uuid), _stored(type_.item_field, uuid))
    else:
        return field
    return field.with_type(stored)


def path_values(
    partitions: Iterable[Mapping[str, str | None]], types: Mapping[str, str], schema: pa.Schema
) -> dict[str, dict[str, pa.Scalar]]:
    """Return, for each partition column, the texts in the paths with their values as Arrow scalars, as DuckDB reads
    them.

    `types` are the columns' DuckDB types, `schema` has their Arrow types. Raises UnsupportedType for a value that
    exceeds Arrow's decimals.
    """
    if not types:
        return {}
    texts: dict[str, dict[str, None]] = {name: {} for name in types}
    for values in partitions:
        for name in types:
            if (text := values[name]) is not None:
                texts[name][text] = None
    with scratch_connection() as con:
        return {name: _typed(con, list(texts[name]), type_, schema.field(name)) for name, type_ in types.items()}


def _typed(con: duckdb.DuckDBPyConnection, texts: list[str], type_: str, field: pa.Field) -> dict[str, pa.Scalar]:
    sql = f"CAST(v AS {type_})"
    if type_ in _AS_DECIMAL or pa.types.is_string(field.type):
        sql = f"CAST({sql} AS {_AS_DECIMAL.get(type_, 'VARCHAR')})"
    query = f"SELECT v AS text, {sql} AS {quote_name('value')} FROM (SELECT unnest({quote_texts(texts)}) AS v)"
    try:
        table = con.execute(query).to_arrow_table()
    except duckdb.Error as error:
        raise UnsupportedType(
            f"A path has a value of the column '{field.name}' that Arrow cannot store as {type_} "
            f"({str(error).splitlines()[0]}). Query the snapshot."
        ) from None
    return dict(zip(table["text"].to_pylist(), table["value"].cast(field.type), strict=True))
