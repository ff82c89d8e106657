"""What every engine is told: which parts a snapshot has for it, which columns, and what the paths say of them.

An engine that reads lazily filters by itself. What can be left out beforehand is whole parts: `parts_where` is a
predicate in DuckDB's SQL, and of the parts that are given no row is left out, whether or not it is true of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import duckdb
import pyarrow as pa

from icedb.errors import InvalidOption, UnknownColumn, UnsupportedType
from icedb.reader.scan_sql import visible_partitions
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import connect_sandbox, quote_name
from icedb.sql.types import typed_nothing
from icedb.transaction.table_handle import Part

__all__ = ["arrow_schema", "chosen_parts", "lossless_schema", "path_values", "selection"]

# 38 digits are as many as Arrow has; DuckDB hands out decimals of that precision for them, too.
_AS_DECIMAL = {"HUGEINT": "DECIMAL(38,0)", "UHUGEINT": "DECIMAL(38,0)"}


def chosen_parts(snapshot: Snapshot, parts_where: str | None) -> list[Part]:
    """The parts that may hold a row for which `parts_where` is true (see `Snapshot.files`), for an engine that takes
    partition columns from paths.

    Raises InvalidOption for a part of a partitioning before the last `alter`, whose path does not say what the
    partition columns are, and what `Snapshot.files` raises.
    """
    visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
    parts = snapshot.files(parts_where)
    if older := next((p for p in parts if not visible.keys() <= p.values.keys()), None):
        lacking = sorted(visible.keys() - older.values.keys())
        raise InvalidOption(
            f"{snapshot.table}: the part '{older.key}' was written before the table was partitioned by {lacking}, "
            "which only a query can compute of its rows. Query the snapshot, or read it as record batches, or rewrite "
            "the partition."
        )
    return parts


def selection(snapshot: Snapshot, columns: Sequence[str] | None) -> str:
    """The SELECT list of these columns; None: all. Raises UnknownColumn, InvalidOption."""
    if columns is None:
        return "*"
    if isinstance(columns, str) or not columns:
        raise InvalidOption(f"{snapshot.table}: columns is {columns!r}; give a list of names, or None for all.")
    known = {**snapshot.schema, **visible_partitions(snapshot.schema, snapshot.partition_schema)}
    if unknown := [c for c in columns if c not in known]:
        raise UnknownColumn(f"{snapshot.table}: there is no column {unknown[0]!r}; the snapshot has {[*known]}.")
    return ", ".join(map(quote_name, columns))


def arrow_schema(types: Mapping[str, str], *, uuid: pa.DataType | None = None) -> pa.Schema:
    """The Arrow schema of columns with these DuckDB types; a UUID is `uuid`, by default Arrow's type for it.

    Raises UnsupportedType for what Arrow can tell only by DuckDB's own extensions of it.
    """
    return pa.schema([_stored(field, uuid or pa.uuid()) for field in lossless_schema(types)])


def lossless_schema(types: Mapping[str, str]) -> pa.Schema:
    """The same, with Arrow's extension types for truth values, JSON and UUIDs. Raises UnsupportedType."""
    schema = _lossless(tuple(types.items()))
    for field in schema:
        if isinstance(field.type, pa.OpaqueType):
            raise UnsupportedType(
                f"The column '{field.name}' is {types[field.name]}, for which Arrow has no type. Query the snapshot, "
                "or partition by something else."
            )
    return schema


@lru_cache(maxsize=64)  # a program that scans again, scans the same columns again
def _lossless(types: tuple[tuple[str, str], ...]) -> pa.Schema:
    if not types:
        return pa.schema([])
    with connect_sandbox() as con:
        return con.execute(typed_nothing({c: _AS_DECIMAL.get(t, t) for c, t in types})).to_arrow_table().schema


def _stored(field: pa.Field, uuid: pa.DataType) -> pa.Field:
    """A field as Arrow can filter by it: DuckDB's lossless one has extension types for booleans and JSON."""
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
    """Partition column -> its values as the paths have them -> as DuckDB reads them, and Arrow has them.

    `types` are the columns' DuckDB types, `schema` has their Arrow types. Raises UnsupportedType for a value that is
    too large for a decimal of Arrow.
    """
    if not types:
        return {}
    texts: dict[str, dict[str, None]] = {name: {} for name in types}
    for values in partitions:
        for name in types:
            if (text := values[name]) is not None:
                texts[name][text] = None
    with connect_sandbox() as con:
        return {name: _typed(con, list(texts[name]), type_, schema.field(name)) for name, type_ in types.items()}


def _typed(con: duckdb.DuckDBPyConnection, texts: list[str], type_: str, field: pa.Field) -> dict[str, pa.Scalar]:
    sql = f"CAST(v AS {type_})"
    if type_ in _AS_DECIMAL or pa.types.is_string(field.type):
        sql = f"CAST({sql} AS {_AS_DECIMAL.get(type_, 'VARCHAR')})"
    query = f"SELECT v AS text, {sql} AS {quote_name('value')} FROM (SELECT unnest(CAST($1 AS VARCHAR[])) AS v)"
    try:
        table = con.execute(query, [texts]).to_arrow_table()
    except duckdb.Error as error:
        raise UnsupportedType(
            f"A path says of the column '{field.name}' what is no {type_} of Arrow ({str(error).splitlines()[0]}). "
            "Query the snapshot."
        ) from None
    return dict(zip(table["text"].to_pylist(), table["value"].cast(field.type), strict=True))
