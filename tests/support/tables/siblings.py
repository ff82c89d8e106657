"""A table with tables beside it in one store whose time stands still, for tests of what several commits do together."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from icedb import Table
from icedb.format.replay import TableState
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import ClockedStore, FaultyStore, ManualClock, Request, check_sound, open_table
from tests.support.tables.fault_walk import SavedState

Rows = list[tuple[Any, ...]]


class Siblings:
    """The lake's table `events` and whatever lies beside it. `begin` makes it once; each story begins there again."""

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
        """Somebody with a table open, whose requests can be struck; those to the tables beside it, too."""
        store = FaultyStore(self.beside(name))
        return open_table(store, self.clock), store

    def table(self, name: str = "events") -> Table:
        return self.actor(name)[0]

    def names(self) -> set[str]:
        return {key.split("/")[1] for key in self.store.objects}

    def state(self, name: str) -> TableState:
        return check_sound(self.beside(name))

    def rows(self, name: str, *columns: str) -> Rows:
        """From the live parts themselves; none when there is no such table."""
        live = self.state(name).live
        read = [pq.read_table(io.BytesIO(self.store.objects[m.key].body)).to_pylist() for m in live]
        return sorted((tuple(r.get(c) for c in columns) for part in read for r in part), key=repr)

    def unnamed(self) -> set[str]:
        """Parts of any table that its log does not name."""
        stored = {key for key in self.store.objects if "/_data/" in key}
        return stored - {key for name in self.names() for key in self.state(name).parts}

    def requests(self, act: Callable[[Table], object]) -> Iterator[Request]:
        """Those of an undisturbed run, one after the other, each time with the world as it was."""
        self.reset()
        table, store = self.actor()
        begun = len(store.requests)
        act(table)
        for request in store.requests[begun:]:
            self.reset()
            yield request
