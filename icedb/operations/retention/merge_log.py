"""Merge log files without merging parts, in tiers, so that a reader's requests grow with the logarithm of the commits.

Log files are taken from the smallest up, to the last that is at most `GROWTH` times all before it together. What stays
is geometric, each larger than `GROWTH` times all smaller ones together: n lines lie in at most 1 + log3(n) log files
(10 for 10,000), and a marker that is carried lands in a log file half as large again as its own at least, so it is
carried a logarithmic number of times.
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

__all__ = ["LOG_FILES_MIN", "MergeLogReport", "merge_log", "mergeable_log_files", "plan_merge_log"]

GROWTH = 2
# By who merges often: it halves what is written again when many partitions share their commits.
GROWTH_OFTEN = 0.25
# One log file of so many lines is some 30 MB, and is decoded in half a second.
LINES_MAX = 200_000
# So many are opened about as fast as one: what merges log files all the time, does it from here on.
LOG_FILES_MIN = 32


@dataclass(frozen=True, slots=True)
class MergeLogReport:
    """What a merge of log files did, or would do. `log_files` are left to be read by who opens the table."""

    commit: Commit
    merged_log_files: tuple[str, ...]
    log_files: int
    remaining: int
    dry_run: bool


def plan_merge_log(lines: Mapping[str, int], *, lines_max: int = LINES_MAX, files_min: int = 2) -> list[str]:
    """Which log files to merge, of these with so many lines. Pure. Empty when there is nothing to gain.

    Fewer than `files_min` are left as they are. Who asks for more than two merges often: large log files are written
    again only with much else then.
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
    """Replace small log files by one, in one exclusive commit. No part is touched.

    `lines_max`: of the new log file; what does not fit is `remaining` for the next call. `files_min`: with fewer log
    files nothing is done, for who calls this often. Raises InvalidOption, CommitConflict, CommitStateUnknown and the
    store's errors.
    """
    if lines_max < 2:
        raise InvalidOption(f"{handle.table}: lines_max is {lines_max}; give 2 at least.")
    operation = _MergeLog(lines_max, files_min)
    if dry_run:
        operation.build(handle.read(fresh=True), handle.far_ahead_ms(handle.clock.now_ms()))
        commit = nothing_to_commit(handle)
    else:
        commit = commit_exclusive(handle, operation)
    return MergeLogReport(commit, tuple(operation.merged), operation.log_files, operation.remaining, dry_run)


@dataclass(slots=True)
class _MergeLog:
    """Planned anew at each attempt: whatever was committed meanwhile, no part changes."""

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
    """The log files that a commit of `t_ms` may replace, with their lines: none from a clock that is far ahead."""
    far_ahead = state.far_ahead(t_ms)
    return {
        key: 1 + len(stored.file.markers) + len(stored.file.tombstones)
        for key, stored in state.effective.items()
        if key not in far_ahead
    }
