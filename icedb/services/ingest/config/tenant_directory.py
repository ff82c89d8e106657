"""The tenants of `ingest.toml`, read anew without a restart; what else it says takes one."""

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
    """The tenants that the file lists; `know` is told of them whenever they were read anew.

    `config` is what was read of it when the service started, by which its server and its tables still work.
    """

    def __init__(self, path: Path, config: IngestConfig, know: Callable[[Tenants], None]) -> None:
        super().__init__(config.files, logger)
        self._path = path
        self._running = config
        self._know = know

    def _read(self, seen: dict[Path, FileStamp | None]) -> IngestConfig:
        config = load_config(self._path, seen=seen)
        # What was checked of tenants holds for the tables of the file; those that run have to be the same.
        named = {t for tenant in config.tenants for t in tenant.tables}
        new = sorted(t for t in named if _meant(config, t) != _meant(self._running, t))
        if new:
            raise InvalidOption(f"{self._path}: tables that are new, or another, take a restart: {', '.join(new)}.")
        return config

    def _take(self, config: IngestConfig) -> None:
        self._know(Tenants(config.tenants))
        others = ("server", "tables", "storage_options")
        if names := [n for n in others if getattr(self._running, n) != getattr(config, n)]:
            logger.warning("%s: changes of %s take a restart", self._path, ", ".join(names))
        logger.info("%s was read anew: %d tenants", self._path, len(config.tenants))


def _meant(config: IngestConfig, table: str) -> tuple[str | None, ...] | None:
    """Where a table's rows go, and what keeps tenants apart in it; None: there is none of that name."""
    said = config.tables.get(table)
    return None if said is None else (said.uri, said.id_column, said.tenant_column, said.received_column)
