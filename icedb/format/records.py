"""What a log file holds: a header, a schema, tombstones of other log files, and markers of parts.

The records are the wire format itself (short keys on the wire, long names here), so that a million markers are
decoded straight into them. Times are unix milliseconds. Keys are full keys of the store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec

from icedb.util.times import COUNT_MAX, TIME_MS_MAX

__all__ = ["Count", "Encoded", "Header", "LogFile", "LogTombstone", "Marker", "Named", "Operations", "PackedMarkers",
           "Positive", "Sequenced", "Stats", "StoredLogFile", "TimeMs", "marker_times", "merge_markers", "told",
           "tombstoned", "total_bytes", "total_rows"]  # fmt: skip

# The decoder refuses any other number, so that nothing above meets one that no calendar or column can hold.
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
#: An epoch, or the number of a line that is not the header's.
Positive = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
#: The sequence of a transaction.
Sequenced = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

#: JSON that is decoded by who needs it.
Encoded = msgspec.Raw | msgspec.UnsetType
#: Time of a commit (unix milliseconds) -> the name of its operation.
Operations = Mapping[int, str]
#: A marker's statistics, still encoded: most readers never look.
Stats = Encoded


class Marker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename={
    "key": "p", "bytes": "b", "created_ms": "t", "tombstoned_ms": "tmb", "rows": "r", "stats": "s",
    "digest": "h", "moved": "m",
}):  # fmt: skip
    """The line that names a part. `rows` and `stats` are unknown for parts that programs of v3 wrote."""

    key: str
    bytes: Count
    created_ms: TimeMs
    tombstoned_ms: TimeMs | None = None
    rows: Count | None = None
    #: `{column: [min, max, null count]}`; see `icedb.sql.column_stats`.
    stats: Stats = msgspec.UNSET
    #: The first 32 hexadecimal digits of the object's SHA-256; `verify(deep=True)` compares.
    digest: str | None = None
    #: Its rows were in other parts before: it is a merge's, a rewrite's, what a deletion left, a restored copy.
    moved: bool = False


#: So many markers are held and replayed in columns; for fewer, these take longer to make than they spare.
COLUMNS_MIN = 4_000


class PackedMarkers(Sequence[Marker]):
    """Markers that are made when somebody asks for them. What is asked of all of them has a quicker way."""

    __slots__ = ()

    @property
    @abstractmethod
    def newest_tombstone_ms(self) -> int:
        """The newest of the markers' tombstones; 0: there is none."""

    @property
    @abstractmethod
    def carries_tombstones(self) -> bool:
        """Whether some marker has a tombstone."""

    @property
    @abstractmethod
    def rows_together(self) -> int | None:
        """The rows of all their parts; None when one of them does not say."""

    @property
    @abstractmethod
    def bytes_together(self) -> int:
        """The bytes of all their parts."""

    @abstractmethod
    def samples(self) -> Iterator[str]:
        """Keys, not all of them the markers', that together have every folder and every name."""

    @abstractmethod
    def told(self) -> Iterator[tuple[str, bool]]:
        """The key of each marker, and whether it has a tombstone."""

    @abstractmethod
    def tombstoned(self) -> Sequence[Marker]:
        """The markers with a tombstone."""

    @abstractmethod
    def times(self) -> set[int]:
        """The times at which their parts were committed or tombstoned."""


def told(markers: Sequence[Marker]) -> Iterator[tuple[str, bool]]:
    """The key of each marker, and whether it has a tombstone."""
    if isinstance(markers, PackedMarkers):
        return markers.told()
    return ((m.key, m.tombstoned_ms is not None) for m in markers)


def tombstoned(markers: Sequence[Marker]) -> Sequence[Marker]:
    """Those of the markers that have a tombstone."""
    if isinstance(markers, PackedMarkers):
        return markers.tombstoned()
    return [m for m in markers if m.tombstoned_ms is not None]


def marker_times(markers: Sequence[Marker]) -> set[int]:
    """The times at which the parts of these markers were committed or tombstoned."""
    if isinstance(markers, PackedMarkers):
        return markers.times()
    return {t for m in markers for t in (m.created_ms, m.tombstoned_ms) if t is not None}


class LogTombstone(msgspec.Struct, frozen=True, rename={"key": "p", "created_ms": "t"}):
    """The line that names a log file which this one replaces."""

    key: str
    created_ms: TimeMs


class Header(msgspec.Struct, frozen=True, omit_defaults=True, rename={
    "version": "v", "t_ms": "t", "schema_line": "sch", "tombstone_line": "tmb", "part_line": "f",
    "epoch": "e", "live_epochs": "le", "horizon_ms": "hz", "line_count": "n", "spec": "spec", "foreign_ms": "fm",
    "schema_ms": "st", "column_ms": "ct", "operation": "op", "operations": "ops",
}):  # fmt: skip
    """Line 0: where the rest is, and what kind of commit this was."""

    version: int | str
    t_ms: TimeMs
    schema_line: Positive
    part_line: Positive | None = None
    tombstone_line: Positive | None = None
    epoch: Positive | None = None
    live_epochs: tuple[Positive, ...] | None = None
    void: bool = False
    horizon_ms: TimeMs = 0
    #: application -> (last committed sequence, when)
    txn: dict[str, tuple[Sequenced, TimeMs]] = {}
    #: How many lines there are, this one included: tells a log file that was cut between two lines.
    line_count: Positive | None = None
    #: When a program of v3 tombstoned parts for the last time, in the log files that this one replaces; 0: never.
    foreign_ms: TimeMs = 0
    #: The table's spec since this commit or an earlier one that it replaces, still encoded; see
    #: `icedb.format.table_spec`.
    spec: Encoded = msgspec.UNSET
    #: When the columns of the schema came, but for those of `column_ms`; None: at `t_ms`, see `format.column_times`.
    schema_ms: int | None = None
    #: Column -> when it came.
    column_ms: dict[str, int] = {}
    #: The name of this commit's operation, still encoded; see `format.operation_names`.
    operation: Encoded = msgspec.UNSET
    #: Operation -> times of commits that this log file remembers, still encoded.
    operations: Encoded = msgspec.UNSET


class LogFile(msgspec.Struct, frozen=True):
    """One commit. `epoch` is None for a plain append and for everything that programs of v3 wrote."""

    t_ms: int
    schema: dict[str, str]
    #: In columns, when there are many.
    markers: Sequence[Marker] = ()
    tombstones: tuple[LogTombstone, ...] = ()
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
        """When a program without epochs tombstoned parts for the last time, here or in what this replaces; 0: never."""
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
    """A log file as it lies in the store. `stored_ms` is the store's own time for it."""

    key: str
    file: LogFile
    stored_ms: int


@dataclass(slots=True)
class Named:
    """Which log files name a part or a log file, and when the store got those that tombstone it."""

    by: list[str] = field(default_factory=list)
    tombstoned_by_ms: list[int] = field(default_factory=list)


def merge_markers(one: Marker, other: Marker) -> Marker:
    """Two markers of one part: the smallest of each time, and whatever either knows of its contents."""
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
    """The bytes of parts, or of their markers, together."""
    return parts.bytes_together if isinstance(parts, PackedMarkers) else sum(p.bytes for p in parts)


def total_rows(parts: Iterable[_Counted]) -> int | None:
    """The rows of parts, or of their markers, together; None when one of them does not say."""
    if isinstance(parts, PackedMarkers):
        return parts.rows_together
    total = 0
    for part in parts:
        if part.rows is None:
            return None
        total += part.rows
    return total
