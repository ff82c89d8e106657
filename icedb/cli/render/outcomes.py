"""The outcome of a verb in one sentence, and the question that a verb asks before it changes a table.

Each type of report has one function. It returns what was done as verbs with their objects, from which an `Outcome`
makes the sentence, that of a dry run, and the question: "Dropped 1 partition.", "Dry run: would drop 1 partition.",
"Drop 1 partition?".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from icedb.cli.render.sentences import (
    Outcome,
    act_if,
    acts,
    again,
    in_brackets,
    minute_text,
    partitions_text,
    rows_text,
    series,
)
from icedb.util.counts import count_text, size_text
from icedb.util.times import iso_text

if TYPE_CHECKING:
    from icedb.cli.render.command_reports import AlterReport, CreateReport, RefreshReport, UnpinReport, WriteReport
    from icedb.operations.commits.drop_partitions import DropReport
    from icedb.operations.export.delta import DeltaReport
    from icedb.operations.export.iceberg import IcebergReport
    from icedb.operations.export.parquet import ParquetExportReport
    from icedb.operations.importing.import_files import ImportReport
    from icedb.operations.integrity.repair_spec import SpecRepairReport
    from icedb.operations.integrity.repair_types import RepairReport
    from icedb.operations.integrity.verify import VerifyReport
    from icedb.operations.retention.cleanup import CleanupReport
    from icedb.operations.retention.merge_log import MergeLogReport
    from icedb.operations.retention.orphans import OrphansReport
    from icedb.operations.retention.restore import RestoreReport
    from icedb.operations.retention.superseded import SupersededObjects
    from icedb.operations.rewrite.delete import DeleteReport
    from icedb.operations.rewrite.merge import MergeReport
    from icedb.operations.rewrite.rewrite_partition import RewriteReport
    from icedb.operations.upsert.update import UpdateReport
    from icedb.operations.upsert.upsert import UpsertReport
    from icedb.operations.write.write_plan import WritePlan
    from icedb.transaction.pin_objects import Pin

__all__ = ["OUTCOMES", "outcome_of", "wait_text"]

_REPEATED = "this transaction was committed before"


def outcome_of(report: object) -> Outcome:
    """Return the outcome in a report of one of the types in `OUTCOMES`."""
    return OUTCOMES[type(report).__name__](report)


# ------------------------------------------------------------------------------------------------ rows in


def _create(report: CreateReport) -> Outcome:
    return acts(("create", f"the table {report.table}"))


def _planned_write(plan: WritePlan) -> Outcome:
    replaced = f"{count_text(plan.replaced_parts, 'part')} ({rows_text(plan.replaced_rows)})"
    return _write(plan, replaced, size=None)


def _written(report: WriteReport) -> Outcome:
    return _write(report, count_text(report.replaced_parts, "part"), size=report.bytes)


def _write(report: WritePlan | WriteReport, replaced: str, *, size: int | None) -> Outcome:
    if report.repeated:
        return Outcome(nothing=f"Nothing to insert: {_REPEATED}.")
    moved = act_if(report.quarantined_rows, ("move", f"{rows_text(report.quarantined_rows)} to the quarantine"))
    if report.replaced_parts:
        rows = rows_text(report.rows) if report.rows else "no rows"
        return acts(
            ("replace", f"{replaced} with {rows}{partitions_text(report.partitions, 'in')}{in_brackets(size)}"), *moved
        )
    inserted = act_if(
        report.rows,
        ("insert", f"{rows_text(report.rows)}{partitions_text(report.partitions, 'into')}{in_brackets(size)}"),
    )
    return acts(*inserted, *moved, nothing="Nothing to insert: the input has no rows.")


def _import(report: ImportReport) -> Outcome:
    figures = f"({rows_text(report.rows)}, {size_text(report.bytes)})"
    imported = len(report.registered) + len(report.copied)
    return acts(
        *act_if(
            imported,
            ("import", f"{count_text(imported, 'file')} {figures}{partitions_text(report.partitions, 'into')}"),
        ),
        nothing=f"Nothing to import: {count_text(len(report.skipped), 'file')} skipped.",
    )


def _upsert(report: UpsertReport) -> Outcome:
    return acts(
        *act_if(report.inserted_rows, ("insert", rows_text(report.inserted_rows))),
        *act_if(report.updated_rows, ("update", rows_text(report.updated_rows))),
        *act_if(report.deleted_rows, ("delete", rows_text(report.deleted_rows))),
        nothing=_nothing_to_change(report),
    )


def _update(report: UpdateReport) -> Outcome:
    return acts(
        *act_if(report.updated_rows, ("update", rows_text(report.updated_rows))), nothing=_nothing_to_change(report)
    )


def _nothing_to_change(report: UpsertReport | UpdateReport) -> str:
    if report.commit.repeated:
        return f"Nothing to change: {_REPEATED}."
    if report.unchanged_rows:
        return f"Nothing to change ({rows_text(report.unchanged_rows)} unchanged)."
    return "Nothing to change: no row matches."


# ------------------------------------------------------------------------------------------------ rows out


def _delete(report: DeleteReport) -> Outcome:
    rows = report.matching_rows if report.dry_run else report.deleted_rows
    parts = count_text(report.rewritten_parts + report.removed_parts, "part")
    again = f"Run it again: other commits replaced {count_text(report.dropped_parts, 'part')} meanwhile."
    return acts(
        *act_if(rows, ("delete", f"{rows_text(rows)} from {parts}")),
        nothing="Nothing to delete: no row matches.",
        note=again if report.dropped_parts else "",
    )


def _drop(report: DropReport) -> Outcome:
    figures = f"({rows_text(report.rows)}, {size_text(report.bytes)})"
    return acts(
        *act_if(len(report.partitions), ("drop", f"{count_text(len(report.partitions), 'partition')} {figures}")),
        nothing="Nothing to drop: no partition matches.",
    )


def _rewrite(report: RewriteReport) -> Outcome:
    before = "unknown" if report.rows_before is None else f"{report.rows_before:,}"
    return acts(
        *act_if(
            report.replaced_parts or report.new_parts,
            ("rewrite", f"{report.partition or 'the table'} (rows before: {before}, after: {report.rows:,})"),
        ),
        nothing=f"Nothing to rewrite in {report.partition or 'the table'}.",
    )


def _restore(report: RestoreReport) -> Outcome:
    before, after = ("unknown" if n is None else f"{n:,}" for n in (report.rows_before, report.rows_after))
    as_of = iso_text(report.as_of_ms)
    return acts(
        *act_if(
            len(report.restored) + len(report.tombstoned),
            ("restore", f"the table as of {as_of} (rows before: {before}, after: {after})"),
        ),
        nothing=f"Nothing to restore: the table has the rows of {as_of}.",
    )


def _refresh(report: RefreshReport) -> Outcome:
    became = "" if report.rows is None else f": {rows_text(report.rows)}"
    return acts(("recompute", f"the view '{report.view}' from {rows_text(report.source_rows)}{became}"))


# ------------------------------------------------------------------------------------------------ layout, integrity


def _alter(report: AlterReport) -> Outcome:
    return acts(
        *act_if(len(report.after), ("change", series(list(report.after)))),
        nothing="Nothing to change: the table has these settings.",
    )


def _repair(report: RepairReport) -> Outcome:
    columns = [c.column for c in report.conflicts]
    rewritten = f" in {count_text(report.rewritten_parts, 'part')}" if report.rewritten_parts else ""
    return acts(
        *act_if(len(columns), ("repair", f"{count_text(len(columns), 'column')} ({', '.join(columns)}){rewritten}")),
        nothing="Nothing to repair: each column has one type.",
    )


def _repair_spec(report: SpecRepairReport) -> Outcome:
    source = "the log" if report.source == "log" else "the spec that was passed"
    return acts(
        *act_if(report.repaired, ("create", f"_table.json from {source}")),
        nothing="Nothing to repair: _table.json exists.",
    )


def _verify(report: VerifyReport) -> Outcome:
    errors = sum(p.severity == "error" for p in report.problems)
    warnings = len(report.problems) - errors
    counts = [count_text(n, name) for n, name in ((errors, "error"), (warnings, "warning")) if n]
    live = (
        f"{count_text(report.live_parts, 'live part')} ({rows_text(report.live_rows)}, {size_text(report.live_bytes)})"
    )
    verdict = "The table is sound" if report.ok else "The table is DAMAGED"
    return Outcome(nothing=f"{verdict}: {series(counts) or 'no problems'}, {live}.")


# ------------------------------------------------------------------------------------------------ maintenance


def _merge(report: MergeReport) -> Outcome:
    notes = []
    if report.dropped_groups:
        notes.append(f"Another commit replaced an input of {count_text(report.dropped_groups, 'group')} meanwhile.")
    notes.append(again(report.remaining, "group"))
    merged = f"{count_text(report.merged_parts, 'part')} ({size_text(report.merged_bytes)})"
    return acts(
        *act_if(report.merged_parts, ("merge", f"{merged} into {count_text(report.new_parts, 'part')}")),
        nothing="Nothing to merge: no partition has enough small parts.",
        note=" ".join(filter(None, notes)),
    )


def _merge_log(report: MergeLogReport) -> Outcome:
    return acts(
        *act_if(
            len(report.merged_log_files), ("merge", f"{count_text(len(report.merged_log_files), 'log file')} into 1")
        ),
        nothing=f"Nothing to merge: the log has {count_text(report.log_files, 'log file')} to read.",
        note=again(report.remaining, "log file"),
    )


def _cleanup(report: CleanupReport) -> Outcome:
    kept = f": pins keep {count_text(report.kept_for_pins, 'part')}" if report.kept_for_pins else ""
    parts = f"{count_text(len(report.deleted_parts), 'part')} ({size_text(report.deleted_bytes)})"
    deleted = [parts] if report.deleted_parts else []
    for noun, objects in (
        ("log file", report.deleted_log_files),
        ("claim", report.deleted_claims),
        ("expired pin", report.deleted_pins),
    ):
        deleted += [count_text(len(objects), noun)] if objects else []
    return acts(
        *act_if(len(deleted), ("delete", series(deleted))),
        nothing=f"Nothing to delete{kept}.",
        note=again(report.remaining, "object"),
    )


def wait_text(superseded: SupersededObjects | None, *, now_ms: int) -> str | None:
    """Return when a cleanup without effect will have one, or None if that is not known."""
    if superseded is None or superseded.deletable_ms <= now_ms:
        return None
    objects = [f"{count_text(superseded.parts, 'part')} ({size_text(superseded.bytes)})"] if superseded.parts else []
    objects += [count_text(superseded.log_files, "log file")] if superseded.log_files else []
    verb = "becomes" if superseded.parts + superseded.log_files == 1 else "become"
    minute = minute_text(superseded.deletable_ms, now_ms)
    return f"Nothing to delete yet: {series(objects)} {verb} deletable from {minute}."


def _orphans(report: OrphansReport) -> Outcome:
    parts = f"{count_text(len(report.deleted_parts), 'orphan')} ({size_text(report.deleted_bytes)})"
    deleted = [parts] if report.deleted_parts else []
    deleted += [count_text(report.unfinished_puts, "unfinished put")] if report.unfinished_puts else []
    young = f"{count_text(report.young_parts, 'part')} ({size_text(report.young_bytes)})"
    return acts(
        *act_if(len(deleted), ("delete", series(deleted))),
        nothing="Nothing to delete: there are no orphans.",
        note=f"A running writer may still commit {young}." if report.young_parts else "",
    )


def _pin(pin: Pin) -> Outcome:
    until = "until it is removed" if pin.expires_ms is None else f"until {iso_text(pin.expires_ms)}"
    return acts(("pin", f"{iso_text(pin.as_of_ms)} as '{pin.name}' {until}"))


def _unpin(report: UnpinReport) -> Outcome:
    return acts(("remove", f"the pin '{report.name}'"))


# ------------------------------------------------------------------------------------------------ export


def _delta(report: DeltaReport) -> Outcome:
    is_new = report.published or (report.dry_run and (report.added_parts or report.removed_parts))
    version = f"version {report.version}" if report.published else "a version"
    return _export(report, bool(is_new or (report.dry_run and report.columns_changed)), f"{version} of the Delta table")


def _iceberg(report: IcebergReport) -> Outcome:
    is_new = report.published or (report.dry_run and (report.new_files or report.columns_changed))
    version = f"version {report.version}" if report.published else "a version"
    return _export(report, bool(is_new), f"{version} of the Iceberg table")


def _export(report: DeltaReport | IcebergReport, is_new: bool, version: str) -> Outcome:
    return acts(
        *act_if(is_new, ("publish", f"{version} ({count_text(report.parts, 'part')}, {rows_text(report.rows)})")),
        nothing=f"Nothing to export: version {report.version} is up to date.",
    )


def _parquet(report: ParquetExportReport) -> Outcome:
    if report.files is None:  # a dry run that would have to read rows
        what = f"rows of {count_text(report.copied_parts + report.rewritten_parts, 'part')}"
    else:
        what = f"{rows_text(report.rows)} as {count_text(report.files, 'file')}{in_brackets(report.bytes)}"
    replaced = ("delete", f"{count_text(report.replaced_files, 'file')} of an earlier export")
    return acts(("export", f"{what} to {report.target}"), *act_if(report.replaced_files, replaced))


#: The name of each report's type, and its function. Names, because importing the types would load the library at
#: startup.
OUTCOMES: Mapping[str, Callable[[Any], Outcome]] = {
    "AlterReport": _alter,
    "CleanupReport": _cleanup,
    "CreateReport": _create,
    "DeleteReport": _delete,
    "DeltaReport": _delta,
    "DropReport": _drop,
    "IcebergReport": _iceberg,
    "ImportReport": _import,
    "MergeLogReport": _merge_log,
    "MergeReport": _merge,
    "OrphansReport": _orphans,
    "ParquetExportReport": _parquet,
    "Pin": _pin,
    "RefreshReport": _refresh,
    "RepairReport": _repair,
    "RestoreReport": _restore,
    "RewriteReport": _rewrite,
    "SpecRepairReport": _repair_spec,
    "UnpinReport": _unpin,
    "UpdateReport": _update,
    "UpsertReport": _upsert,
    "VerifyReport": _verify,
    "WritePlan": _planned_write,
    "WriteReport": _written,
}
