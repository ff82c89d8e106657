"""Rewrite a range of a table's partitions from their sources, each in one atomic overwrite.

    spark-submit backfill.py --table s3://lake/events --by day \\
        --from 2026-01-01 --to 2026-01-31 --partition 'day={date:%Y-%m-%d}' \\
        --input 's3://raw/{date:%Y/%m/%d}/*.parquet' --progress s3://lake/_backfill

After each partition, the program writes a small object below --progress. Run again with the same arguments, it skips
these partitions. It repeats a partition that was written but not recorded, with the same result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

import icedb
import icedb.spark
from icedb.errors import EmptyBatch, InvalidOption
from icedb.spark.datasource.type_mapping import spark_schema
from icedb.spark.file_frames import find_files, parquet_rows
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectExists, ObjectStore, open_store
from spark_jobs.ingest_events import check_bad_count, records_of, valid_rows
from spark_jobs.job import Job, JobResult, parser, run

__all__ = ["Backfilled", "Period", "BackfillProgress", "Source", "backfill", "main", "moments"]

NAME = "backfill"
Period = Literal["hour", "day", "month"]
# Dagster's key of an hour is 2026-11-21-05:00.
_DAGSTER_HOUR = re.compile(r"^(\d{4}-\d\d-\d\d)-(?=\d\d:\d\d$)")
_KEYS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}


@dataclass(frozen=True, slots=True)
class Source:
    """Source of the rows of a partition: files, or the partitions of a table that match `where`.

    All fields are templates, in which `{date:%Y-%m-%d}` is the date of the partition.
    """

    inputs: tuple[str, ...] = ()
    table: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Counts of a backfill: partitions, rows and parts (data files)."""

    done: int
    skipped: int
    #: Partitions without source rows, which were not changed.
    missing: int
    rows: int
    parts: int


def moments(first: str, last: str, by: Period) -> list[datetime]:
    """Return the starts of all hours, days or months of a range, both ends included.

    Raises:
        InvalidOption: a date is invalid, or the range is empty.

    Example:
        moments("2026-11-01", "2026-11-30", "day")
    """
    start, end = (_moment(text, by) for text in (first, last))
    if end < start:
        raise InvalidOption(f"backfill: the range ends at {last}, before its start at {first}. Swap the dates.")
    starts = [start]
    while (following := _next(starts[-1], by)) <= end:
        starts.append(following)
    return starts


def _moment(text: str, by: Period) -> datetime:
    try:
        moment = datetime.fromisoformat(
            _DAGSTER_HOUR.sub(r"\1T", f"{text}-01" if len(text) == len("2026-01") else text)
        )
    except ValueError:
        raise InvalidOption(f"backfill: '{text}' is not a date. Write it as {_KEYS[by]}.") from None
    if moment.tzinfo is not None:
        raise InvalidOption(f"backfill: '{text}' has a UTC offset. Write the date of the partition, without one.")
    whole = moment.replace(minute=0, second=0, microsecond=0)
    if by != "hour":
        whole = whole.replace(hour=0, day=1 if by == "month" else whole.day)
    if whole != moment:
        raise InvalidOption(f"backfill: '{text}' is not the start of a {by}. Write it as {_KEYS[by]}.")
    return moment


def _next(moment: datetime, by: Period) -> datetime:
    match by:
        case "hour":
            return moment + timedelta(hours=1)
        case "day":
            return moment + timedelta(days=1)
    return (moment + timedelta(days=31)).replace(day=1)


def fill_template(template: str, moment: datetime) -> str:
    """Fill in the date of a template. Raises InvalidOption."""
    try:
        return template.format(date=moment)
    except (KeyError, IndexError, ValueError, AttributeError):
        raise InvalidOption(
            f"backfill: '{template}' has braces that are not of a date. Write {{date:%Y-%m-%d}}, and {{{{ for a brace."
        ) from None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """Record of the finished partitions: one object each below an address. No object is ever changed."""

    store: ObjectStore = field(repr=False)
    prefix: str

    @classmethod
    def at(cls, uri: str, what: object, storage_options: Mapping[str, str] | None = None) -> BackfillProgress:
        """Return the progress of the backfill with the parameters `what`. Raises InvalidURI, InvalidOption."""
        location = parse_location(uri, storage_options)
        name = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
        return cls(open_store(location), "/".join(filter(None, (location.prefix, name))))

    def done(self) -> set[str]:
        """Return the keys of the finished periods. Raises the store's errors."""
        return {info.key.rpartition("/")[2].removesuffix(".json") for info in self.store.list(f"{self.prefix}/")}

    def note(self, key: str, commit: icedb.Commit) -> None:
        """Record a finished period. Raises the store's errors."""
        entry = {"partition": key, "log_file": commit.key, "rows": commit.rows, "parts": len(commit.parts)}
        try:
            self.store.create(f"{self.prefix}/{key}.json", json.dumps(entry).encode())
        except ObjectExists:
            return  # a concurrent run of the same backfill wrote the same


def backfill(
    spark: SparkSession,
    table: icedb.Table,
    source: Source,
    dates: Sequence[datetime],
    *,
    by: Period,
    partition: str,
    progress: BackfillProgress,
    skip_missing: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_partition: Callable[[str, str], None] | None = None,
) -> Backfilled:
    """Overwrite the partition of each date with its rows.

    Args:
        spark: the session.
        table: the table to write.
        source: the source of the rows.
        dates: the starts of the periods, see `moments`.
        by: the length of a period.
        partition: a template of the path of a partition, such as `day={date:%Y-%m-%d}`.
        progress: the record of finished partitions.
        skip_missing: leave a partition without source rows as it is, instead of raising an error.
        storage_options: options of the store.
        on_partition: called with the path of each partition and a text about its result.

    Returns:
        The counts of all partitions.

    Raises:
        InvalidBatch: a source has invalid records, or no rows.
        InvalidOption: a template or an option is invalid.
        IceDBError: as for `icedb.spark.write`.
    """
    before = progress.done()
    done = skipped = missing = rows = parts = 0
    for date in dates:
        key, path = date.strftime(_KEYS[by]), fill_template(partition, date)
        if key in before:
            skipped += 1
            outcome = "already done"
        else:
            try:
                commit = _write(spark, table, source, date, path, storage_options)
            except EmptyBatch:
                if not skip_missing:
                    raise
                commit = None
            if commit is None:
                missing += 1
                outcome = "no rows, not changed"
            else:
                progress.note(key, commit)
                done, rows, parts = done + 1, rows + commit.rows, parts + len(commit.parts)
                outcome = f"{commit.rows} rows in {len(commit.parts)} parts"
        if on_partition is not None:
            on_partition(path, outcome)
    return Backfilled(done, skipped, missing, rows, parts)


def _write(
    spark: SparkSession, table: icedb.Table, source: Source, date: datetime, path: str,
    storage_options: Mapping[str, str] | None,
) -> icedb.Commit:  # fmt: skip
    """Overwrite one partition. Raises EmptyBatch when there are no rows for it."""

    def overwrite(frame: DataFrame) -> icedb.Commit:
        return icedb.spark.write(
            frame, table.uri, overwrite="partitions", partitions=[path], storage_options=storage_options
        )

    if source.table is not None:
        snapshot = icedb.Table.open(source.table, storage_options=storage_options).snapshot()
        where = None if source.where is None else fill_template(source.where, date)
        # Without the partition columns, which would become columns of the table.
        return overwrite(icedb.spark.frame(spark, snapshot, where=where, columns=list(snapshot.schema)))
    files = find_files([fill_template(template, date) for template in source.inputs], table.handle.location)
    if files.format == "parquet":
        return overwrite(parquet_rows(spark, files))
    if not table.schema():
        raise InvalidOption(
            f"{table.uri}: the table has no columns yet, which are needed to read JSON lines. Declare them, or ingest "
            "some rows first."
        )
    records = records_of(spark, files, spark_schema(table.schema()), table.spec.required).persist()
    try:
        check_bad_count(table.uri, records, records.where("reason IS NOT NULL").count(), 0)
        return overwrite(valid_rows(records))
    finally:
        records.unpersist()


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--from", dest="first", metavar="DATE", help="start with this date [default: the range from Dagster]"
    )
    made.add_argument("--to", dest="last", metavar="DATE", help="end with this date, included")
    made.add_argument(
        "--by", choices=list(_KEYS), default="day", help="set the length of a partition [default: %(default)s]"
    )
    made.add_argument(
        "--partition", required=True, metavar="TEMPLATE", help="set the path of a partition: 'day={date:%%Y-%%m-%%d}'"
    )
    made.add_argument(
        "--input", action="append", default=[], metavar="TEMPLATE",
        help="read these files, as ingest_events does: 's3://raw/{date:%%Y/%%m/%%d}/*.parquet'; may be repeated",
    )  # fmt: skip
    made.add_argument("--source-table", metavar="TABLE", help="read the rows from this table instead")
    made.add_argument(
        "--source-where",
        metavar="TEMPLATE",
        help="choose its partitions by a predicate: \"day = DATE '{date:%%Y-%%m-%%d}'\"",
    )
    made.add_argument(
        "--progress", required=True, metavar="FOLDER", help="record finished partitions in this folder or s3:// prefix"
    )
    made.add_argument(
        "--missing",
        choices=["fail", "skip"],
        default="fail",
        help="fail or skip if a partition has no rows [default: %(default)s]",
    )
    return made


def work(job: Job, args: argparse.Namespace) -> JobResult:
    """Run the program with its arguments."""
    options: dict[str, str] = args.storage_options
    source = Source(tuple(args.input), args.source_table, args.source_where)
    if bool(source.inputs) == (source.table is not None) or (source.table is None) != (source.where is None):
        raise InvalidOption(f"{args.table}: pass either --input, or both --source-table and --source-where.")
    first, last = (args.first, args.last) if args.first or args.last else (job.partition_range or (None, None))
    if first is None or last is None:
        raise InvalidOption(
            f"{args.table}: the range is missing. Pass --from and --to, or run it for partitions in Dagster."
        )
    dates = moments(first, last, args.by)
    for template in (args.partition, *source.inputs, *filter(None, [source.where])):
        fill_template(template, dates[0])
    job.log.info("%s: %d partitions, %s to %s", args.table, len(dates), first, last)
    table = icedb.Table.open(args.table, storage_options=options)
    progress = BackfillProgress.at(args.progress, (table.uri, args.by, args.partition, source), options)
    done = backfill(
        job.spark,
        table,
        source,
        dates,
        by=args.by,
        partition=args.partition,
        progress=progress,
        skip_missing=args.missing == "skip",
        storage_options=options,
        on_partition=lambda path, outcome: job.log.info("%s: %s: %s", table.uri, path, outcome),
    )
    figures: dict[str, int | str] = {
        "partitions_done": done.done,
        "partitions_skipped": done.skipped,
        "partitions_missing": done.missing,
        "rows_written": done.rows,
        "parts_written": done.parts,
    }
    return JobResult(table.snapshot(), figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program from spark-submit, plain Python or Dagster. Return its exit status."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
