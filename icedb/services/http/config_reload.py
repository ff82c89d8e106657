"""A configuration file that may change while its server runs: its tenants are read anew without a restart.

Keys are rotated by editing the file, or the files of the secrets. What cannot be read takes nothing away: the tenants
stay as they were, and the log says why.
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

#: How often the file is looked at.
_LOOK_SECONDS = 2.0

_Config = TypeVar("_Config")


class WatchedFile(ABC, Generic[_Config]):
    """What a configuration file says of tenants: `changed` tells when it is another, `reload` takes over.

    `files` are those that were read when the server started; `log` is the server's own.
    """

    def __init__(self, files: Mapping[Path, FileStamp | None], log: logging.Logger) -> None:
        self._seen = dict(files)
        self._log = log

    def changed(self) -> bool:
        """Whether the file, or one that it names, is another than at the last load, be it that this one failed."""
        return any(FileStamp.of(path) != stamp for path, stamp in self._seen.items())

    def reload(self) -> bool:
        """Read the file anew, and take over its tenants. False: it is wrong, and nothing has changed."""
        seen: dict[Path, FileStamp | None] = {}
        try:
            config = self._read(seen)
        except InvalidOption as error:
            self._log.error("the configuration was not taken over, the tenants stay as they were: %s", error)
            return False
        finally:
            self._seen = seen
        self._take(config)
        return True

    @abstractmethod
    def _read(self, seen: dict[Path, FileStamp | None]) -> _Config:
        """What the file says now. Raises InvalidOption; `seen` gets the stamps of what was looked at, then too."""

    @abstractmethod
    def _take(self, config: _Config) -> None:
        """From now on its tenants are the tenants. Called by a thread of its own."""


async def reload_on_change(file: WatchedFile[_Config], asked: asyncio.Event, tell: Callable[[bool], None]) -> None:
    """Load the tenants again when somebody asks for it, and when their file has changed. `tell` hears if it holds."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), _LOOK_SECONDS)
        must = asked.is_set()
        asked.clear()
        if must or await asyncio.to_thread(file.changed):
            tell(await asyncio.to_thread(file.reload))
