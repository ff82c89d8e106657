"""Verbs that maintain a table: merge (compaction), cleanup (VACUUM), drop, delete, repair, restore and pins (tags)."""

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

from icedb.cli.base.application import (
    MAINTAIN,
    Connection,
    DryRun,
    Json,
    Uri,
    Yes,
    duration,
    run,
    size,
    time_option,
    verb,
)
from icedb.cli.base.inputs import Memory
from icedb.cli.render.command_reports import UnpinReport
from icedb.cli.render.outcomes import outcome_of, wait_text
from icedb.cli.render.output import one_line, print_message
from icedb.cli.render.report_text import show
from icedb.errors import InvalidOption, InvalidPartitionExpression
from icedb.util.clock import SystemClock
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.operations.rewrite.merge import MergeReport, Order

PinName = Annotated[str, typer.Argument(help="Name of the pin.", show_default=False)]


@verb(MAINTAIN, "icedb orphans s3://lake/events --delete")
def orphans(
    connection: Connection,
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete/--dry-run", help="Delete the orphans, or only list them.")] = False,
    min_age_ms: Annotated[
        int | None, duration("--min-age", "Skip parts that are younger than this.", default="24h")
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """List or delete orphans: parts of failed writes that no log file and no undecided claim names."""
    table = connection.open(uri)
    run(lambda dry: table.delete_orphans(min_age_ms=min_age_ms, dry_run=dry), dry_run=not delete, yes=yes, json=json)


@verb(MAINTAIN, "icedb merge s3://lake/events --order newest")
def merge(
    connection: Connection,
    uri: Uri,
    order: Annotated[
        Literal["oldest", "newest", "both"],
        typer.Option(help="Merge the oldest or the newest partitions first; both: alternate, with --watch."),
    ] = "oldest",
    part_bytes_max: Annotated[
        int | None, size("--part-bytes-max", "Merge parts below this size.", default="128 MiB")
    ] = None,
    max_time: Annotated[
        int | None,
        duration("--max-time", "Merge repeatedly for this time, with a commit for each merge.", default="one merge"),
    ] = None,
    memory_bytes: Memory = None,
    watching: Annotated[
        bool, typer.Option("--watch", help="Repeat until SIGINT or SIGTERM, which let a running merge finish.")
    ] = False,
    every: Annotated[int | None, duration("--every", "With --watch: merge at this interval.", default="5s")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Merge small parts into larger ones (compaction, OPTIMIZE), in one commit."""
    if dry_run and watching:
        raise typer.BadParameter("--watch excludes --dry-run. Run the dry run once, without --watch.")
    if every is not None and not watching:
        raise typer.BadParameter("--every requires --watch.")
    if max_time is not None and watching:
        raise typer.BadParameter("--watch has no end. Pass it without --max-time.")
    if memory_bytes is not None and watching:
        raise typer.BadParameter("--watch excludes --memory. Pass --max-time instead of --watch.")
    sizes: dict[str, Any] = {} if part_bytes_max is None else {"part_bytes_max": part_bytes_max}
    if watching:
        from icedb.operations.rewrite.watch import watch

        stop, every_ms = _stop_on_signals(), 5_000 if every is None else every
        table = connection.open(uri)
        print_message(Text(f"{table.uri}: merging every {every_ms / 1_000:g} s until SIGINT or SIGTERM"))
        watch(
            table.handle,
            stop=stop,
            orders=("newest", "oldest") if order == "both" else (order,),
            every_ms=every_ms,
            **sizes,
            on_merge=lambda order, report: typer.echo(_merge_line(order, report, json=json)),
            on_wait=lambda error, wait_ms: print_message(Text(f"{one_line(error)} Retrying in {wait_ms / 1_000:g} s.")),
        )
        return
    if order == "both":
        raise typer.BadParameter("--order both requires --watch. Without it, pass oldest or newest.")
    table = connection.open(uri)
    max_seconds = None if max_time is None else max_time / 1_000
    show(
        table.merge(order=order, max_seconds=max_seconds, memory_bytes=memory_bytes, dry_run=dry_run, **sizes),
        json=json,
    )


def _stop_on_signals() -> Event:
    """Return an event that SIGINT or SIGTERM sets. A second signal has its usual effect."""
    stop = Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, usual[number])

    usual = {int(number): signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    return stop


def _merge_line(order: "Order", report: "MergeReport", *, json: bool) -> str:
    """Return the line that a watch prints for one merge."""
    fields = {
        "at": iso_text(SystemClock().now_ms(), timespec="seconds"),
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
        return msgspec.json.encode(fields).decode()
    outcome = replace(outcome_of(report), note="").sentence(dry_run=False)  # the next merge comes without a command
    return f"{fields['at']} {order}: {outcome[:1].lower()}{outcome[1:]}"


@verb(MAINTAIN, "icedb merge-log s3://lake/events")
def merge_log(connection: Connection, uri: Uri, dry_run: DryRun = False, json: Json = False) -> None:
    """Merge small log files, so that opening the table stays fast."""
    show(connection.open(uri).merge_log(dry_run=dry_run), json=json)


@verb(MAINTAIN, "icedb cleanup s3://lake/events --dry-run")
def cleanup(
    connection: Connection,
    uri: Uri,
    grace_ms: Annotated[
        int | None, duration("--grace", "Keep objects that were superseded within this time.", default="1h")
    ] = None,
    allow_short_grace: Annotated[
        bool,
        typer.Option(
            "--allow-short-grace", help="Accept a short grace period, because nothing else uses the table now."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete objects that were superseded before the grace period (VACUUM)."""
    from icedb.operations.retention.superseded import superseded_objects

    table = connection.open(uri)
    run(
        lambda dry: table.cleanup(grace_ms=grace_ms, allow_short_grace=allow_short_grace, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
        nothing=lambda: wait_text(superseded_objects(table.handle, grace_ms=grace_ms), now_ms=SystemClock().now_ms()),
    )


@verb(MAINTAIN, "icedb drop s3://lake/events d=2026-11-21")
def drop(
    connection: Connection,
    uri: Uri,
    partitions: Annotated[list[str] | None, typer.Argument(help="Paths of partitions, such as d=2026-11-21.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Drop the partitions that match this DuckDB predicate over partition columns.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Drop whole partitions, chosen by path or by a predicate over the partition columns."""
    if bool(partitions) == bool(where):
        raise typer.BadParameter("Pass either paths of partitions, or --where.")
    table = connection.open(uri)
    chosen = where or partitions or []
    try:
        run(lambda dry: table.drop_partitions(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)
    except InvalidPartitionExpression as error:
        error.args = (f"{error} For a condition over other columns, run icedb delete.",)
        raise


@verb(MAINTAIN, "icedb delete s3://lake/events --where 'user_id = 7'")
def delete(
    connection: Connection,
    uri: Uri,
    where: Annotated[str, typer.Option(help="Delete the rows that match this DuckDB predicate.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete rows that match a predicate. A later cleanup deletes the objects that contained them."""
    table = connection.open(uri)
    run(lambda dry: table.delete(where, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN, "icedb repair s3://lake/events --type price=DOUBLE")
def repair(
    connection: Connection,
    uri: Uri,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="COLUMN=TYPE", help="Give a column this type. May be repeated."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Give one type to each column that has different types in the log. Such a table cannot be read."""
    table = connection.open(uri)
    chosen = dict(map(_column_type, types or ()))
    run(lambda dry: table.repair_types(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN, "icedb repair-spec s3://lake/events")
def repair_spec(
    connection: Connection,
    uri: Uri,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="If the log records no spec, use this JSON file with the keys of _table.json.",
            show_default=False,
        ),
    ] = None,
    log_uri: Annotated[
        str | None,
        typer.Option("--log-uri", metavar="URI", help="Read the log at this address instead of with the parts."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Create a lost _table.json again from the spec in the log. No object is replaced."""
    from icedb.table import Table

    document = None if spec is None else _spec_of(spec)
    show(Table.repair_spec(uri, spec=document, log_uri=log_uri, dry_run=dry_run), json=json)


def _spec_of(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidOption(f"'{path}' is not one JSON object: {error}. Write the keys of '_table.json'.") from None


def _column_type(text: str) -> tuple[str, str]:
    column, equals, type_ = text.rpartition("=")
    if not (column and equals and type_):
        raise typer.BadParameter(f"{text!r} is not a column and a type. Write price=DOUBLE.")
    return column, type_


@verb(MAINTAIN, "icedb restore s3://lake/events --as-of 2026-11-21T10:00:00Z")
def restore(
    connection: Connection,
    uri: Uri,
    as_of: Annotated[Any, time_option("--as-of", "Restore the table as of this time.")],
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a time at which the table had no rows.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Restore the table as of a time, in one commit. To undo it, restore the time before this commit."""
    table = connection.open(uri)
    run(lambda dry: table.restore(as_of, allow_empty=allow_empty, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN, "icedb pin s3://lake/events before-the-move --expires 30d")
def pin(
    connection: Connection,
    uri: Uri,
    name: PinName,
    as_of: Annotated[Any, time_option("--as-of", "Pin this time.", default="time of the newest commit")] = None,
    expires: Annotated[int | None, duration("--expires", "Remove the pin after this time.", default="never")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Create a pin (a tag): keep the snapshot of a time readable, also after cleanups."""
    until = None if expires is None else timedelta(milliseconds=expires)
    show(connection.open(uri).pin(name, as_of, expires=until, dry_run=dry_run), json=json, dry_run=dry_run)


@verb(MAINTAIN, "icedb unpin s3://lake/events before-the-move")
def unpin(
    connection: Connection, uri: Uri, name: PinName, dry_run: DryRun = False, yes: Yes = False, json: Json = False
) -> None:
    """Remove a pin. The next cleanup deletes the objects that only this pin kept."""
    table = connection.open(uri)

    def operation(dry: bool) -> UnpinReport:
        if not table.unpin(name, dry_run=dry):
            names = [p.name for p in table.pins()]
            raise InvalidOption(f"{table.uri}: there is no pin '{name}'. Existing pins: {names or 'none'}.")
        return UnpinReport(table.uri, name, dry)

    run(operation, dry_run=dry_run, yes=yes, json=json)


@verb(MAINTAIN, "icedb pins s3://lake/events")
def pins(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the pins with their times."""
    show(connection.open(uri).pins(), json=json)
