"""Simulated processes, which have the table open and a clock of their own, and the operations that run in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from icedb.format.keys import Keys
from icedb.format.table_spec import TableSpec
from icedb.storage.location import Location
from icedb.storage.split_store import SplitStore
from icedb.testing.clock import ManualClock
from icedb.testing.faults import Crash, Kind
from icedb.testing.simulation.world.request_faults import SimulatedRequest, Strike, Trouble
from icedb.testing.simulation.world.scheduler import Actor, Scheduler
from icedb.testing.simulation.world.setting import TIMING, Setting
from icedb.testing.simulation.world.simulated_store import ProcessStore, SimulatedStore
from icedb.testing.simulation.world.truth import Truth
from icedb.transaction.table_handle import Handle

__all__ = ["Act", "Process", "WorldInterface"]

#: More requests than any operation makes. One that exceeds it is in an endless loop.
REQUESTS_MAX = 4_000


class WorldInterface(Protocol):
    """The part of `SimulatedWorld` that processes and followers use. It is a Protocol to avoid circular imports."""

    away: dict[str, int]
    clock: ManualClock
    location: Location
    processes: list[Process]
    roots: tuple[str, ...]
    scheduler: Scheduler
    setting: Setting
    spec: TableSpec
    step: int
    store: SimulatedStore
    truth: Truth

    def tick(self) -> None:
        """See `SimulatedWorld`."""

    def note(self, act: Act, request: SimulatedRequest, strike: Strike | None) -> None:
        """See `SimulatedWorld`."""

    def violate(self, message: str) -> None:
        """See `SimulatedWorld`."""

    def deliver_later(self, after_ms: int, action: Callable[[], None]) -> None:
        """See `SimulatedWorld`."""

    def in_any_order(self, keys: Sequence[str]) -> list[str]:
        """See `SimulatedWorld`."""


class Act(Actor):
    """One run of an operation in a process, with the faults that will strike it."""

    def __init__(self, name: str, operation: str, process: Process, body: Callable[[], None]) -> None:
        super().__init__(name, body)
        self.operation = operation
        self.process = process
        self.changes = 0
        #: The next request.
        self.pending: tuple[Kind, str] | None = None
        self.strikes: list[Strike] = []
        self.outcome = "started"


class Process:
    """A process with one open table and a clock of its own. A crash ends all operations that run in it."""

    def __init__(self, world: WorldInterface, *, skew_ms: int) -> None:
        self.world = world
        self.dead = False
        self.busy = 0
        self.spawned = 0
        #: Whether no further operation runs in it, so that later log files are from operations that have ended.
        self.retired = False
        #: The keys of further tables that it has open.
        self.other_keys: tuple[Keys, ...] = ()
        number = len(world.processes)
        clock = world.clock.skewed(skew_ms)
        self.store = ProcessStore(world.store, replace(world.location, log=None), self, also=world.setting.sources)
        log = None if world.location.log is None else ProcessStore(world.store, world.location.log, self)
        handle = Handle.of(
            self.store if log is None else SplitStore(self.store, log),
            world.spec,
            clock=clock,
            fencing=world.setting.fencing,
        )
        # Like `writer_name`, but without this machine's name, so that keys are the same on every machine.
        self.name = f"p{number}-{number}"
        self.handle = replace(handle, writer=f"{self.name}-{clock.new_id()[:12]}")
        world.processes.append(self)

    # ------------------------------------------------------------------------------------ StoreCaller

    @property
    def overwrites(self) -> bool:
        """See `StoreCaller`."""
        return self.world.setting.overwrites

    def turn(self, kind: Kind, key: str) -> tuple[SimulatedRequest, Strike | None]:
        """See `StoreCaller`."""
        world, act = self.world, self._act
        self._check_alive()
        if not key.startswith(world.roots + world.setting.sources):
            world.violate(f"{act.name} accesses an object outside its table: {kind} '{key}'")
        act.requests += 1
        act.pending = kind, key
        act.changes += kind in ("create", "delete")
        if act.requests > REQUESTS_MAX:
            world.violate(f"{act.name} made more than {REQUESTS_MAX} requests")
        world.scheduler.pause(act)
        self._check_alive()
        world.tick()
        request = SimulatedRequest(act.requests, act.changes, kind, key)
        strike = next((s for s in act.strikes if s.takes(request)), None)
        if strike is not None:
            self._prepare(strike)
        elif any(key.startswith(root) and world.clock.now_ms() < until_ms for root, until_ms in world.away.items()):
            strike = Strike(Trouble.FAIL)
        world.note(act, request, strike)
        return request, strike

    def _prepare(self, strike: Strike) -> None:
        if not strike.struck:
            strike.struck = True
            if strike.prepare is not None:
                strike.prepare()
                self._check_alive()
        strike.times -= 1

    @property
    def _act(self) -> Act:
        act = self.world.scheduler.current
        assert isinstance(act, Act)  # noqa: S101  (a request outside of a turn is an error of the simulation)
        return act

    def _check_alive(self) -> None:
        if self.dead or self.world.scheduler.aborted:
            raise Crash

    def crash(self) -> None:
        """See `StoreCaller`."""
        self.dead = True
        raise Crash

    def sleep(self, for_ms: int) -> None:
        """See `StoreCaller`."""
        self.world.scheduler.sleep(self._act, self.world.clock.now_ms() + for_ms)
        self._check_alive()

    def later(self, after_ms: int, action: Callable[[], None]) -> None:
        """See `StoreCaller`."""
        self.world.deliver_later(after_ms, action)

    def in_any_order(self, keys: Sequence[str]) -> list[str]:
        """See `StoreCaller`."""
        return self.world.in_any_order(keys)

    def now_ms(self) -> int:
        """See `StoreCaller`."""
        return self.world.clock.now_ms()

    def lands_in_time(self, key: str, issued_ms: int) -> bool:
        """Return whether a put may still land: log files and claims only before the commit timeout, others always."""
        is_bounded = any(
            key.startswith(keys.log_prefix) or keys.parse_epoch_claim(key) or keys.is_txn_claim(key)
            for keys in (self.handle.keys, *self.other_keys)
        )
        return not is_bounded or self.now_ms() - issued_ms <= TIMING.commit_timeout_ms
