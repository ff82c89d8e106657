"""The state of a table that its checks share, and the result of a check.

Each piece of state is read when the first check needs it, and then kept. A run of all checks costs a few listings and
the log files, for any number of parts. Nothing is changed.
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

__all__ = ["CheckContext", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check, and a sentence with the reason and the remedy."""

    passed: bool
    description: str
    metadata: Mapping[str, dg.MetadataValue] = field(default_factory=dict)


class CheckContext:
    """A table, opened once for its checks. `name` is the prefix of its jobs' names; times are unix milliseconds."""

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
        """The log, read after `health`. Raises the same errors."""
        return self.table.handle.read()

    @cached_property
    def objects(self) -> VerifyReport:
        """The stored objects compared with the log, without opening parts. Raises only the store's errors."""
        return verify(self.table.handle, footers=False)

    def age(self, time_ms: int) -> str:
        """Return the time since `time_ms` as text."""
        return duration_text(self.now_ms - time_ms)

    def job(self, verb: str) -> str:
        """Return the name of the job that is the remedy."""
        return f"the job {self.name}_{verb}"
