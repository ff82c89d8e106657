"""Searches for rows in parts (data files), for deletions, upserts and updates: in batches that engines distribute."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence

import duckdb

from icedb.operations.rewrite.engine import DistributedTask, ResourceLimits, Result
from icedb.operations.rewrite.prefetch import small_parts_here
from icedb.reader.scan_sql import translated_read_errors
from icedb.sql.connection_pool import reader
from icedb.sql.connections import MIB, memory_bytes_default
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import LogPace, progress
from icedb.util.temporary_files import temporary_folder

__all__ = ["PartSearch", "search_batches"]

logger = logging.getLogger(__name__)

# The number of paths in one statement, and their size: enough for many concurrent requests, and few enough that an
# engine can distribute the statements.
_PARTS_PER_BATCH = 250
_BYTES_PER_BATCH = 256 * MIB


def search_batches(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Return the parts of each statement of a search."""
    batches: list[list[Part]] = []
    left = 0
    for part in parts:
        if not batches or part.bytes > left or len(batches[-1]) == _PARTS_PER_BATCH:
            batches.append([])
            left = _BYTES_PER_BATCH
        batches[-1].append(part)
        left -= part.bytes
    return [tuple(batch) for batch in batches]


class PartSearch(DistributedTask[tuple[Part, ...], Result]):
    """A query over the parts of each batch."""

    name = "searching parts"

    @property
    @abstractmethod
    def wrong_sql(self) -> str:
        """The message if the caller's SQL does not fit the rows."""

    @abstractmethod
    def search(self, handle: Handle, con: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> Result:
        """Return the result of the parts of one batch."""

    def prepare(self, con: duckdb.DuckDBPyConnection) -> None:
        """Register what the query needs besides the parts."""

    def bytes_of(self, item: tuple[Part, ...]) -> int:
        """See DistributedTask."""
        return sum(p.bytes for p in item)

    def do(self, handle: Handle, items: Sequence[tuple[Part, ...]], limits: ResourceLimits) -> list[Result]:
        """See DistributedTask. Raises InvalidOption, MissingPart, SnapshotExpired, DuckDB's and the store's errors."""
        started_ms = handle.clock.now_ms()
        memory_bytes = limits.memory_bytes or memory_bytes_default()
        inputs = [p for parts in items for p in parts]
        results = []
        with (
            translated_read_errors(handle, inputs, as_of_ms=started_ms, wrong_sql=self.wrong_sql),
            temporary_folder("find", below=limits.folder) as folder,
            reader(
                handle.location,
                read_bytes=sum(p.bytes for p in inputs),
                memory_bytes=memory_bytes,
                folder=folder,
                threads=limits.threads,
                lossless=True,
            ) as con,
            progress(self.name, len(inputs), "parts") as advance,
        ):
            self.prepare(con)
            pace = LogPace()
            for number, parts in enumerate(items, start=1):
                with small_parts_here(handle, parts, folder / str(number), memory_bytes) as here:
                    results.append(self.search(handle, con, here))
                advance(len(parts))
                if pace.logs(is_last=number == len(items)):
                    logger.info("%s: %d of %d batches of parts are searched", handle.table, number, len(items))
        return results
