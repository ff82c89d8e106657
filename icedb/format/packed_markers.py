"""The markers of a large log file in Arrow columns, which take a tenth of the memory of as many objects.

A key is stored as a folder, of which there are few, and a name. A name that is a part id with `.parquet`, as this
library names all parts, is packed into 16 bytes. So is a digest. Any other text is stored as it is. A marker object is
created on access, and equals the one in the log file byte for byte.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any, overload
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.records import Marker, PackedMarkers, Stats

__all__ = [
    "BATCH_MARKERS",
    "Block",
    "MarkerColumns",
    "exact_sum",
    "joined_keys",
    "key_checksums",
    "packed_name",
    "row_numbers",
    "text_column",
    "uniform_names",
]

# The bytes of a packed part id or digest.
_ID_BYTES = 16
_HEX = 2 * _ID_BYTES
_SUFFIX = ".parquet"
_PACKED = pa.binary(_ID_BYTES)
# Markers created or read at a time: few enough to stay in the processor's cache until the next step uses them.
BATCH_MARKERS = 4_096
# The approximate number of markers in a block.
_BLOCK = 1 << 16
# The types of number columns, from the smallest on, with their limits. Other numbers take 64 bits.
_NARROW = ((pa.uint8(), 1 << 8), (pa.uint16(), 1 << 16), (pa.uint32(), 1 << 32))

_encoder = msgspec.json.Encoder()


class Block:
    """Some markers in columns, in their order. Immutable.

    `folders` is a dictionary of texts that end in a slash. `names` and `digests` are packed (16 bytes) or texts. A
    column of nulls has Arrow's null type. Numbers have the smallest type that holds them all. Times are unix
    milliseconds. Creation times are stored as offsets from the first of them.
    """

    __slots__ = ("_after_ms", "_checksums", "_first_ms", "_folder_at", "_ids", "bytes", "digests", "folder_texts",
                 "folders", "moved", "names", "rows", "stats", "tombstoned_ms")  # fmt: skip

    def __init__(self, pieces: Sequence[Sequence[pa.Array]]) -> None:
        """`pieces`: results of `_columns`."""
        folders, names, digests, *others = zip(*pieces, strict=True)
        self.folders: pa.DictionaryArray = pa.concat_arrays(folders)  # unifies their dictionaries
        self.names = pa.concat_arrays(uniform_names(names))
        self.digests = _joined_digests(digests)
        size, created_ms, self.tombstoned_ms, rows, self.stats, self.moved = map(_joined, others)
        self.bytes, self.rows = _narrowed(size), _narrowed(rows)
        self._first_ms: pa.Int64Scalar = pc.min(created_ms.cast(pa.int64()))
        self._after_ms = _narrowed(pc.subtract(created_ms.cast(pa.int64()), self._first_ms))
        self.folder_texts: list[str] = self.folders.dictionary.to_pylist()
        self._folder_at = memoryview(self.folders.indices.buffers()[1]).cast("i")
        self._ids = memoryview(self.names.buffers()[1]) if self.names.type == _PACKED else None
        self._checksums: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.bytes)

    def key(self, number: int) -> str:
        """Return the key of the marker with that number."""
        folder = self.folder_texts[self._folder_at[number]]
        if self._ids is None:
            return folder + str(self.names[number].as_py())
        return folder + self._ids[_ID_BYTES * number : _ID_BYTES * (number + 1)].hex() + _SUFFIX

    def markers(self, numbers: Sequence[int]) -> Iterator[Marker]:
        """Create the markers with these numbers, in their order."""
        columns = (self.bytes, self._after_ms, self.tombstoned_ms, self.rows, self.stats, self.digests, self.moved)
        if isinstance(numbers, range) and numbers.step == 1:
            some = [c.slice(numbers.start, len(numbers)) for c in columns]
        else:
            chosen = row_numbers(numbers)
            some = [c.take(chosen) for c in columns]
        some[1] = self._created_ms(some[1])
        size, created, dead, rows, stats, digests, moved = (c.to_pylist() for c in some)
        if self.digests.type == _PACKED:
            digests = [d and d.hex() for d in digests]
        for n, number in enumerate(numbers):
            yield Marker(
                self.key(number),
                size[n],
                created[n],
                dead[n],
                rows[n],
                msgspec.UNSET if stats[n] is None else msgspec.Raw(stats[n]),
                digests[n],
                moved[n],
            )

    @property
    def created_ms(self) -> pa.Array:
        """The creation time of each part."""
        return self._created_ms(self._after_ms)

    def _created_ms(self, after_ms: pa.Array) -> pa.Array:
        return pc.add(after_ms.cast(pa.int64()), self._first_ms)

    @property
    def has_dead(self) -> bool:
        """Whether some of the parts have a tombstone."""
        return bool(self.tombstoned_ms.null_count < len(self))

    @property
    def has_packed_names(self) -> bool:
        """Whether all names are part ids with `.parquet`."""
        return self._ids is not None

    def id_prefixes(self) -> pa.Array:
        """Return the first eight bytes of the packed names as numbers, which have the same order."""
        halves = array("Q")
        halves.frombytes(self._ids or b"")
        if sys.byteorder == "little":
            halves.byteswap()
        return pa.Array.from_buffers(pa.uint64(), len(self), [None, pa.py_buffer(halves[::2])])

    def keys(self) -> pa.Array:
        """Return all keys as an Arrow array."""
        return joined_keys(self.folders.cast(pa.string()), self.names)

    @property
    def key_checksums(self) -> pa.Array:
        """The CRC-32 of each key. Computed once: the state after an append has most blocks of the state before."""
        if self._checksums is None:
            self._checksums = key_checksums(self.keys())
        return self._checksums

    def sample_keys(self) -> Iterator[str]:
        """See PackedMarkers."""
        for folder in self.folder_texts:
            yield folder + "0" * _HEX + _SUFFIX
        if self._ids is None:
            for name in self.names.unique().to_pylist():
                yield self.folder_texts[0] + name

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        columns = (self.folders, self.names, self.bytes, self._after_ms, self.tombstoned_ms, self.rows, self.stats,
                   self.digests, self.moved, self._checksums)  # fmt: skip
        return sum(int(c.get_total_buffer_size()) for c in columns if c is not None)


class MarkerColumns(PackedMarkers):
    """A sequence of markers, stored in blocks of columns."""

    __slots__ = ("_starts", "blocks")

    def __init__(self, pieces: Iterable[list[Marker]]) -> None:
        """Pack the markers of all pieces. Each list is emptied before the next piece is produced, to save memory.

        Raises OverflowError, or Arrow's ValueError, for a number or a text that a column cannot hold.
        """
        blocks: list[Block] = []
        columns: list[list[pa.Array]] = []
        count = 0
        for piece in pieces:
            if not piece:
                continue
            columns.append(_columns(piece))
            count += len(piece)
            piece.clear()
            if count >= _BLOCK:
                blocks.append(Block(columns))
                columns, count = [], 0
        if columns:
            blocks.append(Block(columns))
        self.blocks = tuple(blocks)
        self._starts = [0, *accumulate(map(len, blocks))]

    @classmethod
    def of(cls, markers: Iterable[Marker]) -> MarkerColumns:
        """Pack markers. Raises the same errors as the constructor."""
        rest = iter(markers)
        return cls(iter(lambda: list(islice(rest, BATCH_MARKERS)), []))

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Marker: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Marker]: ...
    def __getitem__(self, index: int | slice) -> Marker | Sequence[Marker]:
        if isinstance(index, slice):
            return tuple(self[n] for n in range(len(self))[index])
        number = range(len(self))[index]
        block = bisect_right(self._starts, number) - 1
        return next(self.blocks[block].markers([number - self._starts[block]]))

    def __iter__(self) -> Iterator[Marker]:
        for block in self.blocks:
            for start in range(0, len(block), BATCH_MARKERS):
                yield from block.markers(range(start, min(start + BATCH_MARKERS, len(block))))

    def __repr__(self) -> str:
        return f"MarkerColumns({len(self)} markers)"

    def sample_keys(self) -> Iterator[str]:
        """See PackedMarkers."""
        for block in self.blocks:
            yield from block.sample_keys()

    @property
    def newest_tombstone_ms(self) -> int:
        """See PackedMarkers."""
        return max((pc.max(b.tombstoned_ms).as_py() for b in self.blocks if b.has_dead), default=0)

    @property
    def carries_tombstones(self) -> bool:
        """See PackedMarkers."""
        return any(b.has_dead for b in self.blocks)

    @property
    def total_bytes(self) -> int:
        """See PackedMarkers."""
        return sum(exact_sum(b.bytes) for b in self.blocks)

    @property
    def total_rows(self) -> int | None:
        """See PackedMarkers."""
        if any(b.rows.null_count for b in self.blocks):
            return None
        return sum(exact_sum(b.rows) for b in self.blocks)

    def tombstone_flags(self) -> Iterator[tuple[str, bool]]:
        """See PackedMarkers."""
        for block in self.blocks:
            yield from zip(map(block.key, range(len(block))), pc.is_valid(block.tombstoned_ms).to_pylist(), strict=True)

    def tombstoned(self) -> Sequence[Marker]:
        """See PackedMarkers."""
        return [
            marker
            for block in self.blocks
            if block.has_dead
            for marker in block.markers(pc.indices_nonzero(pc.is_valid(block.tombstoned_ms)).to_pylist())
        ]

    def times(self) -> set[int]:
        """See PackedMarkers."""
        columns = (c for b in self.blocks for c in (b.created_ms, b.tombstoned_ms))
        return {t for c in columns for t in pc.unique(c).to_pylist() if t is not None}

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        return sum(b.nbytes for b in self.blocks)


def row_numbers(numbers: Iterable[int]) -> pa.Array:
    """Convert row numbers to an Arrow array."""
    rows = array("I", numbers)
    return pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(rows)])


def joined_keys(folders: pa.Array, names: pa.Array) -> pa.Array:
    """Return keys as large strings, from the folder and the name of each. The array of names must have no offset."""
    pieces = [folders.cast(pa.large_string())]
    if names.type == _PACKED:
        packed = memoryview(names.buffers()[1] or b"")[: _ID_BYTES * len(names)]
        digits = pa.py_buffer(packed.hex().encode())
        pieces += [
            pa.Array.from_buffers(pa.binary(_HEX), len(names), [None, digits]).cast(pa.large_string()),
            _large_text(_SUFFIX),
        ]
    else:
        pieces.append(names.cast(pa.large_string()))
    return pc.binary_join_element_wise(*pieces, _large_text(""))


def key_checksums(keys: pa.Array) -> pa.Array:
    """Return the CRC-32 of each key. `keys` are large strings."""
    return row_numbers(map(crc32, keys.cast(pa.large_binary()).to_pylist()))


def uniform_names(columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Return columns of names with one type: packed names become texts unless all are packed."""
    return columns if all(c.type == _PACKED for c in columns) else list(map(_named, columns))


def exact_sum(numbers: pa.Array | pa.ChunkedArray) -> int:
    """Sum counts. Arrow's own sum of 64-bit numbers overflows silently."""
    greatest = pc.max(numbers).as_py() or 0
    if greatest * len(numbers) < 1 << 63:
        return int(pc.sum(numbers).as_py() or 0)
    return sum(n or 0 for n in numbers.to_pylist())


def packed_name(name: str) -> bytes | None:
    """Pack a part's name, the last segment of its key, into 16 bytes; None if it is not an id with `.parquet`."""
    text = name.removesuffix(_SUFFIX)
    return _from_hex(text) if len(text) == _HEX and len(name) > _HEX else None


def _from_hex(text: str, *, lines: bool = False) -> bytes | None:
    """Decode lower-case hexadecimal digits; None for any other text. `lines`: lines of 16 bytes each."""
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        return None
    return packed if (packed.hex("\n", _ID_BYTES) if lines else packed.hex()) == text else None


# ------------------------------------------------------------------------------------------------ building columns

# Arrays are built from buffers, because `pa.array` and `pa.scalar` import pandas if it is installed.


def _columns(markers: Sequence[Marker]) -> list[pa.Array]:
    """Build the columns of a block. Names and digests may still be texts where the block packs them."""
    return [
        *_split(text_column([m.key for m in markers])),
        _digests([m.digest for m in markers]),
        _numbers([m.bytes for m in markers]),
        _numbers([m.created_ms for m in markers]),
        _numbers([m.tombstoned_ms for m in markers]),
        _numbers([m.rows for m in markers]),
        _copied_stats([m.stats for m in markers]),
        _flags([m.moved for m in markers]),
    ]


def _copied_stats(stats: Sequence[Stats]) -> pa.Array:
    """Copy encoded statistics, because a view of them would keep the bytes of the whole log file in memory."""
    with suppress(TypeError):  # a marker without statistics
        lines = _lines(_encoder.encode_lines(stats)[:-1], len(stats))
        if lines is not None:  # always, for statistics from a log file, which contain no line ends
            return lines
    return _binaries([None if isinstance(one, msgspec.UnsetType) else bytes(one) for one in stats], pa.binary())


def _lines(text: bytes, count: int) -> pa.Array | None:
    """Split a text into lines with one call of Arrow; None if there are not `count` lines, because some contain one."""
    ends = pa.py_buffer(array("i", (0, len(text))))
    lines = pc.split_pattern(pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(text)]), "\n").values
    return lines if len(lines) == count else None


def _flags(values: Sequence[bool]) -> pa.Array:
    flags = bytes(values) if any(values) else bytes(len(values))
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(flags)]).cast(pa.bool_())


def _numbers(values: Sequence[int | None]) -> pa.Array:
    try:
        return _whole_numbers(values)  # type: ignore[arg-type]
    except TypeError:  # some values are None
        present = [v is not None for v in values]
        return _with_nulls(_whole_numbers([v or 0 for v in values]), present) if any(present) else pa.nulls(len(values))


def _whole_numbers(values: Sequence[int]) -> pa.Array:
    try:
        return pa.Array.from_buffers(pa.uint32(), len(values), [None, pa.py_buffer(array("I", values))])
    except OverflowError:
        return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])


def _narrowed(numbers: pa.Array) -> pa.Array:
    """Cast numbers to the smallest type that holds them."""
    if numbers.type == pa.null():
        return numbers
    ends = pc.min_max(numbers)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    return numbers.cast(next((t for t, limit in _NARROW if 0 <= least <= greatest < limit), pa.int64()))


def text_column(values: Sequence[str | None]) -> pa.Array:
    """Return texts as an Arrow array."""
    with suppress(TypeError):  # some values are None
        lines = _lines("\n".join(values).encode(), len(values))  # type: ignore[arg-type]
        if lines is not None:
            return lines.view(pa.string())
    return _binaries([None if v is None else v.encode() for v in values], pa.string())


def _large_text(text: str) -> pa.LargeStringScalar:
    return text_column([text]).cast(pa.large_string())[0]


def _binaries(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    try:
        joined = b"".join(values)
    except TypeError:
        present = [v is not None for v in values]
        if not any(present):
            return pa.nulls(len(values))
        return _with_nulls(_binaries([v or b"" for v in values], type_), present)
    return pa.Array.from_buffers(type_, len(values), [None, _ends(values), pa.py_buffer(joined)])


def _ends(values: Sequence[Any]) -> pa.Buffer:
    """Return the offsets of values in their concatenation: 0, then the end of each."""
    return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))


def _digests(values: Sequence[str | None]) -> pa.Array:
    """Build the column of digests, packed if all of them are ids."""
    if None in values:
        return text_column(values)
    packed = _from_hex("\n".join(values), lines=True)  # type: ignore[arg-type]
    count = len(values)
    return text_column(values) if packed is None or len(packed) != _ID_BYTES * count else _of_ids(packed, count)


def _named(names: pa.Array) -> pa.Array:
    """Return names as texts."""
    return text_column([n.hex() + _SUFFIX for n in names.to_pylist()]) if names.type == _PACKED else names


def _joined_digests(columns: Sequence[pa.Array]) -> pa.Array:
    if all(c.type == _PACKED for c in columns):
        return pa.concat_arrays(columns)
    as_texts = [text_column([d.hex() for d in c.to_pylist()]) if c.type == _PACKED else c for c in columns]
    texts = _joined(as_texts)
    packed = _hexadecimal(texts)
    return texts if packed is None else packed


def _of_ids(packed: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(_PACKED, count, [None, pa.py_buffer(packed)])


def _with_nulls(values: pa.Array, present: Sequence[bool]) -> pa.Array:
    return pc.if_else(_flags(present), values, pa.nulls(1, values.type)[0])


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    types = {c.type for c in columns}
    # Of number types, int64 holds all values of the others.
    type_ = pa.int64() if pa.int64() in types else next(iter(types - {pa.null()}), pa.null())
    return pa.concat_arrays(columns if len(types) == 1 else [c.cast(type_) for c in columns])


def _split(keys: pa.Array) -> tuple[pa.DictionaryArray, pa.Array]:
    """Split keys into folders and names."""
    raw = keys.view(pa.binary())
    ends = pc.binary_slice(raw, -len(_SUFFIX))
    if _bytes_of(ends) == _SUFFIX.encode() * len(keys):
        packed = _hexadecimal(pc.binary_slice(raw, -_HEX - len(_SUFFIX), -len(_SUFFIX)))
        folders = pc.binary_slice(raw, 0, -_HEX - len(_SUFFIX)).view(pa.string()).dictionary_encode()
        if packed is not None and all(t.endswith("/") for t in folders.dictionary.to_pylist()):
            return folders, packed
    pieces = [key.rpartition("/") for key in keys.to_pylist()]
    folders = text_column([folder + slash for folder, slash, _ in pieces]).dictionary_encode()
    return folders, text_column([name for _, _, name in pieces])


def _hexadecimal(texts: pa.Array) -> pa.Array | None:
    """Pack texts of 32 lower-case hexadecimal digits into 16 bytes each; None if there is any other text."""
    if texts.type == pa.null():
        return None
    count, present = len(texts), pc.is_valid(texts) if texts.null_count else None
    if present is not None:
        texts = pc.fill_null(texts, text_column(["0" * _HEX])[0])
    lengths = pc.min_max(pc.binary_length(texts))
    if not lengths["min"].as_py() == lengths["max"].as_py() == _HEX:
        return None
    try:
        packed = _from_hex(_bytes_of(texts).decode("ascii"))
    except UnicodeDecodeError:
        return None
    if packed is None:
        return None
    # Copied by Arrow into its own memory pool: long-lived objects among short-lived ones would keep pages allocated.
    ids = _of_ids(packed, count)
    ids = pa.concat_arrays([ids.slice(0, 1), ids.slice(1)])
    return ids if present is None else pc.if_else(present, ids, pa.nulls(1, _PACKED)[0])


def _bytes_of(texts: pa.Array) -> bytes:
    """Return the concatenated bytes of all texts. The array must have no offset."""
    return bytes(texts.buffers()[2] or b"")
