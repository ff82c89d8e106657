"""The plan of an export to Delta: a snapshot, and its difference to the Delta log."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from icedb.operations.export.delta_log import (
    WRITER_FEATURE,
    Add,
    DeltaLog,
    MetaData,
    Protocol,
    Remove,
    path_of,
    read_delta_log,
)
from icedb.operations.export.delta_partitions import partition_values
from icedb.operations.export.delta_statistics import delta_statistics
from icedb.operations.export.delta_types import NO_ZONE, delta_schema
from icedb.operations.export.exported_snapshot import exported_columns, exported_snapshot
from icedb.operations.export.rearranged import rearranged
from icedb.reader.snapshot import Snapshot
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["DeltaPlan", "plan_export"]


@dataclass(frozen=True)
class DeltaPlan:
    """A snapshot, the Delta log, and the difference."""

    log: DeltaLog
    snapshot: Snapshot
    #: The time to pin for it. None: the time of the newest commit.
    pin_ms: int | None
    protocol: Protocol | None
    meta_data: MetaData | None
    adds: list[Add]
    removes: list[Remove]

    @property
    def differs(self) -> bool:
        """True if there is anything to publish."""
        return bool(self.protocol or self.meta_data or self.adds or self.removes)

    @cached_property
    def version(self) -> int:
        """The next version, or the newest if nothing differs. Cached, because publishing changes the log."""
        return self.log.version + self.differs

    @property
    def operation(self) -> str:
        """The operation in the version's history."""
        if self.version == 0:
            return "CREATE TABLE"
        if not any(a.data_change for a in self.adds) and not any(r.data_change for r in self.removes):
            return "OPTIMIZE" if self.adds or self.removes else "SET TBLPROPERTIES"
        return "WRITE" if self.adds else "DELETE"


def plan_export(handle: Handle, as_of_ms: int | None, exclude_columns: Sequence[str], folder: Path) -> DeltaPlan:
    """Read the Delta log, then take a snapshot. `folder` is for temporary files.

    Raises UnsupportedType, InvalidPartitionValue, UnknownColumn, InvalidOption, and as `read_delta_log` and
    `take_snapshot` do.
    """
    log = read_delta_log(handle, folder)
    snapshot, pin_ms = exported_snapshot(handle, as_of_ms)
    columns, partitions = exported_columns(snapshot, exclude_columns)
    schema = delta_schema(columns, partitions, table=handle.table)
    meta_data = _meta_data(handle, log, schema, list(partitions))
    same_partitions = log.meta_data is not None and log.meta_data.partition_columns == list(partitions)
    paths = {path_of(handle, p.key): p for p in snapshot.parts}
    # If the partition columns changed, every file is added again with its values.
    new = {path: p for path, p in paths.items() if not same_partitions or path not in log.files}
    gone = {path: add for path, add in log.files.items() if path not in paths}
    unchanged = _unchanged(handle, log, paths, gone)
    return DeltaPlan(
        log=log,
        snapshot=snapshot,
        pin_ms=pin_ms,
        protocol=_protocol(log, schema),
        meta_data=meta_data,
        adds=_adds(snapshot, new, columns, partitions, unchanged=unchanged),
        removes=[_remove(add, handle.clock.now_ms(), data_change=path not in unchanged) for path, add in gone.items()],
    )


def _protocol(log: DeltaLog, schema: str) -> Protocol | None:
    """Return the required protocol, or None if the log has it. Features are never removed."""
    reader_features = log.protocol.reader_features if log.protocol is not None else None
    if f'"{NO_ZONE}"' in schema or reader_features:
        needed = Protocol(3, 7, ["timestampNtz"], [WRITER_FEATURE, "timestampNtz"])
    else:
        needed = Protocol(1, 7, None, [WRITER_FEATURE])
    return None if log.protocol == needed else needed


def _meta_data(handle: Handle, log: DeltaLog, schema: str, partitions: list[str]) -> MetaData | None:
    current = log.meta_data
    if current is not None:
        needed = MetaData(current.id, schema, partitions, current.created_time)
        return None if (current.schema_string, current.partition_columns) == (schema, partitions) else needed
    return MetaData(str(uuid.UUID(handle.clock.new_id())), schema, partitions, handle.clock.now_ms())


def _unchanged(handle: Handle, log: DeltaLog, paths: Mapping[str, Part], gone: Collection[str]) -> frozenset[str]:
    """Return the paths of files whose addition or removal changes no row."""
    if handle.spec.merge_query or not log.files:
        return frozenset()  # a merge query may change any row
    again = frozenset(path for path in paths if path in log.files)
    if not gone:
        return again
    exported = {paths[path].key for path in again}
    state = handle.read()
    by_path = {path_of(handle, m.key): m.key for m in state.dead}
    exported |= {by_path[path] for path in gone if path in by_path}
    now = {p.key for p in paths.values()}
    moved = rearranged(state, data_prefix=handle.keys.data_prefix, exported=exported, now=now)
    return again | {path_of(handle, key) for key in moved}


def _adds(
    snapshot: Snapshot,
    new: Mapping[str, Part],
    columns: Mapping[str, str],
    partitions: Mapping[str, str],
    *,
    unchanged: Collection[str],
) -> list[Add]:
    parts = list(new.values())
    values = partition_values(snapshot, parts, partitions)
    return [
        Add(path, value, part.bytes, part.created_ms, path not in unchanged, stats)
        for (path, part), value, stats in zip(new.items(), values, delta_statistics(parts, columns), strict=True)
    ]


def _remove(add: Add, now_ms: int, *, data_change: bool) -> Remove:
    return Remove(add.path, now_ms, data_change, True, add.partition_values, add.size)
