"""Spark's progress and log in the log of the run that waits for it.

A Spark session in a step's process logs to the output that the process had when it started Java, not to the step's
output, which Dagster captures. Nothing shows how many tasks are done. So Spark gets a second log destination, which
a thread copies to the step's output. Every few seconds the thread also polls Spark's status tracker, and logs changes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from icedb.operations.write.spark_frames import is_spark_frame
from icedb.util.temporary_files import temporary_folder

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["frame_progress", "spark_progress"]

logger = logging.getLogger(__name__)
Value = TypeVar("Value")

EVERY_S = 5.0
# Spark runs one or two stages at a time. A log line has room for a few.
STAGES_MAX = 3
LOG_PATTERN = "%d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex"


class Context(Protocol):
    """A Dagster context: of an asset, an op, an input or an output."""

    @property
    def log(self) -> logging.Logger:
        """The run's log."""
        ...


@contextmanager
def spark_progress(context: Context, spark: SparkSession, *, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block runs, log Spark's progress to the run, and copy Spark's log to the step's output.

    It never makes the block fail. A Spark Connect session has neither progress nor a log, because its driver is
    elsewhere.

    Args:
        context: A Dagster context with the run's log.
        spark: The Spark session.
        every_s: Seconds between two log lines.

    Example:
        with spark_progress(context, spark):
            frame.count()
    """
    driver = _driver(spark)
    if driver is None:
        context.log.info("Spark: a Spark Connect session provides neither progress nor its log")
        yield
        return
    tracker = driver.statusTracker()
    earlier: set[int] = _call_or(lambda: {*tracker.getJobIdsForGroup()}, set())
    done = threading.Event()
    with temporary_folder("spark-log") as folder, _log_file(driver, folder) as log_file:

        def copy_log() -> None:
            sys.stderr.write(log_file.read())
            sys.stderr.flush()

        def watch() -> None:
            logged = ""
            while not done.wait(every_s):
                copy_log()
                logged = _log_if_new(context.log, _call_or(lambda: _stages(tracker), ""), logged)

        thread = threading.Thread(target=watch, name="spark-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            copy_log()
            _log_if_new(context.log, _call_or(lambda: _jobs(tracker, earlier), ""))


def frame_progress(context: Context, rows: object) -> AbstractContextManager[None]:
    """Return `spark_progress` for a Spark frame, which is computed only when it is stored; else a no-op."""
    return spark_progress(context, rows.sparkSession) if is_spark_frame(rows) else nullcontext()  # type: ignore[attr-defined]


def _driver(spark: SparkSession) -> SparkContext | None:
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None


@contextmanager
def _log_file(driver: SparkContext, folder: Path) -> Iterator[TextIO]:
    """Yield a file to which Spark logs, too."""
    path = folder / "spark.log"
    path.touch()
    remove = _call_or(lambda: _add_appender(driver, str(path)), None)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield file
    finally:
        if remove is not None:
            _call_or(remove, None)


def _add_appender(driver: SparkContext, path: str) -> Callable[[], None]:
    """Add a log file to Spark, and return the function that removes it."""
    log4j: Any = driver._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    running = log4j.LogManager.getContext(False)
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(LOG_PATTERN).build()
    appender = log4j.core.appender.FileAppender.newBuilder().setName(path).withFileName(path).setLayout(layout).build()
    root = running.getConfiguration().getRootLogger()
    appender.start()
    root.addAppender(appender, None, None)
    running.updateLoggers()

    def remove() -> None:
        root.removeAppender(path)
        running.updateLoggers()
        appender.stop()

    return remove


def _call_or(call: Callable[[], Value], otherwise: Value) -> Value:
    """Return the result of a call to Spark, or `otherwise` if it fails: the block may have ended the session."""
    try:
        return call()
    except Exception:
        logger.debug("the call to Spark failed", exc_info=True)
        return otherwise


def _log_if_new(log: logging.Logger, text: str, logged: str = "") -> str:
    """Log a text unless it is empty or unchanged, and return the last logged text."""
    if text and text != logged:
        log.info("Spark: %s", text)
    return text or logged


def _stages(tracker: StatusTracker) -> str:
    """Return the progress of active stages."""
    active = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in active if stage is not None]
    texts = [
        f"stage {s.stageId}: {s.numCompletedTasks:,} of {s.numTasks:,} tasks done, {s.numActiveTasks:,} running"
        + (f", {s.numFailedTasks:,} failed" if s.numFailedTasks else "")
        for s in stages[:STAGES_MAX]
    ]
    return "; ".join([*texts, *([f"{len(stages) - STAGES_MAX} more stages"] if len(stages) > STAGES_MAX else [])])


def _jobs(tracker: StatusTracker, earlier: set[int]) -> str:
    """Return a summary of the jobs since."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup() if job not in earlier]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
    tasks = sum(stage.numCompletedTasks for stage in stages)
    failed = sum(stage.numFailedTasks for stage in stages)
    return f"{len(jobs):,} job{'' if len(jobs) == 1 else 's'}, {tasks:,} tasks done" + (
        f", {failed:,} failed" if failed else ""
    )
