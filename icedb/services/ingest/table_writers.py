"""The tables of the service, each with a writer that commits many requests at a time.

A client gets the details of an error that it can correct: which row, which column. All other errors are logged for the
operator, and the client retries.
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

#: Errors that the client can correct.
_CLIENT_ERRORS = (
    SchemaConflict,
    UnknownColumn,
    UnsupportedType,
    InvalidBatch,
    InvalidPartitionExpression,  # the expression does not fit these rows
    InvalidPartitionValue,
)
#: Error code for programs.
_TOO_MANY_PARTITIONS = "too_many_partitions"
#: Interval of refreshes, which find out whether a table can be reached, and which columns it has.
_REFRESH_SECONDS = 10.0
#: Retry-After of a client if the store is unavailable.
_RETRY_SECONDS = 5


def open_table(settings: TableSettings, storage_options: Mapping[str, str]) -> Table:
    """Open the table. Create it if it does not exist and the configuration has `create = true`."""
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
    except TableExists:  # another process created it
        return Table.open(settings.uri, storage_options=options)


class TableWriter:
    """One table, with the writer that commits requests to it."""

    def __init__(self, settings: TableSettings, table: Table, server: IngestSettings, clock: Clock) -> None:
        self.settings = settings
        self._table = table
        self._server = server
        self._clock = clock
        self._columns = self._read_columns()
        self._pending = PendingBytes(settings.pending_bytes_max)
        #: True if the last commit or refresh reached the store.
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
        """True if pending rows take 90 % of `pending_bytes_max` or more."""
        return self.stats().pending_bytes * 10 >= self.settings.pending_bytes_max * 9

    def stats(self) -> BufferStats:
        """Return the statistics of the writer."""
        return self._writer.stats()

    def refresh(self) -> None:
        """Read the columns of the table, and note whether it can be reached."""
        try:
            self._columns = self._read_columns()
        except Exception as error:  # noqa: BLE001  the next refresh retries after any error
            if self.reachable:
                logger.error("table '%s' cannot be reached: %s", self.settings.name, error)
            self.reachable = False
        else:
            self.reachable = True

    def now(self) -> datetime:
        """Return the current time, for `received_column`."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def fit(
        self, rows: list[dict[str, Any]] | pa.Table, tenant: str, *, new_columns: bool = True
    ) -> list[Any] | pa.Table:
        """Return rows as the table stores them. Raises RequestRejected (400)."""
        return self._columns.fit(rows, tenant, self.now(), new_columns=new_columns)

    async def commit(
        self, rows: list[Any] | pa.Table, tenant: str, *, bytes_: int = 0, shared: bool = False
    ) -> Acknowledged:
        """Commit the rows of one request, all or none. `shared`: other tenants also write the table.

        Raises RequestRejected if the rows were not committed, or if the outcome is unknown.
        """
        with self._pending.room(tenant, bytes_, shared=shared):
            return await self._commit(rows, tenant)

    async def _commit(self, rows: list[Any] | pa.Table, tenant: str) -> Acknowledged:
        try:
            future = await asyncio.to_thread(self._writer.submit, rows, timeout_ms=0, sender=tenant)
            async with asyncio.timeout(self._server.commit_timeout_ms / 1000):
                done = await asyncio.wrap_future(future)
            self.reachable = True
            self._update_columns()
            return done
        except StaleView as error:
            logger.error("table '%s': %s", self.settings.name, error)
            return Acknowledged(rows=len(rows))
        except IceDBError as error:  # before TimeoutError, of which some IceDBErrors are subclasses
            raise self._rejection(error) from None
        except TimeoutError:
            raise RequestRejected(
                503,
                "The commit timed out and may still succeed. Send the same events again, with the same ids.",
                retry_after_seconds=_RETRY_SECONDS,
            ) from None

    def flush(self) -> None:
        """Commit pending rows without waiting for more."""
        try:
            self._writer.flush()
        except Exception as error:  # noqa: BLE001  the senders of the rows get it, too
            logger.error("table '%s': %s", self.settings.name, error)

    def close(self, timeout_ms: int) -> None:
        """Commit pending rows and close the writer."""
        try:
            self._writer.close(timeout_ms=timeout_ms)
        except Exception as error:  # noqa: BLE001  continue with the writers of other tables
            logger.error("table '%s': %s", self.settings.name, error)

    @property
    def columns(self) -> int:
        """The number of columns of the table as of the last read."""
        return len(self._table.handle.columns)

    def _read_columns(self) -> EventColumns:
        self._table.handle.read()
        self._schema = self._table.handle.columns
        return self._columns_of(self._schema)

    def _columns_of(self, schema: Mapping[str, str]) -> EventColumns:
        return EventColumns(self.settings, schema, queried=bool(self._table.spec.insert_query))

    def _update_columns(self) -> None:
        """Take over the columns that commits added, so that requests beyond `columns_max` are rejected early."""
        schema = self._table.handle.columns
        if schema != self._schema:
            self._schema, self._columns = schema, self._columns_of(schema)

    def _rejection(self, error: IceDBError) -> RequestRejected:
        # Conflicting log files are not the client's fault, and their names have host names and process ids.
        if isinstance(error, _CLIENT_ERRORS) and getattr(error, "log_files", None) is None:
            # Do not show the table's address to clients.
            message = str(error).removeprefix(f"{self._table.uri}: ").replace(self._table.uri, self.settings.name)
            if isinstance(error, TooManyPartitions):
                return RequestRejected(413, message, error=_TOO_MANY_PARTITIONS)
            if isinstance(error, TooManyColumns):
                self._update_columns()
                return RequestRejected(400, message, error=TOO_MANY_COLUMNS)
            return RequestRejected(400, message)
        if isinstance(error, BufferFull):
            seconds = max(1, math.ceil(self.settings.delay_max_ms / 1000))
            return RequestRejected(
                503, "Too many rows are pending. Send the request again.", retry_after_seconds=seconds
            )
        if isinstance(error, WriterClosed):
            return RequestRejected(503, "The service is stopping. Send the request again.", retry_after_seconds=1)
        logger.error("table '%s': %s", self.settings.name, error)
        if isinstance(error, CommitStateUnknown):
            message = "The commit may or may not have succeeded. Send the same events again, with the same ids."
        elif isinstance(error, RetryableError):
            self.reachable = False
            message = "The store does not respond. Send the request again."
        else:
            message = "The table cannot be written; the operator must repair it. Send the request again later."
        return RequestRejected(503, message, retry_after_seconds=_RETRY_SECONDS)


class TableWriters:
    """The writers of all tables of a configuration."""

    def __init__(self, config: IngestConfig, clock: Clock) -> None:
        """Open the tables. Raises IceDBError or OSError, which name the table."""
        self._by_name: dict[str, TableWriter] = {}
        try:
            for name, settings in config.tables.items():
                table = open_table(settings, config.storage_options)
                self._by_name[name] = TableWriter(settings, table, config.server, clock)
        except BaseException:
            self.close(timeout_ms=0)
            raise

    def stats(self) -> dict[str, BufferStats]:
        """Return the statistics of each writer, by table name."""
        return {name: writer.stats() for name, writer in self._by_name.items()}

    def columns(self) -> dict[str, int]:
        """Return the number of columns of each table, by table name."""
        return {name: writer.columns for name, writer in self._by_name.items()}

    def __getitem__(self, name: str) -> TableWriter:
        return self._by_name[name]

    def problems(self) -> list[str]:
        """Return why the service should get no requests; empty if it is ready."""
        problems = []
        for name, writer in self._by_name.items():
            if not writer.reachable:
                problems.append(f"table '{name}' cannot be reached")
            elif writer.full:
                problems.append(f"table '{name}' has too many pending rows")
        return problems

    async def refresh_periodically(self) -> None:
        """Refresh all tables at an interval, until cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            for writer in self._by_name.values():
                await asyncio.to_thread(writer.refresh)

    async def flush_until_cancelled(self) -> None:
        """Commit pending rows without delay, until cancelled."""
        while True:
            for writer in self._by_name.values():
                if writer.stats().pending_rows:
                    await asyncio.to_thread(writer.flush)
            await asyncio.sleep(0.05)

    def close(self, timeout_ms: int) -> None:
        """Commit pending rows and close all writers."""
        for writer in self._by_name.values():
            writer.close(timeout_ms)
