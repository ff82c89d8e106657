"""Errors of `Table.insert` after a Spark job with an unclear outcome: never a retry if rows may be committed.

The jobs are simulated, because no cluster fails on demand between its commit and its response. `test_faults.py` kills
real ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from icedb.errors import (
    CommitStateUnknown,
    IceDBError,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    SnapshotExpired,
    SparkJobFailed,
    StoreUnavailable,
)
from icedb.operations.commits.publish import publish_append
from icedb.operations.write.spark_errors import explained
from icedb.operations.write.spark_frames import append_frame, overwrite_frame
from icedb.table import Table
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock
from icedb.writer.batch_schema import WriteContext
from icedb.writer.part_writer import write_parts

KILLED = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times ... Python worker exited unexpectedly"
WORKER_GONE = "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort: Python worker exited unexpectedly (crashed)"
LOST = "<_MultiThreadedRendezvous of RPC: status = StatusCode.UNAVAILABLE failed to connect to all addresses>"
CANCELLED = "[SPARK_JOB_CANCELLED] Job 7 cancelled because SparkContext was shut down"
UDF = "Job aborted due to stage failure: Traceback (most recent call last):\n  File x\nValueError: no such user"
PYTHON = 'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "{}\nOSError: no'
UDF_ALONE = PYTHON.format('users.py", line 7, in name_of')
IN_COMMIT = PYTHON.format('icedb/spark/datasource/writer.py", line 7, in commit')
HIDDEN = "An exception was thrown from the Python worker:\nValueError: no such user"
CONNECT_PREAMBLE = "An exception was thrown from the Python worker. Please see the stack trace below."
# Java's traces of the same text: an error in a task of the job, and one in the commit, on the driver.
TASK_TRACE = "PythonException: x\n\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:906)"
COMMIT_TRACE = (
    "PythonException: x\n\tat org.apache.spark.sql.execution.python.PythonPlannerRunner.runInPython(x.scala:9)"
)
QUERY = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
OVER_CONNECT = f"(org.apache.spark.SparkArithmeticException) {QUERY}"
OURS = f"{UDF}\nicedb.errors.SchemaConflict: lake: column 'n' is BIGINT in the table"


class PlayedJob:
    """The methods of `frame.write` that a job uses, with a simulated outcome."""

    def __init__(self, handle: Handle, end: Callable[[PlayedJob], None]) -> None:
        self.write = self
        self.handle = handle
        self.end = end
        self.options: dict[str, str] = {}

    def format(self, name: str) -> PlayedJob:
        assert name == "icedb"
        return self

    def mode(self, mode: str) -> PlayedJob:
        self.options["mode"] = mode
        return self

    def option(self, name: str, value: str) -> PlayedJob:
        self.options[name] = value
        return self

    def save(self) -> None:
        self.end(self)

    def commit(self) -> None:
        """Write parts with the job's mark in their names, and one commit, as the data source does."""
        context = self.handle.write_context()
        marked = WriteContext(
            context.location, context.spec, context.expressions, context.known_schema, job=self.options["job"]
        )
        rows = pa.table({"n": [1, 2]}).to_reader()
        publish_append(self.handle, write_parts(marked, rows, store=self.handle.store, clock=SystemClock()))


@pytest.fixture
def table(local: Any) -> Table:
    table = Table.create(local.uri)
    table.insert([{"n": 0}])
    return table


class JavaError(RuntimeError):
    """An error of a classic Spark session, with Java's trace."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self._stackTrace = trace  # where Spark keeps it


def failing(text: str, *, committed: bool = False, trace: str = "") -> Callable[[PlayedJob], None]:
    def end(job: PlayedJob) -> None:
        if committed:
            job.commit()
        raise JavaError(text, trace)

    return end


def play(table: Table, end: Callable[[PlayedJob], None], **how: Any) -> Any:
    return append_frame(table.handle, PlayedJob(table.handle, end), **how)


@pytest.mark.parametrize("text", [WORKER_GONE, LOST, CANCELLED, IN_COMMIT, "who knows"])
def test_a_job_that_may_be_published_must_not_be_retried(table: Table, text: str) -> None:
    with pytest.raises(CommitStateUnknown, match=r"begin with '[0-9a-f]{12}'") as caught:
        play(table, failing(text))
    assert isinstance(caught.value.__context__, RuntimeError)  # Spark's whole text


@pytest.mark.parametrize("text", [WORKER_GONE, LOST, CANCELLED])
def test_with_a_transaction_it_may_be_repeated(table: Table, text: str) -> None:
    with pytest.raises(SparkJobFailed):
        play(table, failing(text), txn=("app", 1))
    with pytest.raises(SparkJobFailed):  # and so may an overwrite
        overwrite_frame(table.handle, PlayedJob(table.handle, failing(text)), partitions=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KILLED, SparkJobFailed),
        (UDF, InvalidBatch),
        (UDF_ALONE, InvalidBatch),
        (QUERY, InvalidBatch),
        (OVER_CONNECT, InvalidBatch),
        (OURS, SchemaConflict),
    ],
)
def test_a_job_that_failed_in_a_task_was_not_published(table: Table, text: str, expected: type[IceDBError]) -> None:
    with pytest.raises(expected):
        play(table, failing(text))


@pytest.mark.parametrize("text", [HIDDEN, UDF_ALONE, IN_COMMIT])
def test_java_tells_a_function_of_the_frame_from_the_commit(table: Table, text: str) -> None:
    """A session may hide Python's tracebacks, and a function of the frame may be named `commit`."""
    with pytest.raises(InvalidBatch, match=r": the frame cannot be computed: (ValueError: no such user|OSError: no)$"):
        play(table, failing(text, trace=TASK_TRACE))
    if text != UDF_ALONE:
        for trace in (
            "",
            COMMIT_TRACE,
            f"{COMMIT_TRACE}\n\tSuppressed: {TASK_TRACE}",
            f"{COMMIT_TRACE}\nCaused by: {TASK_TRACE}",
        ):
            with pytest.raises(CommitStateUnknown):
                play(table, failing(text, trace=trace))


def test_over_connect_the_type_tells_a_function_of_the_frame_from_the_commit(table: Table) -> None:
    """Spark Connect's error of a Python worker has no trace of Java, and the session may hide Python's."""
    from pyspark.errors.exceptions.connect import AnalysisException, PythonException

    def raising(error: Exception) -> Callable[[PlayedJob], None]:
        def end(job: PlayedJob) -> None:
            raise error

        return end

    for text in (HIDDEN, IN_COMMIT):
        with pytest.raises(
            InvalidBatch, match=r": the frame cannot be computed: (ValueError: no such user|OSError: no)$"
        ):
            play(
                table, raising(PythonException(f"\n  {CONNECT_PREAMBLE}\n[PYTHON_EXCEPTION] {text}\n SQLSTATE: 38000"))
            )
    failed = "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort Python data source write: OSError: no"
    with pytest.raises(CommitStateUnknown):
        play(table, raising(AnalysisException(failed)))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("users.Unknown: no such user\nand more", "users.Unknown: no such user"),
        ("KeyError: 7", "KeyError: 7"),
        ("Traceback (most recent call last):\n  File x\n    f()\nusers.Unknown: no", "users.Unknown: no"),
        ("ConnectionRefusedError: Connection refused", "ConnectionRefusedError: Connection refused"),
        ("  ", "without a message"),
    ],
)
def test_the_reason_is_the_error_of_the_function(table: Table, error: str, reason: str) -> None:
    with pytest.raises(InvalidBatch) as caught:
        play(table, failing(f"An exception was thrown from the Python worker:\n{error}", trace=TASK_TRACE))
    assert str(caught.value) == f"{table.uri}: the frame cannot be computed: {reason}"


@pytest.mark.parametrize("text", [WORKER_GONE, LOST, CANCELLED, "who knows"])
def test_a_committed_job_returns_its_commit_despite_an_error(table: Table, text: str) -> None:
    commit = play(table, failing(text, committed=True))
    assert commit.rows == 2
    assert table.query("SELECT count(*) FROM t").fetchall() == [(3,)]


@pytest.mark.parametrize(
    ("error", "message"), [(None, "has succeeded.*Do not write these rows again"), (RuntimeError(LOST), "begin with")]
)
def test_the_outcome_is_unknown_if_the_table_cannot_be_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, error: Exception | None, message: str
) -> None:
    def unreachable(handle: Handle, **how: Any) -> None:
        raise StoreUnavailable("the store is gone")

    def end(job: PlayedJob) -> None:
        job.commit()
        monkeypatch.setattr(Handle, "read", unreachable)
        if error is not None:
            raise error

    with pytest.raises(CommitStateUnknown, match=message):
        play(table, end)


def test_a_stale_view_is_reported_for_committed_rows(table: Table) -> None:
    behind = f"{WORKER_GONE}\nicedb.errors.StaleView: lake: the rows are committed, and the views ['v'] lack them"
    with pytest.raises(IceDBError, match="views"):
        play(table, failing(behind, committed=True))


NO_PATH = "[PATH_NOT_FOUND] Path does not exist: file:/nope. SQLSTATE: 42K03"
NO_TABLE = (
    "[TABLE_OR_VIEW_NOT_FOUND] The view `c` cannot be found. Verify it.\nSearch path: [x]. SQLSTATE: 42P01; line 1"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_PATH, "Path does not exist: file:/nope."),
        (f"(org.apache.spark.sql.AnalysisException) {NO_PATH}", "Path does not exist: file:/nope."),
        (NO_TABLE, "The view `c` cannot be found. Verify it."),
    ],
)
def test_an_input_that_spark_rejects_is_an_error_in_words(table: Table, text: str, words: str) -> None:
    error = explained(RuntimeError(text), table="lake")
    assert type(error) is InvalidOption
    assert str(error) == f"lake: Spark rejected the input: {words} Correct it."
    with pytest.raises(InvalidBatch, match=re.escape(words)):
        play(table, failing(text))


def test_a_driver_without_the_data_source_has_written_nothing(table: Table) -> None:
    text = "An error occurred while calling o2.save.\n: org.apache.spark.sql.AnalysisException: "
    with pytest.raises(SparkJobFailed, match="whose path must have no space"):
        play(table, failing(f"{text}[DATA_SOURCE_NOT_FOUND] Failed to find the data source: icedb. Make sure that"))


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("file:///lake/t/_data/day=1/ab.parquet", "/lake/t: the frame reads the part '_data/day=1/ab.parquet', which"),
        ("s3a://bucket/t/_data/ab.parquet", "s3://bucket/t: the frame reads the part '_data/ab.parquet', which"),
    ],
)
def test_a_deleted_part_of_a_frame_is_an_expired_snapshot(table: Table, file: str, lost: str) -> None:
    text = f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {file}. File does not exist. It"
    for message in (text, f"An error occurred while calling o2.save.\n: org.apache.spark.SparkException: {text}"):
        with pytest.raises(SnapshotExpired) as caught:
            play(table, failing(message))
        assert str(caught.value).startswith(lost)
    other = "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/x/y.parquet. File does not"
    with pytest.raises(InvalidBatch, match="FILE_NOT_EXIST"):
        play(table, failing(other))
