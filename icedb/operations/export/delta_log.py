"""The Delta log of exports: records of its files, reading, checkpoints.

    _delta_log/<version, 20 digits>.json                 one version: a line for each action
    _delta_log/<version, 20 digits>.checkpoint.parquet   the state at that version

No object is replaced. A `_last_checkpoint` would be, so there is none: readers list the folder. The `commitInfo` of
each version names the table whose export wrote it. A writer feature of our own keeps Delta programs from writing: they
read a table with an unknown writer feature but reject writes to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icedb.errors import CorruptLog, UncoordinatedMaintenance
from icedb.storage.obstore_store import ObjectInfo, fetch
from icedb.transaction.table_handle import Handle

__all__ = ["ENGINE", "WRITER_FEATURE", "Action", "Add", "DeltaCommitInfo", "DeltaLog", "Format", "MetaData", "Protocol",
           "Remove", "checkpoint_key", "encoded", "path_of", "read_delta_log", "version_key",
           "write_checkpoint"]  # fmt: skip

#: The writer feature that Delta programs do not support.
WRITER_FEATURE = "icedbExport"
ENGINE = "icedb"
_NAME = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")


class Format(msgspec.Struct, frozen=True):
    """The encoding of the files."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Protocol(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The features that a program needs to read or write the table."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class MetaData(msgspec.Struct, frozen=True, rename="camel"):
    """The table's columns."""

    id: str
    schema_string: str
    partition_columns: list[str]
    created_time: int
    format: Format = Format()
    configuration: dict[str, str] = {}


class Add(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A file that the version adds."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None


class Remove(msgspec.Struct, frozen=True, rename="camel"):
    """A file that the version removes."""

    path: str
    deletion_timestamp: int
    data_change: bool
    extended_file_metadata: bool
    partition_values: dict[str, str | None]
    size: int


class DeltaCommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The export that wrote a version. `table` is the id in the table's spec, `pin` the pin of the version's files."""

    timestamp: int
    operation: str
    engine_info: str
    table: str
    as_of: int
    pin: str
    txn_id: str
    operation_parameters: dict[str, str] = {}
    is_blind_append: bool = False


class Action(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of a version: exactly one field is set."""

    commit_info: DeltaCommitInfo | None = None
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    add: Add | None = None
    remove: Remove | None = None


class _Author(msgspec.Struct, rename="camel"):
    engine_info: str = ""
    table: str = ""


class _FirstLine(msgspec.Struct, rename="camel"):
    commit_info: _Author | None = None


_actions = msgspec.json.Decoder(Action)
_first_line = msgspec.json.Decoder(_FirstLine)


@dataclass(slots=True)
class DeltaLog:
    """The replayed state of all versions. `version` is -1 if there is none."""

    version: int = -1
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    #: By path, encoded as in the log.
    files: dict[str, Add] = field(default_factory=dict)
    #: The newest checkpoint, -1 if there is none, and the bytes of the versions after it.
    checkpoint: int = -1
    bytes_since_checkpoint: int = 0
    #: The store's time of each existing version and checkpoint.
    versions_ms: dict[int, int] = field(default_factory=dict)
    checkpoints_ms: dict[int, int] = field(default_factory=dict)

    def apply(self, action: Action) -> None:
        """Replay a line of the next version."""
        self.protocol = action.protocol or self.protocol
        self.meta_data = action.meta_data or self.meta_data
        if action.add is not None:
            self.files[action.add.path] = action.add
        if action.remove is not None:
            self.files.pop(action.remove.path, None)


def version_key(handle: Handle, version: int) -> str:
    """Return the key of a version's object."""
    return f"{handle.keys.delta_prefix}{version:020d}.json"


def checkpoint_key(handle: Handle, version: int) -> str:
    """Return the key of the checkpoint at a version."""
    return f"{handle.keys.delta_prefix}{version:020d}.checkpoint.parquet"


def path_of(handle: Handle, key: str) -> str:
    """Return Delta's path of a part, relative to the table and percent-encoded (partition values are so already)."""
    below = key.removeprefix(handle.keys.data_prefix.removesuffix("_data/"))
    return quote(below, safe="/=")


def encoded(actions: Iterable[Action]) -> Iterator[bytes]:
    """Encode the lines of a version."""
    return (msgspec.json.encode(action) + b"\n" for action in actions)


# ------------------------------------------------------------------------------------------------ read


def read_delta_log(handle: Handle, folder: Path) -> DeltaLog:
    """List and read the log; `folder` has temporary files. Raises UncoordinatedMaintenance, CorruptLog."""
    log = DeltaLog()
    sizes: dict[int, int] = {}
    for info in handle.store.list(handle.keys.delta_prefix):
        _note(log, sizes, info, handle.keys.delta_prefix)
    if not log.versions_ms:
        if log.checkpoints_ms:  # a Delta reader would begin there
            raise _missing(handle, version_key(handle, max(log.checkpoints_ms)))
        return log
    log.version = max(log.versions_ms)
    log.checkpoint = max((v for v in log.checkpoints_ms if v <= log.version), default=-1)
    since = range(log.checkpoint + 1, log.version + 1)
    if missing_versions := [v for v in since if v not in log.versions_ms]:
        raise _missing(handle, version_key(handle, missing_versions[0]))
    log.bytes_since_checkpoint = sum(sizes[v] for v in since)
    if log.checkpoint >= 0:
        _read_checkpoint(handle, log, folder)
    # The newest version is read even if a checkpoint covers it, to check its author.
    keys = {version_key(handle, v): v for v in sorted({*since, log.version})}
    objects = handle.store.get_many(list(keys))
    if missing_key := next((key for key in keys if key not in objects), None):
        raise _missing(handle, missing_key)
    for key, version in keys.items():
        _check_author(handle, key, objects[key].body)
        if version > log.checkpoint:
            for line in objects[key].body.splitlines():
                log.apply(_actions.decode(line))
    return log


def _note(log: DeltaLog, sizes: dict[int, int], info: ObjectInfo, prefix: str) -> None:
    match = _NAME.fullmatch(info.key.removeprefix(prefix))
    if match and match[2] == "json":
        log.versions_ms[int(match[1])] = info.stored_ms
        sizes[int(match[1])] = info.bytes
    elif match:
        log.checkpoints_ms[int(match[1])] = info.stored_ms


def _missing(handle: Handle, key: str) -> CorruptLog:
    return CorruptLog(
        f"{handle.table}: '{key}' is missing, so the Delta log and its author cannot be read. Move the whole folder "
        "'_delta_log' away; the next export starts a new one.",
        key=key,
    )


def _check_author(handle: Handle, key: str, body: bytes) -> None:
    """Raise UncoordinatedMaintenance unless an export of this table wrote a version."""
    try:
        author = _first_line.decode(body.partition(b"\n")[0]).commit_info
    except msgspec.DecodeError:
        author = None
    if author is None or not author.engine_info.startswith(ENGINE) or author.table != handle.spec.id:
        raise UncoordinatedMaintenance(
            f"{handle.table}: '{key}' was not written by an export of this table. Nothing was exported. If a Delta "
            "program wrote rows there, insert them into this table. Then move the folder '_delta_log' away, and "
            "export again."
        )


def _read_checkpoint(handle: Handle, log: DeltaLog, folder: Path) -> None:
    path = folder / f"{log.checkpoint}.parquet"
    fetch(handle.store, checkpoint_key(handle, log.checkpoint), path)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["add", "metaData", "protocol"]):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                log.apply(msgspec.convert({k: _without_nulls(v) for k, v in row.items() if v is not None}, Action))
    path.unlink()


def _without_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    return {k: v for k, v in fields.items() if v is not None}


# ------------------------------------------------------------------------------------------------ checkpoint

_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = pa.struct([
    ("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64()), ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()), ("stats", pa.string()),
])  # fmt: skip
_META_DATA = pa.struct([
    ("id", pa.string()), ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
    ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())), ("createdTime", pa.int64()),
    ("configuration", _TEXTS),
])  # fmt: skip
_PROTOCOL = pa.struct([
    ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()), ("readerFeatures", pa.list_(pa.string())),
    ("writerFeatures", pa.list_(pa.string())),
])  # fmt: skip
_REMOVE = pa.struct([
    ("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_()),
])  # fmt: skip
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64())])
_CHECKPOINT = pa.schema([
    ("txn", _TXN), ("add", _ADD), ("remove", _REMOVE), ("metaData", _META_DATA), ("protocol", _PROTOCOL),
])  # fmt: skip
_ROWS_AT_ONCE = 10_000


def write_checkpoint(log: DeltaLog, path: Path) -> None:
    """Write the state of a log to a file. Removals are omitted, because no program may vacuum the table."""
    rows: list[dict[str, object]] = [
        {"protocol": msgspec.to_builtins(log.protocol)},
        {"metaData": msgspec.to_builtins(log.meta_data)},
    ]
    with pq.ParquetWriter(path, _CHECKPOINT) as file:
        for add in log.files.values():
            # An entry of a checkpoint is no change of the data.
            rows.append({"add": msgspec.to_builtins(msgspec.structs.replace(add, data_change=False))})
            if len(rows) == _ROWS_AT_ONCE:
                file.write_table(pa.Table.from_pylist(rows, _CHECKPOINT))
                rows = []
        file.write_table(pa.Table.from_pylist(rows, _CHECKPOINT))
