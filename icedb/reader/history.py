"""The history of a table: its commits and its log files.

A marker (file entry) has the time when its part was added and when it was removed. Log files carry both times on, so a
commit can be reconstructed from its parts after its own log file was merged, until cleanup forgets the parts it
deleted. Log files also carry on the operation that a commit's header records. Logs of older programs have no
operation; then the kind of a commit is derived from its parts, see `CommitInfo.kind_recorded`. The writer is in the
commit's own log file only. `CommitInfo.exact` is false if the log may have forgotten some parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import msgspec

from icedb.errors import InvalidOption
from icedb.format.codec import decode
from icedb.format.keys import partition_of
from icedb.format.operation_names import carried_operations
from icedb.format.records import LogFile, Marker, StoredLogFile, total_bytes, total_rows
from icedb.format.replay import TableState
from icedb.transaction.table_handle import Handle

__all__ = [
    "CommitInfo",
    "CommitKind",
    "LogFileInfo",
    "LogFileState",
    "commit_kinds",
    "history",
    "last_commits",
    "log_files",
]

#: The kind of a commit.
#:
#: The log records it. If it does not, the kind is derived from the parts, as the texts in brackets describe.
#:
#:     insert     an append (rows were added)
#:     import     existing files became parts
#:     overwrite  new rows replaced others (rows were added, and others removed)
#:     refresh    a view was computed again from its source
#:     merge      parts became larger ones (the same rows in fewer parts)
#:     delete     rows were removed (parts were rewritten with fewer rows)
#:     upsert     rows of a batch replaced or deleted those with their keys, or were inserted
#:     update     columns of some rows got new values
#:     rewrite    a partition was rewritten by a query (parts were rewritten in another way)
#:     repair     a column was converted to one type
#:     drop       partitions were dropped (parts were removed, and none added)
#:     restore    an earlier state was restored (earlier parts were added again)
#:     alter      the table's spec changed
#:     merge_log  log files were merged
#:     cleanup    markers of deleted parts were removed from the log
#:     log        (only the log changed)
#:     void       no change: a writer failed, and its epoch was closed
CommitKind = Literal[
    "insert", "import", "overwrite", "refresh", "merge", "delete", "upsert", "update", "rewrite", "repair",
    "drop", "restore", "alter", "merge_log", "cleanup", "log", "void",
]  # fmt: skip

_KINDS = frozenset(get_args(CommitKind)) - {"log", "void"}
# The parts of all other operations contain rows that were in the table before.
_BRINGS_ROWS = frozenset({"insert", "import", "overwrite", "refresh", "upsert", "update"})

#: The state of a log file: in force, replaced by another one, or published too late to take effect.
LogFileState = Literal["current", "replaced", "ignored"]


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit, as far as the log still records it. `Table.history` returns it."""

    #: The time of the commit, in unix milliseconds.
    at_ms: int
    kind: CommitKind
    added_parts: int
    #: None if another program wrote a part without a row count.
    added_rows: int | None
    added_bytes: int
    removed_parts: int
    removed_rows: int | None
    removed_bytes: int
    #: The number of partitions in which parts were added or removed.
    partitions: int
    #: Exactly-once appends: application -> sequence. The log records the last one of each application.
    txn: Mapping[str, int]
    #: Host, process and a random number of the writer. None if the commit's log file was deleted.
    writer: str | None
    #: The key of the commit's log file, as long as that is stored.
    log_file: str | None
    #: False if cleanup may have forgotten some of the commit's parts. Then the counts are lower bounds.
    exact: bool
    #: False if the log does not record the kind, and `kind` is derived from the parts.
    kind_recorded: bool = False


@dataclass(frozen=True, slots=True)
class LogFileInfo:
    """One object of the log. `Table.log_files` returns it.

    If its state is not `current`, the fields from `lines` on are None.
    """

    key: str
    #: The time of its commit, in unix milliseconds.
    at_ms: int
    state: LogFileState
    bytes: int
    writer: str
    #: The number of an exclusive commit; None for a plain append.
    epoch: int | None
    lines: int | None = None
    #: Parts that its commit added, parts that it superseded, and parts of earlier commits that it carries on.
    added_parts: int | None = None
    removed_parts: int | None = None
    carried_parts: int | None = None
    #: Log files that it replaces, or lists as replaced.
    replaced_log_files: int | None = None
    columns: int | None = None
    void: bool = False
    #: The operation of its own commit; None if the log does not record it.
    kind: CommitKind | None = None


# ------------------------------------------------------------------------------------------------ commits


@dataclass(slots=True)
class _CommitRecord:
    """The markers of one commit, and its log file if that is still stored."""

    added: list[Marker] = field(default_factory=list)
    removed: list[Marker] = field(default_factory=list)
    own: StoredLogFile | None = None
    #: The key of its log file, from a listing.
    key: str | None = None

    @property
    def is_recorded(self) -> bool:
        return bool(self.added or self.removed or self.own)


def history(handle: Handle, *, limit: int | None = None, since_ms: int | None = None) -> list[CommitInfo]:
    """Return the commits that the log still records, newest first. See `Table.history`.

    `limit` is the maximum number, `since_ms` the time of the oldest (unix milliseconds). Raises InvalidOption, and the
    errors of `LogReader.read`.
    """
    if limit is not None and limit < 1:
        raise InvalidOption(f"{handle.table}: limit is {limit}. Pass a number above 0, or None for all commits.")
    state = handle.read(fresh=True)
    commits = _commits(handle, state)
    newest = sorted((at for at in commits if since_ms is None or at[0] >= since_ms), reverse=True)
    dead, txn = _dead_digests(state), _txn(state)
    operations = carried_operations(stored.file for stored in state.effective.values())
    infos: list[CommitInfo] = []
    while newest and (limit is None or len(infos) < limit):
        missing = None if limit is None else limit - len(infos)
        chosen, newest = newest[:missing], newest[missing:] if missing else []
        _fetch_replaced(handle, [commits[at] for at in chosen])
        # Skip a commit whose log file was deleted meanwhile and whose parts no log file names.
        records = ((at_ms, commits[at_ms, key]) for at_ms, key in chosen)
        infos += [
            _info(handle, state, at_ms, record, txn.get(at_ms, {}), dead, operations.get(at_ms, ""))
            for at_ms, record in records
            if record.is_recorded
        ]
    return infos


def commit_kinds(handle: Handle, state: TableState, log_files: Collection[str]) -> dict[str, CommitKind]:
    """Return the kind of the commit of each of these log files of a state.

    A log file that was replaced was not read. The log carries its operation, or it is a plain insert. Only one of an
    exclusive commit whose operation is not carried, such as a merge of log files, is fetched. Raises CorruptLog and the
    store's errors.
    """
    carried = carried_operations(stored.file for stored in state.effective.values())
    files = {key: stored.file for key in log_files if (stored := state.effective.get(key)) is not None}
    names = {key: handle.keys.parse_log_file(key) for key in log_files if key not in files}
    unknown = [key for key, name in names.items() if name.epoch is not None and name.t_ms not in carried]
    files |= {key: decode(stored.body, key, handle.keys) for key, stored in handle.store.get_many(unknown).items()}
    kinds: dict[str, CommitKind] = {key: _kind_of(key, file) for key, file in files.items()}
    for key, name in names.items():
        if key not in files:
            kinds[key] = _recorded_kind(carried.get(name.t_ms, "insert" if name.epoch is None else ""), ()) or "log"
    return kinds


def _kind_of(key: str, file: LogFile) -> CommitKind:
    """Return the kind of a log file's own commit."""
    added = [m for m in file.markers if m.created_ms == file.t_ms]
    removed = [m for m in file.markers if m.tombstoned_ms == file.t_ms]
    stored = StoredLogFile(key, file, file.t_ms)
    return _recorded_kind(file.operation, added) or _derived_kind(stored, added, removed, file.t_ms, {}, exact=False)


def last_commits(state: TableState) -> dict[CommitKind, int]:
    """Return the time of the newest commit of each kind, as far as the log records it (unix ms). Makes no request.

    A merge of log files forgets when an insert was made, because it does not carry that operation on.
    """
    files = [stored.file for stored in state.effective.values()]
    times = [(name, at_ms) for at_ms, name in carried_operations(files).items()]
    times += [(file.operation, file.t_ms) for file in files]
    newest: dict[CommitKind, int] = {}
    for name, at_ms in times:
        if name in _KINDS:
            kind = cast(CommitKind, name)
            newest[kind] = max(at_ms, newest.get(kind, 0))
    return newest


def _commits(handle: Handle, state: TableState) -> dict[tuple[int, str], _CommitRecord]:
    """Return the commits by time, and by log file if several log files have one time."""
    of_time: dict[int, list[StoredLogFile]] = {}
    for stored in state.effective.values():
        of_time.setdefault(stored.file.t_ms, []).append(stored)
    owner = _owners(of_time)
    commits: dict[tuple[int, str], _CommitRecord] = {}

    def commit_of(key: str, at_ms: int) -> _CommitRecord:
        return commits.setdefault((at_ms, owner.get((key, at_ms), "")), _CommitRecord())

    for marker in state.parts.values():
        commit_of(marker.key, marker.created_ms).added.append(marker)
        if marker.tombstoned_ms is not None:
            commit_of(marker.key, marker.tombstoned_ms).removed.append(marker)
    for at_ms, files in of_time.items():
        for stored in files:
            commit = commits.setdefault((at_ms, stored.key if len(files) > 1 else ""), _CommitRecord())
            commit.own, commit.key = stored, stored.key
    # The listing has the keys of replaced log files that are still stored.
    replaced: dict[int, list[str]] = {}
    for key in state.ignored & state.log_tombstones.keys() & state.listed_ms.keys():
        replaced.setdefault(handle.keys.parse_log_file(key).t_ms, []).append(key)
    for at_ms, names in replaced.items():
        if len(names) == 1 and at_ms not in of_time:
            commits.setdefault((at_ms, ""), _CommitRecord()).key = names[0]
    return commits


def _fetch_replaced(handle: Handle, commits: Iterable[_CommitRecord]) -> None:
    """Fetch the replaced log files of these commits, as far as they are still stored."""
    wanted = {c.key: c for c in commits if c.own is None and c.key is not None}
    for key, stored in handle.store.get_many(list(wanted)).items():
        wanted[key].own = StoredLogFile(key, decode(stored.body, key, handle.keys), stored.stored_ms)


def _owners(of_time: Mapping[int, Sequence[StoredLogFile]]) -> dict[tuple[str, int], str]:
    """Map part and time to the log file that names the part, for times with several log files."""
    return {
        (marker.key, at_ms): stored.key
        for at_ms, files in of_time.items()
        if len(files) > 1
        for stored in files
        for marker in stored.file.markers
        if at_ms in (marker.created_ms, marker.tombstoned_ms)
    }


def _txn(state: TableState) -> dict[int, dict[str, int]]:
    """Map time to the exactly-once appends of that time (application -> sequence), as far as the log records them."""
    appends: dict[int, dict[str, int]] = {}
    for stored in state.effective.values():
        for application, (sequence, at_ms) in stored.file.txn.items():
            appends.setdefault(at_ms, {})[application] = sequence
    return appends


def _dead_digests(state: TableState) -> dict[str, int]:
    """Map the digests of superseded parts to the time of their tombstones. A restored copy has the same digest."""
    times: dict[str, int] = {}
    for marker in state.dead:
        if marker.digest is not None and marker.tombstoned_ms is not None:
            times[marker.digest] = min(marker.tombstoned_ms, times.get(marker.digest, marker.tombstoned_ms))
    return times


def _info(
    handle: Handle,
    state: TableState,
    at_ms: int,
    commit: _CommitRecord,
    txn: Mapping[str, int],
    dead: Mapping[str, int],
    operation: str,
) -> CommitInfo:
    own = None if commit.own is None else commit.own.file
    added, removed, exact = commit.added, commit.removed, at_ms > state.horizon_ms
    if own is not None and not exact:
        # The commit's own log file still has all of its markers.
        added = [m for m in own.markers if m.created_ms == at_ms]
        removed = [m for m in own.markers if m.tombstoned_ms == at_ms]
        exact = True
    paths = {partition_of(handle.keys.data_prefix, m.key) for m in (*added, *removed)}
    recorded = _recorded_kind(operation if own is None else own.operation, added)
    return CommitInfo(
        at_ms=at_ms,
        kind=recorded or _derived_kind(commit.own, added, removed, at_ms, dead, exact=exact),
        added_parts=len(added),
        added_rows=total_rows(added),
        added_bytes=total_bytes(added),
        removed_parts=len(removed),
        removed_rows=total_rows(removed),
        removed_bytes=total_bytes(removed),
        partitions=len(paths),
        txn=dict(txn) if own is None else {name: last[0] for name, last in own.txn.items() if last[1] == at_ms},
        writer=None if commit.key is None else handle.keys.parse_log_file(commit.key).writer,
        log_file=commit.key,
        exact=exact,
        kind_recorded=recorded is not None,
    )


def _recorded_kind(operation: str, added: Sequence[Marker]) -> CommitKind | None:
    """Return the operation that the log records; None if this version does not know it, or the parts contradict it.

    The parts contradict it if a plain append of the same millisecond was merged into one log file with the commit.
    """
    if operation not in _KINDS or (operation not in _BRINGS_ROWS and not all(m.moved for m in added)):
        return None
    return cast(CommitKind, operation)


def _derived_kind(
    own: StoredLogFile | None,
    added: Sequence[Marker],
    removed: Sequence[Marker],
    at_ms: int,
    dead: Mapping[str, int],
    *,
    exact: bool,
) -> CommitKind:
    if not added and not removed:
        return _kind_of_log_file(own)
    if not added:
        return "drop"
    if not all(m.moved for m in added):
        return "overwrite" if removed else "insert"
    before, after = total_rows(removed), total_rows(added)
    is_counted = exact and before is not None and after is not None
    if is_counted and before == after and len(added) < len(removed):
        return "merge"
    # No other operation adds parts with existing rows without superseding parts.
    if all(dead.get(m.digest or "", at_ms) < at_ms for m in added) or (exact and not removed):
        return "restore"
    return "delete" if is_counted and (after or 0) < (before or 0) else "rewrite"


def _kind_of_log_file(own: StoredLogFile | None) -> CommitKind:
    """Return the kind of a commit that changed no part."""
    if own is None:
        return "log"
    if own.file.void:
        return "void"
    replaces = any(t.created_ms == own.file.t_ms for t in own.file.tombstones)
    return "log" if isinstance(own.file.spec, msgspec.UnsetType) or replaces else "alter"


# ------------------------------------------------------------------------------------------------ log files


def log_files(handle: Handle) -> list[LogFileInfo]:
    """List the objects of the log, newest first, including replaced and ignored ones.

    It takes two LIST requests and fetches the current log files. Raises the errors of `LogReader.read`.
    """
    state = handle.read(fresh=True)
    listed = {info.key: info.bytes for info in handle.store.list(handle.keys.log_prefix)}
    # Skip an object that was created or deleted between the two listings.
    infos = [_log_file(handle, state, key, listed[key]) for key in state.listed_ms if key in listed]
    return sorted(infos, key=lambda f: (f.at_ms, f.key), reverse=True)


def _log_file(handle: Handle, state: TableState, key: str, size: int) -> LogFileInfo:
    name = handle.keys.parse_log_file(key)
    if key in state.ignored or key not in state.files:
        kind: LogFileState = "replaced" if key in state.log_tombstones else "ignored"
        return LogFileInfo(key, name.t_ms, kind, size, name.writer, name.epoch)
    file = state.files[key].file
    added = sum(m.created_ms == file.t_ms for m in file.markers)
    removed = sum(m.tombstoned_ms == file.t_ms for m in file.markers)
    return LogFileInfo(
        key=key,
        at_ms=file.t_ms,
        state="current",
        bytes=size,
        writer=name.writer,
        epoch=file.epoch,
        lines=2 + len(file.tombstones) + len(file.markers),
        added_parts=added,
        removed_parts=removed,
        carried_parts=len(file.markers) - added - removed,
        replaced_log_files=len(file.tombstones),
        columns=len(file.schema),
        void=file.void,
        kind=_recorded_kind(file.operation, ()),
    )
