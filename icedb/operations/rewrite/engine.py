"""Work that may be done elsewhere: the independent pieces of an operation, and the engine that does them.

An operation plans, hands its pieces to an engine, checks what they report, and commits. Only the pieces may run in
other processes, so a commit is one, wherever its parts were written. The engine of every day is this process; another
one is `icedb.spark.SparkEngine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from icedb.format.records import Marker
from icedb.storage.location import Location
from icedb.transaction.table_handle import Handle

__all__ = ["LOCAL_ENGINE", "Engine", "LocalEngine", "ResourceLimits", "DistributedTask"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What work may use in one process. None: what suits a process that has the machine to itself.

    `memory_bytes` is for all items together; what does not fit is spilled to a new folder below `folder`.
    """

    memory_bytes: int | None = None
    threads: int | None = None
    folder: Path | None = None


class DistributedTask(ABC, Generic[Item, Result]):
    """What is to be done with each of some items, in any order and any process.

    A frozen dataclass; it, its items and its results are pickled on their way. Done twice, an item gives two results
    that are as good as each other, and nothing of either is visible.
    """

    #: What it does, as log lines and messages say it: "rewriting parts".
    name: ClassVar[str]
    #: How many items are worth a process's while; more of them wait for the store together.
    items_per_task: ClassVar[int] = 1

    @abstractmethod
    def do(self, handle: Handle, items: Sequence[Item], means: ResourceLimits) -> list[Result]:
        """The results, in the order of the items. When it fails, the parts that it has put are deleted again."""

    def bytes_of(self, item: Item) -> int:
        """How much there is to do for an item, in comparison with others."""
        return 1

    def reads(self) -> tuple[Location, ...]:
        """Where it reads beside the table."""
        return ()

    def partition_of(self, item: Item) -> str | None:
        """The partition to which a part is put that is of no use when anything fails; None: no such part is put."""
        return None

    def part_of(self, result: Result) -> Marker | None:
        """The part that was put for an item with a `partition_of`; None when that left no row.

        All other parts that an engine finds of this work are deleted, so what has a `partition_of` must say.
        """
        raise NotImplementedError(f"{type(self).__name__} has a partition_of, and does not say which parts it has put")


class Engine(Protocol):
    """Does the pieces of an operation, all or none."""

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """The results, in the order of the items. Raises what `work.do` raises, and errors of the engine.

        When it fails, what is known of the parts that were put is deleted; what a process leaves that was killed is an
        orphan.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Everything here and now."""

    means: ResourceLimits = field(default_factory=ResourceLimits)

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """See Engine."""
        return work.do(handle, items, self.means) if items else []


LOCAL_ENGINE = LocalEngine()
