"""Cases that are measured in turns, so that whatever the machine does besides meets all of them alike."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

__all__ = ["Case", "Footprint", "Result", "peak_worker_bytes", "run_rounds"]

# How often running processes are looked for: one that lives for less has done nothing.
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a case left on disk."""

    files: int
    bytes: int


#: What is timed; its answer looks at what it made, untimed.
Work = Callable[[], Callable[[], Footprint | None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to do the work of its group. `ready` is a context around the timed work: it prepares, and cleans up.

    `goal` is the greatest ratio of its time to that of the group's first case. `rounds_max`: so many measured rounds,
    the first ones, are enough.
    """

    group: str
    name: str
    ready: Callable[[], AbstractContextManager[Work]]
    goal: float | None = None
    rounds_max: int | None = None


@dataclass(slots=True)
class Result:
    """What a case took in each measured round; `processor_seconds` are of this process alone."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    footprint: Footprint | None = None
    worker_bytes: int = 0

    @property
    def median_seconds(self) -> float:
        """Of all measured rounds."""
        return median(self.seconds)


def run_rounds(
    cases: Sequence[Case], rounds: int, *, on_step: Callable[[str], None], only_reads: bool = False
) -> list[Result]:
    """A round that is not measured and warms everything up, then `rounds` that are; within each, case after case.

    `only_reads`: nothing is written and no worker is started, so neither is looked after: cases may be short.
    """
    results = [Result(case) for case in cases]
    for number in range(rounds + 1):
        for result in results:
            if result.case.rounds_max is not None and number > result.case.rounds_max:
                continue
            on_step(f"{result.case.group}, {result.case.name}: " + (f"round {number}" if number else "warm-up"))
            seconds, processor_seconds = _measure(result, only_reads)
            if number:
                result.seconds.append(seconds)
                result.processor_seconds.append(processor_seconds)
    return results


def _measure(result: Result, only_reads: bool) -> tuple[float, float]:
    with result.case.ready() as work:
        if not only_reads:
            os.sync()  # what others left to be written must not be written at our expense
        with nullcontext([0]) if only_reads else peak_worker_bytes(os.getpid()) as peak:
            started, processor_started = time.perf_counter(), time.process_time()
            look = work()
            seconds = time.perf_counter() - started, time.process_time() - processor_started
        result.footprint = look()
    result.worker_bytes = max(result.worker_bytes, peak[0])
    return seconds


@contextmanager
def peak_worker_bytes(root: int) -> Iterator[list[int]]:
    """The greatest resident memory that any one Python worker of Spark's below a process had while it worked in here.

    It is in the list when the block is over; 0 when none has worked.
    """
    peak, over = [0], threading.Event()
    # Workers of earlier cases wait for more: what they took then is not ours, nor are they if they go on waiting.
    before = {pid: _processor_ticks(pid) for pid in _workers(root)}
    for pid in before:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def look() -> None:
        worked = [pid for pid in _workers(root) if _processor_ticks(pid) > before.get(pid, -1)]
        peak[0] = max([peak[0], *map(_peak_bytes, worked)])

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()
        look()


def _workers(root: int) -> list[int]:
    """Python processes of pyspark's below a process; the one that was started first is their parent."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid for pid in parents if pid != root and _is_below(pid, root, parents) and _is_worker(pid)]


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


def _is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _processor_ticks(pid: int) -> int:
    """What a process has computed so far; -1 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
