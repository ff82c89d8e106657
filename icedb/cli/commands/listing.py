"""The verbs that list what a table consists of: parts, partitions, columns, log files."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from icedb.cli.base.application import LOOK, Connection, Json, Uri, time_option, verb
from icedb.cli.render.output import output, time_text, write_json
from icedb.cli.render.text_tables import Cell, count_text, number_text, print_list, size_text

if TYPE_CHECKING:
    from icedb.reader.diff import ColumnInfo
    from icedb.reader.history import LogFileInfo
    from icedb.transaction.table_handle import Part

# Lines that are written at once.
_AT_ONCE = 10_000


@verb(LOOK)
def parts(
    connection: Connection,
    uri: Uri,
    where: Annotated[
        str | None,
        typer.Option(metavar="PREDICATE", help="Those that may hold a row for which it is true; none is opened."),
    ] = None,
    partitions: Annotated[
        list[str] | None, typer.Option("--partition", metavar="PATH", help="Those of a partition: d=2026-11-21.")
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "Those that were live at a time.")] = None,
    form: Annotated[
        Literal["table", "paths"], typer.Option("--format", help="paths: an address to a line, for any other engine.")
    ] = "table",
    null: Annotated[
        bool, typer.Option("--null", "-0", help="With --format paths: a zero byte after each, as `xargs -0` takes it.")
    ] = False,
    json: Json = False,
) -> None:
    """List the live parts: the Parquet files that are the table."""
    if null and form != "paths":
        raise typer.BadParameter("--null goes with --format paths.")
    if json and form == "paths":
        raise typer.BadParameter("--json and --format paths are two forms; give one.")
    snapshot = connection.open(uri).snapshot(as_of)
    found = snapshot.files(where)
    if partitions:
        _check_partitions(partitions, set(snapshot.partitions()))
        found = [part for part in found if part.partition in partitions]
    if form == "paths":
        _write_paths(found, "\0" if null else "\n")
    elif json:
        write_json([_part(part) for part in found])
    else:
        print_list(
            output(),
            [">rows", ">size", "created", "path"],
            ([number_text(p.rows), size_text(p.bytes), time_text(p.created_ms), p.path] for p in found),
        )


def _check_partitions(wanted: Iterable[str], there: set[str]) -> None:
    for path in wanted:
        if path not in there:
            raise typer.BadParameter(f"there is no partition '{path}'; `icedb partitions` lists them.")


def _write_paths(found: list["Part"], end: str) -> None:
    for start in range(0, len(found), _AT_ONCE):
        sys.stdout.write("".join(part.path + end for part in found[start : start + _AT_ONCE]))
    sys.stdout.flush()


def _part(part: "Part") -> dict[str, object]:
    return {
        "path": part.path,
        "key": part.key,
        "partition": part.partition,
        "rows": part.rows,
        "bytes": part.bytes,
        "created_ms": part.created_ms,
    }


@verb(LOOK)
def partitions(
    connection: Connection,
    uri: Uri,
    where: Annotated[
        str | None, typer.Option(metavar="PREDICATE", help="A predicate over the partition columns: \"d > '2026-11'\".")
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "As they were at a time.")] = None,
    json: Json = False,
) -> None:
    """List the partitions that have live parts, with their parts, rows and bytes."""
    snapshot = connection.open(uri).snapshot(as_of)
    chosen = None if where is None else set(snapshot.partitions(where))
    found: dict[str, dict[str, Any]] = {}
    for part in snapshot.parts:
        if chosen is not None and part.partition not in chosen:
            continue
        one = found.setdefault(
            part.partition, {"path": part.partition, "parts": 0, "rows": 0, "bytes": 0, "newest_part_ms": 0}
        )
        one["parts"] += 1
        one["rows"] = None if one["rows"] is None or part.rows is None else one["rows"] + part.rows
        one["bytes"] += part.bytes
        one["newest_part_ms"] = max(one["newest_part_ms"], part.created_ms)
    listed = [one for _, one in sorted(found.items())]
    if json:
        write_json(listed)
        return
    print_list(
        output(),
        [">parts", ">rows", ">size", "newest part", "partition"],
        (
            [f"{p['parts']:,}", number_text(p["rows"]), size_text(p["bytes"]), time_text(p["newest_part_ms"]),
             p["path"] or "(all)"]
            for p in listed
        ),
    )  # fmt: skip


@verb(LOOK)
def schema(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the columns with their types, which of them are required, and since when they are there."""
    from icedb.reader.diff import columns_of

    columns = columns_of(connection.open(uri).handle)
    if json:
        write_json(columns)
        return
    print_list(
        output(), ["column", "type", "null", "since", "partition by"],
        ([c.name, c.type, "no" if c.required else "yes", _since(c), _partition(c)] for c in columns),
    )  # fmt: skip


def _since(column: "ColumnInfo") -> str:
    if column.since_ms is None:
        return "" if column.expression is not None else "declared"
    at = time_text(column.since_ms, timespec="seconds")
    return at if column.since_exact else f"{at} or earlier"


def _partition(column: "ColumnInfo") -> str:
    return "the path alone" if column.expression == "" else column.expression or ""


@verb(LOOK)
def log(
    connection: Connection,
    uri: Uri,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that count no more, and wait for cleanup.")
    ] = False,
    json: Json = False,
) -> None:
    """List the log files, newest first: when, by whom, and what they hold."""
    from icedb.reader.history import log_files

    found = log_files(connection.open(uri).handle)
    shown = [f for f in found if everything or f.state == "current"]
    if json:
        write_json(shown)
        return
    console = output()
    print_list(
        console,
        ["time", ">epoch", ">lines", ">size", "holds", "log file"],
        (
            [time_text(f.at_ms), "" if f.epoch is None else str(f.epoch), "" if f.lines is None else f"{f.lines:,}",
             size_text(f.bytes), _holds(f), f.key.rpartition("/")[2]]
            for f in shown
        ),
        going=[(5,), (3,), (1,)],
    )  # fmt: skip
    if len(found) > len(shown):
        more = count_text(len(found) - len(shown), "more log file")
        console.print(Text(f"and {more} that count no more: --all lists them, cleanup deletes them", style="dim"))


def _holds(file: "LogFileInfo") -> Cell:
    if file.state != "current":
        return Text(file.state, style="dim")
    if file.void:
        return Text("nothing: a void", style="dim")
    told = [
        f"{count:,} {what}"
        for count, what in (
            (file.added_parts, "new"), (file.removed_parts, "removed"), (file.carried_parts, "carried"),
        )
        if count
    ]  # fmt: skip
    parts = f"parts: {', '.join(told)}" if told else "no part"
    parts = f"{file.kind}; {parts}" if file.kind else parts
    replaced = f"; {count_text(file.replaced_log_files, 'replaced log file')}" if file.replaced_log_files else ""
    return parts + replaced
