"""Spark's reads of parts with bloom filters."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from icedb import spark as icedb_spark
from tests.support.spark.spark_tables import Create, content

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


def batch(first: int) -> pa.Table:
    numbers = range(first, first + 50)
    return pa.table({"n": numbers, "user": [f"user {n * 7919 % 1000}" for n in numbers]})


@pytest.mark.sampled(days=6)
def test_spark_finds_the_same_rows_with_and_without_filters(spark: SparkSession, create: Create) -> None:
    table = create(batch(0))
    table.alter(bloom_filters=["user", "n"])
    table.insert(batch(50))
    icedb_spark.write(spark.createDataFrame([(100, "user 900")], "n BIGINT, user STRING"), table.uri)
    users: dict[Any, Any] = dict(content(table, 'n, "user"'))
    for engine in ("native", "python"):
        frame = icedb_spark.read(spark, table.uri, engine=engine)
        for n in (7, 70, 100):
            assert frame.where(f"n = {n}").collect() == frame.where(f"user = '{users[n]}'").collect() == [(n, users[n])]
        assert frame.where("n = 101 OR user = 'nobody'").count() == 0
