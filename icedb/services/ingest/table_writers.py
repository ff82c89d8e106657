"""The tables that are written into: each open, with a writer that commits many requests at a time.

What goes wrong is told to a client as far as it is the client's: which row, which column. All else is told to the
operator, and the client sends the same again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from icedb.buffering.submissions import Acknowledged, BufferStats
from icedb.buffering.writer import BufferedWriter
from icedb.errors import (
    BufferFull,
    CommitStateUnknown,
    IceDBError,
    InvalidBatch,
    InvalidPartitionExpression,
    InvalidPartitionValue,
    RetryableError,
    SchemaConflict,
    StaleView,
    TableExists,
    TableNotFound,
    TooManyColumns,
    TooManyPartitions,
    UnknownColumn,
    UnsupportedType,
    WriterClosed,
)
from icedb.services.ingest.config.settings import IngestConfig, IngestSettings, TableSettings
from icedb.services.ingest.event_columns import TOO_MANY_COLUMNS, EventColumns
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.services.ingest.limits import PendingBytes
from icedb.table import Table
from icedb.util.clock import Clock

__all__ = ["TableWriter", "TableWriters", "open_table"]

logger = logging.getLogger("icedb.ingest")

#: What the sender of the rows can put right.
_OF_THE_ROWS = (
    SchemaConflict,
    UnknownColumn,
    UnsupportedType,
    InvalidBatch,
    InvalidPartitionExpression,  # it does not fit these rows; that it fits none, whoever made the table knows
    InvalidPartitionValue,
)
#: The name of the error for programs.
_TOO_MANY_PARTITIONS = "too_many_partitions"
#: How often it is looked whether a table can be reached, and which columns it has.
_LOOK_SECONDS = 10.0
#: When the store is away: whoever asks again at once finds it away.
_AWAY_SECONDS = 5


def open_table(settings: TableSettings, storage_options: Mapping[str, str]) -> Table:
    """The table; made, if the file says so and it is not there. Raises as `Table.open` and `Table.create` do."""
    options = storage_options or None
    try:
        return Table.open(settings.uri, storage_options=options)
    except TableNotFound:
        if not settings.create:
            raise
    try:
        return Table.create(
            settings.uri,
            partition_by=settings.partition_by,
            sort_by=settings.sort_by,
            schema=settings.schema or None,
            required=settings.required,
            schema_policy=settings.schema_policy,
            storage_options=options,
        )
    except TableExists:  # another process was quicker
        return Table.open(settings.uri, storage_options=options)


class TableWriter:
    """One table, and how requests are committed to it."""

    def __init__(self, settings: TableSettings, table: Table, server: IngestSettings, clock: Clock) -> None:
        self.settings = settings
        self._table = table
        self._server = server
        self._clock = clock
        self._columns = self._columns_now()
        self._waiting = PendingBytes(settings.pending_bytes_max)
        #: Whether the last commit, or look at the table, found the store there.
        self.reachable = True
        self._writer = BufferedWriter(
            table,
            rows_max=settings.rows_max,
            bytes_max=settings.bytes_max,
            delay_max_ms=settings.delay_max_ms,
            pending_bytes_max=settings.pending_bytes_max,
            id_column=settings.id_column,
            id_window_ms=settings.id_window_ms,
            on_conflict=settings.on_conflict,
            retry_max_ms=server.commit_timeout_ms,
            partitions_max=settings.partitions_max,
            columns_max=settings.columns_max,
        )

    @property
    def full(self) -> bool:
        """Whether nearly all that may wait is waiting."""
        return self.stats().pending_bytes * 10 >= self.settings.pending_bytes_max * 9

    def stats(self) -> BufferStats:
        """What the writer did, and what waits."""
        return self._writer.stats()

    def look(self) -> None:
        """See whether the table can be reached, and which columns it has."""
        try:
            self._columns = self._columns_now()
        except Exception as error:  # noqa: BLE001  whatever it is, it is looked again
            if self.reachable:
                logger.error("table '%s' cannot be reached: %s", self.settings.name, error)
            self.reachable = False
        else:
            self.reachable = True

    def now(self) -> datetime:
        """The time that rows get as the time of their arrival."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def fit(
        self, rows: list[dict[str, Any]] | pa.Table, tenant: str, *, new_columns: bool = True
    ) -> list[Any] | pa.Table:
        """The rows as the table wants them. Raises Refusal (400)."""
        return self._columns.fit(rows, tenant, self.now(), new_columns=new_columns)

    async def commit(
        self, rows: list[Any] | pa.Table, tenant: str, *, bytes_: int = 0, shared: bool = False
    ) -> Acknowledged:
        """Commit rows of one request, all or none of them. Raises Refusal.

        `bytes_`: of the request's content. `shared`: whether other tenants write the table, too.
        """
        with self._waiting.room(tenant, bytes_, shared=shared):
            return await self._commit(rows, tenant)

    async def _commit(self, rows: list[Any] | pa.Table, tenant: str) -> Acknowledged:
        try:
            future = await asyncio.to_thread(self._writer.submit, rows, timeout_ms=0, sender=tenant)
            async with asyncio.timeout(self._server.commit_timeout_ms / 1000):
                done = await asyncio.wrap_future(future)
            self.reachable = True
            self._know_columns()
            return done
        except StaleView as error:
            logger.error("table '%s': %s", self.settings.name, error)
            return Acknowledged(rows=len(rows))
        except IceDBError as error:  # before TimeoutError, which some of them are, too
            raise self._refusal(error) from None
        except TimeoutError:
            raise RequestRejected(
                503,
                "The commit takes too long: whether it happens is not known. Send the same again, with the same ids.",
                retry_after_seconds=_AWAY_SECONDS,
            ) from None

    def flush(self) -> None:
        """Commit what is pending, without waiting for more."""
        try:
            self._writer.flush()
        except Exception as error:  # noqa: BLE001  told to those who sent it, too
            logger.error("table '%s': %s", self.settings.name, error)

    def close(self, timeout_ms: int) -> None:
        """Commit what is pending, and end."""
        try:
            self._writer.close(timeout_ms=timeout_ms)
        except Exception as error:  # noqa: BLE001  the other tables' writers are to be closed, too
            logger.error("table '%s': %s", self.settings.name, error)

    @property
    def columns(self) -> int:
        """How many columns the table has, as far as this process knows."""
        return len(self._table.handle.columns)

    def _columns_now(self) -> EventColumns:
        self._table.handle.read()
        self._known = self._table.handle.columns
        return self._columns_of(self._known)

    def _columns_of(self, known: Mapping[str, str]) -> EventColumns:
        return EventColumns(self.settings, known, queried=bool(self._table.spec.insert_query))

    def _know_columns(self) -> None:
        """Learn the columns that commits brought: requests with more of them are refused before they are written."""
        known = self._table.handle.columns
        if known != self._known:
            self._known, self._columns = known, self._columns_of(known)

    def _refusal(self, error: IceDBError) -> RequestRejected:
        # Log files that disagree are not the client's fault, and their names have hosts and process ids in them.
        if isinstance(error, _OF_THE_ROWS) and getattr(error, "log_files", None) is None:
            # Where the table lies is the operator's business.
            said = str(error).removeprefix(f"{self._table.uri}: ").replace(self._table.uri, self.settings.name)
            if isinstance(error, TooManyPartitions):
                return RequestRejected(413, said, error=_TOO_MANY_PARTITIONS)
            if isinstance(error, TooManyColumns):
                self._know_columns()
                return RequestRejected(400, said, error=TOO_MANY_COLUMNS)
            return RequestRejected(400, said)
        if isinstance(error, BufferFull):
            seconds = max(1, math.ceil(self.settings.delay_max_ms / 1000))
            return RequestRejected(503, "Too much waits to be committed. Send it again.", retry_after_seconds=seconds)
        if isinstance(error, WriterClosed):
            return RequestRejected(503, "The service is stopping. Send it again.", retry_after_seconds=1)
        logger.error("table '%s': %s", self.settings.name, error)
        if isinstance(error, CommitStateUnknown):
            message = "Whether it was committed is not known. Send the same again, with the same ids."
        elif isinstance(error, RetryableError):
            self.reachable = False
            message = "The store does not answer. Send it again."
        else:
            message = "The table cannot be written at the moment; its operator has to look at it. Send it again later."
        return RequestRejected(503, message, retry_after_seconds=_AWAY_SECONDS)


class TableWriters:
    """All tables of a configuration."""

    def __init__(self, config: IngestConfig, clock: Clock) -> None:
        """Open them. Raises IceDBError and OSError, which name the table."""
        self._by_name: dict[str, TableWriter] = {}
        try:
            for name, settings in config.tables.items():
                table = open_table(settings, config.storage_options)
                self._by_name[name] = TableWriter(settings, table, config.server, clock)
        except BaseException:
            self.close(timeout_ms=0)
            raise

    def stats(self) -> dict[str, BufferStats]:
        """What each table's writer did, by the table's name."""
        return {name: writer.stats() for name, writer in self._by_name.items()}

    def columns(self) -> dict[str, int]:
        """How many columns each table has, by the table's name."""
        return {name: writer.columns for name, writer in self._by_name.items()}

    def __getitem__(self, name: str) -> TableWriter:
        return self._by_name[name]

    def problems(self) -> list[str]:
        """Why requests should go elsewhere now, if they should."""
        found = []
        for name, writer in self._by_name.items():
            if not writer.reachable:
                found.append(f"table '{name}' cannot be reached")
            elif writer.full:
                found.append(f"table '{name}' has too much waiting to be committed")
        return found

    async def refresh_periodically(self) -> None:
        """Look at the tables again and again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for writer in self._by_name.values():
                await asyncio.to_thread(writer.look)

    async def flush_until_cancelled(self) -> None:
        """Commit what is pending without delay, until this is cancelled."""
        while True:
            for writer in self._by_name.values():
                if writer.stats().pending_rows:
                    await asyncio.to_thread(writer.flush)
            await asyncio.sleep(0.05)

    def close(self, timeout_ms: int) -> None:
        """Commit what is pending, and end."""
        for writer in self._by_name.values():
            writer.close(timeout_ms)
