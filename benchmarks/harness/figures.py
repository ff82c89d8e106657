"""The results of benchmarks: ways of doing the same work, measured in turns, and goals for them.

A module of the suite measures one kind of work and returns `Finding`s. `benchmarks.suite` runs all modules and writes
the page. Times are compared within one run only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median

__all__ = ["OURS", "Check", "Curve", "Finding", "Measure", "Plan", "Step", "Way", "percentile", "ratio_to"]

#: The name of our own way in every finding.
OURS = "icedb"

#: Rounds of ways without a goal, in the short form.
ROUNDS_BESIDE = 3

#: Called with the description of each step.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run. `full`: with the sizes and rounds of the long form."""

    full: bool = False
    #: Measured rounds, after a warm-up round.
    rounds: int = 5
    #: The delay of each request, in findings over a network.
    latency_ms: float = 20.0
    #: The factor by which all sizes are reduced, for tests; the figures are then meaningless.
    shrink: int = 1
    #: The keys of the findings to measure. Empty: all. A module may measure more.
    only: frozenset[str] = frozenset()

    def wants(self, key: str) -> bool:
        """Return whether a finding is to be measured."""
        return not self.only or key in self.only

    def rounds_beside(self) -> int:
        """Return the number of rounds of ways without a goal."""
        return self.rounds if self.full else min(self.rounds, ROUNDS_BESIDE)

    def size(self, short: int, full: int | None = None) -> int:
        """Return a size for this run, at least 1."""
        return max(1, (full if full is not None and self.full else short) // self.shrink)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do the work, with its value in each measured round in the finding's unit."""

    name: str
    values: Sequence[float]
    #: The name of our way with which this one is compared; its own name if it is ours. Empty: an additional step that
    #: is not compared.
    ours: str = OURS

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Check:
    """A goal: `value` must be at most `limit`, or at least. `why` explains a miss: the dominating cost by profile, and
    the necessary change."""

    goal: str
    value: float
    limit: float
    at_least: bool = False
    why: str = ""
    #: The least and the greatest value of a round; None for a count, which has no spread.
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Curve:
    """Lines of a plot: `lines` has a y for each x, by name."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    #: A horizontal line, if there is a limit.
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the results. `counts` are figures that are equal in every run (requests, bytes)."""

    key: str
    title: str
    unit: str
    ways: Sequence[Way] = ()
    checks: Sequence[Check] = ()
    counts: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    #: Notes for readers of the figures: sizes, settings, work that peers omit.
    notes: Sequence[str] = ()
    #: A short title.
    short: str = ""

    def way(self, name: str) -> Way:
        """Return a way by name. Raises KeyError."""
        return {way.name: way for way in self.ways}[name]

    def compared(self, way: Way) -> Way | None:
        """Return our way with which a way is compared, or None if it is that way itself or is not compared."""
        return next((w for w in self.ways if w.name == way.ours and w is not way), None)

    @property
    def is_rate(self) -> bool:
        """True if the unit is a rate, of which more is better."""
        return self.unit.endswith("/s") or "per second" in self.unit


#: Measures in an empty folder.
Measure = Callable[[Plan, Path, Step], list[Finding]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest rank."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def ratio_to(ours: Way, other: Way) -> tuple[float, tuple[float, float]]:
    """Return the ratio of our median to another's, and the least and greatest ratio of a round.

    A way with fewer rounds is compared with as many of ours.
    """
    rounds = [a / b for a, b in zip(ours.values, other.values, strict=False)]
    return median(ours.values[: len(rounds)]) / other.median, (min(rounds), max(rounds))
