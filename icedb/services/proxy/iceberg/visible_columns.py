"""The columns of a bucket at a time, and their layout as an Iceberg schema and partition spec.

A bucket without `partitions` has the columns of the table. For a bucket with `partitions`, a column that the table does
not declare counts only if a visible part contains it, and from the time of the first such part on: the times of the log
tell when other tenants wrote it. Footers show which parts contain it, because the log records columns for log files
only, which may name parts of several tenants. Footers are read only for columns that a log file with visible parts has,
from the log's time of the column on, until each column was seen. Earlier parts are last: only programs that give a log
file a later time than its parts put the column there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from icedb.errors import InvalidOption, InvalidPartitionExpression, UnsupportedType
from icedb.format.column_times import column_times
from icedb.format.records import Marker, StoredLogFile
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, spec_at
from icedb.operations.export.exported_snapshot import exported_columns
from icedb.reader.iceberg.iceberg_types import file_types, path_types
from icedb.reader.iceberg.layout import IcebergLayout, layout_of
from icedb.reader.part_footers import part_columns
from icedb.reader.snapshot import Snapshot
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.iceberg.names import digest_of
from icedb.services.proxy.iceberg.visible_states import VisibleParts, key_texts
from icedb.sql.partition_expressions import partition_expressions, partition_types
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["BucketLayout", "BucketLayouts", "SeenColumns"]

#: A part of the names of manifests and lists. Increase it if the same parts and columns have other bytes than before,
#: because proxies of two versions may serve one table.
_ENCODING = 1

# The numbers of footers that are read in turn. Most tables need one, because all parts have the same columns.
_FOOTERS = (1, 9, 90, 900)


@dataclass(frozen=True)
class BucketLayout:
    """A layout, the snapshot that has its columns, and a digest of it: 8 hexadecimal digits."""

    layout: IcebergLayout
    snapshot: Snapshot
    digest: str


@dataclass
class SeenColumns:
    """The columns in the footers of visible parts that were read so far.

    Parts are immutable, and a log file that names a part has all of its columns. So this stays true for later states as
    long as the part is visible, also if the log has more columns then.
    """

    #: The key of a part -> those columns of the log that it contains. Most parts share one set.
    columns: dict[str, frozenset[str]] = field(default_factory=dict)

    def find(self, handle: Handle, state: TableState, parts: VisibleParts) -> dict[str, int]:
        """Return column of the log -> its time, for declared columns and those that a visible part contains.

        `parts` are all visible parts of the state, live or not. The time is that of the declaration or of the first
        part, in unix milliseconds. Parts with a tombstone count as long as their state can be read, because the catalog
        lists it. Reads footers of visible parts only.
        """
        times = {c: handle.spec.declared_ms.get(c, 0) for c in state.schema if c in handle.spec.columns}
        in_log = column_times(state)
        # A part may be older than the declaration. That matters as long as states of that time can be read.
        searched = {c for c in state.schema if c not in times or times[c] > max(in_log[c], state.horizon_ms)}
        if not searched:
            return times
        created = parts.created_ms
        visible = _readable_places(parts, created, state.horizon_ms)
        self.columns = {key: self.columns[key] for p in visible if (key := parts.keys[p]) in self.columns}
        effective = state.effective
        for files, columns in _columns_by_files(effective, searched).items():
            places = visible
            if len(files) < len(effective):
                named = set(key_texts(state.named_by(files)).to_pylist())
                places = [p for p in visible if parts.keys[p] in named]
            for column in columns:
                since = bisect_left(places, in_log[column], key=created.__getitem__)
                first = self._first(handle, state, parts, [*places[since:], *places[:since]], column)
                if first is not None:
                    times[column] = min(created[first], times.get(column, created[first]))
        return times

    def _first(
        self, handle: Handle, state: TableState, parts: VisibleParts, places: Sequence[int], column: str
    ) -> int | None:
        for some in _chunks(places):
            self._read(handle, state, parts.chosen([p for p in some if parts.keys[p] not in self.columns]).markers)
            first = next((p for p in some if column in self.columns[parts.keys[p]]), None)
            if first is not None:
                return first
        return None

    def _read(self, handle: Handle, state: TableState, markers: Sequence[Marker]) -> None:
        """Read footers for all columns of the log, so that no part is read again for another one."""
        if not markers:
            return
        sets = {columns: columns for columns in self.columns.values()}
        for key, present in part_columns(handle, [handle.part(m) for m in markers], state.schema).items():
            columns = frozenset(present)
            self.columns[key] = sets.setdefault(columns, columns)


def _readable_places(parts: VisibleParts, created: Sequence[int], horizon_ms: int) -> list[int]:
    """Return the places of the parts in all states that can be read, oldest first."""
    tombstoned: list[int | None] = parts.column("tombstoned_ms").to_pylist()
    readable = (p for p, at_ms in enumerate(tombstoned) if at_ms is None or at_ms > horizon_ms)
    return sorted(readable, key=created.__getitem__)


def _columns_by_files(
    effective: Mapping[str, StoredLogFile], columns: Collection[str]
) -> dict[tuple[str, ...], list[str]]:
    """Return the keys of log files -> the columns that exactly these log files have."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in sorted(columns):
        files = tuple(key for key, stored in effective.items() if column in stored.file.schema)
        groups.setdefault(files, []).append(column)
    return groups


def _chunks(places: Sequence[int]) -> Iterator[Sequence[int]]:
    first = 0
    for size in _FOOTERS:
        if first < len(places):
            yield places[first : first + size]
            first += size
    for start in range(first, len(places), _FOOTERS[-1]):
        yield places[start : start + _FOOTERS[-1]]


class BucketLayouts:
    """The layouts of a bucket at all times, for one state of the table. Each distinct layout is computed once."""

    def __init__(
        self,
        handle: Handle,
        state: TableState,
        bucket: VirtualBucket,
        visible: Mapping[str, int] | None,
        sample: Sequence[Part],
    ) -> None:
        """Create the layouts of a bucket.

        `visible`: the columns of the log that the bucket shows, with their times; None for a bucket of the whole table.
        `sample`: one visible part, or none if there is none. Partition columns without a type are an error only with
        parts.
        """
        self._handle = handle
        self._state = state
        self._bucket = bucket
        self._visible = visible
        self._sample = sample
        self._times = column_times(state) if visible is None else visible
        self._first_ms = min(self._times.values(), default=0)
        self._layouts: dict[object, BucketLayout] = {}

    def at(self, at_ms: int | None, *, has_parts: bool) -> BucketLayout:
        """Return the layout at a time; None: the latest.

        Raises UnsupportedType and InvalidOption, whose messages name no address, so that a client may see them.
        """
        spec, columns = self._columns(at_ms)
        if not columns and not has_parts and self._state.schema:
            columns = self._partition_columns(spec)
        name = tuple(columns.items()), spec.partition_by, tuple(spec.path_columns.items()), has_parts
        if name not in self._layouts:
            self._layouts[name] = self._layout(spec, columns, at_ms or 0, has_parts=has_parts)
        return self._layouts[name]

    def _columns(self, at_ms: int | None) -> tuple[TableSpec, dict[str, str]]:
        spec = self._handle.spec if at_ms is None else spec_at(self._handle.spec, at_ms)
        schema = self._state.schema
        if self._visible is not None:
            # In the order of names: the log's order depends on commits of other tenants.
            schema = {c: schema[c] for c in sorted(self._visible)}
            if at_ms is not None and at_ms < self._state.horizon_ms:
                # A pinned state. Its parts, which were superseded, were not searched and may contain any column.
                at_ms = None
        if at_ms is not None:  # as `schema_at`, which would compute the times again
            until_ms = max(at_ms, self._first_ms)
            schema = {c: t for c, t in schema.items() if self._times[c] <= until_ms}
        return spec, all_columns(spec, schema)

    def _partition_columns(self, spec: TableSpec) -> dict[str, str]:
        """Return the partition columns for a bucket without parts and columns, so that its table is not missing."""
        name = self._bucket.name
        try:
            return partition_types(partition_expressions(spec, table=name), self._state.schema, table=name)
        except InvalidPartitionExpression:  # the columns of the log are not those of this spec
            return {}

    def _layout(self, spec: TableSpec, columns: dict[str, str], at_ms: int, *, has_parts: bool) -> BucketLayout:
        name = self._bucket.name
        snapshot = Snapshot(
            table=name,
            as_of_ms=at_ms,
            parts=self._sample if has_parts else (),
            schema=columns,
            log_files=0,
            epoch=0,
            _handle=self._handle,
            _spec=spec,
        )
        excluded = [c for c in self._bucket.exclude_columns if c in snapshot.columns]
        try:
            files, partitions = exported_columns(snapshot, excluded)
        except InvalidOption:
            raise InvalidOption(f"The table '{name}' has no columns. Insert rows, or declare columns.") from None
        try:
            layout = layout_of(snapshot, files, partitions)
        except UnsupportedType:
            raise _unsupported(name, files, partitions) from None
        digest = digest_of(
            msgspec.json.encode([_ENCODING, layout.schema, layout.partition_spec, layout.format_version]), 8
        )
        return BucketLayout(layout, snapshot, digest)


def _unsupported(name: str, files: Mapping[str, str], partitions: Mapping[str, str]) -> UnsupportedType:
    """Return an error for the client and the operator that names the columns without an Iceberg type."""
    columns = [f"'{c}' ({t})" for c, t in files.items() if not _is_supported(file_types, c, t)]
    columns += [f"'{c}' ({t})" for c, t in partitions.items() if not _is_supported(path_types, c, t)]
    which = f"without an Iceberg type: {', '.join(columns)}" if columns else "whose Iceberg field ids are the same"
    return UnsupportedType(
        f"The table '{name}' has columns {which}. The operator of this endpoint can leave them out with "
        "exclude_columns of the bucket."
    )


def _is_supported(types: Callable[..., object], column: str, type_: str) -> bool:
    try:
        types({column: type_}, table="")
    except UnsupportedType:
        return False
    return True
