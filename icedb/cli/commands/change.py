"""Verbs that change the layout of a table, its existing rows, or its views."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from icedb.cli.base.application import INSPECT, MAINTAIN, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.cli.base.inputs import read_sql
from icedb.cli.base.spec_options import MERGING, SpecFlags, several
from icedb.cli.commands.write import spec_document
from icedb.cli.render.command_reports import AlterReport, RefreshReport
from icedb.cli.render.report_text import show
from icedb.errors import InvalidOption

__all__: list[str] = []


@verb(MAINTAIN, "icedb alter s3://lake/events --sort-by user_id --sort-by ts")
def alter(
    connection: Connection,
    uri: Uri,
    layout: SpecFlags,
    no_partition_by: Annotated[
        bool, typer.Option("--no-partition-by", help="Write new parts without partitions.")
    ] = False,
    no_sort_by: Annotated[bool, typer.Option("--no-sort-by", help="Write new parts unsorted.")] = False,
    no_required: Annotated[bool, typer.Option("--no-required", help="Accept null in all columns.")] = False,
    no_bloom_filters: Annotated[
        bool, typer.Option("--no-bloom-filters", help="Write new parts without bloom filters.")
    ] = False,
    drop_column: Annotated[
        list[str] | None, several("--drop-column", "COLUMN", "Hide this column from now on. Older snapshots have it.")
    ] = None,
    no_merging: Annotated[
        bool, typer.Option("--no-merging", help="Keep all rows in merges.", rich_help_panel=MERGING)
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Change the layout of new parts, or hide columns. Other settings and existing parts stay.

    An empty query removes the query.
    """
    from icedb.operations.commits.alter import alter as alter_table
    from icedb.operations.commits.alter import plan_alter
    from icedb.writer.spec_options import spec_change

    options: Any = layout.options()
    for flag, name, removes, nothing in (
        ("--partition-by", "partition_by", no_partition_by, ()),
        ("--sort-by", "sort_by", no_sort_by, ()),
        ("--required", "required", no_required, ()),
        ("--bloom-filters", "bloom_filters", no_bloom_filters, ()),
        ("--merge-by", "merging", no_merging, "none"),
    ):
        if removes and options[name]:
            raise typer.BadParameter(f"{flag} and its --no- flag exclude each other.")
        if removes:
            options[name] = nothing
    table = connection.open(uri)
    if layout.time:
        table.handle.read()  # so that the times without a flag keep their current values
    change = spec_change(
        table.uri, **options, timing=layout.timing(table.spec.timing), drop_columns=drop_column or None
    )
    planned = plan_alter(table.handle, change)
    before, after = spec_document(table.spec), spec_document(planned)
    # The spec also records its earlier layout, which the caller did not change.
    changed = [n for n in after if before[n] != after[n] and n not in ("earlier", "declared_ms", "earlier_timing")]
    commit = None if dry_run or not changed else alter_table(table.handle, change)
    show(
        AlterReport(
            table=table.uri,
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
            log_file=None if commit is None else commit.key,
            dry_run=dry_run,
        ),
        json=json,
    )


@verb(MAINTAIN, "icedb rewrite s3://lake/events d=2026-11-21 'SELECT DISTINCT * FROM _rows'")
def rewrite(
    connection: Connection,
    uri: Uri,
    partition: Annotated[str, typer.Argument(help="Path of the partition, such as d=2026-11-21.", show_default=False)],
    query: Annotated[str | None, typer.Argument(help="One SELECT over _rows, the rows of the partition.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the query from a file; - is standard input.")
    ] = None,
    new_columns: Annotated[
        bool, typer.Option("--new-columns", help="Accept columns that the table does not have.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replace the rows of a partition with the result of a query, in one commit."""
    sql = read_sql(query, file)
    table = connection.open(uri)
    run(
        lambda dry: table.rewrite_partition(partition, sql, new_columns=new_columns, dry_run=dry),
        dry_run=dry_run,
        yes=yes,
        json=json,
    )


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A materialized view and its query."""

    name: str
    query: str


@verb(INSPECT, "icedb views s3://lake/events")
def views(connection: Connection, uri: Uri, json: Json = False) -> None:
    """List the materialized views that inserts into the table feed."""
    table = connection.open(uri)
    names = table.views()
    show([ViewRecord(v.name, v.query) for v in table.spec.views if v.name in names], json=json)


@verb(MAINTAIN, "icedb refresh-view s3://lake/events hourly")
def refresh_view(
    connection: Connection,
    uri: Uri,
    name: Annotated[str, typer.Argument(help="Name of the view.", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Recompute a view from all rows of its table, in one commit. Pause inserts meanwhile."""
    table = connection.open(uri)

    def operation(dry: bool) -> RefreshReport:
        names = table.views()
        if name not in names:
            raise InvalidOption(f"{table.uri}: there is no view '{name}'. Existing views: {names or 'none'}.")
        source_rows = table.snapshot().rows
        if dry:
            return RefreshReport(table.uri, name, source_rows, None, None, None, None, dry_run=True)
        commit = table.refresh_view(name)
        return RefreshReport(
            table.uri, name, source_rows, commit.rows, len(commit.parts), len(commit.tombstoned), commit.key,
            dry_run=False,
        )  # fmt: skip

    run(operation, dry_run=dry_run, yes=yes, json=json)
