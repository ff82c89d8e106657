"""The verbs that maintain a table: merges, cleanup, drops, deletions, and how to undo them."""

import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

from icedb.cli.base.application import MAINTAIN, Connection, DryRun, Json, Uri, Yes, duration, run, time_option, verb
from icedb.cli.render.output import one_line, show, tell, time_text
from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.util.clock import SystemClock

if TYPE_CHECKING:
    from icedb.operations.rewrite.merge import MergeReport, Order

PinName = Annotated[str, typer.Argument(help="The pin's name.", show_default=False)]


@verb(MAINTAIN)
def orphans(
    connection: Connection,
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete/--dry-run", help="Delete them, or only tell.")] = False,
    min_age: Annotated[int | None, duration("--min-age", "Only older ones; default: a day.")] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Find parts that no log file and no undecided claim names, left by crashed writes; --delete deletes them."""
    table = connection.open(uri)
    run(lambda dry: table.delete_orphans(min_age_ms=min_age, dry_run=dry), dry_run=not delete, yes=yes, json=json)


@verb(MAINTAIN)
def merge(
    connection: Connection,
    uri: Uri,
    order: Annotated[
        Literal["oldest", "newest", "both"], typer.Option(help="Whose parts come first; both: by turns, with --watch.")
    ] = "oldest",
    part_bytes_max: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="Merge parts below this size; default: 128 MiB.", show_default=False),
    ] = None,
    watching: Annotated[
        bool, typer.Option("--watch", help="Again and again, until SIGINT or SIGTERM; the merge under way is finished.")
    ] = False,
    every: Annotated[int | None, duration("--every", "With --watch: how often; default: 5s.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Merge small parts, partition by partition, in one commit; with --watch whenever there are any."""
    if dry_run and watching:
        raise typer.BadParameter("--watch changes the table; leave --dry-run out, or look once.")
    if every is not None and not watching:
        raise typer.BadParameter("--every goes with --watch.")
    sizes: dict[str, Any] = {} if part_bytes_max is None else {"part_bytes_max": part_bytes_max}
    if watching:
        from icedb.operations.rewrite.watch import watch

        stop, every_ms = _stopped_by_signals(), 5_000 if every is None else every
        table = connection.open(uri)
        tell(Text(f"{table.uri}: merging every {every_ms / 1_000:g} s, until SIGINT or SIGTERM"))
        watch(
            table,
            stop=stop,
            orders=("newest", "oldest") if order == "both" else (order,),
            every_ms=every_ms,
            **sizes,
            on_merge=lambda order, report: typer.echo(_merge_line(order, report, json=json)),
            on_wait=lambda error, wait_ms: tell(Text(f"{one_line(error)} Trying again in {wait_ms / 1_000:g} s.")),
        )
        return
    if order == "both":
        raise typer.BadParameter("--order both goes with --watch; one merge has one order.")
    table = connection.open(uri)
    show(table.merge(order=order, dry_run=dry_run, **sizes), json=json)


def _stopped_by_signals() -> Event:
    """An event that SIGINT or SIGTERM sets; a second one does what it always does."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, usual[number])

    usual = {int(number): signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    return stop


def _merge_line(order: "Order", report: "MergeReport", *, json: bool) -> str:
    """One merge of a watch, in one line."""
    told = {
        "at": time_text(SystemClock().now_ms(), timespec="seconds"),
        "order": order,
        "merged_parts": report.merged_parts,
        "merged_bytes": report.merged_bytes,
        "new_parts": report.new_parts,
        "rows": report.rows,
        "dropped_groups": report.dropped_groups,
        "remaining": report.remaining,
        "log_file": report.commit.key,
    }
    if json:
        return msgspec.json.encode(told).decode()
    lost = f"; {report.dropped_groups:,} groups went to another commit" if report.dropped_groups else ""
    return (
        f"{told['at']} {order}: {report.merged_parts:,} parts ({report.merged_bytes:,} bytes) became "
        f"{report.new_parts:,}, {report.remaining:,} groups remain{lost}"
    )


@verb(MAINTAIN, "merge-log")
def merge_log(connection: Connection, uri: Uri, dry_run: DryRun = False, json: Json = False) -> None:
    """Merge small log files, so that opening the table stays cheap."""
    show(connection.open(uri).merge_log(dry_run=dry_run), json=json)


@verb(MAINTAIN)
def cleanup(
    connection: Connection,
    uri: Uri,
    grace: Annotated[int | None, duration("--grace", "Only what was superseded earlier; default: an hour.")] = None,
    allow_short_grace: Annotated[
        bool, typer.Option("--allow-short-grace", help="Nothing else uses the table now: any grace period will do.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete what merges, drops and deletions superseded longer than the grace period ago."""
    table = connection.open(uri)
    run(
        lambda dry: table.cleanup(grace_ms=grace, allow_short_grace=allow_short_grace, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
    )


@verb(MAINTAIN)
def drop(
    connection: Connection,
    uri: Uri,
    partitions: Annotated[list[str] | None, typer.Argument(help="Paths such as d=2026-11-21.")] = None,
    where: Annotated[str | None, typer.Option(help="A DuckDB predicate over the partition columns.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Drop whole partitions: by their paths, or by a predicate over the partition columns."""
    if bool(partitions) == bool(where):
        raise typer.BadParameter("name partitions, or give --where; one of the two.")
    table = connection.open(uri)
    chosen = where or partitions or []
    try:
        run(lambda dry: table.drop_partitions(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)
    except InvalidPartitionExpression as error:
        error.args = (f"{error} A condition over other columns is for icedb delete.",)
        raise


@verb(MAINTAIN)
def delete(
    connection: Connection,
    uri: Uri,
    where: Annotated[str, typer.Option(help="A DuckDB condition over the table's columns.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete the rows for which a condition is true. Cleanup deletes the objects that held them, in time."""
    table = connection.open(uri)
    run(lambda dry: table.delete(where, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN)
def repair(
    connection: Connection,
    uri: Uri,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="COLUMN=TYPE", help="The type that a column is to have.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Give one type to each column of which log files say several: such a table cannot be read."""
    table = connection.open(uri)
    chosen = dict(map(_column_type, types or ()))
    run(lambda dry: table.repair_types(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN, "repair-spec")
def repair_spec(
    connection: Connection,
    uri: Uri,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a log that records no spec: JSON with the keys of _table.json.",
            show_default=False,
        ),
    ] = None,
    log_uri: Annotated[
        str | None, typer.Option("--log-uri", metavar="URI", help="Where the log is, if not beside the parts.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Create a lost _table.json anew, from the spec that the log records. Nothing is replaced."""
    from icedb.table import Table

    said = None if spec is None else _spec_of(spec)
    show(Table.repair_spec(uri, spec=said, log_uri=log_uri, dry_run=dry_run), json=json)


def _spec_of(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidOption(f"'{path}' is not one JSON object: {error}. Write the keys of '_table.json'.") from None


def _column_type(text: str) -> tuple[str, str]:
    column, equals, type_ = text.rpartition("=")
    if not (column and equals and type_):
        raise typer.BadParameter(f"{text!r} is no column and type; write price=DOUBLE.")
    return column, type_


@verb(MAINTAIN)
def restore(
    connection: Connection,
    uri: Uri,
    as_of: Annotated[Any, time_option("--as-of", "The time to go back to.")],
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Restore also to a time at which the table had no rows.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make the table what it was at a time. Can be undone by another restore, to the time before it."""
    table = connection.open(uri)
    run(lambda dry: table.restore(as_of, allow_empty=allow_empty, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN)
def pin(
    connection: Connection,
    uri: Uri,
    name: PinName,
    as_of: Annotated[Any, time_option("--as-of", "The time to keep; default: the newest commit's.")] = None,
    expires: Annotated[int | None, duration("--expires", "How long from now; default: until unpin.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Keep the snapshot at a time readable, whatever cleanup does."""
    until = None if expires is None else timedelta(milliseconds=expires)
    show(connection.open(uri).pin(name, as_of, expires=until, dry_run=dry_run), json=json, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class Unpinned:
    """A pin that was removed."""

    table: str
    name: str
    dry_run: bool


@verb(MAINTAIN)
def unpin(
    connection: Connection, uri: Uri, name: PinName, dry_run: DryRun = False, yes: Yes = False, json: Json = False
) -> None:
    """Remove a pin. The next cleanup deletes what only this pin needed."""
    table = connection.open(uri)

    def operation(dry: bool) -> Unpinned:
        if not table.unpin(name, dry_run=dry):
            known = [p.name for p in table.pins()]
            raise InvalidOption(f"{table.uri}: there is no pin '{name}' (there are {known or 'none'}).")
        return Unpinned(table.uri, name, dry)

    run(operation, dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN)
def pins(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the pins."""
    show(connection.open(uri).pins(), json=json)
