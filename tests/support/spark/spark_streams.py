"""Folders of events and of changes that streams read, and drivers that are killed at a moment of a micro-batch."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.spark.spark_clusters import Driver, SharedDriver, environment
from tests.support.spark.spark_scene import once

#: The records of a file.
ROWS = 20
KEYS = 30
FIRST = 1_790_000_000
POLL_SECONDS = 0.002


class EventFolder:
    """A folder that receives files of events, and the checkpoint of the stream that reads it."""

    #: The function of the driver that reads them.
    command = "stream"

    def __init__(self, folder: Path, place: dict[str, str]) -> None:
        self.files, self.checkpoint = folder / "files", folder / "checkpoint"
        self.files.mkdir()
        self._place = place
        self.arrived = 0

    def arrive(self, files: int = 1) -> None:
        for number in range(self.arrived, self.arrived + files):
            lines = [json.dumps(record) for record in self.records(number)]
            unfinished = self.files / f".{number:05}"
            unfinished.write_text("\n".join(lines))
            os.utime(unfinished, times=(FIRST + number, FIRST + number))  # Spark takes the oldest first
            unfinished.rename(self.files / f"{number:05}.json")
        self.arrived += files

    def stream(self, driver: Driver | SharedDriver, **options: Any) -> int:
        """Read all that has arrived; gives the number of the last batch."""
        answer = driver.ask(
            self.command, place=self._place, files=str(self.files), checkpoint=str(self.checkpoint), **options
        )
        return int(answer)

    def records(self, number: int) -> list[dict[str, Any]]:
        """Return the records of a file."""
        return [{"n": n, "label": f"é{n}"} for n in range(number * ROWS, (number + 1) * ROWS)]

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of all events so far."""
        return list(range(self.arrived * ROWS))


class ChangeFolder(EventFolder):
    """Files of random changes of users, as Debezium writes them, and the users after each file."""

    command = "stream_changes"

    def __init__(self, folder: Path, place: dict[str, str]) -> None:
        super().__init__(folder, place)
        self._chance = random.Random(7)
        #: The rows (id, name) after each number of files, beginning with none.
        self.states: list[list[tuple[int, str]]] = [[]]

    def records(self, number: int) -> list[dict[str, Any]]:
        """Return the changes of a file in random order. Several changes of a user may have the same time."""
        users, changes = dict(self.states[-1]), []
        for lsn in range(number * ROWS, (number + 1) * ROWS):
            id_ = self._chance.randrange(KEYS)
            before = {"id": id_, "name": users[id_]} if id_ in users else None
            after = None if before and self._chance.random() < 0.3 else {"id": id_, "name": f"é{lsn}"}
            users.pop(id_, None)
            if after:
                users[id_] = f"é{lsn}"
            op = "d" if after is None else "u" if before else "c"
            changes.append({"op": op, "before": before, "after": after, "ts_ms": lsn // 4, "source": {"lsn": lsn}})
        self._chance.shuffle(changes)
        self.states.append(sorted(users.items()))
        return changes


#: A moment of a micro-batch: `before` or `after` a request with this method and this text in its path, or `checkpoint`,
#: no method, and the folder of the checkpoint to which Spark writes a file.
Moment = tuple[str, str, str]


def kill_drivers(
    moments: Sequence[Moment], times: int, source: EventFolder, proxy: CountingProxy, folder: Path, spark_home: Path
) -> Iterator[Moment]:
    """Kill a driver at each of the first `times` occurrences of each moment, and give the moment after each kill.

    `times` files arrive before each driver reads the stream.
    """
    for number, (occurrences, moment) in enumerate(product(range(times), moments)):
        source.arrive(times)
        with (
            Driver({"spark.master": "local[2]"}, folder / f"driver-{number}", environment(spark_home)) as driver,
            _killed_after(driver, occurrences, moment, source, proxy),
            pytest.raises(EOFError),
        ):
            source.stream(driver)
        yield moment


@contextmanager
def _killed_after(
    driver: Driver, occurrences: int, moment: Moment, source: EventFolder, proxy: CountingProxy
) -> Iterator[None]:
    """Kill the driver at the next occurrence of the moment after this number of occurrences."""
    when, method, target = moment
    if when == "checkpoint":
        with _killed_at_file(driver, occurrences, source.checkpoint / target):
            yield
        return
    requests = 0

    def is_next(request: HttpRequest) -> bool:
        nonlocal requests
        requests += request.kind == method and target in request.path
        return requests > occurrences

    def kill(_: HttpRequest) -> None:
        driver.kill()
        raise ConnectionAbortedError

    setattr(proxy, when, once(is_next, kill))
    try:
        yield
    finally:
        proxy.before = proxy.after = None


@contextmanager
def _killed_at_file(driver: Driver, occurrences: int, folder: Path) -> Iterator[None]:
    """Kill the driver when it has written more than this number of new files of micro-batches to the folder."""

    def files() -> set[str]:
        return {p.name for p in folder.glob("[0-9]*")}

    before, over = files(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            if len(files() - before) > occurrences:
                driver.kill()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
