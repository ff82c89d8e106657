"""The options of a table's spec, as callers set them in `Table.create`, in `Table.alter` and by flags of commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from icedb.errors import InvalidOption
from icedb.format.table_spec import Compression, Merging, SchemaPolicy, TableSpec
from icedb.format.timing import Timing
from icedb.writer.spec_validation import DeclaredSchema, declared_columns

__all__ = ["AlterOptions", "Change", "SpecOptions", "spec_change"]

#: Returns a new spec from a table's newest one.
Change = Callable[[TableSpec], TableSpec]


class SpecOptions(TypedDict, total=False):
    """The options of a spec, with the meanings of `Table.create`.

    An option that is missing or None has no effect: a new table gets the default of `TableSpec`, and an existing one
    keeps its value.
    """

    partition_by: Sequence[str] | None
    sort_by: Sequence[str] | None
    compression: Compression | None
    row_group_rows: int | None
    bloom_filters: Sequence[str] | None
    schema: DeclaredSchema | None
    required: Sequence[str] | None
    schema_policy: SchemaPolicy | None
    path_columns: Mapping[str, str] | None
    insert_query: str | None
    merge_query: str | None
    merging: Merging | Literal["none"] | None
    row_id: bool | None
    timing: Timing | None


class AlterOptions(SpecOptions, total=False):
    """The options of `Table.alter`: those of a spec, and columns to drop."""

    drop_columns: Sequence[str] | None


#: The types in which a spec stores collections. Its other fields have the types of the options.
_STORED: Mapping[str, Callable[[Any], object]] = {
    "partition_by": tuple,
    "sort_by": tuple,
    "bloom_filters": tuple,
    "required": tuple,
    "path_columns": dict,
}


def spec_change(table: str, **options: Unpack[AlterOptions]) -> Change:
    """Return the function that sets the options in a spec. Raises InvalidOption for an invalid `schema`.

    A column in `schema` that was dropped comes back. `alter` sets the times of the columns in `drop_columns`.
    """
    drop = options.pop("drop_columns", None) or ()
    if isinstance(drop, str) or not all(isinstance(column, str) for column in drop):
        raise InvalidOption(f"{table}: drop_columns is {drop!r}. Give a list of names.")
    changes: dict[str, Any] = {
        name: _STORED[name](value) if name in _STORED else value for name, value in options.items() if value is not None
    }
    if changes.get("merging") == "none":
        changes["merging"] = None
    declared = declared_columns(changes.pop("schema", {}), table=table)
    if both := sorted(declared.keys() & set(drop)):
        raise InvalidOption(
            f"{table}: the column '{both[0]}' is in schema and in drop_columns. Name it in one of them."
        )

    def change(spec: TableSpec) -> TableSpec:
        hidden = {c: at_ms for c, at_ms in spec.dropped.items() if c not in declared}
        dropped = {**hidden, **{c: 0 for c in drop if c not in hidden}}
        return msgspec.structs.replace(spec, columns={**spec.columns, **declared}, dropped=dropped, **changes)

    return change
