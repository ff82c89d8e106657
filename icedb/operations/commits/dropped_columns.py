"""Columns that are dropped, and dropped columns that come back.

A dropped column is hidden from all readers by one commit. The log's schema and existing parts (data files) keep it, so
earlier snapshots still have it. Merges leave it out of new parts. It comes back only when no live part contains it:
otherwise its old values would appear again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

from icedb.errors import InvalidOption, UnknownColumn
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, altered_spec
from icedb.reader.part_footers import parts_with_columns
from icedb.sql.partition_expressions import partition_expressions
from icedb.sql.types import ROW_ID, check_columns
from icedb.transaction.table_handle import Handle
from icedb.util.counts import count_text
from icedb.util.times import time_text

__all__ = ["check_dropped", "spec_of_columns", "spec_of_dropped"]


def check_dropped(handle: Handle, old: TableSpec, new: TableSpec, state: TableState) -> None:
    """Check the columns that a change of the spec drops or brings back.

    Raises UnknownColumn for a column that the table does not have. Raises InvalidOption for one that the table needs,
    for the last column, and for one that live parts still contain. Raises SchemaConflict if a column comes back with
    another type.
    """
    existing = all_columns(old, state.schema)
    going = new.dropped.keys() - old.dropped.keys()
    for column in going:
        if column not in existing:
            raise UnknownColumn(
                f"{state.table}: drop_columns names '{column}', and the table has no such column (it has "
                f"{sorted(existing)}). Correct the name."
            )
        _check_unused(new, column, table=state.table)
    if going and not all_columns(new, state.schema):
        raise InvalidOption(f"{state.table}: a table needs a column, and this would drop all of them. Keep one.")
    if new.columns != old.columns:  # the log's schema has one name and type for a column, also while it is hidden
        check_columns(new.columns, state.schema, table=state.table)
    if back := old.dropped.keys() - new.dropped.keys():
        _check_gone(handle, {c: old.dropped[c] for c in sorted(back)}, state)


def spec_of_columns(handle: Handle, columns: Collection[str], state: TableState, t_ms: int) -> TableSpec | None:
    """Return the spec of a table with only these columns. See `spec_of_dropped`."""
    existing = {**handle.spec.columns, **state.schema}
    return spec_of_dropped(handle, {c: 0 for c in existing if c not in columns}, t_ms)


def spec_of_dropped(handle: Handle, dropped: Mapping[str, int], t_ms: int) -> TableSpec | None:
    """Return the spec in which exactly these columns are dropped; None if they are dropped already.

    A time of 0 is that of the commit. The commit must replace all live parts that have old values of a column that
    comes back.

    Raises InvalidOption if the table needs a column that goes.
    """
    spec = handle.spec  # reading the state has updated it
    if dropped.keys() == spec.dropped.keys():
        return None
    new = msgspec.structs.replace(spec, dropped=dict(dropped))
    for column in dropped.keys() - spec.dropped.keys():
        _check_unused(new, column, table=handle.table)
    return altered_spec(spec, new, t_ms)


def _check_unused(spec: TableSpec, column: str, *, table: str) -> None:
    """Raise InvalidOption if the spec needs a column."""
    if use := _use(spec, column, table):
        raise InvalidOption(
            f"{table}: the column '{column}' cannot be dropped, because {use} needs it. Change that first."
        )


def _use(spec: TableSpec, column: str, table: str) -> str:
    """Return the part of the spec that needs a column; empty if there is none."""
    name = column.casefold()
    lists = {"sort_by": spec.sort_by, "required": spec.required, "bloom_filters": spec.bloom_filters}
    for option, columns in lists.items():
        if name in map(str.casefold, columns):
            return option
    inputs = {c.casefold() for e in partition_expressions(spec, table=table) if not e.path_only for c in e.columns}
    if name in inputs:
        return "partition_by"
    if spec.row_id and column == ROW_ID:
        return "row_id"
    if spec.merging is not None and name in map(str.casefold, _columns_of(spec.merging)):
        return "merging"
    # A name in a query may also be something else. Such a query must be changed, too.
    queries = {"merge_query": spec.merge_query, **{f"the view '{v.name}'": v.query for v in spec.views}}
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.IGNORECASE)
    return next((what for what, query in queries.items() if word.search(query)), "")


def _columns_of(merging: object) -> Iterator[str]:
    """Return the columns that a predefined merge query names."""
    for name in ("by", "sum", "min", "max", "any"):
        yield from getattr(merging, name, ())
    for name in ("version", "count"):
        if column := getattr(merging, name, ""):
            yield column


def _check_gone(handle: Handle, back: Mapping[str, int], state: TableState) -> None:
    """Raise InvalidOption if a live part contains one of the columns."""
    holders = parts_with_columns(handle, [handle.part(m) for m in state.live], back)
    for column, dropped_ms in back.items():
        if parts := parts_with_columns(handle, holders, [column]):
            partition = parts[0].partition
            raise InvalidOption(
                f"{state.table}: the column '{column}' was dropped at {time_text(dropped_ms)}, and its old values are "
                f"still in {count_text(len(parts), 'live part')} (first '{parts[0].key}'). They would appear again. "
                "Give the new column another name, or rewrite the partitions of these parts first: "
                f"table.rewrite_partition({partition!r}, 'SELECT * FROM _rows')."
            )
