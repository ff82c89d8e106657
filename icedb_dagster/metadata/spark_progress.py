"""How far Spark is, and what it logs, in the run that waits for it.

A Spark session in the process of a step writes its log to the output that the process had when it started Java: not
to the step's, which Dagster keeps. And how many tasks are done is shown nowhere. So Spark is given a second place for
its log, from which a thread copies to the step's; and every few seconds the thread asks Spark's status tracker, and
tells the run's log what has changed.
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
Answer = TypeVar("Answer")

EVERY_S = 5.0
# Spark works on one or two at a time; a line of the log has room for a few.
STAGES_MAX = 3
LOG_PATTERN = "%d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex"


class Context(Protocol):
    """A context of Dagster: of an asset, an op, an input or an output."""

    @property
    def log(self) -> logging.Logger:
        """The run's log."""
        ...


@contextmanager
def spark_progress(context: Context, spark: SparkSession, *, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block works, tell the run how far Spark is, and put Spark's log beside that of the step.

    It never makes the block fail. A session of Spark Connect tells neither: its driver is somewhere else.
    """
    driver = _driver(spark)
    if driver is None:
        context.log.info("Spark: a session of Spark Connect tells neither progress nor its log")
        yield
        return
    tracker = driver.statusTracker()
    earlier: set[int] = _asked(lambda: {*tracker.getJobIdsForGroup()}, set())
    done = threading.Event()
    with temporary_folder("spark-log") as folder, _log_file(driver, folder) as log_file:

        def copy_log() -> None:
            sys.stderr.write(log_file.read())
            sys.stderr.flush()

        def watch() -> None:
            told = ""
            while not done.wait(every_s):
                copy_log()
                told = _tell(context.log, _asked(lambda: _stages(tracker), ""), told)

        thread = threading.Thread(target=watch, name="spark-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            copy_log()
            _tell(context.log, _asked(lambda: _jobs(tracker, earlier), ""))


def frame_progress(context: Context, rows: object) -> AbstractContextManager[None]:
    """The same for what stores some rows: of a Spark frame, they are computed only then."""
    return spark_progress(context, rows.sparkSession) if is_spark_frame(rows) else nullcontext()  # type: ignore[attr-defined]


def _driver(spark: SparkSession) -> SparkContext | None:
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None


@contextmanager
def _log_file(driver: SparkContext, folder: Path) -> Iterator[TextIO]:
    """A file to which Spark logs, too."""
    path = folder / "spark.log"
    path.touch()
    remove = _asked(lambda: _add_appender(driver, str(path)), None)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield file
    finally:
        if remove is not None:
            _asked(remove, None)


def _add_appender(driver: SparkContext, path: str) -> Callable[[], None]:
    """Returns what takes it away again."""
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


def _asked(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What Spark answers. What it does not is not worth a failure: the block may have ended the session."""
    try:
        return ask()
    except Exception:
        logger.debug("Spark does not answer", exc_info=True)
        return otherwise


def _tell(log: logging.Logger, text: str, told: str = "") -> str:
    """Log what is new, and return what was told last."""
    if text and text != told:
        log.info("Spark: %s", text)
    return text or told


def _stages(tracker: StatusTracker) -> str:
    """What Spark is at."""
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    texts = [
        f"stage {s.stageId}: {s.numCompletedTasks:,} of {s.numTasks:,} tasks done, {s.numActiveTasks:,} running"
        + (f", {s.numFailedTasks:,} failed" if s.numFailedTasks else "")
        for s in stages[:STAGES_MAX]
    ]
    return "; ".join([*texts, *([f"{len(stages) - STAGES_MAX} more stages"] if len(stages) > STAGES_MAX else [])])


def _jobs(tracker: StatusTracker, earlier: set[int]) -> str:
    """What Spark has done since."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup() if job not in earlier]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
    tasks = sum(stage.numCompletedTasks for stage in stages)
    failed = sum(stage.numFailedTasks for stage in stages)
    return f"{len(jobs):,} job{'' if len(jobs) == 1 else 's'}, {tasks:,} tasks done" + (
        f", {failed:,} failed" if failed else ""
    )
