"""Actions of a test between two requests of an actor, whose store is a `FaultyStore`."""

from __future__ import annotations

from collections.abc import Callable

from icedb.testing import FaultyStore, Kind, Request

Act = Callable[[], object]


def act_before(
    store: FaultyStore, act: Act, *, kind: Kind | None = None, key: str = "", number: int | None = None, times: int = 1
) -> None:
    """Call `act` right before each of the first `times` requests that match. `key` is a part of the first key."""
    store.before = _interrupt(act, kind, key, number, times)


def act_after(
    store: FaultyStore, act: Act, *, kind: Kind | None = None, key: str = "", number: int | None = None, times: int = 1
) -> None:
    """Call `act` right after each of these requests, before the actor gets the response. See `act_before`."""
    store.after = _interrupt(act, kind, key, number, times)


def _interrupt(act: Act, kind: Kind | None, key: str, number: int | None, times: int) -> Callable[[Request], None]:
    acts = [act] * times

    def interrupt(request: Request) -> None:
        if acts and kind in (None, request.kind) and key in request.keys[0] and number in (None, request.number):
            acts.pop()()

    return interrupt
