"""Merge a table, and print by how much the peak memory of this new process grew, in bytes.

python -m benchmarks.writes.merge_memory TABLE MEMORY_BYTES
"""

from __future__ import annotations

import sys

from benchmarks.harness.memory import memory_bytes, reset_peak
from icedb import Table

__all__: list[str] = []


def main(uri: str, limit: int) -> None:
    """Merge the table. Raises AssertionError if a row is lost, or more than one part remains."""
    table = Table.open(uri)
    before = table.query("SELECT count(*) FROM t").fetchall()
    started = memory_bytes("VmRSS")
    reset_peak()
    table.merge(memory_bytes=limit)
    grown = memory_bytes("VmHWM") - started
    if table.query("SELECT count(*) FROM t").fetchall() != before or len(table.snapshot().parts) != 1:
        raise AssertionError(f"{uri}: the merge changed the number of rows, or left more than one part")
    sys.stdout.write(f"{grown}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
