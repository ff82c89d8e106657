"""Plan an import: which files are taken, under which partition, with which columns, and which are not, and why.

Changes nothing. Everything that can be wrong with a file is found here, before any of them is copied.
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
from icedb.operations.importing.inspect_files import Examining, ReadingFooters
from icedb.operations.importing.list_files import Source, SourceFile, was_listed
from icedb.operations.importing.parquet_footer import Demand
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.sql.column_stats import statistics_columns
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import STORED_MS_PRECISION, Handle

__all__ = ["NamedParts", "Plan", "SkippedFile", "Takeover", "import_name", "imports_of", "plan_takeovers"]

# What one request can copy, or put, in S3.
COPY_BYTES_MAX = 5 * 1024**3
_IMPORT = "import "
# The names that writers give: of this library, perhaps with a job's mark before the id, and of IceDB v3.
_WRITERS_NAME = re.compile(r"[0-9A-Za-z]{0,16}[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._=-]+\.parquet")


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was not imported, and why that is right."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Takeover:
    """A file that becomes a part. `key`: its own, below `_data`; None: it is copied to a new one."""

    source: SourceFile
    partition: str
    key: str | None
    rows: int
    stats: Stats
    digest: str | None

    def marker(self, key: str, digest: str | None = None) -> Marker:
        """The marker of the part under this key."""
        return Marker(
            key,
            self.source.bytes,
            0,
            rows=self.rows,
            stats=self.stats,
            digest=self.digest if digest is None else digest,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What an import takes, leaves, and brings: `columns` are those of the files."""

    files: tuple[Takeover, ...]
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
        """Why a file is not imported (again); None: the log does not know it."""
        marker = self._by_key.get(key or "") or self._copies.get((file_id, size))
        if marker is None:
            return None
        if marker.tombstoned_ms is None:
            return "the table has it already"
        return "the table had it, and it was merged, dropped or deleted since"


def import_name(source: Source) -> str:
    """The application under which the log remembers when files were last imported from there."""
    return f"{_IMPORT}{source.name}"


def imports_of(state: TableState) -> dict[str, tuple[int, int]]:
    """The imports that the log remembers: how often from each source, and when its files were listed last."""
    return {application: last for application, last in state.txn.items() if application.startswith(_IMPORT)}


def _imported_ms(state: TableState, file: SourceFile, source: Source) -> int:
    """When files were last imported from where this one lies: if it was there, it was imported then."""
    names = ((a.removeprefix(_IMPORT), t_ms) for a, (_, t_ms) in imports_of(state).items())
    return max((t_ms for name, t_ms in names if was_listed(name, file, source)), default=0)


def plan_takeovers(
    handle: Handle,
    state: TableState,
    source: Source,
    *,
    trust_paths: bool,
    verify: bool,
    first_time: bool,
    engine: Engine = LOCAL_ENGINE,
) -> Plan:
    """Look at every file of a source. Raises InvalidRequestError that names the file, the store's errors."""
    files, skipped = _choose(handle, state, source, first_time=first_time)
    footers = engine.run(handle, ReadingFooters(source.origin), files)
    read = list(zip(files, footers, strict=True))
    skipped += [SkippedFile(f.path, "it has no rows") for f, footer in read if not footer.rows]
    full = [(f, footer) for f, footer in read if footer.rows]
    known = all_columns(handle.spec, state.schema)
    columns = union_of_columns(handle, full, known)
    if not full:
        return Plan((), tuple(skipped), {})
    schema = {**known, **columns}
    check_file_columns(handle, full, known, columns)
    partitions = partition_values(handle, [f for f, _ in full], schema)
    checked = () if trust_paths else [e for e in handle.expressions if not e.path_only]
    told = statistics_columns(handle.spec.sort_by, columns, handle.expressions)
    demand = Demand(schema, checked, told, handle.spec.required, verify)
    examined = engine.run(handle, Examining(source.origin, demand), full)
    takeovers = []
    for (file, footer), found in zip(full, examined, strict=True):
        values = partitions[file.id]
        check_rows_of(handle, file, [values[e.name] for e in checked], found.partitions)
        path = encode_partition(values)
        key = _key_in_place(handle.keys, file, path)
        _check_size(handle, file, copied=key is None)
        takeovers.append(Takeover(file, path, key, footer.rows, found.stats, found.digest))
    return Plan(tuple(takeovers), tuple(skipped), columns)


# ------------------------------------------------------------------------------------------------ which files


def _choose(
    handle: Handle, state: TableState, source: Source, *, first_time: bool
) -> tuple[list[SourceFile], list[SkippedFile]]:
    """Those that are not the table's yet, and why the others are left."""
    named = NamedParts(state)
    created_ms = _created_ms(handle, state)
    files, skipped = [], []
    for file in source.files:
        reason = named.reason(file.table_key, file.id, file.bytes)
        if reason is None and _may_be_a_writers(handle, file, created_ms):
            reason = (
                "it is named like the parts that this table's writers put, and may be one that is being written, or "
                "that was given up; to import it, move it out of the table"
            )
        if reason is None and not first_time and file.stored_ms < state.horizon_ms:
            reason = _forgotten(handle, file, _imported_ms(state, file, source))
        if reason is None:
            files.append(file)
        else:
            skipped.append(SkippedFile(file.path, reason))
    return files, skipped


def _forgotten(handle: Handle, file: SourceFile, imported_ms: int) -> str:
    """Why a file is left that was there before the log forgot parts. Raises InvalidOption when that is not known."""
    if file.stored_ms < imported_ms:
        return "it was there at the last import from this address, and the log has forgotten merged parts since"
    raise InvalidOption(
        f"{handle.table}: '{file.path}' is older than the horizon: cleanup has made the log forget superseded parts, "
        "and this file may have been one of them, so its rows could be in the table already. If it was never imported, "
        "import it with first_time=True."
    )


def _created_ms(handle: Handle, state: TableState) -> int:
    """When the table was created, by the store's clock: no writer of it put anything before. 0: unknown.

    A spec that is younger than a commit was made anew (`repair_spec`), and does not say it.
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
    """The file's own key, if it can be a part's: below `_data`, in the folder of its partition, plainly named."""
    key = file.table_key
    if key is None or not key.startswith(keys.data_prefix) or _PLAIN_NAME.fullmatch(key.rpartition("/")[2]) is None:
        return None
    return key if partition_of(keys.data_prefix, key) == partition else None


def _check_size(handle: Handle, file: SourceFile, *, copied: bool) -> None:
    if copied and handle.location.scheme == "s3" and file.bytes > COPY_BYTES_MAX:
        raise InvalidBatch(
            f"{handle.table}: '{file.path}' has {file.bytes} bytes, and S3 copies {COPY_BYTES_MAX} at once. Insert the "
            "file instead: Table.insert takes paths, and writes parts of it."
        )
