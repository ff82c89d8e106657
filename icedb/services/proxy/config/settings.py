"""The configuration of the proxy: server settings with their defaults, control plane, and tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from icedb.services.http.server_settings import FileStamp, ListenSettings
from icedb.services.proxy.config.tenants import Tenant

__all__ = ["ControlPlaneSettings", "IcebergSettings", "ProxyConfig", "ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings(ListenSettings):
    """Settings of the server. Changes take effect after a restart."""

    #: Domains in lower case. With `s3.example.com`, a request to `events.s3.example.com` is for the bucket `events`.
    domains: tuple[str, ...] = ()
    #: The location of all buckets in responses.
    region: str = "us-east-1"
    #: True if clients fetch parts from the store, by redirects to presigned URLs.
    redirect: bool = False
    redirect_expires_ms: int = 300_000
    #: Maximum age of the state of a table.
    refresh_ms: int = 1_000
    #: Time for which clients that listed a replaced part can still fetch it.
    hold_ms: int = 900_000
    #: Maximum number of open tables.
    tables_open: int = 256


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """The service that knows tenants besides those of the file, and how long its responses are cached."""

    #: Without user, query and fragment, because messages show it.
    url: str
    #: Locations of all tables that it may name, as `Location.uri` writes them.
    tables: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    timeout_ms: int = 2_000
    cache_ms: int = 60_000
    #: Time for which the absence of an owner is cached.
    unknown_cache_ms: int = 5_000
    #: Maximum number of cached keys.
    entries: int = 10_000


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """Settings of the Iceberg catalog. Changes take effect after a restart."""

    #: The address of this endpoint that clients get with a table, such as `https://s3.example.com`. None: as the Host
    #: header of the request.
    endpoint: str | None = None
    #: The namespace that has all tables. DuckDB reserves the name `main`.
    namespace: str = "tables"
    #: The lifetime of bearer tokens.
    token_expires_ms: int = 3_600_000
    #: The number of earlier states of a table that are listed as snapshots.
    snapshots: int = 100


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The contents of the configuration file."""

    server: ServerSettings
    tenants: tuple[Tenant, ...]
    control_plane: ControlPlaneSettings | None
    #: None: there is no Iceberg catalog.
    iceberg: IcebergSettings | None
    #: Options of the store, see `icedb.storage.location`, with secrets. The environment supplies the others.
    storage_options: Mapping[str, str] = field(repr=False)
    #: The files that were read, with their stamps before the read.
    files: Mapping[Path, FileStamp | None] = field(repr=False, compare=False)
