"""The invariants of the table, which must hold between any two requests.

The checks read the objects of the store directly, without requests. They replay all log files of one moment with the
code under test, and compare the state with the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from icedb.errors import IceDBError
from icedb.format.codec import decode
from icedb.format.records import LogFile, Marker
from icedb.format.replay import StoredLogFile, TableState, live_to_v3_readers, replay
from icedb.storage.location import Location
from icedb.testing.simulation.world.setting import TIMING
from icedb.testing.simulation.world.simulated_store import SimulatedStore
from icedb.testing.simulation.world.truth import Truth, Violation

__all__ = ["Checker"]


class Checker:
    """Compares the store with the model. `pins` are the times that must stay readable, by name."""

    def __init__(self, store: SimulatedStore, truth: Truth, location: Location, *, several_types: bool = False) -> None:
        self._several_types = several_types
        self._store = store
        self._truth = truth
        self._location = location
        self._decoded: dict[tuple[str, bytes], LogFile] = {}
        self.pins: dict[str, int] = {}
        #: Dead parts that programs of v3 may still see, because a log file from a clock far ahead names them.
        self.seen_by_v3: set[str] = set()

    def state(self) -> TableState:
        """Replay the table's current state. Raises Violation if the log contradicts itself."""
        keys = self._location.keys
        files = []
        for key in self._store.keys(keys.log_prefix):
            stored = self._store.objects[key]
            content = (key, stored.body)
            if content not in self._decoded:
                self._decoded[content] = decode(stored.body, key, keys)
            files.append(StoredLogFile(key, self._decoded[content], stored.stored_ms))
        try:
            return replay(files, table=self._location.uri, tolerant=self._several_types)
        except IceDBError as error:
            raise Violation(f"the log cannot be replayed: {error}") from error

    def check(self, where: str, *, times_ms: Iterable[int]) -> TableState:
        """Check the latest rows, rows at some times, pinned times, schema, and the view of v3. Raises Violation."""
        state = self.state()
        live = {m.key for m in state.live}
        if live != self._truth.live:
            raise Violation(
                f"{where}: lost parts {sorted(self._truth.live - live)}, dead parts that are back "
                f"{sorted(live - self._truth.live)}"
            )
        if dict(state.schema) != self._truth.schema and not self._several_types:
            raise Violation(f"{where}: the schema is {state.schema} and must be {self._truth.schema}")
        original = replace(state, files={k: f for k, f in state.files.items() if k not in self._truth.returned})
        live_to_v3 = live_to_v3_readers(original)
        if wrong := (live_to_v3 ^ live) - (self.seen_by_v3 - live):
            raise Violation(f"{where}: v3 programs see other parts: {sorted(wrong)}")
        self._check_rows(where, state.live, self._truth.rows())
        for at_ms in times_ms:
            if at_ms >= state.horizon_ms:
                self._check_time(where, state, at_ms, pinned=False)
        for name, at_ms in self.pins.items():
            self._check_time(f"{where}: pin {name}", state, at_ms, pinned=True)
        return state

    def _check_time(self, where: str, state: TableState, at_ms: int, *, pinned: bool) -> None:
        markers = [
            m
            for m in state.parts.values()
            if m.created_ms <= at_ms and (m.tombstoned_ms is None or m.tombstoned_ms > at_ms)
        ]
        gone = [m for m in markers if m.key not in self._store.objects]
        if gone and not pinned and all(m.tombstoned_ms is not None for m in gone):
            return  # SnapshotExpired
        self._check_rows(f"{where}: as of {at_ms}", markers, self._truth.rows_at(at_ms))

    def _check_rows(self, where: str, markers: Iterable[Marker], rows: set[int]) -> None:
        markers = list(markers)
        if gone := [m.key for m in markers if m.key not in self._store.objects]:
            raise Violation(f"{where}: parts without their objects: {gone}")
        counts = Counter(row for m in markers for row in self._truth.contents[m.key])
        if counts.keys() != rows or any(count > 1 for count in counts.values()):
            raise Violation(
                f"{where}: rows lost {sorted(rows - counts.keys())}, unexpected rows "
                f"{sorted(counts.keys() - rows)}, rows twice {[r for r, c in counts.items() if c > 1]}"
            )

    def check_deletion(self, key: str, stored_ms: int, *, now_ms: int) -> None:
        """Check that no reader or writer may still need a deleted object. Raises Violation."""
        keys, truth = self._location.keys, self._truth
        if key in truth.live:
            raise Violation(f"the object of the live part '{key}' was deleted")
        roots = tuple(f"{each.prefix}/" for each in (self._location, self._location.log) if each is not None)
        if not key.startswith(roots):
            raise Violation(f"'{key}' of another table was deleted")
        if key in (keys.spec, keys.probe):
            raise Violation(f"'{key}' was deleted")
        is_log = key.startswith(keys.log_prefix)
        since_ms = truth.superseded_ms.get(key, stored_ms if is_log else None)
        grace_ms = TIMING.grace_ms - 2 * TIMING.max_skew_ms
        if since_ms is not None and now_ms - since_ms < grace_ms:
            raise Violation(f"'{key}' was deleted {now_ms - since_ms} ms after it was superseded")
