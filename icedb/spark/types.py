"""Types on their way between Spark, Arrow and DuckDB."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from icedb.errors import UnsupportedType

__all__ = ["arrow_schema"]

_VARIANT = re.compile(r"(?<![\w`])variant(?![\w`:])")


def arrow_schema(schema: StructType, path: str) -> pa.Schema:
    """What the tasks will get. Raises UnsupportedType for a type that Arrow or Parquet does not have."""
    return pa.schema([_arrow_field(field, path) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    type_ = field.dataType.simpleString()
    try:
        arrow = to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkException, ValueError):  # pyarrow's, for the elements of `array()`
        arrow = None
    if arrow is None or _VARIANT.search(type_):  # to Arrow, a variant is a struct of two undocumented blobs
        raise UnsupportedType(
            f"{path}: column '{field.name}' is {type_}, which cannot be stored. Cast it to the type that it shall have "
            "in the table (a variant: to_json)."
        )
    return arrow
