"""One look at a table, which its checks share, and what a check says of it.

What a look consists of is fetched when the first check needs it, and then kept: a run of all checks costs a few
listings and the log files, whatever the number of parts. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

import icedb
from icedb.format.replay import TableState
from icedb.operations.health.table_health import TableHealth, Thresholds, examine
from icedb.operations.integrity.verify import VerifyReport, verify
from icedb.util.durations import duration_text

__all__ = ["CheckContext", "Verdict", "counted"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a check passed, and in a sentence why, or what to do."""

    passed: bool
    description: str
    metadata: Mapping[str, dg.MetadataValue] = field(default_factory=dict)


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class CheckContext:
    """A table that was opened once. `name` is the prefix of its jobs' names; times are unix milliseconds."""

    def __init__(self, table: icedb.Table, thresholds: Thresholds, *, name: str) -> None:
        self.table = table
        self.thresholds = thresholds
        self.name = name
        self.now_ms = table.handle.clock.now_ms()

    @cached_property
    def health(self) -> TableHealth:
        """The table's health. Raises CorruptLog, SchemaConflict, InconsistentListing and the store's errors."""
        return examine(self.table.handle, self.thresholds)

    @cached_property
    def state(self) -> TableState:
        """The log, read after `health`. Raises as it does."""
        return self.table.handle.read()

    @cached_property
    def objects(self) -> VerifyReport:
        """What is stored, compared with the log; no part is opened. Raises the store's errors only."""
        return verify(self.table.handle, footers=False)

    def age(self, time_ms: int) -> str:
        """How long ago that is, for people."""
        return duration_text(self.now_ms - time_ms)

    def job(self, verb: str) -> str:
        """The job that does something about it."""
        return f"the job {self.name}_{verb}"
