"""The tenants of the configuration file, which can be reloaded, and a chain of tenant directories."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from icedb.services.http.config_reload import WatchedFile
from icedb.services.http.server_settings import FileStamp
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.settings import ProxyConfig
from icedb.services.proxy.config.tenants import KeyOwner, Tenant, TenantDirectory

__all__ = ["FileDirectory", "DirectoryChain"]

_log = logging.getLogger("icedb.proxy")

# Names in the file of settings that have other names there.
_CONFIG_NAMES = {"host": "listen", "port": "listen", "admin_host": "admin_listen", "admin_port": "admin_listen"}


class FileDirectory(WatchedFile[ProxyConfig]):
    """The tenants of `proxy.toml`. `environ` has the environment variables that the file may name."""

    def __init__(self, path: Path, config: ProxyConfig, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(config.files, _log)
        self._path = path
        self._environ = environ
        self._running = config
        self._owners = _by_key(config.tenants)

    @property
    def tables(self) -> list[str]:
        """The addresses of the tables as of the last load."""
        tenants = {owner.tenant.name: owner.tenant for owner in self._owners.values()}
        return [bucket.table for tenant in tenants.values() for bucket in tenant.buckets.values()]

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """Return the owner of a key as of the last load, or None."""
        return self._owners.get(access_key_id)

    def _read(self, stamps: dict[Path, FileStamp | None]) -> ProxyConfig:
        return load_config(self._path, self._environ, stamps=stamps)

    def _apply(self, config: ProxyConfig) -> None:
        self._owners = _by_key(config.tenants)  # atomic: a request sees either the old tenants or the new ones
        _log.info("%s was reloaded: %d tenants, %d keys", self._path, len(config.tenants), len(self._owners))
        if names := _restart_settings(self._running, config):
            _log.warning("%s: changes of %s take effect after a restart", self._path, ", ".join(names))


class DirectoryChain:
    """Directories that are searched in order until one has the key.

    An error of a directory ends the search, because a later directory may have another owner of the key.
    """

    def __init__(self, directories: Sequence[TenantDirectory]) -> None:
        self._directories = tuple(directories)

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """Return the owner of a key, or None. Raises S3Error (ServiceUnavailable) if a directory fails."""
        for directory in self._directories:
            owner = await directory.find(access_key_id)
            if owner is not None:
                return owner
        return None


def _by_key(tenants: Sequence[Tenant]) -> dict[str, KeyOwner]:
    return {key.id: KeyOwner(tenant, key) for tenant in tenants for key in tenant.keys}


def _restart_settings(running: ProxyConfig, config: ProxyConfig) -> list[str]:
    """Return the names of changed settings that need a restart. Their values may be secret."""
    server = [
        f"server.{_CONFIG_NAMES.get(f.name, f.name.removesuffix('_ms'))}"
        for f in fields(running.server)
        if getattr(running.server, f.name) != getattr(config.server, f.name)
    ]
    others = [n for n in ("storage_options", "control_plane", "iceberg") if getattr(running, n) != getattr(config, n)]
    return list(dict.fromkeys(server)) + others
