"""Work as Spark tasks: what they are told, what they answer. Through DataFrames only, so over Spark Connect as well.

A job is a range of numbers, one in each of its partitions, so a task does exactly one share of the work: the one of its
number. What the tasks must know travels inside their function, pickled, where no plan, log or web page shows it: it
holds the table's credentials. Whatever Spark does twice, only one answer for each number comes back.

An error that would be the same every time is an answer as well. Others are raised, and Spark tries the task again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidOption, InvariantViolated, RetryableError
from icedb.format.table_spec import TableSpec
from icedb.operations.rewrite.engine import DistributedTask, ResourceLimits
from icedb.operations.write.spark_errors import explained
from icedb.spark.datasource.task_resources import processors, scratch_folder
from icedb.storage.location import Location
from icedb.storage.obstore_store import open_store
from icedb.transaction.table_handle import Fencing, Handle
from icedb.util.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Assignment", "TableOfTasks", "run_tasks"]

# What the function of a job carries: each task unpickles all of it, and Spark Connect takes no message over 128 MiB.
JOB_BYTES_MAX = 32 * 1024 * 1024
_OUTCOMES = "task long, outcome binary"


@dataclass(frozen=True, slots=True)
class TableOfTasks:
    """A table, as a task is told of it. The names of its new parts begin with `mark`."""

    location: Location
    spec: TableSpec
    fencing: Fencing
    mark: str

    @classmethod
    def of(cls, handle: Handle, mark: str) -> TableOfTasks:
        """The table as this handle has it now: whatever the log records meanwhile, the tasks keep to its spec."""
        return cls(handle.location, handle.spec, handle.fencing, mark)

    def open(self) -> Handle:
        """In a task: the table."""
        return Handle(
            open_store(self.location),
            self.spec,
            clock=_MarkingClock(self.mark),
            fencing=self.fencing,
            fixed_spec=True,
        )


class _MarkingClock(SystemClock):
    """The machine's clock; its ids begin with a mark, and are as random as they are long beyond it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def new_id(self) -> str:
        return self._mark + super().new_id()[len(self._mark) :]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all tasks of a job are told alike."""

    table: TableOfTasks
    work: DistributedTask[Any, Any]
    memory_bytes: int

    def do(self, items: Sequence[Any]) -> list[Any] | IceDBError:
        """In a task: the results for its items, or an error that would be the same every time. Raises others."""
        means = ResourceLimits(self.memory_bytes, threads=processors(), folder=scratch_folder())
        try:
            return self.work.do(self.table.open(), items, means)
        except RetryableError:
            raise
        except IceDBError as error:
            return error
        except duckdb.OutOfMemoryException as error:
            return InvalidOption(f"{self._told(error)} Give the engine more memory_bytes.")
        except (duckdb.DataError, duckdb.ProgrammingError) as error:
            return InvalidOption(f"{self._told(error)} Correct what was asked.")

    def _told(self, error: duckdb.Error) -> str:
        return f"{self.table.location.uri}: {self.work.name} failed in a task: {str(error).splitlines()[0]}."


def run_tasks(spark: SparkSession, assignment: Assignment, shares: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """A task for each share, in as few jobs as can be; the tasks' results, in the order of the shares.

    Raises the first error that a task answered, and what an error of the job means (see `explained`).
    """
    return [results for job in _jobs(shares) for results in _run_job(spark, assignment, *job)]


def _jobs(shares: Sequence[Sequence[Any]]) -> Iterator[tuple[int, bytes]]:
    """The shares of each job, and how many: all that its function should carry.

    Pickled together, what they have in common, a long predicate for example, is there once.
    """
    pickled = pickle.dumps(list(shares))
    if len(pickled) <= JOB_BYTES_MAX or len(shares) == 1:
        yield len(shares), pickled
        return
    half = len(shares) // 2
    yield from _jobs(shares[:half])
    yield from _jobs(shares[half:])


def _run_job(spark: SparkSession, assignment: Assignment, tasks: int, shares: bytes) -> list[list[Any]]:
    table = assignment.table.location.uri
    try:
        # Exactly one number in each partition: a range is cut evenly, and nothing shuffles it.
        numbers = spark.range(0, tasks, 1, tasks)
        rows = numbers.mapInArrow(_function(pickle.dumps(assignment), shares), _OUTCOMES).collect()
    except Exception as error:  # noqa: BLE001  whatever Spark raises, in this session or another
        raise explained(error, table=table) from None
    answers = {int(row["task"]): _unpickled(row["outcome"]) for row in rows}
    if len(rows) != tasks or sorted(answers) != list(range(tasks)):
        raise InvariantViolated(
            f"{table}: {len(rows)} answers of {len(answers)} tasks came back from {tasks} Spark tasks. Nothing was "
            "published."
        )
    results = []
    for number in range(tasks):
        if isinstance(answers[number], IceDBError):
            raise answers[number]
        results.append(answers[number])
    return results


def _function(assignment: bytes, shares: bytes) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    def icedb_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pickle.dumps(_unpickled(assignment).do(_unpickled(shares)[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([outcome], pa.binary())], ["task", "outcome"]
                )

    return icedb_task


def _unpickled(data: bytes) -> Any:
    """What this program, or one of its own tasks, has pickled."""
    return pickle.loads(data)  # noqa: S301
