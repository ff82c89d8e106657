"""One action on a table, repeated from the same state with a fault at each of its requests in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from icedb import Table
from icedb.errors import CommitStateUnknown, IceDBError, StoreUnavailable
from icedb.format.timing import HOUR_MS
from icedb.storage.obstore_store import ObjectExists
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, check_sound, open_table

#: Errors that a fault of the store may cause, if no other program changes the table meanwhile.
STORE_ERRORS = (StoreUnavailable, CommitStateUnknown)


class SavedState:
    """The objects of a store and the time of its clock, to return to."""

    def __init__(self, store: ClockedStore, clock: ManualClock) -> None:
        self._store, self._clock = store, clock
        self._objects, self._ms = dict(store.objects), clock.now_ms()

    def restore(self) -> None:
        """Return to the state at the construction."""
        self._clock.set(self._ms)
        self._store.objects = dict(self._objects)


@dataclass(frozen=True)
class Attempt:
    """One run of an action. `done`: it returned, and raised nothing. `number`: the request with the fault."""

    number: int
    store: FaultyStore
    done: bool

    def deliver(self) -> None:
        """Let delayed requests arrive now. A create-only put may be refused, as on a real store."""
        with contextlib.suppress(ObjectExists):
            self.store.deliver()


def attempts(
    base: ClockedStore,
    clock: ManualClock,
    fault: Fault,
    act: Callable[[Table], object],
    *,
    errors: tuple[type[IceDBError], ...] = STORE_ERRORS,
) -> Iterator[Attempt]:
    """Open the table and run `act` with `fault` at its first request, then at its second, until no request is left.

    Each attempt begins with the state that `base` and `clock` have at the call. The last one has no fault.
    """
    saved = SavedState(base, clock)
    for number in count(1):
        saved.restore()
        store = FaultyStore(base)
        store.inject(fault, number=number)
        done = False
        with contextlib.suppress(Crash, *errors):
            act(open_table(store, clock))
            done = True
        store.dead = False
        yield Attempt(number, store, done)
        if len(store.requests) < number:
            assert done
            return


def check_atomic(
    create: Callable[[ClockedStore, ManualClock], Table],
    fault: Fault,
    act: Callable[[Table], object],
    read: Callable[[Table], list[Any]],
    after: list[Any],
) -> None:
    """Check that a fault at any request of `act` leaves the rows of before or `after`, and that a repetition ends it.

    Delayed requests arrive an hour later.
    """
    clock = ManualClock()
    clocked = ClockedStore(clock)
    before = read(create(clocked, clock))
    for attempt in attempts(clocked, clock, fault, act):
        check_sound(clocked)
        other = open_table(clocked, clock)
        assert read(other) in ([after] if attempt.done else [before, after]), "the batch is stored partly"
        clock.advance(HOUR_MS)
        attempt.deliver()
        check_sound(clocked)
        act(other)
        assert read(other) == after


def only_live_parts_stay(base: ClockedStore, clock: ManualClock) -> bool:
    """Return whether the deletion of orphans and a cleanup, two days later, leave exactly the live parts."""
    clock.advance(48 * HOUR_MS)
    open_table(base, clock).delete_orphans()
    open_table(base, clock).cleanup()
    live = {m.key for m in check_sound(base).live}
    return {i.key for i in base.list(base.location.keys.data_prefix)} == live
