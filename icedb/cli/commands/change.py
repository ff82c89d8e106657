"""The verbs that change a table's layout, or rows that are there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from icedb.cli.base import spec_options as flags
from icedb.cli.base.application import LOOK, MAINTAIN, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.cli.base.inputs import read_sql
from icedb.cli.commands.write import spec_document
from icedb.cli.render.output import show
from icedb.errors import InvalidOption

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Altered:
    """What of a table's layout has changed, or would: name -> what was and what is."""

    table: str
    before: dict[str, Any]
    after: dict[str, Any]
    log_file: str | None
    dry_run: bool


@verb(MAINTAIN)
def alter(
    connection: Connection,
    uri: Uri,
    partition_by: flags.PartitionBy = None,
    no_partition_by: Annotated[bool, typer.Option("--no-partition-by", help="No partitions for new parts.")] = False,
    sort_by: flags.SortBy = None,
    no_sort_by: Annotated[bool, typer.Option("--no-sort-by", help="No order for new parts.")] = False,
    column: flags.Columns = None,
    required: flags.Required = None,
    no_required: Annotated[bool, typer.Option("--no-required", help="Any column may be null.")] = False,
    schema_policy: flags.SchemaPolicyOption = None,
    path_column: flags.PathColumns = None,
    insert_query: flags.InsertQuery = None,
    row_id: flags.RowId = None,
    compression: flags.CompressionOption = None,
    row_group_rows: flags.RowGroupRows = None,
    time: flags.Times = None,
    merge_by: flags.MergeBy = None,
    merge_version: flags.MergeVersion = None,
    merge_sum: flags.MergeSum = None,
    merge_min: flags.MergeMin = None,
    merge_max: flags.MergeMax = None,
    merge_any: flags.MergeAny = None,
    merge_count: flags.MergeCount = None,
    merge_query: flags.MergeQuery = None,
    no_merging: Annotated[
        bool, typer.Option("--no-merging", help="Merges keep all rows.", rich_help_panel=flags.MERGING)
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Change how new parts are laid out; what is not given stays. Parts stay as they are. An empty query is none."""
    from icedb.operations.commits.alter import alter as alter_table
    from icedb.operations.commits.alter import plan_alter, spec_change

    merging = flags.merging_of(
        merge_by, merge_version, merge_count, sum=merge_sum, min=merge_min, max=merge_max, any=merge_any
    )
    for flag, given, no_flag in (
        ("--partition-by", partition_by, no_partition_by),
        ("--sort-by", sort_by, no_sort_by),
        ("--required", required, no_required),
        ("--merge-by", merging, no_merging),
    ):
        if given and no_flag:
            raise typer.BadParameter(f"{flag} and its opposite do not go together.")
    table = connection.open(uri)
    if time:
        table.handle.read()  # the times that are not given stay as they are now
    layout: dict[str, Any] = {  # texts, which are checked where the spec is
        "partition_by": () if no_partition_by else partition_by or None,
        "sort_by": () if no_sort_by else sort_by or None,
        "compression": compression,
        "row_group_rows": row_group_rows,
        "schema": flags.types_of("--column", column),
        "required": () if no_required else required or None,
        "schema_policy": schema_policy,
        "path_columns": flags.types_of("--path-column", path_column) or None,
        "insert_query": insert_query,
        "merge_query": merge_query,
        "merging": "none" if no_merging else merging,
        "row_id": row_id,
        "timing": flags.timing_of(time, table.spec.timing),
    }
    change = spec_change(table=table.uri, **layout)
    planned = plan_alter(table.handle, change)
    before, after = spec_document(table.spec), spec_document(planned)
    # The spec also records what it was before, which is no change that the caller asked for.
    different = [n for n in after if before[n] != after[n] and n not in ("earlier", "declared_ms", "earlier_timing")]
    commit = None if dry_run or not different else alter_table(table.handle, change)
    show(
        Altered(
            table=table.uri,
            before={name: before[name] for name in different},
            after={name: after[name] for name in different},
            log_file=None if commit is None else commit.key,
            dry_run=dry_run,
        ),
        json=json,
    )


@verb(MAINTAIN)
def rewrite(
    connection: Connection,
    uri: Uri,
    partition: Annotated[str, typer.Argument(help="Its path, such as d=2026-11-21.", show_default=False)],
    query: Annotated[str | None, typer.Argument(help="One SELECT over _rows, the partition's rows.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="The query, in a file; - is standard input.")] = None,
    new_columns: Annotated[
        bool, typer.Option("--new-columns", help="The answer may bring columns that the table does not have.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Put the answer of a query in the place of a partition's rows, atomically: corrections, deduplication."""
    sql = read_sql(query, file)
    table = connection.open(uri)
    run(
        lambda dry: table.rewrite_partition(partition, sql, new_columns=new_columns, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
    )


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view that inserts feed."""

    name: str
    query: str


@verb(LOOK)
def views(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the materialized views that inserts into the table feed."""
    table = connection.open(uri)
    names = table.views()
    show([KnownView(v.name, v.query) for v in table.spec.views if v.name in names], json=json)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A view that was made anew from its source's rows. Rows are None when a part does not say how many it has."""

    table: str
    view: str
    source_rows: int | None
    rows: int | None
    new_parts: int | None
    replaced_parts: int | None
    log_file: str | None
    dry_run: bool


@verb(MAINTAIN, "refresh-view")
def refresh_view(
    connection: Connection,
    uri: Uri,
    name: Annotated[str, typer.Argument(help="The view's name.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make a view anew from all rows of its table, atomically; nobody should insert meanwhile."""
    table = connection.open(uri)

    def operation(dry: bool) -> Refreshed:
        known = table.views()
        if name not in known:
            raise InvalidOption(f"{table.uri}: there is no view '{name}' (there are {known or 'none'}).")
        source_rows = table.snapshot().rows
        if dry:
            return Refreshed(table.uri, name, source_rows, None, None, None, None, dry_run=True)
        commit = table.refresh_view(name)
        return Refreshed(
            table.uri, name, source_rows, commit.rows, len(commit.parts), len(commit.tombstoned), commit.key,
            dry_run=False,
        )  # fmt: skip

    run(operation, dry_run=dry_run, yes=yes, json=json)
