"""Materialized views: tables that every insert into another table feeds, with the result of a query over its rows.

A view is a table of its own next to its source, and the source's spec names it. `_rows` in its query are the rows of
one insert as they were stored. A view may have views of its own. An insert writes the parts of all views first, then
publishes its own parts, then those of the views, from the top. So a view only shows rows that its source has committed.
An insert that leaves no rows in its source feeds nothing.

With a `txn` (idempotency key) all these tables record it, so a retry completes an interrupted insert. Without one, a
crash between the commits, or a commit with an unknown outcome, leaves the view stale until it is refreshed. Changes of
existing rows (overwrite, delete, drop, restore, a view's own refresh) do not reach a view: refresh it. A refreshed view
records the transactions of its source, so a retry of one of them does not duplicate its rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from icedb.errors import IceDBError, InvalidOption, StaleView, TableNotFound
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, ViewSpec
from icedb.operations.commits.actions import Replace
from icedb.operations.commits.alter import alter
from icedb.operations.commits.publish import prepare, publish_append
from icedb.reader.scan_sql import relation
from icedb.sources.batch import Batch
from icedb.sql.connection_pool import reader, scratch_connection
from icedb.sql.connections import (
    ROWS_PER_BATCH,
    WRITE_MEMORY_BYTES_MIN,
    check_write_memory,
    quote_name,
)
from icedb.sql.partition_expressions import partition_expressions
from icedb.sql.types import typed_nothing
from icedb.sql.user_queries import UserQuery, check_query
from icedb.transaction.append import Commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.idempotent_append import Txn
from icedb.transaction.open_table import create_handle, open_sibling, quarantine_name
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder
from icedb.writer.batch_schema import WriteContext
from icedb.writer.part_writer import WrittenParts, discard, put_parts
from icedb.writer.spec_validation import ROWS, check_name, checked_spec
from icedb.writer.staged_batch import StagedBatch
from icedb.writer.staging import stage_rows

__all__ = [
    "ViewParts",
    "create_view",
    "discard_views",
    "drop_view",
    "half_of",
    "publish_views",
    "refresh_view",
    "write_views",
]


@dataclass(frozen=True, slots=True)
class ViewParts:
    """The parts that an insert wrote for a view, and for the views of that view. No log file names them yet."""

    name: str
    handle: Handle
    written: WrittenParts
    views: Sequence[ViewParts]


def write_views(
    handle: Handle, stage: StagedBatch, *, memory_bytes: int | None = None, partitions_max: int | None = None
) -> list[ViewParts]:
    """Write the parts of all views for a staged batch. If one fails, raise its error and leave no parts.

    `memory_bytes` is for the views alone. `partitions_max` limits the partitions of the rows in each view; see
    `StagedBatch.check_partitions`.
    """
    views: list[ViewParts] = []
    if not stage.rows:
        return views
    try:
        for view in handle.spec.views:
            target = _open(handle, view)
            views.append(_write_with_views(handle, target, view, stage, memory_bytes, partitions_max))
    except BaseException:
        discard_views(views)
        raise
    return views


def discard_views(views: Sequence[ViewParts]) -> None:
    """Delete the parts of views whose source was not committed."""
    for view in views:
        discard(view.handle.store, [m.key for m in view.written.markers])
        discard_views(view.views)


def publish_views(handle: Handle, views: Sequence[ViewParts], txn: Txn | None) -> None:
    """Publish the parts of views, after their source was committed. Raises StaleView for all that failed."""
    behind = _publish(views, txn)
    if behind:
        name, reason = next(iter(behind.items()))
        remedy = f"Insert again with the same txn {txn}" if txn else f"Do not insert again: refresh_view('{name}')"
        raise StaleView(
            f"{handle.table}: the rows are committed, and the views {sorted(behind)} lack them ({reason}). {remedy}."
        )


def _publish(views: Sequence[ViewParts], txn: Txn | None) -> dict[str, str]:
    """Publish views and return the failed ones with their reasons. The views of a failed view are left out."""
    behind: dict[str, str] = {}
    for view in views:
        try:
            publish_append(view.handle, view.written, txn=txn)
        except IceDBError as error:
            behind[view.name] = str(error)
            discard_views(view.views)
        else:
            behind |= {f"{view.name}/{below}": reason for below, reason in _publish(view.views, txn).items()}
    return behind


def create_view(handle: Handle, name: str, query: str, spec: TableSpec, *, backfill: bool = True) -> Handle:
    """Create the table of a view, add the view to the source's spec, and fill it with the existing rows.

    The same view may be created again. That completes an interrupted creation, and feeds a dropped view again. Raises
    InvalidOption, InvalidQuery, InvalidURI, TableExists, and the errors of `alter` and `refresh_view`.
    """
    check_name(name, table=handle.table)
    check_query(query, relation=ROWS, table=handle.table, what=f"query of the view '{name}'")
    if handle.location.sibling(name) == handle.location:
        raise InvalidOption(f"{handle.table}: a table cannot be a view of itself. Give it another name.")
    if name == quarantine_name(handle):
        raise InvalidOption(f"{handle.table}: '{name}' is for rows that do not fit. Give the view another name.")
    if spec.insert_query:
        raise InvalidOption(f"{handle.table}: the view '{name}' has a query already; it takes no insert_query.")
    _check_fits(handle, name, query, spec)
    store = handle.store.sibling(handle.location.sibling(name))
    spec = msgspec.structs.replace(spec, id=_view_id(handle, ViewSpec(name, query)))
    target = create_handle(store, spec, timing=handle.spec.timing, fencing=handle.fencing, clock=handle.clock)

    def add(now: TableSpec) -> TableSpec:
        return msgspec.structs.replace(now, views=(*(v for v in now.views if v.name != name), ViewSpec(name, query)))

    alter(handle, add)
    if backfill:
        refresh_view(handle, name)
    else:
        sequences = _sequences(handle.read(fresh=True))
        commit_exclusive(target, Replace(lambda now: (), sequences=sequences, operation="refresh"))
    return target


def _check_fits(handle: Handle, name: str, query: str, spec: TableSpec) -> None:
    """Run the query over no rows, because a view with a failing query would reject every insert. Raises as `insert`."""
    handle.read()
    if not handle.columns:
        return  # the columns are not known yet
    location = handle.location.sibling(name)
    spec = checked_spec(spec, table=location.uri)
    context = WriteContext(location, spec, partition_expressions(spec, table=location.uri), dict(spec.columns))
    user_query = check_query(query, relation=ROWS, table=handle.table, what=f"query of the view '{name}'")
    with scratch_connection() as con:
        nothing = con.execute(typed_nothing(handle.columns)).to_arrow_reader(ROWS_PER_BATCH)
        batch = Batch(nothing, is_answer=True)
        with stage_rows(context, batch, query=user_query):
            return


def drop_view(handle: Handle, name: str) -> None:
    """Stop feeding a view. Its table stays unchanged. Raises InvalidOption if there is no such view."""
    _view(handle, name)

    def remove(now: TableSpec) -> TableSpec:
        return msgspec.structs.replace(now, views=tuple(v for v in now.views if v.name != name))

    alter(handle, remove)


def refresh_view(handle: Handle, name: str, *, memory_bytes: int | None = None) -> Commit:
    """Compute a view again from all rows of its source, in one commit that replaces its rows, possibly by none.

    Do not insert meanwhile: such rows could be missing in the view, or be duplicated. Raises InvalidOption,
    MissingPart, InvalidQuery, SchemaConflict, and the errors of exclusive commits.
    """
    view = _view(handle, name)
    memory_bytes = check_write_memory(memory_bytes, table=handle.table)
    target = _open(handle, view)
    state = handle.read(fresh=True)
    written = _write_all(handle, target, view, state, memory_bytes // 2) if state.live else None
    refresh = Replace(lambda now: [m.key for m in now.live], written, sequences=_sequences(state), operation="refresh")
    return commit_exclusive(target, refresh)


def _write_all(handle: Handle, target: Handle, view: ViewSpec, state: TableState, memory_bytes: int) -> WrittenParts:
    """Write the view's parts for all live rows of its source."""
    size = sum(m.bytes for m in state.live)
    with (
        temporary_folder("view") as folder,
        reader(handle.location, read_bytes=size, memory_bytes=memory_bytes, folder=folder, lossless=True) as con,
    ):
        rows = relation(handle, [handle.part(m) for m in state.live], handle.columns, {})
        columns = ", ".join(map(quote_name, handle.columns))
        stream = con.execute(f"SELECT {columns} FROM ({rows})").to_arrow_reader(ROWS_PER_BATCH)
        with _staged(handle, target, view, stream, memory_bytes=memory_bytes) as stage:
            return put_parts(stage, store=target.store, clock=target.clock)


def _sequences(state: TableState) -> dict[str, int]:
    """Return the transactions of a source, to be recorded as committed in a new or refreshed view."""
    return {application: sequence for application, (sequence, _) in state.txn.items()}


def _view(handle: Handle, name: str) -> ViewSpec:
    handle.read()
    for view in handle.spec.views:
        if view.name == name:
            return view
    raise InvalidOption(f"{handle.table}: there is no view '{name}' (there are {[v.name for v in handle.spec.views]}).")


def _view_id(handle: Handle, view: ViewSpec) -> str:
    """Return the id of a view's table. It distinguishes the table of an interrupted creation from another table.

    It also protects other tables: a manipulated spec cannot direct inserts to a table that is no view.
    """
    return hashlib.sha256(f"{handle.spec.id}\n{view.name}\n{view.query}".encode()).hexdigest()[:32]


def _query_of(handle: Handle, view: ViewSpec) -> UserQuery:
    return check_query(view.query, relation=ROWS, table=handle.table, what=f"query of the view '{view.name}'")


def _open(handle: Handle, view: ViewSpec) -> Handle:
    _query_of(handle, view)  # another program may have written it
    try:
        target = open_sibling(handle, check_name(view.name, table=handle.table))
    except TableNotFound as error:
        raise TableNotFound(
            f"{handle.table}: its view '{view.name}' does not exist ({error}). Restore it, or drop_view('{view.name}')."
        ) from None
    if target.spec.id != _view_id(handle, view):
        raise InvalidOption(
            f"{handle.table}: '{target.table}' is another table, and no view of this one. Nothing was written. Call "
            f"drop_view('{view.name}'), or create the view under another name."
        )
    prepare(target)
    return target


def _write_with_views(
    handle: Handle,
    target: Handle,
    view: ViewSpec,
    stage: StagedBatch,
    memory_bytes: int | None,
    partitions_max: int | None,
) -> ViewParts:
    memory_bytes = half_of(memory_bytes) if target.spec.views else memory_bytes
    with _staged(handle, target, view, stage.stream(), memory_bytes=memory_bytes) as answer:
        answer.check_partitions(partitions_max)
        views = write_views(target, answer, memory_bytes=memory_bytes, partitions_max=partitions_max)
        try:
            written = put_parts(answer, store=target.store, clock=target.clock)
        except BaseException:
            discard_views(views)
            raise
    return ViewParts(view.name, target, written, views)


def _staged(
    handle: Handle, target: Handle, view: ViewSpec, stream: pa.RecordBatchReader, *, memory_bytes: int | None
) -> AbstractContextManager[StagedBatch]:
    query = _query_of(target, view)
    batch = Batch(stream, source=f"view of {handle.table}", is_answer=True)
    return stage_rows(target.write_context(), batch, query=query, memory_bytes=memory_bytes)


def half_of(memory_bytes: int | None) -> int | None:
    """Return half of a writer's memory, for a second writer at the same time."""
    return None if memory_bytes is None else max(memory_bytes // 2, WRITE_MEMORY_BYTES_MIN)
