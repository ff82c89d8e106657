"""Reload of the tenants of `ingest.toml`. Other changes of the file take effect after a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from icedb.errors import InvalidOption
from icedb.services.http.config_reload import WatchedFile
from icedb.services.http.server_settings import FileStamp
from icedb.services.ingest.config.config_file import load_config
from icedb.services.ingest.config.settings import IngestConfig
from icedb.services.ingest.config.tenants import Tenants

__all__ = ["TenantsFile"]

logger = logging.getLogger("icedb.ingest")


class TenantsFile(WatchedFile[IngestConfig]):
    """The tenants of the configuration file. `on_change` is called with the tenants after each reload."""

    def __init__(self, path: Path, config: IngestConfig, on_change: Callable[[Tenants], None]) -> None:
        super().__init__(config.files, logger)
        self._path = path
        self._running = config
        self._on_change = on_change

    def _read(self, stamps: dict[Path, FileStamp | None]) -> IngestConfig:
        config = load_config(self._path, stamps=stamps)
        # The tenants were checked against the tables of the file, which must be the same as the running ones.
        names = {t for tenant in config.tenants for t in tenant.tables}
        changed = sorted(t for t in names if _identity(config, t) != _identity(self._running, t))
        if changed:
            raise InvalidOption(
                f"{self._path}: these tables are new or changed: {', '.join(changed)}. Restart to apply the file."
            )
        return config

    def _apply(self, config: IngestConfig) -> None:
        self._on_change(Tenants(config.tenants))
        others = ("server", "tables", "storage_options")
        if names := [n for n in others if getattr(self._running, n) != getattr(config, n)]:
            logger.warning("%s: changes of %s take effect after a restart", self._path, ", ".join(names))
        logger.info("%s was reloaded: %d tenants", self._path, len(config.tenants))


def _identity(config: IngestConfig, table: str) -> tuple[str | None, ...] | None:
    """Return the address of a table and the columns that separate tenants, or None if there is no such table."""
    settings = config.tables.get(table)
    if settings is None:
        return None
    return settings.uri, settings.id_column, settings.tenant_column, settings.received_column
