"""Type mappings between Spark, Arrow and DuckDB.

A write accepts all types that Arrow and Parquet have. A read returns each column with a Spark type that holds all its
values. If Spark has no such type, the column becomes a wider number or DuckDB's text of the value:

    UTINYINT, USMALLINT, UINTEGER, UBIGINT          smallint, int, bigint, decimal(20,0)
    TIMESTAMP, TIMESTAMP_S, TIMESTAMP_MS            timestamp_ntz
    TIMESTAMP WITH TIME ZONE                        timestamp
    ENUM, JSON, UUID                                string
    TIME                                            string: Spark's own type is off by default
    TIMESTAMP_NS                                    string: Spark's times have microseconds
    HUGEINT and types that Parquet does not have     string
    T[n]                                            array, as T[]

The same applies inside lists, maps and structs.
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
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name

__all__ = ["SparkTypeMapping", "arrow_schema", "type_mapping_of", "spark_schema"]

_VARIANT = re.compile(r"(?<![\w`])variant(?![\w`:])")


# ---------------------------------------------------------------------------------------------- to a table


def arrow_schema(schema: StructType, path: str) -> pa.Schema:
    """Return the Arrow schema of a frame's rows. Raises UnsupportedType for a type that Arrow or Parquet lacks."""
    return pa.schema([_arrow_field(field, path) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    type_ = field.dataType.simpleString()
    try:
        arrow = to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkException, ValueError):  # pyarrow's, for the elements of `array()`
        arrow = None
    # In Arrow, a variant is a struct of two undocumented blobs. Spark could not read back types without a Parquet type.
    if arrow is None or _VARIANT.search(type_) or _holds(field.dataType, sql.TimeType, sql.DayTimeIntervalType):
        raise UnsupportedType(
            f"{path}: column '{field.name}' is {type_}, which cannot be stored. Cast it to its type in the table "
            "(a variant: to_json; a time or an interval: string or bigint)."
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
    """The Spark type for the values of a DuckDB type.

    `cast` is the DuckDB type with the same values as the Spark type. `in_parquet` is true if Spark's own reader can
    read them from a part. All columns of a read are nullable.
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
    """Return the Spark schema of columns with these DuckDB types."""
    return StructType([StructField(name, type_mapping_of(type_).spark) for name, type_ in columns.items()])


@lru_cache(maxsize=4096)
def type_mapping_of(type_: str) -> SparkTypeMapping:
    """Return the mapping of a DuckDB type, by DuckDB's name of it."""
    if type_ in _PLAIN:
        return _PLAIN[type_]
    with scratch_connection() as con:
        return _mapping_of(con.type(type_))


def _mapping_of(type_: DuckDBPyType) -> SparkTypeMapping:
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
    return [(name, _mapping_of(child)) for name, child in type_.children if isinstance(child, DuckDBPyType)]
