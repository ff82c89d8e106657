"""A table as a folder of plain Parquet, partitioned in Hive's way, for whatever reads that.

Parts are copied as they are: by the store itself where both lie in it, else through this machine, a few at a time. A
part is written again where that would not be right: only some of its rows are wanted, or its path does not say what its
rows do. That is so in parts of an older partitioning, and in rows that somebody put into another partition than their
own column says.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import msgspec

from icedb.errors import IceDBError, InvariantViolated
from icedb.format.keys import encode_partition
from icedb.format.records import total_rows
from icedb.operations.export.targets import ExportTarget, open_target
from icedb.reader.scan_sql import relation, translate_read_error, visible_partitions
from icedb.reader.snapshot import Snapshot, Where, take_snapshot
from icedb.sql.column_stats import TEXT_MAX, Bounds, bounds_of
from icedb.sql.connections import connect_reader, copy_statement, quote_name, quote_text, renew_access
from icedb.sql.predicates import Predicate, check_predicate
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, fetch
from icedb.transaction.table_handle import Handle, Part
from icedb.util.progress import Advance, progress
from icedb.util.temporary_files import temporary_folder

__all__ = ["OnPart", "ParquetExportReport", "export_parquet"]

logger = logging.getLogger(__name__)

#: Told after each part: how many are done, of how many, and their bytes.
OnPart = Callable[[int, int, int], object]

# The store does the work; this hides the latency of asking.
COPIES_AT_ONCE = 16
# A part that goes through this machine takes its disk.
STREAMS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ParquetExportReport:
    """What an export to Parquet wrote, or would write."""

    table: str
    target: str
    as_of_ms: int
    #: Parts that were copied as they are, and those that were written again.
    copied_parts: int
    rewritten_parts: int
    #: Of a dry run, as far as that can be known: None when rows must be looked at, or a part does not say.
    files: int | None
    rows: int | None
    bytes: int | None
    #: Files of an earlier export in the target, which go: with overwrite.
    replaced_files: int = 0
    dry_run: bool = False


@dataclass
class _Written:
    """What lies in the target so far."""

    keys: list[str] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


def export_parquet(
    handle: Handle,
    target: str | os.PathLike[str],
    as_of_ms: int | None,
    *,
    where: Where | None = None,
    storage_options: Mapping[str, str] | None = None,
    overwrite: bool = False,
    on_part: OnPart | None = None,
    dry_run: bool = False,
) -> ParquetExportReport:
    """Write the table's rows to a folder or prefix; see `Table.export_parquet`."""
    place = open_target(handle, target, storage_options, overwrite=overwrite)
    snapshot = take_snapshot(handle, as_of_ms)
    predicate = None if where is None else _predicate(snapshot, where)
    parts = snapshot.files(predicate)
    paths = _paths(snapshot, parts) if predicate is None else {}
    export = _Export(handle, snapshot, place, predicate, on_part, len(parts))
    if not dry_run:
        told = {"table": handle.table, "as_of": snapshot.as_of_ms, "id": handle.clock.new_id()}
        place.begin(msgspec.json.encode(told))
        try:
            with progress("exporting parts", len(parts), "parts") as export.advance:
                export.copy([p for p in parts if p.key in paths], paths)
                export.rewrite([p for p in parts if p.key not in paths])
        except BaseException:
            _give_up(place, export.written.keys)
            raise
        place.finish()
    known = not dry_run or len(paths) == len(parts)
    copied_rows = total_rows(p for p in parts if p.key in paths)
    written = export.written
    return ParquetExportReport(
        table=handle.table,
        target=place.uri,
        as_of_ms=snapshot.as_of_ms,
        copied_parts=len(paths),
        rewritten_parts=len(parts) - len(paths),
        files=(len(parts) if dry_run else len(written.keys)) if known else None,
        rows=copied_rows + written.rows if known and copied_rows is not None else None,
        bytes=(sum(p.bytes for p in parts) if dry_run else written.bytes) if known else None,
        replaced_files=sum(key.endswith(".parquet") for key in place.earlier),
        dry_run=dry_run,
    )


def _predicate(snapshot: Snapshot, where: Where) -> Predicate:
    visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
    text = str(where) if isinstance(where, duckdb.Expression) else where
    return check_predicate(text, snapshot.schema, visible, table=snapshot.table, at_once=True)


def _give_up(place: ExportTarget, keys: Sequence[str]) -> None:
    try:
        place.give_up(keys)
    except IceDBError as error:
        logger.warning("%s: %d files of an export that failed stay behind: %s", place.uri, len(keys), error)


def _paths(snapshot: Snapshot, parts: Sequence[Part]) -> dict[str, str]:
    """Key -> the partition's path in the target, of the parts that can be copied as they are."""
    names = list(snapshot.partition_schema)
    # A column that the files hold too: readers of Hive's paths believe the path.
    stored = {c.casefold(): c for c in snapshot.schema}
    twice = {n: stored[n.casefold()] for n in names if n.casefold() in stored}
    told = bounds_of([p.stats for p in parts], {c: snapshot.schema[c] for c in twice.values()})
    found = {}
    for part, bounds in zip(parts, told, strict=True):
        values = part.values
        if not values.keys() >= set(names):
            continue
        if all(_is_all(values[n], known, part) for n, known in zip(twice, bounds, strict=True)):
            as_stored = list(values) == names
            found[part.key] = part.partition if as_stored else encode_partition({n: values[n] for n in names})
    return found


def _is_all(value: str | None, known: Bounds | None, part: Part) -> bool:
    """Whether the log says that a column has this value in all rows of a part."""
    return known == (value, value, part.rows if value is None else 0) and len(value or "") < TEXT_MAX


class _Export:
    """Puts the files, one after the other, and knows which."""

    def __init__(
        self,
        handle: Handle,
        snapshot: Snapshot,
        target: ExportTarget,
        predicate: Predicate | None,
        on_part: OnPart | None,
        total: int,
    ) -> None:
        self._handle = handle
        self._snapshot = snapshot
        self._target = target
        self._predicate = predicate
        self._on_part = on_part
        self._total = total
        self.advance: Advance = lambda _: None
        self._done = self._done_bytes = 0
        self._names: set[str] = set()
        self.written = _Written()

    # -------------------------------------------------------------------------------------------- as they are

    def copy(self, parts: Sequence[Part], paths: Mapping[str, str]) -> None:
        """Copy whole parts."""
        at_once = COPIES_AT_ONCE if self._target.own else STREAMS_AT_ONCE
        with temporary_folder("export") as folder, ThreadPoolExecutor(at_once) as pool:
            pending = {}
            for part in parts:
                key = self._key(paths[part.key], part.key.rpartition("/")[2])
                pending[pool.submit(self._copy, part, key, folder)] = part
            try:
                for done in as_completed(pending):
                    done.result()
                    self.written.bytes += pending[done].bytes
                    self._tell(pending[done])
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _key(self, partition: str, name: str) -> str:
        """A file's key, which counts as written from now on. A file that was imported may have another's name."""
        folder = f"{self._target.root}{partition}/" if partition else self._target.root
        key = folder + name
        if key in self._names:
            key = f"{folder}{self._handle.clock.new_id()}.parquet"
        self._names.add(key)
        self.written.keys.append(key)
        return key

    def _copy(self, part: Part, key: str, folder: Path) -> None:
        try:
            if self._target.own:
                self._handle.store.copy(part.key, key)
                return
            with self._fetched(part, folder) as path:
                self._put(key, path)
        except ObjectNotFound:
            raise self._explained(part, ObjectNotFound(part.key)) from None

    @contextmanager
    def _fetched(self, part: Part, folder: Path) -> Iterator[Path]:
        if self._handle.location.scheme == "file":
            yield Path(*self._handle.own_paths([part]))
            return
        path = folder / part.key.rpartition("/")[2]
        fetch(self._handle.store, part.key, path)
        yield path
        path.unlink()

    def _put(self, key: str, path: Path) -> None:
        try:
            self._target.store.create(key, path)
        except ObjectExists:
            # Our own put, answered too late, and repeated by the client library: nobody else writes here.
            if self._target.store.head(key).bytes != path.stat().st_size:
                raise InvariantViolated(f"{self._target.uri}: '{key}' was written by somebody else.") from None

    # -------------------------------------------------------------------------------------------- written again

    def rewrite(self, parts: Sequence[Part]) -> None:
        """Write parts again, one after the other: one file at most is on disk."""
        if not parts:
            return
        with (
            temporary_folder("export") as folder,
            connect_reader(self._handle.location, folder=folder) as con,
        ):
            for part in parts:
                renew_access(con, self._handle.location)
                try:
                    self._rewrite(con, part, folder / "part.parquet")
                except (duckdb.Error, ObjectNotFound) as error:
                    raise self._explained(part, error) from None
                self._tell(part)

    def _rewrite(self, con: duckdb.DuckDBPyConnection, part: Part, path: Path) -> None:
        snapshot = self._snapshot
        rows = relation(
            self._handle, [part], snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions
        )
        condition = f" WHERE (\n{self._predicate.sql}\n)" if self._predicate else ""
        wanted = f"SELECT * FROM ({rows}) AS t{condition}"
        columns = ", ".join(map(quote_name, snapshot.schema))
        names = list(snapshot.partition_schema)
        texts = [f"CAST({quote_name(n)} AS VARCHAR)" for n in names]
        values = con.execute(f"SELECT DISTINCT {', '.join(texts)} FROM ({wanted})").fetchall() if names else [()]
        for of_partition in values:
            is_there = " AND ".join(
                f"{text} IS NOT DISTINCT FROM {'NULL' if value is None else quote_text(value)}"
                for text, value in zip(texts, of_partition, strict=True)
            )
            query = f"SELECT {columns} FROM ({wanted}) WHERE {is_there or 'true'}"
            answer = con.execute(copy_statement(query, path, self._handle.spec)).fetchone()
            if answer is None or not answer[1]:
                continue
            key = self._key(
                encode_partition(dict(zip(names, of_partition, strict=True))), f"{self._handle.clock.new_id()}.parquet"
            )
            self._put(key, path)
            self.written.rows += answer[1]
            self.written.bytes += path.stat().st_size
            path.unlink()

    def _explained(self, part: Part, error: Exception) -> Exception:
        return translate_read_error(self._handle, [part], error, as_of_ms=self._snapshot.as_of_ms)

    def _tell(self, part: Part) -> None:
        self._done += 1
        self._done_bytes += part.bytes
        self.advance(1)
        if self._on_part is not None:
            self._on_part(self._done, self._total, self._done_bytes)
