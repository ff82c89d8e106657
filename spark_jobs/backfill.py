"""Write a range of a table's partitions anew, one after the other, each of them in one atomic overwrite.

    spark-submit backfill.py --table s3://lake/events --from 2026-01-01 --to 2026-01-31 --by day \\
        --partition 'day={date:%Y-%m-%d}' --input 's3://raw/{date:%Y/%m/%d}/*.parquet' --progress s3://lake/_backfill

After each partition a small object below --progress says that it is done. Started again with the same arguments, the
program skips what is done. One that was written without being noted is written once more, which changes nothing.
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
from spark_jobs.ingest_events import check_bad, good, records_of
from spark_jobs.job import Job, Result, parser, run

__all__ = ["Backfilled", "Period", "Progress", "Source", "backfill", "main", "moments"]

NAME = "backfill"
Period = Literal["hour", "day", "month"]
# Dagster's key of an hour is 2026-11-21-05:00.
_DAGSTER_HOUR = re.compile(r"^(\d{4}-\d\d-\d\d)-(?=\d\d:\d\d$)")
_KEYS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of a partition come from: files, or a table's partitions for which `where` is true.

    All three are templates, in which `{date:%Y-%m-%d}` stands for the partition's date.
    """

    inputs: tuple[str, ...] = ()
    table: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What became of the partitions of a range."""

    done: int
    skipped: int
    #: Partitions without a source, which were left as they are.
    missing: int
    rows: int
    parts: int


def moments(first: str, last: str, by: Period) -> list[datetime]:
    """The beginnings of all hours, days or months from one to another, both included. Raises InvalidOption."""
    start, end = (_moment(text, by) for text in (first, last))
    if end < start:
        raise InvalidOption(f"backfill: the range ends at {last}, before it begins at {first}.")
    found = [start]
    while (following := _next(found[-1], by)) <= end:
        found.append(following)
    return found


def _moment(text: str, by: Period) -> datetime:
    try:
        moment = datetime.fromisoformat(
            _DAGSTER_HOUR.sub(r"\1T", f"{text}-01" if len(text) == len("2026-01") else text)
        )
    except ValueError:
        raise InvalidOption(f"backfill: '{text}' is no date; write it as {_KEYS[by]}.") from None
    if moment.tzinfo is not None:
        raise InvalidOption(f"backfill: '{text}' has an offset; dates are those of the partitions, without one.")
    whole = moment.replace(minute=0, second=0, microsecond=0)
    if by != "hour":
        whole = whole.replace(hour=0, day=1 if by == "month" else whole.day)
    if whole != moment:
        raise InvalidOption(f"backfill: '{text}' is not the beginning of a {by}.")
    return moment


def _next(moment: datetime, by: Period) -> datetime:
    match by:
        case "hour":
            return moment + timedelta(hours=1)
        case "day":
            return moment + timedelta(days=1)
    return (moment + timedelta(days=31)).replace(day=1)


def filled(template: str, moment: datetime) -> str:
    """A template with its date. Raises InvalidOption."""
    try:
        return template.format(date=moment)
    except (KeyError, IndexError, ValueError, AttributeError):
        raise InvalidOption(
            f"backfill: '{template}' has braces that are not a date's. Write {{date:%Y-%m-%d}}; a brace itself is {{{{."
        ) from None


@dataclass(frozen=True, slots=True)
class Progress:
    """Which partitions are done: an object for each, below an address. Nothing is ever changed there."""

    store: ObjectStore = field(repr=False)
    prefix: str

    @classmethod
    def at(cls, uri: str, what: object, storage_options: Mapping[str, str] | None = None) -> Progress:
        """The progress of `what`: of another backfill, another one. Raises InvalidURI, InvalidOption."""
        location = parse_location(uri, storage_options)
        name = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
        return cls(open_store(location), "/".join(filter(None, (location.prefix, name))))

    def done(self) -> set[str]:
        """The keys of the periods that are done. Raises the store's errors."""
        return {info.key.rpartition("/")[2].removesuffix(".json") for info in self.store.list(f"{self.prefix}/")}

    def note(self, key: str, commit: icedb.Commit) -> None:
        """Note that a period is done. Raises the store's errors."""
        told = {"partition": key, "log_file": commit.key, "rows": commit.rows, "parts": len(commit.parts)}
        try:
            self.store.create(f"{self.prefix}/{key}.json", json.dumps(told).encode())
        except ObjectExists:
            return  # another run of the same backfill, at the same time, wrote the same


def backfill(
    spark: SparkSession,
    table: icedb.Table,
    source: Source,
    dates: Sequence[datetime],
    *,
    by: Period,
    partition: str,
    progress: Progress,
    skip_missing: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_partition: Callable[[str, str], None] | None = None,
) -> Backfilled:
    """Overwrite the partition of each date by its rows. `partition`: a template of its path, `day={date:%Y-%m-%d}`.

    `skip_missing`: leave a partition as it is when there are no rows for it; else that is an error. `on_partition`
    gets its path and what became of it. Raises InvalidBatch, InvalidOption, and as `icedb.spark.write` does.
    """
    before = progress.done()
    done = skipped = missing = rows = parts = 0
    for date in dates:
        key, path = date.strftime(_KEYS[by]), filled(partition, date)
        if key in before:
            skipped += 1
            told = "done before"
        else:
            try:
                commit = _write(spark, table, source, date, path, storage_options)
            except EmptyBatch:
                if not skip_missing:
                    raise
                commit = None
            if commit is None:
                missing += 1
                told = "no rows for it: left as it is"
            else:
                progress.note(key, commit)
                done, rows, parts = done + 1, rows + commit.rows, parts + len(commit.parts)
                told = f"{commit.rows} rows in {len(commit.parts)} parts"
        if on_partition is not None:
            on_partition(path, told)
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
        where = None if source.where is None else filled(source.where, date)
        # Without its partition columns, which would become columns of the table.
        return overwrite(icedb.spark.frame(spark, snapshot, where=where, columns=list(snapshot.schema)))
    files = find_files([filled(template, date) for template in source.inputs], table.handle.location)
    if files.format == "parquet":
        return overwrite(parquet_rows(spark, files))
    if not table.schema():
        raise InvalidOption(
            f"{table.uri}: the table has no columns yet, by which JSON lines are read. Declare them, or ingest some "
            "rows first."
        )
    records = records_of(spark, files, spark_schema(table.schema()), table.spec.required).persist()
    try:
        check_bad(table.uri, records, records.where("reason IS NOT NULL").count(), 0)
        return overwrite(good(records))
    finally:
        records.unpersist()


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """The program's arguments."""
    made = parser(__doc__)
    made.add_argument("--from", dest="first", metavar="DATE", help="the first; else the range that Dagster asks for")
    made.add_argument("--to", dest="last", metavar="DATE", help="the last, which is done too")
    made.add_argument("--by", choices=list(_KEYS), default="day", help="how long a partition is (%(default)s)")
    made.add_argument("--partition", required=True, metavar="TEMPLATE", help="its path: 'day={date:%%Y-%%m-%%d}'")
    made.add_argument(
        "--input", action="append", default=[], metavar="TEMPLATE",
        help="files of its rows, as for ingest_events: 's3://raw/{date:%%Y/%%m/%%d}/*.parquet'; may be repeated",
    )  # fmt: skip
    made.add_argument("--source-table", metavar="TABLE", help="or another table that has its rows")
    made.add_argument(
        "--source-where", metavar="TEMPLATE", help="in which partitions of it: \"day = DATE '{date:%%Y-%%m-%%d}'\""
    )
    made.add_argument(
        "--progress", required=True, metavar="FOLDER", help="a folder or s3:// prefix, where is noted what is done"
    )
    made.add_argument(
        "--missing", choices=["fail", "skip"], default="fail", help="what to do without rows (%(default)s)"
    )
    return made


def work(job: Job, args: argparse.Namespace) -> Result:
    """Do what the arguments say."""
    options: dict[str, str] = args.storage_options
    source = Source(tuple(args.input), args.source_table, args.source_where)
    if bool(source.inputs) == (source.table is not None) or (source.table is None) != (source.where is None):
        raise InvalidOption(f"{args.table}: give --input, or both --source-table and --source-where.")
    first, last = (args.first, args.last) if args.first or args.last else (job.partition_range or (None, None))
    if first is None or last is None:
        raise InvalidOption(f"{args.table}: which range? Give --from and --to, or start it for partitions in Dagster.")
    dates = moments(first, last, args.by)
    for template in (args.partition, *source.inputs, *filter(None, [source.where])):
        filled(template, dates[0])
    job.log.info("%s: %d partitions, %s to %s", args.table, len(dates), first, last)
    table = icedb.Table.open(args.table, storage_options=options)
    progress = Progress.at(args.progress, (table.uri, args.by, args.partition, source), options)
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
        on_partition=lambda path, told: job.log.info("%s: %s: %s", table.uri, path, told),
    )
    figures: dict[str, int | str] = {
        "partitions_done": done.done,
        "partitions_skipped": done.skipped,
        "partitions_missing": done.missing,
        "rows_written": done.rows,
        "parts_written": done.parts,
    }
    return Result(table.snapshot(), figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Run by itself, from spark-submit, plain Python or Dagster."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
