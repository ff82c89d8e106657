"""Programs that the benchmark of opening starts, each in a process of its own: for memory, and for what is imported.

    python -m benchmarks.opening_child WHAT FOLDER

prints JSON: seconds of each step, and bytes of memory that stayed.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.opening_world import DAYS, FIRST_DAY, append_commit
from icedb import Table

__all__ = ["PROGRAMS"]

_Result = TypeVar("_Result")


class _Line(msgspec.Struct):
    """A line of a log file, decoded as far as a table that is opened has to know it."""

    p: str
    b: int
    t: int
    r: int | None = None
    s: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    h: str | None = None


class _Steps:
    """Seconds of each step, by name."""

    def __init__(self) -> None:
        self.measurements: dict[str, float] = {}

    def of(self, name: str, act: Callable[[], _Result]) -> _Result:
        started = time.perf_counter()
        result = act()
        self.measurements[name] = time.perf_counter() - started
        return result


def _decode(folder: Path) -> dict[str, float]:
    """The lines alone, all at once, statistics kept raw: with the garbage collector on, as it is, and off."""
    (path,) = (folder / "_log").iterdir()
    lines = path.read_bytes().split(b"\n", 2)[2]
    decoder, steps = msgspec.json.Decoder(_Line), _Steps()
    decoder.decode_lines(lines[: lines.index(b"\n")])
    steps.of("seconds", lambda: len(decoder.decode_lines(lines)))
    gc.disable()
    steps.of("seconds, no collector", lambda: len(decoder.decode_lines(lines)))
    return steps.measurements


def _open(folder: Path) -> dict[str, float]:
    """Opening and a snapshot; then once more, and after a commit that is taken back."""
    table, steps, held = _opened(folder)
    parts = len(table.snapshot().parts)
    steps.of("snapshot again", table.snapshot)
    key = append_commit(table, parts)
    try:
        newer = steps.of("snapshot after a commit", table.snapshot)
    finally:
        (folder / key).unlink()
    if len(newer.parts) != parts + 1:
        raise AssertionError(f"{len(newer.parts)} parts are there after a commit to {parts}")
    return steps.measurements | {"held": held, "peak": _peak_bytes(), "parts": parts}


def _prune(folder: Path) -> dict[str, float]:
    """The files of a snapshot for a day, and for an event that some of all days may have."""
    table, steps, _ = _opened(folder)
    snapshot = table.snapshot()
    some = steps.of("files of a day", lambda: snapshot.files(f"day = DATE '{FIRST_DAY}' + {DAYS // 2}"))
    few = steps.of("files by statistics", lambda: snapshot.files("event = 'e0007'"))
    if not 0 < len(some) < len(snapshot.parts) or not 0 < len(few) < len(snapshot.parts):
        raise AssertionError(f"{len(some)} and {len(few)} of {len(snapshot.parts)} parts were found")
    return steps.measurements


def _opened(folder: Path) -> tuple[Table, _Steps, int]:
    """The table, what opening it took, and the memory that it has."""
    small = Table.open(folder.with_name("small")).snapshot()  # what is imported once is no part's
    small.files(f"day = DATE '{FIRST_DAY}'")
    small.files("event = 'e0000'")
    del small
    gc.collect()
    before, steps = _resident_bytes(), _Steps()
    table = steps.of("open", lambda: Table.open(folder))
    snapshot = steps.of("snapshot", table.snapshot)
    gc.collect()
    held = _resident_bytes() - before
    del snapshot
    return table, steps, held


def _open_delta(folder: Path) -> dict[str, float]:
    """deltalake: opening, and the paths of all files."""
    from deltalake import DeltaTable

    DeltaTable(folder.with_name("small-delta")).file_uris()
    before, steps = _resident_bytes(), _Steps()
    table = steps.of("open", lambda: DeltaTable(folder))
    paths = steps.of("snapshot", table.file_uris)
    return steps.measurements | {"held": _resident_bytes() - before, "parts": len(paths)}


PROGRAMS: dict[str, Callable[[Path], dict[str, float]]] = {
    "decode": _decode,
    "open": _open,
    "prune": _prune,
    "delta": _open_delta,
}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](Path(sys.argv[2]))) + "\n")
