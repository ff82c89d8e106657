"""Random runs from a seed, and the combinations that each seed must try.

A run has rounds. In each round a fault strikes an operation while three others are in flight. That covers three cells
of the matrix operation by operation by fault. Other operations run at the same time and may be struck too. Sleeping
actors wake in later rounds, after hours in which cleanup may have run. Any `CHUNK` consecutive seeds cover the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from icedb.testing.simulation.scenes import SCENES, Scene
from icedb.testing.simulation.world.operation_run import RejectedOperation, Transactions
from icedb.testing.simulation.world.operations import OPERATIONS, Operation
from icedb.testing.simulation.world.plain_parts import use_plain_parts
from icedb.testing.simulation.world.process import Act, Process
from icedb.testing.simulation.world.recovery import recover
from icedb.testing.simulation.world.request_faults import READ_FAULTS, Strike, Trouble
from icedb.testing.simulation.world.setting import TIMING
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld, Tally

__all__ = ["CHUNK", "Cell", "Outcome", "all_cells", "run_seed"]

#: This many consecutive seeds cover every cell.
CHUNK = 300
PARTNERS = 3
STRIKES_TRIED_MAX = 4
#: The minimum of each seed.
REQUESTS_MIN, FAULTS_MIN, IN_FLIGHT_MIN = 200, 3, 4
#: (operation struck, other operation in flight, fault)
Cell = tuple[str, str, str]

_SLEEPS_MS = (
    300,
    TIMING.commit_timeout_ms + 200,
    TIMING.grace_ms + 300,
    2 * TIMING.grace_ms,
    TIMING.part_timeout_ms + 500,
    TIMING.min_age_ms + 1_000,
)
#: Never longer than `late_ms`, for which the log keeps the tombstones of replaced log files.
_LATE_MS = (60, 700, TIMING.commit_timeout_ms + 200, TIMING.grace_ms + 300, 3 * TIMING.grace_ms, TIMING.late_ms // 2)


@dataclass(frozen=True, slots=True)
class _Round:
    """The operation to strike, the fault, and the operations that must be in flight."""

    struck: str
    trouble: Trouble
    partners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a seed. `violation` is None if every invariant held."""

    seed: int
    violation: str | None
    tally: Tally


def _rounds() -> list[_Round]:
    names = list(OPERATIONS)
    groups = [tuple(names[n : n + PARTNERS]) for n in range(0, len(names), PARTNERS)]
    return [
        _Round(operation.name, trouble, group)
        for operation in OPERATIONS.values()
        for trouble in Trouble
        if operation.changes or trouble in READ_FAULTS
        for group in groups
    ]


_ROUNDS = _rounds()


def all_cells() -> set[Cell]:
    """Return every combination that `CHUNK` seeds must try."""
    return {(r.struck, partner, r.trouble.value) for r in _ROUNDS for partner in r.partners}


def run_seed(seed: int, *, scene: str | None = None, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed from beginning to end. `trace` gets a line for each request and event.

    Runs of a scene draw other random numbers than runs without one.
    """
    played = None if scene is None else SCENES[scene]()
    if played is None:
        world = SimulatedWorld(seed, trace=trace)
    else:
        world = SimulatedWorld(f"{scene} {seed}", trace=trace, setting=played.setting)
    try:
        with use_plain_parts():
            _SeedRun(world, seed, played).whole()
    except Violation as violation:
        return Outcome(seed, str(violation), world.tally)
    return Outcome(seed, None, world.tally)


@dataclass(frozen=True, slots=True)
class _Profile:
    """The mix of a seed, besides its cells of the matrix. An operation that is named twice is twice as likely."""

    operations: tuple[str, ...]
    troubles: tuple[Trouble, ...] = tuple(Trouble)
    faults: float = 0.3
    pauses_ms: tuple[int, ...] = (0, 0, 200, *_SLEEPS_MS[:3])
    sleeps_ms: tuple[int, ...] = _SLEEPS_MS
    crowd: int = 8


_LOG = ("append", "append", "append", "column", "column", "drop", "overwrite", "read", "read", "read", "follow",
        "follow")  # fmt: skip
_HOURS = ("append", "append", "merge", "merge", "merge log", "overwrite", "cleanup", "cleanup", "read", "restore")
_ONCE = ("txn", "txn", "txn", "txn", "merge", "merge log", "cleanup", "cleanup", "sweep", "overwrite", "follow")
_NAPS = (Trouble.SLEEP_BEFORE, Trouble.SLEEP_AFTER)
_LATE = (Trouble.SLEEP_BEFORE, Trouble.SLEEP_AFTER, Trouble.DELAY, Trouble.DUPLICATE, Trouble.CRASH_AFTER)
_PROFILES = (
    _Profile(tuple(OPERATIONS)),
    # Inconsistent listings, by commits that land behind the cursor.
    _Profile(_LOG, _NAPS, 0.7, pauses_ms=(0, 0, 200), sleeps_ms=(30, 60, 300), crowd=14),
    # Actors that wake, and requests that arrive, after cleanup.
    _Profile(_HOURS, _LATE, 0.5, pauses_ms=(200, *_SLEEPS_MS[1:4])),
    _Profile(_ONCE, _LATE, 0.5, pauses_ms=(0, 200, *_SLEEPS_MS[1:])),
)


class _SeedRun:
    def __init__(self, world: SimulatedWorld, seed: int, scene: Scene | None) -> None:
        self._world = world
        self._rng = rng = world.rng
        self._scene = scene
        self._operations: Mapping[str, Operation] = OPERATIONS
        self._rounds = _ROUNDS[seed % CHUNK :: CHUNK]
        self._profile = rng.choice(_PROFILES)
        if scene is not None:
            scene.enter(world)
            self._operations = {**OPERATIONS, **scene.operations}
            self._rounds = []
            pauses_ms = scene.pauses_ms or self._profile.pauses_ms
            troubles = scene.troubles or self._profile.troubles
            self._profile = replace(self._profile, operations=scene.crowd, pauses_ms=pauses_ms, troubles=troubles)
        self._transactions = Transactions()
        self._refusals: list[RejectedOperation] = []

    def whole(self) -> None:
        world, rng = self._world, self._rng
        world.scheduler.stickiness = rng.choice((0.0, 0.5, 0.8, 0.95))
        begins = None if self._scene is None else self._scene.begins
        if begins or (begins is None and rng.random() < 0.85):
            self._begin()
        rounds: list[_Round | None] = [*self._rounds, *[None] * rng.randint(2, 4)]
        for planned in rng.sample(rounds, len(rounds)):
            self._crowd() if planned is None else self._aimed_round(planned)
            world.let_pass_until(world.clock.now_ms() + rng.choice(self._profile.pauses_ms))
        while not self._enough():
            world.scheduler.stickiness = 0.0
            self._crowd()
        if self._scene is not None:
            world.run(patient=True)
            world.deliver_all()
            self._scene.leave(world)
        recover(world, self._transactions, self._refusals)

    def _enough(self) -> bool:
        tally = self._world.tally
        return (
            tally.requests.total() >= REQUESTS_MIN
            and tally.troubles.total() >= FAULTS_MIN
            and tally.in_flight_max >= IN_FLIGHT_MIN
        )

    def _begin(self) -> None:
        """Create a little history of the table, without faults."""
        process = self._world.process(skew_ms=0)
        for name in ("append", "append", "append", self._rng.choice(("merge", "overwrite", "append", "txn", "delete"))):
            self._spawn(self._operations[name], process)
            self._world.run(patient=True)
        self._world.let_pass_until(self._world.clock.now_ms() + self._rng.choice((0, 500, TIMING.grace_ms + 500)))

    def _crowd(self) -> None:
        """Run many operations of this seed's profile at once. Most faults strike requests that change the store."""
        rng = self._rng
        for _ in range(rng.randint(4, self._profile.crowd)):
            act = self._spawn(self._operations[rng.choice(self._profile.operations)])
            if rng.random() < self._profile.faults:
                strike = self._strike(rng.choice(self._profile.troubles), rng.randint(1, 12))
                if not self._operations[act.operation].changes:  # best between two pages of a listing
                    strike.changes_only, strike.number = False, rng.randint(1, 6)
                act.strikes.append(strike)
        self._world.run(patient=False)

    def _aimed_round(self, planned: _Round) -> None:
        rng = self._rng
        partners = [self._spawn(OPERATIONS[name]) for name in planned.partners]
        others = [self._spawn(self._operations[rng.choice(self._profile.operations)]) for _ in range(rng.randint(1, 2))]
        for act in (*partners, *others):
            if rng.random() < 0.35:
                act.strikes.append(self._strike(rng.choice(list(Trouble)), rng.randint(1, rng.choice((4, 12, 30)))))
        for tried in range(STRIKES_TRIED_MAX):
            strike = self._aimed(planned.trouble, partners, surely=tried > 0)
            # In a new process, so that a crash ends no other operation.
            act = self._spawn(OPERATIONS[planned.struck], self._world.process())
            act.strikes.append(strike)
            self._world.run(patient=False)
            if strike.struck:
                return

    def _aimed(self, trouble: Trouble, partners: list[Act], *, surely: bool) -> Strike:
        """Return a strike that brings the partners into flight before it hits."""
        number = 1 if surely else self._rng.randint(1, self._rng.choice((3, 10, 25)))
        strike = self._strike(trouble, number)
        strike.changes_only = strike.changes_only and not surely

        def prepare() -> None:
            act = self._world.scheduler.current
            for _ in range(STRIKES_TRIED_MAX):  # an operation that is rejected at once makes no request
                for n, partner in enumerate(partners):
                    if partner.finished:
                        partners[n] = self._spawn(OPERATIONS[partner.operation])
                if act is not None:
                    self._world.scheduler.wait_for(act, partners, lambda other: other.requests > 0)

        strike.prepare = prepare
        return strike

    def _strike(self, trouble: Trouble, number: int) -> Strike:
        rng = self._rng
        times = rng.choice((1, 1, 1, 2, 4)) if trouble in (Trouble.FAIL, Trouble.LOSE, Trouble.DELAY) else 1
        changes_only = trouble in (Trouble.REPEAT, Trouble.DELAY, Trouble.DUPLICATE) or rng.random() < 0.5
        sleeps = trouble in (Trouble.SLEEP_BEFORE, Trouble.SLEEP_AFTER)
        return Strike(
            trouble,
            number if not changes_only else 1 + number // 3,
            changes_only=changes_only,
            times=times,
            delay_ms=rng.choice(self._profile.sleeps_ms if sleeps else _LATE_MS),
        )

    def _spawn(self, operation: Operation, process: Process | None = None) -> Act:
        return self._world.spawn(
            operation.name,
            process or self._some_process(),
            operation.body(self._world, self._transactions, self._refusals),
        )

    def _some_process(self) -> Process:
        """Return a new process, or an existing one that has the table open, which may be busy."""
        rng = self._rng
        alive = [p for p in self._world.processes if not (p.dead or p.retired) and (p.busy == 0 or rng.random() < 0.2)]
        return rng.choice(alive) if alive and rng.random() < 0.6 else self._world.process()
