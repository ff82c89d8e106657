"""The memory of operations: the peak, the bytes that stay in use, and their blocks, as Python counts them.

The figures depend neither on time nor on other processes. Arrow's memory is counted by Arrow; DuckDB's is not counted.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable

import msgspec
import pyarrow as pa

from icedb.format.codec import decode, encode
from icedb.format.records import LogFile, Marker
from icedb.testing import ClockedStore, ManualClock, create_table, open_table

__all__ = ["allocations"]

#: Lines of a log file of a large table and of a small one, which have different representations.
LARGE, SMALL = 20_000, 500
#: Log files of a table whose log is not merged.
COMMITS = 500
ROWS = 5_000

SCHEMA = {"ts": "TIMESTAMP WITH TIME ZONE", "event": "VARCHAR"}
_STATS = b'{"event":["add_to_cart","view",0],"ts":["2026-10-01 00:00:00+00","2026-10-01 23:59:59+00",0]}'


def allocations() -> dict[str, float]:
    """Return the bytes and blocks of each operation, divided by its number of items."""
    bytes_by_step: dict[str, float] = {}
    for lines in (SMALL, LARGE):
        store = _store(lines, log_files=1)
        (key,) = (k for k in store.objects if "/_log/" in k)
        body, keys = store.objects[key].body, store.location.keys
        file = decode(body, key, keys)
        work: dict[str, Callable[[], object]] = {
            f"decoding a log file of {lines:,} lines": lambda: decode(body, key, keys),  # noqa: B023 -- called in here
            f"encoding a log file of {lines:,} lines": lambda: encode(file),  # noqa: B023
            f"a snapshot of {lines:,} parts": lambda: _snapshot(store),  # noqa: B023
        }
        for name, act in work.items():
            bytes_by_step |= _measured(f"{name}, a line", act, lines)
    many = _store(COMMITS, log_files=COMMITS)
    bytes_by_step |= _measured(f"a snapshot after {COMMITS:,} commits, a commit", lambda: _snapshot(many), COMMITS)
    sound = _store(LARGE, log_files=1, object_bytes=1)
    bytes_by_step |= _measured(f"verifying {LARGE:,} parts without footers, a part", lambda: _verified(sound), LARGE)
    rows = [{"n": n, "s": f"text {n}", "d": {"x": n / 2, "y": None}} for n in range(ROWS)]
    bytes_by_step |= _measured("an insert of dicts, a row", lambda: _inserted(rows), ROWS)
    return bytes_by_step


def _measured(name: str, act: Callable[[], object], count: int) -> dict[str, float]:
    """Measure the second call: the first fills caches and imports."""
    act()
    gc.collect()
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        blocks_before = sys.getallocatedblocks()
        held = act()
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        blocks = sys.getallocatedblocks() - blocks_before
        arrow = pa.total_allocated_bytes() - arrow_before
    finally:
        tracemalloc.stop()
    del held
    figures = {"peak bytes": peak, "kept bytes": kept + arrow, "kept blocks": blocks}
    return {f"{name}: {what}": round(value / count, 2) for what, value in figures.items()}


def _snapshot(store: ClockedStore) -> object:
    table = open_table(store, store.clock)
    return table, table.snapshot()


def _verified(store: ClockedStore) -> object:
    report = open_table(store, store.clock).verify(footers=False)
    if report.live_parts != LARGE or report.problems:
        raise RuntimeError(f"the table that is measured should have {LARGE} sound parts:\n{report}")
    return report


def _inserted(rows: list[dict[str, object]]) -> object:
    clock = ManualClock()
    return create_table(ClockedStore(clock), clock).insert(rows)


def _store(lines: int, *, log_files: int, object_bytes: int = 0) -> ClockedStore:
    """Return a store with the log of a table with so many parts. They have no objects, or objects of that size."""
    clock = ManualClock()
    store = ClockedStore(clock)
    handle = create_table(store, clock, partition_by=["CAST(ts AS DATE) AS day"]).handle
    markers = [
        Marker(
            handle.keys.part(f"day=2026-10-{1 + n % 30:02d}", clock.new_id()),
            object_bytes or 1_000_000 + n,
            clock.now_ms(),
            rows=10_000 + n,
            stats=msgspec.Raw(_STATS),
            digest=clock.new_id(),
        )
        for n in range(lines)
    ]
    for marker in markers if object_bytes else ():
        store.create(marker.key, bytes(object_bytes))
    for number in range(log_files):
        file = LogFile(clock.now_ms(), SCHEMA, tuple(markers[number::log_files]))
        store.create(handle.keys.log_file(clock.now_ms(), merged=False, writer=f"writer-{number}"), encode(file))
    return store
