"""Distributed work: the independent pieces of an operation, and the engines that do them.

An operation plans, passes its pieces to an engine, checks their results, and commits. Only the pieces may run in other
processes, so there is one commit, wherever its parts were written. The default engine is this process. Another one is
`icedb.spark.SparkEngine`.
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

__all__ = ["LOCAL_ENGINE", "DistributedTask", "Engine", "Item", "LocalEngine", "ResourceLimits", "Result"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The resources that work may use in one process. None suits a process that has the machine to itself.

    `memory_bytes` is for all items together. Data beyond it is spilled to a new folder below `folder`.
    """

    memory_bytes: int | None = None
    threads: int | None = None
    folder: Path | None = None


class DistributedTask(ABC, Generic[Item, Result]):
    """A piece of work for each of some items, in any order and any process.

    Subclasses are frozen dataclasses. They, their items and their results are pickled. An item that is done twice gives
    two equivalent results, and neither is visible before the commit.
    """

    #: The name of the work in log lines and messages, such as "rewriting parts".
    name: ClassVar[str]
    #: The number of items of one task, or fewer if they are large. They wait for the store together.
    items_per_task: ClassVar[int] = 1

    @abstractmethod
    def do(self, handle: Handle, items: Sequence[Item], limits: ResourceLimits) -> list[Result]:
        """Return the results, in the order of the items. On failure, delete the parts that were put."""

    def bytes_of(self, item: Item) -> int:
        """Return the relative size of an item."""
        return 1

    def reads(self) -> tuple[Location, ...]:
        """Return the locations that it reads besides the table."""
        return ()

    def partition_of(self, item: Item) -> str | None:
        """Return the partition of the part that is put for an item and useless after a failure, or None without one."""
        return None

    def part_of(self, result: Result) -> Marker | None:
        """Return the part that was put for an item with a `partition_of`, or None if no row was left.

        An engine deletes all other parts of this work, so every class with a `partition_of` must implement this.
        """
        raise NotImplementedError(f"{type(self).__name__} has a partition_of and must implement part_of")


class Engine(Protocol):
    """Does all pieces of an operation, or fails."""

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """Return the results, in the order of the items. Raises the errors of `work.do` and of the engine.

        On failure, known parts that were put are deleted. Parts of a killed process stay as orphans.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Does all work in this process."""

    limits: ResourceLimits = field(default_factory=ResourceLimits)

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """See Engine."""
        return work.do(handle, items, self.limits) if items else []


LOCAL_ENGINE = LocalEngine()
