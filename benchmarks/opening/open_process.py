"""Programs of the benchmark of opening, each in a new process, so that memory and imports are its own.

    python -m benchmarks.opening.open_process PROGRAM FOLDER

Prints JSON: the seconds of each step, and the bytes of memory that are still in use.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.harness.memory import memory_bytes
from benchmarks.opening.made_logs import DAYS, FIRST_DAY, append_commit
from icedb import Table

__all__ = ["PROGRAMS"]

_Result = TypeVar("_Result")


class _Line(msgspec.Struct):
    """The fields of a log file's line that an open table needs."""

    p: str
    b: int
    t: int
    r: int | None = None
    s: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    h: str | None = None


class _Steps:
    """The seconds of each step, by name."""

    def __init__(self) -> None:
        self.measurements: dict[str, float] = {}

    def of(self, name: str, act: Callable[[], _Result]) -> _Result:
        started = time.perf_counter()
        result = act()
        self.measurements[name] = time.perf_counter() - started
        return result


def _decode(folder: Path) -> dict[str, float]:
    """Decode the lines alone, all at once, with raw statistics: with the garbage collector on, and off."""
    (path,) = (folder / "_log").iterdir()
    lines = path.read_bytes().split(b"\n", 2)[2]
    decoder, steps = msgspec.json.Decoder(_Line), _Steps()
    decoder.decode_lines(lines[: lines.index(b"\n")])
    steps.of("seconds", lambda: len(decoder.decode_lines(lines)))
    gc.disable()
    steps.of("seconds, no collector", lambda: len(decoder.decode_lines(lines)))
    return steps.measurements


def _open(folder: Path) -> dict[str, float]:
    """Open the table and take a snapshot, another one, and one after a commit, which is then removed."""
    table, steps, held = _opened(folder)
    parts = len(table.snapshot().parts)
    steps.of("snapshot again", table.snapshot)
    key = append_commit(table, parts)
    try:
        newer = steps.of("snapshot after a commit", table.snapshot)
    finally:
        (folder / key).unlink()
    if len(newer.parts) != parts + 1:
        raise AssertionError(f"the table has {len(newer.parts)} parts after a commit to {parts}")
    return steps.measurements | {"held": held, "peak": memory_bytes("VmHWM"), "parts": parts}


def _prune(folder: Path) -> dict[str, float]:
    """Find the files of a snapshot for a day, and for an event of some days."""
    table, steps, _ = _opened(folder)
    snapshot = table.snapshot()
    some = steps.of("files of a day", lambda: snapshot.files(f"day = DATE '{FIRST_DAY}' + {DAYS // 2}"))
    few = steps.of("files by statistics", lambda: snapshot.files("event = 'e0007'"))
    if not 0 < len(some) < len(snapshot.parts) or not 0 < len(few) < len(snapshot.parts):
        raise AssertionError(f"{len(some)} and {len(few)} of {len(snapshot.parts)} parts were found")
    return steps.measurements


def _opened(folder: Path) -> tuple[Table, _Steps, int]:
    """Return the open table, the time of opening, and its memory."""
    small = Table.open(folder.with_name("small")).snapshot()  # one-time imports are not counted
    small.files(f"day = DATE '{FIRST_DAY}'")
    small.files("event = 'e0000'")
    del small
    gc.collect()
    before, steps = memory_bytes("VmRSS"), _Steps()
    table = steps.of("open", lambda: Table.open(folder))
    snapshot = steps.of("snapshot", table.snapshot)
    gc.collect()
    held = memory_bytes("VmRSS") - before
    del snapshot
    return table, steps, held


def _open_delta(folder: Path) -> dict[str, float]:
    """Open the table with deltalake, and list the paths of all files."""
    from deltalake import DeltaTable

    DeltaTable(folder.with_name("small-delta")).file_uris()
    before, steps = memory_bytes("VmRSS"), _Steps()
    table = steps.of("open", lambda: DeltaTable(folder))
    paths = steps.of("snapshot", table.file_uris)
    return steps.measurements | {"held": memory_bytes("VmRSS") - before, "parts": len(paths)}


PROGRAMS: dict[str, Callable[[Path], dict[str, float]]] = {
    "decode": _decode,
    "open": _open,
    "prune": _prune,
    "delta": _open_delta,
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](Path(sys.argv[2]))) + "\n")
