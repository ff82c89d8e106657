"""DuckDB's answers, and Spark's physical plans."""

from __future__ import annotations

from typing import Any

import duckdb
from pyspark.sql import DataFrame


def rows_of(sql: str) -> Any:
    """Return the answer of DuckDB."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    return con.sql(sql)


def plan_of(frame: DataFrame) -> str:
    """Return all of Spark's plans for a frame, as text."""
    return str(frame._jdf.queryExecution().toString())  # type: ignore[operator]
