"""A summary of many seeds: their number, their speed, and the combinations that were struck."""

from __future__ import annotations

from collections import Counter
from time import monotonic

from icedb.testing.simulation.random_runs import Cell, Outcome, all_cells
from icedb.testing.simulation.scenes import SCENES
from icedb.testing.simulation.world.operations import OPERATIONS
from icedb.testing.simulation.world.request_faults import Trouble

__all__ = ["SimulationReport"]


class SimulationReport:
    """The sum of outcomes. Its text includes the matrix of operation struck by operation in flight, over all faults."""

    def __init__(self, planned: int, *, scene: str | None = None) -> None:
        self.planned = planned
        self.names = [*OPERATIONS, *(SCENES[scene]().operations if scene is not None else ())]
        self._is_usual = scene is None
        self.runs = 0
        self.failures: list[int] = []
        self.requests: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.cells: Counter[Cell] = Counter()
        self.schedules: set[int] = set()
        self.least = {"requests": 1 << 30, "faults": 1 << 30, "in flight": 1 << 30}
        self._began = monotonic()

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a seed."""
        tally = outcome.tally
        self.runs += 1
        self.failures += [outcome.seed] if outcome.violation is not None else []
        self.requests.update(tally.requests)
        self.troubles.update(tally.troubles)
        self.outcomes.update(tally.outcomes)
        self.cells.update(tally.cells)
        self.schedules.add(tally.schedule)
        for what, count in (
            ("requests", tally.requests.total()),
            ("faults", tally.troubles.total()),
            ("in flight", tally.in_flight_max),
        ):
            self.least[what] = min(self.least[what], count)

    @property
    def empty_cells(self) -> list[Cell]:
        """The combinations that no seed has tried."""
        return sorted(all_cells() - self.cells.keys())

    def progress(self) -> str:
        """Return a line of progress."""
        seconds = monotonic() - self._began
        return (
            f"{self.runs} of {self.planned} seeds, {self.runs / seconds:.0f} a second, "
            f"{self.requests.total():,} requests, {len(self.failures)} failed"
        )

    def __str__(self) -> str:
        least = ", ".join(f"{count} {what}" for what, count in self.least.items())
        return "\n".join(
            [
                self.progress(),
                f"{len(self.schedules):,} different schedules; in each seed at least {least}",
                f"faults: {_counts(self.troubles)}",
                f"requests: {_counts(self.requests)}",
                *self._outcome_lines(),
                *(self._matrix_lines() if self._is_usual else ()),
                f"failed: {self.failures}" if self.failures else "No invariant was violated.",
            ]
        )

    def _outcome_lines(self) -> list[str]:
        of: dict[str, Counter[str]] = {name: Counter() for name in self.names}
        for (name, outcome), count in self.outcomes.items():
            if name in of:
                of[name][outcome] += count
        return [f"  {name:<11} {_counts(counter)}" for name, counter in of.items() if counter]

    def _matrix_lines(self) -> list[str]:
        width = max(map(len, OPERATIONS)) + 1
        lines = [" " * width + " ".join(f"{name[:7]:>7}" for name in OPERATIONS)]
        for struck in OPERATIONS:
            counts = [sum(self.cells[struck, other, t.value] for t in Trouble) for other in OPERATIONS]
            lines.append(f"{struck:<{width}}" + " ".join(f"{count:7d}" for count in counts))
        lines.append(
            f"{len(all_cells()):,} combinations of operation, operation in flight and fault; "
            f"{len(self.empty_cells)} not tried {self.empty_cells[:5] if self.empty_cells else ''}"
        )
        return lines


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in counter.most_common())
