"""The faults that can strike a request of an actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from icedb.testing.faults import Kind

__all__ = ["READ_FAULTS", "SimulatedRequest", "Strike", "Trouble"]

MUTATING: tuple[Kind, ...] = ("create", "delete")


class Trouble(Enum):
    """The kinds of faults of a simulation."""

    #: The actor's process crashes, and the store never gets the request.
    CRASH_BEFORE = "crash before"
    #: The store executes the request, and the process crashes before it gets the response.
    CRASH_AFTER = "crash after"
    #: The store executes the request, and the actor gets StoreUnavailable.
    LOSE = "lost response"
    #: The store does not execute the request, and the actor gets StoreUnavailable.
    FAIL = "failed"
    #: The store executes the request twice, and the actor gets the second response, as after a retry by the client.
    REPEAT = "repeated"
    #: The actor gets StoreUnavailable now. The store executes the request later, within the timeouts of clients.
    DELAY = "delayed"
    #: The store executes the request, and again hours later, as if the network delivered a late copy.
    DUPLICATE = "late duplicate"
    #: The actor sleeps, then makes the request.
    SLEEP_BEFORE = "sleep before"
    #: The actor sleeps between the store's response and its own next step.
    SLEEP_AFTER = "sleep after"


#: The faults that apply to a request that changes nothing.
READ_FAULTS = frozenset(
    {Trouble.CRASH_BEFORE, Trouble.CRASH_AFTER, Trouble.FAIL, Trouble.SLEEP_BEFORE, Trouble.SLEEP_AFTER}
)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request. `number` counts the requests of the actor, `change` those that may change the store."""

    number: int
    change: int
    kind: Kind
    key: str

    @property
    def changes(self) -> bool:
        """True if it may change the store."""
        return self.kind in MUTATING


@dataclass(slots=True)
class Strike:
    """A fault that is scheduled for a request of an actor, and for the requests after it up to `times`.

    The actor calls `prepare` right before the first hit. It may bring others into flight, or let hours pass.
    """

    trouble: Trouble
    number: int = 1
    changes_only: bool = False
    times: int = 1
    delay_ms: int = 0
    prepare: Callable[[], None] | None = None
    struck: bool = False

    def takes(self, request: SimulatedRequest) -> bool:
        """Return whether the fault hits this request."""
        if self.times <= 0 or (self.changes_only and not request.changes):
            return False
        return (request.change if self.changes_only else request.number) >= self.number
