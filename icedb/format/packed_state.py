"""The parts of a large table, replayed over columns, with the same results as `replay` over few markers.

The markers of all log files are rows with consecutive numbers. The columns of a large log file are used as they are.
One array has the row numbers in the order of their keys, each part once. Keys are compared by a number that consists of
their folder and the first bytes of their id, and in full only if two such numbers are equal. A part that several log
files name gets an additional row with the merged marker.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, groupby, pairwise
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.packed_markers import (
    BATCH_MARKERS,
    Block,
    MarkerColumns,
    exact_sum,
    joined_keys,
    packed_name,
    row_numbers,
    text_column,
    uniform_names,
)
from icedb.format.records import LogReferences, Marker, PackedMarkers, StoredLogFile, merge_markers, tombstoned

__all__ = ["MarkerView", "PartColumns", "PackedReferences"]

# From this many groups of small log files on, they are packed anew into one.
_SMALL_MAX = 16
_NUMBER_BITS = 64


@dataclass(frozen=True, slots=True)
class _FileGroup:
    """Log files, and the columns of all their markers, in the order of the files."""

    files: tuple[StoredLogFile, ...]
    columns: MarkerColumns


def _groups(files: Sequence[StoredLogFile], previous: Iterable[_FileGroup]) -> list[_FileGroup]:
    """Group log files: each large one alone, small ones as in the previous groups, other small ones together."""
    groups = [_FileGroup((f,), f.file.markers) for f in files if isinstance(f.file.markers, MarkerColumns)]
    rest = {f.key: f for f in files if f.file.markers and not isinstance(f.file.markers, MarkerColumns)}
    small = [g for g in previous if all(rest.get(f.key) is f for f in g.files)]
    small = small if len(small) < _SMALL_MAX else []
    for group in small:
        for file in group.files:
            del rest[file.key]
    if rest:
        others = tuple(rest.values())
        small.append(_FileGroup(others, MarkerColumns.of(m for f in others for m in f.file.markers)))
    return groups + small


class PartColumns(Mapping[str, Marker]):
    """Part key -> its marker, in key order. Immutable."""

    def __init__(self, groups: Sequence[_FileGroup]) -> None:
        self._groups = groups
        self._files = [f for g in groups for f in g.files]
        self._file_starts = [0, *accumulate(len(f.file.markers) for f in self._files)]
        self._blocks = [b for g in groups for b in g.columns.blocks]
        self._starts = [0, *accumulate(map(len, self._blocks))]
        #: Merged row -> the rows from which it was merged.
        self._runs: dict[int, Sequence[int]] = {}
        self._key_order = _KeyOrder.of(self._blocks)
        self._sort()
        pa.default_memory_pool().release_unused()  # sorting needs more memory than the result

    @classmethod
    def of(cls, files: Sequence[StoredLogFile], previous: PartColumns | None = None) -> PartColumns:
        """Return the parts that log files name. Groups of an earlier result, `previous`, are reused if still valid.

        Raises OverflowError or ValueError for values that columns cannot hold.
        """
        groups = _groups(files, previous._groups if previous is not None else ())
        if previous is not None and [g.files for g in groups] == [g.files for g in previous._groups]:
            return previous
        return cls(groups)

    # -------------------------------------------------------------------------------------------- the order

    def _sort(self) -> None:
        keys = self._key_order
        sortable = keys.numbers(self._blocks) if keys else pa.chunked_array([b.keys() for b in self._blocks])
        order = pc.sort_indices(sortable).cast(pa.uint32())
        ordered = sortable.take(order)
        equal = pc.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
        if pc.any(equal).as_py():
            order = self._without_doubles(array("I", order.to_pylist()), _nonzero(equal))
        self._order = order
        self._whole = MarkerView(self, order)

    @cached_property
    def _numbers(self) -> memoryview | None:
        """The numbers of `_key_order`, sorted; computed at the first search for a key."""
        if self._key_order is None:
            return None
        return memoryview(self._key_order.numbers(self._blocks).take(self._order).buffers()[1]).cast("Q")

    def _without_doubles(self, order: array[int], ties: Sequence[int]) -> pa.Array:
        """Return the order with each part once. `ties`: the positions whose sort value equals the next one."""
        kept: array[int] = array("I")
        merged: list[Marker] = []
        runs: list[Sequence[int]] = []
        done = 0
        for first, last in _stretches(ties):
            kept += order[done:first]
            done = last + 1
            by_key = sorted((self._key(row), self._file(row).key, row) for row in order[first:done])
            for _, named in groupby(by_key, key=lambda entry: entry[0]):
                rows = [row for _, _, row in named]
                if len(rows) > 1:
                    merged.append(reduce(merge_markers, (self._marker(row) for row in rows)))
                    runs.append(rows)
                    rows = [self._starts[-1] + len(merged) - 1]
                kept.append(rows[0])
        kept += order[done:]
        self._runs = dict(enumerate(runs, self._starts[-1]))
        self._blocks += MarkerColumns.of(merged).blocks
        self._starts = [0, *accumulate(map(len, self._blocks))]
        return row_numbers(kept)

    # -------------------------------------------------------------------------------------------- rows

    def _at(self, row: int) -> tuple[Block, int]:
        block = bisect_right(self._starts, row) - 1
        return self._blocks[block], row - self._starts[block]

    def _key(self, row: int) -> str:
        block, number = self._at(row)
        return block.key(number)

    def _marker(self, row: int) -> Marker:
        block, number = self._at(row)
        return next(block.markers([number]))

    def _file(self, row: int) -> StoredLogFile:
        return self._files[bisect_right(self._file_starts, row) - 1]

    def _find(self, key: object) -> int | None:
        """Return the row of a key; None if there is none."""
        if not isinstance(key, str):
            return None
        rows = self._whole.rows
        if self._key_order is None or self._numbers is None:
            place = bisect_left(rows, key, key=self._key)
            return rows[place] if place < len(rows) and self._key(rows[place]) == key else None
        number = self._key_order.number(key)
        if number is None:
            return None
        place = bisect_left(self._numbers, number)
        while place < len(rows) and self._numbers[place] == number:
            if self._key(rows[place]) == key:
                return rows[place]
            place += 1
        return None

    def named(self, key: str) -> LogReferences | None:
        """Return the log files that name a part, and the store's times of those that tombstone it."""
        row = self._find(key)
        if row is None:
            return None
        references = LogReferences()
        for one in self._runs.get(row, (row,)):
            file = self._file(one)
            references.by.append(file.key)
            block, number = self._at(one)
            if block.tombstoned_ms[number].is_valid:
                references.tombstoned_by_ms.append(file.stored_ms)
        return references

    # -------------------------------------------------------------------------------------------- as a mapping

    def __getitem__(self, key: str) -> Marker:
        row = self._find(key)
        if row is None:
            raise KeyError(key)
        return self._marker(row)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole.keys)

    def __len__(self) -> int:
        return len(self._whole)

    def values(self) -> ValuesView[Marker]:
        """Return the markers, in key order."""
        return _MarkerValues(self)

    def items(self) -> ItemsView[str, Marker]:
        """Return keys and markers, in key order."""
        return _MarkerItems(self)

    def __repr__(self) -> str:
        return f"PartColumns({len(self)} parts)"

    # -------------------------------------------------------------------------------------------- by columns

    @property
    def all(self) -> MarkerView:
        """All markers."""
        return self._whole

    def live(self, as_of_ms: int | None = None) -> MarkerView:
        """Return the markers that were live at a time (unix milliseconds; None: after the last commit)."""
        if as_of_ms is None and not any(b.has_dead for b in self._blocks):
            return self._whole
        alive = pc.is_null(dead := self._column("tombstoned_ms", pa.int64()))
        if as_of_ms is not None:
            then = _number(as_of_ms)
            born = pc.less_equal(self._column("created_ms", pa.int64()), then)
            alive = pc.and_(born, pc.or_(alive, pc.fill_null(pc.greater(dead, then), _false())))
        return self._whole if pc.all(alive).as_py() else self._chosen(alive)

    @cached_property
    def dead(self) -> MarkerView:
        """The markers with a tombstone."""
        return self._chosen(pc.is_valid(self._column("tombstoned_ms", pa.int64())))

    def named_by(self, log_keys: Collection[str]) -> MarkerView:
        """Return the markers that some of these log files name."""
        return self._chosen(self._mask(log_keys))

    def _mask(self, log_keys: Collection[str]) -> pa.ChunkedArray:
        """Return for each row whether one of these log files names the part."""
        mask = bytearray(self._starts[-1])
        for file, (start, stop) in zip(self._files, pairwise(self._file_starts), strict=True):
            if file.key in log_keys:
                mask[start:stop] = b"\1" * (stop - start)
        for row, rows in self._runs.items():
            mask[row] = any(mask[r] for r in rows)
        numbers = pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(bytes(mask))])
        return pa.chunked_array([numbers.cast(pa.bool_())])

    def part_statuses(self, log_keys: Collection[str]) -> Iterator[tuple[str, bool, bool]]:
        """Yield each part's key, whether it has a tombstone, and whether one of these log files names it, in order."""
        named = self._mask(log_keys).take(self._order).to_pylist()
        return ((key, dead, by) for (key, dead), by in zip(self._whole.tombstone_flags(), named, strict=True))

    def _chosen(self, mask: pa.ChunkedArray) -> MarkerView:
        """Return the markers of a mask over all rows."""
        return MarkerView(self, self._order.filter(mask.take(self._order).combine_chunks()))

    def _column(self, name: str, type_: pa.DataType) -> pa.ChunkedArray:
        """Return a column over all rows."""
        return pa.chunked_array([getattr(b, name).cast(type_) for b in self._blocks], type_)

    @property
    def nbytes(self) -> int:
        """The memory of all columns, including the order."""
        return sum(b.nbytes for b in self._blocks) + int(self._order.nbytes)


class MarkerView(PackedMarkers):
    """Some of the parts' markers, in key order."""

    def __init__(self, parts: PartColumns, order: pa.Array) -> None:
        """`order`: the rows of the markers."""
        self._parts = parts
        self._order = order
        self.rows = memoryview(order.buffers()[1]).cast("I") if len(order) else memoryview(b"").cast("I")

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Marker: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Marker]: ...
    def __getitem__(self, index: int | slice) -> Marker | Sequence[Marker]:
        if isinstance(index, slice):
            return self.chosen(range(len(self))[index])
        return self._parts._marker(self.rows[range(len(self))[index]])

    def __iter__(self) -> Iterator[Marker]:
        for start in range(0, len(self), BATCH_MARKERS):
            yield from self._made(self.rows[start : start + BATCH_MARKERS])

    def _made(self, rows: Sequence[int]) -> Iterator[Marker]:
        """Create the markers of rows, by block, because taking many rows of a block at a time is fast."""
        parts = self._parts
        block, number = parts._at(rows[0])
        if number + len(rows) <= len(block) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
            return block.markers(range(number, number + len(rows)))
        return self._gathered(rows)

    def _gathered(self, rows: Sequence[int]) -> Iterator[Marker]:
        parts = self._parts
        blocks: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            blocks.setdefault(bisect_right(parts._starts, row) - 1, []).append(place)
        made: dict[int, Marker] = {}
        for block, places in blocks.items():
            start = parts._starts[block]
            made.update(zip(places, parts._blocks[block].markers([rows[p] - start for p in places]), strict=True))
        return (made[place] for place in range(len(rows)))

    def __repr__(self) -> str:
        return f"MarkerView({len(self)} markers)"

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the parts."""
        return _MarkerKeys(self._parts, self.rows)

    def key_texts(self) -> pa.Array:
        """Return the keys as large strings, which is faster than `keys` for many of them."""
        texts, numbers = self.folder_numbers()
        names = pa.chunked_array(uniform_names([b.names for b in self._parts._blocks]))
        return joined_keys(texts.take(numbers), names.take(self._order).combine_chunks())

    def key_checksums(self) -> pa.Array:
        """Return the CRC-32 of each key."""
        checksums = pa.chunked_array([b.key_checksums for b in self._parts._blocks], pa.uint32())
        return checksums.take(self._order).combine_chunks()

    def chosen(self, places: Iterable[int]) -> MarkerView:
        """Return the markers at these positions, which must ascend."""
        return MarkerView(self._parts, self._order.take(row_numbers(places)))

    def filter(self, mask: pa.Array | pa.ChunkedArray) -> MarkerView:
        """Return the markers for which a mask is true."""
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        return MarkerView(self._parts, self._order.filter(mask))

    def column(self, name: str, type_: pa.DataType) -> pa.ChunkedArray:
        """Return the values of a column of `Block`, which must not be `folders` or a text."""
        return self._parts._column(name, type_).take(self._order)

    @cached_property
    def folders(self) -> tuple[Mapping[int, str], Sequence[int]]:
        """Number of a folder -> its text, which ends in a slash; and the number of each marker's folder."""
        texts, of_these = self.folder_numbers()
        used = set(of_these.unique().to_pylist())
        texts_used = {n: t for n, t in enumerate(texts.to_pylist()) if n in used}
        return texts_used, memoryview(of_these.buffers()[1] or b"").cast("I")

    def folder_numbers(self) -> tuple[pa.Array, pa.Array]:
        """Return the texts of all folders of the table, and the number of each marker's folder as `uint32`."""
        blocks = self._parts._blocks
        texts = sorted({t for b in blocks for t in b.folder_texts})
        numbers = {t: n for n, t in enumerate(texts)}
        places = [row_numbers(numbers[t] for t in b.folder_texts).take(b.folders.indices) for b in blocks]
        return text_column(texts), pa.chunked_array(places, pa.uint32()).take(self._order).combine_chunks()

    def values_of(self, name: str) -> Iterator[Any]:
        """Yield the values of a column of numbers or flags, converted in batches."""
        column = self.column(name, pa.bool_() if name == "moved" else pa.int64())
        for start in range(0, len(self), BATCH_MARKERS):
            yield from column.slice(start, BATCH_MARKERS).to_pylist()

    def times(self) -> set[int]:
        """See PackedMarkers."""
        columns = (self.column(name, pa.int64()) for name in ("created_ms", "tombstoned_ms"))
        return {t for column in columns for t in pc.unique(column).to_pylist() if t is not None}

    def smaller(self, bytes_max: int) -> MarkerView:
        """Return the markers of parts with fewer bytes."""
        return self.filter(pc.less(self.column("bytes", pa.int64()), _number(bytes_max)))

    @property
    def total_bytes(self) -> int:
        """See PackedMarkers."""
        return exact_sum(self.column("bytes", pa.int64()))

    @property
    def total_rows(self) -> int | None:
        """See PackedMarkers."""
        counts = self.column("rows", pa.int64())
        return None if counts.null_count else exact_sum(counts)

    def sample_keys(self) -> Iterator[str]:
        """See PackedMarkers."""
        return iter(self.keys)

    @property
    def newest_tombstone_ms(self) -> int:
        """See PackedMarkers."""
        return pc.max(self.column("tombstoned_ms", pa.int64())).as_py() or 0

    @property
    def carries_tombstones(self) -> bool:
        """See PackedMarkers."""
        return len(self.tombstoned()) > 0

    def tombstone_flags(self) -> Iterator[tuple[str, bool]]:
        """See PackedMarkers."""
        dead = pc.is_valid(self.column("tombstoned_ms", pa.int64())).to_pylist()
        return zip(self.keys, dead, strict=True)

    def tombstoned(self) -> Sequence[Marker]:
        """See PackedMarkers."""
        return self.filter(pc.is_valid(self.column("tombstoned_ms", pa.int64())))


class _MarkerKeys(Sequence[str]):
    def __init__(self, parts: PartColumns, rows: Sequence[int]) -> None:
        self._parts = parts
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return _MarkerKeys(self._parts, self._rows[index])
        return self._parts._key(self._rows[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._parts._key, self._rows)


class _MarkerValues(ValuesView[Marker]):
    def __init__(self, parts: PartColumns) -> None:
        super().__init__(parts)
        self._parts = parts

    def __iter__(self) -> Iterator[Marker]:
        return iter(self._parts.all)


class _MarkerItems(ItemsView[str, Marker]):
    def __init__(self, parts: PartColumns) -> None:
        super().__init__(parts)
        self._parts = parts

    def __iter__(self) -> Iterator[tuple[str, Marker]]:
        return ((m.key, m) for m in self._parts.all)


class PackedReferences(Mapping[str, LogReferences]):
    """Part key -> the log files that name it, computed on access. `earlier`: replaced files that were visible."""

    def __init__(self, parts: PartColumns, earlier: Iterable[StoredLogFile]) -> None:
        self._parts = parts
        self._replaced = tuple(earlier)

    @cached_property
    def _earlier(self) -> dict[str, list[int]]:
        stored_ms: dict[str, list[int]] = {}
        for stored in self._replaced:
            for marker in tombstoned(stored.file.markers):
                stored_ms.setdefault(marker.key, []).append(stored.stored_ms)
        return stored_ms

    def __getitem__(self, key: str) -> LogReferences:
        named = self._parts.named(key)
        if named is None:
            raise KeyError(key)
        named.tombstoned_by_ms += self._earlier.get(key, ())
        return named

    def __contains__(self, key: object) -> bool:
        return key in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class _KeyOrder:
    """64-bit numbers that sort like keys. This needs packed names, and no folder that is a prefix of another one."""

    def __init__(self, folders: Sequence[str]) -> None:
        #: The number of upper bits for the folder. The id's first bits take the rest.
        self._bits = max(1, (len(folders) - 1).bit_length())
        self._folders = {folder: place << (_NUMBER_BITS - self._bits) for place, folder in enumerate(folders)}

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> _KeyOrder | None:
        folders = sorted({t for b in blocks for t in b.folder_texts})
        nested = any(after.startswith(before) for before, after in pairwise(folders))
        return None if nested or not all(b.has_packed_names for b in blocks) else cls(folders)

    def numbers(self, blocks: Sequence[Block]) -> pa.Array:
        """Return the numbers of all keys of the blocks."""
        bits = pa.Array.from_buffers(pa.uint64(), 1, [None, pa.py_buffer(array("Q", (self._bits,)))])[0]
        whole = []
        for block in blocks:
            places = array("Q", (self._folders[t] for t in block.folder_texts))
            folders = pa.Array.from_buffers(pa.uint64(), len(places), [None, pa.py_buffer(places)])
            ids = pc.shift_right(block.id_prefixes(), bits)
            whole.append(pc.bit_wise_or(folders.take(block.folders.indices), ids))
        return pa.concat_arrays(whole)

    def number(self, key: str) -> int | None:
        """Return the number of a key; None if no block can contain it."""
        name = key.rfind("/") + 1
        folder, packed = self._folders.get(key[:name]), packed_name(key[name:])
        if folder is None or packed is None:
            return None
        return folder | int.from_bytes(packed[:8], "big") >> self._bits


def _stretches(ties: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each run of equal values."""
    first = previous = ties[0]
    for tie in ties[1:]:
        if tie != previous + 1:
            yield first, previous + 1
            first = tie
        previous = tie
    yield first, previous + 1


def _nonzero(mask: pa.Array | pa.ChunkedArray) -> list[int]:
    positions: list[int] = pc.indices_nonzero(mask).to_pylist()
    return positions


def _number(value: int) -> pa.Scalar:
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", (value,)))])[0]


def _false() -> pa.Scalar:
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\0")])[0]
