"""Plans of exclusive commits that append parts or replace live ones. A plan is made again at each attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from icedb.errors import InvariantViolated
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns
from icedb.sql.types import check_columns
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_schema import check_declared, check_not_dropped
from icedb.writer.part_writer import WrittenParts

__all__ = ["Append", "Replace", "SpecOfCommit"]

#: Returns the spec that a commit records, from the table's state and the time of the commit; None if it is unchanged.
SpecOfCommit = Callable[[TableState, int], TableSpec | None]
#: Returns the keys of the live parts to tombstone, from the table's state.
Choice = Callable[[TableState], Collection[str]]


class Append:
    """An append of parts with a new column, or of the first parts of a table: schema and parts in one log file."""

    reads_everything = False

    def __init__(self, handle: Handle, written: WrittenParts) -> None:
        self._handle = handle
        self._written = written
        self.outputs: list[str] = [m.key for m in written.markers]
        self.unused: list[str] = []
        self.oldest_part_ms: int | None = written.oldest_part_ms

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. Raises SchemaConflict if another commit gave or declared another type for a column."""
        columns = all_columns(self._handle.spec, state.schema)  # reading `state` has updated the spec
        check_columns(self._written.schema, columns, table=state.table)
        check_not_dropped(self._handle.spec, self._written.schema, table=state.table)
        check_declared(self._handle.spec, self._written.schema, columns, table=state.table)
        schema, markers = dict(self._written.schema), self._written.markers
        return draft(state, t_ms=t_ms, schema=schema, add=markers, operation="insert")


class Replace:
    """A replacement of the live parts that `choose` returns by `written`, if any: overwrite or drop.

    `sequences` maps applications to sequences that the log shall record as committed. `operation` is the name that the
    log records. None means overwrite or drop. `spec` returns the spec that the log shall record.
    """

    reads_everything = False

    def __init__(
        self,
        choose: Choice,
        written: WrittenParts | None = None,
        *,
        sequences: Mapping[str, int] | None = None,
        operation: str | None = None,
        spec: SpecOfCommit | None = None,
    ) -> None:
        self._choose = choose
        self._sequences = sequences or {}
        self._spec = spec
        self._markers: Sequence[Marker] = written.markers if written else ()
        self._schema: Mapping[str, str] = written.schema if written else {}
        self._operation = operation or ("overwrite" if self._markers else "drop")
        self.outputs: list[str] = [m.key for m in self._markers]
        self.unused: list[str] = []
        self.oldest_part_ms: int | None = written.oldest_part_ms if self._markers and written else None

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. It tombstones parts that are live now; a plain append that lands meanwhile survives."""
        check_columns(self._schema, state.schema, table=state.table)
        dead = set(self._choose(state))
        if not_live := [k for k in dead if k not in state.parts or state.parts[k].tombstoned_ms is not None]:
            raise InvariantViolated(f"{state.table}: {sorted(not_live)[:3]} are not live and cannot be replaced.")
        txn = {a: (n, t_ms) for a, n in self._sequences.items() if n > state.txn.get(a, (-1, 0))[0]}
        if not (dead or self._markers or txn):
            return None
        # The log files that name them are replaced too, so that cleanup can forget them without a merge.
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(self._schema),
            spec=None if self._spec is None else self._spec(state, t_ms),
            txn=txn,
            add=self._markers,
            tombstone=dead,
            replaces=state.replaceable(dead, t_ms=t_ms),
            operation=self._operation,
        )
