"""Write a snapshot of a table to Parquet files, for programs that know nothing of IceDB.

    spark-submit export_table.py --table s3://lake/events --output /exports/events --where "day >= DATE '2026-11-01'"

The files are Spark's. To a bucket Spark writes with Hadoop's client (s3a://...), which it must have. On a cluster, a
folder must be one that all machines share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import icedb
import icedb.spark
from icedb.errors import InvalidOption
from icedb.operations.write.spark_errors import explained
from icedb.spark.datasource.read_options import read_options
from spark_jobs.job import Job, Result, parser, positive, run

__all__ = ["export", "main"]

NAME = "export_table"


def export(
    spark: SparkSession,
    snapshot: icedb.Snapshot,
    output: str,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    files: int | None = None,
) -> int:
    """Write the rows of a snapshot to Parquet files below `output`; returns how many there are.

    `where` and `columns`: as for `icedb.spark.read`. `files`: about so many; None: as the table's parts are. Raises
    InvalidOption when something is at `output` already, and as `icedb.spark.frame` does.
    """
    check_empty(snapshot.table, output)
    frame = icedb.spark.frame(spark, snapshot, where=where, columns=columns)
    if files is not None:
        frame = frame.repartition(files)
    try:
        frame.write.mode("error").parquet(output)
        return spark.read.schema(frame.schema).parquet(output).count()
    except Exception as error:  # noqa: BLE001  whatever Spark raises, in this session or another
        if "PATH_ALREADY_EXISTS" in str(error):
            raise _not_empty(snapshot.table, output) from None
        raise explained(error, table=snapshot.table) from None


def check_empty(table: str, output: str) -> None:
    """Refuse a folder with something in it; an empty one makes room for Spark's. Raises InvalidOption."""
    folder = Path(output)
    if "://" in output or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise _not_empty(table, output)
    folder.rmdir()


def _not_empty(table: str, output: str) -> InvalidOption:
    return InvalidOption(
        f"{table}: there is something at '{output}' already, with which an export would be mixed. Name a folder that "
        "is empty or not there yet."
    )


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """The program's arguments."""
    made = parser(__doc__)
    made.add_argument("--output", required=True, metavar="FOLDER", help="where the files go; nothing may be there")
    made.add_argument("--as-of", metavar="TIME", help="a time with its zone, or unix milliseconds; else the latest")
    made.add_argument("--where", metavar="SQL", help="which partitions: a DuckDB condition over the partition columns")
    made.add_argument("--columns", metavar="NAMES", help="which columns, with commas between them; else all")
    made.add_argument("--files", type=positive, metavar="N", help="how many files, about")
    return made


def work(job: Job, args: argparse.Namespace) -> Result:
    """Do what the arguments say."""
    given = {"path": args.table, "as_of": args.as_of, "where": args.where, "columns": args.columns}
    wanted = read_options({name: value for name, value in given.items() if value is not None})
    table = icedb.Table.open(args.table, storage_options=args.storage_options)
    snapshot = table.snapshot(wanted.as_of_ms)
    check_empty(table.uri, args.output)
    job.log.info(
        "%s: exporting %d parts as of %d to %s", table.uri, len(snapshot.parts), snapshot.as_of_ms, args.output
    )
    rows = export(job.spark, snapshot, args.output, where=wanted.where, columns=wanted.columns, files=args.files)
    job.log.info("%s: %d rows are in %s", table.uri, rows, args.output)
    return Result(snapshot, {"rows_exported": rows, "output": args.output, "as_of_ms": snapshot.as_of_ms})


def main(argv: Sequence[str] | None = None) -> int:
    """Run by itself, from spark-submit, plain Python or Dagster."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
