"""Change a table's spec: its sort order, codec, row groups, or the partitioning of new parts.

The new spec is recorded in the header of an exclusive commit, so it is decided with everything else that is, and
`_table.json`, which holds the first spec, is never replaced. Parts that are there keep their layout. Programs that
have the table open go on with the spec that they know until they read the log; their parts are as good as any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from icedb.commit import Commit
from icedb.declared import checked_spec
from icedb.errors import InvalidPartitionExpression, UnknownColumn
from icedb.exclusive import exclusive
from icedb.format.rewrite import Draft, draft
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.partitions import parse_partition_by
from icedb.spec import TableSpec, all_columns, encode_spec

__all__ = ["alter"]


def alter(handle: Handle, change: Callable[[TableSpec], TableSpec]) -> Commit:
    """Record what `change` makes of the newest spec. Without a difference there is no commit.

    Raises InvalidOption, InvalidPartitionExpression, UnknownColumn, CommitContended, CommitUncertain and the store's.
    """
    operation = _Alter(handle, change)
    commit = exclusive(handle, operation)
    if commit.committed and operation.new is not None:
        handle.learn_spec(operation.new)  # what is written next through this handle has it
    return commit


@dataclass(slots=True)
class _Alter:
    """The change is made to the spec that is the newest when it commits."""

    handle: Handle
    change: Callable[[TableSpec], TableSpec]
    new: TableSpec | None = None
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    born_ms: int | None = None
    reads_everything: bool = False

    def build(self, state: LogState, t_ms: int) -> Draft | None:
        old = self.handle.spec  # reading `state` has brought it up to date
        new = self.change(old)
        if new == old:
            return None
        new = _checked(new, state)
        new = msgspec.structs.replace(_with_earlier(old, new, state.table), revision=old.revision + 1)
        self.new, encoded = new, encode_spec(new, indent=0)
        # The older revisions go with the log files that they are in.
        holders = [k for k, f in state.effective.items() if not isinstance(f.file.spec, msgspec.UnsetType)]
        replaces = set(state.replaceable((), t_ms=t_ms)) | (set(holders) - state.far_ahead(t_ms))
        return draft(state, t_ms=t_ms, spec=msgspec.Raw(encoded), replaces=replaces)


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


def _checked(spec: TableSpec, state: LogState) -> TableSpec:
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
