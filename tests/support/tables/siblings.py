"""Several tables beside each other in one store, whose clock the test sets, for commits to several tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.format.replay import TableState
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, Request, check_sound, open_table
from tests.support.tables.fault_walk import SavedState

Rows = list[tuple[Any, ...]]

CRASHES = pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=lambda f: f.name)
LOST_RESPONSES = pytest.mark.parametrize("fault", [Fault.LOSE_RESPONSE, Fault.FAIL, Fault.REPEAT], ids=lambda f: f.name)
#: Every second request, from the first or the second on.
HALVES = pytest.mark.parametrize("half", [0, 1])


class Siblings:
    """The table `events` and the tables beside it. `begin` creates it; `reset` returns to that state."""

    def __init__(self, begin: Callable[[ClockedStore, ManualClock], None]) -> None:
        self.clock = ManualClock()
        self.store = ClockedStore(self.clock, prefix="lake/events")
        begin(self.store, self.clock)
        self.clock.advance(1_000)
        self._begin = SavedState(self.store, self.clock)

    def reset(self) -> None:
        self._begin.restore()

    def beside(self, name: str) -> ObjectStore:
        return self.store.sibling(replace(self.store.location, prefix=f"lake/{name}"))

    def actor(self, name: str = "events") -> tuple[Table, FaultyStore]:
        """Open a table through a store of its own, which injects faults also into requests to the tables beside it."""
        store = FaultyStore(self.beside(name))
        return open_table(store, self.clock), store

    def table(self, name: str = "events") -> Table:
        return self.actor(name)[0]

    def names(self) -> set[str]:
        return {key.split("/")[1] for key in self.store.objects}

    def state(self, name: str) -> TableState:
        return check_sound(self.beside(name))

    def rows(self, name: str, *columns: str) -> Rows:
        """Read the rows of the live parts. Return none if the table does not exist."""
        live = self.state(name).live
        read = [pq.read_table(io.BytesIO(self.store.objects[m.key].body)).to_pylist() for m in live]
        return sorted((tuple(r.get(c) for c in columns) for part in read for r in part), key=repr)

    def unnamed(self) -> set[str]:
        """Return the parts of all tables that their logs do not name."""
        stored = {key for key in self.store.objects if "/_data/" in key}
        return stored - {key for name in self.names() for key in self.state(name).parts}

    def attempts(self, act: Callable[[Table], object], half: int) -> Iterator[tuple[Request, Table, FaultyStore]]:
        """Yield every second request of an undisturbed run, each with a new actor in the initial state."""
        for request in islice(self.requests(act), half, None, 2):
            yield (request, *self.actor())

    def requests(self, act: Callable[[Table], object]) -> Iterator[Request]:
        """Yield the requests of an undisturbed run, each time in the initial state."""
        self.reset()
        table, store = self.actor()
        begun = len(store.requests)
        act(table)
        for request in store.requests[begun:]:
            self.reset()
            yield request
