"""The verbs that bring rows into a table: create it, insert, overwrite, import."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icedb.cli.base import spec_options as flags
from icedb.cli.base.application import WRITE, Connection, DryRun, Json, Uri, Yes, run, verb
from icedb.cli.base.inputs import Files, Format, OnConflict, rows_of
from icedb.cli.render.output import show
from icedb.errors import InvalidOption

if TYPE_CHECKING:
    from icedb.format.table_spec import TableSpec
    from icedb.transaction.append import Commit

__all__ = ["spec_document"]


# ------------------------------------------------------------------------------------------------ create


@dataclass(frozen=True, slots=True)
class Created:
    """A new table, and how it is laid out."""

    table: str
    spec: dict[str, Any]
    dry_run: bool


def spec_document(spec: "TableSpec") -> dict[str, Any]:
    """What a spec says of a table's layout, without what is ours to know."""
    known = msgspec.to_builtins(spec)
    return {name: value for name, value in known.items() if name not in ("version", "id", "revision", "views")}


@verb(WRITE)
def create(
    connection: Connection,
    uri: Uri,
    partition_by: flags.PartitionBy = None,
    sort_by: flags.SortBy = None,
    column: flags.Columns = None,
    required: flags.Required = None,
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
    log_uri: Annotated[
        str | None, typer.Option("--log-uri", metavar="URI", help="Where the log is, if not beside the parts.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Create an empty table. Its columns come with the first rows, unless they are declared."""
    from icedb.format.timing import Timing
    from icedb.table import Table

    merging = flags.merging_of(
        merge_by, merge_version, merge_count, sum=merge_sum, min=merge_min, max=merge_max, any=merge_any
    )
    given: dict[str, Any] = {
        "compression": compression,
        "row_group_rows": row_group_rows,
        "schema_policy": schema_policy,
        "log_uri": log_uri,
        "timing": flags.timing_of(time, Timing()),
    }
    table = Table.create(
        uri,
        partition_by=partition_by or (),
        sort_by=sort_by or (),
        schema=flags.types_of("--column", column),
        required=required or (),
        path_columns=flags.types_of("--path-column", path_column),
        insert_query=insert_query or "",
        merge_query=merge_query or "",
        merging=merging,
        row_id=bool(row_id),
        dry_run=dry_run,
        **{name: value for name, value in given.items() if value is not None},
    )
    show(Created(table.uri, spec_document(table.spec), dry_run), json=json)


# ------------------------------------------------------------------------------------------------ insert, overwrite


@dataclass(frozen=True, slots=True)
class Written:
    """What a write committed. `replaced_parts` were live before. `quarantine` is where rows went that do not fit."""

    table: str
    rows: int
    bytes: int
    new_parts: int
    partitions: tuple[str, ...]
    replaced_parts: int
    quarantined_rows: int
    quarantine: str | None
    #: The transaction was committed before, so nothing was added.
    repeated: bool
    log_file: str | None


def _written(commit: "Commit") -> Written:
    return Written(
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


def _txn(text: str) -> tuple[str, int]:
    application, colon, sequence = text.rpartition(":")
    if not (application and colon and sequence.isdecimal() and sequence.isascii()):
        raise typer.BadParameter(f"{text!r} is no transaction; write a name and a number: --txn nightly-load:42.")
    return application, int(sequence)


@verb(WRITE)
def insert(
    connection: Connection,
    uri: Uri,
    files: Files,
    txn: Annotated[
        Any,
        typer.Option(
            "--txn",
            parser=_txn,
            metavar="NAME:NUMBER",
            help="Exactly once: a number of this name that was committed, or a later one, adds nothing.",
        ),
    ] = None,
    on_conflict: OnConflict = "raise",
    format: Format = None,  # noqa: A002  the flag's name
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Append the rows of files, or of standard input. A dry run reads and checks all of them."""
    table = connection.open(uri)
    with rows_of(files, format) as paths:
        if dry_run:
            show(table.insert(paths, txn=txn, on_conflict=on_conflict, dry_run=True), json=json, dry_run=True)
        else:
            show(_written(table.insert(paths, txn=txn, on_conflict=on_conflict)), json=json)


@verb(WRITE)
def overwrite(
    connection: Connection,
    uri: Uri,
    files: Files,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="PATH", help="Replace this one, d=2026-11-21. May be repeated."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Replace those: a DuckDB predicate over the partition columns.")
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Replace the whole table.")] = False,
    on_conflict: OnConflict = "raise",
    format: Format = None,  # noqa: A002  the flag's name
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replace partitions, or the whole table, by the rows of files or of standard input, atomically."""
    if (bool(partition) + bool(where) + everything) != 1:
        raise typer.BadParameter("what is to be replaced? Give --partition, --where or --everything; one of them.")
    chosen: Sequence[str] | str | None = where or partition or None
    table = connection.open(uri)
    with rows_of(files, format) as paths:

        def operation(dry: bool) -> object:
            if dry:
                return table.overwrite(paths, partitions=chosen, on_conflict=on_conflict, dry_run=True)
            return _written(table.overwrite(paths, partitions=chosen, on_conflict=on_conflict))

        run(operation, dry_run=dry_run, yes=yes, json=json)


# ------------------------------------------------------------------------------------------------ import


@verb(WRITE, "import")
def import_files(
    connection: Connection,
    source: Annotated[str, typer.Argument(help="A folder, bucket prefix, file or glob of Parquet.")],
    uri: Uri,
    create: Annotated[bool, typer.Option("--create", help="Create the table, laid out as the files are.")] = False,
    sort_by: Annotated[
        list[str] | None, flags.several("--sort-by", "COLUMN", "With --create: new parts are sorted by it.")
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
    from icedb.table import Table

    if sort_by and not create:
        raise typer.BadParameter("--sort-by goes with --create; a table that is there has its own.")

    def operation(dry: bool) -> object:
        if create and not Table.exists(uri):
            return Table.create_from_files(
                uri, source, sort_by=sort_by or (), trust_paths=trust_paths, verify=verify, dry_run=dry
            )
        table = connection.open(uri)
        if sort_by and list(table.spec.sort_by) != sort_by:
            raise InvalidOption(
                f"{table.uri}: --sort-by: the table is there already, and sorted otherwise. Leave it out."
            )
        return table.import_files(source, trust_paths=trust_paths, verify=verify, first_time=first_time, dry_run=dry)

    run(operation, dry_run=dry_run, yes=yes, json=json)
