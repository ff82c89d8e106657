"""Jobs of Spark tasks for maintenance, with their inputs and results. They use DataFrames only, as Spark Connect needs.

A job is a range of numbers with one number in each partition, and a task does the share of the work with its number.
The inputs contain the table's credentials. So they travel pickled inside the function of the tasks, where no plan, log
or web page shows them. If Spark runs a task twice, the job still returns one result for each number.

A task returns an error that each attempt would repeat. It raises other errors, and Spark retries the task.
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

__all__ = ["Assignment", "TaskTable", "run_tasks"]

# Limit for the inputs of a job. Each task unpickles all of them, and Spark Connect rejects messages above 128 MiB.
JOB_BYTES_MAX = 32 * 1024 * 1024
# Limit for the inputs that all tasks of a job share over Spark Connect, within the limit of its messages.
CONNECT_BYTES_MAX = 90 * 1024 * 1024
_OUTCOMES = "task long, outcome binary"


@dataclass(frozen=True, slots=True)
class TaskTable:
    """A table as an input of tasks. The names of its new parts begin with `mark`."""

    location: Location
    spec: TableSpec
    fencing: Fencing
    mark: str

    @classmethod
    def of(cls, handle: Handle, mark: str) -> TaskTable:
        """Return the table with the current spec of a handle, which the tasks use even if the log records another."""
        return cls(handle.location, handle.spec, handle.fencing, mark)

    def open(self) -> Handle:
        """Open the table in a task."""
        return Handle.of(
            open_store(self.location),
            self.spec,
            clock=_MarkingClock(self.mark),
            fencing=self.fencing,
            fixed_spec=True,
        )


class _MarkingClock(SystemClock):
    """The system clock, with ids that begin with a mark. The rest of an id is random."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def new_id(self) -> str:
        return self._mark + super().new_id()[len(self._mark) :]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The inputs that all tasks of a job share."""

    table: TaskTable
    work: DistributedTask[Any, Any]
    memory_bytes: int

    def do(self, items: Sequence[Any]) -> list[Any] | IceDBError:
        """Return, in a task, the results for its items, or an error that each attempt would repeat. Raises others."""
        limits = ResourceLimits(self.memory_bytes, threads=processors(), folder=scratch_folder())
        try:
            return self.work.do(self.table.open(), items, limits)
        except RetryableError:
            raise
        except IceDBError as error:
            return error
        except duckdb.OutOfMemoryException as error:
            return InvalidOption(f"{self._describe(error)} Give the engine more memory_bytes.")
        except (duckdb.DataError, duckdb.ProgrammingError) as error:
            return InvalidOption(f"{self._describe(error)} Correct the arguments of the operation.")

    def _describe(self, error: duckdb.Error) -> str:
        return f"{self.table.location.uri}: {self.work.name} failed in a task: {str(error).splitlines()[0]}."


def run_tasks(spark: SparkSession, assignment: Assignment, shares: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Run one task for each share, in as few jobs as possible. Return their results in the order of the shares.

    Raises the first error that a task returned, and errors of the job as `explained` translates them.
    """
    return [results for job in _jobs(shares) for results in _run_job(spark, assignment, *job)]


def _jobs(shares: Sequence[Sequence[Any]]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of shares of each job, and the shares, pickled together: common objects are stored once."""
    pickled = pickle.dumps(list(shares))
    if len(pickled) <= JOB_BYTES_MAX or len(shares) == 1:
        yield len(shares), pickled
        return
    half = len(shares) // 2
    yield from _jobs(shares[:half])
    yield from _jobs(shares[half:])


def _run_job(spark: SparkSession, assignment: Assignment, tasks: int, shares: bytes) -> list[list[Any]]:
    table = assignment.table.location.uri
    shared = pickle.dumps(assignment)
    if len(shared) > CONNECT_BYTES_MAX and type(spark).__module__.startswith("pyspark.sql.connect."):
        raise InvalidOption(
            f"{table}: {assignment.work.name} sends {len(shared)} bytes to each task, and Spark Connect takes at most "
            f"{CONNECT_BYTES_MAX}. Nothing was changed. Pass fewer rows at a time, or use a classic session."
        )
    try:
        # Each partition has exactly one number, because Spark divides a range evenly and nothing shuffles it.
        numbers = spark.range(0, tasks, 1, tasks)
        rows = numbers.mapInArrow(_function(shared, shares), _OUTCOMES).collect()
    except Exception as error:  # noqa: BLE001  whatever Spark raises, in this session or another
        raise explained(error, table=table) from None
    outcomes = {int(row["task"]): _unpickled(row["outcome"]) for row in rows}
    if len(rows) != tasks or sorted(outcomes) != list(range(tasks)):
        raise InvariantViolated(
            f"{table}: {tasks} Spark tasks returned {len(rows)} results for {len(outcomes)} tasks. Nothing was "
            "published."
        )
    results = []
    for number in range(tasks):
        if isinstance(outcomes[number], IceDBError):
            raise outcomes[number]
        results.append(outcomes[number])
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
    """Unpickle data from this program or one of its own tasks."""
    return pickle.loads(data)  # noqa: S301
