"""ClickHouse types for DuckDB types, and expressions that read partition values from paths.

ClickHouse has no null array, map or tuple, and no timestamp without a time zone. So a null list or map is read as an
empty one, and a null struct as one whose fields are all null. A TIMESTAMP is read as the same date and time in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from duckdb.sqltypes import DuckDBPyType

from icedb.errors import UnsupportedType
from icedb.format.keys import NULL_VALUE, encode_value
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.types import typed_nothing

__all__ = ["clickhouse_types", "partition_value", "quote_name", "quote_text"]

_SCALARS = {
    "BOOLEAN": "Bool",
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INTEGER": "Int32",
    "BIGINT": "Int64",
    "UTINYINT": "UInt8",
    "USMALLINT": "UInt16",
    "UINTEGER": "UInt32",
    "UBIGINT": "UInt64",
    "FLOAT": "Float32",
    "DOUBLE": "Float64",
    "VARCHAR": "String",
    "JSON": "String",
    "BLOB": "String",
    "UUID": "UUID",
    "DATE": "Date32",
    "TIME": "Time64(6)",
    "TIMESTAMP": "DateTime64(6, 'UTC')",
    "TIMESTAMP_S": "DateTime64(0, 'UTC')",
    "TIMESTAMP_MS": "DateTime64(3, 'UTC')",
    "TIMESTAMP_NS": "DateTime64(9, 'UTC')",
    "TIMESTAMP WITH TIME ZONE": "DateTime64(6, 'UTC')",
}
# DuckDB and ClickHouse represent these types differently in a path.
_NOT_IN_PATHS = frozenset(("BLOB",))
_DATED = ("DATE", "TIMESTAMP")
# Dates that both read alike: not `44-03-15 (BC)`, `infinity` or the year 10000.
_PLAIN_DATE = re.compile(r"\d{4}-\d\d-\d\d(?: [\d:.+-]+)?")


def quote_name(name: str) -> str:
    """Quote an identifier for ClickHouse's SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_text(text: str) -> str:
    """Quote a string literal for ClickHouse's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def clickhouse_types(types: Mapping[str, str], *, table: str) -> dict[str, str]:
    """Return the ClickHouse type of each column with these DuckDB types. Raises UnsupportedType."""
    if not types:
        return {}
    with scratch_connection() as con:
        parsed = con.sql(typed_nothing(types)).types
    result = {}
    for (column, type_), of_duckdb in zip(types.items(), parsed, strict=True):
        name = _type(of_duckdb)
        if name is None:
            raise UnsupportedType(
                f"{table}: column '{column}' is {type_}, for which ClickHouse has no type with the same values. "
                "Query the snapshot with DuckDB, or cast the column in a table of its own."
            )
        result[column] = name
    return result


def _type(type_: DuckDBPyType) -> str | None:
    """Return the ClickHouse type, nullable where ClickHouse permits it; None if there is none."""
    match type_.id:
        case "struct":
            fields = _children(type_)
            named = (f"{quote_name(name)} {field}" for name, field in fields.items())
            return None if None in fields.values() else f"Tuple({', '.join(named)})"
        case "map":
            key, value = _children(type_).values()
            return None if key is None or value is None else f"Map({_required(key)}, {value})"
        case "list" | "array":
            item = _children(type_)["child"]
            return None if item is None else f"Array({item})"
        case "enum":
            return "Nullable(String)"
        case "decimal":
            return f"Nullable({str(type_).title()})"
    scalar = _SCALARS.get(str(type_))
    return None if scalar is None else f"Nullable({scalar})"


def _children(type_: DuckDBPyType) -> dict[str, str | None]:
    return {name: _type(child) for name, child in type_.children if isinstance(child, DuckDBPyType)}


def _required(type_: str) -> str:
    return type_.removeprefix("Nullable(").removesuffix(")") if type_.startswith("Nullable(") else type_


def partition_value(name: str, type_: str, clickhouse: str, values: Iterable[str], *, table: str) -> str:
    """Return an expression over `_path` for the value of a partition column with these DuckDB and ClickHouse types.

    `values` are those in the paths. ClickHouse must read them as DuckDB does. Raises UnsupportedType.
    """
    if type_ in _NOT_IN_PATHS or not clickhouse.startswith("Nullable("):
        raise UnsupportedType(
            f"{table}: the partition column '{name}' is {type_}, which ClickHouse cannot read from a path. Query the "
            "snapshot with DuckDB, or partition by text."
        )
    unreadable = next((v for v in values if not _PLAIN_DATE.fullmatch(v)), None) if type_.startswith(_DATED) else None
    if unreadable is not None:
        raise UnsupportedType(
            f"{table}: the partition '{name}={unreadable}' is beyond ClickHouse's dates, which have years of "
            "four digits. Exclude it with parts_where, or query the snapshot with DuckDB."
        )
    names = "|".join(dict.fromkeys((_escaped(encode_value(name)), _escaped(name))))  # v3 programs may not encode
    segment = f"extract(_path, {quote_text(f'.*/_data/(?:[^/]+/)*?(?:{names})=([^/]*)/')})"
    return f"CAST(if({segment} = {quote_text(NULL_VALUE)}, NULL, decodeURLComponent({segment})) AS {clickhouse})"


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c.isascii() and not c.isalnum() else c for c in text)
