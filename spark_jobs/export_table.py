"""Export a snapshot of a table to Parquet files, for programs that do not read IceDB.

    spark-submit export_table.py --table s3://lake/events --output /exports/events \\
        --where "day >= DATE '2026-11-01'"

Spark writes the files. For a bucket, it needs Hadoop's client (s3a://...). On a cluster, a folder must be one that all
machines share.
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
from icedb.util.times import time_text
from spark_jobs.job import Job, JobResult, parser, positive, run

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
    """Write the rows of a snapshot to Parquet files below `output`.

    Args:
        spark: the session.
        snapshot: the snapshot to export.
        output: a folder or an address of Hadoop's client, empty or not yet existing.
        where: a predicate, as for `icedb.spark.read`.
        columns: the columns, as for `icedb.spark.read`.
        files: the approximate number of files; None: by the parts of the table.

    Returns:
        The number of rows.

    Raises:
        InvalidOption: `output` is not empty.
        IceDBError: as for `icedb.spark.frame`.
    """
    check_empty(snapshot.table, output)
    frame = icedb.spark.frame(spark, snapshot, where=where, columns=columns)
    if files is not None:
        frame = frame.repartition(files)
    try:
        frame.write.mode("error").parquet(output)
        return spark.read.schema(frame.schema).parquet(output).count()
    except Exception as error:  # noqa: BLE001  any error of Spark, in this session or another
        if "PATH_ALREADY_EXISTS" in str(error):
            raise _not_empty(snapshot.table, output) from None
        raise explained(error, table=snapshot.table) from None


def check_empty(table: str, output: str) -> None:
    """Reject a folder that is not empty. Delete an empty one, which Spark would reject. Raises InvalidOption."""
    folder = Path(output)
    if "://" in output or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise _not_empty(table, output)
    folder.rmdir()


def _not_empty(table: str, output: str) -> InvalidOption:
    return InvalidOption(
        f"{table}: '{output}' is not empty, and the export would be mixed with its files. Name a folder that is empty "
        "or does not exist."
    )


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--output", required=True, metavar="FOLDER", help="write the files to this folder, which must be empty"
    )
    made.add_argument(
        "--as-of",
        metavar="TIME",
        help="export the table as of this time with time zone, or unix milliseconds [default: latest]",
    )
    made.add_argument(
        "--where", metavar="SQL", help="choose partitions by a DuckDB predicate over the partition columns"
    )
    made.add_argument("--columns", metavar="NAMES", help="choose columns, separated by commas [default: all]")
    made.add_argument("--files", type=positive, metavar="N", help="set the approximate number of files")
    return made


def work(job: Job, args: argparse.Namespace) -> JobResult:
    """Run the program with its arguments."""
    options = {"path": args.table, "as_of": args.as_of, "where": args.where, "columns": args.columns}
    parsed = read_options({name: value for name, value in options.items() if value is not None})
    table = icedb.Table.open(args.table, storage_options=args.storage_options)
    snapshot = table.snapshot(parsed.as_of_ms)
    check_empty(table.uri, args.output)
    at = time_text(snapshot.as_of_ms)
    job.log.info("%s: exporting %d parts as of %s to %s", table.uri, len(snapshot.parts), at, args.output)
    rows = export(job.spark, snapshot, args.output, where=parsed.where, columns=parsed.columns, files=args.files)
    job.log.info("%s: exported %d rows to %s", table.uri, rows, args.output)
    return JobResult(snapshot, {"rows_exported": rows, "output": args.output, "as_of_ms": snapshot.as_of_ms})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program from spark-submit, plain Python or Dagster. Return its exit status."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
