"""Reports of verbs whose method of `Table` returns no report of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AlterReport", "CreateReport", "RefreshReport", "UnpinReport", "WriteReport"]


@dataclass(frozen=True, slots=True)
class AlterReport:
    """The changed fields of a table's spec, with their values before and after."""

    table: str
    before: dict[str, Any]
    after: dict[str, Any]
    log_file: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class CreateReport:
    """A new table and its spec."""

    table: str
    spec: dict[str, Any]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """A view that was recomputed from its source. A row count is None if a part does not record it."""

    table: str
    view: str
    source_rows: int | None
    rows: int | None
    new_parts: int | None
    replaced_parts: int | None
    log_file: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class UnpinReport:
    """A removed pin."""

    table: str
    name: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The commit of a write.

    `replaced_parts` were live before it. `quarantine` is the table that received the rows that do not fit.
    """

    table: str
    rows: int
    bytes: int
    new_parts: int
    partitions: tuple[str, ...]
    replaced_parts: int
    quarantined_rows: int
    quarantine: str | None
    #: The transaction was committed earlier, so this write added nothing.
    repeated: bool
    log_file: str | None
