"""The exclusive commit of an upsert or update: parts without the rows that change, and parts with the new rows.

The plan is made from the rows that are live at each attempt: parts that were added since are searched too, and what
another commit replaced is found in its new parts. So an exclusive commit sees all rows of the commits before it. Rows
of a plain append that lands between the last read of the log and the commit are not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.storage.parts import Part
from icedb.transaction.idempotent_append import Txn, is_recorded
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts

__all__ = ["ChangedRows", "RowChanges", "Searched"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search: the parts that were opened, and the rows that were found in them."""

    parts: int
    rows: int


class ChangedRows(Protocol):
    """The rows of an upsert or update: those that were found in parts, and those that replace them."""

    def restart(self, schema: Mapping[str, str]) -> None:
        """Forget all rows that were found. The table has the columns of `schema` now."""
        ...

    def search(self, parts: Sequence[Part]) -> Searched:
        """Find the rows of parts that match. Raises the errors of a query."""
        ...

    def forget(self, keys: Collection[str]) -> int:
        """Forget the rows that were found in parts that are no longer live, and return their number."""
        ...

    def changing(self) -> Mapping[str, bytes]:
        """Return the key of each part with rows that change -> the numbers of these rows, as `Rewrite.drop_rows`."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of the rows that were found and that are new, as fields of a report."""
        ...

    def write(self, *, dry_run: bool) -> WrittenParts:
        """Put the rows that replace others or are inserted. A dry run only checks them. Raises as an insert."""
        ...

    def rewrite(self, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """Put the parts without the rows that change. See `Rewriter`."""
        ...


@dataclass(slots=True)
class RowChanges:
    """A replacement of rows, as an exclusive commit. `operation` is the name that the log records."""

    handle: Handle
    rows: ChangedRows
    operation: str
    txn: Txn | None = None
    dry_run: bool = False
    reads_everything: bool = False
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    #: Whether the transaction was committed before.
    repeated: bool = False
    #: The keys of the live parts, and the number of parts that were opened.
    live: frozenset[str] = frozenset()
    searched: int = 0
    #: The key of a part with rows that change -> its rewrite, and the new part, or None if no row is left.
    rewrites: dict[str, Rewrite] = field(default_factory=dict)
    rewritten: dict[str, Marker | None] = field(default_factory=dict)
    #: The parts of the new rows; None before they are written.
    written: WrittenParts | None = None
    _prepared_for: tuple[Mapping[str, str], TableSpec] | None = None
    #: The time of an attempt (unix ms) -> the counts of its plan. Another writer may publish an earlier attempt.
    _attempts: dict[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        """The keys of the new parts."""
        new = self.written.markers if self.written else ()
        return [m.key for m in (*self._moved, *new)]

    @property
    def _moved(self) -> list[Marker]:
        return [m for m in self.rewritten.values() if m is not None]

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file, or None if no row changes. Raises the errors of `prepare`.

        Reading `state` has updated the handle's spec and columns, against which the new rows are checked.
        """
        if self.txn is not None and is_recorded(state, self.txn):
            self._restart()
            self.repeated = True
            return None
        written = self.prepare(state)
        if not (self.rewrites or written.markers or self.txn):
            return None
        gone = list(self.rewrites)
        self._attempts[t_ms] = self.counts()
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(written.schema) if written.markers else {},
            txn={} if self.txn is None else {self.txn[0]: (self.txn[1], t_ms)},
            add=written.markers,
            moved=self._moved,
            tombstone=gone,
            replaces=state.replaceable(gone, t_ms=t_ms),
            operation=self.operation,
        )

    def counts(self, t_ms: int | None = None) -> Mapping[str, int]:
        """Return the numbers of rows and parts that the attempt at a time changes, or the current plan."""
        if t_ms in self._attempts:
            return self._attempts[t_ms]
        if self.dry_run:
            removed = sum(r.rows == len(r.dropped) for r in self.rewrites.values())
        else:
            removed = sum(marker is None for marker in self.rewritten.values())
        return {
            **self.rows.counts(),
            "live_parts": len(self.live),
            "searched_parts": self.searched,
            "rewritten_parts": len(self.rewrites) - removed,
            "removed_parts": removed,
            "bytes": sum(r.bytes for r in self.rewrites.values()),
        }

    def prepare(self, state: TableState) -> WrittenParts:
        """Find the rows of the live parts that change, and put the new parts. Do only what is not done yet.

        A dry run puts nothing. Raises the errors of an insert, of a query and of a rewrite.
        """
        schema = all_columns(self.handle.spec, state.schema)
        if self._prepared_for != (schema, self.handle.spec):
            self._restart()
            self._prepared_for = schema, self.handle.spec
            self.rows.restart(schema)
        live = {m.key: m for m in state.live}
        forgotten = self._forget(self.live - live.keys())
        fresh = [self.handle.part(m) for key, m in live.items() if key not in self.live]
        searched = self.rows.search(fresh) if fresh or self.written is None else Searched(0, 0)
        self.searched += searched.parts
        self.live = frozenset(live)
        if self.written is None or forgotten or searched.rows:
            self._write()
        self._rewrite(schema, live)
        return self.written or WrittenParts({}, (), self.handle.clock.now_ms())

    def _restart(self) -> None:
        """Forget everything that was found and written."""
        self.unused += self.outputs
        self.live, self.searched = frozenset(), 0
        self.rewrites.clear()
        self.rewritten.clear()
        self.written = None

    def _forget(self, gone: Collection[str]) -> int:
        """Forget the rows of parts that are no longer live, and return their number."""
        for key in gone:
            self.rewrites.pop(key, None)
            marker = self.rewritten.pop(key, None)
            self.unused += [] if marker is None else [marker.key]
        return self.rows.forget(gone) if gone else 0

    def _write(self) -> None:
        if self.written is not None:
            self.unused += [m.key for m in self.written.markers]
            self.written = None
        written = self.rows.write(dry_run=self.dry_run)
        self.written = written
        if written.markers:
            self.oldest_part_ms = self.oldest_part_ms or written.oldest_part_ms

    def _rewrite(self, schema: Mapping[str, str], live: Mapping[str, Marker]) -> None:
        for key, numbers in self.rows.changing().items():
            if key not in self.rewrites:
                part = self.handle.part(live[key])
                self.rewrites[key] = Rewrite(part.partition, (part,), drop_rows=numbers)
        waiting = [r for key, r in self.rewrites.items() if key not in self.rewritten]
        if self.dry_run or not waiting:
            return
        self.oldest_part_ms = self.oldest_part_ms or self.handle.clock.now_ms()
        logger.info("%s: %s rewrites %d of %d parts", self.handle.table, self.operation, len(waiting), len(live))
        for rewrite, marker in zip(waiting, self.rows.rewrite(waiting, schema), strict=True):
            self.rewritten[rewrite.inputs[0].key] = marker
