"""The command `icedb`: look at a table and maintain it.

A thin shell around `Table`: each verb is one method. Results go to standard output, as a table or with `--json` as one
JSON document; an error is one line on standard error. Exit status: 0 done, 1 `verify` found problems, 2 anything else.
What deletes has `--dry-run`, and on a terminal shows that first and asks, unless `--yes`.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Annotated, Any, Literal

import msgspec

from icedb.clock import SystemClock
from icedb.durations import parse_duration
from icedb.errors import IceDBError, InvalidOption
from icedb.extras import imported
from icedb.maintenance.condition import Thresholds
from icedb.maintenance.merge import PART_BYTES_MAX, MergeReport, Order
from icedb.proxy.check import CheckedBucket, check_config
from icedb.table import Table
from icedb.times import AsOf, parse_as_of
from icedb.watch import watch

try:
    import typer
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Rows
    from rich.text import Text
    from typer.core import TyperGroup

    from icedb.cli_info import info_document, print_info
    from icedb.cli_output import one_line, output, report_rows, show, tell, time_text, write_json
except ImportError:
    raise SystemExit("icedb: the command needs typer and rich: pip install 'icedb-dagster[cli]'") from None

__all__ = ["app", "main"]

PROBLEMS = 1
FAILED = 2

_LIMITS = Thresholds()


class _Verbs(TyperGroup):
    """Errors of IceDB and of the operating system become one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except (IceDBError, OSError) as error:
            tell(Text.assemble(("error: ", "bold red"), one_line(error)))
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    name="icedb",
    cls=_Verbs,
    help="Look at an IceDB table and maintain it. URI: s3://bucket/prefix or a folder; credentials come from the "
    "environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _duration_ms(text: str) -> int:
    try:
        return round(parse_duration(text) / timedelta(milliseconds=1))
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None


def _time(text: str) -> AsOf:
    try:
        return parse_as_of(text, table="TIME")
    except InvalidOption:
        raise typer.BadParameter(
            f"{text!r} is no time with a zone; write 2026-11-21T10:00:00Z or unix milliseconds."
        ) from None


Uri = Annotated[str, typer.Argument(help="The table: s3://bucket/prefix or a folder.", show_default=False)]
Endpoint = Annotated[str | None, typer.Option("--endpoint-url", help="The S3 server, when it is not AWS.")]
Region = Annotated[str | None, typer.Option("--region", help="The bucket's region.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and tell what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
PinName = Annotated[str, typer.Argument(help="The pin's name.", show_default=False)]


def _duration(flag: str, text: str) -> Any:
    return typer.Option(flag, parser=_duration_ms, metavar="DURATION", help=text)


def _limit(text: str) -> Any:
    return typer.Option(metavar="NUMBER", help=text)


def _time_option(flag: str, text: str) -> Any:
    return typer.Option(flag, parser=_time, metavar="TIME", help=f"{text} ISO with zone, or unix milliseconds.")


# ------------------------------------------------------------------------------------------------ looking


@app.command()
def info(
    uri: Uri,
    hot_parts: Annotated[int, _limit("Small parts of a partition that rows arrive in.")] = _LIMITS.hot_parts,
    cold_parts: Annotated[int, _limit("Small parts of a partition that none arrive in.")] = _LIMITS.cold_parts,
    hot: Annotated[
        int | None, _duration("--hot", "How long after its last rows a partition is hot; default: 1h.")
    ] = None,
    part_bytes_max: Annotated[int, _limit("A part below this size is small.")] = _LIMITS.part_bytes_max,
    log_files: Annotated[int, _limit("Log files that whoever opens the table reads.")] = _LIMITS.log_files,
    expired_bytes: Annotated[int, _limit("Bytes that a cleanup would delete.")] = _LIMITS.expired_bytes,
    expired_objects: Annotated[int, _limit("Objects that a cleanup would delete.")] = _LIMITS.expired_objects,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """What the table is like and which maintenance is due: from half of each threshold on. Changes nothing."""
    thresholds = Thresholds(
        hot_parts=hot_parts,
        cold_parts=cold_parts,
        hot_ms=_LIMITS.hot_ms if hot is None else hot,
        part_bytes_max=part_bytes_max,
        log_files=log_files,
        expired_bytes=expired_bytes,
        expired_objects=expired_objects,
    )
    condition = _open(uri, endpoint_url, region).condition(thresholds)
    if json:
        write_json(info_document(condition, thresholds))
        return
    given = {"--endpoint-url": endpoint_url, "--region": region}
    connection = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    print_info(output(), condition, thresholds, uri=uri, connection=connection)


@app.command()
def verify(
    uri: Uri,
    deep: Annotated[bool, typer.Option("--deep", help="Fetch every part and compare digests and all rows.")] = False,
    footers: Annotated[
        bool, typer.Option("--footers/--no-footers", help="Compare the parts' row counts, or open no part at all.")
    ] = True,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Look at every object of a table, change nothing, list every problem. Exit status 1 if there is an error."""
    report = _open(uri, endpoint_url, region).verify(deep=deep, footers=footers)
    show(report, json=json)
    if not report.ok:
        raise typer.Exit(PROBLEMS)


# ------------------------------------------------------------------------------------------------ maintaining


@app.command()
def orphans(
    uri: Uri,
    delete: Annotated[bool, typer.Option("--delete/--dry-run", help="Delete them, or only tell.")] = False,
    min_age: Annotated[int | None, _duration("--min-age", "Only older ones; default: a day.")] = None,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Find parts that no log file and no claim names, left by crashed writes; --delete deletes them."""
    table = _open(uri, endpoint_url, region)
    _run(lambda dry: table.sweep_orphans(min_age_ms=min_age, dry_run=dry), dry_run=not delete, yes=yes, json=json)


@app.command()
def merge(
    uri: Uri,
    order: Annotated[
        Literal["oldest", "newest", "both"], typer.Option(help="Whose parts come first; both: by turns, with --watch.")
    ] = "oldest",
    part_bytes_max: Annotated[int, typer.Option(min=1, help="Merge parts below this size.")] = PART_BYTES_MAX,
    watching: Annotated[
        bool, typer.Option("--watch", help="Again and again, until SIGINT or SIGTERM; the merge under way is finished.")
    ] = False,
    every: Annotated[int | None, _duration("--every", "With --watch: how often; default: 5s.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Merge small parts, partition by partition, in one commit; with --watch whenever there are any."""
    if dry_run and watching:
        raise typer.BadParameter("--watch changes the table; leave --dry-run out, or look once.")
    if every is not None and not watching:
        raise typer.BadParameter("--every goes with --watch.")
    if watching:
        stop, every_ms = _stopped_by_signals(), 5_000 if every is None else every
        table = _open(uri, endpoint_url, region)
        tell(Text(f"{table.uri}: merging every {every_ms / 1_000:g} s, until SIGINT or SIGTERM"))
        watch(
            table,
            stop=stop,
            orders=("newest", "oldest") if order == "both" else (order,),
            every_ms=every_ms,
            part_bytes_max=part_bytes_max,
            on_merge=lambda order, report: typer.echo(_merge_line(order, report, json=json)),
            on_wait=lambda error, wait_ms: tell(Text(f"{one_line(error)} Trying again in {wait_ms / 1_000:g} s.")),
        )
        return
    if order == "both":
        raise typer.BadParameter("--order both goes with --watch; one merge has one order.")
    table = _open(uri, endpoint_url, region)
    show(table.merge(order=order, part_bytes_max=part_bytes_max, dry_run=dry_run), json=json)


def _stopped_by_signals() -> Event:
    """An event that SIGINT or SIGTERM sets; a second one does what it always does."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, usual[number])

    usual = {int(number): signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    return stop


def _merge_line(order: Order, report: MergeReport, *, json: bool) -> str:
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


@app.command("merge-log")
def merge_log(
    uri: Uri, dry_run: DryRun = False, json: Json = False, endpoint_url: Endpoint = None, region: Region = None
) -> None:
    """Merge small log files, so that opening the table stays cheap."""
    show(_open(uri, endpoint_url, region).merge_log(dry_run=dry_run), json=json)


@app.command()
def cleanup(
    uri: Uri,
    grace: Annotated[int | None, _duration("--grace", "Only what was superseded earlier; default: an hour.")] = None,
    allow_short_grace: Annotated[
        bool, typer.Option("--allow-short-grace", help="Nothing else uses the table now: any grace period will do.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Delete what merges, drops and deletions superseded longer than the grace period ago."""
    table = _open(uri, endpoint_url, region)
    _run(
        lambda dry: table.cleanup(grace_ms=grace, allow_short_grace=allow_short_grace, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
    )


@app.command()
def drop(
    uri: Uri,
    partitions: Annotated[list[str] | None, typer.Argument(help="Paths such as d=2026-11-21.")] = None,
    where: Annotated[str | None, typer.Option(help="A DuckDB predicate over the partition columns.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Drop whole partitions: by their paths, or by a predicate over the partition columns."""
    if bool(partitions) == bool(where):
        raise typer.BadParameter("name partitions, or give --where; one of the two.")
    table = _open(uri, endpoint_url, region)
    chosen = where or partitions or []
    _run(lambda dry: table.drop_partitions(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@app.command()
def delete(
    uri: Uri,
    where: Annotated[str, typer.Option(help="A DuckDB condition over the table's columns.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Delete the rows for which a condition is true. Cleanup deletes the objects that held them, in time."""
    table = _open(uri, endpoint_url, region)
    _run(lambda dry: table.delete(where, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@app.command()
def repair(
    uri: Uri,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="COLUMN=TYPE", help="The type that a column is to have.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Give one type to each column of which log files say several: such a table cannot be read."""
    table = _open(uri, endpoint_url, region)
    chosen = dict(map(_column_type, types or ()))
    _run(lambda dry: table.repair(chosen, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


def _column_type(text: str) -> tuple[str, str]:
    column, equals, type_ = text.rpartition("=")
    if not (column and equals and type_):
        raise typer.BadParameter(f"{text!r} is no column and type; write price=DOUBLE.")
    return column, type_


@app.command("import")
def import_files(
    source: Annotated[str, typer.Argument(help="A folder, bucket prefix, file or glob of Parquet.")],
    uri: Uri,
    create: Annotated[bool, typer.Option("--create", help="Create the table, laid out as the files are.")] = False,
    sort_by: Annotated[
        list[str] | None, typer.Option("--sort-by", metavar="COLUMN", help="With --create: sort new parts by it.")
    ] = None,
    trust_paths: Annotated[
        bool, typer.Option("--trust-paths", help="Do not compare the rows with the folders that they lie in.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Decode every row, and note digests.")] = False,
    first_time: Annotated[
        bool, typer.Option("--first-time", help="None of the files was ever imported, also not long ago.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Make existing Parquet part of the table as it is: files below its _data by their names, others as copies."""
    if sort_by and not create:
        raise typer.BadParameter("--sort-by goes with --create; a table that is there has its own.")
    options = _storage_options(endpoint_url, region)

    def operation(dry: bool) -> object:
        if create and not Table.exists(uri, storage_options=options):
            return Table.adopt(
                uri, source, sort_by=sort_by or (), storage_options=options, trust_paths=trust_paths, verify=verify,
                dry_run=dry,
            )  # fmt: skip
        table = Table.open(uri, storage_options=options)
        if sort_by and list(table.spec.sort_by) != sort_by:
            raise typer.BadParameter("--sort-by: the table is there already, and sorted otherwise. Leave it out.")
        return table.import_files(source, trust_paths=trust_paths, verify=verify, first_time=first_time, dry_run=dry)

    _run(operation, dry_run=dry_run, yes=yes, json=json)


# ------------------------------------------------------------------------------------------------ undoing, keeping


@app.command()
def restore(
    uri: Uri,
    as_of: Annotated[Any, _time_option("--as-of", "The time to go back to.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Make the table what it was at a time. Can be undone by another restore, to the time before it."""
    table = _open(uri, endpoint_url, region)
    _run(lambda dry: table.restore(as_of, dry_run=dry), dry_run=dry_run, yes=yes, json=json)


@app.command()
def pin(
    uri: Uri,
    name: PinName,
    as_of: Annotated[Any, _time_option("--as-of", "The time to keep; default: the newest commit's.")] = None,
    expires: Annotated[int | None, _duration("--expires", "How long from now; default: until unpin.")] = None,
    json: Json = False,
    endpoint_url: Endpoint = None,
    region: Region = None,
) -> None:
    """Keep the snapshot at a time readable, whatever cleanup does."""
    until = None if expires is None else timedelta(milliseconds=expires)
    show(_open(uri, endpoint_url, region).pin(name, as_of, expires=until), json=json)


@app.command()
def unpin(uri: Uri, name: PinName, endpoint_url: Endpoint = None, region: Region = None) -> None:
    """Remove a pin. The next cleanup deletes what only this pin needed."""
    if not _open(uri, endpoint_url, region).unpin(name):
        tell(Text(f"{uri}: there is no pin '{name}'."))
        raise typer.Exit(FAILED)


@app.command()
def pins(uri: Uri, json: Json = False, endpoint_url: Endpoint = None, region: Region = None) -> None:
    """List the pins."""
    show(_open(uri, endpoint_url, region).pins(), json=json)


# ------------------------------------------------------------------------------------------------ serving


@app.command()
def proxy(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The TOML file.", show_default=False)],
    check: Annotated[
        bool,
        typer.Option("--check", help="Do not serve: open every table that the file names, and tell what is shown."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: print one JSON document.")] = False,
) -> None:
    """Serve tables as buckets of S3, read-only: each tenant's own live parts. Until SIGINT or SIGTERM."""
    if check:
        checked = check_config(config)
        if json:
            write_json(checked)
        else:
            output().print(_checked_rows(checked))
        for bucket in checked:
            if bucket.warning is not None:
                tell(
                    Text.assemble(
                        ("warning: ", "yellow"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.warning}"
                    )
                )
        wrong = [bucket for bucket in checked if bucket.error is not None]
        for bucket in wrong:
            tell(Text.assemble(("error: ", "bold red"), f"{bucket.tenant}, bucket '{bucket.bucket}': {bucket.error}"))
        if wrong:
            raise typer.Exit(FAILED)
        return
    if json:
        raise typer.BadParameter("--json goes with --check.")
    for module in ("starlette", "uvicorn", "uvloop", "h11", "prometheus_client", "httpx"):
        imported(module, extra="proxy")
    from icedb.proxy.server import serve

    serve(config, tell=lambda line: tell(Text(line)))


def _checked_rows(checked: Sequence[CheckedBucket]) -> Rows:
    rows = Rows("tenant", "bucket", "table", "parts", "rows", box=SIMPLE_HEAD, pad_edge=False)
    for one in checked:
        figures = ("unknown" if n is None else f"{n:,}" for n in (one.parts, one.rows))
        rows.add_row(Text(one.tenant), Text(one.bucket), Text(one.table), *figures)
    return rows


# ------------------------------------------------------------------------------------------------ shared


def main() -> None:
    """The entry point."""
    app()


def _open(uri: str, endpoint_url: str | None, region: str | None) -> Table:
    return Table.open(uri, storage_options=_storage_options(endpoint_url, region))


def _storage_options(endpoint_url: str | None, region: str | None) -> dict[str, str]:
    given = {"AWS_ENDPOINT_URL": endpoint_url, "AWS_REGION": region}
    return {k: v for k, v in given.items() if v is not None}


def _run(operation: Callable[[bool], object], *, dry_run: bool, yes: bool, json: bool) -> None:
    """Do it; on a terminal only after a dry run was shown and a person agreed."""
    if not dry_run and not yes and sys.stdin.isatty():
        Console(stderr=True).print(report_rows(operation(True)))
        if not typer.confirm("Do this?", err=True):
            tell(Text("Nothing was changed."))
            raise typer.Exit(FAILED)
    show(operation(dry_run), json=json)


if __name__ == "__main__":
    main()
