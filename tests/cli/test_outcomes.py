"""The outcome of each kind of report: its sentence, that of its dry run, and the question before it."""

from __future__ import annotations

import os
import pty
import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import icedb
from icedb import Pin, Table, UpdateReport, UpsertReport
from icedb.cli.render.command_reports import AlterReport, CreateReport, RefreshReport, UnpinReport, WriteReport
from icedb.cli.render.outcomes import OUTCOMES, outcome_of, wait_text
from icedb.operations.commits.drop_partitions import DropReport
from icedb.operations.export.delta import DeltaReport
from icedb.operations.export.iceberg import IcebergReport
from icedb.operations.export.parquet import ParquetExportReport
from icedb.operations.importing.import_files import ImportReport
from icedb.operations.integrity.common_types import RepairedColumn
from icedb.operations.integrity.repair_spec import SpecRepairReport
from icedb.operations.integrity.repair_types import RepairReport
from icedb.operations.integrity.verify import Problem, VerifyReport
from icedb.operations.retention.cleanup import CleanupReport
from icedb.operations.retention.merge_log import MergeLogReport
from icedb.operations.retention.orphans import OrphansReport
from icedb.operations.retention.restore import RestoreReport
from icedb.operations.retention.superseded import SupersededObjects
from icedb.operations.rewrite.delete import DeleteReport
from icedb.operations.rewrite.merge import MergeReport
from icedb.operations.rewrite.rewrite_partition import RewriteReport
from icedb.operations.write.write_plan import WritePlan
from icedb.transaction.append import Commit
from tests.cli.test_commands import command, run, run_json

NOON_MS = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() * 1000)
COMMIT, REPEATED = Commit("t", "_log/1.jsonl"), Commit("t", None, repeated=True)


def made(type_: Any, **values: Any) -> Any:
    """Return a report with these values. Other fields are 0 or empty."""
    empty: dict[str, Any] = {f.name: () if str(f.type).startswith("tuple") else 0 for f in fields(type_)}
    return type_(**{**empty, "commit": COMMIT, **values} if "commit" in empty else {**empty, **values})


CASES: list[tuple[Any, str]] = [
    (made(CreateReport, table="lake/events"), "Created the table lake/events."),
    (made(WriteReport, rows=200_000, bytes=2_300_000, partitions=("d=1", "d=2")),
     "Inserted 200,000 rows into 2 partitions (2.3 MB)."),
    (made(WriteReport, rows=1, bytes=500, partitions=("",)), "Inserted 1 row (500 B)."),
    (made(WriteReport, rows=2, bytes=500, partitions=("d=1",), quarantined_rows=1),
     "Inserted 2 rows into 1 partition (500 B) and moved 1 row to the quarantine."),
    (made(WriteReport, rows=2, bytes=500, partitions=("d=1",), replaced_parts=3),
     "Replaced 3 parts with 2 rows in 1 partition (500 B)."),
    (made(WriteReport, replaced_parts=1), "Replaced 1 part with no rows (0 B)."),
    (made(WriteReport), "Nothing to insert: the input has no rows."),
    (made(WriteReport, repeated=True), "Nothing to insert: this transaction was committed before."),
    (made(ImportReport, copied=("a", "b"), rows=4, bytes=900, partitions=("d=1",)),
     "Imported 2 files (4 rows, 900 B) into 1 partition."),
    (made(ImportReport, skipped=("a",)), "Nothing to import: 1 file skipped."),
    (made(UpsertReport, inserted_rows=1, updated_rows=2, deleted_rows=3),
     "Inserted 1 row, updated 2 rows and deleted 3 rows."),
    (made(UpsertReport, unchanged_rows=2), "Nothing to change (2 rows unchanged)."),
    (made(UpsertReport, commit=REPEATED), "Nothing to change: this transaction was committed before."),
    (made(UpdateReport, updated_rows=400), "Updated 400 rows."),
    (made(UpdateReport), "Nothing to change: no row matches."),
    (made(DeleteReport, matching_rows=5, deleted_rows=4, rewritten_parts=1, removed_parts=1, dropped_parts=1),
     "Deleted 4 rows from 2 parts. Run it again: other commits replaced 1 part meanwhile."),
    (made(DeleteReport), "Nothing to delete: no row matches."),
    (made(DropReport, partitions=("d=1",), rows=267_840, bytes=5_100_000),
     "Dropped 1 partition (267,840 rows, 5.1 MB)."),
    (made(DropReport, partitions=("a", "b"), rows=None, bytes=1_000),
     "Dropped 2 partitions (an unknown number of rows, 1.0 kB)."),
    (made(RewriteReport, partition="d=1", replaced_parts=2, rows_before=10, rows=9),
     "Rewrote d=1 (rows before: 10, after: 9)."),
    (made(RestoreReport, as_of_ms=NOON_MS, restored=("p",), rows_before=None, rows_after=9),
     "Restored the table as of 2026-11-21T12:00:00.000+00:00 (rows before: unknown, after: 9)."),
    (made(RestoreReport, as_of_ms=NOON_MS),
     "Nothing to restore: the table has the rows of 2026-11-21T12:00:00.000+00:00."),
    (made(RefreshReport, view="hourly", source_rows=10, rows=2), "Recomputed the view 'hourly' from 10 rows: 2 rows."),
    (made(AlterReport, after={"sort_by": [], "compression": "gzip"}), "Changed sort_by and compression."),
    (made(AlterReport, after={}), "Nothing to change: the table has these settings."),
    (made(RepairReport, conflicts=(RepairedColumn("n", ("BIGINT", "DOUBLE"), "DOUBLE", ()),), rewritten_parts=2),
     "Repaired 1 column (n) in 2 parts."),
    (made(RepairReport), "Nothing to repair: each column has one type."),
    (made(SpecRepairReport, repaired=True, source="log"), "Created _table.json from the log."),
    (made(SpecRepairReport, repaired=False), "Nothing to repair: _table.json exists."),
    (made(VerifyReport, live_parts=1, live_rows=9, live_bytes=500),
     "The table is sound: no problems, 1 live part (9 rows, 500 B)."),
    (made(VerifyReport, problems=(Problem("a", "error", "x", "m"), Problem("b", "warning", "y", "m"))),
     "The table is DAMAGED: 1 error and 1 warning, 0 live parts (0 rows, 0 B)."),
    (made(MergeReport, merged_parts=4, merged_bytes=30_650, new_parts=2), "Merged 4 parts (30.6 kB) into 2 parts."),
    (made(MergeReport, merged_parts=2, merged_bytes=9, new_parts=1, dropped_groups=1, remaining=1),
     "Merged 2 parts (9 B) into 1 part. Another commit replaced an input of 1 group meanwhile. "
     "Run it again for 1 more group."),
    (made(MergeReport), "Nothing to merge: no partition has enough small parts."),
    (made(MergeLogReport, merged_log_files=("a", "b")), "Merged 2 log files into 1."),
    (made(MergeLogReport, log_files=1), "Nothing to merge: the log has 1 log file to read."),
    (made(CleanupReport, deleted_parts=("a",) * 7, deleted_bytes=8_700_000, deleted_log_files=("b",), remaining=3),
     "Deleted 7 parts (8.7 MB) and 1 log file. Run it again for 3 more objects."),
    (made(CleanupReport, kept_for_pins=1), "Nothing to delete: pins keep 1 part."),
    (made(OrphansReport, deleted_parts=("a",), deleted_bytes=9, unfinished_puts=2),
     "Deleted 1 orphan (9 B) and 2 unfinished puts."),
    (made(OrphansReport, young_parts=1, young_bytes=9),
     "Nothing to delete: there are no orphans. A running writer may still commit 1 part (9 B)."),
    (Pin("one", NOON_MS, NOON_MS), "Pinned 2026-11-21T12:00:00.000+00:00 as 'one' until it is removed."),
    (UnpinReport("t", "one", False), "Removed the pin 'one'."),
    (made(DeltaReport, published=True, version=3, parts=2, rows=9),
     "Published version 3 of the Delta table (2 parts, 9 rows)."),
    (made(DeltaReport, version=3), "Nothing to export: version 3 is up to date."),
    (made(IcebergReport, published=True, version=0, parts=1, rows=1),
     "Published version 0 of the Iceberg table (1 part, 1 row)."),
    (made(ParquetExportReport, target="out", rows=9, files=2, bytes=500, replaced_files=1),
     "Exported 9 rows as 2 files (500 B) to out and deleted 1 file of an earlier export."),
]  # fmt: skip


@pytest.mark.parametrize(("report", "sentence"), CASES, ids=[sentence for _, sentence in CASES])
def test_a_report_begins_with_its_outcome(report: Any, sentence: str) -> None:
    assert outcome_of(report).sentence(dry_run=False) == sentence


#: The plan of a verb, the sentence of its dry run, and its question.
PLANS: list[tuple[Any, str, str]] = [
    (made(DropReport, partitions=("d=1",), rows=267_840, bytes=5_100_000, dry_run=True),
     "Dry run: would drop 1 partition (267,840 rows, 5.1 MB).", "Drop 1 partition (267,840 rows, 5.1 MB)?"),
    (made(DeleteReport, matching_rows=5, rewritten_parts=1, dry_run=True),
     "Dry run: would delete 5 rows from 1 part.", "Delete 5 rows from 1 part?"),
    (made(WritePlan, rows=2, partitions=("d=1",), replaced_parts=1, replaced_rows=7),
     "Dry run: would replace 1 part (7 rows) with 2 rows in 1 partition.",
     "Replace 1 part (7 rows) with 2 rows in 1 partition?"),
    (made(UpsertReport, inserted_rows=1, updated_rows=2, dry_run=True),
     "Dry run: would insert 1 row and update 2 rows.", "Insert 1 row and update 2 rows?"),
    (made(RefreshReport, view="hourly", source_rows=10, rows=None, dry_run=True),
     "Dry run: would recompute the view 'hourly' from 10 rows.", "Recompute the view 'hourly' from 10 rows?"),
    (made(DeltaReport, version=None, added_parts=1, parts=1, rows=9, dry_run=True),
     "Dry run: would publish a version of the Delta table (1 part, 9 rows).",
     "Publish a version of the Delta table (1 part, 9 rows)?"),
    (made(ParquetExportReport, target="out", copied_parts=1, rewritten_parts=2, files=None, dry_run=True),
     "Dry run: would export rows of 3 parts to out.", "Export rows of 3 parts to out?"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "sentence", "question"), PLANS, ids=[question for _, _, question in PLANS])
def test_a_plan_has_a_sentence_and_a_question(plan: Any, sentence: str, question: str) -> None:
    outcome = outcome_of(plan)
    assert (outcome.sentence(dry_run=True), outcome.question) == (sentence, question)


def test_each_report_has_an_outcome() -> None:
    package = Path(icedb.__file__).parent
    paths = [path for folder in ("operations", "cli") for path in (package / folder).rglob("*.py")]
    sources = "\n".join(path.read_text() for path in paths)
    reports = set(re.findall(r"^class (\w+Report)\b", sources, re.MULTILINE))
    assert reports == {name for name in OUTCOMES if name.endswith("Report")}
    for name, function in OUTCOMES.items():
        assert [type_ for argument, type_ in function.__annotations__.items() if argument != "return"] == [name]


@pytest.mark.parametrize(
    ("superseded", "text"),
    [
        (SupersededObjects(7, 8_700_000, 0, NOON_MS), "7 parts (8.7 MB) become deletable from 12:00 UTC."),
        (SupersededObjects(1, 9, 2, NOON_MS + 1), "1 part (9 B) and 2 log files become deletable from 12:01 UTC."),
        (SupersededObjects(0, 0, 1, NOON_MS + 86_400_000), "1 log file becomes deletable from 2026-11-22 12:00 UTC."),
    ],
)
def test_a_cleanup_without_effect_says_from_when_it_has_one(superseded: SupersededObjects, text: str) -> None:
    assert wait_text(superseded, now_ms=NOON_MS - 1) == f"Nothing to delete yet: {text}"
    assert wait_text(superseded, now_ms=superseded.deletable_ms) is None
    assert wait_text(None, now_ms=NOON_MS) is None


# ------------------------------------------------------------------------------------------------ printed


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "table", partition_by=["k"], storage_options={"fsync": "false"})
    for _ in range(2):
        table.insert([{"k": k, "n": k} for k in range(2)])
    return table


def test_details_without_a_value_are_omitted(table: Table) -> None:
    sentence, *details = run("merge", table.uri).stdout.splitlines()
    assert re.fullmatch(r"Merged 4 parts \([\d.]+ kB\) into 2 parts\.", sentence)
    assert [re.split(r" {2,}", line)[0] for line in details] == [
        "commit", "merged parts", "merged bytes", "new parts", "rows",
    ]  # fmt: skip
    assert run("merge", table.uri).stdout == "Nothing to merge: no partition has enough small parts.\n"


def test_a_cleanup_in_the_grace_period_names_the_time(table: Table) -> None:
    table.merge()
    printed = run("cleanup", table.uri, "--yes").stdout
    assert re.match(r"Nothing to delete yet: 4 parts \(.* kB\) and 2 log files become deletable from .* UTC\.", printed)
    assert run_json("cleanup", table.uri, "--yes")["deleted_parts"] == []


def test_a_verb_that_needs_confirmation_is_rejected_without_a_terminal(table: Table, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": 0, "n": 5}\n')
    before = table.history()[0].at_ms
    for words in (
        ["drop", table.uri, "k=0"], ["delete", table.uri, "--where", "true"], ["cleanup", table.uri],
        ["overwrite", table.uri, rows, "--everything"], ["upsert", table.uri, rows, "--on", "n"],
        ["update", table.uri, "--set", "n=1", "--where", "true"], ["rewrite", table.uri, "k=0", "FROM _rows"],
        ["restore", table.uri, "--as-of", before], ["repair", table.uri], ["orphans", table.uri, "--delete"],
        ["unpin", table.uri, "one"], ["refresh-view", table.uri, "v"], ["import", table.uri, rows],
        ["export", table.uri, "--parquet", tmp_path / "out", "--overwrite"],
    ):  # fmt: skip
        assert "Pass --yes, or --dry-run" in run(*words, status=2).stderr, words
    assert table.history()[0].at_ms == before


@pytest.mark.process
def test_a_plan_without_effect_is_not_confirmed(table: Table) -> None:
    terminal, its_end = pty.openpty()  # a prompt would wait until the time limit of the test
    try:
        done = command("delete", table.uri, "--where", "n > 7", stdin=its_end)
    finally:
        os.close(terminal)
        os.close(its_end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Nothing to delete: no row matches.\n", "")
