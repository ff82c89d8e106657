"""The configuration of the ingest service: server settings with their defaults, tables, and tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from icedb.format.timing import DAY_MS
from icedb.services.http.server_settings import FileStamp, ListenSettings

__all__ = ["IngestConfig", "IngestSettings", "Nested", "TableSettings", "IngestLimits", "TenantSettings"]

#: The type of nested values in the table: JSON text, or structs and lists.
Nested = Literal["text", "columns"]


@dataclass(frozen=True, slots=True)
class IngestSettings(ListenSettings):
    """Settings of the server. Changes take effect after a restart."""

    #: Time for a client to send a request, the body included.
    header_timeout_ms: int = 30_000
    #: Maximum size of a body, both as it was sent and decompressed.
    body_bytes_max: int = 8 * 2**20
    #: Maximum size of all bodies in memory, from receipt to commit.
    held_bytes_max: int = 512 * 2**20
    #: Maximum number of events in a request.
    events_max: int = 50_000
    #: Time limit of a commit. After it, the response is that the outcome is unknown.
    commit_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A table, and the conversion of events to its rows."""

    name: str
    uri: str
    #: Create the table if it does not exist, with the next five settings.
    create: bool = False
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    schema: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    schema_policy: Literal["open", "declared"] = "open"
    #: Skip a row whose id was committed within the last `id_window_ms`. None: rows have no ids.
    id_column: str | None = None
    id_window_ms: int = DAY_MS
    on_conflict: Literal["raise", "cast", "quarantine"] = "raise"
    nested: Nested = "text"
    #: Columns that only the service sets.
    tenant_column: str | None = None
    received_column: str | None = None
    #: A group of requests is committed when it reaches the first of these limits.
    delay_max_ms: int = 1_000
    rows_max: int = 50_000
    bytes_max: int = 32 * 2**20
    #: Maximum size of pending rows. Requests beyond it are rejected with 503.
    pending_bytes_max: int = 256 * 2**20
    #: Maximum number of partitions of a request and of a commit.
    partitions_max: int = 100
    #: Number of columns up to which requests may extend the table, and of different names in one request.
    columns_max: int = 1_000


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Limits of a tenant. None means no limit."""

    events_per_second: int | None = None
    #: Bytes of bodies as they are sent.
    bytes_per_second: int | None = None
    #: True if its events may add columns to a table.
    new_columns: bool = True


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A tenant, which sends events."""

    name: str
    #: All keys are valid at the same time, so that an operator can add a new key before removing the old one.
    keys: tuple[str, ...] = field(repr=False)
    #: Names of the tables that it may write.
    tables: tuple[str, ...]
    #: The table, one of these, for calls of Segment.
    segment: str | None = None
    #: Secrets that may sign webhooks of Segment.
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    limits: IngestLimits = IngestLimits()


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """The contents of the configuration file."""

    server: IngestSettings
    #: By name.
    tables: Mapping[str, TableSettings]
    tenants: tuple[TenantSettings, ...]
    #: Options of the store, see `icedb.storage.location`, with secrets. The environment supplies the others.
    storage_options: Mapping[str, str] = field(repr=False)
    #: The files that were read, with their stamps before the read.
    files: Mapping[Path, FileStamp | None] = field(repr=False, compare=False)
