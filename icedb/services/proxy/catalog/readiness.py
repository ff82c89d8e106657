"""The readiness of a proxy: at least one of its tables can be opened.

A load balancer that gets 503 sends no requests to this proxy. One table that was deleted must not stop the requests to
all others, so the proxy is ready while any of the checked tables exists. A check opens tables as the proxy does, which
costs a GET for each. The table that was opened last is checked first, and mostly alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

__all__ = ["TableReadiness"]

logger = logging.getLogger("icedb.proxy")

#: The time for which a result is used again, in seconds.
CACHE_SECONDS = 10.0
#: The time after which a store that does not answer makes the proxy not ready. Requests to it continue.
WAIT_SECONDS = 3.0
#: Tables of one check. Each has a thread, because a store that does not answer blocks it for a minute.
TABLES_MAX = 8


class TableReadiness:
    """Checks whether the tables of a proxy can be opened. Belongs to one event loop."""

    def __init__(self, tables: Callable[[], Collection[str]], open_table: Callable[[str], object]) -> None:
        """Create a check. `tables` returns the addresses of the tables; none: the proxy is ready."""
        self._tables = tables
        self._open_table = open_table
        self._threads = ThreadPoolExecutor(TABLES_MAX, "icedb ready")
        self._opened_last = ""
        #: How many tables the next check skips.
        self._skip = 0
        self._checked_at = float("-inf")
        self._reasons: tuple[str, ...] = ()
        self._check: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Release the threads without waiting for checks in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def reasons(self) -> tuple[str, ...]:
        """Return why no table can be read, a reason for each checked table, as of at most `CACHE_SECONDS` ago."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._checked_at <= CACHE_SECONDS:
            return self._reasons
        if self._check is None or self._check.done():
            self._check = loop.create_task(self._check_tables())
        done, _ = await asyncio.wait([self._check], timeout=WAIT_SECONDS)
        if not done:
            return (f"the store has not answered for {WAIT_SECONDS:.0f} s",)
        return self._reasons

    async def _check_tables(self) -> None:
        loop = asyncio.get_running_loop()
        began, reasons = loop.time(), []
        tables = dict.fromkeys(self._tables())
        first = [self._opened_last] if self._opened_last in tables else []
        others = [table for table in tables if table not in first]
        others = [*others[self._skip :], *others[: self._skip]][: TABLES_MAX - len(first)]
        for batch in filter(None, (first, others)):
            results = await asyncio.gather(*(loop.run_in_executor(self._threads, self._try, it) for it in batch))
            reasons += [reason for reason in results if reason]
            if opened := [table for table, reason in zip(batch, results, strict=True) if not reason]:
                self._opened_last, reasons = opened[0], []
                break
        else:  # the next check tries others
            self._skip = (self._skip + len(others)) % max(len(tables), 1)
        if reasons and not self._reasons:
            logger.error("not ready: %s", "; ".join(reasons))
        elif self._reasons and not reasons:
            logger.info("ready again")
        self._reasons, self._checked_at = tuple(reasons), began

    def _try(self, table: str) -> str:
        try:
            self._open_table(table)
        except Exception as error:  # noqa: BLE001 - after any error, the table cannot be served
            return f"the table {table} cannot be read: {error}"
        return ""
