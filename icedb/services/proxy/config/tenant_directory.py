"""The tenants of the configuration file, read anew without a restart; and several directories as one."""

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

# Settings that the file calls otherwise.
_SAID_AS = {"host": "listen", "port": "listen", "admin_host": "admin_listen", "admin_port": "admin_listen"}


class FileDirectory(WatchedFile[ProxyConfig]):
    """The tenants that `proxy.toml` lists.

    `config` is what was read of it when the proxy started, by which its server still works; `environ` is where the
    secrets are that the file does not hold.
    """

    def __init__(self, path: Path, config: ProxyConfig, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(config.files, _log)
        self._path = path
        self._environ = environ
        self._running = config
        self._found = _by_key(config.tenants)

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """The owner of a key, as of the last load; None: nobody."""
        return self._found.get(access_key_id)

    def _read(self, seen: dict[Path, FileStamp | None]) -> ProxyConfig:
        return load_config(self._path, self._environ, seen=seen)

    def _take(self, config: ProxyConfig) -> None:
        self._found = _by_key(config.tenants)  # at once: a request sees the old tenants or the new ones
        _log.info("%s was read anew: %d tenants, %d keys", self._path, len(config.tenants), len(self._found))
        if names := _differing(self._running, config):
            _log.warning("%s: changes of %s take a restart", self._path, ", ".join(names))


class DirectoryChain:
    """Several directories, asked in their order until one knows the key.

    One that cannot tell ends the search: those behind it might know somebody else by that key.
    """

    def __init__(self, directories: Sequence[TenantDirectory]) -> None:
        self._directories = tuple(directories)

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """The owner of a key, now; None: nobody. Raises S3Error (ServiceUnavailable) when that cannot be told."""
        for directory in self._directories:
            found = await directory.find(access_key_id)
            if found is not None:
                return found
        return None


def _by_key(tenants: Sequence[Tenant]) -> dict[str, KeyOwner]:
    return {key.id: KeyOwner(tenant, key) for tenant in tenants for key in tenant.keys}


def _differing(running: ProxyConfig, config: ProxyConfig) -> list[str]:
    """The names of what only a restart changes; the values may be secret."""
    server = [
        f"server.{_SAID_AS.get(f.name, f.name.removesuffix('_ms'))}"
        for f in fields(running.server)
        if getattr(running.server, f.name) != getattr(config.server, f.name)
    ]
    others = [n for n in ("storage_options", "control_plane") if getattr(running, n) != getattr(config, n)]
    return list(dict.fromkeys(server)) + others
