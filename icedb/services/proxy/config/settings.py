"""What the proxy is told about itself: settings with their defaults, and the files that said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from icedb.services.http.server_settings import FileStamp, ListenSettings
from icedb.services.proxy.config.tenants import Tenant

__all__ = ["ControlPlaneSettings", "ProxyConfig", "ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings(ListenSettings):
    """How the proxy listens, and what it allows itself. To change them takes a restart."""

    #: In lower case. A request to `events.s3.example.com` is about the bucket `events` with `s3.example.com` here.
    domains: tuple[str, ...] = ()
    #: What is told to who asks where a bucket is.
    region: str = "us-east-1"
    #: Whether a part is fetched from the store itself, by a presigned address that the proxy redirects to.
    redirect: bool = False
    redirect_expires_ms: int = 300_000
    #: How old the newest known state of a table may be.
    refresh_ms: int = 1_000
    #: How long a part that was replaced can still be fetched by who has listed it.
    hold_ms: int = 900_000
    #: How many tables are held open at a time.
    tables_open: int = 256


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """Whom to ask for tenants that the file does not have, and how long an answer is believed."""

    #: Without user, query and fragment: messages may show it.
    url: str
    #: Its tables are these or lie below them; addresses as `Location.uri` has them.
    tables: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    timeout_ms: int = 2_000
    cache_ms: int = 60_000
    #: How long it is believed that nobody has a key.
    unknown_cache_ms: int = 5_000
    #: How many keys are remembered.
    entries: int = 10_000


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """All that the file says."""

    server: ServerSettings
    tenants: tuple[Tenant, ...]
    control_plane: ControlPlaneSettings | None
    #: How the store is reached, see `icedb.storage.location`; what is not there, the environment decides. Holds
    #: secrets.
    storage_options: Mapping[str, str] = field(repr=False)
    #: The files that this was read of, as they were right before.
    files: Mapping[Path, FileStamp | None] = field(repr=False, compare=False)
