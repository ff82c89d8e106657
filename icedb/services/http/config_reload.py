"""Reload of tenants from a configuration file while the server runs.

Operators rotate keys by editing the configuration file, or the files that hold the secrets. If the new configuration is
invalid, the server keeps the tenants that it has and logs the reason.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from icedb.errors import InvalidOption
from icedb.services.http.server_settings import FileStamp

__all__ = ["WatchedFile", "reload_on_change"]

#: Interval between checks of the file.
_CHECK_SECONDS = 2.0

_Config = TypeVar("_Config")


class WatchedFile(ABC, Generic[_Config]):
    """The tenants of a configuration file, which can be reloaded. `files` were read at startup, with their stamps."""

    def __init__(self, files: Mapping[Path, FileStamp | None], log: logging.Logger) -> None:
        self._stamps = dict(files)
        self._log = log

    def changed(self) -> bool:
        """Return whether the file, or a file that it names, changed since the last load, failed loads included."""
        return any(FileStamp.of(path) != stamp for path, stamp in self._stamps.items())

    def reload(self) -> bool:
        """Read the file and apply its tenants. Return False, and change nothing, if the file is invalid."""
        stamps: dict[Path, FileStamp | None] = {}
        try:
            config = self._read(stamps)
        except InvalidOption as error:
            self._log.error("the configuration is invalid and was not applied; the tenants are unchanged: %s", error)
            return False
        finally:
            self._stamps = stamps
        self._apply(config)
        return True

    @abstractmethod
    def _read(self, stamps: dict[Path, FileStamp | None]) -> _Config:
        """Read the file. Raises InvalidOption. Add the stamp of each file that was read to `stamps`, on errors too."""

    @abstractmethod
    def _apply(self, config: _Config) -> None:
        """Replace the tenants of the server. Runs in a worker thread."""


async def reload_on_change(
    file: WatchedFile[_Config], requested: asyncio.Event, on_reload: Callable[[bool], None]
) -> None:
    """Reload the tenants when the file changes and when `requested` is set; pass each outcome to `on_reload`."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(requested.wait(), _CHECK_SECONDS)
        forced = requested.is_set()
        requested.clear()
        if forced or await asyncio.to_thread(file.changed):
            on_reload(await asyncio.to_thread(file.reload))
