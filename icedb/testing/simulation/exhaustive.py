"""Exhaustive runs: a fault at each request of each operation, and each other operation run completely at that point.

A run is called a story. Nothing in it is random. One small table with some history is prepared once and copied for each
story. The name of a story is enough to run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

from icedb.testing.faults import Kind
from icedb.testing.simulation.world.operation_run import RejectedOperation, Transactions
from icedb.testing.simulation.world.operations import OPERATIONS
from icedb.testing.simulation.world.plain_parts import use_plain_parts
from icedb.testing.simulation.world.process import Act
from icedb.testing.simulation.world.recovery import recover
from icedb.testing.simulation.world.request_faults import Strike, Trouble
from icedb.testing.simulation.world.setting import TIMING
from icedb.testing.simulation.world.simulated_store import PAGE_KEYS
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["Story", "pair_stories", "run_story", "single_stories", "torn_stories"]

SLEEP_MS = TIMING.part_timeout_ms + TIMING.grace_ms
_SEED = 7


@dataclass(frozen=True, slots=True)
class Story:
    """One exhaustive run: `trouble` strikes `first` at its request number `request`, and `second` runs at that point.

    Args:
        first: The name of the first operation.
        request: The number of its request.
        trouble: The fault; None for a pause.
        second: The name of the operation that runs completely at that point, if any.
        hours: Whether time passes and cleanup runs before the first operation continues.
        second_dies_at: The number of the request at which the second operation crashes.
        behind: An operation that lands behind the cursor of the first one's listing, just before the second.
    """

    first: str
    request: int
    trouble: Trouble | None
    second: str | None = None
    hours: bool = False
    second_dies_at: int | None = None
    behind: str | None = None

    def __str__(self) -> str:
        """Return the name, which `parse` accepts."""
        what = "pause" if self.trouble is None else self.trouble.value
        dies = "-" if self.second_dies_at is None else self.second_dies_at
        after = "hours" if self.hours else "-"
        return f"{self.first}/{self.request}/{what}/{self.second or '-'}/{after}/{dies}/{self.behind or '-'}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the story of a name. Raises ValueError for an invalid name."""
        first, request, what, second, hours, dies, behind = name.split("/")
        return cls(
            first,
            int(request),
            None if what == "pause" else Trouble(what),
            None if second == "-" else second,
            hours=hours == "hours",
            second_dies_at=None if dies == "-" else int(dies),
            behind=None if behind == "-" else behind,
        )


class _PreparedTable:
    """A world with a prepared table, in which one story runs."""

    def __init__(self, trace: Callable[[str], None] | None) -> None:
        self.world = SimulatedWorld(_SEED, trace=trace, fine=False)
        self.transactions = Transactions()
        self.refusals: list[RejectedOperation] = []

    def spawn(self, name: str, *, skew_ms: int = 0) -> Act:
        body = OPERATIONS[name].body(self.world, self.transactions, self.refusals)
        return self.world.spawn(name, self.world.process(skew_ms=skew_ms), body)

    def run(self, name: str) -> None:
        self.spawn(name)
        self.world.run(patient=True)

    def prepare(self) -> None:
        """Make parts in two partitions, merged and unmerged, some of them dead for long enough to be cleaned up."""
        for name in ("append", "append", "overwrite", "pin", "txn"):
            self.run(name)
        self.world.clock.advance(TIMING.grace_ms + TIMING.commit_timeout_ms)
        for name in ("append", "merge", "append", "append", "delete"):
            self.run(name)
        self.world.clock.advance(TIMING.commit_timeout_ms // 2)


_prepared: _PreparedTable | None = None


def _copy_prepared(trace: Callable[[str], None] | None) -> _PreparedTable:
    """Return a copy of the prepared table, in a world of its own."""
    global _prepared
    if _prepared is None:
        _prepared = _PreparedTable(None)
        with use_plain_parts():
            _prepared.prepare()
    stage, model = _PreparedTable(trace), _prepared
    stage.world.adopt(model.world)
    stage.transactions = deepcopy(model.transactions)
    return stage


def run_story(story: Story, *, trace: Callable[[str], None] | None = None) -> str | None:
    """Run one story. Return the violated invariant, or None. `trace` gets a line for each request and event."""
    stage = _copy_prepared(trace)
    try:
        with use_plain_parts():
            _run_pair(stage, story) if story.behind is None else _run_torn_listing(stage, story, story.behind)
            recover(stage.world, stage.transactions, stage.refusals)
    except Violation as violation:
        return str(violation)
    return None


def _run_pair(stage: _PreparedTable, story: Story) -> None:
    world, first = stage.world, stage.spawn(story.first)
    crashes = story.trouble in (Trouble.CRASH_BEFORE, Trouble.CRASH_AFTER)

    def meanwhile() -> None:
        others = [story.second] if story.second is not None and not crashes else []
        for name in others:
            _run_whole(stage, first, name, dies_at=story.second_dies_at)
        if story.hours:
            world.let_pass_until(world.clock.now_ms() + SLEEP_MS)
            for name in ("cleanup", "sweep", "merge", "cleanup"):
                _run_whole(stage, first, name)

    # A pause is a sleep of zero milliseconds, in which the others run.
    trouble = Trouble.SLEEP_BEFORE if story.trouble is None else story.trouble
    first.strikes.append(Strike(trouble, story.request, delay_ms=_delay_ms(story), prepare=meanwhile))
    world.run(patient=True)
    if crashes and story.second is not None:
        if story.hours:
            world.let_pass_until(world.clock.now_ms() + SLEEP_MS)
        stage.run(story.second)


def _run_torn_listing(stage: _PreparedTable, story: Story, behind: str) -> None:
    """Delay a commit until plain appends with later times fill a page of a listing; then it lands behind the cursor."""
    world, log_prefix = stage.world, stage.world.location.keys.log_prefix

    def direct(director: Act) -> str:
        late = stage.spawn(behind)
        world.scheduler.wait_for(
            director,
            [late],
            lambda a: isinstance(a, Act) and a.pending is not None and _puts_log(a.pending, log_prefix),
        )
        _run_whole(stage, director, "append", skew_ms=TIMING.max_skew_ms)
        while len(world.store.keys(log_prefix)) % PAGE_KEYS:
            _run_whole(stage, director, "append", skew_ms=TIMING.max_skew_ms)
        first = stage.spawn(story.first)
        world.scheduler.wait_for(director, [first], lambda a: a.requests >= story.request)
        world.scheduler.wait_for(director, [late], lambda _: False)
        if story.second is not None:
            _run_whole(stage, director, story.second)
        return "done"

    world.spawn("director", world.process(skew_ms=0), direct)
    world.run(patient=True)


def _puts_log(request: tuple[Kind, str], log_prefix: str) -> bool:
    return request[0] == "create" and request[1].startswith(log_prefix)


def _run_whole(stage: _PreparedTable, first: Act, name: str, *, dies_at: int | None = None, skew_ms: int = 0) -> None:
    other = stage.spawn(name, skew_ms=skew_ms)
    if dies_at is not None:
        other.strikes.append(Strike(Trouble.CRASH_BEFORE, dies_at))
    stage.world.scheduler.wait_for(first, [other], lambda _: False)


def _delay_ms(story: Story) -> int:
    match story.trouble:
        case Trouble.DELAY:
            return TIMING.commit_timeout_ms // 2
        case Trouble.DUPLICATE:
            return 3 * TIMING.grace_ms
        case Trouble.SLEEP_AFTER:
            return SLEEP_MS
    return 0


def _requests(name: str) -> int:
    """Return how many requests an operation makes without faults."""
    stage = _copy_prepared(None)
    with use_plain_parts():
        act = stage.spawn(name)
        stage.world.run(patient=True)
    return act.requests


def single_stories() -> Iterator[Story]:
    """Yield the stories of each operation alone: every fault at each of its requests."""
    for name, operation in OPERATIONS.items():
        for request in range(1, _requests(name) + 1):
            yield Story(name, request, None, hours=True)
            for trouble in Trouble:
                if operation.changes and trouble is not Trouble.SLEEP_BEFORE:
                    yield Story(name, request, trouble)


def pair_stories(*, long: bool = False) -> Iterator[Story]:
    """Yield the stories of each ordered pair: a crash or a pause at every request of the first, and then the second.

    `long`: include stories in which the second operation crashes at each of its requests.
    """
    counts = {name: _requests(name) for name in OPERATIONS}
    for first in OPERATIONS:
        for second in OPERATIONS:
            for request in range(1, counts[first] + 1):
                yield Story(first, request, Trouble.CRASH_BEFORE, second)
                yield Story(first, request, Trouble.CRASH_AFTER, second, hours=True)
                yield Story(first, request, None, second)
                yield Story(first, request, None, second, hours=True)
                for dies_at in range(1, counts[second] + 1) if long else ():
                    yield Story(first, request, None, second, second_dies_at=dies_at)


def torn_stories() -> Iterator[Story]:
    """Yield stories with a listing during which one commit lands behind the cursor and another before it."""
    for first in ("read", "merge", "merge log", "overwrite", "restore", "cleanup"):
        for behind in _BEHIND:
            for request in range(1, TORN_REQUESTS_MAX):
                yield Story(first, request, None, "column", behind=behind)


_BEHIND = ("column", "overwrite", "drop", "delete", "upsert", "rewrite", "merge", "merge log", "alter", "restore")
#: More than the pages of two listings of the prepared table.
TORN_REQUESTS_MAX = 12
