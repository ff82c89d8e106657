"""The files of an import, looked at many at a time: pieces of work that any engine can do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from icedb.operations.importing.list_files import Origin, SourceFile
from icedb.operations.importing.parquet_footer import Demand, Examined, Footer, Footers
from icedb.operations.rewrite.engine import DistributedTask, ResourceLimits
from icedb.storage.location import Location
from icedb.transaction.table_handle import Handle
from icedb.util.progress import progress

__all__ = ["Examining", "ReadingFooters", "each"]

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

logger = logging.getLogger(__name__)

# Each waits for the store most of the time.
FILES_AT_ONCE = 16
FILES_PER_LINE = 100


@dataclass(frozen=True, slots=True)
class ReadingFooters(DistributedTask[SourceFile, Footer]):
    """Reads the footers of files."""

    origin: Origin

    name = "reading footers"
    items_per_task = FILES_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See Work."""
        return (self.origin.location,)

    def do(self, handle: Handle, items: Sequence[SourceFile], means: ResourceLimits) -> list[Footer]:
        """See Work. Raises as `Footers.read`."""
        with Footers(self.origin, table=handle.store, means=means) as footers:
            return each(handle, self.name, items, footers.read, at_once=FILES_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Examining(DistributedTask[tuple[SourceFile, Footer], Examined]):
    """Asks the rows of files, whose footers were read."""

    origin: Origin
    demand: Demand

    name = "examining files"
    items_per_task = FILES_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See Work."""
        return (self.origin.location,)

    def bytes_of(self, item: tuple[SourceFile, Footer]) -> int:
        """See Work."""
        return item[0].bytes

    def do(self, handle: Handle, items: Sequence[tuple[SourceFile, Footer]], means: ResourceLimits) -> list[Examined]:
        """See Work. Raises as `Footers.examine`."""
        with Footers(self.origin, table=handle.store, means=means) as footers:
            return each(
                handle,
                self.name,
                items,
                lambda item: footers.examine(item[0], item[1], self.demand),
                at_once=means.threads or FILES_AT_ONCE,
            )


def each(
    handle: Handle, name: str, items: Sequence[_Item], do: Callable[[_Item], _Found], *, at_once: int
) -> list[_Found]:
    """Do something with each, many at a time, and say how far it is. The first failure ends it."""
    done: list[_Found] = []
    with progress(name, len(items), "files") as advance, ThreadPoolExecutor(at_once) as pool:
        try:
            for found in pool.map(do, items):
                done.append(found)
                advance(1)
                if len(done) % FILES_PER_LINE == 0:
                    logger.info("%s: %s: %d of %d", handle.table, name, len(done), len(items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done
