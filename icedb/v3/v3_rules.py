"""Rules of IceDB v3 that programs rely on: the parts of a merge (compaction), and the spelling of partitions.

A partition is the text that the program's function returned. v3 used it as the path, and this library encodes it. So
`u=a%20b` may be a text that v3 stored, or our path of the text `u=a b`. The parts in the path decide, because v3
records no row counts. The names of parts that this library puts into a path of v3 begin with `raw-`.
"""

from __future__ import annotations

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
from icedb.storage.parts import Part
from icedb.transaction.append import Commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.open_table import path_columns
from icedb.transaction.table_handle import Handle
from icedb.util.clock import Clock
from icedb.writer.staged_batch import StagedBatch

__all__ = [
    "RewriteOfText",
    "column_name",
    "drop_paths",
    "keep_raw_paths",
    "plan_v3_merge",
    "rewrite_text",
    "with_path_columns",
    "stored_paths",
]

logger = logging.getLogger(__name__)

# An attempt is lost if another program merged or dropped the same parts meanwhile.
REWRITE_ATTEMPTS_MAX = 5
_RAW = "raw-"


@dataclass(frozen=True, slots=True)
class RewriteOfText:
    """A rewrite of the parts of one text of a v3 program. `key` is the path into which this library encodes it."""

    rewrite: Rewrite
    key: str

    @property
    def text(self) -> str:
        """The partition's text in the program."""
        return unquote(self.key)

    def naming(self, handle: Handle) -> Handle:
        """Return the handle that names the new part, with `raw-` if its path is the text itself."""
        if stored_path(self.rewrite.partition) == self.key:
            return handle
        return replace(handle, clock=_RawIds(handle.clock))

    def rewriter(self, handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """Call `rewrite_parts` with that naming."""
        return rewrite_parts(self.naming(handle), rewrites, schema)


@dataclass(frozen=True, slots=True)
class _RawIds:
    """The clock for ids of parts in paths of v3."""

    clock: Clock

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def new_id(self) -> str:
        return _RAW + self.clock.new_id()


def plan_v3_merge(
    parts: Iterable[Part], *, max_file_size: int, max_file_count: int, asc: bool = False
) -> RewriteOfText | None:
    """Plan one call of `IceDBv3.merge`. Pure. All paths of a text are one partition."""
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
    """Rewrite parts of one path into it, and parts of two paths into ours, unless v3's has other values."""
    own = sorted({p.partition for p in parts})
    path = own[0] if len(own) == 1 else next((p for p in own if stored_path(p) != key), key)
    return RewriteOfText(Rewrite(path, tuple(parts)), key)


def rewrite_text(handle: Handle, text: str, sql: str) -> Commit | None:
    """Replace all parts of a text by the result of a query. Return None if it has no parts.

    Raises the errors of `write_answer`, CommitConflict, CommitStateUnknown.
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
        # An empty result adds no columns.
        schema = written.schema if written.markers else {}
        operation = Rewritten(
            {rewrite: written.markers}, operation="rewrite", oldest_part_ms=written.oldest_part_ms, schema=schema
        )
        commit = commit_exclusive(handle, operation)
        if operation.kept:
            return commit
        logger.info("%s: partition '%s' changed during its rewrite; retrying", handle.table, text)
    raise CommitConflict(
        f"{handle.table}: other programs merged or replaced '{text}' {REWRITE_ATTEMPTS_MAX} times while it was "
        "rewritten. Nothing was published. Retry when fewer programs maintain the table."
    )


def _parts_of_text(handle: Handle, state: TableState, text: str) -> RewriteOfText | None:
    parts = [handle.part(m) for m in state.live]
    keys = _keys(parts)
    key = text_as_path(text)
    if key not in keys.values():
        key = keys.get(text, key)  # the text may be one of our encoded paths
    of_text = [p for p in parts if keys[p.partition] == key]
    return _rewrite_of(key, of_text) if of_text else None


def drop_paths(handle: Handle, paths: Iterable[str]) -> Commit:
    """Tombstone the live parts in these paths. Raises CommitConflict, CommitStateUnknown, the store's errors."""
    prefix, chosen = handle.keys.data_prefix, frozenset(paths)
    return commit_exclusive(
        handle, Replace(lambda now: [m.key for m in now.live if partition_of(prefix, m.key) in chosen])
    )


def keep_raw_paths(handle: Handle, stage: StagedBatch) -> None:
    """Move staged rows into the path of v3 if it has one for their text."""
    if not any("%25" in r.partition for r in stage.ranges):
        return  # only a text with `%` has two paths with different values
    raw = {text_as_path(p): p for p in _raw_paths(map(handle.part, handle.read().live))}
    stage.ranges = [replace(r, partition=raw.get(r.partition, r.partition)) for r in stage.ranges]


def stored_paths(parts: Iterable[Part]) -> dict[str, frozenset[str]]:
    """Return the paths of each partition's text."""
    stored: dict[str, frozenset[str]] = {}
    for path, key in sorted(_keys(parts).items()):
        stored[unquote(key)] = stored.get(unquote(key), frozenset()) | {path}
    return stored


def _keys(parts: Iterable[Part]) -> dict[str, str]:
    """Return for each path the path into which this library encodes its text."""
    parts = list(parts)
    raw = _raw_paths(parts)
    return {p: text_as_path(p) if p in raw else stored_path(p) for p in {part.partition for part in parts}}


def _raw_paths(parts: Iterable[Part]) -> set[str]:
    """Return the paths that are texts of v3, which records no row count."""
    return {p.partition for p in parts if p.rows is None or p.key.rpartition("/")[2].startswith(_RAW)}


def with_path_columns(handle: Handle, rewrite: Rewrite) -> Handle:
    """Return a handle whose queries have the values of the partition's path as columns."""
    return handle.with_spec(
        msgspec.structs.replace(handle.spec, path_columns=path_columns(rewrite.partition, [rewrite.partition]))
    )


def column_name(text: str) -> str:
    """Parse a sort column of a v3 program: a name, or an identifier in double quotes."""
    if not isinstance(text, str):
        raise InvalidOption(f"the sort column {text!r} is not a string. Give names of columns.")
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"') if quoted else text
