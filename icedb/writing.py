"""From rows of any shape to a commit: what `Table.insert` and `Table.overwrite` do.

A batch may concern other tables than its own: rows that do not fit go to the table's quarantine, and views are fed
(`icedb.views`). The quarantine is committed first, so that no row is lost; a view last, for it shows what is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

from icedb.commit import Commit
from icedb.engine import check_write_memory
from icedb.errors import InvalidOption
from icedb.handle import Handle
from icedb.inputs import Batch, OnConflict, Rows, open_batch
from icedb.opening import open_beside
from icedb.parts import put_parts
from icedb.publishing import prepare, publish_append, publish_overwrite
from icedb.spec import TableSpec
from icedb.staging import QUARANTINE_COLUMNS, Stage, stage_rows
from icedb.transactions import Txn, is_recorded, repeated
from icedb.views import discard_views, publish_views, write_views

__all__ = ["insert", "overwrite"]


def insert(
    handle: Handle,
    data: Rows,
    *,
    txn: Txn | None = None,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
) -> Commit:
    """Append rows; see `Table.insert`."""
    done = txn is not None and is_recorded(handle.read(fresh=True), txn)
    if done and not handle.spec.views:
        return repeated(handle)
    with _staged(handle, data, on_conflict, memory_bytes) as stage:
        aside = _set_aside(handle, stage, txn)
        views = write_views(handle, stage)
        try:
            if done:
                commit = repeated(handle)
            else:
                written = put_parts(stage, store=handle.store, clock=handle.clock)
                commit = publish_append(handle, written, txn=txn)
        except BaseException:
            discard_views(views)  # never published: only a source that is committed has its views published
            raise
        publish_views(handle, views, txn)
    return replace(commit, quarantined_rows=stage.misfits, quarantine=aside)


def overwrite(
    handle: Handle,
    data: Rows,
    partitions: Sequence[str] | str | None,
    *,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
) -> Commit:
    """Replace live parts by rows; see `Table.overwrite`."""
    with _staged(handle, data, on_conflict, memory_bytes) as stage:
        aside = _set_aside(handle, stage, None)
        written = put_parts(stage, store=handle.store, clock=handle.clock)
    commit = publish_overwrite(handle, written, partitions)
    return replace(commit, quarantined_rows=stage.misfits, quarantine=aside)


@contextmanager
def _staged(handle: Handle, data: Rows, on_conflict: OnConflict, memory_bytes: int | None) -> Iterator[Stage]:
    if on_conflict not in get_args(OnConflict):
        raise InvalidOption(f"{handle.table}: on_conflict is {on_conflict!r}; give 'raise', 'cast' or 'quarantine'.")
    memory_bytes = check_write_memory(memory_bytes, table=handle.table)
    prepare(handle)
    # A query makes the table's columns of others, which may have the same names.
    known = {} if handle.spec.insert_query else handle.columns
    context = handle.write_context()
    with (
        open_batch(data, location=handle.location, known=known, on_conflict=on_conflict) as batch,
        stage_rows(context, batch, on_conflict=on_conflict, memory_bytes=memory_bytes) as stage,
    ):
        yield stage


def _set_aside(handle: Handle, stage: Stage, txn: Txn | None) -> str | None:
    """Commit the rows that do not fit to the table's quarantine, whose address it returns; None when there are none."""
    if not stage.misfits:
        return None
    spec = TableSpec(id=handle.clock.new_id(), columns=dict(QUARANTINE_COLUMNS), sort_by=("quarantined_at",))
    quarantine = open_beside(handle, f"{handle.location.name}_quarantine", spec)
    prepare(quarantine)
    rows = Batch(stage.set_aside(handle.clock.now_ms()))
    with stage_rows(quarantine.write_context(), rows) as staged:
        written = put_parts(staged, store=quarantine.store, clock=quarantine.clock)
    publish_append(quarantine, written, txn=txn)
    return quarantine.table
