"""A program that inserts Parquet files under a memory limit and prints its peak memory.

    python -m tests.support.programs.larger_than_memory <table> <glob of Parquet files> <memory_bytes>

Its last line is JSON: rows, and the peak of resident memory in bytes.
"""

from __future__ import annotations

import json
import sys

from benchmarks.harness.memory import memory_bytes
from icedb import Table


def main() -> None:
    uri, files, limit = sys.argv[1:]
    table = Table.create(uri, partition_by=["id % 4 AS part"], sort_by=["id"], storage_options={"fsync": "false"})
    commit = table.insert(files, memory_bytes=int(limit))
    sys.stdout.write(json.dumps({"rows": commit.rows, "peak_bytes": memory_bytes("VmHWM")}) + "\n")


if __name__ == "__main__":
    main()
