"""Exports for readers of Delta Lake and Iceberg as maintenance verbs. docs/export.md describes the exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

from icedb.errors import InvalidOption
from icedb.operations.export.export_pins import KEEP
from icedb.util.arguments import checks_arguments
from icedb_dagster.maintenance.configs import ExportConfig
from icedb_dagster.maintenance.verbs import MaintenanceReport, MaintenanceTask, MaintenanceVerb, dry, or_unknown

__all__ = ["ExportFormat", "TableExport", "export_verb"]

ExportFormat = Literal["delta", "iceberg"]


@checks_arguments
@dataclass(frozen=True, slots=True)
class TableExport:
    """Settings of the job that exports a table to Delta Lake or Iceberg.

    Args:
        exclude_columns: Columns to leave out.
        keep: For how long at most the exported parts (data files) are kept from cleanup (VACUUM), unless another export
            follows. It should span many runs of the schedule. None sets no limit.

    Raises:
        InvalidOption: `keep` is not above 0.

    Example:
        TableExport(exclude_columns=["payload"])
    """

    exclude_columns: Sequence[str] = ()
    keep: timedelta | None = KEEP

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep <= timedelta(0):
            raise InvalidOption(f"keep of an export is {self.keep}; give a timedelta above 0, or None.")


def export_verb(to: ExportFormat, export: TableExport) -> MaintenanceVerb[ExportConfig]:
    """Return the verb of an export. Exports may run at the same time, so it needs no lock.

    It is not skipped if the table is unchanged, because each export also extends the time for which parts are kept.
    """
    return MaintenanceVerb(
        f"export_{to}",
        ExportConfig,
        partial(_delta if to == "delta" else _iceberg, export=export),
        f"Exports the table for readers of {'Delta Lake' if to == 'delta' else 'Iceberg'}. Copies nothing.",
        exclusive=False,
    )


def _delta(task: MaintenanceTask[ExportConfig], *, export: TableExport) -> MaintenanceReport:
    report = task.table.export_delta(
        exclude_columns=export.exclude_columns, keep=export.keep, dry_run=task.config.dry_run
    )
    return MaintenanceReport(
        {
            **_version(report.version, published=report.published),
            "Delta table": report.table,
            "parts": report.parts,
            "rows": or_unknown(report.rows),
            "parts added": report.added_parts,
            "parts removed": report.removed_parts,
            **dry(dry_run=report.dry_run),
        }
    )


def _iceberg(task: MaintenanceTask[ExportConfig], *, export: TableExport) -> MaintenanceReport:
    report = task.table.export_iceberg(
        exclude_columns=export.exclude_columns, keep=export.keep, dry_run=task.config.dry_run
    )
    return MaintenanceReport(
        {
            **_version(report.version, published=report.published),
            "metadata document": report.metadata or "none",
            "parts": report.parts,
            "rows": report.rows,
            "snapshots": report.snapshots,
            "new files": report.new_files,
            **dry(dry_run=report.dry_run),
        }
    )


def _version(version: int | None, *, published: bool) -> dict[str, object]:
    return {"version": "none" if version is None else version, "new version": "yes" if published else "no"}
