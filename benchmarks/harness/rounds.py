"""Rounds of cases that are measured in turns, so that other load of the machine affects all of them equally."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness.memory import memory_bytes, reset_peak

__all__ = ["Case", "Footprint", "Result", "Work", "peak_worker_bytes", "run_rounds"]

# Interval of the search for worker processes. A shorter-lived process did no work.
SCAN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Footprint:
    """The files of a case on disk."""

    files: int
    bytes: int


#: The timed work. It returns a function that inspects the result, untimed.
Work = Callable[[], Callable[[], Footprint | None]]


@dataclass(frozen=True, slots=True)
class Case:
    """A way to do the work of its group. `ready` is a context around the timed work, which prepares and cleans up.

    `goal` is the maximum ratio of its time to that of the group's first case. `rounds_max` limits its measured rounds.
    """

    group: str
    name: str
    ready: Callable[[], AbstractContextManager[Work]]
    goal: float | None = None
    rounds_max: int | None = None


@dataclass(slots=True)
class Result:
    """The times of a case in each measured round. `processor_seconds` are those of this process alone."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    footprint: Footprint | None = None
    worker_bytes: int = 0

    @property
    def median_seconds(self) -> float:
        """The median of all measured rounds."""
        return median(self.seconds)


def run_rounds(
    cases: Sequence[Case], rounds: int, *, on_step: Callable[[str], None], only_reads: bool = False
) -> list[Result]:
    """Run a warm-up round, then `rounds` measured rounds, each case by case.

    `only_reads`: no case writes or starts a worker, so disks are not synced and workers not measured.
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
            os.sync()  # pending writes of other cases must not slow this one
        with nullcontext([0]) if only_reads else peak_worker_bytes(os.getpid()) as peak:
            started, processor_started = time.perf_counter(), time.process_time()
            inspect = work()
            seconds = time.perf_counter() - started, time.process_time() - processor_started
        result.footprint = inspect()
    result.worker_bytes = max(result.worker_bytes, peak[0])
    return seconds


@contextmanager
def peak_worker_bytes(root: int) -> Iterator[list[int]]:
    """Measure the peak resident memory of the Spark Python workers below a process that work during the block.

    After the block, the list has the greatest peak; 0 if no worker worked.
    """
    peak, over = [0], threading.Event()
    # Idle workers of earlier cases are excluded, and their earlier peaks are reset.
    before = {pid: _processor_ticks(pid) for pid in _workers(root)}
    for pid in before:
        with suppress(OSError):
            reset_peak(pid)

    def scan() -> None:
        worked = [pid for pid in _workers(root) if _processor_ticks(pid) > before.get(pid, -1)]
        peak[0] = max([peak[0], *map(_peak_bytes, worked)])

    def watch() -> None:
        while not over.wait(SCAN_SECONDS):
            scan()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()
        scan()


def _workers(root: int) -> list[int]:
    """Return the Python processes of pyspark below a process, their common parent included."""
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
    """Return the processor time of a process in ticks; -1 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _peak_bytes(pid: int) -> int:
    try:
        return memory_bytes("VmHWM", pid)
    except (OSError, KeyError):  # it has ended
        return 0
