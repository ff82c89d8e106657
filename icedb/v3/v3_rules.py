"""What programs of IceDB v3 expect beside names and arguments: what a merge takes, how partitions are spelled.

A partition is the text that the program's function gave. v3 made it the path as it is, and this library encodes it. So
`u=a%20b` may be a text that v3 stored, or our path of the text `u=a b`: who wrote the parts there decides. What we put
in a path of v3 that nothing else would tell from ours has names which begin with `raw-`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import msgspec

from icedb.errors import CommitConflict, InvalidOption
from icedb.format.keys import partition_of, stored_path, text_as_path
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.operations.commits.actions import Replace
from icedb.operations.rewrite.rewrite_commit import Rewritten
from icedb.operations.rewrite.rewrite_partition import write_answer
from icedb.operations.rewrite.rewriter import Rewrite, rewrite_parts
from icedb.transaction.append import Commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.open_table import path_columns
from icedb.transaction.table_handle import Handle, Part
from icedb.util.clock import Clock
from icedb.writer.staging import StagedBatch

__all__ = [
    "RewriteOfText",
    "column_name",
    "drop_paths",
    "keep_raw_paths",
    "plan_v3_merge",
    "rewrite_text",
    "seeing_path",
    "stored_paths",
]

logger = logging.getLogger(__name__)

# Each lost attempt means that others merged or dropped the same parts meanwhile.
REWRITE_ATTEMPTS_MAX = 5
_RAW = "raw-"


@dataclass(frozen=True, slots=True)
class RewriteOfText:
    """A rewrite of parts that one text of a v3 program means; `key` is the path that this library makes of it."""

    rewrite: Rewrite
    key: str

    @property
    def text(self) -> str:
        """As the program says it."""
        return unquote(self.key)

    def naming(self, handle: Handle) -> Handle:
        """The table for whoever writes the new part: its name says that the path is the text itself, where it is."""
        if stored_path(self.rewrite.partition) == self.key:
            return handle
        other = copy.copy(handle)
        other.clock = _RawIds(handle.clock)
        return other

    def rewriter(self, handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """`rewrite_parts`, with that name."""
        return rewrite_parts(self.naming(handle), rewrites, schema)


@dataclass(frozen=True, slots=True)
class _RawIds:
    """Ids of parts whose path is a text as it is."""

    clock: Clock

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def new_id(self) -> str:
        return _RAW + self.clock.new_id()


def plan_v3_merge(
    parts: Iterable[Part], *, max_file_size: int, max_file_count: int, asc: bool = False
) -> RewriteOfText | None:
    """What one call of `IceDBv3.merge` merges. Pure. Paths that mean the same text are one partition."""
    parts = list(parts)
    keys = _keys(parts)
    partitions: dict[str, list[Part]] = {}
    for part in parts:
        partitions.setdefault(keys[part.partition], []).append(part)
    for key, of_partition in sorted(partitions.items(), key=lambda p: len(p[1]), reverse=not asc):
        taken: list[Part] = []
        size = 0
        for part in sorted(of_partition, key=lambda p: p.bytes):
            taken.append(part)
            size += part.bytes
            if size >= max_file_size or 1 < len(taken) >= max_file_count:
                break
        if len(taken) > 1:
            return _rewrite_of(key, taken)
    return None


def _rewrite_of(key: str, parts: Sequence[Part]) -> RewriteOfText:
    """Into their own path; of several into ours, unless v3's has other values."""
    own = sorted({p.partition for p in parts})
    path = own[0] if len(own) == 1 else next((p for p in own if stored_path(p) != key), key)
    return RewriteOfText(Rewrite(path, tuple(parts)), key)


def rewrite_text(handle: Handle, text: str, sql: str) -> Commit | None:
    """Put the answer of a query in the place of all parts that a text means; None when there are none.

    Raises as `write_answer`, and CommitConflict, CommitStateUnknown.
    """
    for _ in range(REWRITE_ATTEMPTS_MAX):
        state = handle.read(fresh=True)
        planned = _parts_of_text(handle, state, text)
        if planned is None:
            return None
        rewrite = planned.rewrite
        written = write_answer(
            planned.naming(handle), rewrite, sql, state.schema, dry_run=False, new_columns=True, lenient=True
        )
        # Of an empty answer nothing stays, new columns neither.
        schema = written.schema if written.markers else {}
        operation = Rewritten(
            {rewrite: written.markers}, operation="rewrite", oldest_part_ms=written.oldest_part_ms, schema=schema
        )
        commit = commit_exclusive(handle, operation)
        if operation.kept:
            return commit
        logger.info("%s: '%s' changed, its rewrite is repeated", handle.table, text)
    raise CommitConflict(
        f"{handle.table}: '{text}' was merged or replaced by others {REWRITE_ATTEMPTS_MAX} times while it was "
        "rewritten. Nothing was published. Try again when fewer programs maintain it."
    )


def _parts_of_text(handle: Handle, state: TableState, text: str) -> RewriteOfText | None:
    parts = [handle.part(m) for m in state.live]
    keys = _keys(parts)
    key = text_as_path(text)
    if key not in keys.values():
        key = keys.get(text, key)  # a path of ours, as it is stored
    found = [p for p in parts if keys[p.partition] == key]
    return _rewrite_of(key, found) if found else None


def drop_paths(handle: Handle, paths: Iterable[str]) -> Commit:
    """Tombstone the live parts in these paths. Raises CommitConflict, CommitStateUnknown, the store's errors."""
    prefix, chosen = handle.keys.data_prefix, frozenset(paths)
    return commit_exclusive(
        handle, Replace(lambda now: [m.key for m in now.live if partition_of(prefix, m.key) in chosen])
    )


def keep_raw_paths(handle: Handle, stage: StagedBatch) -> None:
    """Let staged rows whose text is a path that v3 stored come to lie there."""
    if not any("%25" in r.partition for r in stage.ranges):
        return  # only of a text with `%` there are two paths with different values
    raw = {text_as_path(p): p for p in _raw_paths(map(handle.part, handle.read().live))}
    stage.ranges = [replace(r, partition=raw.get(r.partition, r.partition)) for r in stage.ranges]


def stored_paths(parts: Iterable[Part]) -> dict[str, frozenset[str]]:
    """The texts of partitions, and the paths under which each is stored."""
    stored: dict[str, frozenset[str]] = {}
    for path, key in sorted(_keys(parts).items()):
        stored[unquote(key)] = stored.get(unquote(key), frozenset()) | {path}
    return stored


def _keys(parts: Iterable[Part]) -> dict[str, str]:
    """Path -> the path that this library would make of its text."""
    parts = list(parts)
    raw = _raw_paths(parts)
    return {p: text_as_path(p) if p in raw else stored_path(p) for p in {part.partition for part in parts}}


def _raw_paths(parts: Iterable[Part]) -> set[str]:
    """Those that are texts as they are. A program of v3 counts no rows."""
    return {p.partition for p in parts if p.rows is None or p.key.rpartition("/")[2].startswith(_RAW)}


def seeing_path(handle: Handle, rewrite: Rewrite) -> Handle:
    """The table whose queries see what the partition's path says."""
    return handle.with_spec(
        msgspec.structs.replace(handle.spec, path_columns=path_columns(rewrite.partition, [rewrite.partition]))
    )


def column_name(text: str) -> str:
    """A sort column as v3 programs write it: a name, or an identifier in double quotes."""
    if not isinstance(text, str):
        raise InvalidOption(f"the sort column {text!r} is no text. Give names of columns.")
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"') if quoted else text
