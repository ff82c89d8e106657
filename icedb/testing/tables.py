"""Tables in stores that have no address: those of `icedb.testing`, or any store with faults around it."""

from __future__ import annotations

from collections.abc import Sequence

from icedb.format.replay import TableState, live_to_v3_readers
from icedb.format.table_spec import TableSpec, encode_spec
from icedb.format.timing import Timing
from icedb.storage.obstore_store import ObjectStore
from icedb.table import Table
from icedb.transaction.log_reader import LogReader
from icedb.transaction.open_table import open_handle
from icedb.util.clock import Clock

__all__ = ["check_sound", "create_table", "live_to_v3_readers", "open_table"]


def create_table(
    store: ObjectStore,
    clock: Clock,
    *,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    timing: Timing | None = None,
) -> Table:
    """An empty table in a store."""
    spec = TableSpec(
        id=clock.new_id(), partition_by=tuple(partition_by), sort_by=tuple(sort_by), timing=timing or Timing()
    )
    store.create(store.location.keys.spec, encode_spec(spec))
    return open_table(store, clock)


def open_table(store: ObjectStore, clock: Clock, *, timing: Timing | None = None) -> Table:
    """One more actor on the table in a store: a handle of its own, which knows nothing yet."""
    return Table(open_handle(store, timing=timing, clock=clock))


def check_sound(store: ObjectStore) -> TableState:
    """What must hold of a table at every moment; AssertionError if it does not.

    Every live part has its object, with the size that its marker says; v3 readers see the same live parts.
    """
    state = LogReader(store, store.location.keys).read(everything=True)
    stored = {info.key: info.bytes for info in store.list(store.location.keys.data_prefix)}
    missing = {m.key: m.bytes for m in state.live if stored.get(m.key) != m.bytes}
    if missing:
        raise AssertionError(f"live parts without their object, or of another size: {missing}")
    ours, theirs = {m.key for m in state.live}, live_to_v3_readers(state)
    if ours != theirs:
        raise AssertionError(f"v3 readers see other parts: only they {theirs - ours}, only we {ours - theirs}")
    return state
