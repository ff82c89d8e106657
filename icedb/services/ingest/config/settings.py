"""What the ingest service is told: settings with their defaults, tables, tenants, and the files that said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from icedb.format.timing import DAY_MS
from icedb.services.http.server_settings import FileStamp, ListenSettings

__all__ = ["IngestConfig", "IngestSettings", "Nested", "TableSettings", "IngestLimits", "TenantSettings"]

#: What becomes of an object or array in an event: JSON text, or a struct or list of the table.
Nested = Literal["text", "columns"]


@dataclass(frozen=True, slots=True)
class IngestSettings(ListenSettings):
    """How the service listens, and what it takes. To change them takes a restart."""

    #: How long a client may take to send its request, the body included.
    header_timeout_ms: int = 30_000
    #: Of a body, as it was sent and after it was decompressed.
    body_bytes_max: int = 8 * 2**20
    #: Of all bodies that are being read, looked at or committed.
    held_bytes_max: int = 512 * 2**20
    #: Of one request.
    events_max: int = 50_000
    #: How long a commit may take before the client is told that it is not known.
    commit_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A table under a name, and how events become its rows."""

    name: str
    uri: str
    #: Make the table when it is not there, with the five settings that follow.
    create: bool = False
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    schema: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    schema_policy: Literal["open", "declared"] = "open"
    #: A row whose id was committed in the last `id_window_ms` is not committed again. None: rows have no ids.
    id_column: str | None = None
    id_window_ms: int = DAY_MS
    on_conflict: Literal["raise", "cast", "quarantine"] = "raise"
    nested: Nested = "text"
    #: Columns that the service sets, and no client can.
    tenant_column: str | None = None
    received_column: str | None = None
    #: When a group of requests is committed: whichever is first.
    delay_max_ms: int = 1_000
    rows_max: int = 50_000
    bytes_max: int = 32 * 2**20
    #: What may wait to be committed; more is answered with 503.
    pending_bytes_max: int = 256 * 2**20
    #: Partitions that the rows of one request, and of one commit, may lie in.
    partitions_max: int = 100
    #: Columns that the table may have by what requests bring, and different names in one request.
    columns_max: int = 1_000


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """What one tenant may send. None: no limit."""

    events_per_second: int | None = None
    #: Of bodies as they are sent.
    bytes_per_second: int | None = None
    #: Whether its events may bring columns that a table does not have.
    new_columns: bool = True


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """Somebody who sends events."""

    name: str
    #: Any of them is good: a new one is added before the old one is taken out.
    keys: tuple[str, ...] = field(repr=False)
    #: Names of tables that they may write.
    tables: tuple[str, ...]
    #: The table of these into which Segment's calls go.
    segment: str | None = None
    #: Secrets with which Segment's webhooks may be signed.
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    limits: IngestLimits = IngestLimits()


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """All that the file says."""

    server: IngestSettings
    #: By name.
    tables: Mapping[str, TableSettings]
    tenants: tuple[TenantSettings, ...]
    #: How the store is reached, see `icedb.storage.location`; what is not there, the environment decides. Holds
    #: secrets.
    storage_options: Mapping[str, str] = field(repr=False)
    #: The files that this was read of, as they were right before.
    files: Mapping[Path, FileStamp | None] = field(repr=False, compare=False)
