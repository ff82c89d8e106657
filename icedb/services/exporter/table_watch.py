"""One table of the exporter: its figures, read from its log.

The open table keeps its state, so that a refresh fetches new log files only. Commits are counted by their log files,
each once: cleanup deletes a replaced log file after the grace period at the earliest, so a refresh sees each of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icedb.format.replay import TableState
from icedb.operations.health.table_health import TableHealth, Thresholds, examine_state
from icedb.operations.retention.orphans import delete_orphans
from icedb.reader.history import CommitKind, commit_kinds, last_commits
from icedb.table import Table
from icedb.transaction.table_handle import Handle
from icedb.util.clock import Clock

__all__ = ["OrphanFigures", "TableAccess", "TableFigures", "TableWatch"]

logger = logging.getLogger("icedb.exporter")

#: Time after which the health of an unchanged table is computed again: parts expire, and partitions cool down. It takes
#: a tenth of a second for ten thousand parts.
EXAMINE_MS = 10 * 60_000


#: The arguments `storage_options` and `credential_provider` of `Table.open`.
TableAccess = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OrphanFigures:
    """The orphans that a listing found. Times are unix milliseconds."""

    parts: int
    bytes: int
    listed_ms: int


@dataclass(frozen=True, slots=True)
class TableFigures:
    """The figures of a table. Those from before an error stay, so that counters do not go back."""

    #: None until the table was read, and while it cannot be read.
    health: TableHealth | None = None
    orphans: OrphanFigures | None = None
    #: The time of the newest commit of each kind (unix ms), as far as the log records it.
    last_commits: Mapping[CommitKind, int] = field(default_factory=dict)
    #: The commits since the first refresh, by kind.
    commits: Mapping[CommitKind, int] = field(default_factory=dict)
    #: Failed refreshes and listings, by the class of the error.
    errors: Mapping[str, int] = field(default_factory=dict)
    #: The time of the last successful refresh (unix ms); 0 if there was none.
    refreshed_ms: int = 0


class TableWatch:
    """A table with its latest figures. One thread at a time refreshes it; any thread reads `figures`."""

    def __init__(self, name: str, uri: str, clock: Clock, access: TableAccess | None = None) -> None:
        #: The name in metrics.
        self.name = name
        self.uri = uri
        self.figures = TableFigures()
        #: When the parts were last listed, or the listing failed (unix ms); 0 if never.
        self.listing_ms = 0
        self._clock = clock
        self._access = access or {}
        self._thresholds = Thresholds()
        self._handle: Handle | None = None
        self._known: frozenset[str] | None = None
        self._must_reopen = False
        self._examined_state: TableState | None = None
        self._examined_ms = 0

    def reopen(self) -> None:
        """Let the next refresh check that the address still has the same table, and not one created in its place."""
        self._must_reopen = True

    def refresh(self) -> None:
        """Read the log and update the figures. An error becomes a figure."""
        try:
            handle = self._opened()
            state = handle.read(fresh=True)
            health = self._examined(handle, state)
        except Exception as error:  # noqa: BLE001  a broken table must not stop the refreshes of the others
            self._fail("read", error)
            self.figures = replace(self.figures, health=None)
            return
        newest = {**self.figures.last_commits, **last_commits(state)}
        commits = Counter(self.figures.commits)
        for key, kind in self._new_commits(handle, state):
            commits[kind] += 1
            newest[kind] = max(handle.keys.parse_log_file(key).t_ms, newest.get(kind, 0))
        self.figures = replace(
            self.figures, health=health, last_commits=newest, commits=commits, refreshed_ms=self._clock.now_ms()
        )

    def list_orphans(self) -> None:
        """List the parts of the table and update the figures of orphans. An error becomes a figure."""
        if self._handle is None:
            return
        self.listing_ms = self._clock.now_ms()
        try:
            report = delete_orphans(self._handle, dry_run=True, limit=10**9)
        except Exception as error:  # noqa: BLE001  as above
            self._fail("listed", error)
            return
        orphans = OrphanFigures(len(report.deleted_parts), report.deleted_bytes, self._clock.now_ms())
        self.figures = replace(self.figures, orphans=orphans)

    def _examined(self, handle: Handle, state: TableState) -> TableHealth:
        """Return the health of a state. That of an unchanged state is computed again from time to time only."""
        now_ms = self._clock.now_ms()
        if self._examined_state is state and now_ms - self._examined_ms < EXAMINE_MS and self.figures.health:
            return self.figures.health
        health = examine_state(handle, state, self._thresholds)
        self._examined_state, self._examined_ms = state, now_ms
        return health

    def _opened(self) -> Handle:
        """Return the open table. Open it if there is none, or if another one may be at the address."""
        if self._handle is None or self._must_reopen:
            opened = Table.open(self.uri, **self._access).handle
            # Tables of v3 have no id.
            if self._handle is None or not opened.spec.id or opened.spec.id != self._handle.spec.id:
                self._handle, self._known, self.listing_ms = opened, None, 0
                self.figures = replace(self.figures, orphans=None, last_commits={})
            self._must_reopen = False
        return self._handle

    def _new_commits(self, handle: Handle, state: TableState) -> list[tuple[str, CommitKind]]:
        """Return the log files since the last refresh, with the kinds of their commits; none at the first refresh."""
        before, self._known = self._known, frozenset(state.listed_ms)
        if before is None or self._known == before:
            return []
        # Ignored log files that no other file replaced were published too late to take effect.
        counted = [k for k in self._known - before if k not in state.ignored or k in state.log_tombstones]
        return list(commit_kinds(handle, state, counted).items())

    def _fail(self, participle: str, error: Exception) -> None:
        """Count an error. Log it if it is the first of its class, or the first one since a successful refresh."""
        name = type(error).__name__
        if name not in self.figures.errors or self.figures.health is not None:
            logger.error("the table %s cannot be %s: %s", self.uri, participle, error)
        errors = Counter(self.figures.errors)
        errors[name] += 1
        self._must_reopen = True
        self.figures = replace(self.figures, errors=errors)
