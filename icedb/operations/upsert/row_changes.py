"""The exclusive commit of an upsert or update: parts without the rows that change, and parts with the new rows.

The plan is made from the rows that are live at each attempt: parts that were added since are searched too, and what
another commit replaced is found in its new parts. So an exclusive commit sees all rows of the commits before it. Rows
of a plain append that lands between the last read of the log and the commit are not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, visible_schema
from icedb.operations.rewrite.engine import Engine
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_parts
from icedb.operations.upsert.row_search import RowSearch
from icedb.sources.batch import Batch
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.storage.parts import Part
from icedb.transaction.idempotent_append import Txn, is_recorded
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, put_parts
from icedb.writer.staging import stage_rows

__all__ = ["IS_SAME", "MATCHES", "ChangePlan", "RowChanges"]

logger = logging.getLogger(__name__)

#: The temporary table of the rows that were found: `key`, `row`, IS_SAME, and the columns of the search.
MATCHES = "matches"
#: Whether a row that was found stays as it is.
IS_SAME = "is_same"

# The number of paths in one statement, as for deletions.
_PARTS_PER_SEARCH = 250


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """How rows change in a table with some schema. `search` also selects IS_SAME."""

    search: RowSearch
    #: Chooses the parts that can have a matching row.
    possible: Callable[[Sequence[Part]], Sequence[Part]]
    #: Returns the query of the new rows over MATCHES, or None if there can be none.
    new_rows: Callable[[duckdb.DuckDBPyConnection], str | None]


@dataclass(slots=True)
class RowChanges:
    """Rows that are replaced, removed and added.

    `plan` returns the plan for the visible columns of the table. `con` has MATCHES and what `new_rows` names.
    """

    handle: Handle
    con: duckdb.DuckDBPyConnection
    plan: Callable[[Mapping[str, str]], ChangePlan]
    operation: str
    engine: Engine
    #: The memory for sorting the new rows.
    memory_bytes: int
    txn: Txn | None = None
    dry_run: bool = False
    reads_everything: bool = False
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    #: Whether the transaction was committed before.
    repeated: bool = False
    #: The keys of the live parts, and how many of them were opened.
    live: frozenset[str] = frozenset()
    searched: int = 0
    #: The key of a part with rows that change -> its rewrite, and the new part, or None if no row is left.
    rewrites: dict[str, Rewrite] = field(default_factory=dict)
    rewritten: dict[str, Marker | None] = field(default_factory=dict)
    #: The new rows; None before they are written.
    written: WrittenParts | None = None
    _prepared_for: tuple[Mapping[str, str], TableSpec] | None = None

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
        self.prepare(state)
        written = self.written or WrittenParts({}, (), t_ms)
        if not (self.rewrites or written.markers or self.txn):
            return None
        gone = list(self.rewrites)
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

    def prepare(self, state: TableState) -> None:
        """Find the rows of the live parts that change, and write the new parts. Do only what is not done yet.

        A dry run writes nothing. Raises the errors of an insert, of the search and of a rewrite.
        """
        schema = visible_schema(self.handle.spec, state.schema)
        if self._prepared_for != (schema, self.handle.spec):
            self._restart()
            self._prepared_for = schema, self.handle.spec
        plan = self.plan(schema)
        live = {m.key: m for m in state.live}
        changed = self._forget(live) or self.written is None
        fresh = [self.handle.part(m) for key, m in live.items() if key not in self.live]
        changed = self._search(plan, fresh) or changed
        self.live = frozenset(live)
        if changed:
            self._write_new_rows(plan)
        self._rewrite(schema, live)

    def _restart(self) -> None:
        """Forget everything that was found and written."""
        self.unused += self.outputs
        self.con.execute(f"DROP TABLE IF EXISTS {MATCHES}")
        self.live = frozenset()
        self.rewrites.clear()
        self.rewritten.clear()
        self.written = None
        self.searched = 0

    def _forget(self, live: Collection[str]) -> bool:
        """Forget the rows of parts that are no longer live. Returns whether there are any."""
        gone = [key for key in self._matched() if key not in live]
        if not gone:
            return False
        self.con.execute(f"DELETE FROM {MATCHES} WHERE list_contains($1, key)", [gone])
        for key in gone:
            self.rewrites.pop(key, None)
            marker = self.rewritten.pop(key, None)
            self.unused += [] if marker is None else [marker.key]
        return True

    def _matched(self) -> list[str]:
        if not self.live:
            return []
        return [key for (key,) in self.con.execute(f"SELECT DISTINCT key FROM {MATCHES}").fetchall()]

    def _search(self, plan: ChangePlan, parts: Sequence[Part]) -> bool:
        """Add the matching rows of parts to MATCHES. Returns whether there are any."""
        parts = plan.possible(parts)
        self.searched += len(parts)
        batches = [tuple(parts[n : n + _PARTS_PER_SEARCH]) for n in range(0, len(parts), _PARTS_PER_SEARCH)]
        added = 0
        for result in self.engine.run(self.handle, plan.search, batches or [()]):  # without parts, only the columns
            with pa.ipc.open_stream(result) as stream:
                self.con.register("result", stream.read_all())
            self.con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {MATCHES} AS FROM result LIMIT 0")
            [(rows,)] = self.con.execute(f"INSERT INTO {MATCHES} FROM result").fetchall()
            self.con.unregister("result")
            added += int(rows)
        return added > 0

    def _write_new_rows(self, plan: ChangePlan) -> None:
        """Write the new rows as parts of their partitions."""
        if self.written is not None:
            self.unused += [m.key for m in self.written.markers]
            self.written = None
        query = plan.new_rows(self.con)
        if query is None:
            self.written = WrittenParts({}, (), self.handle.clock.now_ms())
            return
        # The rows were computed by the insert query before.
        context = self.handle.write_context()
        context = replace(context, spec=msgspec.structs.replace(context.spec, insert_query=""))
        batch = Batch(self.con.execute(query).to_arrow_reader(ROWS_PER_BATCH), source=self.operation, is_answer=True)
        with stage_rows(context, batch, memory_bytes=self.memory_bytes) as stage:
            if self.dry_run:
                self.written = WrittenParts(stage.columns, (), self.handle.clock.now_ms())
                return
            self.written = put_parts(stage, store=self.handle.store, clock=self.handle.clock)
        self.oldest_part_ms = self.oldest_part_ms or self.written.oldest_part_ms

    def _rewrite(self, schema: Mapping[str, str], live: Mapping[str, Marker]) -> None:
        """Write the parts without the rows that change."""
        changing = self.con.execute(
            f"SELECT key, list(row ORDER BY row) FROM {MATCHES} WHERE NOT {IS_SAME} GROUP BY key ORDER BY key"
        )
        while rows := changing.fetchmany(100):
            for key, numbers in rows:
                if key not in self.rewrites:
                    part = self.handle.part(live[key])
                    self.rewrites[key] = Rewrite(
                        part.partition, (part,), drop_rows=np.asarray(numbers, np.int64).tobytes()
                    )
        waiting = [r for key, r in self.rewrites.items() if key not in self.rewritten]
        if self.dry_run or not waiting:
            return
        self.oldest_part_ms = self.oldest_part_ms or self.handle.clock.now_ms()
        logger.info("%s: %s rewrites %d of %d parts", self.handle.table, self.operation, len(waiting), len(live))
        for rewrite, marker in zip(
            waiting, rewrite_parts(self.handle, waiting, schema, engine=self.engine), strict=True
        ):
            self.rewritten[rewrite.inputs[0].key] = marker
