"""What all programs have in common: their arguments, the session, what they report, and how they end.

A program runs by itself or is started by Dagster through Pipes; then its log lines, its progress and its result go
there, too. It ends with 0; with 1 and one line that says what went wrong; or with 2 when its arguments are wrong.
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

__all__ = ["Job", "Result", "name_and_value", "parser", "positive", "run"]

_PIPES_VARIABLE = "DAGSTER_PIPES_CONTEXT"
_PIPES_ARGUMENTS = ("--dagster-pipes-context", "--dagster-pipes-messages")
# Whose log lines are shown. Others, such as py4j's, are not about the work.
_LOGGERS = ("icedb", "spark_jobs")
_HIDDEN = "secret|token|password|access_key|jaas|credential"
_SECRET = re.compile(_HIDDEN, re.IGNORECASE)
# In the words of an argument that was not understood.
_SECRET_VALUE = re.compile(rf"([^\s=]*(?:{_HIDDEN})[^\s=]*=)\S+", re.IGNORECASE)
_PAIR = re.compile(r"([^=\s]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Result:
    """What a program has to say at its end.

    `snapshot`: the table as it left it. `figures`: what it counted. `checks`: name -> whether it passed; Dagster gets
    those that its side asked for.
    """

    snapshot: icedb.Snapshot | None
    figures: Mapping[str, int | str]
    checks: Mapping[str, bool] = field(default_factory=dict)


class Job:
    """One run of a program: its session, and whoever wants to know how it goes."""

    def __init__(self, name: str, *, debug: bool = False, pipes: PipesContext | None = None) -> None:
        self.name = name
        self.log = logging.getLogger(f"spark_jobs.{name}")
        self._debug = debug
        self._pipes = pipes

    @cached_property
    def spark(self) -> SparkSession:
        """The session: the one that is there already, or a new one. Times are in UTC. Raises JavaNotFound."""
        # spark-submit has started Java before Python, and Spark Connect needs none here.
        if "PYSPARK_GATEWAY_PORT" not in os.environ and "SPARK_REMOTE" not in os.environ:
            prepare_environment(python=os.environ.get("PYSPARK_PYTHON", sys.executable))
        builder = SparkSession.builder.appName(self.name)
        if not self._debug and "SPARK_REMOTE" not in os.environ:
            builder = builder.config("spark.log.level", "OFF")  # an error is one line, and not pages of Java
        spark = builder.getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        icedb.spark.register(spark)  # Spark does not look for data sources in what --py-files brought
        return spark

    @property
    def partition_range(self) -> tuple[str, str] | None:
        """The first and the last partition that Dagster wants; None when it did not say."""
        if self._pipes is None or not self._pipes.is_partition_step:
            return None
        wanted = self._pipes.partition_key_range
        return wanted["start"], wanted["end"]

    def report(self, result: Result) -> None:
        """Say what was done: to Dagster, and on stdout to whoever started the program by hand."""
        if self._pipes is None:
            sys.stdout.write(summary(self.name, result))
            return
        metadata: dict[str, Any] = {f"{self.name}/{name}": value for name, value in result.figures.items()}
        if result.snapshot is not None:
            metadata |= table_metadata(result.snapshot)
        # An op has no asset, and a step of several does not say which is the table's.
        if self._pipes.is_asset_step and len(self._pipes.asset_keys) == 1:
            version = None if result.snapshot is None else result.snapshot.id
            self._pipes.report_asset_materialization(metadata, data_version=version)
            # Dagster refuses a check that its side did not declare.
            for name in sorted(result.checks.keys() & set(self._pipes.extras.get("checks", ()))):
                self._pipes.report_asset_check(name, passed=result.checks[name])
        else:
            self._pipes.report_custom_message({name: _raw(value) for name, value in metadata.items()})


def _raw(value: Any) -> Any:
    return value["raw_value"] if isinstance(value, dict) else value


# ------------------------------------------------------------------------------------------ arguments


class _WrongArguments(Exception):
    """What argparse would have said before it ended the process."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _WrongArguments(_SECRET_VALUE.sub(r"\1...", message))


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every program takes; `doc` is the module's docstring."""
    description, _, epilog = (doc or "").partition("\n\n")
    made = _Parser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--table", required=True, help="where the table is: s3://bucket/prefix or a folder")
    made.add_argument(
        "--storage-option", dest="storage_options", type=name_and_value, action="append", default=[],
        metavar="NAME=VALUE", help="how to get there, such as AWS_ENDPOINT_URL=...; secrets are for the environment",
    )  # fmt: skip
    made.add_argument("--debug", action="store_true", help="show Spark's log, and the trace of an error")
    for name in _PIPES_ARGUMENTS:  # where Dagster cannot set the environment
        made.add_argument(name, help=argparse.SUPPRESS)
    return made


def name_and_value(text: str) -> tuple[str, str]:
    """An argument NAME=VALUE. Refuses secrets: other users of the machine see command lines."""
    found = _PAIR.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("give NAME=VALUE")
    if _SECRET.search(found[1]):
        raise argparse.ArgumentTypeError(
            f"{found[1]} is a secret, and command lines are no secret: set it in the environment of the program"
        )
    return found[1], found[2]


def positive(text: str) -> int:
    """An argument that is a whole number over 0."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number over 0")
    return int(text)


# ------------------------------------------------------------------------------------------ a run


def run(
    name: str,
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    work: Callable[[Job, argparse.Namespace], Result],
) -> int:
    """Parse, work, report; gives the exit status. A session that was there before is left running."""
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
        except _WrongArguments as error:
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
    """Say why, once here and once in Dagster, whose step shows it as the error of the program."""
    sys.stderr.write(f"{name}: {line}\n")
    if pipes is not None:
        pipes.log.error("%s: %s", name, line)
        pipes.close(
            {"message": f"{name}: {line}", "stack": [], "name": type(error).__name__, "cause": None, "context": None}
        )
    return status


def _line(error: Exception, table: str) -> str:
    """An error in one line: ours as it is, Spark's as what it means."""
    if not isinstance(error, IceDBError) and type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc"):
        error = explained(error, table=table)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _logging(debug: bool) -> Iterator[Callable[[PipesContext], None]]:
    """Show our log lines on stderr; gives a function that sends them to Dagster instead."""
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
    """The way to the Dagster that started this program; None when nobody did. Raises InvalidOption."""
    by_argument = any(w.partition("=")[0] in _PIPES_ARGUMENTS for w in words)
    if _PIPES_VARIABLE not in os.environ and not by_argument:
        return None
    try:
        import dagster_pipes
    except ImportError:
        raise InvalidOption(
            "Dagster started this program, and the package dagster-pipes is not there, so it could not answer. Install "
            "icedb-dagster[spark] where the driver runs."
        ) from None
    loaders: tuple[Callable[[], PipesParamsLoader], ...]
    loaders = dagster_pipes.PipesEnvVarParamsLoader, dagster_pipes.PipesCliArgsParamsLoader
    loader = loaders[by_argument]()
    context, messages = loader.load_context_params(), loader.load_messages_params()
    client = None
    if "bucket" in context or "bucket" in messages:  # as on EMR, where nobody shares a folder with Dagster
        import boto3

        client = boto3.client("s3")
    return dagster_pipes.open_dagster_pipes(
        params_loader=loader,
        context_loader=dagster_pipes.PipesS3ContextLoader(client) if "bucket" in context else None,
        message_writer=dagster_pipes.PipesS3MessageWriter(client) if "bucket" in messages else None,
    )


def table_metadata(snapshot: icedb.Snapshot) -> dict[str, PipesMetadataValue | int | str]:
    """What Dagster's UI shows of a table, under the names that `icedb_dagster.metadata.table_metadata` gives it."""
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


def summary(name: str, result: Result) -> str:
    """What a person who waits in front of a terminal wants to know."""
    lines: dict[str, int | str] = dict(result.figures)
    if result.snapshot is not None:
        table = result.snapshot
        rows = "unknown" if table.rows is None else table.rows
        lines |= {"table": table.table, "table_rows": rows, "table_parts": len(table.parts),
                  "table_bytes": table.bytes, "snapshot_id": table.id}  # fmt: skip
    width = max(map(len, lines), default=0)
    shown = [f"  {n:<{width}}  {f'{v:,}' if isinstance(v, int) else v}" for n, v in lines.items()]
    return "\n".join([f"{name}: done", *shown, ""])
