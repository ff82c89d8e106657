"""What the benchmarks find out, in one shape: ways of doing the same work, measured in turns, and goals for them.

A module of the suite measures one kind of work and gives `Finding`s; `benchmarks.suite` runs them all and writes them
down. Times are only ever compared within one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

__all__ = ["OURS", "Check", "Curve", "Finding", "Measure", "Plan", "Step", "Way", "ratio_to"]

#: The name of our own way in every finding.
OURS = "icedb"

#: Of the ways that no goal is about, in the short form.
ROUNDS_BESIDE = 3

#: Is told what is being done.
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `full`: with the sizes and rounds of the long run."""

    full: bool = False
    #: Measured rounds, after one that warms up.
    rounds: int = 5
    #: Of each request, where a finding says that it is over a network.
    latency_ms: float = 20.0
    #: Everything this many times smaller, for a test that all of it runs; its figures mean nothing.
    shrink: int = 1
    #: The keys of the findings that are asked for; none: all. What measures more than is asked does no harm.
    only: frozenset[str] = frozenset()

    def wants(self, key: str) -> bool:
        """Whether a finding is asked for."""
        return not self.only or key in self.only

    def rounds_beside(self) -> int:
        """Of ways that no goal is about."""
        return self.rounds if self.full else min(self.rounds, ROUNDS_BESIDE)

    def size(self, short: int, full: int | None = None) -> int:
        """So many of something in this run, one at least."""
        return max(1, (full if full is not None and self.full else short) // self.shrink)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the work: its value in each measured round, in the finding's unit."""

    name: str
    values: Sequence[float]
    #: The way of ours that does the same work, with which this one is compared: its own name, where that is itself.
    #: Empty: a step that is told beside the others, as nothing does the same.
    ours: str = OURS

    @property
    def median(self) -> float:
        """Of all rounds."""
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Check:
    """A goal: `value` is to be at most `limit`, or at least. `why` is told when it is missed: what dominates, by
    profile, and what would be needed."""

    goal: str
    value: float
    limit: float
    at_least: bool = False
    why: str = ""
    #: The smallest and the greatest value of a round; None for a count, which has no spread.
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over something that grows, to be drawn: `lines` is a name and y for each x."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    #: Drawn across, when there is a limit.
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the results. `counts` are figures that every run gives alike (requests, bytes)."""

    key: str
    title: str
    unit: str
    ways: Sequence[Way] = ()
    checks: Sequence[Check] = ()
    counts: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    #: What one must know to read the figures: sizes, settings, where the peers do less.
    notes: Sequence[str] = ()
    #: The title in few words, where there is little room.
    short: str = ""

    def way(self, name: str) -> Way:
        """One of its ways. Raises KeyError."""
        return {way.name: way for way in self.ways}[name]

    def compared(self, way: Way) -> Way | None:
        """The way of ours with which one is compared; None for that way itself, and where there is none."""
        return next((w for w in self.ways if w.name == way.ours and w is not way), None)

    @property
    def is_rate(self) -> bool:
        """Whether more is better: the unit is so many in a time."""
        return self.unit.endswith("/s") or "per second" in self.unit


#: Measures in an empty folder of its own.
Measure = Callable[[Plan, Path, Step], list[Finding]]


def ratio_to(ours: Way, other: Way) -> tuple[float, tuple[float, float]]:
    """Our median to another's, and the smallest and greatest ratio of a round: both were measured in turns, and what
    took part in the first rounds alone is compared with these."""
    rounds = [a / b for a, b in zip(ours.values, other.values, strict=False)]
    return median(ours.values[: len(rounds)]) / other.median, (min(rounds), max(rounds))
