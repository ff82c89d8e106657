"""A simulated world: one table, the processes that work on it, a store, a network, time, and the model of the table.

All randomness comes from one generator, so a world depends on its seed alone. Time advances a few milliseconds with
each request, and in leaps if all actors sleep. The timings of the table are short, so "hours" are some thousand
milliseconds.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import msgspec

from icedb.errors import CorruptLog
from icedb.format.codec import decode
from icedb.format.records import LogFile
from icedb.format.table_spec import TableSpec, encode_spec
from icedb.storage.location import Location
from icedb.testing.clock import ManualClock
from icedb.testing.faults import Crash
from icedb.testing.simulation.world.feed_followers import Followers
from icedb.testing.simulation.world.invariants import Checker
from icedb.testing.simulation.world.process import Act, Process
from icedb.testing.simulation.world.request_faults import SimulatedRequest, Strike
from icedb.testing.simulation.world.scheduler import Scheduler
from icedb.testing.simulation.world.setting import TIMING, Setting
from icedb.testing.simulation.world.simulated_store import SimulatedStore
from icedb.testing.simulation.world.truth import Landing, Truth, Violation

__all__ = ["Tally", "SimulatedWorld"]

_NEIGHBOURS = (
    "table2/_log/1800000000000_x.jsonl",
    "table2/_data/d=1/x.parquet",
    "tabl/_claims/epoch-1.json",
    "table.d",
)


@dataclass(slots=True)
class Delivery:
    """A request that the network has not delivered yet."""

    due_ms: int
    action: Callable[[], None]


@dataclass(slots=True)
class Tally:
    """The counts of a world."""

    requests: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: (operation struck, other operation in flight, fault) -> count
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    in_flight_max: int = 0
    schedule: int = 0


class SimulatedWorld:
    """See the module's docstring. `trace` is called with a line for each request and event."""

    def __init__(
        self,
        seed: int | str,
        *,
        trace: Callable[[str], None] | None = None,
        fine: bool = True,
        setting: Setting | None = None,
    ) -> None:
        self.setting = setting or Setting()
        self.rng = random.Random(seed)  # noqa: S311
        self.trace = trace
        self.fine = fine
        self.clock = ManualClock()
        self.start_ms = self.clock.now_ms()
        self.location = Location("memory", "simulation", "table")
        self.spec = TableSpec(id="simulation", timing=self.setting.timing)
        if self.setting.log_root is not None:
            log = Location("memory", "simulation-log", self.setting.log_root)
            self.location = replace(self.location, log=log)
            self.spec = msgspec.structs.replace(self.spec, log_uri=log.uri)
        #: The prefixes of the table's objects: one for each of its stores.
        self.roots = tuple(f"{each.prefix}/" for each in (self.location, self.location.log) if each is not None)
        #: Prefix of a store -> the time until which it is unavailable.
        self.away: dict[str, int] = {}
        self.scheduler = Scheduler(self.rng, now_ms=self.clock.now_ms, sleep_until=self.let_pass_until)
        self.store = SimulatedStore(self.clock.now_ms)
        self.truth = Truth(self.location.keys, several_types=self.setting.several_types)
        self.checker = Checker(self.store, self.truth, self.location, several_types=self.setting.several_types)
        self.followers = Followers()
        self.processes: list[Process] = []
        self.network: list[Delivery] = []
        self.tally = Tally()
        self.step = 0
        self.violation: str | None = None
        #: Called with each log file that lands for the first time. They may raise Violation.
        self.watchers: list[Callable[[LogFile, Landing], None]] = []
        self._named = 0
        self._rows = 0
        for key in _NEIGHBOURS:
            self.store.put(key, b"not ours")
        self.store.put(self.location.keys.spec, encode_spec(self.spec))
        if self.location.log is not None:
            self.store.put(self.location.keys.probe, b'{"table": "the simulation"}')
        self.store.landed, self.store.deleted = self._landed, self._deleted

    def adopt(self, other: SimulatedWorld) -> None:
        """Copy the time, objects and model of another world that has no running actors. Processes are not copied."""
        self.clock.set(other.clock.now_ms())
        last_id = other.clock.new_id()
        while self.clock.new_id() != last_id:
            continue
        self.step, self._rows = other.step, other._rows
        self.truth, self.followers = deepcopy(other.truth), deepcopy(other.followers)
        self.store.adopt(other.store)
        self.checker = Checker(self.store, self.truth, self.location, several_types=self.setting.several_types)
        self.checker.pins = dict(other.checker.pins)

    # ------------------------------------------------------------------------------------ actors

    def process(self, *, skew_ms: int | None = None) -> Process:
        """Start a process. Its clock differs from the store's by at most `max_skew_ms`."""
        if skew_ms is None:
            skew_ms = self.rng.choice((0, 0, -TIMING.max_skew_ms, TIMING.max_skew_ms, 7))
        return Process(self, skew_ms=skew_ms)

    def spawn(self, operation: str, process: Process, body: Callable[[Act], str]) -> Act:
        """Add an actor. `body` returns its outcome."""
        self._named += 1
        act: Act

        def whole() -> None:
            try:
                act.outcome = body(act)
            except Crash:
                act.outcome = "crashed"
            except Violation as violation:
                self.note_violation(f"{act.name}: {violation}")
            except Exception as error:  # noqa: BLE001  (any other error ends the run, and the seed is reported)
                self.note_violation(f"{act.name} raised {type(error).__name__}: {error}")
            act.process.busy -= 1
            self.tally.outcomes[act.operation, act.outcome] += 1
            self.say(act.name, f"ended: {act.outcome}")

        act = Act(f"{operation}#{self._named}", operation, process, whole)
        process.busy += 1
        process.spawned += 1
        self.scheduler.spawn(act)
        return act

    def run(self, *, patient: bool) -> None:
        """Let all actors run; see `Scheduler.run`. Raises Violation."""
        self.scheduler.run(patient=patient)
        if self.violation is not None:
            raise Violation(self.violation)

    def new_rows(self, count: int) -> list[int]:
        """Return new rows, which no operation has added yet."""
        self._rows += count
        return list(range(self._rows - count, self._rows))

    # ------------------------------------------------------------------------------------ time and network

    def tick(self) -> None:
        """Advance the time of one request."""
        self.step += 1
        self.let_pass_until(self.clock.now_ms() + (self.rng.randrange(4) if self.fine else 1))

    def let_pass_until(self, until_ms: int) -> None:
        """Advance the time, and deliver the requests that become due."""
        while True:
            due = [d for d in self.network if d.due_ms <= until_ms]
            if not due:
                break
            first = min(due, key=lambda d: d.due_ms)
            self.network.remove(first)
            self.clock.set(max(self.clock.now_ms(), first.due_ms))
            self.say("network", "delivers")
            self.step += 1
            first.action()
        self.clock.set(max(self.clock.now_ms(), until_ms))

    def deliver_later(self, after_ms: int, action: Callable[[], None]) -> None:
        """Schedule a request that the network delivers later."""
        self.network.append(Delivery(self.clock.now_ms() + after_ms, action))

    def deliver_all(self) -> None:
        """Advance the time until the network has delivered all requests."""
        while self.network:
            self.let_pass_until(max(d.due_ms for d in self.network))

    def in_any_order(self, keys: Sequence[str]) -> list[str]:
        """Return the keys sorted, because the order of sets cannot be repeated, and shuffled in a random world."""
        ordered = sorted(keys)
        if self.fine:
            self.rng.shuffle(ordered)
        return ordered

    # ------------------------------------------------------------------------------------ counts, trace and checks

    def note(self, act: Act, request: SimulatedRequest, strike: Strike | None) -> None:
        """Count a request."""
        self.tally.requests[request.kind] += 1
        self.tally.schedule = zlib.crc32(f"{act.name}{request.kind}{strike is not None}".encode(), self.tally.schedule)
        if strike is not None:
            self.tally.troubles[strike.trouble.value] += 1
            for other in self.scheduler.actors:
                if isinstance(other, Act) and other is not act and other.in_flight:
                    self.tally.cells[act.operation, other.operation, strike.trouble.value] += 1
        in_flight = sum(a.in_flight for a in self.scheduler.actors)
        self.tally.in_flight_max = max(self.tally.in_flight_max, in_flight)
        if self.trace is not None:
            trouble = "" if strike is None else f"   ## {strike.trouble.value.upper()} {strike.delay_ms or ''}"
            self.say(act.name, f"{request.number:3d} {request.kind} {request.key}{trouble}")

    def say(self, who: str, what: str) -> None:
        """Write one line of the trace."""
        if self.trace is not None:
            self.trace(f"{self.clock.now_ms() - self.start_ms:7d} {who:14s} {what}")

    def note_violation(self, message: str) -> None:
        """End the run: record the first violation, and abort all actors."""
        if self.violation is None:
            self.violation = message
            self.say("VIOLATION", message)
        self.scheduler.aborted = True

    def violate(self, message: str) -> None:
        """Call `note_violation` from within a request. Raises Crash."""
        self.note_violation(message)
        raise Crash

    def check(self, where: str) -> None:
        """Check the invariants. Raises Violation."""
        self.checker.check(where, times_ms=[self.rng.randint(self.start_ms, self.clock.now_ms()) for _ in range(3)])

    def _landed(self, key: str, body: bytes) -> None:
        keys = self.location.keys
        try:
            if key.startswith(keys.data_prefix):
                self.truth.part_landed(key, body, now_ms=self.clock.now_ms())
            elif key.startswith(keys.log_prefix):
                is_new = key not in self.truth.landings
                self.truth.log_landed(key, body, step=self.step, now_ms=self.clock.now_ms())
                for watch in self.watchers if is_new else ():
                    watch(decode(body, key, keys), self.truth.landings[key])
                self.say("store", f"has {self.describe(key, body)}")
                self.check(f"after '{key}' landed")
        except (Violation, CorruptLog) as violation:
            self.violate(str(violation))

    def describe(self, key: str, body: bytes) -> str:
        """Describe a log file for the trace."""
        file = decode(body, key, self.location.keys)
        landing = self.truth.landings[key]
        parts = [f"{m.key.rsplit('/', 1)[1][:6]}{'-' if m.tombstoned_ms else '+'}" for m in file.markers]
        return (
            f"{key.rsplit('/', 1)[1]} e={file.epoch} le={file.live_epochs} void={file.void} hz={file.horizon_ms} "
            f"rows +{sorted(landing.added)} -{sorted(landing.removed)} parts {parts} "
            f"replaces {[t.key.rsplit('/', 1)[1] for t in file.tombstones]}"
        )

    def _deleted(self, key: str, stored_ms: int) -> None:
        try:
            self.checker.check_deletion(key, stored_ms, now_ms=self.clock.now_ms())
            if key.startswith(self.location.keys.log_prefix):
                self.check(f"after '{key}' was deleted")
        except Violation as violation:
            self.violate(str(violation))
