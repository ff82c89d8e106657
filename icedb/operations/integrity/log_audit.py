"""Read a log that may be damaged, and list all of its problems.

Every other reader rejects a log at its first problem, because guessing could lose rows. Here each log file is read on
its own and the readable ones are replayed, so that one run shows the extent of the damage. Nothing is changed, and the
state that is computed here is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import msgspec

from icedb.errors import CorruptLog
from icedb.format.codec import decode
from icedb.format.keys import Keys
from icedb.format.log_schema import check_types, describe_conflict
from icedb.format.records import Header, tombstone_flags
from icedb.format.replay import StoredLogFile, TableState, live_to_v3_readers, replay
from icedb.sql.types import type_name
from icedb.storage.obstore_store import StoredObject
from icedb.transaction.claims import StoredClaim
from icedb.transaction.table_handle import Handle
from icedb.util.times import time_text

__all__ = ["Problem", "ReadLog", "Severity", "check_claims", "check_log", "link_problem", "read_log"]

Severity = Literal["error", "warning"]

# The maximum number of bodies in memory; each is released after it is decoded.
FETCH_AT_ONCE = 256

FOREIGN = (
    "Another program, which takes no claims, maintained this table: stop it, and restore the log files that it "
    "deleted, from a backup or from earlier versions of the objects."
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a table, with its object and the remedy. A warning affects no rows and no reader."""

    kind: str
    severity: Severity
    #: The affected object; empty if several are affected.
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The readable part of a log, as a state. `unread` are listed log files that cannot be read."""

    state: TableState
    unread: frozenset[str]
    #: The epochs in the names of the unread log files.
    unread_epochs: frozenset[int]
    problems: tuple[Problem, ...]


def read_log(handle: Handle) -> ReadLog:
    """List the log, read each log file on its own, and replay the readable ones. Raises only the store's errors."""
    listed = handle.store.list(handle.keys.log_prefix)
    listed_ms = {info.key: info.stored_ms for info in listed}
    links = {info.key for info in listed if info.is_link}
    problems = [link_problem(handle.table, key) for key in sorted(links)]
    files: dict[str, StoredLogFile] = {}
    for some in _batches(key for key in listed_ms if key not in links):
        for key, stored in handle.store.get_many(some).items():
            try:
                handle.keys.parse_log_file(key)
                log_file = StoredLogFile(key, decode(stored.body, key, handle.keys), stored.stored_ms)
                check_types(key, log_file.file.schema, type_name)
            except CorruptLog as error:
                problems.append(Problem("damaged_log", "error", key, str(error)))
            else:
                files[key] = log_file
                problems += _check_file(log_file, stored, handle.keys)
    damaged = links | {p.key for p in problems if p.kind == "damaged_log"}
    state, conflicts = _replay_good(handle.table, files, listed_ms)
    gone = listed_ms.keys() - files.keys() - damaged - state.ignored
    problems += [_gone(handle.table, key) for key in sorted(gone)]
    unread = frozenset(damaged | gone)
    return ReadLog(state, unread, _announced(unread, handle.keys), (*problems, *conflicts))


def _announced(log_files: Iterable[str], keys: Keys) -> frozenset[int]:
    epochs = set()
    for key in log_files:
        with suppress(CorruptLog):
            epochs.add(keys.parse_log_file(key).epoch)
    return frozenset(e for e in epochs if e is not None)


def link_problem(table: str, key: str) -> Problem:
    """Return the problem of a symbolic link in a folder of the table."""
    return Problem(
        "symbolic_link",
        "error",
        key,
        f"{table}: '{key}' is a symbolic link. Its target is neither read nor deleted. Replace the link by the file or "
        "folder itself, or remove it.",
    )


def _gone(table: str, key: str) -> Problem:
    return Problem(
        "vanished_log",
        "error",
        key,
        f"{table}: the log file '{key}' is listed and cannot be read, and no log file replaces it. Restore it.",
    )


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while some := list(islice(rest, FETCH_AT_ONCE)):
        yield some


# -------------------------------------------------------------------------------------------- one log file


def _check_file(stored: StoredLogFile, body: StoredObject, keys: Keys) -> Iterator[Problem]:
    """Check what decoding does not: name and content must agree, and the sections must follow one another."""
    key, file, name = stored.key, stored.file, keys.parse_log_file(stored.key)
    try:
        header = msgspec.json.decode(body.body.split(b"\n", 1)[0], type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield Problem("damaged_log", "error", key, f"the header of the log file '{key}' cannot be read ({error}).")
        return
    lines = body.body.count(b"\n") + 1
    parts_from = lines if header.part_line is None else header.part_line
    tombstones_from = parts_from if header.tombstone_line is None else header.tombstone_line
    if not 1 <= header.schema_line == tombstones_from - 1 < parts_from <= lines:
        yield Problem(
            "sections",
            "error",
            key,
            f"the header of the log file '{key}' puts the schema in line {header.schema_line}, the log tombstones from "
            f"line {header.tombstone_line} and the markers from line {header.part_line}. They must follow one another. "
            "Lines may be skipped or misread. Restore the object.",
        )
    if name.epoch != file.epoch and (file.epoch is not None or name.is_ours):
        yield Problem(
            "epoch_name",
            "error",
            key,
            f"the log file '{key}' has the epoch {file.epoch}, and its name has {name.epoch}. It was renamed, or "
            f"written by a program that does not support epochs. {FOREIGN}",
        )
    if name.t_ms != file.t_ms:
        yield Problem(
            "name_time",
            "warning",
            key,
            f"the log file '{key}' has the time {time_text(file.t_ms)} in its header and {time_text(name.t_ms)} in its "
            "name. It was renamed or copied. Readers use the times of its markers. Find the program that did it.",
        )
    # A void replaces an append that adds a column, so it lacks '_m'. The names of v3 programs are arbitrary.
    if file.epoch is not None and not file.void and file.carries_tombstones and not name.merged:
        yield Problem(
            "name_merged",
            "warning",
            key,
            f"the log file '{key}' carries tombstones, but its name lacks '_m'. It is read nevertheless. Programs that "
            "find tombstones by name will miss it.",
        )


# -------------------------------------------------------------------------------------------- all together


def _replay_good(
    table: str, files: Mapping[str, StoredLogFile], listed_ms: Mapping[str, int]
) -> tuple[TableState, list[Problem]]:
    """Replay the readable log files, without the defects that replay rejects: repeated epochs, columns of two types."""
    problems: list[Problem] = []
    epochs: dict[int, str] = {}
    good: list[StoredLogFile] = []
    for key, stored in sorted(files.items()):
        file = stored.file
        if file.epoch is not None and epochs.setdefault(file.epoch, key) != key:
            problems.append(_same_epoch(table, file.epoch, epochs[file.epoch], key))
            file = msgspec.structs.replace(file, epoch=None, live_epochs=())
        good.append(StoredLogFile(key, file, stored.stored_ms))
    state = replay(good, table=table, listed_ms=listed_ms, type_name=type_name, tolerant=True)
    return state, [*problems, *_schema_conflicts(state)]


def _same_epoch(table: str, epoch: int, one: str, other: str) -> Problem:
    return Problem(
        "foreign_maintenance",
        "error",
        other,
        f"{table}: the log files '{one}' and '{other}' both have the epoch {epoch}. {FOREIGN}",
    )


def _schema_conflicts(state: TableState) -> Iterator[Problem]:
    for column, types in state.conflicts.items():
        newest = max(keys[0] for keys in types.values())
        message = f"{state.table}: {describe_conflict(column, types)} The table cannot be read until then."
        yield Problem("schema_conflict", "error", newest, message)


def check_log(log: ReadLog, *, now_ms: int, skew_ms: int) -> list[Problem]:
    """Return the problems of all log files together. Pure."""
    return [
        *_missing_epochs(log),
        *_disagreeing_markers(log.state),
        *_far_ahead(log.state, now_ms + 2 * skew_ms),
        *([] if log.unread else _seen_otherwise_by_v3(log.state)),
    ]


def _missing_epochs(log: ReadLog) -> Iterator[Problem]:
    state = log.state
    present = {f.file.epoch for f in state.files.values()}
    for epoch in sorted(state.live_epochs - present - log.unread_epochs):
        yield Problem(
            "missing_epoch",
            "error",
            next(k for k, f in state.files.items() if f.file.epoch == state.epoch),
            f"{state.table}: the newest epoch, {state.epoch}, needs epoch {epoch}, which no log file has. No program "
            f"can read the table. {FOREIGN}",
        )


def _disagreeing_markers(state: TableState) -> Iterator[Problem]:
    """Find markers of one part that disagree. A part never changes, so the values of its markers must be equal."""
    repeated = _repeated_hashes(state.part_keys())
    if not repeated:
        return
    first: dict[str, tuple[tuple[int, int | None, str | None], str]] = {}
    for key, stored in sorted(state.files.items()):
        for marker in stored.file.markers:
            if hash(marker.key) not in repeated:
                continue
            other = (marker.bytes, marker.rows, marker.digest)
            one, source = first.setdefault(marker.key, (other, key))
            if any(None not in (a, b) and a != b for a, b in zip(one, other, strict=True)):
                yield Problem(
                    "markers_disagree",
                    "error",
                    marker.key,
                    f"{state.table}: the part '{marker.key}' has (bytes, rows, digest) {one} in the log file "
                    f"'{source}' and {other} in '{key}'. One of them was changed after it was written. Compare both "
                    "with the object.",
                )


def _repeated_hashes(keys: Iterable[str]) -> frozenset[int]:
    """Return the hashes that occur more than once. Different keys rarely share one. Keeps no key in memory."""
    return frozenset(one for one, other in pairwise(sorted(map(hash, keys))) if one == other)


def _far_ahead(state: TableState, latest_ms: int) -> Iterator[Problem]:
    for key in sorted(state.far_ahead(latest_ms + 1)):
        ahead_s = (state.files[key].file.t_ms - latest_ms) / 1000
        yield Problem(
            "far_ahead",
            "warning",
            key,
            f"{state.table}: the log file '{key}' is ahead of this machine's clock by {ahead_s:.0f} s more than the "
            "allowed skew. It is read, but not merged until then. Set the clock of its writer or this machine (NTP).",
        )


def _seen_otherwise_by_v3(state: TableState) -> Iterator[Problem]:
    only_theirs = live_to_v3_readers(state)
    only_ours = set()
    for key, _ in tombstone_flags(state.live):
        if key in only_theirs:
            only_theirs.remove(key)
        else:
            only_ours.add(key)
    for key in sorted(only_ours | only_theirs):
        here, there = ("live", "not live") if key in only_ours else ("not live", "live")
        yield Problem(
            "v3_readers",
            "error",
            key,
            f"{state.table}: the part '{key}' is {here}, but {there} to v3 programs, which use the last marker in the "
            "order of names. Do not read the table with v3 until merge and cleanup have replaced the log files that "
            "name it.",
        )


def check_claims(claims: Sequence[StoredClaim], log: ReadLog) -> Iterator[Problem]:
    """Find claims that prove that log files are missing. The claims must have been listed before the log.

    A claim is taken one beyond the newest epoch. If a claim is further ahead, or was published, log files were deleted.
    """
    state = log.state
    newest = max([state.epoch, *log.unread_epochs])
    for claim in claims:
        if claim.epoch is None or claim.epoch <= newest:
            continue
        new = {m.key for m in claim.file.markers if m.created_ms == claim.file.t_ms}
        is_ahead = claim.epoch > newest + 1 or claim.log_key in state.log_tombstones
        if is_ahead or not new.isdisjoint(state.part_keys()):
            yield Problem(
                "foreign_maintenance",
                "error",
                claim.key,
                f"{state.table}: the claim '{claim.key}' shows that epoch {claim.epoch} was committed, but the newest "
                f"epoch in the log is {newest}. The log file '{claim.log_key}' is missing. {FOREIGN}",
            )
