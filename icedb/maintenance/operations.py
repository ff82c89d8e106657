"""Exclusive commits that need no parts of their own making, or bring parts that are written already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from icedb.errors import InvariantViolated
from icedb.format.records import Marker
from icedb.format.rewrite import Draft, draft
from icedb.format.snapshot import LogState
from icedb.parts import WrittenParts
from icedb.schema import check_columns

__all__ = ["Append", "Replace"]

#: Chooses, from the table's state, the keys of the live parts that go.
Choice = Callable[[LogState], Collection[str]]


class Append:
    """Parts that bring a column, or the first parts of a table: schema and parts in one log file."""

    reads_everything = False

    def __init__(self, written: WrittenParts) -> None:
        self._written = written
        self.outputs: list[str] = [m.key for m in written.markers]
        self.unused: list[str] = []
        self.born_ms: int | None = written.born_ms

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        """Raises SchemaConflict when another commit gave one of the columns another type."""
        check_columns(self._written.schema, state.schema, table=state.table)
        return draft(state, t_ms=t_ms, schema=dict(self._written.schema), add=self._written.markers)


class Replace:
    """Tombstone the live parts that `choose` names, and put `written` (if any) in their place: overwrite, drop."""

    reads_everything = False

    def __init__(self, choose: Choice, written: WrittenParts | None = None) -> None:
        self._choose = choose
        self._markers: Sequence[Marker] = written.markers if written else ()
        self._schema: Mapping[str, str] = written.schema if written else {}
        self.outputs: list[str] = [m.key for m in self._markers]
        self.unused: list[str] = []
        self.born_ms: int | None = written.born_ms if written else None

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        """What is live now goes; a plain append that lands meanwhile stays."""
        check_columns(self._schema, state.schema, table=state.table)
        dead = set(self._choose(state))
        if not_live := [k for k in dead if k not in state.parts or state.parts[k].tombstoned_ms is not None]:
            raise InvariantViolated(f"{state.table}: {sorted(not_live)[:3]} are not live and cannot be replaced.")
        if not dead and not self._markers:
            return None
        # The log files that name them are replaced too: else cleanup could not forget the parts before a merge.
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(self._schema),
            add=self._markers,
            tombstone=dead,
            replaces=state.replaceable(dead, t_ms=t_ms),
        )
