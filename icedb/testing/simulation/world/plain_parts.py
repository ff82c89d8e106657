"""Parts without Parquet: a part is a JSON list of row numbers, put into the store under a real key.

The simulation tests requests to the store, not the encoding of rows. So an operation takes microseconds, and the rows
of a part are easy to read. The functions have the signatures of those that they replace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import duckdb

from icedb.buffering import committing, ids
from icedb.errors import InvalidBatch, InvariantViolated, MissingPart, SnapshotExpired
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.operations.importing import inspect_files
from icedb.operations.integrity import repair_types, verify
from icedb.operations.integrity.cast_parts import Miscast
from icedb.operations.retention import restore
from icedb.operations.rewrite.delete import MatchingRows
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.operations.write import insert, views
from icedb.operations.write.insert import Unpublished
from icedb.operations.write.views import ViewParts
from icedb.sql.types import check_columns
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.thread_pool import SynchronousExecutor
from icedb.writer.part_writer import WrittenParts, discard

__all__ = ["TYPED", "body_of", "plain_finder", "plain_insert", "plain_miscast", "plain_recast", "plain_rewriter",
           "plain_writer", "use_plain_parts", "put_rows", "read_rows", "rows_of", "type_of", "write_rows"]  # fmt: skip


_VIEWED = {"id": "BIGINT"}
#: The only column whose type is stored in a part.
TYPED = "x"


def rows_of(body: bytes) -> tuple[int, ...]:
    """Return the rows of a part. An empty object is put to get the store's time, and no log file names it."""
    content = json.loads(body or b"[]")
    return tuple(content["rows"] if isinstance(content, dict) else content)


def type_of(body: bytes) -> str | None:
    """Return the type of the column `TYPED` in a part; None if it lacks the column."""
    content = json.loads(body or b"[]")
    return content["type"] if isinstance(content, dict) else None


def body_of(rows: Iterable[int], schema: Mapping[str, str]) -> bytes:
    """Encode a part with these rows, and with the type of the column `TYPED` if the schema has it."""
    content = sorted(rows)
    return json.dumps({"rows": content, "type": schema[TYPED]} if TYPED in schema else content).encode()


def put_rows(handle: Handle, key: str, rows: Iterable[int], schema: Mapping[str, str] | None = None) -> Marker:
    """Replace `part_writer.put_part`. An existing object is an earlier attempt of the same put."""
    content = sorted(rows)
    body = body_of(content, schema or {})
    try:
        handle.store.create(key, body)
    except ObjectExists:
        if handle.store.head(key).bytes != len(body):
            raise InvariantViolated(f"'{key}' was written by another process") from None
    return Marker(key, len(body), 0, rows=len(content), digest=hashlib.sha256(body).hexdigest()[:32])


def write_rows(handle: Handle, by_partition: Mapping[str, Iterable[int]], schema: Mapping[str, str]) -> WrittenParts:
    """Put one unpublished part for each partition, as `write_parts` does, or delete all if a put fails."""
    handle.check_writable()
    if not handle.known_schema:
        handle.read()
    check_columns(schema, handle.known_schema, table=handle.table)
    oldest_part_ms = handle.clock.now_ms()
    keys = {partition: handle.keys.part(partition, handle.clock.new_id()) for partition in by_partition}
    try:
        markers = tuple(put_rows(handle, keys[p], rows, schema) for p, rows in by_partition.items())
    except BaseException:
        discard(handle.store, list(keys.values()))
        raise
    return WrittenParts(dict(schema), markers, oldest_part_ms)


def read_rows(handle: Handle, keys: Iterable[str], *, as_of_ms: int | None = None) -> list[int]:
    """Read the rows of parts. Raises SnapshotExpired or MissingPart for a missing one, as queries do."""
    rows: list[int] = []
    for key in keys:
        try:
            rows += rows_of(handle.store.get(key).body)
        except ObjectNotFound:
            raise _explain(handle, key, as_of_ms) from None
    return rows


def _explain(handle: Handle, key: str, as_of_ms: int | None) -> MissingPart | SnapshotExpired:
    marker = (state := handle.read(fresh=True)).parts.get(key)
    if marker is None or marker.tombstoned_ms is not None:
        return SnapshotExpired(f"'{key}' was superseded and deleted", horizon_ms=state.horizon_ms)
    return MissingPart(f"'{key}' is live but missing (as of {as_of_ms})")


def plain_rewriter(handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
    """Replace `rewriter.rewrite_parts`: put one new part for each rewrite, or none if no row is left."""
    keys = [handle.keys.part(r.partition, handle.clock.new_id()) for r in rewrites]
    try:
        return [_rewrite(handle, key, rewrite) for key, rewrite in zip(keys, rewrites, strict=True)]
    except BaseException:
        discard(handle.store, keys)
        raise


def _rewrite(handle: Handle, key: str, rewrite: Rewrite) -> Marker | None:
    rows = read_rows(handle, [p.key for p in rewrite.inputs])
    kept = [r for r in rows if rewrite.drop_where is None or not _matches(r, rewrite.drop_where)]
    return put_rows(handle, key, kept) if kept else None


def _matches(row: int, where: str) -> bool:
    """Evaluate a predicate, which in a simulation is the remainder of a row divided by three: 0, 1 or 2."""
    return row % 3 == int(where)


def plain_finder(handle: Handle, parts: Sequence[Part], where: str, schema: Mapping[str, str]) -> MatchingRows:
    """Replace `icedb.operations.rewrite.delete.find_rows`."""
    counts = {p.key: sum(_matches(r, where) for r in read_rows(handle, [p.key])) for p in parts}
    return MatchingRows(where, {key: count for key, count in counts.items() if count})


def plain_writer(
    handle: Handle, rewrite: Rewrite, query: str, schema: Mapping[str, str], /, *, dry_run: bool
) -> WrittenParts:
    """Replace `icedb.operations.rewrite.rewrite_partition.write_answer`. The query selects the rows to remove."""
    rows = [r for r in read_rows(handle, [p.key for p in rewrite.inputs]) if not _matches(r, query)]
    return write_rows(handle, {rewrite.partition: rows} if rows and not dry_run else {}, schema)


def plain_insert(handle: Handle, data: Sequence[Mapping[str, Any]], **_: object) -> Unpublished:
    """Replace `icedb.operations.write.insert.write_unpublished`. A row has an `id`, a `partition` and a flag `bad`."""
    rows: dict[str, list[int]] = {}
    for row in data:
        if row["bad"]:
            raise InvalidBatch(f"{handle.table}: row {row['id']} is bad (simulated)")
        rows.setdefault(row["partition"], []).append(row["id"])
    return Unpublished(write_rows(handle, rows, {"id": "BIGINT"}), (), 0, None)


def plain_miscast(handle: Handle, parts: Sequence[Part], types: Mapping[str, str]) -> list[Miscast]:
    """Replace `icedb.operations.integrity.cast_parts.find_miscast`."""
    wrong = []
    for part in parts:
        try:
            type_ = type_of(handle.store.get(part.key).body)
        except ObjectNotFound:
            raise _explain(handle, part.key, None) from None
        if TYPED in types and type_ not in (None, types[TYPED]):
            wrong.append(Miscast(part, {TYPED: types[TYPED]}, {}))
    return wrong


def plain_recast(handle: Handle, miscasts: Sequence[Miscast]) -> list[Marker]:
    """Replace `icedb.operations.integrity.cast_parts.recast`."""
    keys = [handle.keys.part(m.part.partition, handle.clock.new_id()) for m in miscasts]
    try:
        return [
            put_rows(handle, key, read_rows(handle, [m.part.key]), m.columns)
            for key, m in zip(keys, miscasts, strict=True)
        ]
    except BaseException:
        discard(handle.store, keys)
        raise


@dataclass(frozen=True, slots=True)
class _PlainBatch:
    """The replacement of a staged batch: rows by partition."""

    handle: Handle
    rows: Mapping[str, list[int]]
    misfits: int = 0


@contextmanager
def plain_staged(handle: Handle, data: Mapping[str, list[int]], **_: object) -> Iterator[tuple[_PlainBatch, int]]:
    """Replace `icedb.operations.write.insert.staged`."""
    yield _PlainBatch(handle, data), 0


def plain_put(stage: _PlainBatch, **_: object) -> WrittenParts:
    """Replace `icedb.writer.part_writer.put_parts`."""
    return write_rows(stage.handle, stage.rows, _VIEWED)


def plain_views(handle: Handle, stage: _PlainBatch, **_: object) -> list[ViewParts]:
    """Replace `icedb.operations.write.views.write_views`. The source has one view, with the same rows."""
    target = plain_view(handle)
    return [ViewParts("view", target, write_rows(target, stage.rows, _VIEWED), ())]


def plain_view(handle: Handle, *_: object) -> Handle:
    """Replace `icedb.operations.write.views._open`. A process that has the source open has its view open too."""
    view: Handle = handle.store.caller.handle  # type: ignore[attr-defined]
    return view


def plain_refresh(handle: Handle, target: Handle, _view: object, state: TableState, _memory_bytes: int) -> WrittenParts:
    """Replace `icedb.operations.write.views._write_all`."""
    rows: dict[str, list[int]] = {}
    for marker in state.live:
        rows.setdefault(handle.partition(marker), []).extend(read_rows(handle, [marker.key]))
    return write_rows(target, rows, _VIEWED)


class _SequentialPool(SynchronousExecutor):
    """A replacement of ThreadPoolExecutor that runs work in the calling thread, so that a run can be repeated."""

    def __init__(self, _workers: int) -> None:
        return

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: object) -> Iterator[Any]:
        return map(fn, *iterables)


_STAND_INS: tuple[tuple[ModuleType, str, object], ...] = (
    (restore, "ThreadPoolExecutor", _SequentialPool),
    (inspect_files, "ThreadPoolExecutor", _SequentialPool),
    (verify, "check_footers", lambda *_: []),
    (committing, "write_unpublished", plain_insert),
    (ids, "connect_reader", lambda _: duckdb.connect(config={"threads": 1})),
    (repair_types, "find_miscast", plain_miscast),
    (repair_types, "check_values", lambda *_: None),
    (repair_types, "recast", plain_recast),
    (insert, "staged", plain_staged),
    (insert, "put_parts", plain_put),
    (insert, "write_views", plain_views),
    (views, "_open", plain_view),
    (views, "_write_all", plain_refresh),
)


@contextmanager
def use_plain_parts() -> Iterator[None]:
    """Replace the library's threads and its Parquet parts while the block runs."""
    before = [(module, name, module.__dict__[name]) for module, name, _ in _STAND_INS]
    for module, name, stand_in in _STAND_INS:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
