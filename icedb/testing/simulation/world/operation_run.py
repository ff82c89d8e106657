"""One run of an operation, with the functions that write rows and check reported results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from icedb.format.keys import partition_of
from icedb.testing.simulation.world.plain_parts import write_rows
from icedb.testing.simulation.world.process import Act
from icedb.testing.simulation.world.truth import Fate, Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.append import Commit
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts

__all__ = ["BASE_SCHEMA", "RejectedOperation", "OperationRun", "Transactions"]

BASE_SCHEMA = {"id": "BIGINT"}


@dataclass(frozen=True, slots=True)
class RejectedOperation:
    """An operation that raised an error which promises that nothing was published."""

    actor: str
    error: str
    parts: frozenset[str]
    #: The name of the process; None if other operations ran in it at the time.
    writer: str | None
    since_step: int
    #: By the clock of the process, like the times in the names of its log files.
    since_ms: int


@dataclass(slots=True)
class Transactions:
    """The batches that applications write exactly once. All attempts of a batch have the same rows."""

    next: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[str, int], dict[str, list[int]]] = field(default_factory=dict)


@dataclass(slots=True)
class OperationRun:
    """The context of one run of an operation."""

    world: SimulatedWorld
    act: Act
    transactions: Transactions
    refusals: list[RejectedOperation]
    parts: set[str] = field(default_factory=set)
    since_step: int = 0
    since_ms: int = 0

    @property
    def handle(self) -> Handle:
        """The table, as the process has it open."""
        return self.act.process.handle

    def choose(self, options: Sequence[str]) -> str:
        """Return a random option."""
        return self.world.rng.choice(options)

    def write(self, rows: dict[str, list[int]], schema: dict[str, str] | None = None) -> WrittenParts:
        """Put rows as parts, without publishing them."""
        written = write_rows(self.handle, rows, schema or BASE_SCHEMA)
        self.parts |= {m.key for m in written.markers}
        return written

    def new_rows(self, *partitions: str) -> dict[str, list[int]]:
        """Return some new rows for each of the partitions."""
        return {p: self.world.new_rows(self.world.rng.randint(1, 2)) for p in partitions}

    def must_have_added(self, commit: Commit, rows: dict[str, list[int]]) -> None:
        """Check that rows that were reported as committed were added. Raises Violation."""
        self.must_have_landed(commit)
        if missing := [r for of in rows.values() for r in of if r not in self.world.truth.fates]:
            raise Violation(f"rows {missing} were reported as committed and were not added")

    def must_have_landed(self, commit: Commit) -> None:
        """Check that the log file that a commit reports has landed and is not a void. Raises Violation."""
        if commit.key is None:
            return
        landing = self.world.truth.landings.get(commit.key)
        if landing is None or landing.void:
            raise Violation(f"'{commit.key}' was reported as published and {'is void' if landing else 'never was'}")

    def must_be_gone(self, fates: Sequence[tuple[int, Fate]]) -> None:
        """Check that these rows were removed. Raises Violation."""
        if left := [row for row, fate in fates if not fate.ended]:
            raise Violation(f"rows {left} must be removed and still exist")

    def alive(self, chosen: Callable[[int, str], bool]) -> list[tuple[int, Fate]]:
        """Return the live rows that match a predicate over row and partition."""
        prefix, truth = self.handle.keys.data_prefix, self.world.truth
        parts = {row: partition_of(prefix, key) for key in truth.live for row in truth.contents[key]}
        return [(row, truth.fates[row][-1]) for row, partition in sorted(parts.items()) if chosen(row, partition)]
