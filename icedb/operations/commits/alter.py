"""Change a table's spec: its sort order, codec, row groups, or the partitioning of new parts.

The new spec is recorded in the header of an exclusive commit, so it is decided with everything else that is, and
`_table.json`, which holds the first spec, is never replaced. Parts that are there keep their layout. Programs that
have the table open go on with the spec that they know until they read the log; their parts are as good as any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from icedb.errors import InvalidPartitionExpression, UnknownColumn
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.replay import TableState
from icedb.format.table_spec import (
    Compression,
    Merging,
    SchemaPolicy,
    TableSpec,
    all_columns,
    altered_spec,
    encode_spec,
)
from icedb.format.timing import Timing
from icedb.sql.partition_expressions import parse_partition_by
from icedb.transaction.append import Commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.writer.spec_validation import DeclaredSchema, checked_spec, declared_columns

__all__ = ["Change", "alter", "plan_alter", "spec_change"]

#: Makes a new spec of a table's newest.
Change = Callable[[TableSpec], TableSpec]


def spec_change(
    *,
    table: str,
    partition_by: Sequence[str] | None = None,
    sort_by: Sequence[str] | None = None,
    compression: Compression | None = None,
    row_group_rows: int | None = None,
    schema: DeclaredSchema | None = None,
    required: Sequence[str] | None = None,
    schema_policy: SchemaPolicy | None = None,
    path_columns: Mapping[str, str] | None = None,
    insert_query: str | None = None,
    merge_query: str | None = None,
    merging: Merging | Literal["none"] | None = None,
    row_id: bool | None = None,
    timing: Timing | None = None,
) -> Change:
    """The change that the options of `Table.alter` ask for. Raises InvalidOption."""
    given = {
        "partition_by": None if partition_by is None else tuple(partition_by),
        "sort_by": None if sort_by is None else tuple(sort_by),
        "compression": compression,
        "row_group_rows": row_group_rows,
        "required": None if required is None else tuple(required),
        "schema_policy": schema_policy,
        "path_columns": None if path_columns is None else dict(path_columns),
        "insert_query": insert_query,
        "merge_query": merge_query,
        "row_id": row_id,
        "timing": timing,
    }
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if merging is not None:
        changes["merging"] = None if merging == "none" else merging
    declared = declared_columns(schema if schema is not None else {}, table=table)
    return lambda spec: msgspec.structs.replace(spec, columns={**spec.columns, **declared}, **changes)


def plan_alter(handle: Handle, change: Change) -> TableSpec:
    """The spec that `alter` would record now, checked; the table's own when nothing would change. Raises as `alter`."""
    operation = _Alter(handle, change)
    operation.build(handle.read(fresh=True), handle.clock.now_ms())
    return operation.new or handle.spec


def alter(handle: Handle, change: Change) -> Commit:
    """Record what `change` makes of the newest spec. Without a difference there is no commit.

    Raises InvalidOption, InvalidPartitionExpression, UnknownColumn, CommitConflict, CommitStateUnknown and the store's.
    """
    operation = _Alter(handle, change)
    commit = commit_exclusive(handle, operation)
    if commit.committed and operation.new is not None:
        handle.learn_spec(operation.new)  # what is written next through this handle has it
    return commit


@dataclass(slots=True)
class _Alter:
    """The change is made to the spec that is the newest when it commits."""

    handle: Handle
    change: Change
    new: TableSpec | None = None
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        old = self.handle.spec  # reading `state` has brought it up to date
        new = self.change(old)
        if new == old:
            return None
        new = _checked(new, state)
        new = altered_spec(old, _with_earlier(old, new, state.table), t_ms)
        self.new, encoded = new, encode_spec(new, indent=0)
        # The older revisions go with the log files that they are in.
        holders = [k for k, f in state.effective.items() if not isinstance(f.file.spec, msgspec.UnsetType)]
        replaces = set(state.replaceable((), t_ms=t_ms)) | (set(holders) - state.far_ahead(t_ms))
        return draft(state, t_ms=t_ms, spec=msgspec.Raw(encoded), replaces=replaces, operation="alter")


def _with_earlier(old: TableSpec, new: TableSpec, table: str) -> TableSpec:
    """Remember what is no longer partitioned by. A name in a path means one expression for good."""
    earlier = [*old.earlier_partition_by, *(e for e in old.partition_by if e not in old.earlier_partition_by)]
    meant = {e.name.casefold(): e for e in parse_partition_by(earlier, table=table)}
    for expression in parse_partition_by(new.partition_by, table=table):
        known = meant.get(expression.name.casefold(), expression)
        if known != expression:
            raise InvalidPartitionExpression(
                f"{table}: '{expression.name}' is or was a partition column with another expression ({known.sql}), and "
                "parts that are there have its values in their paths. Give the new one another name."
            )
    retired = tuple(e for e in earlier if e not in new.partition_by)
    return msgspec.structs.replace(new, earlier_partition_by=retired)


def _checked(spec: TableSpec, state: TableState) -> TableSpec:
    spec = checked_spec(spec, table=state.table, schema=state.schema)
    if not state.schema:
        return spec
    columns = all_columns(spec, state.schema)
    if unknown := [c for c in spec.sort_by if c not in columns]:
        raise UnknownColumn(
            f"{state.table}: sort_by names '{unknown[0]}', and the table has no such column (it has "
            f"{sorted(columns)}). Correct sort_by."
        )
    return spec
