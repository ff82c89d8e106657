"""The verb `export`: a Delta table, an Iceberg table or plain Parquet, for programs that do not read IceDB."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, duration, run, time_option, verb
from icedb.cli.render.report_text import show

__all__: list[str] = []


@verb(WRITE, "icedb export s3://lake/events --parquet s3://lake/plain")
def export(
    connection: Connection,
    uri: Uri,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta log at the same address, without copying data.")
    ] = False,
    iceberg: Annotated[
        bool, typer.Option("--iceberg", help="Write Iceberg metadata at the same address, without copying data.")
    ] = False,
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="TARGET", help="Write plain Parquet to a folder or s3://bucket/prefix."),
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "Export the table as of this time.", default="now")] = None,
    exclude_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-column",
            metavar="COLUMN",
            help="With --delta or --iceberg: leave out this column. May be repeated.",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        duration("--keep", "With --delta or --iceberg: keep exported parts from cleanup for this time.", default="7d"),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help="With --parquet: export the rows that match this DuckDB predicate."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="With --parquet: replace an earlier export in the target."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Export the table as Delta Lake, as Iceberg or as plain Parquet, for programs that do not read IceDB."""
    if [delta, iceberg, parquet is not None].count(True) != 1:
        raise typer.BadParameter("Pass one of --delta, --iceberg and --parquet TARGET.")
    if parquet is None and (where is not None or overwrite):
        raise typer.BadParameter("--where and --overwrite require --parquet.")
    if parquet is not None and (exclude_columns or keep is not None):
        raise typer.BadParameter("--exclude-column and --keep require --delta or --iceberg.")
    table = connection.open(uri)
    if parquet is None:
        kept = {} if keep is None else {"keep": timedelta(milliseconds=keep)}
        publish = table.export_delta if delta else table.export_iceberg
        show(publish(as_of=as_of, exclude_columns=exclude_columns or (), dry_run=dry_run, **kept), json=json)
        return
    target = parquet

    def operation(dry: bool) -> object:
        return table.export_parquet(target, as_of=as_of, where=where, overwrite=overwrite, dry_run=dry)

    if overwrite:  # the existing files are deleted
        run(operation, dry_run=dry_run, yes=yes, json=json)
    else:
        show(operation(dry_run), json=json)
