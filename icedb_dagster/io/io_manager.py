"""Store what assets return, and load what they ask for: one asset, one table, one commit for each materialization.

An output is written as parts first and becomes visible in one commit, or not at all. `overwrite` (the default) replaces
the rows of exactly the partitions of the run, atomically; of an asset without partitions, all rows. `append` adds rows,
exactly once for a run, a step and a partition. A table that is missing is created.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from icedb import Snapshot, Table
from icedb.errors import InvalidOption, TableNotFound
from icedb.format.table_spec import ROW_GROUP_ROWS
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn
from icedb.util.times import parse_as_of
from icedb_dagster.io.inputs import Rows, load, nothing, type_name
from icedb_dagster.io.options import AssetOptions, Mode, has_partition_expr, partition_columns
from icedb_dagster.io.outputs import check_output, is_of_table, transaction, write
from icedb_dagster.metadata.spark_progress import frame_progress
from icedb_dagster.metadata.table_metadata import commit_metadata, materialization_metadata
from icedb_dagster.partitioning.alignment import check_alignment
from icedb_dagster.partitioning.partitions import Selection, select_partitions
from icedb_dagster.resource import IceDBResource
from icedb_dagster.resource_fields import CheckedFields

__all__ = ["IceDBIOManager"]


class IceDBIOManager(CheckedFields, dg.ConfigurableIOManager):
    """Stores assets as IceDB tables, and loads them.

    Outputs: pyarrow Table, RecordBatch, RecordBatchReader and Dataset, frames of pandas, Polars (lazy ones too) and
    Spark, DuckDB relations, lists of dicts, an `icedb.Snapshot`; None, or a snapshot of the asset's own table, when the
    asset wrote by itself. Inputs, by annotation: the same, a pyarrow Table without one; their metadata may have
    `columns` and `where`, their run config `as_of`.

    Every field but `icedb` holds for all assets, and `icedb/<field>` in an asset's metadata for that one.

    `mode`: `overwrite` or `append`. `on_conflict`: what becomes of values of another type than their column's; see
    `Table.insert`. `on_empty`: an overwrite without rows is an error (`raise`), or empties the partitions (`clear`).
    `preview_rows`: how many rows the event log gets to see. The others are for tables that are made; see
    `Table.create`. An asset with partitions says in its metadata which partition column of the table tells them apart:
    `partition_expr`, one text, or one for each dimension.
    """

    icedb: dg.ResourceDependency[IceDBResource]
    mode: str = "overwrite"
    on_conflict: str = "raise"
    on_empty: str = "raise"
    preview_rows: int = 5
    partition_by: list[str] = Field(default=[])
    sort_by: list[str] = Field(default=[])
    compression: str = "zstd"
    row_group_rows: int = ROW_GROUP_ROWS
    required: list[str] = Field(default=[])
    schema_policy: str = "open"

    @classmethod
    def input_config_schema(cls) -> Any:
        """What the run config may say of an input: `ops: {asset: {inputs: {upstream: {as_of: ...}}}}`.

        Dagster takes it of an `AssetIn` that names the IO manager as its `input_manager_key`.
        """
        time = "Read the table as it was: a time with its zone (2026-11-21T12:00:00Z), or unix milliseconds."
        return {"as_of": dg.Field(dg.Any, is_required=False, description=time)}

    # ------------------------------------------------------------------------------------ outputs

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Commit an asset's output. Raises InvalidBatch, InvalidOption, and as `Table.insert` and `overwrite` do."""
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
        told = {} if commit is None else {**_figures(commit, options), **_told_commit(table, commit, txn)}
        _report(context, table.snapshot(), told, options, selection)

    def _options(
        self, context: dg.OutputContext, uri: str, *, wrote_itself: bool
    ) -> tuple[AssetOptions, Selection | None]:
        """The asset's options, and the partitions of the run; None for an asset that has none."""
        metadata = context.definition_metadata or {}
        partitions = _definition_of(context)
        if wrote_itself and not (context.has_asset_partitions and has_partition_expr(metadata)):
            partitions = None  # nothing is written here, and nothing told of partitions
        if partitions is not None and not context.has_asset_partitions:
            raise InvalidOption(
                f"{uri}: the asset is partitioned, and the run has no partition: an output would stand for all of "
                "them. Give the run a partition, or a range of them."
            )
        options = AssetOptions.of(self._defaults(), metadata, partitions, table=uri)
        if partitions is None:
            return options, None
        return options, select_partitions(partitions, context.asset_partition_keys, options.columns, table=uri)

    # ------------------------------------------------------------------------------------ inputs

    def load_input(self, context: dg.InputContext) -> Any:
        """The upstream asset's rows, as the annotation wants them.

        A table need not be there yet for a run that depends on none of its partitions: it is how one begins that
        depends on its own last.

        Raises TableNotFound, InvalidOption, UnknownColumn, SnapshotExpired, and as `Snapshot.query` does.
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
            return nothing(wanted, table=uri)
        where = None if type_name(wanted) == "icedb.Snapshot" else _partitions_of(context, snapshot)
        rows = load(Rows.of(snapshot, where, context.definition_metadata or {}), wanted)
        # An observation is of one partition or of the whole asset: Dagster has none of several.
        if not context.has_asset_partitions or len(context.asset_partition_keys) == 1:
            context.add_input_metadata({"icedb/snapshot_id": snapshot.id, "icedb/snapshot_time_ms": snapshot.as_of_ms})
        return rows

    def _uri(self, context: dg.OutputContext | dg.InputContext) -> str:
        if not context.has_asset_key:
            raise InvalidOption(
                f"{self.icedb.root}: the IO manager stores assets, and '{context.name}' of the op "
                f"'{context.op_def.name}' is none, so it has no table. Give it another IO manager."
            )
        return self.icedb.uri(context.asset_key)

    def _defaults(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields if name != "icedb"}


def _definition_of(context: dg.OutputContext | dg.InputContext) -> dg.PartitionsDefinition | None:
    """The partitions of the context's asset, also when the run has none."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None


def _partitions_of(context: dg.InputContext, snapshot: Snapshot) -> str | None:
    """The predicate of the upstream partitions that the run depends on; None for all rows."""
    partitions = _definition_of(context)
    if partitions is None or not context.has_asset_partitions or _is_about_all(context):
        return None
    upstream = context.upstream_output
    metadata = {**(context.definition_metadata or {}), **((upstream and upstream.definition_metadata) or {})}
    columns = partition_columns(metadata, partitions, table=snapshot.table)
    selection = select_partitions(partitions, context.asset_partition_keys, columns, table=snapshot.table)
    return _predicate(selection, snapshot) if snapshot.schema else None


def _is_about_all(context: dg.InputContext) -> bool:
    """Whether an asset without partitions depends on one that has some, as a whole: no mapping chooses among them.

    Then it is about all rows of the table, also those of no partition that there is now: late ones, and today's.
    """
    step = _step(context)
    if step is None or step.entity_partitions_def is not None:
        return False
    mapping = step.assets_def and step.assets_def.get_partition_mapping_for_dep(context.asset_key)
    return mapping is None or isinstance(mapping, dg.AllPartitionMapping)


def _is_about_none(context: dg.InputContext) -> bool:
    """Whether the run is mapped to no partition of the upstream asset."""
    return context.has_asset_partitions and not context.asset_partition_keys and not _is_about_all(context)


def _predicate(selection: Selection, snapshot: Snapshot) -> str:
    """Raises InvalidOption when the table's partitions do not tell those of the asset apart."""
    predicate = selection.predicate(snapshot.partition_schema)
    check_alignment(selection, snapshot.expressions, snapshot.schema)
    return predicate


def _check_partitions(table: Table, selection: Selection, mode: Mode) -> None:
    """What is wrong with the partitions is said before a row is read, as far as the table knows its columns.

    Rows are appended to whatever partitions they are of; only what is replaced must be told apart.
    """
    if not selection.keys:
        raise InvalidOption(f"{table.uri}: the run has no partition of the asset, so there is nowhere to put rows.")
    snapshot = table.snapshot()
    selection.check(e.name for e in table.handle.expressions)
    if mode == "overwrite" and snapshot.partition_schema:
        _predicate(selection, snapshot)


def _transaction(context: dg.OutputContext, selection: Selection | None) -> Txn | None:
    """None for an output without a run: it is never tried again."""
    if (step := _step(context)) is None:
        return None
    run = step.dagster_run
    return transaction(run.root_run_id or run.run_id, step.step.key, selection.keys if selection else ())


def _step(context: dg.OutputContext | dg.InputContext) -> Any:
    """The step of the run, or None for a context that a test has built."""
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return None


def _report(
    context: dg.OutputContext,
    snapshot: Snapshot,
    told: Mapping[str, Any],
    options: AssetOptions,
    selection: Selection | None,
) -> None:
    """What the materialization says of the table, and its data version, unless the asset has given one.

    `told`: what it says of the commit.
    """
    predicate = _told_partitions(snapshot, selection)
    metadata = materialization_metadata(snapshot, partitions=predicate, preview_rows=options.preview_rows)
    if selection is not None and len(selection.keys) > 1:
        metadata.pop("dagster/partition_row_count", None)  # each of the partitions would get the sum of all
    context.add_output_metadata({**metadata, **told})
    step = _step(context)
    if step is not None and not step.has_data_version(context.asset_key):
        step.set_data_version(context.asset_key, dg.DataVersion(snapshot.id))


def _told_partitions(snapshot: Snapshot, selection: Selection | None) -> str | None:
    """The predicate of the run's partitions; None if the table cannot tell them apart: the rows are committed."""
    try:
        return _predicate(selection, snapshot) if selection and snapshot.schema else None
    except InvalidOption:
        return None


def _told_commit(table: Table, commit: Commit, txn: Txn | None) -> Mapping[str, Any]:
    """Which commit it was, so that no sensor tells of it again. An earlier try's is told by its time alone."""
    if commit.key is not None and commit.created_ms is not None:
        return commit_metadata(commit.created_ms, commit.key, [part.key for part in commit.parts])
    if commit.repeated and txn is not None:
        _, created_ms = table.handle.read().txn.get(txn[0], (0, None))
        return {} if created_ms is None else commit_metadata(created_ms)
    return {}


def _figures(commit: Commit, options: AssetOptions) -> Mapping[str, Any]:
    """What the output did: `repeated` is true when an earlier try of the step had added the rows already."""
    figures: dict[str, Any] = {"icedb/mode": options.mode, "icedb/rows_written": commit.rows}
    if options.mode == "append":
        figures["icedb/repeated"] = commit.repeated
    if options.on_conflict == "quarantine":
        figures["icedb/rows_quarantined"] = commit.quarantined_rows
    return figures
