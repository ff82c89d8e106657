"""Write a stream to an IceDB table, with one commit for each micro-batch, exactly once.

    spark-submit stream_events.py --format json --input /landing/events \\
        --table s3://lake/events --checkpoint /state/events

The source is any source of Spark: a folder that receives files, or a source that --format and --option name. SIGTERM
and SIGINT end the stream after its running micro-batch. With the same checkpoint, another run continues it. With
--maintain-every, the program also merges the small parts (data files) that the stream writes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event, current_thread, main_thread
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import icedb
from icedb.errors import IceDBError, InvalidBatch, InvalidOption
from icedb.operations.write.spark_errors import explained
from icedb.spark.datasource.type_mapping import spark_schema
from spark_jobs.due_maintenance import maintained
from spark_jobs.job import Job, JobResult, name_and_value, parser, positive, run

__all__ = ["Streamed", "follow", "main", "open_source", "start"]

NAME = "stream_events"
AVAILABLE_NOW = "available-now"
# Sources that need a schema. Others, such as Kafka, have fixed columns.
_FILES = ("json", "csv", "parquet", "orc", "text")
_PREAMBLE = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_UNREADABLE = re.compile(r"^\[FAILED_READ_FILE\S* Encountered error while reading file (?P<file>\S+)\.\s")
# Time for a running micro-batch to finish after a stop request.
GRACE_SECONDS = 60.0
POLL_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Streamed:
    """Counts of the micro-batches of one run."""

    batches: int
    rows: int
    last_batch: int


def open_source(
    spark: SparkSession,
    source: str,
    *,
    table: icedb.Table,
    path: str | None = None,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    select: Sequence[str] = (),
) -> DataFrame:
    """Open the stream of a source.

    A record that does not fit ends the stream, unless the option `mode` changes that.

    Args:
        spark: the session.
        source: the name of the source, as for Spark's `format`.
        table: the table to write.
        path: the folder of a source of files.
        schema: the columns in DDL; None: for files, the columns of the table.
        options: options of the source.
        select: columns of the table, in Spark SQL.

    Returns:
        The streaming DataFrame.

    Raises:
        InvalidOption: the table has no columns, and `schema` is None.
    """
    reader = spark.readStream.format(source)
    if source in ("json", "csv"):  # by default, Spark turns invalid values into null
        reader = reader.option("mode", "FAILFAST")
    if schema is not None:
        reader = reader.schema(schema)
    elif source in _FILES:
        columns = table.schema()
        if not columns:
            raise InvalidOption(
                f"{table.uri}: the table has no columns yet. Pass the columns of the files with --schema."
            )
        reader = reader.schema(spark_schema(columns))
    reader = reader.options(**dict(options or {}))
    frame = reader.load() if path is None else reader.load(path)
    return frame.selectExpr(*select) if select else frame


def start(frame: DataFrame, table: icedb.Table, *, checkpoint: str, trigger: str = AVAILABLE_NOW) -> StreamingQuery:
    """Start to write a stream to a table.

    Args:
        frame: the stream, see `open_source`.
        table: the table.
        checkpoint: the folder of the stream's checkpoint.
        trigger: `available-now` ends after all existing rows; else an interval such as `30 seconds`.

    Returns:
        The running query.
    """
    writer = frame.writeStream.format("icedb").outputMode("append").option("checkpointLocation", checkpoint)
    writer = writer.options(**table.handle.location.storage_options)
    writer = writer.trigger(availableNow=True) if trigger == AVAILABLE_NOW else writer.trigger(processingTime=trigger)
    return writer.start(table.uri)


def follow(
    query: StreamingQuery,
    *,
    stop: Event,
    seconds_max: float | None = None,
    on_batch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Streamed:
    """Wait until the stream ends, `stop` is set or the time is over, and let the running micro-batch finish.

    Args:
        query: the running query.
        stop: an event that ends the stream.
        seconds_max: the maximum time in seconds; None: no limit.
        on_batch: called with Spark's progress of each micro-batch that had rows.

    Returns:
        The counts of the micro-batches.

    Raises:
        StreamingQueryException: the stream failed.
    """
    done = Streamed(0, 0, -1)
    began, ending = time.monotonic(), None
    while True:
        ended = query.awaitTermination(POLL_SECONDS)
        now = time.monotonic()
        before = done.last_batch
        for progress in query.recentProgress:
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if rows and number > done.last_batch:
                done = Streamed(done.batches + 1, done.rows + rows, number)
                if on_batch is not None:
                    on_batch(progress)
        if ended:
            return done
        if ending is None and (stop.is_set() or (seconds_max is not None and now - began >= seconds_max)):
            ending = now
        if ending is not None:
            settled = done.last_batch > before or not query.status["isTriggerActive"]
            if settled or now - ending > GRACE_SECONDS:
                # A micro-batch that started since is not committed. The next run does it once.
                query.stop()
                return done


# ------------------------------------------------------------------------------------------ the program


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    made = parser(__doc__)
    made.add_argument(
        "--format", default="json", help="read json, csv, parquet, or any source of Spark [default: %(default)s]"
    )
    made.add_argument("--input", metavar="PATH", help="read files from this folder")
    made.add_argument(
        "--option", dest="options", type=name_and_value, action="append", default=[], metavar="NAME=VALUE",
        help="set an option of the source",
    )  # fmt: skip
    made.add_argument(
        "--option-from", dest="secrets", type=name_and_variable, action="append", default=[], metavar="NAME=VARIABLE",
        help="set a secret option of the source to the value of an environment variable",
    )  # fmt: skip
    made.add_argument(
        "--schema",
        metavar="DDL",
        help="set the columns of the source: 'ts TIMESTAMP, user_id BIGINT' [default: the table's]",
    )
    made.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="SQL",
        help="compute a column of the table with Spark SQL; may be repeated",
    )
    made.add_argument("--checkpoint", required=True, metavar="FOLDER", help="keep Spark's checkpoint in this folder")
    made.add_argument(
        "--trigger", default=AVAILABLE_NOW, metavar="WHEN",
        help="available-now: end after all existing rows; or an interval such as '30 seconds' [default: %(default)s]",
    )  # fmt: skip
    made.add_argument("--duration", type=positive, metavar="SECONDS", help="end the stream after this time")
    made.add_argument(
        "--maintain-every", type=positive, metavar="SECONDS",
        help="at this interval, and at the end, do the maintenance that is due: merge small parts (compaction), merge "
        "the log, clean up (VACUUM) [default: none]",
    )  # fmt: skip
    return made


def name_and_variable(text: str) -> tuple[str, str]:
    """Parse an argument NAME=VARIABLE, of a variable that is set."""
    name, _, variable = text.partition("=")
    if not name or variable not in os.environ:
        raise argparse.ArgumentTypeError(f"'{name}' refers to the environment variable '{variable}', which is not set")
    return name, variable


def work(job: Job, args: argparse.Namespace) -> JobResult:
    """Run the program with its arguments."""
    table = icedb.Table.open(args.table, storage_options=args.storage_options)
    secrets = {name: os.environ[variable] for name, variable in args.secrets}
    try:
        frame = open_source(
            job.spark,
            args.format,
            table=table,
            path=args.input,
            schema=args.schema,
            options=dict(args.options) | secrets,
            select=args.select,
        )
        with _stop_on_signals() as stop, _maintenance(job, table, args.maintain_every, stop):
            query = start(frame, table, checkpoint=args.checkpoint, trigger=args.trigger)
            job.log.info("%s: the stream %s is running", table.uri, query.id)
            done = follow(
                query,
                stop=stop,
                seconds_max=args.duration,
                on_batch=lambda p: job.log.info(
                    "%s: batch %d: %d rows in %d ms",
                    *(table.uri, p["batchId"], p["numInputRows"], p["batchDuration"]),
                ),
            )
    except Exception as error:  # noqa: BLE001  any error of Spark, in this session or another
        raise _meaning(error, table.uri) from None
    job.log.info("%s: the stream has ended", table.uri)
    return JobResult(table.snapshot(), {"batches": done.batches, "rows_read": done.rows, "last_batch": done.last_batch})


def _maintenance(job: Job, table: icedb.Table, every_seconds: int | None, stop: Event) -> AbstractContextManager[None]:
    if every_seconds is None:
        return nullcontext()
    return maintained(table, every_seconds=every_seconds, stop=stop, log=job.log)


def _meaning(error: Exception, table: str) -> IceDBError:
    """Translate the error that ended the stream, without the ids that Spark prepends."""
    if not isinstance(error, StreamingQueryException):
        return explained(error, table=table)
    text = _PREAMBLE.sub("", str(error))
    if unreadable := _UNREADABLE.search(text):
        return InvalidBatch(
            f"{table}: '{unreadable['file']}' cannot be read, or has a record that does not fit the columns. Correct "
            "or remove the file, or drop such records with --option mode=DROPMALFORMED."
        )
    return explained(RuntimeError(text), table=table)


@contextmanager
def _stop_on_signals() -> Iterator[Event]:
    """Yield an event that SIGTERM or SIGINT sets."""
    stop = Event()
    if current_thread() is not main_thread():  # signal handlers need the main thread
        yield stop
        return
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program from spark-submit, plain Python or Dagster. Return its exit status."""
    return run(NAME, arguments(), argv, work)


if __name__ == "__main__":
    sys.exit(main())
