"""The options of a table's spec, as callers set them in `Table.create`, in `Table.alter` and by flags of commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from icedb.format.table_spec import Compression, Merging, SchemaPolicy, TableSpec
from icedb.format.timing import Timing
from icedb.writer.spec_validation import DeclaredSchema, declared_columns

__all__ = ["Change", "SpecOptions", "spec_change"]

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


#: The types in which a spec stores collections. Its other fields have the types of the options.
_STORED: Mapping[str, Callable[[Any], object]] = {
    "partition_by": tuple,
    "sort_by": tuple,
    "bloom_filters": tuple,
    "required": tuple,
    "path_columns": dict,
}


def spec_change(table: str, **options: Unpack[SpecOptions]) -> Change:
    """Return the function that sets the options in a spec. Raises InvalidOption for an invalid `schema`."""
    changes: dict[str, Any] = {
        name: _STORED[name](value) if name in _STORED else value for name, value in options.items() if value is not None
    }
    if changes.get("merging") == "none":
        changes["merging"] = None
    declared = declared_columns(changes.pop("schema", {}), table=table)
    return lambda spec: msgspec.structs.replace(spec, columns={**spec.columns, **declared}, **changes)
