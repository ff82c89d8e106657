"""Write files of events, JSON lines or Parquet, to an IceDB table, in one commit.

    spark-submit ingest_events.py --input 's3://raw/events/*.jsonl.gz' --table s3://lake/events

A record that is not JSON, or does not fit the table's columns, ends the job before anything is written. With
--quarantine such records go to a table beside, each with the reason, where it stood and its text, and the others are
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
from icedb.writer.staging import QUARANTINE_COLUMNS, check_batch
from spark_jobs.job import Job, Result, parser, positive, run

__all__ = ["NO_QUARANTINED_RECORDS", "Creation", "Ingested", "check_bad", "good", "ingest", "main", "records_of"]

NAME = "ingest_events"
NO_QUARANTINED_RECORDS = "no_quarantined_records"
# Of a bad record, what an error shows.
SHOWN_CHARS = 200
_CORRUPT = "__icedb_corrupt"


@dataclass(frozen=True, slots=True)
class Creation:
    """How a table is made that is not there yet."""

    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ingested:
    """What was read and what became of it. `repeated`: this batch was committed before, and nothing was read."""

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
    """Write the records of files to a table: one commit, or none.

    `schema`: of JSON lines; None: the table's, and for a new table what the records have. `creation`: make the table if
    it is not there. `quarantine`: the table for what is no record; None: such a line is an error. `bad_records_max`:
    more of them are an error all the same. `txn`: as for `Table.insert`.

    Raises TableNotFound, InvalidBatch, InvalidOption, and as `icedb.spark.write` and `Table.create` do.
    """
    found = _open(table, creation, storage_options)
    if found is not None and txn is not None and is_recorded(found.handle.read(fresh=True), txn):
        return Ingested(0, 0, 0, 0, 0, 0, repeated=True)
    files = find_files(inputs, parse_location(table, storage_options))
    if files.format == "parquet":
        frame = parquet_rows(spark, files)
        made = found or _create(table, creation, storage_options)
        commit = icedb.spark.write(frame, made.uri, txn=txn, storage_options=storage_options)
        return Ingested(len(files.paths), commit.rows, commit.rows, len(commit.parts), commit.bytes, 0)

    known = schema
    if known is None and found is not None and found.schema():
        known = spark_schema(found.schema())
    required = () if found is None else found.spec.required
    try:
        if known is None:
            lines = json_lines(spark, files, None)
            known = spark.read.json(lines.where("problem IS NULL").select("text")).schema
        if not known.fields:
            raise EmptyBatch(f"{table}: no record is in the files, so nobody knows the columns. Give --schema.")
        if found is not None:  # before any record is set aside
            check_frame(found.handle)
            check_batch(found.handle.write_context(), arrow_schema(known, found.uri))
        records = records_of(spark, files, known, required).persist()  # counted, set aside and written: read once
        try:
            read, bad = records.agg(F.count("*"), F.count("reason")).collect()[0]
            check_bad(table, records, bad, 0 if quarantine is None else bad_records_max)
            if bad and quarantine is not None:
                _set_aside(records, table, quarantine, txn, storage_options)
            if read == bad:
                return Ingested(len(files.paths), read, 0, 0, 0, bad)
            made = found or _create(table, creation, storage_options)
            commit = icedb.spark.write(good(records), made.uri, txn=txn, storage_options=storage_options)
        finally:
            records.unpersist()
    except Exception as error:  # noqa: BLE001  whatever Spark raises, in this session or another
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
    how = creation or Creation()
    try:
        return icedb.Table.create(
            table, partition_by=how.partition_by, sort_by=how.sort_by, storage_options=storage_options
        )
    except TableExists:  # another job was faster
        return icedb.Table.open(table, storage_options=storage_options)


def records_of(spark: SparkSession, files: InputFiles, schema: StructType, required: Sequence[str] = ()) -> DataFrame:
    """The lines of JSON files, each as a `record` of the schema, or with a `reason` why it is none.

    The columns are `source`, `text`, `reason` and `record`. A record must have values of the columns in `required`.
    """
    lines = json_lines(spark, files, schema)
    told = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = lines.withColumn("parsed", F.from_json("text", corrupt, told))
    raw = F.from_json("text", "map<string, string>")
    misfits = [
        F.when(F.element_at(raw, F.lit(f.name)).isNotNull() & _field("parsed", f.name).isNull(), F.lit(f.name))
        for f in schema.fields
    ]
    lacking = [F.when(_field("parsed", c).isNull(), F.lit(f"lacks a value of '{c}'")) for c in required]
    reason = F.coalesce(
        F.col("problem"),
        F.when(
            _field("parsed", _CORRUPT).isNotNull(),
            F.concat_ws(": ", F.lit("does not fit the columns"), F.nullif(F.concat_ws(", ", *misfits), F.lit(""))),
        ),
        *lacking,
    )
    record = F.struct(*(_field("parsed", f.name).alias(f.name) for f in schema.fields))
    return parsed.select("source", "text", reason.alias("reason"), record.alias("record"))


def good(records: DataFrame) -> DataFrame:
    """The rows of those that are records."""
    return records.where("reason IS NULL").select("record.*")


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)


def check_bad(table: str, records: DataFrame, bad: int, allowed: int | None) -> None:
    """Raise InvalidBatch for more bad records than allowed; None allows all."""
    if allowed is None or bad <= allowed:
        return
    worst = records.where("reason IS NOT NULL").orderBy("source").select("source", "reason", "text").first()
    example = "" if worst is None else f" {worst.source}: the record {worst.reason}: {worst.text[:SHOWN_CHARS]!r}."
    remedy = (
        "Correct it, or set such records aside with --quarantine."
        if allowed == 0
        else "Correct them, or allow more with --max-bad-records."
    )
    raise InvalidBatch(f"{table}: {bad} bad records, {allowed} are allowed; nothing was written.{example} {remedy}")


def _set_aside(
    records: DataFrame, table: str, quarantine: str, txn: Txn | None, storage_options: Mapping[str, str] | None
) -> None:
    """Before the others are written, so that no record is lost: a job that fails in between sets them aside again."""
    try:
        icedb.Table.create(
            quarantine, schema=QUARANTINE_COLUMNS, sort_by=["quarantined_at"], storage_options=storage_options
        )
    except TableExists:
        there = icedb.Table.open(quarantine, storage_options=storage_options)
        if not QUARANTINE_COLUMNS.items() <= there.schema().items():
            raise InvalidOption(
                f"{table}: bad records would go to '{quarantine}', and that table is another. Name one that is "
                "not there yet."
            ) from None
    aside = records.where("reason IS NOT NULL").select(
        F.current_timestamp().alias("quarantined_at"), "source", "reason", F.col("text").alias("row")
    )
    icedb.spark.write(aside, quarantine, txn=txn, storage_options=storage_options)


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """The program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--input", action="append", required=True, metavar="PATH",
        help="a file or glob, local or s3://: .parquet, or .jsonl, .ndjson, .json (also .gz, .zst); may be repeated",
    )  # fmt: skip
    made.add_argument(
        "--schema", metavar="DDL", help="of JSON lines, 'ts TIMESTAMP, user_id BIGINT'; else the table's, or inferred"
    )
    made.add_argument("--create", action="store_true", help="create the table if it is not there")
    made.add_argument(
        "--partition-by", action="append", default=[], metavar="SQL", help="of a new table: 'id %% 9 AS slot'"
    )
    made.add_argument("--sort-by", action="append", default=[], metavar="COLUMN", help="of a new table")
    made.add_argument(
        "--quarantine", nargs="?", const="", metavar="TABLE",
        help="set bad records aside, in this table; without a name, in <table>_quarantine",
    )  # fmt: skip
    made.add_argument(
        "--max-bad-records", type=positive, metavar="N", help="with more of them, write nothing (needs --quarantine)"
    )
    made.add_argument(
        "--batch-id", type=batch_id, metavar="NAME:NUMBER",
        help="exactly once: a batch of that name whose number was committed, or a later one, is not written again",
    )  # fmt: skip
    return made


def batch_id(text: str) -> Txn:
    """NAME:NUMBER as the `txn` of the commit."""
    name, _, number = text.rpartition(":")
    if not (name and number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:NUMBER, such as clicks:17")
    return f"ingest:{name}", int(number)


def work(job: Job, args: argparse.Namespace) -> Result:
    """Do what the arguments say."""
    options: dict[str, str] = args.storage_options
    if (args.partition_by or args.sort_by) and not args.create:
        raise InvalidOption(f"{args.table}: --partition-by and --sort-by are for a new table: add --create.")
    if args.max_bad_records is not None and args.quarantine is None:
        raise InvalidOption(
            f"{args.table}: --max-bad-records allows bad records, which need a place: add --quarantine."
        )
    place = parse_location(args.table, options)
    quarantine = args.quarantine
    if quarantine == "":
        quarantine = place.sibling(f"{place.name}_quarantine").uri
    if not args.create:
        icedb.Table.open(args.table, storage_options=options)  # before a session is started for it
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
        job.log.info("batch %s:%d was committed before: nothing is read", *args.batch_id)
    else:
        job.log.info(
            "%s: %d files, %d records, %d written in %d parts, %d set aside",
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
    return Result(snapshot, figures, {NO_QUARANTINED_RECORDS: done.rows_quarantined == 0})


def _schema(table: str, ddl: str, spark: SparkSession) -> StructType:
    try:
        return spark.createDataFrame([], ddl).schema
    except Exception as error:  # noqa: BLE001  a classic session and Spark Connect raise their own
        reason = str(error).strip().splitlines()[0]
        raise InvalidOption(
            f"{table}: --schema cannot be read: {reason}. Write it as columns: 'ts TIMESTAMP, user_id BIGINT'."
        ) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run by itself, from spark-submit, plain Python or Dagster."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
