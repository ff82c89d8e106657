"""The flags that say how a table is laid out: those of `create`, and of `alter`, where what is not given stays."""

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

#: A panel of the help.
MERGING = "What merges make of rows with one key"


def several(flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """An option that may be repeated."""
    one_each = _one_column_each if metavar == "COLUMN" else None
    return typer.Option(
        flag, metavar=metavar, help=f"{text} May be repeated.", rich_help_panel=panel, callback=one_each
    )


def _one_column_each(param: typer.CallbackParam, given: list[str] | None) -> list[str] | None:
    """Other programs take a list with commas. Here it would be one strange column, which the first rows do not have."""
    for text in given or ():
        if "," in text:
            flags = " ".join(f"{param.opts[0]} {name.strip()}" for name in text.split(",") if name.strip())
            raise typer.BadParameter(f"{text!r} is more than one column; write {flags}.")
    return given


PartitionBy = Annotated[
    list[str] | None,
    several("--partition-by", "EXPRESSION", "DuckDB, with a name: \"strftime(ts, '%Y-%m-%d') AS d\"."),
]
SortBy = Annotated[list[str] | None, several("--sort-by", "COLUMN", "What the rows of a part are sorted by.")]
CompressionOption = Annotated[
    str | None, typer.Option("--compression", metavar="CODEC", help="zstd (the default), snappy, gzip, lz4_raw, ...")
]
RowGroupRows = Annotated[
    int | None, typer.Option("--row-group-rows", metavar="NUMBER", help="Rows per Parquet row group.")
]
Columns = Annotated[
    list[str] | None, several("--column", "NAME=TYPE", "A column and its DuckDB type, before any row brings it.")
]
Required = Annotated[list[str] | None, several("--required", "COLUMN", "A column that must not be null.")]
SchemaPolicyOption = Annotated[
    str | None,
    typer.Option("--schema-policy", metavar="POLICY", help="open: rows may bring columns; declared: only --column."),
]
PathColumns = Annotated[
    list[str] | None, several("--path-column", "NAME=TYPE", "A partition column that only the paths tell.")
]
InsertQuery = Annotated[
    str | None, typer.Option("--insert-query", metavar="SQL", help="Over _rows: its answer is stored in their place.")
]
MergeQuery = Annotated[
    str | None,
    typer.Option(
        "--merge-query", metavar="SQL", help="Over source_files: its answer is the new part.", rich_help_panel=MERGING
    ),
]
MergeBy = Annotated[
    list[str] | None, several("--merge-by", "COLUMN", "The key. Alone: one of the equal rows stays.", MERGING)
]
MergeVersion = Annotated[
    str | None,
    typer.Option(
        "--merge-version",
        metavar="COLUMN",
        help="Of the rows with one key, that with the greatest value here stays.",
        rich_help_panel=MERGING,
    ),
]
MergeSum = Annotated[list[str] | None, several("--merge-sum", "COLUMN", "Summed.", MERGING)]
MergeMin = Annotated[list[str] | None, several("--merge-min", "COLUMN", "The smallest stays.", MERGING)]
MergeMax = Annotated[list[str] | None, several("--merge-max", "COLUMN", "The greatest stays.", MERGING)]
MergeAny = Annotated[list[str] | None, several("--merge-any", "COLUMN", "Any of the values stays.", MERGING)]
MergeCount = Annotated[
    str | None,
    typer.Option("--merge-count", metavar="COLUMN", help="A column that counts rows.", rich_help_panel=MERGING),
]
RowId = Annotated[
    bool | None, typer.Option("--row-id/--no-row-id", help="Give each row a unique _row_id, unless it brings one.")
]


Times = Annotated[
    list[str] | None,
    several("--time", "NAME=DURATION", "One of the table's times: grace_ms=2h, min_age_ms=3d."),
]


def timing_of(given: Sequence[str] | None, now: Timing) -> Timing | None:
    """The table's times with those of `--time`; None: none is given."""
    changes: dict[str, Any] = {}
    for text in given or ():
        name, _, length = text.partition("=")
        if name not in {f.name for f in fields(Timing)}:
            names = ", ".join(f.name for f in fields(Timing))
            raise typer.BadParameter(f"{name!r} is none of the table's times ({names}); write --time grace_ms=2h.")
        changes[name] = parse_duration(length) // timedelta(milliseconds=1)
    return replace(now, **changes) if changes else None


def types_of(flag: str, given: Sequence[str] | None) -> dict[str, str]:
    """Column -> type, from `NAME=TYPE`."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, type_ = text.partition("=")
        if not (name and equals and type_):
            raise typer.BadParameter(f"{text!r} is no column and type; write {flag} price=DOUBLE.")
        if name in found:
            raise typer.BadParameter(f"{flag} names '{name}' twice.")
        found[name] = type_
    return found


def merging_of(
    by: Sequence[str] | None, version: str | None, count: str | None, **aggregated: Sequence[str] | None
) -> Merging | None:
    """What the flags ask for, if they ask for anything. `aggregated`: columns by what becomes of them."""
    given: Mapping[str, tuple[str, ...]] = {name: tuple(columns) for name, columns in aggregated.items() if columns}
    if by is None or not by:
        if version or count or given:
            raise typer.BadParameter("what merges make of rows with one key needs the key: --merge-by.")
        return None
    if version and (count or given):
        raise typer.BadParameter("--merge-version keeps one row whole; it does not go with --merge-sum and its like.")
    if version:
        return Replacing(tuple(by), version)
    if count or given:
        return Aggregating(by=tuple(by), count=count or "", **given)
    return Dedup(tuple(by))
