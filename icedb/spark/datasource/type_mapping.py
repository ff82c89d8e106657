"""Types on their way between Spark, Arrow and DuckDB.

To a table: every type that Arrow and Parquet have. From a table: each column as the Spark type that holds all its
values. What Spark has no type for comes as a wider number or as DuckDB's text of the value:

    UTINYINT, USMALLINT, UINTEGER, UBIGINT          smallint, int, bigint, decimal(20,0)
    TIMESTAMP, TIMESTAMP_S, TIMESTAMP_MS            timestamp_ntz
    TIMESTAMP WITH TIME ZONE                        timestamp
    ENUM, JSON, UUID                                string
    TIME                                            string: Spark's own is behind a setting, off by default
    TIMESTAMP_NS                                    string: Spark's have microseconds
    HUGEINT and all that Parquet does not have      string
    T[n]                                            array, as T[]

The same holds inside of lists, maps and structs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType
from pyspark.errors import PySparkException
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from icedb.errors import UnsupportedType
from icedb.sql.connections import connect_sandbox, quote_name

__all__ = ["SparkTypeMapping", "arrow_schema", "held", "spark_schema"]

_VARIANT = re.compile(r"(?<![\w`])variant(?![\w`:])")


# ---------------------------------------------------------------------------------------------- to a table


def arrow_schema(schema: StructType, path: str) -> pa.Schema:
    """What the tasks will get. Raises UnsupportedType for a type that Arrow or Parquet does not have."""
    return pa.schema([_arrow_field(field, path) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    type_ = field.dataType.simpleString()
    try:
        arrow = to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkException, ValueError):  # pyarrow's, for the elements of `array()`
        arrow = None
    # To Arrow, a variant is a struct of two undocumented blobs. What has no type in Spark's Parquet does not come back.
    if arrow is None or _VARIANT.search(type_) or _holds(field.dataType, sql.TimeType, sql.DayTimeIntervalType):
        raise UnsupportedType(
            f"{path}: column '{field.name}' is {type_}, which cannot be stored. Cast it to the type that it shall have "
            "in the table (a variant: to_json; a time or an interval: string or bigint)."
        )
    return arrow


def _holds(type_: DataType, *wanted: type[DataType]) -> bool:
    match type_:
        case sql.StructType():
            return any(_holds(f.dataType, *wanted) for f in type_.fields)
        case sql.ArrayType():
            return _holds(type_.elementType, *wanted)
        case sql.MapType():
            return _holds(type_.keyType, *wanted) or _holds(type_.valueType, *wanted)
    return isinstance(type_, wanted)


# ---------------------------------------------------------------------------------------------- from a table


@dataclass(frozen=True, slots=True)
class SparkTypeMapping:
    """How Spark holds the values of a DuckDB type.

    `cast` is the DuckDB type whose values they are in Spark; `in_parquet` says whether Spark's own reader finds them
    in a part. A table that is read has no column that may not be null.
    """

    spark: DataType
    cast: str
    in_parquet: bool


_PLAIN = {
    "BOOLEAN": SparkTypeMapping(sql.BooleanType(), "BOOLEAN", True),
    "TINYINT": SparkTypeMapping(sql.ByteType(), "TINYINT", True),
    "SMALLINT": SparkTypeMapping(sql.ShortType(), "SMALLINT", True),
    "INTEGER": SparkTypeMapping(sql.IntegerType(), "INTEGER", True),
    "BIGINT": SparkTypeMapping(sql.LongType(), "BIGINT", True),
    "UTINYINT": SparkTypeMapping(sql.ShortType(), "SMALLINT", True),
    "USMALLINT": SparkTypeMapping(sql.IntegerType(), "INTEGER", True),
    "UINTEGER": SparkTypeMapping(sql.LongType(), "BIGINT", True),
    "UBIGINT": SparkTypeMapping(sql.DecimalType(20, 0), "DECIMAL(20,0)", True),
    "FLOAT": SparkTypeMapping(sql.FloatType(), "FLOAT", True),
    "DOUBLE": SparkTypeMapping(sql.DoubleType(), "DOUBLE", True),
    "VARCHAR": SparkTypeMapping(sql.StringType(), "VARCHAR", True),
    "JSON": SparkTypeMapping(sql.StringType(), "VARCHAR", True),
    "BLOB": SparkTypeMapping(sql.BinaryType(), "BLOB", True),
    "DATE": SparkTypeMapping(sql.DateType(), "DATE", True),
    "TIMESTAMP": SparkTypeMapping(sql.TimestampNTZType(), "TIMESTAMP", True),
    "TIMESTAMP_S": SparkTypeMapping(sql.TimestampNTZType(), "TIMESTAMP", True),
    "TIMESTAMP_MS": SparkTypeMapping(sql.TimestampNTZType(), "TIMESTAMP", True),
    "TIMESTAMP WITH TIME ZONE": SparkTypeMapping(sql.TimestampType(), "TIMESTAMP WITH TIME ZONE", True),
}
_AS_TEXT = SparkTypeMapping(sql.StringType(), "VARCHAR", False)


def spark_schema(columns: Mapping[str, str]) -> StructType:
    """The Spark schema of columns with these DuckDB types."""
    return StructType([StructField(name, held(type_).spark) for name, type_ in columns.items()])


@lru_cache(maxsize=4096)
def held(type_: str) -> SparkTypeMapping:
    """How Spark holds the values of a DuckDB type, given by DuckDB's own name for it."""
    if type_ in _PLAIN:
        return _PLAIN[type_]
    with connect_sandbox() as con:
        return _held(con.type(type_))


def _held(type_: DuckDBPyType) -> SparkTypeMapping:
    match type_.id:
        case "decimal":
            precision, scale = (int(str(number)) for _, number in type_.children)
            return SparkTypeMapping(sql.DecimalType(precision, scale), f"DECIMAL({precision},{scale})", True)
        case "enum":
            return _PLAIN["VARCHAR"]
        case "list" | "array":
            element = _inner(type_)[0][1]
            return SparkTypeMapping(sql.ArrayType(element.spark), f"{element.cast}[]", element.in_parquet)
        case "map":
            (_, key), (_, value) = _inner(type_)
            both = key.in_parquet and value.in_parquet
            return SparkTypeMapping(sql.MapType(key.spark, value.spark), f"MAP({key.cast}, {value.cast})", both)
        case "struct":
            fields = _inner(type_)
            cast = ", ".join(f"{quote_name(name)} {field.cast}" for name, field in fields)
            struct = StructType([StructField(name, field.spark) for name, field in fields])
            return SparkTypeMapping(struct, f"STRUCT({cast})", all(field.in_parquet for _, field in fields))
    return _PLAIN.get(str(type_), _AS_TEXT)


def _inner(type_: DuckDBPyType) -> list[tuple[str, SparkTypeMapping]]:
    return [(name, _held(child)) for name, child in type_.children if isinstance(child, DuckDBPyType)]
