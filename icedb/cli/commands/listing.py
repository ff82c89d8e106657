"""Verbs that list the parts (data files), partitions, columns and log files of a table."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from icedb.cli.base.application import INSPECT, Connection, Exit, Json, Uri, time_option, verb
from icedb.cli.render.output import one_line, output, print_message, write_json
from icedb.cli.render.text_tables import Cell, print_list
from icedb.errors import IceDBError, InvalidOption
from icedb.util.counts import count_text, number_text, size_text
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.reader.history import LogFileInfo
    from icedb.storage.parts import Part

#: The figures of a table that `list` prints.
_TABLE_FIELDS = ("uri", "rows", "parts", "bytes", "newest_part_ms", "error")
# Paths in one write to standard output.
_PATHS_PER_WRITE = 10_000


@verb(INSPECT, "icedb list s3://lake")
def list_tables(
    connection: Connection,
    root: Annotated[str, typer.Argument(help="A folder, s3://bucket or s3://bucket/prefix.", show_default=False)],
    json: Json = False,
) -> None:
    """List the tables under a root, with their rows, parts and bytes. Exit with status 2 if one cannot be read."""
    from icedb.transaction.table_place import find_tables

    if "://" not in root and not Path(root).expanduser().exists():
        raise InvalidOption(f"{root}: there is no such folder. Correct the path.")
    listed = [_figures(connection, uri) for uri in find_tables(root)]
    failed = [one for one in listed if one["error"] is not None]
    if json:
        write_json(listed)
    elif not listed:
        output().print(Text(f"No table is at {root} or below it."), soft_wrap=True)
    else:
        print_list(
            output(),
            [">rows", ">parts", ">size", "newest part", "table"],
            (
                [number_text(t["rows"]), number_text(t["parts"]), size_text(t["bytes"] or 0),
                 iso_text(t["newest_part_ms"], timespec="seconds") if t["newest_part_ms"] else "", t["uri"]]
                for t in listed if t["error"] is None
            ),
            optional=[(3,), (1,)],
        )  # fmt: skip
    for one in failed:
        print_message(Text.assemble(("error: ", "bold red"), one["error"]))
    if failed:
        raise typer.Exit(Exit.FAILED)


def _figures(connection: Connection, uri: str) -> dict[str, Any]:
    """Return the figures of a table, or the error if it cannot be read, so that the others are still listed."""
    try:
        snapshot = connection.open(uri).snapshot()
    except IceDBError as error:
        return dict.fromkeys(_TABLE_FIELDS) | {"uri": uri, "error": one_line(error)}
    newest_ms = max((part.created_ms for part in snapshot.parts), default=None)
    size = sum(part.bytes for part in snapshot.parts)
    return dict(zip(_TABLE_FIELDS, (uri, snapshot.rows, len(snapshot.parts), size, newest_ms, None), strict=True))


@verb(INSPECT, "icedb parts s3://lake/events --partition d=2026-11-21")
def parts(
    connection: Connection,
    uri: Uri,
    where: Annotated[
        str | None,
        typer.Option(metavar="PREDICATE", help="List parts that may have a matching row, without opening any."),
    ] = None,
    partitions: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="PATH", help="List parts of this partition: d=2026-11-21. May be repeated."
        ),
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "List parts that were live at this time.", default="now")] = None,
    form: Annotated[
        Literal["table", "paths"],
        typer.Option("--format", help="Print a table, or one path a line for another engine."),
    ] = "table",
    null: Annotated[
        bool, typer.Option("--null", "-0", help="With --format paths: end each path with a zero byte, for xargs -0.")
    ] = False,
    json: Json = False,
) -> None:
    """List the live parts: the Parquet files that make up the table."""
    if null and form != "paths":
        raise typer.BadParameter("--null requires --format paths.")
    if json and form == "paths":
        raise typer.BadParameter("--json and --format paths exclude each other.")
    snapshot = connection.open(uri).snapshot(as_of)
    listed = snapshot.files(where)
    if partitions:
        _check_partitions(partitions, set(snapshot.partitions()))
        listed = [part for part in listed if part.partition in partitions]
    if form == "paths":
        _write_paths(listed, "\0" if null else "\n")
    elif json:
        write_json([_part(part) for part in listed])
    else:
        print_list(
            output(),
            [">rows", ">size", "created", "path"],
            ([number_text(p.rows), size_text(p.bytes), iso_text(p.created_ms), p.path] for p in listed),
        )


def _check_partitions(paths: Iterable[str], existing: set[str]) -> None:
    for path in paths:
        if path not in existing:
            raise typer.BadParameter(f"there is no partition '{path}'. List the partitions with icedb partitions.")


def _write_paths(parts: list["Part"], end: str) -> None:
    for start in range(0, len(parts), _PATHS_PER_WRITE):
        sys.stdout.write("".join(part.path + end for part in parts[start : start + _PATHS_PER_WRITE]))
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


@verb(INSPECT, "icedb partitions s3://lake/events --where \"d >= '2026-11-01'\"")
def partitions(
    connection: Connection,
    uri: Uri,
    where: Annotated[
        str | None,
        typer.Option(metavar="PREDICATE", help="List partitions that match this predicate: \"d > '2026-11'\"."),
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "List partitions as of this time.", default="now")] = None,
    json: Json = False,
) -> None:
    """List the partitions that have live parts, with their parts, rows and bytes."""
    snapshot = connection.open(uri).snapshot(as_of)
    chosen = None if where is None else set(snapshot.partitions(where))
    by_path: dict[str, dict[str, Any]] = {}
    for part in snapshot.parts:
        if chosen is not None and part.partition not in chosen:
            continue
        one = by_path.setdefault(
            part.partition, {"path": part.partition, "parts": 0, "rows": 0, "bytes": 0, "newest_part_ms": 0}
        )
        one["parts"] += 1
        one["rows"] = None if one["rows"] is None or part.rows is None else one["rows"] + part.rows
        one["bytes"] += part.bytes
        one["newest_part_ms"] = max(one["newest_part_ms"], part.created_ms)
    listed = [one for _, one in sorted(by_path.items())]
    if json:
        write_json(listed)
        return
    print_list(
        output(),
        [">parts", ">rows", ">size", "newest part", "partition"],
        (
            [f"{p['parts']:,}", number_text(p["rows"]), size_text(p["bytes"]), iso_text(p["newest_part_ms"]),
             p["path"] or "(all)"]
            for p in listed
        ),
    )  # fmt: skip


@verb(INSPECT, "icedb schema s3://lake/events")
def schema(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the columns with their types, whether they may be null, and when they were added."""
    from icedb.reader.diff import columns_of

    columns = columns_of(connection.open(uri).handle)
    if json:
        write_json(columns)
        return
    print_list(
        output(), ["column", "type", "null", "since", "partition by"],
        ([c.name, c.type, "no" if c.required else "yes", c.since_text, c.partition_text] for c in columns),
    )  # fmt: skip


@verb(INSPECT, "icedb log s3://lake/events --all")
def log(
    connection: Connection,
    uri: Uri,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list superseded log files that cleanup has not deleted yet.")
    ] = False,
    json: Json = False,
) -> None:
    """List the log files, newest first, with the time and the content of each."""
    from icedb.reader.history import log_files

    files = log_files(connection.open(uri).handle)
    listed = [f for f in files if everything or f.state == "current"]
    if json:
        write_json(listed)
        return
    console = output()
    print_list(
        console,
        ["time", ">epoch", ">lines", ">size", "holds", "log file"],
        (
            [iso_text(f.at_ms), "" if f.epoch is None else str(f.epoch), "" if f.lines is None else f"{f.lines:,}",
             size_text(f.bytes), _holds(f), f.key.rpartition("/")[2]]
            for f in listed
        ),
        optional=[(5,), (3,), (1,)],
    )  # fmt: skip
    if len(files) > len(listed):
        more = count_text(len(files) - len(listed), "more log file")
        console.print(Text(f"and {more} that are superseded: --all lists them, cleanup deletes them", style="dim"))


def _holds(file: "LogFileInfo") -> Cell:
    if file.state != "current":
        return Text(file.state, style="dim")
    if file.void:
        return Text("nothing: a void", style="dim")
    counts = [
        f"{count:,} {state}"
        for count, state in (
            (file.added_parts, "new"), (file.removed_parts, "removed"), (file.carried_parts, "carried"),
        )
        if count
    ]  # fmt: skip
    parts = f"parts: {', '.join(counts)}" if counts else "no part"
    parts = f"{file.kind}; {parts}" if file.kind else parts
    replaced = f"; {count_text(file.replaced_log_files, 'replaced log file')}" if file.replaced_log_files else ""
    return parts + replaced
