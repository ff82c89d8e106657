"""A Spark program that reports to Dagster: `pipes_program.py --table <uri> [--module <name>] [--fail <why>]`.

It writes numbers to a table. `--module` names a module that only the executors have; `--fail` is an error that it
raises first.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from dagster_pipes import open_dagster_pipes
from pyspark.sql import SparkSession

import icedb.spark

ROWS = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", required=True)
    parser.add_argument("--module")
    parser.add_argument("--fail")
    arguments = parser.parse_args()
    with open_dagster_pipes() as pipes:
        if arguments.fail:
            raise ValueError(arguments.fail)
        spark = SparkSession.builder.appName("pipes_program").getOrCreate()
        try:
            numbers = spark.range(0, ROWS, 1, 2).selectExpr("id AS n", "id % 2 AS half")
            commit = icedb.spark.write(numbers, arguments.table)
            pipes.log.info("wrote %d rows", commit.rows)
            pipes.report_asset_materialization(
                metadata={
                    "rows": commit.rows,
                    "connect": type(spark).__module__.startswith("pyspark.sql.connect"),
                    "master": spark.conf.get("spark.master") or "",
                    "shipped": shipped(spark, arguments.module) if arguments.module else "",
                    "asked": pipes.extras["asked"] if pipes.is_asset_step else "",
                    "password": len(os.environ.get("PASSWORD", "")),
                },
                data_version=icedb.Table.open(arguments.table).snapshot().id,
            )
        finally:
            spark.stop()


def shipped(spark: SparkSession, module: str) -> str:
    """Return the content of a module in the tasks."""

    def look(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            continue
        yield pa.RecordBatch.from_pydict({"word": [importlib.import_module(module).WORD]})

    return " ".join(row.word for row in spark.range(0, 2, 1, 2).mapInArrow(look, "word string").collect())


if __name__ == "__main__":
    main()
