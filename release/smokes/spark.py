"""Spark writes a table and reads it, with the Java of the extra."""

from pyspark.sql import SparkSession

import icedb
from icedb.spark.java import prepare_environment

prepare_environment()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
table = icedb.Table.create("events", partition_by=["day"])
rows = spark.createDataFrame([("2026-11-21", n) for n in range(10)], "day string, n long")
rows.write.format("icedb").mode("append").save(table.uri)
assert spark.read.format("icedb").load(table.uri).selectExpr("sum(n)").collect()[0][0] == 45
assert icedb.Table.open(table.uri).query("SELECT sum(n) FROM t").fetchall() == [(45,)]
spark.stop()
