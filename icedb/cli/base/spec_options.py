"""The flags of a table's spec, which `create` and `alter` share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from icedb.format.table_spec import Aggregating, Dedup, Merging, Replacing
from icedb.format.timing import Timing
from icedb.util.durations import parse_duration

if TYPE_CHECKING:
    from icedb.writer.spec_options import SpecOptions

__all__ = ["MERGING", "SpecFlags", "several"]

#: The panel of the flags for merging tables.
MERGING = "Merging rows with the same key"


def several(flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """Return an option that may be repeated."""
    one_each = _one_column_each if metavar == "COLUMN" else None
    return typer.Option(
        flag, metavar=metavar, help=f"{text} May be repeated.", rich_help_panel=panel, callback=one_each
    )


def one(flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """Return an option with one value."""
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=panel)


def _one_column_each(param: typer.CallbackParam, values: list[str] | None) -> list[str] | None:
    """Reject a list with commas, which other programs accept. Here it would name one column that no row has."""
    for text in values or ():
        if "," in text:
            flags = " ".join(f"{param.opts[0]} {name.strip()}" for name in text.split(",") if name.strip())
            raise typer.BadParameter(f"{text!r} is more than one column. Write {flags}.")
    return values


@dataclass(frozen=True, slots=True)
class SpecFlags:
    """The flags of a table's spec. A flag that is not set is None."""

    partition_by: Annotated[
        list[str] | None,
        several(
            "--partition-by",
            "EXPRESSION",
            "Partition by this named DuckDB expression: \"strftime(ts, '%Y-%m-%d') AS d\".",
        ),
    ] = None
    sort_by: Annotated[
        list[str] | None, several("--sort-by", "COLUMN", "Sort the rows of each part by this column.")
    ] = None
    column: Annotated[list[str] | None, several("--column", "NAME=TYPE", "Declare a column with its DuckDB type.")] = (
        None
    )
    required: Annotated[
        list[str] | None, several("--required", "COLUMN", "Reject rows in which this column is null.")
    ] = None
    schema_policy: Annotated[
        str | None, one("--schema-policy", "POLICY", "Choose open (rows may add columns) or declared (only --column).")
    ] = None
    path_column: Annotated[
        list[str] | None, several("--path-column", "NAME=TYPE", "Declare a partition column that is only in the paths.")
    ] = None
    insert_query: Annotated[
        str | None, one("--insert-query", "SQL", "Store the result of this query over _rows instead of them.")
    ] = None
    row_id: Annotated[
        bool | None, typer.Option("--row-id/--no-row-id", help="Give each row that has no _row_id a unique one.")
    ] = None
    compression: Annotated[
        str | None, one("--compression", "CODEC", "Compress with zstd, snappy, gzip, lz4_raw, ...")
    ] = None
    row_group_rows: Annotated[int | None, one("--row-group-rows", "NUMBER", "Set the rows per Parquet row group.")] = (
        None
    )
    bloom_filters: Annotated[
        list[str] | None,
        several("--bloom-filters", "COLUMN", "Write a Parquet bloom filter of this column into each part."),
    ] = None
    time: Annotated[
        list[str] | None,
        several("--time", "NAME=DURATION", "Set one of the table's times: grace_ms=2h, min_age_ms=3d."),
    ] = None
    merge_by: Annotated[
        list[str] | None,
        several(
            "--merge-by",
            "COLUMN",
            "Name a column of the key. Without other flags, a merge keeps one of the rows.",
            MERGING,
        ),
    ] = None
    merge_version: Annotated[
        str | None, one("--merge-version", "COLUMN", "Keep the row with the greatest value in this column.", MERGING)
    ] = None
    merge_sum: Annotated[list[str] | None, several("--merge-sum", "COLUMN", "Sum this column.", MERGING)] = None
    merge_min: Annotated[list[str] | None, several("--merge-min", "COLUMN", "Keep the smallest value.", MERGING)] = None
    merge_max: Annotated[list[str] | None, several("--merge-max", "COLUMN", "Keep the greatest value.", MERGING)] = None
    merge_any: Annotated[list[str] | None, several("--merge-any", "COLUMN", "Keep any of the values.", MERGING)] = None
    merge_count: Annotated[str | None, one("--merge-count", "COLUMN", "Count the rows in this column.", MERGING)] = None
    merge_query: Annotated[
        str | None,
        one("--merge-query", "SQL", "Make the new part of a merge with this query over source_files.", MERGING),
    ] = None

    def options(self) -> "SpecOptions":
        """Return the options of the spec, without the times. `Table.create` and `alter` check their values."""
        options = {
            "partition_by": self.partition_by or None,
            "sort_by": self.sort_by or None,
            "schema": _types_of("--column", self.column),
            "required": self.required or None,
            "bloom_filters": self.bloom_filters or None,
            "path_columns": _types_of("--path-column", self.path_column) or None,
            "merging": self._merging(),
            **{name: getattr(self, name) for name in _UNCHANGED},
        }
        return cast("SpecOptions", options)

    def timing(self, now: Timing) -> Timing | None:
        """Return the times `now` with the values of `--time`, or None if there are none."""
        changes: dict[str, Any] = {}
        for text in self.time or ():
            name, _, length = text.partition("=")
            if name not in {f.name for f in fields(Timing)}:
                names = ", ".join(f.name for f in fields(Timing))
                raise typer.BadParameter(
                    f"{name!r} is not one of the table's times ({names}). Write --time grace_ms=2h."
                )
            changes[name] = parse_duration(length) // timedelta(milliseconds=1)
        return replace(now, **changes) if changes else None

    def _merging(self) -> Merging | None:
        columns = {"sum": self.merge_sum, "min": self.merge_min, "max": self.merge_max, "any": self.merge_any}
        aggregates = {name: tuple(of_aggregate) for name, of_aggregate in columns.items() if of_aggregate}
        by, version, count = tuple(self.merge_by or ()), self.merge_version, self.merge_count
        if not by:
            if version or count or aggregates:
                raise typer.BadParameter("A merging table needs a key. Pass --merge-by.")
            return None
        if version and (count or aggregates):
            raise typer.BadParameter(
                "--merge-version keeps one whole row. It excludes --merge-sum and other aggregates."
            )
        if version:
            return Replacing(by, version)
        if count or aggregates:
            return Aggregating(by=by, count=count or "", **aggregates)
        return Dedup(by)


#: The flags whose values are those of the options.
_UNCHANGED = ("compression", "row_group_rows", "schema_policy", "insert_query", "merge_query", "row_id")


def _types_of(flag: str, assignments: Sequence[str] | None) -> dict[str, str]:
    """Return the type of each column from texts `NAME=TYPE`."""
    types: dict[str, str] = {}
    for text in assignments or ():
        name, equals, type_ = text.partition("=")
        if not (name and equals and type_):
            raise typer.BadParameter(f"{text!r} is not a column and a type. Write {flag} price=DOUBLE.")
        if name in types:
            raise typer.BadParameter(f"{flag} names '{name}' twice.")
        types[name] = type_
    return types
