"""The verbs that bring rows into a table, and out of it."""

from typing import Annotated

import typer

from icedb.cli.frame import WRITE, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.table import Table


@verb(WRITE, "import")
def import_files(
    connection: Connection,
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
) -> None:
    """Make existing Parquet part of the table as it is: files below its _data by their names, others as copies."""
    if sort_by and not create:
        raise typer.BadParameter("--sort-by goes with --create; a table that is there has its own.")
    options = connection.storage_options

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

    run(operation, dry_run=dry_run, yes=yes, json=json)
