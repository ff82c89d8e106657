"""A deterministic scheduler: actors take turns, and one random generator decides which actor runs next.

An actor is a function in a thread of its own, because the code under test is synchronous. Exactly one thread runs at a
time. It passes the baton when it makes a request to the store, sleeps, waits for another actor, or ends. So a run
depends on its seed alone.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

from icedb.testing.faults import Crash

__all__ = ["Actor", "Scheduler"]


class Actor:
    """A function that takes turns with others. `requests` counts its requests to the store."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.requests = 0
        self.finished = False
        #: It sleeps until this time of the simulation.
        self.wake_ms = 0
        self.body = body
        self.baton = threading.Lock()
        self.baton.acquire()
        self.started = False

    @property
    def in_flight(self) -> bool:
        """True if it has made a request and has not ended."""
        return self.requests > 0 and not self.finished


class _Worker:
    """A reusable thread. Starting a thread for each actor would take a third of the run time."""

    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self._go = threading.Lock()
        self._go.acquire()
        self._body: Callable[[], Callable[[], None]] | None = None
        threading.Thread(target=self._loop, daemon=True, name="icedb-simulation").start()

    def run(self, body: Callable[[], Callable[[], None]]) -> None:
        self._body = body
        self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            body, self._body = self._body, None
            if body is not None:
                hand_on = body()
                self._idle.append(self)  # before others run, so that only one thread uses the list at a time
                hand_on()


_idle: list[_Worker] = []


class Scheduler:
    """Chooses the actor that runs next. `sleep_until` advances the time of `now_ms` if all actors sleep."""

    def __init__(self, rng: random.Random, *, now_ms: Callable[[], int], sleep_until: Callable[[int], None]) -> None:
        self._rng = rng
        self._now_ms = now_ms
        self._sleep_until = sleep_until
        #: The probability that the same actor continues. 0 interleaves requests; near 1, operations run completely.
        self.stickiness = 0.0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        #: Set if the run ends before its actors: each of them gets `Crash` at its next turn.
        self.aborted = False
        self._awaited: list[tuple[Actor, Callable[[], Actor | None]]] = []
        self._main = threading.Lock()
        self._main.acquire()
        self._patient = False

    def spawn(self, actor: Actor) -> Actor:
        """Add an actor, which runs when it is chosen."""
        self.actors.append(actor)
        return actor

    def run(self, *, patient: bool) -> None:
        """Let the actors take turns until all have ended, or, unless `patient`, until the others are asleep."""
        self._patient = patient
        self.current = None
        chosen = self._choose()
        if chosen is not None:
            self._hand_to(chosen)
            self._main.acquire()
        self.actors = [a for a in self.actors if not a.finished]

    def pause(self, actor: Actor) -> None:
        """Give other actors a turn. Called by the running actor. Raises Crash after an abort."""
        chosen = self._choose()
        if chosen is not actor:
            self._hand_to(chosen)
            actor.baton.acquire()
        if self.aborted:
            raise Crash

    def sleep(self, actor: Actor, until_ms: int) -> None:
        """Sleep until a time. Called by the running actor."""
        actor.wake_ms = until_ms
        self.pause(actor)

    def wait_for(self, actor: Actor, others: Iterable[Actor], is_ready: Callable[[Actor], bool]) -> None:
        """Run only these others, in order, until each is ready. Called by the running actor."""
        waiting = list(others)

        def next_one() -> Actor | None:
            return next((o for o in waiting if not o.finished and not is_ready(o)), None)

        while next_one() is not None:
            self._awaited.append((actor, next_one))
            try:
                self.pause(actor)
            finally:
                self._awaited = [entry for entry in self._awaited if entry[0] is not actor]

    def _choose(self) -> Actor | None:
        alive = [a for a in self.actors if not a.finished]
        if self.aborted:
            return next(iter(alive), None)
        if self._awaited:
            owner, next_one = self._awaited[-1]
            other = next_one()
            if other is None:
                return owner
            if other.wake_ms > self._now_ms():
                self._sleep_until(other.wake_ms)
            return other
        awake = [a for a in alive if a.wake_ms <= self._now_ms()]
        if not awake:
            if not alive or not self._patient:
                return None
            first = min(alive, key=lambda a: a.wake_ms)
            self._sleep_until(first.wake_ms)
            return first
        if self.current in awake and self._rng.random() < self.stickiness:
            return self.current
        return awake[int(self._rng.random() * len(awake))]

    def _hand_to(self, actor: Actor | None) -> None:
        self.current = actor
        if actor is None:
            self._main.release()
        elif actor.started:
            actor.baton.release()
        else:
            actor.started = True
            worker = _idle.pop() if _idle else _Worker(_idle)
            worker.run(lambda: self._whole(actor))

    def _whole(self, actor: Actor) -> Callable[[], None]:
        if not self.aborted:
            actor.body()
        actor.finished = True
        return lambda: self._hand_to(self._choose())
