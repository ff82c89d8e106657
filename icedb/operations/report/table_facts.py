"""The facts about a table that its report shows, and how they are read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icedb.format.table_spec import TableSpec
from icedb.operations.health.table_health import TableHealth, Thresholds, examine
from icedb.reader.diff import ColumnInfo, columns_of
from icedb.reader.history import CommitInfo, history
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Handle

__all__ = ["COMMITS_MAX", "TableFacts", "read_facts"]

#: The commits that a report covers. A commit whose log file was merged costs a request until cleanup deletes the file.
COMMITS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table at the time of `health`."""

    health: TableHealth
    thresholds: Thresholds
    spec: TableSpec
    columns: Sequence[ColumnInfo]
    #: Newest first.
    commits: Sequence[CommitInfo]
    #: Whether `commits` has all commits that the log records.
    commits_complete: bool
    #: With expired ones.
    pins: Sequence[Pin]


def read_facts(handle: Handle, thresholds: Thresholds | None = None, *, commits_max: int = COMMITS_MAX) -> TableFacts:
    """Read the facts from the log. No part is opened.

    Raises CorruptLog, SchemaConflict, UncoordinatedMaintenance, InconsistentListing and the store's errors.
    """
    thresholds = thresholds or Thresholds()
    health = examine(handle, thresholds)
    commits = history(handle, limit=commits_max + 1)
    return TableFacts(
        health=health,
        thresholds=thresholds,
        spec=handle.spec,
        columns=columns_of(handle) if handle.columns else [],
        commits=commits[:commits_max],
        commits_complete=len(commits) <= commits_max,
        pins=read_pins(handle),
    )
