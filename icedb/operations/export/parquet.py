"""Export of a table as a folder of plain Parquet with Hive partitions.

Parts are copied as they are: by the store itself if it holds both places, else through this machine, a few at a time. A
part is rewritten if only some of its rows are selected, or if its path does not have the values of its rows. The latter
happens in parts of an older partitioning, and if a writer put rows into a partition that differs from their own column.
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
from icedb.reader.part_footers import parts_with_columns
from icedb.reader.scan_sql import relation, translate_read_error
from icedb.reader.snapshot import Snapshot, Where, take_snapshot
from icedb.sql.column_stats import TEXT_MAX, Bounds, bounds_of
from icedb.sql.connection_pool import reader
from icedb.sql.connections import quote_name, quote_text, renew_access
from icedb.sql.predicates import Predicate, check_predicate
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, fetch
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import Advance, progress
from icedb.util.temporary_files import temporary_folder
from icedb.writer.encoding.parquet_encoder import MERGE_LEVEL, ParquetSettings
from icedb.writer.encoding.parquet_file import write_query

__all__ = ["OnPart", "ParquetExportReport", "export_parquet"]

logger = logging.getLogger(__name__)

#: A callback after each part, with the parts done, their total, and the bytes done.
OnPart = Callable[[int, int, int], object]

# The store copies; parallel requests hide the latency.
COPIES_AT_ONCE = 16
# A part that passes through this machine takes disk space.
STREAMS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ParquetExportReport:
    """The result of an export to Parquet, or its plan."""

    table: str
    target: str
    as_of_ms: int
    copied_parts: int
    rewritten_parts: int
    #: None in a dry run that would have to read rows, or if the row count of a part is unknown.
    files: int | None
    rows: int | None
    bytes: int | None
    #: Files of an earlier export in the target, which overwrite deletes.
    replaced_files: int = 0
    dry_run: bool = False


@dataclass
class _ExportedFiles:
    """The files in the target so far."""

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
        header = {"table": handle.table, "as_of": snapshot.as_of_ms, "id": handle.clock.new_id()}
        place.begin(msgspec.json.encode(header))
        try:
            with progress("exporting parts", len(parts), "parts") as export.advance:
                export.copy([p for p in parts if p.key in paths], paths)
                export.rewrite([p for p in parts if p.key not in paths])
        except BaseException:
            _delete_written(place, export.written.keys)
            raise
        place.finish()
    is_exact = not dry_run or len(paths) == len(parts)
    copied_rows = total_rows(p for p in parts if p.key in paths)
    written = export.written
    return ParquetExportReport(
        table=handle.table,
        target=place.uri,
        as_of_ms=snapshot.as_of_ms,
        copied_parts=len(paths),
        rewritten_parts=len(parts) - len(paths),
        files=(len(parts) if dry_run else len(written.keys)) if is_exact else None,
        rows=copied_rows + written.rows if is_exact and copied_rows is not None else None,
        bytes=(sum(p.bytes for p in parts) if dry_run else written.bytes) if is_exact else None,
        replaced_files=sum(key.endswith(".parquet") for key in place.earlier),
        dry_run=dry_run,
    )


def _predicate(snapshot: Snapshot, where: Where) -> Predicate:
    visible = snapshot.visible_partitions
    text = str(where) if isinstance(where, duckdb.Expression) else where
    return check_predicate(text, snapshot.schema, visible, table=snapshot.table, at_once=True)


def _delete_written(place: ExportTarget, keys: Sequence[str]) -> None:
    try:
        place.abort(keys)
    except IceDBError as error:
        logger.warning("%s: %d files of a failed export could not be deleted: %s", place.uri, len(keys), error)


def _paths(snapshot: Snapshot, parts: Sequence[Part]) -> dict[str, str]:
    """Return the path in the target, by key, of each part that can be copied as it is: without a dropped column."""
    names = list(snapshot.partition_schema)
    # Readers of Hive partitions prefer the path to a column of the same name in the files.
    stored = {c.casefold(): c for c in snapshot.schema}
    twice = {n: stored[n.casefold()] for n in names if n.casefold() in stored}
    bounds_of_parts = bounds_of([p.stats for p in parts], {c: snapshot.schema[c] for c in twice.values()})
    with_dropped = {p.key for p in parts_with_columns(snapshot.handle, parts, snapshot.spec.dropped)}
    paths = {}
    for part, bounds in zip(parts, bounds_of_parts, strict=True):
        values = part.values
        if part.key in with_dropped or not values.keys() >= set(names):
            continue
        if all(_is_constant(values[n], column_bounds, part) for n, column_bounds in zip(twice, bounds, strict=True)):
            as_stored = list(values) == names
            paths[part.key] = part.partition if as_stored else encode_partition({n: values[n] for n in names})
    return paths


def _is_constant(value: str | None, bounds: Bounds | None, part: Part) -> bool:
    """Return True if by the log a column has this value in all rows of a part."""
    return bounds == (value, value, part.rows if value is None else 0) and len(value or "") < TEXT_MAX


class _Export:
    """The copies and rewrites of one export, with a record of the files put."""

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
        self.written = _ExportedFiles()

    # -------------------------------------------------------------------------------------------- copy

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
                    self._report(pending[done])
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _key(self, partition: str, name: str) -> str:
        """Return a file's key, and record it as written. Imported files may have equal names."""
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
            raise self._read_error(part, ObjectNotFound(part.key)) from None

    @contextmanager
    def _fetched(self, part: Part, folder: Path) -> Iterator[Path]:
        if self._handle.location.scheme == "file":
            yield Path(*self._handle.part_paths.original([part]))
            return
        path = folder / part.key.rpartition("/")[2]
        fetch(self._handle.store, part.key, path)
        yield path
        path.unlink()

    def _put(self, key: str, path: Path) -> None:
        try:
            self._target.store.create(key, path)
        except ObjectExists:
            # The client library repeated our own put after a late response; no other program writes here.
            if self._target.store.head(key).bytes != path.stat().st_size:
                raise InvariantViolated(f"{self._target.uri}: another program wrote '{key}'.") from None

    # -------------------------------------------------------------------------------------------- rewrite

    def rewrite(self, parts: Sequence[Part]) -> None:
        """Rewrite parts one after the other, so that at most one file is on disk."""
        if not parts:
            return
        with (
            temporary_folder("export") as folder,
            reader(self._handle.location, read_bytes=sum(p.bytes for p in parts), folder=folder, lossless=True) as con,
        ):
            for part in parts:
                renew_access(con, self._handle.location)
                try:
                    self._rewrite(con, part, folder / "part.parquet")
                except (duckdb.Error, ObjectNotFound) as error:
                    raise self._read_error(part, error) from None
                self._report(part)

    def _rewrite(self, con: duckdb.DuckDBPyConnection, part: Part, path: Path) -> None:
        snapshot = self._snapshot
        rows = relation(
            self._handle, [part], snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions
        )
        condition = f" WHERE (\n{self._predicate.sql}\n)" if self._predicate else ""
        selected = f"SELECT * FROM ({rows}) AS t{condition}"
        columns = ", ".join(map(quote_name, snapshot.schema))
        names = list(snapshot.partition_schema)
        texts = [f"CAST({quote_name(n)} AS VARCHAR)" for n in names]
        values = con.execute(f"SELECT DISTINCT {', '.join(texts)} FROM ({selected})").fetchall() if names else [()]
        for of_partition in values:
            in_partition = " AND ".join(
                f"{text} IS NOT DISTINCT FROM {'NULL' if value is None else quote_text(value)}"
                for text, value in zip(texts, of_partition, strict=True)
            )
            query = f"SELECT {columns} FROM ({selected}) WHERE {in_partition or 'true'}"
            settings = ParquetSettings(self._handle.table, self._handle.spec, MERGE_LEVEL)
            new = write_query(con, query, snapshot.schema, settings, {}, rows=part.rows or 0, path=path).file
            if not new.rows:
                path.unlink()
                continue
            key = self._key(
                encode_partition(dict(zip(names, of_partition, strict=True))), f"{self._handle.clock.new_id()}.parquet"
            )
            self._put(key, path)
            self.written.rows += new.rows
            self.written.bytes += new.bytes
            path.unlink()

    def _read_error(self, part: Part, error: Exception) -> Exception:
        return translate_read_error(self._handle, [part], error, as_of_ms=self._snapshot.as_of_ms)

    def _report(self, part: Part) -> None:
        self._done += 1
        self._done_bytes += part.bytes
        self.advance(1)
        if self._on_part is not None:
            self._on_part(self._done, self._total, self._done_bytes)
