"""Merge log files (log compaction, checkpoint), in tiers, without merging parts.

A reader's requests then grow with the logarithm of the number of commits. A merge takes log files from the smallest up,
to the last that is at most `GROWTH` times all before it together. The remaining files are geometric: each is larger
than `GROWTH` times all smaller ones together. So n lines are in at most 1 + log3(n) log files (10 for 10,000). A merged
marker lands in a log file at least half as large again as its own, so it is carried a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icedb.errors import InvalidOption
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.replay import TableState
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle

__all__ = ["LINES_MAX", "LOG_FILES_MIN", "MergeLogReport", "merge_log", "mergeable_log_files", "plan_merge_log"]

GROWTH = 2
# For frequent merges: it halves the rewritten lines if many partitions share their commits.
GROWTH_OFTEN = 0.25
# A log file of so many lines has some 30 MB, and is decoded in half a second.
LINES_MAX = 200_000
# So many log files are read about as fast as one, so a continuous merge starts from this number.
LOG_FILES_MIN = 32


@dataclass(frozen=True, slots=True)
class MergeLogReport:
    """The result of a log merge, or of a dry run. A reader that opens the table now reads `log_files` log files."""

    commit: Commit
    merged_log_files: tuple[str, ...]
    log_files: int
    remaining: int
    dry_run: bool


def plan_merge_log(lines: Mapping[str, int], *, lines_max: int = LINES_MAX, files_min: int = 2) -> list[str]:
    """Return the log files to merge, of these with their numbers of lines. Pure. Empty if a merge gains nothing.

    Fewer than `files_min` log files are not merged. A caller that passes more than 2 merges often, so large log files
    are rewritten only together with many other lines.
    """
    if len(lines) < files_min:
        return []
    growth = GROWTH if files_min <= 2 else GROWTH_OFTEN
    keys = sorted(lines, key=lambda key: (lines[key], key))
    taken = total = 0
    for index, key in enumerate(keys):
        if total + lines[key] > lines_max:
            break
        # The last one, not the first that does not fit: a single short log file would keep all others apart.
        if index and lines[key] <= growth * total:
            taken = index + 1
        total += lines[key]
    return sorted(keys[:taken])


def merge_log(
    handle: Handle, *, lines_max: int = LINES_MAX, files_min: int = 2, dry_run: bool = False
) -> MergeLogReport:
    """Replace small log files by one, in one exclusive commit. No part changes.

    `lines_max` limits the new log file; log files beyond it are `remaining` for the next call. With fewer than
    `files_min` log files nothing is done, for callers that merge often. Raises InvalidOption, CommitConflict,
    CommitStateUnknown and the store's errors.
    """
    if lines_max < 2:
        raise InvalidOption(f"{handle.table}: lines_max is {lines_max}; pass at least 2.")
    operation = _MergeLog(lines_max, files_min)
    if dry_run:
        operation.build(handle.read(fresh=True), handle.far_ahead_ms(handle.clock.now_ms()))
        commit = nothing_to_commit(handle)
    else:
        commit = commit_exclusive(handle, operation)
    return MergeLogReport(commit, tuple(operation.merged), operation.log_files, operation.remaining, dry_run)


@dataclass(slots=True)
class _MergeLog:
    """The commit, planned again at each attempt. Concurrent commits cannot invalidate it, because no part changes."""

    lines_max: int
    files_min: int
    merged: list[str] = field(default_factory=list)
    log_files: int = 0
    remaining: int = 0
    outputs: tuple[str, ...] = ()
    unused: list[str] = field(default_factory=list)
    oldest_part_ms: int | None = None
    reads_everything: bool = False

    def build(self, state: TableState, t_ms: int) -> CommitDraft | None:
        lines = mergeable_log_files(state, t_ms)
        self.merged = plan_merge_log(lines, lines_max=self.lines_max, files_min=self.files_min)
        left = {k: n for k, n in lines.items() if k not in self.merged}
        if self.merged:
            left[""] = sum(lines[k] for k in self.merged)
        self.log_files = len(left) + len(state.effective) - len(lines)
        self.remaining = len(plan_merge_log(left, lines_max=self.lines_max, files_min=self.files_min))
        return draft(state, t_ms=t_ms, replaces=self.merged, operation="merge_log") if self.merged else None


def mergeable_log_files(state: TableState, t_ms: int) -> dict[str, int]:
    """Return the log files that a commit at `t_ms` may replace, with their lines. Files from a clock far ahead are
    excluded.
    """
    far_ahead = state.far_ahead(t_ms)
    return {
        key: 1 + len(stored.file.markers) + len(stored.file.tombstones)
        for key, stored in state.effective.items()
        if key not in far_ahead
    }
