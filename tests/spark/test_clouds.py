"""Spark's executors, as processes of their own, with tables in the emulators of Azure and Google Cloud."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from icedb import Table
from icedb import spark as icedb_spark
from icedb.errors import InvalidOption
from icedb.spark import SparkEngine
from tests.support.object_stores.stores import Place
from tests.support.spark.spark_tables import content

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


@pytest.mark.sampled(days=3)
def test_spark_reads_writes_and_merges_a_table_in_a_cloud(spark: Any, cloud: Place) -> None:
    table = Table.create(cloud.uri, partition_by=["d"], sort_by=["n"], storage_options=cloud.storage_options)
    frame = spark.range(40).selectExpr("id AS n", "CAST(id % 2 AS STRING) AS d").repartition(2)
    icedb_spark.write(frame, cloud.uri, storage_options=cloud.storage_options)
    options = {"path": cloud.uri, **(cloud.storage_options or {})}
    frame.where("n < 10").selectExpr("n + 40 AS n", "d").write.format("icedb").mode("append").options(**options).save()
    parts = len(table.snapshot().parts)
    assert table.merge(engine=SparkEngine(spark)).merged_parts == parts
    assert content(table) == [(n,) for n in range(50)]
    half = icedb_spark.read(spark, cloud.uri, where="d = '1'", storage_options=cloud.storage_options)
    rows = half.selectExpr("sum(n)", "count(*)").collect()
    assert [tuple(row) for row in rows] == [(625, 25)]
    assert spark.read.format("icedb").options(**options).load().count() == 50
    with pytest.raises(InvalidOption, match="Spark's own scan cannot read this: it reads only tables in folders and"):
        icedb_spark.read(spark, cloud.uri, engine="native", storage_options=cloud.storage_options)
