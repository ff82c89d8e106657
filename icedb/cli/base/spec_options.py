"""The flags for the layout of a table, which `create` and `alter` share. `alter` keeps what no flag names."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Annotated, Any

import typer

from icedb.format.table_spec import Aggregating, Dedup, Merging, Replacing
from icedb.format.timing import Timing
from icedb.util.durations import parse_duration

__all__ = [
    "MERGING",
    "Columns",
    "CompressionOption",
    "InsertQuery",
    "MergeAny",
    "MergeBy",
    "MergeCount",
    "MergeMax",
    "MergeMin",
    "MergeQuery",
    "MergeSum",
    "MergeVersion",
    "PartitionBy",
    "PathColumns",
    "Required",
    "RowGroupRows",
    "RowId",
    "SchemaPolicyOption",
    "SortBy",
    "merging_of",
    "Times",
    "several",
    "timing_of",
    "types_of",
]

#: The panel of the flags for merging tables.
MERGING = "Merging rows with the same key"


def several(flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """Return an option that may be repeated."""
    one_each = _one_column_each if metavar == "COLUMN" else None
    return typer.Option(
        flag, metavar=metavar, help=f"{text} May be repeated.", rich_help_panel=panel, callback=one_each
    )


def _one_column_each(param: typer.CallbackParam, values: list[str] | None) -> list[str] | None:
    """Reject a list with commas, which other programs accept. Here it would name one column that no row has."""
    for text in values or ():
        if "," in text:
            flags = " ".join(f"{param.opts[0]} {name.strip()}" for name in text.split(",") if name.strip())
            raise typer.BadParameter(f"{text!r} is more than one column. Write {flags}.")
    return values


PartitionBy = Annotated[
    list[str] | None,
    several(
        "--partition-by", "EXPRESSION", "Partition by this named DuckDB expression: \"strftime(ts, '%Y-%m-%d') AS d\"."
    ),
]
SortBy = Annotated[list[str] | None, several("--sort-by", "COLUMN", "Sort the rows of each part by this column.")]
CompressionOption = Annotated[
    str | None, typer.Option("--compression", metavar="CODEC", help="Compress with zstd, snappy, gzip, lz4_raw, ...")
]
RowGroupRows = Annotated[
    int | None, typer.Option("--row-group-rows", metavar="NUMBER", help="Set the rows per Parquet row group.")
]
Columns = Annotated[list[str] | None, several("--column", "NAME=TYPE", "Declare a column with its DuckDB type.")]
Required = Annotated[list[str] | None, several("--required", "COLUMN", "Reject rows in which this column is null.")]
SchemaPolicyOption = Annotated[
    str | None,
    typer.Option(
        "--schema-policy", metavar="POLICY", help="Choose open (rows may add columns) or declared (only --column)."
    ),
]
PathColumns = Annotated[
    list[str] | None, several("--path-column", "NAME=TYPE", "Declare a partition column that is only in the paths.")
]
InsertQuery = Annotated[
    str | None,
    typer.Option("--insert-query", metavar="SQL", help="Store the result of this query over _rows instead of them."),
]
MergeQuery = Annotated[
    str | None,
    typer.Option(
        "--merge-query",
        metavar="SQL",
        help="Make the new part of a merge with this query over source_files.",
        rich_help_panel=MERGING,
    ),
]
MergeBy = Annotated[
    list[str] | None,
    several(
        "--merge-by", "COLUMN", "Name a column of the key. Without other flags, a merge keeps one of the rows.", MERGING
    ),
]
MergeVersion = Annotated[
    str | None,
    typer.Option(
        "--merge-version",
        metavar="COLUMN",
        help="Keep the row with the greatest value in this column.",
        rich_help_panel=MERGING,
    ),
]
MergeSum = Annotated[list[str] | None, several("--merge-sum", "COLUMN", "Sum this column.", MERGING)]
MergeMin = Annotated[list[str] | None, several("--merge-min", "COLUMN", "Keep the smallest value.", MERGING)]
MergeMax = Annotated[list[str] | None, several("--merge-max", "COLUMN", "Keep the greatest value.", MERGING)]
MergeAny = Annotated[list[str] | None, several("--merge-any", "COLUMN", "Keep any of the values.", MERGING)]
MergeCount = Annotated[
    str | None,
    typer.Option("--merge-count", metavar="COLUMN", help="Count the rows in this column.", rich_help_panel=MERGING),
]
RowId = Annotated[
    bool | None, typer.Option("--row-id/--no-row-id", help="Give each row that has no _row_id a unique one.")
]


Times = Annotated[
    list[str] | None,
    several("--time", "NAME=DURATION", "Set one of the table's times: grace_ms=2h, min_age_ms=3d."),
]


def timing_of(assignments: Sequence[str] | None, now: Timing) -> Timing | None:
    """Return the times `now` with the values of `--time`, or None if there are none."""
    changes: dict[str, Any] = {}
    for text in assignments or ():
        name, _, length = text.partition("=")
        if name not in {f.name for f in fields(Timing)}:
            names = ", ".join(f.name for f in fields(Timing))
            raise typer.BadParameter(f"{name!r} is not one of the table's times ({names}). Write --time grace_ms=2h.")
        changes[name] = parse_duration(length) // timedelta(milliseconds=1)
    return replace(now, **changes) if changes else None


def types_of(flag: str, assignments: Sequence[str] | None) -> dict[str, str]:
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


def merging_of(
    by: Sequence[str] | None, version: str | None, count: str | None, **aggregated: Sequence[str] | None
) -> Merging | None:
    """Return the merging that the flags define, or None. `aggregated`: the columns of each aggregate function."""
    aggregates: Mapping[str, tuple[str, ...]] = {
        name: tuple(columns) for name, columns in aggregated.items() if columns
    }
    if by is None or not by:
        if version or count or aggregates:
            raise typer.BadParameter("A merging table needs a key. Pass --merge-by.")
        return None
    if version and (count or aggregates):
        raise typer.BadParameter("--merge-version keeps one whole row. It excludes --merge-sum and other aggregates.")
    if version:
        return Replacing(tuple(by), version)
    if count or aggregates:
        return Aggregating(by=tuple(by), count=count or "", **aggregates)
    return Dedup(tuple(by))
