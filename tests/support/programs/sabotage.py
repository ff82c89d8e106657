"""Work of an engine during which an attempt fails or its process dies.

Files in a folder that all processes share decide which attempt fails.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from icedb.format.records import Marker
from icedb.operations.rewrite.engine import DistributedTask, Engine, Item, ResourceLimits, Result
from icedb.storage.location import Location
from icedb.testing import Fault, FaultyStore
from icedb.transaction.table_handle import Handle
from tests.support.waiting import wait_until

How = Literal["answer lost", "killed", "dies after the others", "unknown error"]


@dataclass(frozen=True, slots=True)
class Sabotaged(DistributedTask[Any, Any]):
    """Work whose first `times` attempts of all processes fail.

    "dies after the others": every attempt at the partition that began first dies after `others` have put their parts.
    """

    work: DistributedTask[Any, Any]
    how: How
    folder: str
    times: int = 1
    others: int = -1

    name = "sabotaged work"

    def reads(self) -> tuple[Location, ...]:
        return self.work.reads()

    def bytes_of(self, item: Any) -> int:
        return self.work.bytes_of(item)

    def partition_of(self, item: Any) -> str | None:
        return self.work.partition_of(item)

    def part_of(self, result: Any) -> Marker | None:
        return self.work.part_of(result)

    def do(self, handle: Handle, items: Sequence[Any], limits: ResourceLimits) -> list[Any]:
        hit = attempt(self.folder) <= self.times
        own = str(self.partition_of(items[0]))
        if self.how == "dies after the others":
            hit = own == first_partition(self.folder, own)
        if hit and self.how == "answer lost":
            store = FaultyStore(handle.store)
            store.inject(Fault.LOSE_RESPONSE, kind="create", key="_data/")
            handle = replace(handle, store=store)
        if hit and self.how == "unknown error":
            raise ZeroDivisionError("nobody knows why")
        results = self.work.do(handle, items, limits)
        Path(self.folder, f"done-{own}").touch()
        if hit:
            done = Path(self.folder).glob
            wait_until(lambda: len(list(done("done-*"))) > self.others, "the others have put their parts")
        if hit and self.how in ("killed", "dies after the others"):
            os._exit(1)
        return results


def attempt(folder: str) -> int:
    """Count this attempt: 1 is the first of all processes."""
    number = 1
    while True:
        try:
            Path(folder, f"attempt-{number}").open("x").close()
        except FileExistsError:
            number += 1
        else:
            return number


def first_partition(folder: str, own: str) -> str:
    """Return the partition of the first attempt."""
    try:
        with Path(folder, "first").open("x") as file:
            file.write(own)
    except FileExistsError:
        pass
    return wait_until(Path(folder, "first").read_text, "the first attempt has written its partition")


def attempts(folder: Path) -> int:
    """Return the number of attempts."""
    return len(list(folder.glob("attempt-*")))


@dataclass(frozen=True, slots=True)
class Saboteur:
    """An engine that has another one do sabotaged work."""

    engine: Engine
    how: How
    folder: Path
    times: int = 1
    others: int = -1

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        sabotaged = Sabotaged(work, self.how, str(self.folder), self.times, self.others)
        return self.engine.run(handle, sabotaged, items)
