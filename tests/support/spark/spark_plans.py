"""Random sequences of Spark plans over one loaded frame and one view of it, each compared with DuckDB's answer.

Also a program, `spark_plans.py <address> <folder> <seeds>`: the same over Spark Connect.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import icedb.spark
from icedb import Table
from icedb.spark.datasource.pushdown_warning import SETTING
from icedb.spark.read_frames import ReadEngine

ROWS = 9
FILTERS = (
    "k < 2", "k > 5", "k % 3 = 0", "half = 1", "half IS NOT NULL AND k <> 4", "word = 'b'", "word IS NULL",
    "k BETWEEN 2 AND 6 AND half = 0", "k IN (1, 7, 30)", "word LIKE 'a%'", "NOT (k = 3)",
)  # fmt: skip
HOW = ("view", "frame", "explain", "cache", "write", "filter")


def create(folder: Path) -> Table:
    """Create a table of three parts in two partitions, with the rows `k` = 0 to 8."""
    table = Table.create(folder / "t", partition_by=["k % 2 AS half"], sort_by=["k"])
    table.insert(pa.table({"k": range(6), "word": ["a", "b", None, "ab", "b", "a"]}))
    table.insert(pa.table({"k": range(6, ROWS), "word": ["b", "c", None]}))
    return table


def random_plan(choose: random.Random) -> str:
    """Return a query over `{rows}` with one column `k`, with the same answer of Spark and DuckDB."""
    one, two = choose.choice(FILTERS), choose.choice(FILTERS)
    return choose.choice(
        [
            "SELECT k FROM {rows}",
            "SELECT count(*) AS k FROM {rows}",
            f"SELECT k FROM {{rows}} WHERE {one}",
            f"SELECT count(*) AS k FROM {{rows}} WHERE {one}",
            f"SELECT k FROM {{rows}} WHERE {one} UNION ALL SELECT k FROM {{rows}} WHERE {two}",
            f"SELECT k FROM {{rows}} EXCEPT SELECT k FROM {{rows}} WHERE {one}",
            f"SELECT a.k FROM (SELECT * FROM {{rows}} WHERE {one}) AS a JOIN (SELECT * FROM {{rows}} WHERE {two}) AS b "
            "ON a.half = b.half",
            f"SELECT k FROM {{rows}} WHERE k > (SELECT min(k) FROM {{rows}} WHERE {one})",
            f"SELECT k FROM {{rows}} WHERE k IN (SELECT k + 1 FROM {{rows}} WHERE {one}) AND {two}",
        ]
    )


def check_sequence(spark: SparkSession, table: Table, engine: ReadEngine, seed: int, folder: Path) -> None:
    """Play 2 to 6 plans over one frame of the table, and compare each with DuckDB's answer over the snapshot."""
    choose = random.Random(seed)
    frame = icedb.spark.read(spark, table.uri, engine=engine)
    view = f"view_{engine}_{seed}"
    frame.createOrReplaceTempView(view)
    rows = table.snapshot().to_arrow()
    story = []
    for number in range(choose.randint(2, 6)):
        sql, how = random_plan(choose), choose.choice(HOW)
        story.append((how, sql))
        answer = _answer(spark, frame, view, sql, how, folder / f"{engine}-{seed}-{number}")
        with duckdb.connect() as con:
            con.register("rows", rows)
            expected = sorted(k for (k,) in con.execute(sql.format(rows="rows")).fetchall())
        assert answer == expected, (seed, engine, story)
    spark.catalog.dropTempView(view)


def _answer(spark: SparkSession, frame: DataFrame, view: str, sql: str, how: str, folder: Path) -> list[int]:
    plan = spark.sql(sql, rows=frame) if how == "frame" else spark.sql(sql.format(rows=view))
    match how:
        case "explain":  # of another query, which must change nothing
            with contextlib.redirect_stdout(io.StringIO()):
                frame.where("k = 1").explain()
        case "cache":
            cached = frame.where("k > 1").cache()
            assert cached.count() == ROWS - 2
            cached.unpersist()
        case "filter":
            assert sorted(r.k for r in frame.where("k < 4").select("k").collect()) == [0, 1, 2, 3]
        case "write":
            copy = Table.create(folder)
            icedb.spark.write(plan, copy.uri)
            return sorted(k for (k,) in copy.query("SELECT k FROM t").fetchall()) if copy.snapshot().rows else []
    return sorted(r.k for r in plan.collect())


def main(address: str, folder: Path, seeds: int) -> None:
    spark = SparkSession.builder.remote(address).getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    table = create(folder)
    for setting in ("true", "false"):
        spark.conf.set(SETTING, setting)
        for seed in range(seeds):
            for engine in ("python", "native"):
                check_sequence(spark, table, engine, seed, folder / setting)  # type: ignore[arg-type]
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
