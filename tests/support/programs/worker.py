"""One process of a test with several: it runs its task and sends the result.

tests/promises/test_processes.py starts it. `kill` names a request before or after which the process kills itself with
SIGKILL, so that no Python code runs after it.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.table import Table
from icedb.testing import FaultyStore, Request
from icedb.transaction.open_table import open_handle


def main(results: Connection, task: dict[str, Any]) -> None:
    store = FaultyStore(open_store(parse_location(task["uri"], task["storage_options"])))
    table = Table(open_handle(store))
    table.handle.read()
    if "kill" in task:
        arm(store, **task["kill"])
    if "barrier" in task:
        wait(Path(task["barrier"]), task["processes"])
    results.send(act(table, task))


def arm(store: FaultyStore, *, when: str, key: str) -> None:
    def die(request: Request) -> None:
        if request.kind == "create" and key in request.keys[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(store, when, die)


def wait(folder: Path, processes: int) -> None:
    """Until all are here: the interpreters of one test start a second or more apart."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < processes:
        time.sleep(0.001)


def act(table: Table, task: dict[str, Any]) -> dict[str, Any]:
    match task["do"]:
        case "insert":
            for n in range(task["batches"]):
                rows = [{"k": n % 2, "who": task["who"], "n": n, "i": i} for i in range(5)]
                if n == task.get("new_column_at"):
                    rows = [r | {f"c{task['who']}": 1} for r in rows]
                table.insert(rows)
            return {}
        case "merge":
            report = table.merge()
            return {"committed": report.commit.committed, "merged": report.merged_parts, "epoch": report.commit.epoch}
    raise AssertionError(task["do"])
