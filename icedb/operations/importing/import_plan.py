"""The plan of an import: which files are imported, into which partition and with which columns, and which are skipped.

Planning changes nothing. It finds every problem of a file before any file is copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from icedb.errors import (
    InvalidBatch,
    InvalidOption,
)
from icedb.format.keys import Keys, encode_partition, partition_of
from icedb.format.records import Marker, Stats
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns
from icedb.operations.importing.file_columns import check_file_columns, union_of_columns
from icedb.operations.importing.hive_partitions import check_rows_of, partition_values
from icedb.operations.importing.inspect_files import ExamineTask, FooterTask
from icedb.operations.importing.list_files import ImportSource, SourceFile, was_listed
from icedb.operations.importing.parquet_footer import ContentRequest
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.sql.column_stats import statistics_columns
from icedb.storage.object_store import STORED_MS_PRECISION
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_schema import check_not_dropped

__all__ = ["NamedParts", "ImportPlan", "SkippedFile", "PlannedFile", "import_name", "imports_of", "plan_import"]

# The maximum size of one copy or put request in S3.
COPY_BYTES_MAX = 5 * 1024**3
_IMPORT = "import "
# The file names of writers: of this library, optionally with a job's prefix before the id, and of IceDB v3.
_WRITERS_NAME = re.compile(r"[0-9A-Za-z]{0,16}[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._=-]+\.parquet")


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was not imported, with the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that becomes a part. `key` is its own key below `_data`; None: it is copied to a new key."""

    source: SourceFile
    partition: str
    key: str | None
    rows: int
    stats: Stats
    digest: str | None
    #: See Footer.
    foreign_ids: bool

    def marker(self, key: str, digest: str | None = None) -> Marker:
        """Return the marker of the part under this key."""
        return Marker(
            key,
            self.source.bytes,
            0,
            rows=self.rows,
            stats=self.stats,
            digest=self.digest if digest is None else digest,
        )


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The files to import, the skipped files, and the `columns` of the imported files."""

    files: tuple[PlannedFile, ...]
    skipped: tuple[SkippedFile, ...]
    columns: Mapping[str, str]


class NamedParts:
    """The parts that the log names, by key, and by the id of the file of which they are a copy."""

    def __init__(self, state: TableState) -> None:
        self._by_key = state.parts
        self._copies: dict[tuple[str, int], Marker] = {}
        for marker in state.parts.values():
            copy = (marker.key.rpartition("/")[2][:16], marker.bytes)
            if copy not in self._copies or marker.tombstoned_ms is None:
                self._copies[copy] = marker

    def reason(self, key: str | None, file_id: str, size: int) -> str | None:
        """Return why a file is not imported; None if the log does not name it."""
        marker = self._by_key.get(key or "") or self._copies.get((file_id, size))
        if marker is None:
            return None
        if marker.tombstoned_ms is None:
            return "the table has it already"
        return "the table had it, and it was merged, dropped or deleted since"


def import_name(source: ImportSource) -> str:
    """Return the application under which the log records the last import from this source."""
    return f"{_IMPORT}{source.name}"


def imports_of(state: TableState) -> dict[str, tuple[int, int]]:
    """Return the imports that the log records: their number for each source, and when its files were last listed."""
    return {application: last for application, last in state.txn.items() if application.startswith(_IMPORT)}


def _imported_ms(state: TableState, file: SourceFile, source: ImportSource) -> int:
    """Return when files were last imported from an address that contains this file, if it existed then."""
    names = ((a.removeprefix(_IMPORT), t_ms) for a, (_, t_ms) in imports_of(state).items())
    return max((t_ms for name, t_ms in names if was_listed(name, file, source)), default=0)


def plan_import(
    handle: Handle,
    state: TableState,
    source: ImportSource,
    *,
    trust_paths: bool,
    verify: bool,
    first_time: bool,
    engine: Engine = LOCAL_ENGINE,
) -> ImportPlan:
    """Examine every file of a source. Raises InvalidRequestError that names the file, and the store's errors."""
    files, skipped = _choose(handle, state, source, first_time=first_time)
    footers = engine.run(handle, FooterTask(source.origin), files)
    read = list(zip(files, footers, strict=True))
    skipped += [SkippedFile(f.path, "it has no rows") for f, footer in read if not footer.rows]
    full = [(f, footer) for f, footer in read if footer.rows]
    table_columns = all_columns(handle.spec, state.schema)
    columns = union_of_columns(handle, full, table_columns)
    check_not_dropped(handle.spec, columns, table=handle.table)
    if not full:
        return ImportPlan((), tuple(skipped), {})
    schema = {**table_columns, **columns}
    check_file_columns(handle, full, table_columns, columns)
    partitions = partition_values(handle, [f for f, _ in full], schema)
    checked = () if trust_paths else [e for e in handle.expressions if not e.path_only]
    statistics = statistics_columns(handle.spec.sort_by, columns, handle.expressions)
    demand = ContentRequest(schema, checked, statistics, handle.spec.required, verify)
    examined = engine.run(handle, ExamineTask(source.origin, demand), full)
    planned = []
    for (file, footer), content in zip(full, examined, strict=True):
        values = partitions[file.id]
        check_rows_of(handle, file, [values[e.name] for e in checked], content.partitions)
        path = encode_partition(values)
        key = _key_in_place(handle.keys, file, path)
        _check_size(handle, file, copied=key is None)
        planned.append(PlannedFile(file, path, key, footer.rows, content.stats, content.digest, footer.foreign_ids))
    return ImportPlan(tuple(planned), tuple(skipped), columns)


# ------------------------------------------------------------------------------------------------ which files


def _choose(
    handle: Handle, state: TableState, source: ImportSource, *, first_time: bool
) -> tuple[list[SourceFile], list[SkippedFile]]:
    """Return the files that the table does not have yet, and the skipped ones with their reasons."""
    named = NamedParts(state)
    created_ms = _created_ms(handle, state)
    files, skipped = [], []
    for file in source.files:
        reason = named.reason(file.table_key, file.id, file.bytes)
        if reason is None and _may_be_a_writers(handle, file, created_ms):
            reason = (
                "it is named like the parts that this table's writers put, and may be one that is being written or "
                "was abandoned; to import it, move it out of the table"
            )
        if reason is None and not first_time and file.stored_ms < state.horizon_ms:
            reason = _forgotten(handle, file, _imported_ms(state, file, source))
        if reason is None:
            files.append(file)
        else:
            skipped.append(SkippedFile(file.path, reason))
    return files, skipped


def _forgotten(handle: Handle, file: SourceFile, imported_ms: int) -> str:
    """Return why a file older than the horizon is skipped. Raises InvalidOption if it may never have been imported."""
    if file.stored_ms < imported_ms:
        return "it was there at the last import from this address, and the log has forgotten merged parts since"
    raise InvalidOption(
        f"{handle.table}: '{file.path}' is older than the horizon, before which cleanup has removed superseded parts "
        "from the log. This file may have been one of them, so its rows could be in the table already. If it was never "
        "imported, import it with first_time=True."
    )


def _created_ms(handle: Handle, state: TableState) -> int:
    """Return when the table was created, by the store's clock; 0 if unknown. No writer of the table put an object
    before.

    A spec that is younger than a commit was recreated (`repair_spec`), so its time is not the table's.
    """
    try:
        stored_ms = handle.store.head(handle.keys.spec).stored_ms
    except ObjectNotFound:
        return 0
    first_ms = min([*state.times_ms, *(m.created_ms for m in state.parts.values())], default=stored_ms)
    return stored_ms if stored_ms <= first_ms + handle.timing.max_skew_ms + STORED_MS_PRECISION else 0


def _may_be_a_writers(handle: Handle, file: SourceFile, created_ms: int) -> bool:
    if file.table_key is None or not file.table_key.startswith(handle.keys.data_prefix):
        return False
    name = file.table_key.rpartition("/")[2].removesuffix(".parquet")
    return _WRITERS_NAME.fullmatch(name) is not None and file.stored_ms >= created_ms


def _key_in_place(keys: Keys, file: SourceFile, partition: str) -> str | None:
    """Return the file's own key if it can be a part's: below `_data`, in its partition's folder, with a plain name."""
    key = file.table_key
    if key is None or not key.startswith(keys.data_prefix) or _PLAIN_NAME.fullmatch(key.rpartition("/")[2]) is None:
        return None
    return key if partition_of(keys.data_prefix, key) == partition else None


def _check_size(handle: Handle, file: SourceFile, *, copied: bool) -> None:
    if copied and handle.location.scheme == "s3" and file.bytes > COPY_BYTES_MAX:
        raise InvalidBatch(
            f"{handle.table}: '{file.path}' has {file.bytes} bytes, but S3 copies at most {COPY_BYTES_MAX} bytes in a "
            "request. Insert the file instead: Table.insert takes paths, and writes new parts."
        )
