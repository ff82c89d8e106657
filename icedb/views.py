"""Materialized views: tables that every insert into another table feeds, with the answer of a query over its rows.

A view is a table of its own beside its source, and the source's spec names it. `_rows`, in its query, are the rows of
one insert as they were stored. An insert writes the view's parts first, then publishes its own, then the view's: what
the view shows was committed. With a `txn` both tables record it, so a retry completes what a crash left undone; without
one, a crash between the two commits leaves the view behind until it is refreshed. What changes rows that are there
(overwrite, delete, drop, restore) does not reach a view: refresh it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from icedb.commit import Commit
from icedb.declared import ROWS, check_name
from icedb.engine import connect_reader, memory_bytes_default, quote_name
from icedb.errors import IceDBError, InvalidOption, TableNotFound, ViewBehind
from icedb.handle import Handle
from icedb.inputs import Batch
from icedb.maintenance.alter import alter
from icedb.opening import create_handle, open_beside
from icedb.parts import WrittenParts, discard, put_parts
from icedb.publishing import prepare, publish_append, publish_overwrite
from icedb.queries import check_query
from icedb.scan import relation
from icedb.spec import TableSpec, View
from icedb.staging import ROWS_PER_BATCH, Stage, stage_rows
from icedb.store import open_store
from icedb.transactions import Txn

__all__ = ["ViewParts", "create_view", "drop_view", "publish_views", "refresh_view", "write_views"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ViewParts:
    """What an insert wrote for a view, and nothing names yet."""

    name: str
    handle: Handle
    written: WrittenParts


def write_views(handle: Handle, stage: Stage) -> list[ViewParts]:
    """Write the parts of all views for a staged batch. Raises what is wrong with one; nothing is left then."""
    views: list[ViewParts] = []
    try:
        for view in handle.spec.views:
            target = _open(handle, view)
            written = _write(target, view, stage.stream(), source=f"view of {handle.table}")
            views.append(ViewParts(view.name, target, written))
    except BaseException:
        discard_views(views)
        raise
    return views


def discard_views(views: Sequence[ViewParts]) -> None:
    """Delete what was written for views whose source was not committed."""
    for view in views:
        discard(view.handle.store, [m.key for m in view.written.markers])


def publish_views(handle: Handle, views: Sequence[ViewParts], txn: Txn | None) -> None:
    """Publish what was written for views, after their source was committed. Raises ViewBehind, for all that failed."""
    behind: dict[str, str] = {}
    for view in views:
        try:
            publish_append(view.handle, view.written, txn=txn)
        except IceDBError as error:
            behind[view.name] = str(error)
    if behind:
        name, reason = next(iter(behind.items()))
        again = f"Insert again with the same txn {txn}" if txn else f"Do not insert again: refresh_view('{name}')"
        raise ViewBehind(
            f"{handle.table}: the rows are committed, and the views {sorted(behind)} lack them ({reason}). {again}."
        )


def create_view(handle: Handle, name: str, query: str, spec: TableSpec, *, backfill: bool = True) -> Handle:
    """Create the table of a view, have every insert feed it, and fill it with what is there.

    Raises InvalidOption, InvalidQuery, InvalidURI, TableExists, and as `alter` and `refresh_view` do.
    """
    check_name(name, table=handle.table)
    check_query(query, relation=ROWS, table=handle.table, what=f"query of the view '{name}'")
    if handle.location.beside(name) == handle.location:
        raise InvalidOption(f"{handle.table}: a table cannot be a view of itself. Give it another name.")
    if spec.insert_query:
        raise InvalidOption(f"{handle.table}: the view '{name}' has a query already; it takes no insert_query.")
    target = create_handle(
        open_store(handle.location.beside(name)), spec, timing=handle.timing, fencing=handle.fencing, clock=handle.clock
    )

    def add(now: TableSpec) -> TableSpec:
        return msgspec.structs.replace(now, views=(*(v for v in now.views if v.name != name), View(name, query)))

    alter(handle, add)
    if backfill and handle.read().live:
        refresh_view(handle, name)
    return target


def drop_view(handle: Handle, name: str) -> None:
    """Feed a view no longer; its table stays as it is. Raises InvalidOption when there is no such view."""
    _view(handle, name)

    def remove(now: TableSpec) -> TableSpec:
        return msgspec.structs.replace(now, views=tuple(v for v in now.views if v.name != name))

    alter(handle, remove)


def refresh_view(handle: Handle, name: str, *, memory_bytes: int | None = None) -> Commit:
    """Make a view anew from all rows of its source, in one commit that replaces what it has.

    Nobody should insert meanwhile: such rows could be missing in the view, or be there twice.
    Raises InvalidOption, MissingPart, InvalidQuery, and as `Table.overwrite` does.
    """
    view = _view(handle, name)
    target = _open(handle, view)
    memory_bytes = memory_bytes or memory_bytes_default() // 2
    folder = Path(tempfile.mkdtemp(prefix="icedb-view-"))
    try:
        with connect_reader(handle.location, memory_bytes=memory_bytes, folder=folder) as con:
            con.execute("SET arrow_lossless_conversion = true")
            state = handle.read(fresh=True)
            parts = [handle.part(m) for m in state.live]
            columns = ", ".join(map(quote_name, handle.columns))
            rows = f"SELECT {columns} FROM ({relation(handle, parts, handle.columns, {})})"
            stream = con.execute(rows).to_arrow_reader(ROWS_PER_BATCH)
            source = f"view of {handle.table}"
            written = _write(target, view, stream, source=source, memory_bytes=memory_bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return publish_overwrite(target, written, None)


def _view(handle: Handle, name: str) -> View:
    handle.read()
    for view in handle.spec.views:
        if view.name == name:
            return view
    raise InvalidOption(
        f"{handle.table}: there is no view '{name}' (there are {[v.name for v in handle.spec.views]})."
    )


def _open(handle: Handle, view: View) -> Handle:
    try:
        target = open_beside(handle, check_name(view.name, table=handle.table))
    except TableNotFound as error:
        raise TableNotFound(
            f"{handle.table}: its view '{view.name}' is not there ({error}). Restore it, or drop_view('{view.name}')."
        ) from None
    prepare(target)
    return target


def _write(
    target: Handle, view: View, stream: pa.RecordBatchReader, *, source: str, memory_bytes: int | None = None
) -> WrittenParts:
    query = check_query(view.query, relation=ROWS, table=target.table, what=f"query of the view '{view.name}'")
    batch = Batch(stream, source=source, is_answer=True)
    with stage_rows(target.write_context(), batch, query=query, memory_bytes=memory_bytes) as stage:
        return put_parts(stage, store=target.store, clock=target.clock)
