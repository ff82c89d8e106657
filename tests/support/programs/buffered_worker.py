"""A process that sends events with ids and prints each id as soon as it is acknowledged.

Run as `python buffered_worker.py '<json>'` by tests/buffering/test_processes.py.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from concurrent.futures import Future
from typing import Any

from icedb import Acknowledged, BufferedWriter, Table


def main(task: dict[str, Any]) -> None:
    table = Table.open(task["uri"], storage_options=task["storage_options"])
    waiting: deque[tuple[int, Future[Acknowledged]]] = deque()
    with BufferedWriter(table, delay_max_ms=5, rows_max=20, id_column="id") as writer:
        for n in range(task["first"], task["events"]):
            waiting.append((n, writer.submit([{"id": f"event {n}", "n": n, "who": task["who"]}])))
            while len(waiting) > task["ahead"] or (waiting and n == task["events"] - 1):
                acknowledged(*waiting.popleft())


def acknowledged(n: int, future: Future[Acknowledged]) -> None:
    future.result()
    sys.stdout.write(f"{n}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
