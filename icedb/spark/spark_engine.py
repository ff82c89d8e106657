"""Spark as the engine of maintenance: merges, deletions, rewrites and imports, done by tasks, committed here.

    engine = SparkEngine(spark)
    table.merge(engine=engine)
    table.delete("user = 7", engine=engine)

Each task runs DuckDB on its own pieces, with the code that this process would run, under a memory bound and with one
thread. It puts parts and says which; nothing names them until this process commits, once. Each attempt of a task puts
parts of its own, and deletes them when it fails. The parts that other attempts, or those of a job that failed, have put
are found by the mark in their names and deleted; what a task puts that nobody could stop is an orphan.

The memory bound is DuckDB's. A part or file that a task puts is in memory as a whole for that time, about twice.
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
from icedb.spark.datasource.options import check_place
from icedb.spark.spark_tasks import Assignment, TableOfTasks, run_tasks
from icedb.sql.connections import MEMORY_BYTES_MIN, MIB
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import discard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkEngine", "share_out"]

logger = logging.getLogger(__name__)

# With what Python, Arrow and DuckDB take beside it, a task stays below a gigabyte.
MEMORY_BYTES = 512 * MIB
# More of them cost more to start than they bring; beyond that, a task does several pieces.
TASKS_MAX = 1_000
# Pieces that are small are done together, but no more of them than this.
BYTES_PER_TASK = 256 * MIB
# Half of an id: no other part has it, and what one task puts never meets what another does.
MARK_DIGITS = 16


class SparkEngine:
    """Does the pieces of an operation as tasks of a Spark session: see the module.

    `spark`: a classic session or one of Spark Connect. `memory_bytes`: what DuckDB may use in a task before it spills.
    `tasks_max`: of a job; None: a thousand. The table's store must be reachable from the executors: a bucket, or a
    folder that all machines have. Raises InvalidOption.
    """

    def __init__(self, spark: SparkSession, *, memory_bytes: int = MEMORY_BYTES, tasks_max: int | None = None) -> None:
        if not isinstance(memory_bytes, int) or memory_bytes < MEMORY_BYTES_MIN:
            raise InvalidOption(
                f"SparkEngine: memory_bytes is {memory_bytes!r}; a task that writes parts needs at least "
                f"{MEMORY_BYTES_MIN}."
            )
        if tasks_max is not None and (not isinstance(tasks_max, int) or tasks_max < 1):
            raise InvalidOption(f"SparkEngine: tasks_max is {tasks_max!r}; give a whole number over 0, or None.")
        self._spark = spark
        self._memory_bytes = memory_bytes
        self._tasks_max = tasks_max or TASKS_MAX

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """See `icedb.operations.rewrite.engine.Engine`.

        Raises InvalidOption for a table in memory or in Azure, SparkJobFailed, and as the work does.
        """
        if not items:
            return []
        _check_reachable(handle, work)
        shares = share_out(work, items, tasks_max=self._tasks_max)
        # What is kept when the job fails has names of its own making.
        partitions = {p for item in items if (p := work.partition_of(item)) is not None}
        mark = handle.clock.new_id()[:MARK_DIGITS] if partitions else ""
        assignment = Assignment(TableOfTasks.of(handle, mark), work, self._memory_bytes)
        logger.info("%s: %s, pieces: %d, Spark tasks: %d", handle.table, work.name, len(items), len(shares))
        try:
            answers = run_tasks(self._spark, assignment, [[items[n] for n in share] for share in shares])
        except BaseException:
            if partitions:
                _discard_put(handle, partitions, mark)
            raise
        by_number = {
            number: result
            for share, results in zip(shares, answers, strict=True)
            for number, result in zip(share, results, strict=True)
        }
        results = [by_number[number] for number in range(len(items))]
        if partitions:
            _check_put(handle, partitions, mark, [part for r in results if (part := work.part_of(r)) is not None])
        logger.info("%s: %s, all %d pieces are done", handle.table, work.name, len(items))
        return results


def share_out(work: DistributedTask[Item, Result], items: Sequence[Item], *, tasks_max: int) -> list[list[int]]:
    """Which items each task does, by their positions. Pure. The tasks that take longest come first."""
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
        check_place(location.uri)
        if location.scheme == "memory":
            raise InvalidOption(
                f"{handle.table}: '{location.uri}' is in this process's memory, which Spark's tasks cannot reach. Do "
                "without an engine, or use a folder or a bucket."
            )


def _put(handle: Handle, partitions: Collection[str], mark: str) -> dict[str, int]:
    """What the tasks of a job have put, in any attempt: key -> bytes. Nobody else's part has the mark."""
    return {i.key: i.bytes for i in stored_parts(handle, partitions) if i.key.rpartition("/")[2].startswith(mark)}


def _check_put(handle: Handle, partitions: Collection[str], mark: str, parts: Sequence[Marker]) -> None:
    """Before anything names them: are the parts where this process looks for them?

    Executors may have a folder of their own at the same path. Parts of attempts that Spark did not choose are deleted.
    """
    put = _put(handle, partitions, mark)
    if missing := [part.key for part in parts if put.get(part.key) != part.bytes]:
        _discard(handle, put)
        raise InvalidOption(
            f"{handle.table}: {len(missing)} parts that Spark's tasks have put are not there, '{missing[0]}' for "
            "example. Nothing was changed. If the table is in a folder, all machines must have the same one, not each "
            "its own at that path: share it, use a bucket, or do without an engine."
        )
    _discard(handle, put.keys() - {part.key for part in parts})


def _discard_put(handle: Handle, partitions: Collection[str], mark: str) -> None:
    """Delete what the tasks of a failed job have put. Best effort: what stays is an orphan."""
    try:
        _discard(handle, _put(handle, partitions, mark))
    except IceDBError as error:
        logger.warning("%s: parts of the job that failed stay behind as orphans: %s", handle.table, error)


def _discard(handle: Handle, keys: Iterable[str]) -> None:
    if keys := sorted(keys):
        discard(handle.store, keys)
