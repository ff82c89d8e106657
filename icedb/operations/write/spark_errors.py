"""Translation of Spark's errors to this library's: the error of a task, or the reason why the job failed.

A failed job raises pages of Java and Python traces, which differ between a classic session and Spark Connect. They
contain the error of this library that a task raised, if it raised one. Otherwise they report in Spark's words that a
task crashed, ran out of memory, or was cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import icedb.errors
from icedb.errors import (
    CorruptLog,
    IceDBError,
    InvalidBatch,
    InvalidOption,
    SchemaConflict,
    SnapshotExpired,
    SparkJobFailed,
)

__all__ = ["explained", "explained_of_frame", "failed_before_commit"]

REASON_CHARS = 200

# The last line of a Python traceback, or its replacement (see `icedb.spark.datasource.worker_errors`), with further
# lines of the message before Spark's own traces and notes.
_OURS = re.compile(
    r"(?:^|(?<=: ))icedb\.errors\.(?P<name>\w+): "
    r"(?P<message>.*(?:\n(?!\s*$|\s+at |\s*SQLSTATE|[\w ]*stacktrace|Caused by).*)*)",
    re.MULTILINE,
)
_PYTHON = re.compile(r"^(?P<reason>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: .*)?)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# An error of a Python worker, of which a setting of the session may hide the traceback.
_WORKER = re.compile(
    r"\A\s*(?:An exception was thrown from the Python worker\. .*\s+)?"  # Spark Connect's first line
    r"(?:\[PYTHON_EXCEPTION\] )?An exception was thrown from the Python worker:\s*"
)
# "An error occurred while calling o1.save." and Java's class names do not help a user.
_PREAMBLE = re.compile(r"^(?:An error occurred while calling \S+\s*|:\s*|\(?[\w.$]+(?:Exception|Error)\)?:?\s+)+")
_MISSING_PACKAGE = re.compile(r"No module named '(?P<package>[\w.]+)'")

# A part that Spark's own scan misses. A frame keeps its snapshot, and cleanup deletes the parts of older snapshots.
_MISSING_PART = re.compile(r"FILE_NOT_EXIST\].*? (?:file:(?://)?)?(?P<table>\S+)/_data/(?P<part>\S+?)\.?(?=\s|$)")

# Spark found an error in a query or in its input, before any task: a path that does not exist, an unknown column.
_REJECTED = re.compile(r"\A(?:\([\w.$]+\) )?\[[A-Z_.]+\] (?P<words>[^\n]*?)(?:\n.*?)?\s*SQLSTATE: 42", re.DOTALL)

_CANCELLED = (
    r"SPARK_JOB_CANCELLED|OPERATION_CANCELED|cancelled (?:as part|because)|SparkContext was shut down|SESSION_CLOSED"
)
_UNREACHABLE = (
    r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Answer from Java side is empty|Connection refused"
)
_NO_MEMORY = (
    r"OutOfMemoryError|^MemoryError|Out of Memory Error|memory limits|OOMKilled|exit(?:ed with)? (?:code|status) 137"
    r"|Cannot allocate"
)
_OF_THE_SESSION = (_CANCELLED, _UNREACHABLE)

# Pattern of the text -> reason and remedy. The first match is used.
_HAPPENED = {
    _CANCELLED: ("the Spark job was cancelled, or its session was stopped. Run it again."),
    _NO_MEMORY: (
        "a Spark task ran out of memory. Give the executors more for Python (spark.executor.memoryOverhead), let fewer "
        "tasks run in one at a time (spark.executor.cores), or give each task less (memory_bytes)."
    ),
    r"No space left on device|Disk quota exceeded": (
        "a Spark task found no space left on its machine's disk, where it sorts and spills. Make room there, name a "
        "larger folder (spark.local.dir), or give each task less (more partitions)."
    ),
    r"Python worker exited unexpectedly|ExecutorLostFailure|exited caused by|Python worker (?:failed|process)": (
        "a Spark task died, each time that it was tried: its process ended without an error. Often the system kills "
        "processes that use too much memory: give the executors more (spark.executor.memoryOverhead), or let fewer "
        "tasks run in one at a time (spark.executor.cores)."
    ),
    r"DATA_SOURCE_NOT_FOUND\] Failed to find the data source: icedb\b": (
        "Spark does not find the data source 'icedb'. Install icedb-dagster[spark] in the driver's Python "
        "(PYSPARK_DRIVER_PYTHON), whose path must have no space."
    ),
    r"PYTHON_VERSION_MISMATCH": (
        "the executors run another Python than this program. Set PYSPARK_PYTHON to the same version."
    ),
    _UNREACHABLE: (
        "the Spark session is gone: its server or its Java process cannot be reached. Start a session, run it again."
    ),
}

# Patterns of failures during planning, in a task, or in the computation of the rows.
_BEFORE_COMMIT = re.compile(
    r"Job aborted due to stage failure|DATA_SOURCE_NOT_FOUND\]|Task \d+ in stage|Failed to (?:create|lookup|plan) "
    r"|Traceback \(most recent"  # of a Python function of the frame, or of a task; Spark may omit its own message
    r"|\A(?:\([\w.$]+\) )?"  # Spark Connect's name of the error
    r"\[(?!PYTHON_DATA_SOURCE_ERROR|SPARK_JOB_CANCELLED|OPERATION_|SESSION_|INTERNAL_ERROR)[A-Z_.]+\]"
)
_IN_COMMIT = re.compile(
    r"Failed to commit or abort|, in (?:commit|abort)\b|commit_data_source_write\.py|python_streaming_sink_runner\.py"
)
# Spark Connect's error of a Python worker of a task. It has no trace of Java. An error in the commit has another type.
_CONNECT_WORKER_ERROR = "pyspark.errors.exceptions.connect.PythonException"
# Java's method that runs a task. The commit runs in no task, and only after all tasks.
_IN_TASK = "org.apache.spark.executor.Executor$TaskRunner.run("
_OTHER_ERROR = re.compile(r"^\s*(?:Caused by|Suppressed): ", re.MULTILINE)


def explained(error: Exception, *, table: str) -> IceDBError:
    """Return this library's error for an error of a Spark job.

    It is the error of a task, if that was one of ours, with its type and message. Its other attributes are lost. It is
    SnapshotExpired if a part of a frame's snapshot is deleted, and InvalidOption if Spark rejected a path or a query.
    Otherwise it is SparkJobFailed, with the reason in its first line. The original error has all of Spark's traces. If
    the new one is raised `from None`, the original stays its `__context__`.
    """
    if isinstance(error, IceDBError):
        return error
    text = _text(error)
    meaning = _raised_in_task(text) or _expired(text)
    if meaning is None and (rejected := _REJECTED.match(text)):
        meaning = InvalidOption(f"{table}: Spark rejected the input: {_short(rejected['words'])} Correct it.")
    return meaning or SparkJobFailed(f"{table}: {_what_happened(text)}")


def explained_of_frame(error: Exception, *, table: str) -> IceDBError:
    """Return the error as `explained` does, but InvalidBatch if the user's frame cannot be computed.

    An error of the user's query occurs again in a retry.
    """
    meaning = explained(error, table=table)
    text = _text(error)
    has_reason = any(_meanings(text)) or _MISSING_PACKAGE.search(text)
    of_frame = isinstance(meaning, SparkJobFailed) or _REJECTED.match(text)
    if has_reason or not of_frame or not failed_before_commit(error):
        return meaning
    return InvalidBatch(f"{table}: the frame cannot be computed: {_reason(text)}")


def failed_before_commit(error: Exception) -> bool:
    """Whether a write job failed before Spark can have requested its commit: during planning, or in a task."""
    text = _text(error)
    return _was_in_task(error) or (_BEFORE_COMMIT.search(text) is not None and _IN_COMMIT.search(text) is None)


def _was_in_task(error: Exception) -> bool:
    """Whether a task raised the error, by its type or by Java's trace. The text may also be that of a failed commit."""
    if f"{type(error).__module__}.{type(error).__name__}" == _CONNECT_WORKER_ERROR:
        return True
    # Spark's errors have no method for it in a classic session, and may have no trace in a Connect session. The text of
    # an error that Spark does not convert has the trace.
    trace = _text(error) if type(error).__name__ == "Py4JJavaError" else getattr(error, "_stackTrace", None)
    return isinstance(trace, str) and _IN_TASK in _OTHER_ERROR.split(trace, maxsplit=1)[0]


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - Java, which may be gone, supplies the text of a Java error
        return f"Answer from Java side is empty ({type(error).__name__})"


def _raised_in_task(text: str) -> IceDBError | None:
    for match in reversed(list(_OURS.finditer(text))):
        error_type = getattr(icedb.errors, match["name"], None)
        if isinstance(error_type, type) and issubclass(error_type, IceDBError):
            return _made_again(error_type, match["message"].strip())
    return None


def _expired(text: str) -> SnapshotExpired | None:
    missing = _MISSING_PART.search(text)
    if missing is None:
        return None
    table, part = missing["table"].replace("s3a://", "s3://"), f"_data/{missing['part']}"
    return SnapshotExpired(
        f"{table}: the frame reads the part '{part}', which is deleted. A frame and its views keep the snapshot of the "
        "time when the table was read, and cleanup deletes the parts of older snapshots after its grace period. Read "
        "the table again.",
        horizon_ms=0,
    )


def _made_again(error_type: type[IceDBError], message: str) -> IceDBError:
    if issubclass(error_type, SchemaConflict):
        return error_type(message, column="", types=("", ""))
    if issubclass(error_type, SnapshotExpired):
        return error_type(message, horizon_ms=0)
    if issubclass(error_type, CorruptLog):
        return error_type(message, key="")
    return error_type(message)


def _what_happened(text: str) -> str:
    for meaning in _meanings(text):
        return meaning
    if missing := _MISSING_PACKAGE.search(text):
        return (
            f"the executors lack the Python package '{missing['package']}'. Install there what is installed here "
            "(icedb-dagster[spark]), or set PYSPARK_PYTHON to an environment that has it."
        )
    if _of_python(text):
        return f"a Spark task failed ({_reason(text)}). The executors' logs have the whole trace."
    return f"Spark could not do the job ({_reason(text)})."


def _of_python(text: str) -> bool:
    """Whether it is the text of an error in a Python worker."""
    return _TRACEBACK in text or _WORKER.match(text) is not None


def _reason(text: str) -> str:
    """Return one line: the last error of a Python trace, or the beginning of Spark's message."""
    if not _of_python(text):
        return _short(_PREAMBLE.sub("", text.strip()))
    if raised := [match["reason"] for match in _PYTHON.finditer(text)]:
        return _short(raised[-1])
    # An error with an unusual name, or a message that its class formats. The lines of the calls are indented.
    lines = _WORKER.sub("", text).rpartition(_TRACEBACK)[2].splitlines()
    return _short(next((line for line in lines if line and not line[0].isspace()), "without a message"))


def _meanings(text: str) -> Iterator[str]:
    """Yield the reasons that match. Connection and cancellation errors inside a task's own trace are not Spark's."""
    own = _of_python(text)
    for pattern, meaning in _HAPPENED.items():
        if re.search(pattern, text, re.MULTILINE) and not (own and pattern in _OF_THE_SESSION):
            yield meaning


def _short(text: str) -> str:
    line = text.splitlines()[0].partition(" SQLSTATE:")[0].strip() if text.strip() else "without a message"
    return line if len(line) <= REASON_CHARS else f"{line[:REASON_CHARS]}..."
