"""Two processes that are killed repeatedly send the same events: each event with an id is committed once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.testing import check_sound
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

WORKER = Path(__file__).parents[1] / "support" / "programs" / "buffered_worker.py"
SENDERS = 2


class Sender:
    """A client that sends events in order, from the first that was not acknowledged, to a process that may die."""

    def __init__(self, place: Any, who: int) -> None:
        self._task = {"uri": place.uri, "storage_options": place.storage_options, "who": who, "ahead": 30}
        self.acknowledged: set[int] = set()
        self._process: subprocess.Popen[str] | None = None

    def start(self, events: int) -> None:
        task = self._task | {"first": len(self.acknowledged), "events": events}
        command = [sys.executable, str(WORKER), json.dumps(task)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=WORKER.parents[2])

    def read(self, answers: int | None = None) -> None:
        """Wait for `answers` acknowledgements, or for all. Ignore the incomplete line of a killed process."""
        assert self._process is not None
        assert self._process.stdout is not None
        for number, line in enumerate(self._process.stdout, 1):
            if line.endswith("\n"):
                self.acknowledged.add(int(line))
            if number == answers:
                break

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self.finish()

    def finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self.read()
            self._process.stdout.close()
        return self._process.wait(SECONDS_MAX)


def events_of(table: Table) -> list[int]:
    check_sound(table.handle.store)
    return [n for (n,) in table.query("SELECT n FROM t ORDER BY n").fetchall()]


def story(place: Any, *, kills: int, events_each: int) -> None:
    table = Table.create(place.uri, sort_by=["n"], storage_options=place.storage_options)
    table.insert([{"id": "event -1", "n": -1, "who": -1}])
    senders = [Sender(place, who) for who in range(SENDERS)]
    try:
        for number in range(1, kills + 1):
            for sender in senders:
                sender.start(10 * events_each * number)
            senders[number % SENDERS].read(events_each)
            for sender in senders:
                sender.kill()
            committed = events_of(table)
            assert len(committed) == len(set(committed)), "duplicates"
            assert set(committed) >= senders[0].acknowledged | senders[1].acknowledged, "lost"
        events = max(len(s.acknowledged) for s in senders) + events_each
        for sender in senders:
            sender.start(events)
        assert [sender.finish() for sender in senders] == [0] * SENDERS
    finally:
        for sender in senders:
            sender.kill()
    assert all(s.acknowledged == set(range(events)) for s in senders)
    committed = events_of(table)
    assert committed[: events + 1] == list(range(-1, events)), "events without an acknowledgement may be committed, too"
    assert len(committed) == len(set(committed))


@pytest.mark.sampled(days=3)
def test_events_of_killed_processes_are_committed_once(local: Any) -> None:
    story(local, kills=1, events_each=40)


@pytest.mark.slow(seconds=60)
def test_events_of_killed_processes_are_committed_once_twenty_times(shared_place: Any) -> None:
    story(shared_place, kills=20, events_each=60)
