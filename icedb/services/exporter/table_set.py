"""All tables below a root. A round finds them from time to time, and refreshes each of them once.

A table that disappears is reported as broken for a day, so that an operator who did not drop it gets an alert. Then it
is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from icedb.errors import IceDBError
from icedb.format.timing import DAY_MS
from icedb.services.exporter.settings import ExporterSettings
from icedb.services.exporter.table_watch import TableAccess, TableWatch
from icedb.storage.location import parse_location
from icedb.transaction.table_place import find_tables
from icedb.util.clock import Clock, SystemClock

__all__ = ["TableSet"]

logger = logging.getLogger("icedb.exporter")

#: Rounds between two searches for tables. A search costs a LIST request for each folder and each table.
ROUNDS_PER_SEARCH = 10
#: Threads that refresh tables. A store that does not respond blocks one thread for each of its tables.
THREADS = 4
#: Time after which a table that disappeared is forgotten.
FORGET_MS = DAY_MS


class TableSet:
    """The tables below a root with their figures. One thread runs the rounds; any thread reads the figures."""

    def __init__(
        self, settings: ExporterSettings, access: TableAccess | None = None, *, clock: Clock | None = None
    ) -> None:
        """Make no request. Raises InvalidURI for a root that is not an address."""
        self._access = access or {}
        #: The address of the root, with which the addresses of the tables begin.
        self.root = parse_location(settings.root, **self._access).uri
        self._settings = settings
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(THREADS, "icedb-exporter")
        self._round_thread = ThreadPoolExecutor(1, "icedb-exporter-round")
        self._rounds = 0
        #: When a table was last found, in unix milliseconds, by address.
        self._found_ms: dict[str, int] = {}
        #: The tables by address. A round replaces the mapping and never changes it.
        self.tables: Mapping[str, TableWatch] = {}
        #: Failed searches for tables.
        self.search_errors = 0
        #: How long the refreshes of the last round took.
        self.round_seconds = 0.0
        #: The time of the last round (unix ms); 0 if there was none.
        self.round_ms = 0

    def close(self) -> None:
        """Release the threads without waiting for refreshes in progress."""
        for threads in (self._round_thread, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def run_round(self) -> None:
        """Find the tables if that is due, refresh each of them, and list the parts of those for which it is due."""
        began = time.perf_counter()
        if self._rounds % ROUNDS_PER_SEARCH == 0 or not self.tables:
            self._search()
        self._rounds += 1
        list(self._threads.map(TableWatch.refresh, self.tables.values()))
        self.round_seconds = time.perf_counter() - began
        self.round_ms = self._clock.now_ms()
        for table in self._tables_to_list():
            table.list_orphans()
            if time.perf_counter() - began > self._settings.interval_ms / 1000:
                break  # the others are listed after the next refreshes

    async def run_rounds(self) -> None:
        """Run rounds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await loop.run_in_executor(self._round_thread, self.run_round)
            except Exception:
                logger.exception("a round over the tables failed")
            await asyncio.sleep(max(0, self._settings.interval_ms / 1000 - (loop.time() - began)))

    def _search(self) -> None:
        now_ms = self._clock.now_ms()
        try:
            addresses = list(find_tables(self.root, **self._access))
        except (IceDBError, OSError) as error:
            self.search_errors += 1
            logger.error("the tables below %s cannot be listed: %s", self.root, error)
            return
        self._found_ms |= dict.fromkeys(addresses, now_ms)
        self._found_ms = {uri: ms for uri, ms in self._found_ms.items() if now_ms - ms < FORGET_MS}
        watches = {uri: self.tables.get(uri) or self._watch(uri) for uri in self._found_ms}
        for watch in watches.values():
            watch.reopen()
        self.tables = watches

    def _watch(self, uri: str) -> TableWatch:
        """Name a table by its path below the root. The name of a table at the root itself is its last segment."""
        name = uri.rpartition("/")[2] if uri == self.root else uri.removeprefix(f"{self.root.rstrip('/')}/")
        return TableWatch(name, uri, self._clock, self._access)

    def _tables_to_list(self) -> list[TableWatch]:
        """Return the tables whose parts were not listed for too long, the oldest listing first."""
        interval_ms = self._settings.listing_interval_ms
        if interval_ms is None:
            return []
        since_ms = self._clock.now_ms() - interval_ms
        return [t for t in sorted(self.tables.values(), key=lambda t: t.listing_ms) if t.listing_ms <= since_ms]
