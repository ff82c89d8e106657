"""Frame that all programs share: arguments, session, reports, and exit status.

A program runs by itself, or Dagster starts it through Pipes. Then Dagster also gets its log lines, its progress and its
result. Exit status: 0 success; 1 an error, with one line about it; 2 invalid arguments; 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import SparkSession

import icedb
import icedb.spark
from icedb.errors import IceDBError, InvalidOption
from icedb.operations.write.spark_errors import explained
from icedb.spark.java import prepare_environment

if TYPE_CHECKING:
    from dagster_pipes import PipesContext, PipesMetadataValue, PipesParamsLoader

__all__ = ["Job", "JobResult", "name_and_value", "parser", "positive", "run"]

_PIPES_VARIABLE = "DAGSTER_PIPES_CONTEXT"
_PIPES_ARGUMENTS = ("--dagster-pipes-context", "--dagster-pipes-messages")
# Loggers whose lines are printed. Others, such as py4j, are not about the job.
_LOGGERS = ("icedb", "spark_jobs")
_HIDDEN = "secret|token|password|access_key|account_key|sas_key|jaas|credential"
_SECRET = re.compile(_HIDDEN, re.IGNORECASE)
# A secret in the text of an invalid argument.
_SECRET_VALUE = re.compile(rf"([^\s=]*(?:{_HIDDEN})[^\s=]*=)\S+", re.IGNORECASE)
_PAIR = re.compile(r"([^=\s]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a program: the snapshot of the table, counts, and checks.

    `checks` maps names to whether they passed. Dagster gets the checks that its asset declares.
    """

    snapshot: icedb.Snapshot | None
    figures: Mapping[str, int | str]
    checks: Mapping[str, bool] = field(default_factory=dict)


class Job:
    """One run of a program: its session, its logger, and its connection to Dagster."""

    def __init__(self, name: str, *, debug: bool = False, pipes: PipesContext | None = None) -> None:
        self.name = name
        self.log = logging.getLogger(f"spark_jobs.{name}")
        self._debug = debug
        self._pipes = pipes

    @cached_property
    def spark(self) -> SparkSession:
        """The active session or a new one, with times in UTC. Raises JavaNotFound."""
        # spark-submit starts Java before Python, and Spark Connect needs no local Java.
        if "PYSPARK_GATEWAY_PORT" not in os.environ and "SPARK_REMOTE" not in os.environ:
            prepare_environment(python=os.environ.get("PYSPARK_PYTHON", sys.executable))
        builder = SparkSession.builder.appName(self.name)
        if not self._debug and "SPARK_REMOTE" not in os.environ:
            builder = builder.config("spark.log.level", "OFF")  # an error is one line instead of a Java stack trace
        spark = builder.getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        icedb.spark.register(spark)  # Spark does not discover data sources in --py-files
        return spark

    @property
    def partition_range(self) -> tuple[str, str] | None:
        """The first and the last partition of the Dagster run; None if it has none."""
        if self._pipes is None or not self._pipes.is_partition_step:
            return None
        range_ = self._pipes.partition_key_range
        return range_["start"], range_["end"]

    def report(self, result: JobResult) -> None:
        """Report the result to Dagster, or print it on stdout if Dagster did not start the program."""
        if self._pipes is None:
            sys.stdout.write(summary(self.name, result))
            return
        metadata: dict[str, Any] = {f"{self.name}/{name}": value for name, value in result.figures.items()}
        if result.snapshot is not None:
            metadata |= table_metadata(result.snapshot)
        # An op has no asset. In a step of several assets, the asset of the table is unknown.
        if self._pipes.is_asset_step and len(self._pipes.asset_keys) == 1:
            version = None if result.snapshot is None else result.snapshot.id
            self._pipes.report_asset_materialization(metadata, data_version=version)
            # Dagster rejects a check that the asset does not declare.
            for name in sorted(result.checks.keys() & set(self._pipes.extras.get("checks", ()))):
                self._pipes.report_asset_check(name, passed=result.checks[name])
        else:
            self._pipes.report_custom_message({name: _raw(value) for name, value in metadata.items()})


def _raw(value: Any) -> Any:
    return value["raw_value"] if isinstance(value, dict) else value


# ------------------------------------------------------------------------------------------ arguments


class _InvalidArguments(Exception):
    """Message of argparse, raised instead of ending the process."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _InvalidArguments(_SECRET_VALUE.sub(r"\1...", message))


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every program. `doc` is the docstring of the module."""
    description, _, epilog = (doc or "").partition("\n\n")
    made = _Parser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--table", required=True, help="use this table: s3://bucket/prefix or a folder")
    made.add_argument(
        "--storage-option", dest="storage_options", type=name_and_value, action="append", default=[],
        metavar="NAME=VALUE", help="set a store option such as AWS_ENDPOINT_URL=...; secrets go into the environment",
    )  # fmt: skip
    made.add_argument("--debug", action="store_true", help="print Spark's log, and the traceback of an error")
    for name in _PIPES_ARGUMENTS:  # where Dagster cannot set the environment
        made.add_argument(name, help=argparse.SUPPRESS)
    return made


def name_and_value(text: str) -> tuple[str, str]:
    """Parse an argument NAME=VALUE. Reject secrets, because other users of the machine can see command lines."""
    pair = _PAIR.fullmatch(text)
    if pair is None:
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    if _SECRET.search(pair[1]):
        raise argparse.ArgumentTypeError(
            f"{pair[1]} is a secret, and other users can see command lines: set it in the environment of the program"
        )
    return pair[1], pair[2]


def positive(text: str) -> int:
    """Parse an argument that is an integer above 0."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer above 0")
    return int(text)


# ------------------------------------------------------------------------------------------ a run


def run(
    name: str,
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    work: Callable[[Job, argparse.Namespace], JobResult],
) -> int:
    """Parse the arguments, work and report. Return the exit status. A session from before stays active."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    pipes, table = None, ""
    with _logging(debug) as forward:
        before = SparkSession.getActiveSession()
        try:
            pipes = _open_pipes(words)
            if pipes is not None:
                forward(pipes)
            args = arguments.parse_args(words)
            args.storage_options, table = dict(args.storage_options), args.table
            job = Job(name, debug=debug, pipes=pipes)
            try:
                job.report(work(job, args))
            finally:
                if before is None and "spark" in vars(job):
                    job.spark.stop()
        except SystemExit:  # --help
            return 0
        except _InvalidArguments as error:
            sys.stderr.write(arguments.format_usage())
            return _failed(name, error, f"{error}. See --help.", pipes, status=2)
        except KeyboardInterrupt as error:
            return _failed(name, error, "interrupted", pipes, status=130)
        except Exception as error:
            if debug:
                logging.getLogger(f"spark_jobs.{name}").exception("%s failed", name)
            return _failed(name, error, _line(error, table), pipes, status=1)
        finally:
            if pipes is not None:
                pipes.close()
    return 0


def _failed(name: str, error: BaseException, line: str, pipes: PipesContext | None, *, status: int) -> int:
    """Print the error, and report it to Dagster as the error of the step. Return the exit status."""
    sys.stderr.write(f"{name}: {line}\n")
    if pipes is not None:
        pipes.log.error("%s: %s", name, line)
        pipes.close(
            {"message": f"{name}: {line}", "stack": [], "name": type(error).__name__, "cause": None, "context": None}
        )
    return status


def _line(error: Exception, table: str) -> str:
    """Return an error as one line, with errors of Spark translated."""
    if not isinstance(error, IceDBError) and type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc"):
        error = explained(error, table=table)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _logging(debug: bool) -> Iterator[Callable[[PipesContext], None]]:
    """Print log lines on stderr. Yield a function that also sends them to Dagster."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    handlers = [handler]

    def forward(pipes: PipesContext) -> None:
        to_dagster = _ToDagster(pipes)
        handlers.append(to_dagster)
        for logger in loggers:
            logger.addHandler(to_dagster)

    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG if debug else logging.INFO)
        logger.addHandler(handler)
    try:
        yield forward
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            for added in handlers:
                logger.removeHandler(added)


class _ToDagster(logging.Handler):
    def __init__(self, pipes: PipesContext) -> None:
        super().__init__()
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        if not self._pipes.is_closed:
            self._pipes.log.handle(record)


# ------------------------------------------------------------------------------------------ Dagster


def _open_pipes(words: Sequence[str]) -> PipesContext | None:
    """Connect to the Dagster that started this program; None: Dagster did not. Raises InvalidOption."""
    by_argument = any(w.partition("=")[0] in _PIPES_ARGUMENTS for w in words)
    if _PIPES_VARIABLE not in os.environ and not by_argument:
        return None
    try:
        import dagster_pipes
    except ImportError:
        raise InvalidOption(
            "Dagster started this program, but the package dagster-pipes is not installed on the driver. Run there: "
            "pip install 'icedb-dagster[spark]'"
        ) from None
    loaders: tuple[Callable[[], PipesParamsLoader], ...]
    loaders = dagster_pipes.PipesEnvVarParamsLoader, dagster_pipes.PipesCliArgsParamsLoader
    loader = loaders[by_argument]()
    context, messages = loader.load_context_params(), loader.load_messages_params()
    client = None
    if "bucket" in context or "bucket" in messages:  # as on EMR, which shares no folder with Dagster
        import boto3

        client = boto3.client("s3")
    return dagster_pipes.open_dagster_pipes(
        params_loader=loader,
        context_loader=dagster_pipes.PipesS3ContextLoader(client) if "bucket" in context else None,
        message_writer=dagster_pipes.PipesS3MessageWriter(client) if "bucket" in messages else None,
    )


def table_metadata(snapshot: icedb.Snapshot) -> dict[str, PipesMetadataValue | int | str]:
    """Return the metadata of a table for Dagster, with the names of `icedb_dagster.metadata.table_metadata`."""
    columns = [{"name": c, "type": t} for c, t in {**snapshot.schema, **snapshot.partition_schema}.items()]
    metadata: dict[str, PipesMetadataValue | int | str] = {
        "dagster/column_schema": {"type": "table_schema", "raw_value": {"columns": columns}},
        "dagster/uri": snapshot.table,
        "icedb/live_parts": len(snapshot.parts),
        "icedb/partitions": len(snapshot.partitions()),
        "icedb/bytes": snapshot.bytes,
        "icedb/log_files": snapshot.log_files,
        "icedb/snapshot_id": snapshot.id,
        "icedb/snapshot_time": {"type": "timestamp", "raw_value": snapshot.as_of_ms / 1000},
    }
    if snapshot.rows is not None:
        metadata["dagster/row_count"] = snapshot.rows
    return metadata


def summary(name: str, result: JobResult) -> str:
    """Return the summary that a terminal shows."""
    lines: dict[str, int | str] = dict(result.figures)
    if result.snapshot is not None:
        table = result.snapshot
        rows = "unknown" if table.rows is None else table.rows
        lines |= {"table": table.table, "table_rows": rows, "table_parts": len(table.parts),
                  "table_bytes": table.bytes, "snapshot_id": table.id}  # fmt: skip
    width = max(map(len, lines), default=0)
    rows_ = [f"  {n:<{width}}  {f'{v:,}' if isinstance(v, int) else v}" for n, v in lines.items()]
    return "\n".join([f"{name}: done", *rows_, ""])
