"""Dry runs of insert and overwrite. Rows are staged as in a write, and nothing is put into the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from icedb.format.records import Marker, total_rows
from icedb.format.table_spec import SchemaMode, all_columns
from icedb.operations.commits.drop_partitions import Chosen, parts_to_replace
from icedb.operations.commits.publish import refuse_overwrite
from icedb.operations.write.insert import accepting_all, staged
from icedb.sources.batch import Rows, WriteOptions
from icedb.sql.types import check_columns, new_columns
from icedb.transaction.idempotent_append import Txn, is_recorded
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts
from icedb.writer.staged_batch import StagedBatch

__all__ = ["WritePlan", "plan_write"]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The commit that a write would make. Columns have DuckDB types, and partitions are paths.

    `quarantined_rows` would go to the quarantine. An overwrite would replace `replaced_parts` with `replaced_rows`,
    which is None if the log does not have a part's row count. `repeated`: the transaction (idempotency key) is
    committed already, so nothing would be added.
    """

    table: str
    rows: int
    new_parts: int
    partitions: tuple[str, ...]
    new_columns: Mapping[str, str]
    quarantined_rows: int
    replaced_parts: int
    replaced_rows: int | None
    repeated: bool


def plan_write(
    handle: Handle,
    data: Rows,
    *,
    replaces: bool,
    partitions: Chosen | None = None,
    schema_mode: SchemaMode = "merge",
    txn: Txn | None = None,
    **options: Unpack[WriteOptions],
) -> WritePlan:
    """Plan an insert, or with `replaces` an overwrite of these partitions (None: of the whole table). Write nothing."""
    with staged(accepting_all(handle, schema_mode, partitions), data, dry_run=True, **options) as (stage, _):
        written = _as_written(handle, stage)
        misfits = stage.misfits
    schema = handle.known_schema
    check_columns(written.schema, all_columns(handle.spec, schema), table=handle.table)
    state = handle.read(fresh=True)
    replaced = []
    if replaces:
        refuse_overwrite(handle, written, partitions)
        replaced = [state.parts[k] for k in parts_to_replace(handle, state, partitions)]
    repeated = txn is not None and is_recorded(state, txn)
    markers = () if repeated else written.markers
    return WritePlan(
        table=handle.table,
        rows=sum(m.rows or 0 for m in markers),
        new_parts=len(markers),
        partitions=tuple(sorted({handle.part(m).partition for m in markers})),
        new_columns=new_columns(written.schema, schema) if markers else {},
        quarantined_rows=0 if repeated else misfits,
        replaced_parts=len(replaced),
        replaced_rows=total_rows(replaced),
        repeated=repeated,
    )


def _as_written(handle: Handle, stage: StagedBatch) -> WrittenParts:
    """Return the parts that would be written, under new keys. Their sizes are unknown, so they are 0."""
    markers = tuple(
        Marker(handle.keys.part(r.partition, handle.clock.new_id()), 0, 0, rows=r.rows) for r in stage.ranges
    )
    return WrittenParts(stage.columns, markers, handle.clock.now_ms())
