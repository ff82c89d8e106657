"""Exclusive commits, as plans that are made anew at each attempt: append, replace what is live, put rewritten parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from icedb.errors import InvariantViolated
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns
from icedb.sql.types import check_columns
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_schema import check_declared
from icedb.writer.part_writer import WrittenParts

__all__ = ["Append", "Replace"]

#: Chooses, from the table's state, the keys of the live parts that go.
Choice = Callable[[TableState], Collection[str]]


class Append:
    """Parts that bring a column, or the first parts of a table: schema and parts in one log file."""

    reads_everything = False

    def __init__(self, handle: Handle, written: WrittenParts) -> None:
        self._handle = handle
        self._written = written
        self.outputs: list[str] = [m.key for m in written.markers]
        self.unused: list[str] = []
        self.oldest_part_ms: int | None = written.oldest_part_ms

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Raises SchemaConflict when another commit gave one of the columns another type, or declared it so."""
        columns = all_columns(self._handle.spec, state.schema)  # reading `state` has brought the spec up to date
        check_columns(self._written.schema, columns, table=state.table)
        check_declared(self._handle.spec, self._written.schema, columns, table=state.table)
        schema, markers = dict(self._written.schema), self._written.markers
        return draft(state, t_ms=t_ms, schema=schema, add=markers, operation="insert")


class Replace:
    """Tombstone the live parts that `choose` names, and put `written` (if any) in their place: overwrite, drop.

    `sequences`: transactions that the table need not have any more, application -> sequence; the log records them.
    `operation`: the name that the log records; None: overwrite or drop.
    """

    reads_everything = False

    def __init__(
        self,
        choose: Choice,
        written: WrittenParts | None = None,
        *,
        sequences: Mapping[str, int] | None = None,
        operation: str | None = None,
    ) -> None:
        self._choose = choose
        self._sequences = sequences or {}
        self._markers: Sequence[Marker] = written.markers if written else ()
        self._schema: Mapping[str, str] = written.schema if written else {}
        self._operation = operation or ("overwrite" if self._markers else "drop")
        self.outputs: list[str] = [m.key for m in self._markers]
        self.unused: list[str] = []
        self.oldest_part_ms: int | None = written.oldest_part_ms if self._markers and written else None

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """What is live now goes; a plain append that lands meanwhile stays."""
        check_columns(self._schema, state.schema, table=state.table)
        dead = set(self._choose(state))
        if not_live := [k for k in dead if k not in state.parts or state.parts[k].tombstoned_ms is not None]:
            raise InvariantViolated(f"{state.table}: {sorted(not_live)[:3]} are not live and cannot be replaced.")
        txn = {a: (n, t_ms) for a, n in self._sequences.items() if n > state.txn.get(a, (-1, 0))[0]}
        if not (dead or self._markers or txn):
            return None
        # The log files that name them are replaced too: else cleanup could not forget the parts before a merge.
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(self._schema),
            txn=txn,
            add=self._markers,
            tombstone=dead,
            replaces=state.replaceable(dead, t_ms=t_ms),
            operation=self._operation,
        )
