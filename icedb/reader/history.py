"""The past of a table, as its log tells it: which commits there were, and which log files there are.

A marker says when its part came and when it went. That is carried from log file to log file, so a commit is known by
its parts long after its own log file was merged away, until cleanup forgets what it deleted. The same holds for the
operation that the header of a commit records. Logs of older programs record none: there the kind of a commit is
derived from what it did to the parts, see `CommitInfo.kind_recorded`. The writer stands in the commit's own log file
alone, and what the log has forgotten is left open, see `CommitInfo.exact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import msgspec

from icedb.errors import InvalidOption
from icedb.format.codec import decode
from icedb.format.keys import partition_of
from icedb.format.operation_names import carried_operations
from icedb.format.records import Marker, StoredLogFile, total_bytes, total_rows
from icedb.format.replay import TableState
from icedb.transaction.table_handle import Handle

__all__ = ["CommitInfo", "CommitKind", "LogFileInfo", "LogFileState", "history", "log_files"]

#: What a commit did.
#:
#: As the log records it. If it does not, the kind is derived from the parts, as the texts in brackets say.
#:
#:     insert     an append (rows came)
#:     import     existing files became parts
#:     overwrite  new rows in the place of others (rows came, and others went)
#:     refresh    a view was made anew from its source
#:     merge      parts became larger ones (the same rows in fewer parts)
#:     delete     rows were removed (parts were written again with fewer rows)
#:     rewrite    a partition was rewritten by a query (parts were written again otherwise)
#:     repair     a column got one type
#:     drop       partitions were dropped (parts went, and none came)
#:     restore    an earlier state came back (parts came back)
#:     alter      the table's spec changed
#:     merge_log  log files were merged
#:     cleanup    markers of deleted parts were removed from the log
#:     log        (nothing but the log changed)
#:     void       nothing: a writer died, and its place in the order was closed
CommitKind = Literal[
    "insert", "import", "overwrite", "refresh", "merge", "delete", "rewrite", "repair", "drop", "restore", "alter",
    "merge_log", "cleanup", "log", "void",
]  # fmt: skip

_KINDS = frozenset(get_args(CommitKind)) - {"log", "void"}
# The parts of all other operations hold rows that were in the table before.
_BRINGS_ROWS = frozenset({"insert", "import", "overwrite", "refresh"})

#: Whether a log file counts: it does; another one has replaced it; it was published too late and never counted.
LogFileState = Literal["current", "replaced", "ignored"]


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit, as far as the log remembers it. Times are unix milliseconds; counts are of parts, rows and bytes."""

    at_ms: int
    kind: CommitKind
    added_parts: int
    #: None when a part does not say how many it has.
    added_rows: int | None
    added_bytes: int
    removed_parts: int
    removed_rows: int | None
    removed_bytes: int
    #: How many partitions had parts that came or went.
    partitions: int
    #: Exactly-once appends: application -> sequence. The log remembers the last one of each application.
    txn: Mapping[str, int]
    #: Who wrote it: host, process and a random number. None when its log file is gone.
    writer: str | None
    #: The key of its log file, as long as that is stored.
    log_file: str | None
    #: False when cleanup may have forgotten some of its parts: then it did at least this, and parts that it
    #: superseded may be missing.
    exact: bool
    #: False: the log does not record what it was called, and `kind` is derived from its parts.
    kind_recorded: bool = False


@dataclass(frozen=True, slots=True)
class LogFileInfo:
    """One object of the log. Of one that does not count, only its name and size are known, and the rest is None."""

    key: str
    at_ms: int
    state: LogFileState
    bytes: int
    writer: str
    #: The number of an exclusive commit.
    epoch: int | None
    lines: int | None = None
    #: Parts that its commit brought, parts that it superseded, and parts of earlier commits that it carries on.
    added_parts: int | None = None
    removed_parts: int | None = None
    carried_parts: int | None = None
    #: Log files that it replaces, or carries as replaced.
    replaced_log_files: int | None = None
    columns: int | None = None
    void: bool = False
    #: The operation of its own commit, as the log records it; None: it does not.
    kind: CommitKind | None = None


# ------------------------------------------------------------------------------------------------ commits


@dataclass(slots=True)
class _CommitRecord:
    """What is known of one commit."""

    added: list[Marker] = field(default_factory=list)
    removed: list[Marker] = field(default_factory=list)
    own: StoredLogFile | None = None
    #: Its log file's name, from a listing.
    key: str | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.added or self.removed or self.own)


def history(handle: Handle, *, limit: int | None = None, since_ms: int | None = None) -> list[CommitInfo]:
    """The commits that the log remembers, newest first. See `Table.history`.

    `limit`: so many; `since_ms`: those of this time and later (unix milliseconds). Raises InvalidOption, and what
    `LogReader.read` raises.
    """
    if limit is not None and limit < 1:
        raise InvalidOption(f"{handle.table}: limit is {limit}; give a number over 0, or None for all commits.")
    state = handle.read(fresh=True)
    deeds = _deeds(handle, state)
    newest = sorted((at for at in deeds if since_ms is None or at[0] >= since_ms), reverse=True)
    dead, txn = _dead_digests(state), _txn(state)
    operations = carried_operations(stored.file for stored in state.effective.values())
    found: list[CommitInfo] = []
    while newest and (limit is None or len(found) < limit):
        some = None if limit is None else limit - len(found)
        chosen, newest = newest[:some], newest[some:] if some else []
        _fetch_replaced(handle, [deeds[at] for at in chosen])
        # One that is gone by now, and whose parts nobody remembers, is no more.
        told = ((at_ms, deeds[at_ms, key]) for at_ms, key in chosen)
        found += [
            _info(handle, state, at_ms, d, txn.get(at_ms, {}), dead, operations.get(at_ms, ""))
            for at_ms, d in told
            if d.is_known
        ]
    return found


def _deeds(handle: Handle, state: TableState) -> dict[tuple[int, str], _CommitRecord]:
    """Time, and the log file where several have one time -> what was done then."""
    of_time: dict[int, list[StoredLogFile]] = {}
    for stored in state.effective.values():
        of_time.setdefault(stored.file.t_ms, []).append(stored)
    owner = _owners(of_time)
    deeds: dict[tuple[int, str], _CommitRecord] = {}
    for marker in state.parts.values():
        came_ms, went_ms = marker.created_ms, marker.tombstoned_ms
        deeds.setdefault((came_ms, owner.get((marker.key, came_ms), "")), _CommitRecord()).added.append(marker)
        if went_ms is not None:
            deeds.setdefault((went_ms, owner.get((marker.key, went_ms), "")), _CommitRecord()).removed.append(marker)
    for at_ms, files in of_time.items():
        for stored in files:
            deed = deeds.setdefault((at_ms, stored.key if len(files) > 1 else ""), _CommitRecord())
            deed.own, deed.key = stored, stored.key
    # Of those that were replaced, and are still stored, the names are known.
    replaced: dict[int, list[str]] = {}
    for key in state.ignored & state.log_tombstones.keys() & state.listed_ms.keys():
        replaced.setdefault(handle.keys.parse_log_file(key).t_ms, []).append(key)
    for at_ms, names in replaced.items():
        if len(names) == 1 and at_ms not in of_time:
            deeds.setdefault((at_ms, ""), _CommitRecord()).key = names[0]
    return deeds


def _fetch_replaced(handle: Handle, deeds: Iterable[_CommitRecord]) -> None:
    """Log files that count no more tell what their commits were, as long as they are stored."""
    wanted = {d.key: d for d in deeds if d.own is None and d.key is not None}
    for key, stored in handle.store.get_many(list(wanted)).items():
        wanted[key].own = StoredLogFile(key, decode(stored.body, key, handle.keys), stored.stored_ms)


def _owners(of_time: Mapping[int, Sequence[StoredLogFile]]) -> dict[tuple[str, int], str]:
    """Part and time -> the log file of that time that names it; where there are several of one time."""
    return {
        (marker.key, at_ms): stored.key
        for at_ms, files in of_time.items()
        if len(files) > 1
        for stored in files
        for marker in stored.file.markers
        if at_ms in (marker.created_ms, marker.tombstoned_ms)
    }


def _txn(state: TableState) -> dict[int, dict[str, int]]:
    """Time -> what was committed exactly once then, as far as some log file still says it."""
    found: dict[int, dict[str, int]] = {}
    for stored in state.effective.values():
        for application, (sequence, at_ms) in stored.file.txn.items():
            found.setdefault(at_ms, {})[application] = sequence
    return found


def _dead_digests(state: TableState) -> dict[str, int]:
    """Digest of a superseded part -> when it was superseded: a restored copy has the same."""
    found: dict[str, int] = {}
    for marker in state.dead:
        if marker.digest is not None and marker.tombstoned_ms is not None:
            found[marker.digest] = min(marker.tombstoned_ms, found.get(marker.digest, marker.tombstoned_ms))
    return found


def _info(
    handle: Handle,
    state: TableState,
    at_ms: int,
    deed: _CommitRecord,
    txn: Mapping[str, int],
    dead: Mapping[str, int],
    operation: str,
) -> CommitInfo:
    own = None if deed.own is None else deed.own.file
    added, removed, exact = deed.added, deed.removed, at_ms > state.horizon_ms
    if own is not None and not exact:
        # Its own log file has forgotten nothing.
        added = [m for m in own.markers if m.created_ms == at_ms]
        removed = [m for m in own.markers if m.tombstoned_ms == at_ms]
        exact = True
    paths = {partition_of(handle.keys.data_prefix, m.key) for m in (*added, *removed)}
    recorded = _recorded_kind(operation if own is None else own.operation, added)
    return CommitInfo(
        at_ms=at_ms,
        kind=recorded or _derived_kind(deed.own, added, removed, at_ms, dead, exact=exact),
        added_parts=len(added),
        added_rows=total_rows(added),
        added_bytes=total_bytes(added),
        removed_parts=len(removed),
        removed_rows=total_rows(removed),
        removed_bytes=total_bytes(removed),
        partitions=len(paths),
        txn=dict(txn) if own is None else {name: last[0] for name, last in own.txn.items() if last[1] == at_ms},
        writer=None if deed.key is None else handle.keys.parse_log_file(deed.key).writer,
        log_file=deed.key,
        exact=exact,
        kind_recorded=recorded is not None,
    )


def _recorded_kind(operation: str, added: Sequence[Marker]) -> CommitKind | None:
    """Return the operation that the log records; None if this version does not know it, or the parts contradict it.

    They do if a plain append of the same millisecond was merged into one log file with the commit.
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
    told = exact and before is not None and after is not None
    if told and before == after and len(added) < len(removed):
        return "merge"
    # No other operation writes parts of rows that were there before, and supersedes none.
    if all(dead.get(m.digest or "", at_ms) < at_ms for m in added) or (exact and not removed):
        return "restore"
    return "delete" if told and (after or 0) < (before or 0) else "rewrite"


def _kind_of_log_file(own: StoredLogFile | None) -> CommitKind:
    """Of a commit that changed no part."""
    if own is None:
        return "log"
    if own.file.void:
        return "void"
    replaces = any(t.created_ms == own.file.t_ms for t in own.file.tombstones)
    return "log" if isinstance(own.file.spec, msgspec.UnsetType) or replaces else "alter"


# ------------------------------------------------------------------------------------------------ log files


def log_files(handle: Handle) -> list[LogFileInfo]:
    """The objects of the log, newest first, those too that count no more. Two LISTs; what counts is fetched.

    Raises what `LogReader.read` raises.
    """
    state = handle.read(fresh=True)
    listed = {info.key: info.bytes for info in handle.store.list(handle.keys.log_prefix)}
    # One that came or went between the two is left out.
    found = [_log_file(handle, state, key, listed[key]) for key in state.listed_ms if key in listed]
    return sorted(found, key=lambda f: (f.at_ms, f.key), reverse=True)


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
