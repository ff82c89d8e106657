"""A cold start, like that of a cloud function: the costs of each step as JSON.

    python -m benchmarks.experiments.tips_child TABLE

It starts the clock before it imports the library, and blocks the packages of extras.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.harness.memory import memory_bytes

__all__: list[str] = []

# Packages of extras, which DuckDB and pyarrow would load if they are installed.
EXTRAS = ("pandas", "polars")


def main(uri: str) -> None:
    """Print the processor seconds of each step, and the peak memory up to its end."""
    sys.modules.update(dict.fromkeys(EXTRAS))  # type: ignore[arg-type]
    steps: dict[str, tuple[float, int]] = {}
    last = time.process_time()

    def step(name: str) -> None:
        nonlocal last
        now = time.process_time()
        steps[name] = now - last, memory_bytes("VmHWM")
        last = now

    step("nothing")
    import icedb

    step("import icedb")
    table = icedb.Table.open(uri)
    step("open")
    rows = [{"ts": f"2026-11-21 10:00:{n % 60:02}", "user_id": n, "event": "open"} for n in range(100)]
    table.insert(rows)
    step("first insert")
    table.insert(rows)
    step("second insert")
    table.query("SELECT event, count(*) FROM t GROUP BY event").fetchall()
    step("first query")
    sys.stdout.write(json.dumps(steps))


if __name__ == "__main__":
    main(sys.argv[1])
