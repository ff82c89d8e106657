"""The verb `export`: the table for programs that do not know it."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, duration, run, time_option, verb
from icedb.cli.render.output import show

__all__: list[str] = []


@verb(WRITE)
def export(
    connection: Connection,
    uri: Uri,
    delta: Annotated[
        bool, typer.Option("--delta", help="As a Delta table at the same address; no data is copied.")
    ] = False,
    parquet: Annotated[
        str | None,
        typer.Option("--parquet", metavar="TARGET", help="As plain Parquet, into a folder or s3://bucket/prefix."),
    ] = None,
    as_of: Annotated[Any, time_option("--as-of", "The table as it was then.")] = None,
    exclude_columns: Annotated[
        list[str] | None,
        typer.Option("--exclude-column", metavar="COLUMN", help="With --delta: a column left out. May be repeated."),
    ] = None,
    keep: Annotated[
        int | None, duration("--keep", "With --delta: how long cleanup spares what its readers see; default: 7d.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help="With --parquet: only rows for which this DuckDB condition is true."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="With --parquet: replace an earlier export in the target."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make the table readable for programs that do not know it: as a Delta table, or as plain Parquet."""
    if delta == (parquet is not None):
        raise typer.BadParameter("as what? Give --delta or --parquet TARGET; one of the two.")
    if delta and (where is not None or overwrite):
        raise typer.BadParameter("--where and --overwrite go with --parquet.")
    if parquet is not None and (exclude_columns or keep is not None):
        raise typer.BadParameter("--exclude-column and --keep go with --delta.")
    table = connection.open(uri)
    if parquet is None:
        kept = {} if keep is None else {"keep": timedelta(milliseconds=keep)}
        show(table.export_delta(as_of=as_of, exclude_columns=exclude_columns or (), dry_run=dry_run, **kept), json=json)
        return
    target = parquet

    def operation(dry: bool) -> object:
        return table.export_parquet(target, as_of=as_of, where=where, overwrite=overwrite, dry_run=dry)

    if overwrite:  # what is there goes
        run(operation, dry_run=dry_run, yes=yes, json=json)
    else:
        show(operation(dry_run), json=json)
