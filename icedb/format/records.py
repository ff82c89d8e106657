"""The content of a log file: a header, a schema, tombstones of other log files, and markers of parts.

A marker is the line that names a part (data file). A tombstone marks a part or log file as superseded. The records are
the wire format itself, with short keys on the wire and long names here, so a million markers are decoded straight into
them. Times are unix milliseconds. Keys are full keys of the store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec

from icedb.util.times import COUNT_MAX, TIME_MS_MAX

__all__ = [
    "COLUMNS_MIN",
    "Count",
    "Encoded",
    "Header",
    "LogFile",
    "LogReferences",
    "LogTombstoneRecord",
    "Marker",
    "Operations",
    "PackedMarkers",
    "Positive",
    "Sequenced",
    "Stats",
    "StoredLogFile",
    "TimeMs",
    "marker_times",
    "merge_markers",
    "tombstone_flags",
    "tombstoned",
    "total_bytes",
    "total_rows",
]

# The decoder rejects other numbers, so that no caller gets one that a calendar or a column cannot hold.
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
#: An epoch, or the number of a line that is not the header's.
Positive = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
#: The sequence of a transaction.
Sequenced = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

#: JSON that is decoded only where it is needed.
Encoded = msgspec.Raw | msgspec.UnsetType
#: Time of a commit (unix milliseconds) -> the name of its operation.
Operations = Mapping[int, str]
#: A marker's statistics, still encoded, because most readers do not use them.
Stats = Encoded


class Marker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename={
    "key": "p", "bytes": "b", "created_ms": "t", "tombstoned_ms": "tmb", "rows": "r", "stats": "s",
    "digest": "h", "moved": "m",
}):  # fmt: skip
    """The line that names a part. `rows` and `stats` are unknown for parts that programs of IceDB v3 wrote."""

    key: str
    bytes: Count
    created_ms: TimeMs
    tombstoned_ms: TimeMs | None = None
    rows: Count | None = None
    #: `{column: [min, max, null count]}`; see `icedb.sql.column_stats`.
    stats: Stats = msgspec.UNSET
    #: The first 32 hexadecimal digits of the object's SHA-256; `verify(deep=True)` checks it.
    digest: str | None = None
    #: Whether its rows were in other parts before: after a merge, a rewrite, a deletion or a restore.
    moved: bool = False


#: From this many markers on, they are stored and replayed in columns. For fewer, building the columns costs more time
#: than they save.
COLUMNS_MIN = 4_000


class PackedMarkers(Sequence[Marker]):
    """A sequence of markers that are created on access. Aggregates over all of them are computed on columns."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedMarkers | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    @abstractmethod
    def newest_tombstone_ms(self) -> int:
        """The newest tombstone of the markers; 0 if there is none."""

    @property
    @abstractmethod
    def carries_tombstones(self) -> bool:
        """Whether some marker has a tombstone."""

    @property
    @abstractmethod
    def total_rows(self) -> int | None:
        """The sum of the rows of the parts; None if the count of one of them is unknown."""

    @property
    @abstractmethod
    def total_bytes(self) -> int:
        """The sum of the bytes of the parts."""

    @abstractmethod
    def sample_keys(self) -> Iterator[str]:
        """Yield keys that together contain every folder and every name. Not all of them are keys of markers."""

    @abstractmethod
    def tombstone_flags(self) -> Iterator[tuple[str, bool]]:
        """Yield the key of each marker, and whether it has a tombstone."""

    @abstractmethod
    def tombstoned(self) -> Sequence[Marker]:
        """Return the markers with a tombstone."""

    @abstractmethod
    def times(self) -> set[int]:
        """Return the times at which the parts were committed or tombstoned."""


def tombstone_flags(markers: Sequence[Marker]) -> Iterator[tuple[str, bool]]:
    """Return the key of each marker, and whether it has a tombstone."""
    if isinstance(markers, PackedMarkers):
        return markers.tombstone_flags()
    return ((m.key, m.tombstoned_ms is not None) for m in markers)


def tombstoned(markers: Sequence[Marker]) -> Sequence[Marker]:
    """Return the markers that have a tombstone."""
    if isinstance(markers, PackedMarkers):
        return markers.tombstoned()
    return [m for m in markers if m.tombstoned_ms is not None]


def marker_times(markers: Sequence[Marker]) -> set[int]:
    """Return the times at which the parts of these markers were committed or tombstoned."""
    if isinstance(markers, PackedMarkers):
        return markers.times()
    return {t for m in markers for t in (m.created_ms, m.tombstoned_ms) if t is not None}


class LogTombstoneRecord(msgspec.Struct, frozen=True, rename={"key": "p", "created_ms": "t"}):
    """The line that names a log file which this one replaces."""

    key: str
    created_ms: TimeMs


class Header(msgspec.Struct, frozen=True, omit_defaults=True, rename={
    "version": "v", "t_ms": "t", "schema_line": "sch", "tombstone_line": "tmb", "part_line": "f",
    "epoch": "e", "live_epochs": "le", "horizon_ms": "hz", "line_count": "n", "spec": "spec", "foreign_ms": "fm",
    "schema_ms": "st", "column_ms": "ct", "operation": "op", "operations": "ops",
}):  # fmt: skip
    """Line 0: the positions of the other sections, and the kind of commit."""

    version: int | str
    t_ms: TimeMs
    schema_line: Positive
    part_line: Positive | None = None
    tombstone_line: Positive | None = None
    epoch: Positive | None = None
    live_epochs: tuple[Positive, ...] | None = None
    void: bool = False
    horizon_ms: TimeMs = 0
    #: Application -> (last committed sequence, time of that commit)
    txn: dict[str, tuple[Sequenced, TimeMs]] = {}
    #: The number of lines, including this one. Detects a log file that was truncated between two lines.
    line_count: Positive | None = None
    #: The last time at which a program of v3 tombstoned parts in the log files that this one replaces; 0 if never.
    foreign_ms: TimeMs = 0
    #: The table's spec since this commit or an earlier one that it replaces, still encoded; see
    #: `icedb.format.table_spec`.
    spec: Encoded = msgspec.UNSET
    #: The time at which the columns of the schema were added, except those in `column_ms`; None means `t_ms`. See
    #: `icedb.format.column_times`.
    schema_ms: int | None = None
    #: Column -> the time at which it was added.
    column_ms: dict[str, int] = {}
    #: The name of this commit's operation, still encoded; see `icedb.format.operation_names`.
    operation: Encoded = msgspec.UNSET
    #: Operation -> times of commits that this log file carries, still encoded.
    operations: Encoded = msgspec.UNSET


class LogFile(msgspec.Struct, frozen=True):
    """One commit. `epoch` is None for a plain append and for everything that programs of v3 wrote."""

    t_ms: int
    schema: dict[str, str]
    #: `PackedMarkers` if there are many.
    markers: Sequence[Marker] = ()
    tombstones: tuple[LogTombstoneRecord, ...] = ()
    epoch: int | None = None
    live_epochs: tuple[int, ...] = ()
    void: bool = False
    horizon_ms: int = 0
    txn: dict[str, tuple[int, int]] = {}
    foreign_ms: int = 0
    spec: Encoded = msgspec.UNSET
    schema_ms: int | None = None
    column_ms: dict[str, int] = {}
    #: The name of this commit's operation; empty if it is not recorded.
    operation: str = ""
    #: The operations of other commits whose parts it names.
    operations: Operations = {}

    @property
    def newest_foreign_ms(self) -> int:
        """The last time at which a program without epochs tombstoned parts, here or in replaced files; 0 if never."""
        if self.epoch is not None:
            return self.foreign_ms
        if isinstance(self.markers, PackedMarkers):
            return self.markers.newest_tombstone_ms
        return max((m.tombstoned_ms for m in self.markers if m.tombstoned_ms is not None), default=0)

    @property
    def carries_tombstones(self) -> bool:
        """Whether the log file's name says `_m`."""
        if self.void or self.tombstones:
            return True
        if isinstance(self.markers, PackedMarkers):
            return self.markers.carries_tombstones
        return any(m.tombstoned_ms is not None for m in self.markers)


@dataclass(frozen=True, slots=True)
class StoredLogFile:
    """A log file in the store. `stored_ms` is the store's time of the put."""

    key: str
    file: LogFile
    stored_ms: int


@dataclass(slots=True)
class LogReferences:
    """The log files that name a part or a log file, and the store's times of those that tombstone it."""

    by: list[str] = field(default_factory=list)
    tombstoned_by_ms: list[int] = field(default_factory=list)


def merge_markers(one: Marker, other: Marker) -> Marker:
    """Merge two markers of one part: the smallest of each time, and the details that either of them has."""
    tombstones = [m.tombstoned_ms for m in (one, other) if m.tombstoned_ms is not None]
    return msgspec.structs.replace(
        one,
        created_ms=min(one.created_ms, other.created_ms),
        tombstoned_ms=min(tombstones, default=None),
        rows=one.rows if one.rows is not None else other.rows,
        stats=other.stats if isinstance(one.stats, msgspec.UnsetType) else one.stats,
        digest=one.digest if one.digest is not None else other.digest,
        moved=one.moved or other.moved,
    )


class _Counted(Protocol):
    @property
    def rows(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...


def total_bytes(parts: Iterable[_Counted]) -> int:
    """Return the sum of the bytes of parts or of their markers."""
    return parts.total_bytes if isinstance(parts, PackedMarkers) else sum(p.bytes for p in parts)


def total_rows(parts: Iterable[_Counted]) -> int | None:
    """Return the sum of the rows of parts or of their markers; None if the count of one of them is unknown."""
    if isinstance(parts, PackedMarkers):
        return parts.total_rows
    total = 0
    for part in parts:
        if part.rows is None:
            return None
        total += part.rows
    return total
