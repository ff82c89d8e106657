"""The exclusive commit of a rewrite: new parts replace their inputs. The plan is made again at each attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.operations.commits.log_carryover import cheap_to_replace
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.sql.types import check_columns

__all__ = ["Rewritten"]


class Rewritten:
    """A replacement of parts by rewritten ones: merge, delete, rewrite.

    A rewrite is committed unchanged while all its inputs are live, whatever else landed meanwhile. A rewrite that lost
    an input is dropped, because its output has rows that were deleted, or that are in other parts by now.

    `operation` is the name that the log records. With `sparing`, log files with many other lines are not replaced. Then
    a cleanup forgets the inputs later.
    """

    reads_everything = False

    def __init__(
        self,
        written: Mapping[Rewrite, Sequence[Marker]],
        *,
        operation: str,
        oldest_part_ms: int,
        schema: Mapping[str, str] | None = None,
        sparing: bool = False,
    ) -> None:
        #: The rewrites that are still in the plan, with the markers of their new parts; none if no row is left.
        self.kept: dict[Rewrite, Sequence[Marker]] = dict(written)
        self._schema: Mapping[str, str] = schema or {}
        self._sparing = sparing
        self._operation = operation
        self.unused: list[str] = []
        self.oldest_part_ms: int | None = oldest_part_ms

    @property
    def markers(self) -> list[Marker]:
        """The new parts that are still in the plan."""
        return [m for markers in self.kept.values() for m in markers]

    @property
    def outputs(self) -> list[str]:
        """The keys of the new parts."""
        return [m.key for m in self.markers]

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        """Return the log file. Raises SchemaConflict if another commit gave a new column another type."""
        for rewrite in [r for r in self.kept if not all(_is_live(state, p.key) for p in r.inputs)]:
            self.unused += [m.key for m in self.kept.pop(rewrite)]
        if not self.kept:
            return None
        check_columns(self._schema, state.schema, table=state.table)
        inputs = [p.key for r in self.kept for p in r.inputs]
        replaceable = cheap_to_replace if self._sparing else TableState.replaceable
        return draft(
            state,
            t_ms=t_ms,
            schema=dict(self._schema),
            moved=self.markers,
            tombstone=inputs,
            replaces=replaceable(state, inputs, t_ms=t_ms),
            operation=self._operation,
        )


def _is_live(state: TableState, key: str) -> bool:
    marker = state.parts.get(key)
    return marker is not None and marker.tombstoned_ms is None
