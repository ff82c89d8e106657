"""Faults of the protocol, seeded one at a time, that the short run must catch: `make mutants`.

Each mutant changes one place of a copy of the project; then tests of the short run run there, and at least one must
fail. A mutant that survives is a promise that nothing checks: the exit status is 1. A test of its own
(tests/repository/test_mutants.py) checks that each mutant still fits the code.

    python -m tests.support.mutants [--jobs 2] [--day 2026-11-25] [name ...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
COPIED = ("icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs", "examples", "docs", "tests", "pyproject.toml")
SECONDS_MAX = 900
#: What pytest returns: tests passed, a test failed, no test was chosen.
PASSED, FAILED, NO_TESTS = 0, 1, 5

DROPPED = "tests/operations/commits/test_dropped_columns.py"
CHANGES = "tests/reader/test_changes.py"
COMMIT = "tests/transaction/test_append.py"
KILLERS = "tests/promises/test_known_killers.py"
CLEANUP = "tests/operations/retention/test_cleanup.py"
REWRITE = "tests/format/test_commit_draft.py"
TXN = "tests/transaction/test_idempotent_append.py"
ORPHANS = "tests/operations/retention/test_orphans.py"
READING = ("tests/transaction/test_log_reader.py", "tests/format/test_replay.py")
SIMULATION = "tests/testing/test_simulation.py"
SCENES = "tests/testing/test_scenes.py"
BUFFERED = "tests/buffering/test_writer.py"
BUFFERED_IDS = "tests/buffering/test_ids.py"
DELTA = "tests/operations/export/test_delta.py"
ICEBERG = "tests/operations/export/test_iceberg.py"
REMOVED = "tests/reader/test_removed_rows.py"
UPSERT = "tests/operations/upsert/test_upsert.py"
ROW_CHANGES = "tests/operations/upsert/test_row_changes.py"


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in a file of the project, and one of the test files notices it.

    `likely` is the test of the first file that usually fails. It runs first: without it, the check takes longer.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    likely: str = ""

    def apply(self, root: Path) -> None:
        """Seed the fault. Raises ValueError unless there is exactly one place for it."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutant '{self.name}': its place is {text.count(self.old)} times in {self.file}")
        path.write_text(text.replace(self.old, self.new))

    def runs(self) -> Iterator[list[str]]:
        """Pytest's arguments of each run, the quickest first. Most faults need no S3 server to be noticed."""
        if self.likely:
            yield [self.tests[0], "-k", self.likely]
        for s3 in ("not s3", "s3"):
            for test in self.tests:
                yield [test, "-m", s3]


MUTANTS = (
    Mutant(
        "a dropped column comes back with its old values",
        "icedb/operations/commits/dropped_columns.py",
        "        _check_gone(handle, {c: old.dropped[c] for c in sorted(back)}, state)",
        "        sorted(back)",
        (DROPPED,),
        "test_a_column_returns_only_when_no_live_part_has_its_old_values",
    ),
    Mutant(
        "a merge keeps the values of a dropped column",
        "icedb/operations/rewrite/rewriter.py",
        "if c not in handle.spec.dropped}",
        "if c}",
        (DROPPED,),
        "test_merges_deletions_and_rewrites_leave_a_dropped_column_out",
    ),
    Mutant(
        "a restore leaves the dropped columns as they are",
        "icedb/operations/retention/restore.py",
        "        return spec_of_dropped(self.handle, spec_at(self.handle.spec, self.as_of_ms).dropped, t_ms)",
        "        return None",
        (DROPPED,),
        "test_a_restore_has_the_columns_of_its_time",
    ),
    Mutant(
        "an exclusive commit forgets the parts of its earlier attempts",
        "icedb/transaction/exclusive.py",
        "    written = [*operation.outputs, *operation.unused]",
        "    written = list(operation.outputs)",
        (ROW_CHANGES,),
        "test_parts_of_an_attempt_that_another_writer_published_stay",
    ),
    Mutant(
        "removed rows come before the rows that replaced them",
        "icedb/format/change_feed.py",
        "[_newest_exclusive_ms(state), *(m.created_ms - 1 for m in feed.all if m.key in left)]",
        "[_newest_exclusive_ms(state)]",
        (REMOVED,),
        "test_a_replaced_row_is_returned_with_the_row_that_replaced_it",
    ),
    Mutant(
        "the removals of a consumer do not begin after a restore",
        "icedb/format/change_feed.py",
        "    return max((f.t_ms for f in files if f.epoch is not None and not f.void), default=0)",
        "    return 0",
        (REMOVED,),
        "test_a_consumer_that_began_after_a_restore_is_told_of_the_next_removal",
    ),
    Mutant(
        "an upsert does not search the parts that were added since",
        "icedb/operations/upsert/row_changes.py",
        "for key, m in live.items() if key not in self.live]",
        "for key, m in live.items() if not self.live]",
        (ROW_CHANGES,),
        "test_an_upsert_is_exact_beside_another_commit",
    ),
    Mutant(
        "an upsert keeps rows that were found in parts that are gone",
        "icedb/operations/upsert/row_changes.py",
        "        return self.rows.forget(gone) if gone else 0",
        "        return 0",
        (ROW_CHANGES,),
        "test_an_upsert_is_exact_beside_another_commit",
    ),
    Mutant(
        "an upsert publishes the new rows of its first attempt",
        "icedb/operations/upsert/row_changes.py",
        "        if self.written is None or forgotten or searched.rows:",
        "        if self.written is None:",
        (ROW_CHANGES,),
        "test_an_upsert_is_exact_beside_another_commit",
    ),
    Mutant(
        "an upsert with a transaction is repeated",
        "icedb/operations/upsert/row_changes.py",
        "            txn={} if self.txn is None else {self.txn[0]: (self.txn[1], t_ms)},",
        "            txn={},",
        (UPSERT,),
        "test_a_transaction_is_committed_once",
    ),
    Mutant(
        "neighbours of changed rows are new to consumers of changes",
        "icedb/operations/upsert/row_changes.py",
        "            add=written.markers,\n            moved=self._moved,",
        "            add=[*written.markers, *self._moved],",
        (UPSERT,),
        "test_the_change_feed_has_new_and_changed_rows_only",
    ),
    Mutant(
        "an upsert ignores that a column was added since",
        "icedb/operations/upsert/row_changes.py",
        "        if self._prepared_for != (schema, self.handle.spec):",
        "        if self._prepared_for is None:",
        (ROW_CHANGES,),
        "test_a_column_that_another_commit_adds_keeps_its_values",
    ),
    Mutant(
        "merged rows are new to consumers of changes",
        "icedb/operations/rewrite/rewrite_commit.py",
        "            moved=self.markers,\n",
        "            add=self.markers,\n",
        (CHANGES, SIMULATION),
        "test_each_row_is_returned_once_and_merged_parts_are_not_new",
    ),
    Mutant(
        "a consumer of changes does not wait for late commits",
        "icedb/reader/changes.py",
        "    return now_ms - handle.timing.late_publication_ms",
        "    return handle.clock.now_ms()",
        (CHANGES, SIMULATION),
        "test_each_row_is_returned_once_and_merged_parts_are_not_new",
    ),
    Mutant(
        "a consumer of changes begins with superseded parts",
        "icedb/format/change_feed.py",
        '(Cursor(t_ms, seen=tuple(seen), snapshot="", gone=tuple(gone))',
        '(Cursor(t_ms, seen=tuple(seen), snapshot="")',
        (CHANGES, SIMULATION),
        "test_a_consumer_gets_each_row_once_and_repeated_batches_are_equal",
    ),
    Mutant(
        "a consumer of changes forgets the parts of the last minutes",
        "icedb/format/change_feed.py",
        "(Cursor(t_ms, None if whole else key, tuple(beyond))",
        "(Cursor(t_ms, None if whole else key)",
        (CHANGES, SIMULATION),
        "test_each_row_is_returned_once_and_merged_parts_are_not_new",
    ),
    Mutant(
        "a consumer of changes does not check the horizon",
        "icedb/format/change_feed.py",
        "    if max(start.t_ms, consumed_ms) < state.horizon_ms:",
        "    if start.t_ms < 0:",
        (CHANGES, SIMULATION),
        "test_a_consumer_behind_cleanup_gets_snapshot_expired",
    ),
    Mutant(
        "a tombstone is not carried",
        "icedb/format/commit_draft.py",
        "    carried = state.named_by(replaces)\n",
        "    carried = [m for m in state.named_by(replaces) if m.tombstoned_ms is None]\n",
        (REWRITE, COMMIT),
        "test_every_marker_is_carried_with_its_tombstone_from_the_whole_snapshot",
    ),
    Mutant(
        "a tombstone is carried as the replaced log file had it",
        "icedb/format/commit_draft.py",
        "    carried = state.named_by(replaces)\n",
        "    carried = sorted({m.key: m for f in sources for m in f.markers}.values(), key=lambda m: m.key)\n",
        (REWRITE, COMMIT),
        "test_every_marker_is_carried_with_its_tombstone_from_the_whole_snapshot",
    ),
    Mutant(
        "another partition's marker is dropped",
        "icedb/format/commit_draft.py",
        "    carried = state.named_by(replaces)\n",
        "    carried = [m for m in state.named_by(replaces) if not dead or m.key in dead]\n",
        (REWRITE, COMMIT, KILLERS),
        "test_every_marker_is_carried_with_its_tombstone_from_the_whole_snapshot",
    ),
    Mutant(
        "the time of a carried part is overwritten",
        "icedb/format/commit_draft.py",
        "msgspec.structs.replace(m, tombstoned_ms=t_ms) if m.key in dead and m.tombstoned_ms is None else m\n",
        "msgspec.structs.replace(m, tombstoned_ms=t_ms if m.key in dead else m.tombstoned_ms, created_ms=t_ms)\n",
        (REWRITE, COMMIT),
        "test_every_marker_is_carried_with_its_tombstone_from_the_whole_snapshot",
    ),
    Mutant(
        "a log file's tombstones are not carried",
        "icedb/format/commit_draft.py",
        "carried = {t.key for f in sources for t in f.tombstones} - _effective_keys(state)",
        "carried: set[str] = set()",
        (REWRITE, KILLERS, SIMULATION),
        "test_schemas_horizons_and_log_tombstones_are_carried",
    ),
    Mutant(
        "transactions are not carried",
        "icedb/format/commit_draft.py",
        "{a: last for f in sources for a, last in f.txn.items() if last == state.txn[a]} | dict(txn or {})",
        "dict(txn or {})",
        (REWRITE, TXN),
        "test_a_transaction_is_carried_only_from_the_file_with_its_last_sequence",
    ),
    Mutant(
        "the horizon is not raised",
        "icedb/format/commit_draft.py",
        "horizon_ms=max([0, *forgotten_ms, *(f.horizon_ms for f in sources)])",
        "horizon_ms=max([0, *(f.horizon_ms for f in sources)])",
        (REWRITE, CLEANUP),
        "test_the_newest_forgotten_tombstone_becomes_the_horizon",
    ),
    Mutant(
        "the claim is skipped",
        "icedb/transaction/exclusive.py",
        "    claim = _take_claim(handle, epoch, own, tried)\n",
        "    tried.add(own.key, epoch, own.t)\n    claim: EpochClaim | None = own\n",
        (COMMIT,),
        "test_a_crash_while_completing_a_crashed_commit_is_completed_too",
    ),
    Mutant(
        "no second listing after the claim",
        "icedb/transaction/exclusive.py",
        "    if _epoch_decided(handle, state, epoch, min(own.t, claim.t)):\n        return False",
        "    if False:\n        return False",
        (COMMIT, KILLERS),
        "test_a_recreated_claim_does_not_publish_old_state",
    ),
    Mutant(
        "an old claim is completed instead of voided",
        "icedb/transaction/exclusive.py",
        "    if epochs_gone or is_ahead or handle.clock.now_ms() - claim.since_ms > handle.timing.commit_timeout_ms:\n",
        "    if epochs_gone or is_ahead:\n",
        (COMMIT, KILLERS),
        "test_a_crash_at_any_request_leaves_all_or_nothing",
    ),
    Mutant(
        "a merge is rebased although an input died",
        "icedb/operations/rewrite/rewrite_commit.py",
        "if not all(_is_live(state, p.key) for p in r.inputs)]:",
        "if not all(p.key in state.parts for p in r.inputs)]:",
        ("tests/operations/rewrite/test_merge.py", COMMIT),
        "test_groups_without_lost_inputs_are_committed",
    ),
    Mutant(
        "the loser publishes its own body",
        "icedb/transaction/exclusive.py",
        "    body = claim.body.encode()\n",
        "    body = own.body.encode()\n",
        (COMMIT,),
        "test_a_crash_at_any_request_leaves_all_or_nothing",
    ),
    Mutant(
        "live epochs are not checked",
        "icedb/transaction/log_reader.py",
        "        unlisted = live_epochs - {f.file.epoch for f in files.values()}\n",
        "        unlisted: frozenset[int] = frozenset()\n",
        (*READING, KILLERS),
        "test_a_listing_without_an_epoch_that_the_head_lists_is_made_again",
    ),
    Mutant(
        "a log file of v3 is skipped for its name",
        "icedb/format/keys.py",
        "        return _OUR_WRITER.search(self.writer) is not None\n",
        "        return True\n",
        (SCENES,),
        "test_a_scene_violates_no_invariant",
    ),
    Mutant(
        "an old claim is published although parts are gone",
        "icedb/transaction/idempotent_append.py",
        "    if not young and (lost := _lost_part(handle, file)):\n",
        "    if not young and (lost := _lost_part(handle, file)) and False:\n",
        (TXN, SCENES),
        "test_a_claim_without_its_record_does_not_restore_deleted_parts",
    ),
    Mutant(
        "claims go to the store of the parts",
        "icedb/storage/split_store.py",
        "        self._log_prefixes = (keys.log_prefix, keys.claims_prefix)\n",
        "        self._log_prefixes = (keys.log_prefix,)\n",
        (SCENES,),
        "test_a_scene_violates_no_invariant",
    ),
    Mutant(
        "an import does not find the copies of another import",
        "icedb/operations/importing/import_plan.py",
        '        marker = self._by_key.get(key or "") or self._copies.get((file_id, size))\n',
        '        marker = self._by_key.get(key or "")\n',
        (SCENES,),
        "test_a_scene_violates_no_invariant",
    ),
    Mutant(
        "an import does not check for a forgotten import",
        "icedb/operations/importing/import_files.py",
        "        if state.horizon_ms > self.planned.horizon_ms and imports_of(state) != imports_of(self.planned):\n",
        "        if False:\n",
        ("tests/operations/importing/test_import_files.py",),
        "test_an_import_that_paused_during_another_import_imports_nothing",
    ),
    Mutant(
        "a repair does not check parts that were added since",
        "icedb/operations/integrity/repair_types.py",
        "        new = [p for p in live if p.key not in self.examined and p.key not in self.sources]\n",
        "        new = [] if self.examined else live\n",
        (SCENES,),
        "test_a_scene_detects_that",
    ),
    Mutant(
        "a refreshed view does not know the transactions of its source",
        "icedb/operations/write/views.py",
        "    return {application: sequence for application, (sequence, _) in state.txn.items()}\n",
        "    return {}\n",
        (SCENES,),
        "test_a_scene_detects_that",
    ),
    Mutant(
        "a restored part keeps bounds of another type",
        "icedb/operations/retention/restore.py",
        ", stats=without_texts(marker.stats)",
        "",
        ("tests/operations/integrity/test_repair_types.py",),
        "test_a_restored_part_of_another_type_is_not_pruned",
    ),
    Mutant(
        "a cleanup does not compare the clocks",
        "icedb/operations/retention/cleanup.py",
        '            self.handle.checks.check_clock("", put_after_ms=0)\n',
        "",
        (CLEANUP, SCENES),
        "test_a_clock_that_is_far_ahead_deletes_nothing",
    ),
    Mutant(
        "a claim from a clock far ahead is published",
        "icedb/transaction/exclusive.py",
        "    is_ahead = not mine and claim.t >= handle.far_ahead_ms(handle.clock.now_ms())\n",
        "    is_ahead = False\n",
        (COMMIT, SCENES),
        "test_a_claim_from_a_clock_far_ahead_becomes_void",
    ),
    Mutant(
        "a reader trusts its own clock alone",
        "icedb/transaction/log_reader.py",
        "min(last.at_ms, now_ms, newest_ms)",
        "min(last.at_ms, now_ms)",
        (*READING, SCENES),
        "test_a_refresh_without_news_is_one_list_from_where_something_could_have_changed",
    ),
    Mutant(
        "log files of dead epochs count",
        "icedb/format/replay.py",
        "    dead = {key for number, key in epochs.items() if number not in live_epochs}",
        "    dead: set[str] = set()",
        ("tests/format/test_replay.py", "tests/transaction/test_log_reader.py", SIMULATION),
        "test_an_epoch_that_the_head_does_not_list_is_ignored",
    ),
    Mutant(
        "a refresh lists from the last listing on",
        "icedb/transaction/log_reader.py",
        "min(last.at_ms, now_ms, newest_ms) - late_ms",
        "min(last.at_ms, now_ms, newest_ms)",
        (*READING, SIMULATION),
        "test_a_refresh_without_news_is_one_list_from_where_something_could_have_changed",
    ),
    Mutant(
        "a lost response is taken for a lost race",
        "icedb/transaction/append.py",
        "            return PutOutcome.CREATED if _read_back(store, key) == body else PutOutcome.CONFLICT\n",
        "            return PutOutcome.CONFLICT if _read_back(store, key) else PutOutcome.NOT_FOUND\n",
        (COMMIT,),
        "test_a_put_that_succeeded_and_was_then_denied_is_read_back",
    ),
    Mutant(
        "a writer rebases without a search for its own commit",
        "icedb/transaction/exclusive.py",
        "    committed = _find_own(handle, state, operation, tried) if tried.open else None\n",
        "    committed = None\n",
        (COMMIT, KILLERS),
        "test_a_request_without_a_response_is_settled_or_raises_commit_state_unknown",
    ),
    Mutant(
        "an output is deleted while the writer's own claim may still be published",
        "icedb/transaction/exclusive.py",
        "    if operation.unused and not tried.open:\n",
        "    if operation.unused:\n",
        (COMMIT, "tests/operations/rewrite/test_merge.py", SIMULATION),
        "test_a_merged_part_of_an_open_claim_is_kept_without_its_inputs",
    ),
    Mutant(
        "a refused claim is deleted",
        "icedb/transaction/idempotent_append.py",
        "            generation += 1\n            continue\n",
        "            handle.store.delete([handle.keys.txn_claim(*txn)])\n            continue\n",
        (TXN,),
        "test_one_of_two_batches_is_committed_after_a_rejected_claim",
    ),
    Mutant(
        "a transaction does not read the log after its claim",
        "icedb/transaction/idempotent_append.py",
        "    if is_recorded(state, txn) or any(m.key in state.parts for m in file.markers):\n",
        "    if False:\n",
        (TXN, KILLERS),
        "test_a_retry_after_a_crash_leaves_one_batch",
    ),
    Mutant(
        "an old transaction is published by a plain append",
        "icedb/transaction/idempotent_append.py",
        "    young = handle.clock.now_ms() - claim.since_ms <= timeout_ms\n",
        "    young = True\n",
        (TXN, SIMULATION),
        "test_a_late_put_of_a_key_that_was_closed_replaced_and_deleted_is_not_a_success",
    ),
    Mutant(
        "the age of a tombstone is measured by the writer's clock alone",
        "icedb/operations/retention/cleanup.py",
        "tombstoned_ms <= cutoff_ms and min(named.tombstoned_by_ms, default=cutoff_ms + 1) <= cutoff_ms",
        "tombstoned_ms <= cutoff_ms",
        (CLEANUP, COMMIT),
        "test_the_grace_period_is_measured_by_the_store",
    ),
    Mutant(
        "a part is deleted before it is old enough",
        "icedb/operations/retention/cleanup.py",
        "    old = (m for m in state.dead if m.tombstoned_ms is not None and m.tombstoned_ms <= cutoff_ms)\n"
        "    dead = [m for m in old if _is_ripe(m.tombstoned_ms, state.parts_named[m.key], cutoff_ms)]\n",
        "    dead = list(state.dead)\n",
        (CLEANUP,),
        "test_nothing_is_deleted_in_the_grace_period",
    ),
    Mutant(
        "a marker is forgotten while a log file names its part as live",
        "icedb/operations/retention/cleanup.py",
        "        held = _named_live(state, frozenset(self.parts)) | state.held_far_ahead(t_ms)\n",
        "        held = state.held_far_ahead(t_ms)\n",
        (CLEANUP, KILLERS),
        "test_a_marker_is_kept_while_a_log_file_has_it_live",
    ),
    Mutant(
        "cleanup does not read the pins again before it deletes",
        "icedb/operations/retention/cleanup.py",
        "        parts = [m for m in planned if not is_needed(m, pins)]\n",
        "        parts = list(planned)\n",
        ("tests/operations/retention/test_pins.py",),
        "test_a_cleanup_respects_a_pin_put_after_its_plan",
    ),
    Mutant(
        "the orphan sweep ignores claims",
        "icedb/operations/retention/orphans.py",
        "    named = chain(state.part_keys(), named_by_claims(claims, epoch=state.epoch))\n",
        "    named = state.part_keys()\n",
        (ORPHANS,),
        "test_parts_that_only_a_claim_names_stay",
    ),
    Mutant(
        "claims of decided epochs keep their parts from the orphan sweep",
        "icedb/operations/retention/orphans.py",
        "if c.epoch is None or c.epoch > epoch)",
        "if c.epoch is None or c.epoch > 0)",
        (ORPHANS,),
        "test_the_part_of_a_void_claim_is_an_orphan",
    ),
    Mutant(
        "the orphan sweep takes the open epoch for decided",
        "icedb/operations/retention/orphans.py",
        "if c.epoch is None or c.epoch > epoch)",
        "if c.epoch is None or c.epoch > epoch + 1)",
        (ORPHANS,),
        "test_parts_that_only_a_claim_names_stay",
    ),
    Mutant(
        "the orphan sweep lists log files before claims",
        "icedb/operations/retention/orphans.py",
        "    claims = read_claims(handle)\n"
        "    if claims.damaged:\n"
        '        raise CorruptLog(f"{handle.table}: {claims.damaged[0]} No orphan was deleted.", '
        "key=claims.damaged[0].key)\n"
        "    state = handle.read(everything=True)\n",
        "    state = handle.read(everything=True)\n    claims = read_claims(handle)\n",
        (ORPHANS,),
        "test_an_unreadable_object_stops_the_sweep_before_it_deletes",
    ),
    Mutant(
        "rows with ids are committed by plain appends",
        "icedb/buffering/committing.py",
        "self._append(group, dropped, (ids.application, ids.sequence))",
        "self._append(group, dropped, None)",
        (SCENES, BUFFERED_IDS),
        "test_a_scene_violates_no_invariant",
    ),
    Mutant(
        "rows whose sequence another writer took are acknowledged",
        "icedb/buffering/committing.py",
        "                    self.counts.retries += 1\n                    continue\n",
        "                    self.counts.retries += 1\n",
        (BUFFERED_IDS,),
        "test_rows_are_committed_once_beside_another_writer",
    ),
    Mutant(
        "a writer does not learn the ids that others committed",
        "icedb/buffering/ids.py",
        "            self._read(self._new(state))\n",
        "            self._new(state)\n",
        (BUFFERED_IDS,),
        "test_faults_duplicate_no_row",
    ),
    Mutant(
        "ids whose log files were cleaned up meanwhile are not learned",
        "icedb/buffering/ids.py",
        " or (last != self._last and forgotten):\n",
        ":\n",
        (BUFFERED_IDS,),
        "test_rows_are_committed_once_beside_another_writer",
    ),
    Mutant(
        "a writer with an unknown outcome does not read the log",
        "icedb/buffering/committing.py",
        "            if unsure and txn is None:\n",
        "            if False:\n",
        (BUFFERED,),
        "test_the_outcome_of_a_lost_response_is_determined",
    ),
    Mutant(
        "parts that were merged and forgotten are published again",
        "icedb/buffering/committing.py",
        "                late = target.clock.now_ms() - began_ms > target.timing.grace_ms // 2\n",
        "                late = False\n",
        (BUFFERED,),
        "test_parts_that_may_be_merged_already_are_not_published_again",
    ),
    Mutant(
        "a submission in a group with an invalid one is rejected",
        "icedb/buffering/committing.py",
        "            if len(group) == 1:\n",
        "            if group:\n",
        (BUFFERED,),
        "test_only_invalid_submissions_fail_and_name_their_row",
    ),
    Mutant(
        "the pin of an export is removed before its readers end",
        "icedb/operations/export/export_pins.py",
        "        return superseded_ms + timing.grace_ms + timing.max_skew_ms <= self.handle.clock.now_ms()\n",
        "        return True\n",
        (DELTA,),
        "test_every_change_of_a_table_is_exported",
    ),
    Mutant(
        "an export takes its snapshot before it reads the Delta log",
        "icedb/operations/export/delta_plan.py",
        "    log = read_delta_log(handle, folder)\n    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)\n",
        "    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)\n    log = read_delta_log(handle, folder)\n",
        (DELTA,),
        "test_a_planned_export_never_replaces_a_newer_one",
    ),
    Mutant(
        "an export is published without its pin",
        "icedb/operations/export/export_pins.py",
        "        kept = pins.add(plan.version, plan.pin_ms, keep)\n",
        "        kept = pins.add(plan.version, plan.pin_ms, keep)\n        pins.remove([kept])\n",
        (DELTA,),
        "test_every_change_of_a_table_is_exported",
    ),
    Mutant(
        "an export takes its snapshot before it reads the Iceberg documents",
        "icedb/operations/export/iceberg_plan.py",
        "    folder = read_folder(handle)\n    existing_pins = read_pins(handle)\n"
        "    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)\n",
        "    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)\n"
        "    folder = read_folder(handle)\n    existing_pins = read_pins(handle)\n",
        (ICEBERG,),
        "test_a_planned_export_never_replaces_a_newer_one",
    ),
    Mutant(
        "manifests that a kept Iceberg document needs are deleted",
        "icedb/operations/export/iceberg.py",
        "if name.version < base and str(name) not in needed]",
        "if name.version < base]",
        (ICEBERG,),
        "test_old_documents_and_their_manifests_are_deleted",
    ),
    Mutant(
        "an Iceberg document lists a snapshot whose pin has expired",
        "icedb/operations/export/iceberg_plan.py",
        "    in_force = [p for p in existing_pins if not p.expired(now_ms) and p not in superseded]\n",
        "    in_force = [p for p in existing_pins if p not in superseded]\n",
        (ICEBERG,),
        "test_a_document_lists_no_snapshot_whose_pin_has_expired",
    ),
    Mutant(
        "the Iceberg bounds of a superseded part are those of another type",
        "icedb/reader/iceberg/data_files.py",
        "if dead and _is_text(one) else one",
        "if False and _is_text(one) else one",
        ("tests/reader/test_iceberg_manifests.py",),
        "test_superseded_parts_have_no_bounds_that_are_texts",
    ),
)


class Copies:
    """Copies of the project, one for each job. A copy keeps its compiled modules from one mutant to the next."""

    def __init__(self, folder: Path, jobs: int, day: date) -> None:
        self._day = day
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            for name in COPIED:
                source, target = ROOT / name, folder / str(number) / name
                if source.is_dir():
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy2(source, target)
            self._free.put(folder / str(number))

    def check(self, mutant: Mutant) -> tuple[str | None, float]:
        """The test that caught the mutant (None: it survived), and the seconds that took."""
        root = self._free.get()
        started = time.monotonic()
        try:
            mutant.apply(root)
            caught = next(filter(None, (self._failing_test(root, run) for run in mutant.runs())), None)
            return caught, time.monotonic() - started
        finally:
            shutil.copy2(ROOT / mutant.file, root / mutant.file)
            self._free.put(root)

    def _failing_test(self, root: Path, arguments: list[str]) -> str | None:
        unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        environment = {k: v for k, v in os.environ.items() if k not in unset} | {"PYTHONPATH": str(root)}
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--scope", "short", "--day"]
        command = [sys.executable, "-m", "pytest", *options, str(self._day), *arguments]
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{arguments[0]} (it never ended)"
        if done.returncode in (PASSED, NO_TESTS):
            return None
        if done.returncode != FAILED:  # pytest itself failed: that proves nothing
            raise RuntimeError(f"{arguments} could not run:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
        return failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else arguments[0]


def main(names: Iterable[str], *, jobs: int, day: date) -> int:
    """Check all mutants, or those of some names; 0 when each was caught."""
    wanted = set(names)
    chosen = [m for m in MUTANTS if not wanted or m.name in wanted]
    width = max((len(m.name) for m in chosen), default=0)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="icedb-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies = Copies(Path(folder), jobs, day)
        sys.stdout.write(f"{len(chosen)} mutants, against the short run of {day}\n")
        for mutant, (caught, seconds) in zip(chosen, pool.map(copies.check, chosen), strict=True):
            sys.stdout.write(f"{mutant.name:{width}}  {seconds:4.0f} s  {caught or 'SURVIVED'}\n")
            sys.stdout.flush()
            if not caught:
                survivors.append(mutant.name)
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants were caught\n")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seed faults of the protocol; the suite must catch each.")
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time [2]")
    today = datetime.now(UTC).date()
    parser.add_argument("--day", type=date.fromisoformat, default=today, help="the day of the samples [today, in UTC]")
    arguments = parser.parse_args()
    sys.exit(main(arguments.names, jobs=arguments.jobs, day=arguments.day))
