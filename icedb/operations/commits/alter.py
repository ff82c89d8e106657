"""Changes of a table's spec: its sort order, codec, row groups, the partitioning of new parts, or its columns.

The header of an exclusive commit records the new spec, so it is ordered with all other exclusive commits. The first
spec in `_table.json` is never replaced. Existing parts keep their layout. Programs that have the table open use the old
spec until they read the log. Their parts remain valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from icedb.errors import InvalidPartitionExpression, UnknownColumn
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, altered_spec, visible_schema
from icedb.operations.commits.dropped_columns import check_dropped
from icedb.sql.partition_expressions import parse_partition_by
from icedb.transaction.append import Commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.spec_options import Change
from icedb.writer.spec_validation import checked_spec

__all__ = ["alter", "plan_alter"]


def plan_alter(handle: Handle, change: Change) -> TableSpec:
    """Return the checked spec that `alter` would record now, or the table's own if nothing changes.

    Raises the errors of `alter`.
    """
    operation = _Alter(handle, change)
    operation.build(handle.read(fresh=True), handle.clock.now_ms())
    return operation.new or handle.spec


def alter(handle: Handle, change: Change) -> Commit:
    """Apply `change` to the newest spec and record the result. Without a difference there is no commit.

    Raises InvalidOption, InvalidPartitionExpression, UnknownColumn, CommitConflict, CommitStateUnknown and the store's
    errors.
    """
    operation = _Alter(handle, change)
    commit = commit_exclusive(handle, operation)
    if commit.committed and operation.new is not None:
        handle.current_spec.learn(operation.new)  # the next write through this handle uses it
    return commit


@dataclass(slots=True)
class _Alter:
    """An exclusive commit that applies a change to the spec that is the newest at that time."""

    handle: Handle
    change: Change
    new: TableSpec | None = None
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        old = self.handle.spec  # reading `state` has updated it
        new = self.change(old)
        if new == old:
            return None
        check_dropped(self.handle, old, new, state)
        new = _checked(new, state)
        new = altered_spec(old, _with_earlier(old, new, state.table), t_ms)
        self.new = new
        # Older revisions disappear with the log files that record them.
        holders = [k for k, f in state.effective.items() if not isinstance(f.file.spec, msgspec.UnsetType)]
        replaces = set(state.replaceable((), t_ms=t_ms)) | (set(holders) - state.far_ahead(t_ms))
        return draft(state, t_ms=t_ms, spec=new, replaces=replaces, operation="alter")


def _with_earlier(old: TableSpec, new: TableSpec, table: str) -> TableSpec:
    """Add retired partition expressions to the spec. A name in a path means one expression for good."""
    earlier = [*old.earlier_partition_by, *(e for e in old.partition_by if e not in old.earlier_partition_by)]
    meant = {e.name.casefold(): e for e in parse_partition_by(earlier, table=table)}
    for expression in parse_partition_by(new.partition_by, table=table):
        earlier_one = meant.get(expression.name.casefold(), expression)
        if earlier_one != expression:
            raise InvalidPartitionExpression(
                f"{table}: '{expression.name}' is or was a partition column with another expression "
                f"({earlier_one.sql}), and existing parts have its values in their paths. Give the new one another "
                "name."
            )
    retired = tuple(e for e in earlier if e not in new.partition_by)
    return msgspec.structs.replace(new, earlier_partition_by=retired)


def _checked(spec: TableSpec, state: TableState) -> TableSpec:
    spec = checked_spec(spec, table=state.table, schema=visible_schema(spec, state.schema))
    if not state.schema:
        return spec
    columns = all_columns(spec, state.schema)
    if unknown := [c for c in spec.sort_by if c not in columns]:
        raise UnknownColumn(
            f"{state.table}: sort_by names '{unknown[0]}', and the table has no such column (it has "
            f"{sorted(columns)}). Correct sort_by."
        )
    return spec
