"""The IO manager: one asset is one table, and each materialization is one commit.

The rows of an output are written as parts (data files) first. One commit then makes all of them visible, or none.
`overwrite` (the default) atomically replaces the rows of exactly the partitions of the run, or all rows of an
asset without partitions. `append` adds rows, exactly once for each run, step and partition. A missing table is created.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from icedb import Snapshot, Table
from icedb.errors import InvalidOption, TableNotFound
from icedb.format.table_spec import ROW_GROUP_ROWS
from icedb.sources.batch import OnConflict
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb.util.times import parse_as_of
from icedb_dagster.io.inputs import Rows, empty, load, type_name
from icedb_dagster.io.options import AssetOptions, Mode, OnEmpty, has_partition_expr, partition_columns
from icedb_dagster.io.outputs import check_output, is_of_table, transaction, write
from icedb_dagster.metadata.spark_progress import frame_progress
from icedb_dagster.metadata.table_metadata import (
    SNAPSHOT_ID,
    SNAPSHOT_TIME,
    commit_metadata,
    materialization_metadata,
)
from icedb_dagster.partitioning.alignment import check_alignment
from icedb_dagster.partitioning.partitions import Selection, select_partitions
from icedb_dagster.resource import IceDBResource
from icedb_dagster.resource_fields import CheckedFields

__all__ = ["IceDBIOManager"]


class IceDBIOManager(CheckedFields, dg.ConfigurableIOManager):
    """Stores assets as IceDB tables, and loads tables as inputs.

    Accepted outputs: pyarrow Table, RecordBatch, RecordBatchReader and Dataset, frames of pandas, Polars (also lazy)
    and Spark, DuckDB relations, lists of dicts, an `icedb.Snapshot`. An asset that wrote its table itself returns None
    or a snapshot of that table. An input has the type of its annotation: one of the same types, or a pyarrow Table if
    there is no annotation. The metadata of an input may have `columns` and `where`, its run config `as_of`.

    Each field except `icedb` is a default for all assets. `<field>` or `icedb/<field>` in an asset's metadata overrides
    it; `mode`, `on_conflict`, `on_empty` and `preview_rows` also in the metadata of a `dg.Output`. The
    fields from `partition_by` on are used only if a table is created; see `icedb.Table.create`.

    A partitioned asset needs `partition_expr` in its metadata: the partition column of the table that distinguishes the
    asset's partitions. Give one text, or a mapping with one text for each dimension.

    Args:
        icedb: The `IceDBResource` with the tables.
        mode: `overwrite` or `append`.
        on_conflict: The treatment of values that do not fit their column's type; see `icedb.Table.insert`.
        on_empty: The effect of an overwrite without rows: `raise` an error, or `clear` the partitions.
        preview_rows: Rows of the preview in the event log; 0 for none.
        partition_by: Partition expressions.
        sort_by: Sort columns.
        compression: Compression of the parts.
        row_group_rows: Rows of a Parquet row group.
        bloom_filters: Columns with a Parquet bloom filter.
        required: Columns that must not be null.
        schema_policy: `open`, or `declared` to reject columns that the table does not declare.

    Example:
        resources = {"io_manager": IceDBIOManager(icedb=IceDBResource(root="s3://lake/events"))}
    """

    icedb: dg.ResourceDependency[IceDBResource]
    mode: Mode = "overwrite"
    on_conflict: OnConflict = "raise"
    on_empty: OnEmpty = "raise"
    preview_rows: int = 5
    partition_by: list[str] = Field(default=[])
    sort_by: list[str] = Field(default=[])
    compression: str = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    bloom_filters: list[str] = Field(default=[])
    required: list[str] = Field(default=[])
    schema_policy: str = "open"

    @classmethod
    def input_config_schema(cls) -> Any:
        """Return the schema of an input's run config: `ops: {asset: {inputs: {upstream: {as_of: ...}}}}`.

        Dagster uses it for an `AssetIn` that names the IO manager as its `input_manager_key`.
        """
        time = "Read the table as of this time: ISO 8601 with a zone (2026-11-21T12:00:00Z), or unix milliseconds."
        return {"as_of": dg.Field(dg.Any, is_required=False, description=time)}

    # ------------------------------------------------------------------------------------ outputs

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Commit an asset's output.

        Raises:
            InvalidBatch: The output has a type that holds no rows.
            InvalidOption: The asset's metadata or partitions do not fit the table. Errors of `icedb.Table.insert` and
                `icedb.Table.overwrite` are raised, too.
        """
        uri = self._uri(context)
        wrote_itself = obj is None or is_of_table(obj, uri)
        options, selection = self._options(context, uri, wrote_itself=wrote_itself)
        if wrote_itself:
            table, commit, txn = self.icedb.table(context.asset_key), None, None
        else:
            check_output(obj, table=uri)
            table = self.icedb.table_or_create(context.asset_key, **options.create)
            if selection is not None:
                _check_partitions(table, selection, options.mode)
            txn = _transaction(context, selection) if options.mode == "append" else None
            with frame_progress(context, obj):
                commit = write(table, obj, options, selection, txn)
        figures = {} if commit is None else {**_figures(commit, options), **_commit_identity(table, commit, txn)}
        _report(context, table.snapshot(), figures, options, selection)

    def _options(
        self, context: dg.OutputContext, uri: str, *, wrote_itself: bool
    ) -> tuple[AssetOptions, Selection | None]:
        """Return the asset's options, and the partitions of the run; None if the asset has none."""
        metadata = context.definition_metadata or {}
        partitions = _definition_of(context)
        if wrote_itself and not (context.has_asset_partitions and has_partition_expr(metadata)):
            partitions = None  # nothing is written here, and no partitions are reported
        if partitions is not None and not context.has_asset_partitions:
            raise InvalidOption(
                f"{uri}: the asset is partitioned, but the run has no partition, so the output would apply to all "
                "partitions. Start the run for a partition, or for a range of them."
            )
        defaults = {name: getattr(self, name) for name in type(self).model_fields if name != "icedb"}
        of_output = context.output_metadata
        options = AssetOptions.of(defaults, metadata, partitions, table=uri, of_output=of_output)
        if partitions is None:
            return options, None
        return options, select_partitions(partitions, context.asset_partition_keys, options.columns, table=uri)

    # ------------------------------------------------------------------------------------ inputs

    def load_input(self, context: dg.InputContext) -> Any:
        """Load the rows of the upstream asset as the type of the annotation.

        The table may be missing if the run depends on none of its partitions. This is the first run of an asset that
        depends on its own previous partition.

        Raises:
            TableNotFound: The table does not exist.
            InvalidOption: The metadata, the partitions or the annotation are invalid.
            UnknownColumn: The metadata names a column that the table does not have.
            SnapshotExpired: The table can no longer be read as of that time. Errors of `icedb.Snapshot.query` are
                raised, too.
        """
        uri = self._uri(context)
        as_of = (context.config or {}).get("as_of")
        then_ms = None if as_of is None else parse_as_of(str(as_of), table=uri)
        wanted = context.dagster_type.typing_type
        try:
            snapshot = self.icedb.table(context.asset_key).snapshot(then_ms)
        except TableNotFound:
            if not _is_about_none(context):
                raise
            return empty(wanted, table=uri)
        where = None if type_name(wanted) == "icedb.Snapshot" else _partitions_of(context, snapshot)
        rows = load(Rows.of(snapshot, where, context.definition_metadata or {}), wanted)
        _report_read(context, snapshot)
        return rows

    def _uri(self, context: dg.OutputContext | dg.InputContext) -> str:
        if not context.has_asset_key:
            raise InvalidOption(
                f"{self.icedb.root}: the IO manager stores assets, but '{context.name}' of the op "
                f"'{context.op_def.name}' is not an asset and has no table. Give it another IO manager."
            )
        return self.icedb.uri(context.asset_key)


def _definition_of(context: dg.OutputContext | dg.InputContext) -> dg.PartitionsDefinition | None:
    """Return the partitions definition of the context's asset, even if the run has no partition."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None


def _partitions_of(context: dg.InputContext, snapshot: Snapshot) -> str | None:
    """Return the predicate of the upstream partitions that the run depends on; None for all rows."""
    partitions = _definition_of(context)
    if partitions is None or not context.has_asset_partitions or _is_about_all(context):
        return None
    upstream = context.upstream_output
    metadata = {**(context.definition_metadata or {}), **((upstream and upstream.definition_metadata) or {})}
    columns = partition_columns(metadata, partitions, table=snapshot.table)
    selection = select_partitions(partitions, context.asset_partition_keys, columns, table=snapshot.table)
    return _predicate(selection, snapshot) if snapshot.schema else None


def _is_about_all(context: dg.InputContext) -> bool:
    """Return whether an asset without partitions depends on a whole partitioned asset: no mapping selects partitions.

    Then it reads all rows of the table, including rows of no current partition: late ones, and today's.
    """
    step = _step(context)
    if step is None or step.entity_partitions_def is not None:
        return False
    mapping = step.assets_def and step.assets_def.get_partition_mapping_for_dep(context.asset_key)
    return mapping is None or isinstance(mapping, dg.AllPartitionMapping)


def _is_about_none(context: dg.InputContext) -> bool:
    """Return whether the run depends on no partition of the upstream asset."""
    return context.has_asset_partitions and not context.asset_partition_keys and not _is_about_all(context)


def _predicate(selection: Selection, snapshot: Snapshot) -> str:
    """Return the predicate of the selected partitions. Raises InvalidOption if the table does not distinguish them."""
    predicate = selection.predicate(snapshot.partition_schema)
    check_alignment(selection, snapshot.expressions, snapshot.schema)
    return predicate


def _check_partitions(table: Table, selection: Selection, mode: Mode) -> None:
    """Check the partitions of an overwrite before any row is read. Appended rows may be in any partition."""
    if not selection.keys:
        raise InvalidOption(
            f"{table.uri}: the run has no partition of the asset, so the rows have no destination. Start the run for a "
            "partition."
        )
    snapshot = table.snapshot()
    selection.check(e.name for e in table.handle.expressions)
    if mode == "overwrite" and snapshot.partition_schema:
        _predicate(selection, snapshot)


def _transaction(context: dg.OutputContext, selection: Selection | None) -> Txn | None:
    """Return the idempotency key of an append; None for an output without a run, which is never retried."""
    if (step := _step(context)) is None:
        return None
    run = step.dagster_run
    return transaction(run.root_run_id or run.run_id, step.step.key, selection.keys if selection else ())


def _step(context: dg.OutputContext | dg.InputContext) -> Any:
    """Return the run's step; None for a context that a test has built."""
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return None


def _report_read(context: dg.InputContext, snapshot: Snapshot) -> None:
    """Report the snapshot in the step's outputs.

    Metadata of an input would be an observation of the upstream asset, without a data version.
    """
    if (step := _step(context)) is None:
        return
    as_of = datetime.fromtimestamp(snapshot.as_of_ms / 1000, UTC)
    read = {SNAPSHOT_ID: snapshot.id, SNAPSHOT_TIME: as_of.isoformat(timespec="milliseconds")}
    metadata = {f"icedb/read/{context.asset_key.to_user_string()}": dg.MetadataValue.json(read)}
    for output in step.op_def.output_defs:
        if not output.is_dynamic:
            step.add_output_metadata(metadata, output_name=output.name)


def _report(
    context: dg.OutputContext,
    snapshot: Snapshot,
    commit_figures: Mapping[str, Any],
    options: AssetOptions,
    selection: Selection | None,
) -> None:
    """Report the table in the materialization, and set its data version unless the asset has set one."""
    predicate = _reported_partitions(snapshot, selection)
    metadata = materialization_metadata(snapshot, partitions=predicate, preview_rows=options.preview_rows)
    if selection is not None and len(selection.keys) > 1:
        metadata.pop("dagster/partition_row_count", None)  # each partition would show the sum of all
    context.add_output_metadata({**metadata, **commit_figures})
    step = _step(context)
    if step is not None and not step.has_data_version(context.asset_key):
        step.set_data_version(context.asset_key, dg.DataVersion(snapshot.id))


def _reported_partitions(snapshot: Snapshot, selection: Selection | None) -> str | None:
    """Return the predicate of the run's partitions; None if the table cannot. The rows are committed."""
    try:
        return _predicate(selection, snapshot) if selection and snapshot.schema else None
    except InvalidOption:
        return None


def _commit_identity(table: Table, commit: Commit, txn: Txn | None) -> Mapping[str, Any]:
    """Return metadata that identifies the commit for sensors. That of an earlier try has only its time."""
    if commit.key is not None and commit.created_ms is not None:
        return commit_metadata(commit.created_ms, commit.key, [part.key for part in commit.parts])
    if commit.repeated and txn is not None:
        _, created_ms = table.handle.read().txn.get(txn[0], (0, None))
        return {} if created_ms is None else commit_metadata(created_ms)
    return {}


def _figures(commit: Commit, options: AssetOptions) -> Mapping[str, Any]:
    """Return the figures of the output: `repeated` is true if an earlier try of the step had added the rows."""
    figures: dict[str, Any] = {"icedb/mode": options.mode, "icedb/rows_written": commit.rows}
    if options.mode == "append":
        figures["icedb/repeated"] = commit.repeated
    if options.on_conflict == "quarantine":
        figures["icedb/rows_quarantined"] = commit.quarantined_rows
    return figures
