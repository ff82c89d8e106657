"""Spark as the engine of maintenance: tasks do merges (compactions), deletions, rewrites and imports.

    engine = SparkEngine(spark)
    table.merge(engine=engine)
    table.delete("user = 7", engine=engine)

Each task runs DuckDB on its own items with the code of a local run, with a memory limit and one thread. It puts parts
(data files) and reports them. They become visible when this process commits, once. Each attempt of a task puts its own
parts, and deletes them if it fails. The names of a job's parts begin with its mark. By that mark the driver deletes
parts of failed jobs and of other attempts. Parts that a task puts after that are orphans.

The memory limit is DuckDB's. While a task puts a part or file, it also holds about two copies of it in memory.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from icedb.errors import IceDBError, InvalidOption
from icedb.format.records import Marker
from icedb.operations.importing.copy_files import stored_parts
from icedb.operations.rewrite.engine import DistributedTask, Item, Result
from icedb.spark.spark_tasks import Assignment, TaskTable, run_tasks
from icedb.sql.connections import MEMORY_BYTES_MIN, MIB
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import discard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MEMORY_BYTES", "SparkEngine", "assign_items"]

logger = logging.getLogger(__name__)

# With the memory of Python, Arrow and DuckDB's own overhead, a task stays below a gigabyte.
MEMORY_BYTES = 512 * MIB
# More tasks would cost more to start than they save; beyond this, a task gets several items.
TASKS_MAX = 1_000
# Small items share a task up to this size.
BYTES_PER_TASK = 256 * MIB
# Half of an id: unique to a job, and long enough a rest to keep the parts of its tasks apart.
MARK_DIGITS = 16


class SparkEngine:
    """Engine that does the items of a maintenance operation as tasks of a Spark session.

    The executors must reach the store of the table: a bucket, or a folder that all machines share.

    Args:
        spark: a classic session or one of Spark Connect.
        memory_bytes: the memory of DuckDB in a task, in bytes, before it spills to disk.
        tasks_max: the maximum number of tasks of a job; None: 1,000.

    Raises:
        InvalidOption: `memory_bytes` or `tasks_max` is invalid.

    Example:
        table.merge(engine=SparkEngine(spark))
    """

    def __init__(self, spark: SparkSession, *, memory_bytes: int = MEMORY_BYTES, tasks_max: int | None = None) -> None:
        if not isinstance(memory_bytes, int) or memory_bytes < MEMORY_BYTES_MIN:
            raise InvalidOption(
                f"SparkEngine: memory_bytes is {memory_bytes!r}, and a task that writes parts needs more. "
                f"Pass at least {MEMORY_BYTES_MIN}."
            )
        if tasks_max is not None and (not isinstance(tasks_max, int) or tasks_max < 1):
            raise InvalidOption(f"SparkEngine: tasks_max is {tasks_max!r}. Pass an integer above 0, or None.")
        self._spark = spark
        self._memory_bytes = memory_bytes
        self._tasks_max = tasks_max or TASKS_MAX

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """Do all items of `work` as Spark tasks. See `icedb.operations.rewrite.engine.Engine`.

        Raises:
            InvalidOption: the table is in memory.
            SparkJobFailed: the job failed for a reason that is not an error of IceDB.
            IceDBError: an error of `work`.
        """
        if not items:
            return []
        _check_reachable(handle, work)
        shares = assign_items(work, items, tasks_max=self._tasks_max)
        # Only new parts carry the mark. After a failure, files that existed before stay.
        partitions = {p for item in items if (p := work.partition_of(item)) is not None}
        mark = handle.clock.new_id()[:MARK_DIGITS] if partitions else ""
        assignment = Assignment(TaskTable.of(handle, mark), work, self._memory_bytes)
        logger.info("%s: %s, items: %d, Spark tasks: %d", handle.table, work.name, len(items), len(shares))
        try:
            task_results = run_tasks(self._spark, assignment, [[items[n] for n in share] for share in shares])
        except BaseException:
            if partitions:
                _discard_stored(handle, partitions, mark)
            raise
        by_number = {
            number: result
            for share, results in zip(shares, task_results, strict=True)
            for number, result in zip(share, results, strict=True)
        }
        results = [by_number[number] for number in range(len(items))]
        if partitions:
            _check_stored(handle, partitions, mark, [part for r in results if (part := work.part_of(r)) is not None])
        logger.info("%s: %s, all %d items are done", handle.table, work.name, len(items))
        return results


def assign_items(work: DistributedTask[Item, Result], items: Sequence[Item], *, tasks_max: int) -> list[list[int]]:
    """Return the positions of the items of each task, longest tasks first. Pure."""
    weights = [max(1, work.bytes_of(item)) for item in items]
    enough = max(-(-len(items) // work.items_per_task), min(len(items), -(-sum(weights) // BYTES_PER_TASK)))
    tasks = min(tasks_max, enough)
    shares: list[list[int]] = [[] for _ in range(tasks)]
    loads = [(0, number) for number in range(tasks)]
    for position in sorted(range(len(items)), key=lambda p: -weights[p]):
        load, number = heapq.heappop(loads)
        shares[number].append(position)
        heapq.heappush(loads, (load + weights[position], number))
    return sorted(shares, key=lambda share: -sum(weights[position] for position in share))


def _check_reachable(handle: Handle, work: DistributedTask[Item, Result]) -> None:
    for location in (handle.location, handle.location.log, *work.reads()):
        if location is None:
            continue
        if location.scheme == "memory":
            raise InvalidOption(
                f"{handle.table}: '{location.uri}' is in the memory of this process, which Spark's tasks cannot reach. "
                "Omit the engine, or use a folder or a bucket."
            )


def _stored_parts(handle: Handle, partitions: Collection[str], mark: str) -> dict[str, int]:
    """Return key -> bytes of all parts that a job has put, in any attempt. No other part has the mark."""
    return {i.key: i.bytes for i in stored_parts(handle, partitions) if i.key.rpartition("/")[2].startswith(mark)}


def _check_stored(handle: Handle, partitions: Collection[str], mark: str, parts: Sequence[Marker]) -> None:
    """Check, before the commit, that the new parts are stored. Raises InvalidOption.

    An executor may have another local folder at the same path. Parts of redundant attempts are deleted.
    """
    put = _stored_parts(handle, partitions, mark)
    if missing := [part.key for part in parts if put.get(part.key) != part.bytes]:
        _discard(handle, put)
        raise InvalidOption(
            f"{handle.table}: {len(missing)} parts that Spark's tasks have put are not there, '{missing[0]}' for "
            "example. Nothing was changed. A table in a folder needs one folder that all machines share. Share the "
            "folder, use a bucket, or omit the engine."
        )
    _discard(handle, put.keys() - {part.key for part in parts})


def _discard_stored(handle: Handle, partitions: Collection[str], mark: str) -> None:
    """Delete the parts of a failed job, best effort. Remaining parts are orphans."""
    try:
        _discard(handle, _stored_parts(handle, partitions, mark))
    except IceDBError as error:
        logger.warning("%s: parts of the failed job remain as orphans: %s", handle.table, error)


def _discard(handle: Handle, keys: Iterable[str]) -> None:
    if keys := sorted(keys):
        discard(handle.store, keys)
