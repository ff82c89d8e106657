"""Verbs that create a table and add rows: create, insert, overwrite, import."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.cli.base.inputs import Files, Format, OnConflict, Transaction, rows_of
from icedb.cli.base.spec_options import SpecFlags, several
from icedb.cli.render.command_reports import CreateReport, WriteReport
from icedb.cli.render.output import print_message
from icedb.cli.render.report_text import show
from icedb.errors import InvalidOption, InvalidURI

if TYPE_CHECKING:
    from icedb.format.table_spec import TableSpec
    from icedb.transaction.append import Commit

__all__ = ["spec_document"]


# ------------------------------------------------------------------------------------------------ create


def spec_document(spec: "TableSpec") -> dict[str, Any]:
    """Return the layout fields of a spec, without internal ones."""
    document = msgspec.to_builtins(spec)
    return {name: value for name, value in document.items() if name not in ("version", "id", "revision", "views")}


@verb(WRITE, 'icedb create s3://lake/events --partition-by "ts::DATE AS d" --column ts=TIMESTAMP')
def create(
    connection: Connection,
    uri: Uri,
    layout: SpecFlags,
    log_uri: Annotated[
        str | None,
        typer.Option("--log-uri", metavar="URI", help="Store the log at this address instead of with the parts."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Create an empty table. The first rows define its columns, unless they are declared."""
    from icedb.format.timing import Timing
    from icedb.table import Table

    options = layout.options()
    options["timing"] = layout.timing(Timing())
    table = Table.create(uri, log_uri=log_uri, dry_run=dry_run, **options)
    undeclared = [c for c in table.spec.sort_by if table.spec.columns and c not in table.spec.columns]
    if undeclared:  # with `--schema-policy declared` it is an error
        names = ", ".join(f"'{c}'" for c in undeclared)
        print_message(
            Text.assemble(("warning: ", "bold yellow"), f"--sort-by names {names}, which no --column declares. The ",
                          "first insert is rejected unless its rows have that column.")
        )  # fmt: skip
    show(CreateReport(table.uri, spec_document(table.spec), dry_run), json=json)


# ------------------------------------------------------------------------------------------------ insert, overwrite


def _written(commit: "Commit") -> WriteReport:
    return WriteReport(
        table=commit.table,
        rows=commit.rows,
        bytes=commit.bytes,
        new_parts=len(commit.parts),
        partitions=tuple(sorted({p.partition for p in commit.parts})),
        replaced_parts=len(commit.tombstoned),
        quarantined_rows=commit.quarantined_rows,
        quarantine=commit.quarantine,
        repeated=commit.repeated,
        log_file=commit.key,
    )


@verb(WRITE, "icedb insert s3://lake/events rows.jsonl --txn nightly-load:42")
def insert(
    connection: Connection,
    uri: Uri,
    files: Files,
    txn: Transaction = None,
    on_conflict: OnConflict = "raise",
    format: Format = None,  # noqa: A002  the flag's name
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Append the rows of files or of standard input, in one commit. A dry run reads and checks all rows."""
    table = connection.open(uri)
    with rows_of(files, format) as paths:
        if dry_run:
            show(table.insert(paths, txn=txn, on_conflict=on_conflict, dry_run=True), json=json, dry_run=True)
        else:
            show(_written(table.insert(paths, txn=txn, on_conflict=on_conflict)), json=json)


@verb(WRITE, "icedb overwrite s3://lake/events day.parquet --partition d=2026-11-21")
def overwrite(
    connection: Connection,
    uri: Uri,
    files: Files,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="PATH", help="Replace this partition: d=2026-11-21. May be repeated."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Replace the partitions that match this DuckDB predicate.")
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Replace the whole table.")] = False,
    on_conflict: OnConflict = "raise",
    format: Format = None,  # noqa: A002  the flag's name
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replace partitions or the whole table with the rows of files or of standard input, in one commit."""
    if (bool(partition) + bool(where) + everything) != 1:
        raise typer.BadParameter("Pass exactly one of --partition, --where and --everything.")
    chosen: Sequence[str] | str | None = where or partition or None
    table = connection.open(uri)
    with rows_of(files, format) as paths:

        def operation(dry: bool) -> object:
            if dry:
                return table.overwrite(paths, partitions=chosen, on_conflict=on_conflict, dry_run=True)
            return _written(table.overwrite(paths, partitions=chosen, on_conflict=on_conflict))

        run(operation, dry_run=dry_run, yes=yes, json=json)


# ------------------------------------------------------------------------------------------------ import


def _table_exists(uri: str) -> bool:
    """Whether a table is at an address, which may also be a file or a glob of Parquet files."""
    from icedb.table import Table

    try:
        return Table.exists(uri)
    except InvalidURI:
        return False


@verb(WRITE, "icedb import s3://lake/events s3://raw/events --create")
def import_files(
    connection: Connection,
    uri: Uri,
    source: Annotated[
        str, typer.Argument(help="Folder, bucket prefix, file or glob of Parquet files.", show_default=False)
    ],
    create: Annotated[bool, typer.Option("--create", help="Create the table with the layout of the files.")] = False,
    sort_by: Annotated[
        list[str] | None,
        several("--sort-by", "COLUMN", "With --create: sort the rows of each new part by this column."),
    ] = None,
    trust_paths: Annotated[
        bool, typer.Option("--trust-paths", help="Skip the comparison of rows with the folders of their files.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Decode every row, and record digests.")] = False,
    first_time: Annotated[
        bool, typer.Option("--first-time", help="Confirm that none of the files was ever imported.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Add existing Parquet files to the table as they are: in place if they are below its _data, else as copies."""
    from icedb.table import Table

    if sort_by and not create:
        raise typer.BadParameter("--sort-by requires --create. An existing table has its own sort columns.")

    exists = _table_exists(uri)
    if not exists and _table_exists(source):
        raise typer.BadParameter(
            f"'{source}' is a table, and '{uri}' is not. The table comes first: icedb import {source} {uri}"
        )

    def operation(dry: bool) -> object:
        if create and not exists:
            return Table.create_from_files(
                uri, source, sort_by=sort_by or (), trust_paths=trust_paths, verify=verify, dry_run=dry
            )
        table = connection.open(uri)
        if sort_by and list(table.spec.sort_by) != sort_by:
            raise InvalidOption(f"{table.uri}: --sort-by differs from the sort columns of the existing table. Omit it.")
        return table.import_files(source, trust_paths=trust_paths, verify=verify, first_time=first_time, dry_run=dry)

    run(operation, dry_run=dry_run, yes=yes, json=json)
