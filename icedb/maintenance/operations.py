"""Exclusive commits, as plans that are made anew at each attempt: append, replace what is live, put rewritten parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from icedb.errors import InvariantViolated
from icedb.format.records import Marker
from icedb.format.rewrite import Draft, draft
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.maintenance.carrying import cheap_to_replace
from icedb.parts import WrittenParts
from icedb.rewriting import Rewrite
from icedb.schema import check_columns
from icedb.shaping import check_declared
from icedb.spec import all_columns

__all__ = ["Append", "Replace", "Rewritten"]

#: Chooses, from the table's state, the keys of the live parts that go.
Choice = Callable[[LogState], Collection[str]]


class Append:
    """Parts that bring a column, or the first parts of a table: schema and parts in one log file."""

    reads_everything = False

    def __init__(self, handle: Handle, written: WrittenParts) -> None:
        self._handle = handle
        self._written = written
        self.outputs: list[str] = [m.key for m in written.markers]
        self.unused: list[str] = []
        self.born_ms: int | None = written.born_ms

    def build(self, state: LogState, t_ms: int) -> Draft | None:
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
        self.born_ms: int | None = written.born_ms if self._markers and written else None

    def build(self, state: LogState, t_ms: int) -> Draft | None:
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


class Rewritten:
    """Parts that were made from others, in the place of these: merge, delete, rewrite.

    A rewrite is kept while all its inputs are live; then it is committed as it is, whatever else landed meanwhile. One
    that lost an input is dropped, for its output holds rows that are gone, or that live elsewhere by now.

    `operation`: the name that the log records.
    `sparing`: log files that hold much else are not replaced; a cleanup forgets the inputs later then.
    """

    reads_everything = False

    def __init__(
        self,
        written: Mapping[Rewrite, Sequence[Marker]],
        *,
        operation: str,
        born_ms: int,
        schema: Mapping[str, str] | None = None,
        sparing: bool = False,
    ) -> None:
        #: What is still part of the plan, with the markers of the new parts; none for what a rewrite emptied.
        self.kept: dict[Rewrite, Sequence[Marker]] = dict(written)
        self._schema: Mapping[str, str] = schema or {}
        self._sparing = sparing
        self._operation = operation
        self.unused: list[str] = []
        self.born_ms: int | None = born_ms

    @property
    def markers(self) -> list[Marker]:
        """The new parts that are still part of the plan."""
        return [m for markers in self.kept.values() for m in markers]

    @property
    def outputs(self) -> list[str]:
        """Their keys."""
        return [m.key for m in self.markers]

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        """Raises SchemaConflict when another commit gave a new column another type."""
        for rewrite in [r for r in self.kept if not all(_is_live(state, p.key) for p in r.inputs)]:
            self.unused += [m.key for m in self.kept.pop(rewrite)]
        if not self.kept:
            return None
        check_columns(self._schema, state.schema, table=state.table)
        inputs = [p.key for r in self.kept for p in r.inputs]
        replaceable = cheap_to_replace if self._sparing else LogState.replaceable
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(self._schema),
            add=self.markers,
            moved=True,
            tombstone=inputs,
            replaces=replaceable(state, inputs, t_ms=t_ms),
            operation=self._operation,
        )


def _is_live(state: LogState, key: str) -> bool:
    marker = state.parts.get(key)
    return marker is not None and marker.tombstoned_ms is None
