"""The IO manager: one asset is one table, and each materialization is one commit.

The rows of an output are written as parts (data files) first. One commit then makes all of them visible, or none.
`overwrite` (the default) atomically replaces the rows of exactly the partitions of the run, or all rows of an
asset without partitions. `append` adds rows, exactly once for each run, step and partition. `upsert` inserts, updates
and deletes rows by key, exactly once like an append. A missing table is created.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from icedb import Snapshot, Table, UpsertReport
from icedb.errors import InvalidArgument, InvalidOption, TableNotFound
from icedb.format.table_spec import ROW_GROUP_ROWS, SchemaMode
from icedb.operations.write.spark_frames import Distribution
from icedb.sources.batch import OnConflict
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb.util.times import parse_as_of
from icedb_dagster.io.dropped_partitions import check_not_dropped
from icedb_dagster.io.inputs import Rows, empty, is_optional, load, spark_session, type_name
from icedb_dagster.io.op_outputs import op_output_manager
from icedb_dagster.io.options import AssetOptions, Mode, OnEmpty, has_partition_expr, on_dropped, partition_columns
from icedb_dagster.io.outputs import check_output, is_of_table, transaction, write
from icedb_dagster.metadata.spark_progress import frame_progress
from icedb_dagster.metadata.table_metadata import (
    LARGE_METADATA,
    PARTITION_ROWS,
    SNAPSHOT_ID,
    SNAPSHOT_TIME,
    commit_metadata,
    materialization_metadata,
    partition_rows,
)
from icedb_dagster.partitioning.alignment import check_alignment
from icedb_dagster.partitioning.partitions import Selection, select_partitions
from icedb_dagster.partitioning.parts_by_key import parts_by_key
from icedb_dagster.resource import IceDBResource
from icedb_dagster.resource_fields import CheckedFields

__all__ = ["IceDBIOManager"]

COLUMN_LINEAGE = "dagster/column_lineage"
_UPSERT_FIGURES = (
    "inserted_rows", "updated_rows", "unchanged_rows", "deleted_rows", "searched_parts", "rewritten_parts",
    "removed_parts",
)  # fmt: skip


class IceDBIOManager(CheckedFields, dg.ConfigurableIOManager):
    """Stores assets as IceDB tables, and loads tables as inputs.

    Accepted outputs: pyarrow Table, RecordBatch, RecordBatchReader and Dataset, frames of pandas, Polars (also lazy)
    and Spark, DuckDB relations, lists of dicts, an `icedb.Snapshot`. An asset that wrote its table itself returns None
    or a snapshot of that table. An input has the type of its annotation: one of the same types, or a pyarrow Table if
    there is no annotation. `Optional[...]` is None if there is nothing to load. The metadata of an input may have
    `columns`, `where` and `on_dropped`, its run config `as_of`.

    Each field except `icedb` and `pyspark` is a default for all assets. `<field>` or `icedb/<field>` in an asset's
    metadata overrides it, and those before `partition_by` also the metadata of a `dg.Output`. The fields from
    `partition_by` on are used only if a table is created; see `icedb.Table.create`.

    A partitioned asset needs `partition_expr` in its metadata: the partition column of the table that distinguishes the
    asset's partitions. Give one text, or a mapping with one text for each dimension.

    Outputs of ops that are no assets, for example inside of a `dg.graph_asset`, are pickled into the storage folder of
    the Dagster instance, as Dagster's own default IO manager does.

    Args:
        root: The root of an `IceDBResource` of its own, instead of `icedb`.
        storage_options: As for `IceDBResource`, with `root`.
        s3: As for `IceDBResource`, with `root`.
        icedb: The `IceDBResource` with the tables.
        pyspark: A `PySparkResource` or `LazyPySparkResource` with the session for inputs that are Spark DataFrames. By
            default it is the session of the asset's own resources, or the active session of the process.
        mode: `overwrite`, `append` or `upsert`. An upsert needs the key columns in the metadata, as `on`. The metadata
            may also have `when_matched`, `delete_where` and `order_by`, as for `icedb.Table.upsert`.
        schema_mode: Whether an overwrite of a whole table keeps the columns that its rows lack (`merge`) or drops them
            (`overwrite`), as for `icedb.Table.overwrite`.
        on_conflict: The treatment of values that do not fit their column's type; see `icedb.Table.insert`.
        on_empty: The effect of an overwrite without rows: `raise` an error, or `clear` the partitions. `auto` clears
            the partitions of a partitioned asset, and is an error for a whole table.
        preview_rows: Rows of the preview in the event log; 0 for none.
        partitions_max: Reject an output whose rows are in more partitions of the table.
        memory_bytes: The memory that a write may use before it spills to disk, in bytes; for a Spark frame, in each
            task. The default is half of the memory, divided by the processors: Dagster's multiprocess executor runs a
            step on each. For a Spark frame it is that of `icedb.spark.write`.
        distribution: The shuffle before the write of a Spark frame, as for `icedb.spark.write`.
        partition_by: Partition expressions.
        sort_by: Sort columns.
        compression: Compression of the parts.
        row_group_rows: Rows of a Parquet row group.
        bloom_filters: Columns with a Parquet bloom filter.
        required: Columns that must not be null.
        schema_policy: `open`, or `declared` to reject columns that the table does not declare.

    Example:
        resources = {"io_manager": IceDBIOManager(root="s3://lake/events")}
    """

    icedb: dg.ResourceDependency[IceDBResource]
    # Any resource, because dagster-pyspark is optional.
    pyspark: dg.ConfigurableResource | None = None  # type: ignore[type-arg]
    mode: Mode = "overwrite"
    schema_mode: SchemaMode = "merge"
    on_conflict: OnConflict = "raise"
    on_empty: OnEmpty = "auto"
    preview_rows: int = 5
    partitions_max: int = 1024
    memory_bytes: int | None = None
    distribution: Distribution = "auto"
    partition_by: list[str] = Field(default=[])
    sort_by: list[str] = Field(default=[])
    compression: str = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    bloom_filters: list[str] = Field(default=[])
    required: list[str] = Field(default=[])
    schema_policy: str = "open"

    def __init__(
        self,
        *,
        root: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        s3: Any = None,
        **fields: Any,
    ) -> None:
        """Set the fields. Raises InvalidArgument unless exactly one of `root` and `icedb` locates the tables."""
        lake = fields.get("icedb")
        if root is None:
            if storage_options is not None or s3 is not None:
                raise InvalidArgument(
                    f"{type(self).__name__}: storage_options and s3 need root. With icedb=..., set them there."
                )
            if not _opens_tables(lake):
                kind = "missing" if lake is None else f"a {type(lake).__name__}"
                raise InvalidArgument(
                    f"{type(self).__name__}: icedb is {kind}, so the tables have no place. Pass "
                    "root='s3://bucket/prefix', or icedb=IceDBResource(root=...)."
                )
        elif lake is not None:
            raise InvalidArgument(f"{type(self).__name__}: both root and icedb are set. Pass one of them.")
        else:
            fields["icedb"] = IceDBResource(root=root, storage_options=dict(storage_options or {}), s3=s3)
        super().__init__(**fields)

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
        if not context.has_asset_key:
            op_output_manager(context).handle_output(context, obj)
            return
        uri = self.icedb.uri(context.asset_key)
        wrote_itself = obj is None or is_of_table(obj, uri)
        options, selection = self._options(context, uri, wrote_itself=wrote_itself)
        if wrote_itself:
            table, figures = self.icedb.table(context.asset_key), {}
        else:
            check_output(obj, table=uri)
            table = self.icedb.table_or_create(context.asset_key, **options.create)
            if selection is not None:
                _check_partitions(table, selection, options.mode)
            txn = None if options.mode == "overwrite" else _transaction(context, selection)
            with frame_progress(context, obj):
                written = write(table, obj, options, selection, txn)
            commit = written.commit if isinstance(written, UpsertReport) else written
            figures = {**_figures(written, commit, options), **_commit_identity(table, commit, txn)}
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
        depends on its own previous partition. An input annotated as `Optional[...]` is None then, and also if the table
        exists.

        Raises:
            TableNotFound: The table does not exist.
            InvalidOption: The metadata, the partitions or the annotation are invalid.
            UnknownColumn: The metadata names a column that the table does not have.
            SnapshotExpired: The table can no longer be read as of that time. Errors of `icedb.Snapshot.query` are
                raised, too.
        """
        if not context.has_asset_key:
            return op_output_manager(context).load_input(context)
        uri = self.icedb.uri(context.asset_key)
        as_of = (context.config or {}).get("as_of")
        then_ms = None if as_of is None else parse_as_of(str(as_of), table=uri)
        wanted = context.dagster_type.typing_type
        if is_optional(wanted) and _is_about_none(context):
            return None
        try:
            snapshot = self.icedb.table(context.asset_key).snapshot(then_ms)
        except TableNotFound:
            if is_optional(wanted):
                return None
            if not _is_about_none(context):
                raise
            return empty(wanted, table=uri)
        metadata = context.definition_metadata or {}
        where = None if type_name(wanted) == "icedb.Snapshot" else _partitions_of(context, snapshot)
        session = partial(self._spark_session, context, uri)
        rows = load(Rows.of(snapshot, where, metadata, session), wanted)
        _report_read(context, snapshot)
        return rows

    def _spark_session(self, context: dg.InputContext, uri: str) -> Any:
        step = _step(context)
        resources = [self.pyspark, *(step.resources._asdict().values() if step is not None else ())]
        return spark_session(resources, table=uri)


def _opens_tables(lake: object) -> bool:
    """Return whether a value is an `IceDBResource`, or a definition of which Dagster makes one."""
    if hasattr(lake, "table_or_create") or isinstance(lake, dg.ResourceDefinition):
        return True
    of_partial = getattr(lake, "resource_cls", None)  # of configure_at_launch()
    return isinstance(of_partial, type) and issubclass(of_partial, IceDBResource)


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
    predicate = _predicate(selection, snapshot) if snapshot.schema else None
    rejects_dropped = on_dropped(context.definition_metadata or {}, snapshot.table) == "raise"
    if rejects_dropped and (step := _step(context)) is not None and "as_of" not in (context.config or {}):
        check_not_dropped(step.instance, context.asset_key, selection, snapshot)
    return predicate


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
    """Check the partitions of an overwrite before any row is read. Other rows may be in any partition."""
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
    step = _step(context)
    if step is not None and selection is not None and len(selection.keys) > 1:
        metadata.pop(PARTITION_ROWS, None)  # each partition would show the sum of all
        if predicate is not None:
            large = {name: metadata.pop(name) for name in LARGE_METADATA if name in metadata}
            _report_each_partition(context, step, snapshot, selection, large)
    context.add_output_metadata({**metadata, **commit_figures, **_lineage(context)})
    if step is not None and not step.has_data_version(context.asset_key):
        step.set_data_version(context.asset_key, dg.DataVersion(snapshot.id))


def _lineage(context: dg.OutputContext) -> Mapping[str, Any]:
    """Return the lineage of columns that the asset's definition states. The UI shows that of materializations only."""
    lineage = (context.definition_metadata or {}).get(COLUMN_LINEAGE)
    return {} if lineage is None or COLUMN_LINEAGE in (context.output_metadata or {}) else {COLUMN_LINEAGE: lineage}


def _report_each_partition(
    context: dg.OutputContext, step: Any, snapshot: Snapshot, selection: Selection, large: Mapping[str, Any]
) -> None:
    """Report the rows of each partition in its event, and metadata with large values in the last one only."""
    for key, parts in parts_by_key(snapshot, selection).items():
        rows = partition_rows(snapshot, partial(list, parts))
        of_key = {**rows, **(large if key == selection.keys[-1] else {})}
        step.add_asset_metadata(of_key, asset_key=context.asset_key, partition_key=key)


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


def _figures(written: Commit | UpsertReport, commit: Commit, options: AssetOptions) -> Mapping[str, Any]:
    """Return the figures of the output: `repeated` is true if an earlier try of the step had added the rows."""
    figures: dict[str, Any] = {"icedb/mode": options.mode, "icedb/rows_written": commit.rows}
    if isinstance(written, UpsertReport):
        # The commit also names the parts that were rewritten without the rows that changed.
        figures["icedb/rows_written"] = written.inserted_rows + written.updated_rows
        figures |= {f"icedb/{name}": getattr(written, name) for name in _UPSERT_FIGURES}
    if options.mode != "overwrite":
        figures["icedb/repeated"] = commit.repeated
    if options.on_conflict == "quarantine":
        figures["icedb/rows_quarantined"] = commit.quarantined_rows
    return figures
