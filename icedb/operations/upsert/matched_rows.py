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
from icedb.operations.rewrite.engine import Engine
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

#: The temporary table of the rows that were found: `key` and `row` of RowSearch, IS_SAME, and the plan's columns.
MATCHES = "matches"
#: Whether a row that was found stays as it is.
IS_SAME = "is_same"

# The number of paths in one statement, as for deletions.
_PARTS_PER_SEARCH = 250


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """How rows change in a table with some schema. `search` also selects IS_SAME."""

    search: RowSearch
    #: Returns the parts that can have a matching row.
    possible: Callable[[Sequence[Part]], Sequence[Part]]
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
    _plan: ChangePlan = field(init=False)

    def restart(self, schema: Mapping[str, str]) -> None:
        """See ChangedRows."""
        self._plan = self.plan(schema)
        self.con.execute(f"DROP TABLE IF EXISTS {MATCHES}")

    def search(self, parts: Sequence[Part]) -> Searched:
        """See ChangedRows."""
        parts = self._plan.possible(parts)
        batches = [tuple(parts[n : n + _PARTS_PER_SEARCH]) for n in range(0, len(parts), _PARTS_PER_SEARCH)]
        added = 0
        for result in self.engine.run(self.handle, self._plan.search, batches or [()]):  # without parts, only columns
            with pa.ipc.open_stream(result) as stream:
                self.con.register("result", stream.read_all())
            self.con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {MATCHES} AS FROM result LIMIT 0")
            [(rows,)] = self.con.execute(f"INSERT INTO {MATCHES} FROM result").fetchall()
            self.con.unregister("result")
            added += int(rows)
        return Searched(len(parts), added)

    def forget(self, keys: Collection[str]) -> int:
        """See ChangedRows."""
        self.con.register("gone", pa.table([pa.array(keys, pa.string())], ["key"]))
        [(rows,)] = self.con.execute(f"DELETE FROM {MATCHES} WHERE key IN (FROM gone)").fetchall()
        self.con.unregister("gone")
        return int(rows)

    def changing(self) -> Mapping[str, bytes]:
        """See ChangedRows."""
        places = self.con.execute(
            f"SELECT key, row FROM {MATCHES} WHERE NOT {IS_SAME} ORDER BY key, row"
        ).to_arrow_table()
        if not places.num_rows:
            return {}
        keys = pc.run_end_encode(places["key"].combine_chunks())
        numbers = places["row"].to_numpy()
        pieces = np.split(numbers, keys.run_ends.to_numpy()[:-1])
        return {key: piece.tobytes() for key, piece in zip(keys.values.to_pylist(), pieces, strict=True)}

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
            if dry_run:
                return WrittenParts(stage.columns, (), self.handle.clock.now_ms())
            return put_parts(stage, store=self.handle.store, clock=self.handle.clock)

    def rewrite(self, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """See ChangedRows."""
        return rewrite_parts(self.handle, rewrites, schema, engine=self.engine)
