"""The stored rows that an upsert or update changes, in a temporary table of DuckDB, and the rows that replace them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.records import Marker
from icedb.operations.rewrite.engine import Engine, LocalEngine
from icedb.operations.rewrite.part_search import search_batches
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_parts
from icedb.operations.upsert.row_changes import Searched
from icedb.operations.upsert.row_search import RowSearch
from icedb.sources.batch import Batch
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, put_parts
from icedb.writer.staging import stage_rows

__all__ = ["IS_SAME", "MATCHES", "ChangePlan", "MatchedRows"]

#: The temporary table of the rows that were found: `part` and `row` of RowSearch, IS_SAME, and the plan's columns. Here
#: `part` is the place in all parts that were searched.
MATCHES = "matches"
#: Whether a row that was found stays as it is.
IS_SAME = "is_same"


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """How rows change in a table with some schema. `search` also selects IS_SAME."""

    search: RowSearch
    #: Returns the parts that can have a matching row.
    possible: Callable[[Sequence[Part]], Sequence[Part]]
    #: Counts the rows in MATCHES, as fields of a report.
    counts: Callable[[duckdb.DuckDBPyConnection], Mapping[str, int]]
    #: Returns the query of the new rows over MATCHES, or None if there are none.
    new_rows: Callable[[duckdb.DuckDBPyConnection], str | None]


@dataclass(slots=True)
class MatchedRows:
    """See ChangedRows. `plan` returns the plan for the visible columns of the table. `con` has MATCHES."""

    handle: Handle
    con: duckdb.DuckDBPyConnection
    plan: Callable[[Mapping[str, str]], ChangePlan]
    operation: str
    engine: Engine
    #: The memory for sorting the new rows.
    memory_bytes: int
    #: Reject new rows in more partitions (None: no limit).
    partitions_max: int | None = None
    _plan: ChangePlan = field(init=False)
    #: The keys of the parts that were searched.
    _keys: list[str] = field(default_factory=list)

    def restart(self, schema: Mapping[str, str]) -> None:
        """See ChangedRows."""
        self._plan = self.plan(schema)
        self.con.execute(f"DROP TABLE IF EXISTS {MATCHES}")
        self._keys.clear()

    def search(self, parts: Sequence[Part]) -> Searched:
        """See ChangedRows."""
        parts = self._plan.possible(parts)
        batches = search_batches(parts) or [()]  # without parts, the result has only the columns
        # In this process one after another, so that the rows of one search are in memory.
        at_a_time = 1 if isinstance(self.engine, LocalEngine) else len(batches)
        added = 0
        for first in range(0, len(batches), at_a_time):
            some = batches[first : first + at_a_time]
            for batch, result in zip(some, self.engine.run(self.handle, self._plan.search, some), strict=True):
                added += self._add(result)
                self._keys += [p.key for p in batch]
        return Searched(len(parts), added)

    def _add(self, result: bytes) -> int:
        """Add a result of the search to MATCHES, and return its number of rows."""
        with pa.ipc.open_stream(result) as stream:
            self.con.register("result", pa.Table.from_batches([], stream.schema))
            self.con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {MATCHES} AS FROM result")
            self.con.register("result", stream)
            rows = f"SELECT * REPLACE (CAST(part + {len(self._keys)} AS INTEGER) AS part) FROM result"
            [(added,)] = self.con.execute(f"INSERT INTO {MATCHES} {rows}").fetchall()
            self.con.unregister("result")
        return int(added)

    def forget(self, keys: Collection[str]) -> int:
        """See ChangedRows."""
        gone = pa.array([n for n, key in enumerate(self._keys) if key in keys], pa.int32())
        self.con.register("gone", pa.table([gone], ["part"]))
        [(rows,)] = self.con.execute(f"DELETE FROM {MATCHES} WHERE part IN (FROM gone)").fetchall()
        self.con.unregister("gone")
        return int(rows)

    def changing(self) -> Mapping[str, bytes]:
        """See ChangedRows."""
        rows = self.con.execute(f"SELECT part, row FROM {MATCHES} WHERE NOT {IS_SAME} ORDER BY part, row")
        places = rows.to_arrow_table()
        if not places.num_rows:
            return {}
        parts = pc.run_end_encode(places["part"].combine_chunks())
        pieces = np.split(places["row"].to_numpy(), parts.run_ends.to_numpy()[:-1])
        return {self._keys[n]: piece.tobytes() for n, piece in zip(parts.values.to_pylist(), pieces, strict=True)}

    def counts(self) -> Mapping[str, int]:
        """See ChangedRows."""
        return self._plan.counts(self.con)

    def write(self, *, dry_run: bool) -> WrittenParts:
        """See ChangedRows."""
        query = self._plan.new_rows(self.con)
        if query is None:
            return WrittenParts({}, (), self.handle.clock.now_ms())
        # The insert query has computed the rows before.
        context = self.handle.write_context()
        context = replace(context, spec=msgspec.structs.replace(context.spec, insert_query=""))
        batch = Batch(self.con.execute(query).to_arrow_reader(ROWS_PER_BATCH), source=self.operation, is_answer=True)
        with stage_rows(context, batch, memory_bytes=self.memory_bytes) as stage:
            stage.check_partitions(self.partitions_max)
            if dry_run:
                return WrittenParts(stage.columns, (), self.handle.clock.now_ms())
            return put_parts(stage, store=self.handle.store, clock=self.handle.clock)

    def rewrite(self, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """See ChangedRows."""
        return rewrite_parts(self.handle, rewrites, schema, engine=self.engine)
