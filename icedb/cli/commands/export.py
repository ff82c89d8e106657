"""The verb `export`: a Delta table or plain Parquet, for programs that do not read IceDB."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, duration, run, time_option, verb
from icedb.cli.render.output import show

__all__: list[str] = []


@verb(WRITE, "icedb export s3://lake/events --parquet s3://lake/plain")
def export(
    connection: Connection,
    uri: Uri,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta log at the same address, without copying data.")
    ] = False,
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="TARGET", help="Write plain Parquet to a folder or s3://bucket/prefix."),
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "Export the table as of this time.", default="now")] = None,
    exclude_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-column", metavar="COLUMN", help="With --delta: leave out this column. May be repeated."
        ),
    ] = None,
    keep: Annotated[
        int | None, duration("--keep", "With --delta: keep exported parts from cleanup for this time.", default="7d")
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
    """Export the table as Delta Lake or as plain Parquet, for programs that do not read IceDB."""
    if delta == (parquet is not None):
        raise typer.BadParameter("Pass either --delta or --parquet TARGET.")
    if delta and (where is not None or overwrite):
        raise typer.BadParameter("--where and --overwrite require --parquet.")
    if parquet is not None and (exclude_columns or keep is not None):
        raise typer.BadParameter("--exclude-column and --keep require --delta.")
    table = connection.open(uri)
    if parquet is None:
        kept = {} if keep is None else {"keep": timedelta(milliseconds=keep)}
        show(table.export_delta(as_of=as_of, exclude_columns=exclude_columns or (), dry_run=dry_run, **kept), json=json)
        return
    target = parquet

    def operation(dry: bool) -> object:
        return table.export_parquet(target, as_of=as_of, where=where, overwrite=overwrite, dry_run=dry)

    if overwrite:  # the existing files are deleted
        run(operation, dry_run=dry_run, yes=yes, json=json)
    else:
        show(operation(dry_run), json=json)
