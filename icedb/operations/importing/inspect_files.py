"""Distributed tasks that read the footers and examine the rows of the files of an import."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from icedb.operations.importing.list_files import Origin, SourceFile
from icedb.operations.importing.parquet_footer import ContentRequest, FileContent, Footer, Footers
from icedb.operations.rewrite.engine import DistributedTask, ResourceLimits
from icedb.storage.location import Location
from icedb.transaction.table_handle import Handle
from icedb.util.progress import LogPace, progress

__all__ = ["ExamineTask", "FooterTask", "map_files"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)

# Each file waits for the store most of the time.
FILES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FooterTask(DistributedTask[SourceFile, Footer]):
    """Reads the footers of files."""

    origin: Origin

    name = "reading footers"
    items_per_task = FILES_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See `DistributedTask`."""
        return (self.origin.location,)

    def do(self, handle: Handle, items: Sequence[SourceFile], limits: ResourceLimits) -> list[Footer]:
        """See `DistributedTask`. Raises the errors of `Footers.read`."""
        with Footers(self.origin, table=handle.store, limits=limits) as footers:
            return map_files(handle, self.name, items, footers.read, at_once=FILES_AT_ONCE)


@dataclass(frozen=True, slots=True)
class ExamineTask(DistributedTask[tuple[SourceFile, Footer], FileContent]):
    """Examines the rows of files whose footers were read."""

    origin: Origin
    demand: ContentRequest

    name = "examining files"
    items_per_task = FILES_AT_ONCE

    def reads(self) -> tuple[Location, ...]:
        """See `DistributedTask`."""
        return (self.origin.location,)

    def bytes_of(self, item: tuple[SourceFile, Footer]) -> int:
        """See `DistributedTask`."""
        return item[0].bytes

    def do(
        self, handle: Handle, items: Sequence[tuple[SourceFile, Footer]], limits: ResourceLimits
    ) -> list[FileContent]:
        """See `DistributedTask`. Raises the errors of `Footers.examine`."""
        size = sum(map(self.bytes_of, items))
        with Footers(self.origin, table=handle.store, limits=limits, read_bytes=size) as footers:
            return map_files(
                handle,
                self.name,
                items,
                lambda item: footers.examine(item[0], item[1], self.demand),
                at_once=limits.threads or FILES_AT_ONCE,
            )


def map_files(
    handle: Handle, name: str, items: Sequence[_Item], do: Callable[[_Item], _Result], *, at_once: int
) -> list[_Result]:
    """Apply a function to each item, `at_once` at a time, and report progress. The first failure stops it."""
    done: list[_Result] = []
    pace = LogPace()
    with progress(name, len(items), "files") as advance, ThreadPoolExecutor(at_once) as pool:
        try:
            for result in pool.map(do, items):
                done.append(result)
                advance(1)
                if pace.logs(is_last=len(done) == len(items)):
                    logger.info("%s: %s: %d of %d", handle.table, name, len(done), len(items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done
