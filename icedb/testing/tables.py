"""Tables in stores without an address: those of `icedb.testing`, or any store wrapped in a FaultyStore."""

from __future__ import annotations

from collections.abc import Sequence

from icedb.format.replay import TableState, live_to_v3_readers
from icedb.format.table_spec import TableSpec, encode_spec
from icedb.format.timing import Timing
from icedb.storage.obstore_store import ObjectStore
from icedb.table import Table
from icedb.transaction.log_reader import LogReader
from icedb.transaction.open_table import open_handle
from icedb.transaction.table_handle import Fencing
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
    """Create an empty table in a store.

    Args:
        store: A store without a table at its location.
        clock: The clock of the returned table.
        partition_by: As for `Table.create`.
        sort_by: As for `Table.create`.
        timing: As for `Table.create`.

    Returns:
        The open table.

    Example:
        >>> table = create_table(ClockedStore(clock), clock, sort_by=["ts"])
    """
    spec = TableSpec(
        id=clock.new_id(), partition_by=tuple(partition_by), sort_by=tuple(sort_by), timing=timing or Timing()
    )
    store.create(store.location.keys.spec, encode_spec(spec))
    return open_table(store, clock)


def open_table(store: ObjectStore, clock: Clock, *, timing: Timing | None = None, fencing: Fencing = "claims") -> Table:
    """Open the table in a store for another actor, with an empty cache of its own.

    Args:
        store: A store with a table at its location.
        clock: The clock of the actor.
        timing: Times to use instead of those of the spec.
        fencing: As for `Table.open`.

    Returns:
        The open table.

    Example:
        >>> other = open_table(FaultyStore(store), clock.skewed(40))
    """
    return Table(open_handle(store, timing=timing, fencing=fencing, clock=clock))


def check_sound(store: ObjectStore) -> TableState:
    """Check the invariants of a table.

    Every live part has its object, with the size in its marker. Readers of IceDB v3 see the same live parts.

    Args:
        store: A store with a table at its location.

    Returns:
        The state of the table.

    Raises:
        AssertionError: An invariant does not hold.

    Example:
        >>> check_sound(store)
    """
    state = LogReader(store, store.location.keys).read(everything=True)
    stored = {info.key: info.bytes for info in store.list(store.location.keys.data_prefix)}
    missing = {m.key: m.bytes for m in state.live if stored.get(m.key) != m.bytes}
    if missing:
        raise AssertionError(f"live parts without their object, or of another size: {missing}")
    ours, theirs = {m.key for m in state.live}, live_to_v3_readers(state)
    if ours != theirs:
        raise AssertionError(f"v3 readers see other parts: only v3 {theirs - ours}, only this library {ours - theirs}")
    return state
