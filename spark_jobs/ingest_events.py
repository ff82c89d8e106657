"""Write files of events (JSON lines or Parquet) to an IceDB table, in one commit.

    spark-submit ingest_events.py --input 's3://raw/events/*.jsonl.gz' \\
        --table s3://lake/events

A record that is not JSON, or does not fit the table's columns, ends the job before anything is written. With
--quarantine, such records are moved to another table, each with the reason, its place and its text, and the others are
written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

import icedb
import icedb.spark
from icedb.errors import EmptyBatch, InvalidBatch, InvalidOption, TableExists, TableNotFound
from icedb.operations.write.spark_errors import explained_of_frame
from icedb.operations.write.spark_frames import check_frame
from icedb.spark.datasource.type_mapping import arrow_schema, spark_schema
from icedb.spark.file_frames import InputFiles, find_files, json_lines, parquet_rows
from icedb.storage.location import parse_location
from icedb.transaction.idempotent_append import Txn, is_recorded
from icedb.writer.staged_batch import QUARANTINE_COLUMNS
from icedb.writer.staging import check_batch
from spark_jobs.job import Job, JobResult, parser, positive, run

__all__ = [
    "NO_QUARANTINED_RECORDS",
    "Creation",
    "Ingested",
    "check_bad_count",
    "valid_rows",
    "ingest",
    "main",
    "records_of",
]

NAME = "ingest_events"
NO_QUARANTINED_RECORDS = "no_quarantined_records"
# Characters of a bad record that an error message shows.
EXAMPLE_CHARS = 200
_CORRUPT = "__icedb_corrupt"


@dataclass(frozen=True, slots=True)
class Creation:
    """Layout of a table that does not exist yet."""

    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ingested:
    """Counts of an ingest. `repeated`: the batch was committed earlier, and nothing was read."""

    files: int
    rows_read: int
    rows_written: int
    parts_written: int
    bytes_written: int
    rows_quarantined: int
    repeated: bool = False


def ingest(
    spark: SparkSession,
    inputs: Sequence[str],
    table: str,
    *,
    schema: StructType | None = None,
    creation: Creation | None = None,
    quarantine: str | None = None,
    bad_records_max: int | None = None,
    txn: Txn | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Ingested:
    """Write the records of files to a table, in one commit or none.

    Args:
        spark: the session.
        inputs: paths and globs, local or `s3://`.
        table: the address of the table.
        schema: the schema of JSON lines; None: the table's, or for a new table the inferred one.
        creation: create the table with this layout if it does not exist.
        quarantine: the table for bad records; None: a bad record is an error.
        bad_records_max: raise an error for more bad records than this.
        txn: the idempotency key, as for `Table.insert`.
        storage_options: options of the store.

    Returns:
        The counts of files, records and parts (data files).

    Raises:
        TableNotFound: the table does not exist, and `creation` is None.
        InvalidBatch: there are too many bad records, or files of several formats.
        InvalidOption: an option is invalid.
        IceDBError: as for `icedb.spark.write` and `Table.create`.
    """
    existing = _open(table, creation, storage_options)
    if existing is not None and txn is not None and is_recorded(existing.handle.read(fresh=True), txn):
        return Ingested(0, 0, 0, 0, 0, 0, repeated=True)
    files = find_files(inputs, parse_location(table, storage_options))
    if files.format == "parquet":
        frame = parquet_rows(spark, files)
        target = existing or _create(table, creation, storage_options)
        commit = icedb.spark.write(frame, target.uri, txn=txn, storage_options=storage_options)
        return Ingested(len(files.paths), commit.rows, commit.rows, len(commit.parts), commit.bytes, 0)

    if schema is None and existing is not None and existing.schema():
        schema = spark_schema(existing.schema())
    required = () if existing is None else existing.spec.required
    try:
        if schema is None:
            lines = json_lines(spark, files, None)
            schema = spark.read.json(lines.where("problem IS NULL").select("text")).schema
        if not schema.fields:
            raise EmptyBatch(f"{table}: the files have no records to infer the columns from. Pass --schema.")
        if existing is not None:  # before any record is quarantined
            check_frame(existing.handle)
            check_batch(existing.handle.write_context(), arrow_schema(schema, existing.uri))
        records = records_of(spark, files, schema, required).persist()  # read once for counts, quarantine and write
        try:
            read, bad = records.agg(F.count("*"), F.count("reason")).collect()[0]
            check_bad_count(table, records, bad, 0 if quarantine is None else bad_records_max)
            if bad and quarantine is not None:
                _quarantine(records, table, quarantine, txn, storage_options)
            if read == bad:
                return Ingested(len(files.paths), read, 0, 0, 0, bad)
            target = existing or _create(table, creation, storage_options)
            commit = icedb.spark.write(valid_rows(records), target.uri, txn=txn, storage_options=storage_options)
        finally:
            records.unpersist()
    except Exception as error:  # noqa: BLE001  any error of Spark, in this session or another
        raise explained_of_frame(error, table=table) from None
    return Ingested(len(files.paths), read, commit.rows, len(commit.parts), commit.bytes, bad)


def _open(table: str, creation: Creation | None, storage_options: Mapping[str, str] | None) -> icedb.Table | None:
    try:
        return icedb.Table.open(table, storage_options=storage_options)
    except TableNotFound:
        if creation is None:
            raise
        return None


def _create(table: str, creation: Creation | None, storage_options: Mapping[str, str] | None) -> icedb.Table:
    layout = creation or Creation()
    try:
        return icedb.Table.create(
            table, partition_by=layout.partition_by, sort_by=layout.sort_by, storage_options=storage_options
        )
    except TableExists:  # a concurrent job created it
        return icedb.Table.open(table, storage_options=storage_options)


def records_of(spark: SparkSession, files: InputFiles, schema: StructType, required: Sequence[str] = ()) -> DataFrame:
    """Parse the lines of JSON files into columns `source`, `text`, `reason` and `record`.

    `reason` is null if the line is a valid record of the schema, with values in all columns of `required`.
    """
    lines = json_lines(spark, files, schema)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = lines.withColumn("parsed", F.from_json("text", corrupt, options))
    raw = F.from_json("text", "map<string, string>")
    misfits = [
        F.when(F.element_at(raw, F.lit(f.name)).isNotNull() & _field("parsed", f.name).isNull(), F.lit(f.name))
        for f in schema.fields
    ]
    missing = [F.when(_field("parsed", c).isNull(), F.lit(f"lacks a value of '{c}'")) for c in required]
    reason = F.coalesce(
        F.col("problem"),
        F.when(
            _field("parsed", _CORRUPT).isNotNull(),
            F.concat_ws(": ", F.lit("does not fit the columns"), F.nullif(F.concat_ws(", ", *misfits), F.lit(""))),
        ),
        *missing,
    )
    record = F.struct(*(_field("parsed", f.name).alias(f.name) for f in schema.fields))
    return parsed.select("source", "text", reason.alias("reason"), record.alias("record"))


def valid_rows(records: DataFrame) -> DataFrame:
    """Return the rows of the valid records."""
    return records.where("reason IS NULL").select("record.*")


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


def check_bad_count(table: str, records: DataFrame, bad: int, allowed: int | None) -> None:
    """Raise InvalidBatch if there are more bad records than allowed; None allows all."""
    if allowed is None or bad <= allowed:
        return
    first = records.where("reason IS NOT NULL").orderBy("source").select("source", "reason", "text").first()
    example = "" if first is None else f" {first.source}: the record {first.reason}: {first.text[:EXAMPLE_CHARS]!r}."
    remedy = (
        "Correct it, or move such records to another table with --quarantine."
        if allowed == 0
        else "Correct them, or allow more with --max-bad-records."
    )
    raise InvalidBatch(f"{table}: {bad} bad records, {allowed} are allowed. Nothing was written.{example} {remedy}")


def _quarantine(
    records: DataFrame, table: str, quarantine: str, txn: Txn | None, storage_options: Mapping[str, str] | None
) -> None:
    """Write the bad records first, so that none is lost: a job that fails after this quarantines them again."""
    try:
        icedb.Table.create(
            quarantine, schema=QUARANTINE_COLUMNS, sort_by=["quarantined_at"], storage_options=storage_options
        )
    except TableExists:
        existing = icedb.Table.open(quarantine, storage_options=storage_options)
        if not QUARANTINE_COLUMNS.items() <= existing.schema().items():
            raise InvalidOption(
                f"{table}: the table '{quarantine}' exists and is not a quarantine. Name one that does not exist."
            ) from None
    rejected = records.where("reason IS NOT NULL").select(
        F.current_timestamp().alias("quarantined_at"), "source", "reason", F.col("text").alias("row")
    )
    icedb.spark.write(rejected, quarantine, txn=txn, storage_options=storage_options)


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--input", action="append", required=True, metavar="PATH",
        help="read this file or glob, local or s3://: .parquet, or .jsonl, .ndjson, .json (also .gz, .zst)",
    )  # fmt: skip
    made.add_argument(
        "--schema",
        metavar="DDL",
        help="set the columns of JSON lines, 'ts TIMESTAMP, user_id BIGINT' [default: the table's, or inferred]",
    )
    made.add_argument("--create", action="store_true", help="create the table if it does not exist")
    made.add_argument(
        "--partition-by",
        action="append",
        default=[],
        metavar="SQL",
        help="partition a new table by this expression: 'id %% 9 AS slot'",
    )
    made.add_argument(
        "--sort-by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="sort the rows of a new table's parts by this column",
    )
    made.add_argument(
        "--quarantine", nargs="?", const="", metavar="TABLE",
        help="move bad records to this table; without a name, to <table>_quarantine",
    )  # fmt: skip
    made.add_argument(
        "--max-bad-records",
        type=positive,
        metavar="N",
        help="write nothing if there are more bad records (requires --quarantine)",
    )
    made.add_argument(
        "--batch-id", type=batch_id, metavar="NAME:NUMBER",
        help="commit exactly once: skip if this name has committed this number or a later one",
    )  # fmt: skip
    return made


def batch_id(text: str) -> Txn:
    """Return NAME:NUMBER as the `txn` (idempotency key) of the commit."""
    name, _, number = text.rpartition(":")
    if not (name and number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:NUMBER, such as clicks:17")
    return f"ingest:{name}", int(number)


def work(job: Job, args: argparse.Namespace) -> JobResult:
    """Run the program with its arguments."""
    options: dict[str, str] = args.storage_options
    if (args.partition_by or args.sort_by) and not args.create:
        raise InvalidOption(f"{args.table}: --partition-by and --sort-by require --create.")
    if args.max_bad_records is not None and args.quarantine is None:
        raise InvalidOption(
            f"{args.table}: --max-bad-records requires --quarantine, the table for bad records. Pass it."
        )
    location = parse_location(args.table, options)
    quarantine = args.quarantine
    if quarantine == "":
        quarantine = location.sibling(f"{location.name}_quarantine").uri
    if not args.create:
        icedb.Table.open(args.table, storage_options=options)  # fail before a session is started
    schema = None if args.schema is None else _schema(args.table, args.schema, job.spark)
    job.log.info("reading %s", ", ".join(args.input))
    done = ingest(
        job.spark,
        args.input,
        args.table,
        schema=schema,
        creation=Creation(args.partition_by, args.sort_by) if args.create else None,
        quarantine=quarantine,
        bad_records_max=args.max_bad_records,
        txn=args.batch_id,
        storage_options=options,
    )
    if done.repeated:
        job.log.info("batch %s:%d was committed earlier; nothing was read", *args.batch_id)
    else:
        job.log.info(
            "%s: %d files, %d records, %d written in %d parts, %d quarantined",
            *(args.table, done.files, done.rows_read, done.rows_written, done.parts_written, done.rows_quarantined),
        )
    snapshot = None
    if icedb.Table.exists(args.table, storage_options=options):
        snapshot = icedb.Table.open(args.table, storage_options=options).snapshot()
    figures: dict[str, int | str] = {
        "files": done.files,
        "rows_read": done.rows_read,
        "rows_written": done.rows_written,
        "parts_written": done.parts_written,
        "bytes_written": done.bytes_written,
        "rows_quarantined": done.rows_quarantined,
    }
    figures |= {"quarantine": quarantine} if done.rows_quarantined else {}
    figures |= {"repeated": "yes"} if done.repeated else {}
    return JobResult(snapshot, figures, {NO_QUARANTINED_RECORDS: done.rows_quarantined == 0})


def _schema(table: str, ddl: str, spark: SparkSession) -> StructType:
    try:
        return spark.createDataFrame([], ddl).schema
    except Exception as error:  # noqa: BLE001  a classic session and Spark Connect raise their own
        reason = str(error).strip().splitlines()[0]
        raise InvalidOption(
            f"{table}: --schema is invalid: {reason}. Write it as columns: 'ts TIMESTAMP, user_id BIGINT'."
        ) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program from spark-submit, plain Python or Dagster. Return its exit status."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
