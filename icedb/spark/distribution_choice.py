"""The distribution of a write that does not name one, chosen before any job from the size of the frame's source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from pyspark.sql import DataFrame

__all__ = ["BYTES_PER_TASK", "SHUFFLE_BYTES_MIN", "Choice", "choose_distribution", "source_bytes"]

MIB = 1024 * 1024
# The size of a part (data file) that a merge skips, and what Spark reads in one task. Less is merged later anyway.
SHUFFLE_BYTES_MIN = 128 * MIB
# Compressed Parquet of some hundred thousand rows, which keep a task busy for some seconds.
BYTES_PER_TASK = 16 * MIB
# Spark's size of a source that does not report one is 2^63 - 1, of which a projection is a share.
_UNKNOWN_BYTES_MIN = 1 << 50
# Nodes of a plan that only read, and that leave the number of tasks to Spark.
_CHEAP = frozenset((
    "DataSourceV2ScanRelation", "Filter", "InMemoryRelation", "LocalRelation", "LogicalRelation", "Project", "Union",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """A distribution, the maximum number of tasks without a shuffle (None: the frame's own number), and the reason."""

    distribution: Literal["none", "partition"]
    tasks_max: int | None
    reason: str


def choose_distribution(size: int | None, *, many_partitions: bool) -> Choice:
    """Return the distribution of a write. The first of these rules that applies decides.

    1. Size unknown: no shuffle, and the frame's own tasks.
    2. Less than 128 MiB: no shuffle, and at most a task for each 16 MiB. So there are few parts (data files), at most
       tasks times partitions.
    3. One partition: no shuffle, because each task writes only one part.
    4. Otherwise: a shuffle by partition. Spark reads at most 128 MiB in a task (by default), so there are several
       tasks. Without a shuffle each would write a part of each of its partitions, and a merge (compaction) of these
       costs more than the shuffle.

    Pure.

    Args:
        size: the size of the frame's source in bytes, see `source_bytes`; None: unknown.
        many_partitions: whether the rows may belong to several partitions of the table.
    """
    if size is None:
        return Choice("none", None, "the size of the rows is unknown before they are computed")
    text = f"the source has about {ceil(size / MIB)} MiB"
    if size < SHUFFLE_BYTES_MIN:
        return Choice("none", max(1, ceil(size / BYTES_PER_TASK)), f"{text}, less than {SHUFFLE_BYTES_MIN // MIB}")
    if not many_partitions:
        return Choice("none", None, f"{text}, for one partition")
    return Choice("partition", None, f"{text}, for several partitions")


def source_bytes(frame: DataFrame) -> int | None:
    """Return the size of the files or the cache that a frame reads, as Spark estimates it without a job.

    It is the compressed size of files, reduced to the columns and Hive partitions that the frame reads. None: unknown.
    This is so for Spark Connect, for sources that report no size, and for frames with joins, aggregates, sorts, Python
    functions or other operations beside filters and projections. The same holds after `repartition` and `coalesce`, by
    which the caller chose the tasks.
    """
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()  # no public API has it
        if not plan.subqueriesAll().isEmpty() or not _CHEAP.issuperset(_nodes(plan)):
            return None
        size = int(plan.stats().sizeInBytes())
    except Exception:  # noqa: BLE001  Spark Connect has no plan. The write itself reports the errors of a plan.
        return None
    return size if size < _UNKNOWN_BYTES_MIN else None


def _nodes(plan: Any) -> Iterator[str]:
    """Yield the names of the nodes of a logical plan."""
    yield plan.getClass().getSimpleName()
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))
