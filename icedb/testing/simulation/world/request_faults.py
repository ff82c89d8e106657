"""What can happen to one request of an actor, and when it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from icedb.testing.faults import Kind

__all__ = ["READ_FAULTS", "SimulatedRequest", "Strike", "Trouble"]

MUTATING: tuple[Kind, ...] = ("create", "delete")


class Trouble(Enum):
    """The kinds of faults that a simulation knows."""

    #: The actor's process dies; the store never sees the request.
    CRASH_BEFORE = "crash before"
    #: The store does it; the process dies before it knows.
    CRASH_AFTER = "crash after"
    #: The store does it; the actor gets StoreUnavailable.
    LOSE = "lost response"
    #: The store does not do it; the actor gets StoreUnavailable.
    FAIL = "failed"
    #: The store does it twice; the actor gets the second answer, as after a retry by the client library.
    REPEAT = "repeated"
    #: The actor gets StoreUnavailable now; the store does it later, within the bounds that clients keep.
    DELAY = "delayed"
    #: The store does it, and again hours later: a network's late copy.
    DUPLICATE = "late duplicate"
    #: The actor sleeps, then makes the request.
    SLEEP_BEFORE = "sleep before"
    #: The actor sleeps between the store's answer and its own next step.
    SLEEP_AFTER = "sleep after"


#: Those that mean something to a request that changes nothing.
READ_FAULTS = frozenset(
    {Trouble.CRASH_BEFORE, Trouble.CRASH_AFTER, Trouble.FAIL, Trouble.SLEEP_BEFORE, Trouble.SLEEP_AFTER}
)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request: `number` counts those of the actor, `change` those of them that change something."""

    number: int
    change: int
    kind: Kind
    key: str

    @property
    def changes(self) -> bool:
        """Whether it is one that may change the store."""
        return self.kind in MUTATING


@dataclass(slots=True)
class Strike:
    """One fault that waits for its request. `times` makes it hit the following requests as well.

    `prepare` is called by the actor right before the first hit: it may bring others into flight, or let hours pass.
    """

    trouble: Trouble
    number: int = 1
    changes_only: bool = False
    times: int = 1
    delay_ms: int = 0
    prepare: Callable[[], None] | None = None
    struck: bool = False

    def takes(self, request: SimulatedRequest) -> bool:
        """Whether this request is hit."""
        if self.times <= 0 or (self.changes_only and not request.changes):
            return False
        return (request.change if self.changes_only else request.number) >= self.number
