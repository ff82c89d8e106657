"""The markers of a large log file in columns: a tenth of what as many objects take, and searched by Arrow.

A key is a folder, of which there are few, and a name, which is 16 bytes when it is a part id and `.parquet`, as every
program here names its parts; so is a digest. Any other text is kept as it is. A marker is made when somebody asks for
it, and is then what the log file says, byte for byte.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any, overload

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.records import Marker, PackedMarkers, Stats

__all__ = ["AT_ONCE", "Block", "MarkerColumns", "packed_name", "row_numbers"]

# What a part id is in a column, and a digest.
_ID_BYTES = 16
_HEX = 2 * _ID_BYTES
_SUFFIX = ".parquet"
_PACKED = pa.binary(_ID_BYTES)
# Markers made or read at once: so few are still in the processor's cache when the next step needs them.
AT_ONCE = 4_096
# Of one block, about.
_BLOCK = 1 << 16


class Block:
    """Some markers in columns, in their order. Nothing changes them.

    `folders` is a dictionary of texts, with the slash at their ends; `names` and `digests` are packed (16 bytes) or
    texts; a column that is null throughout has Arrow's null type. Times are unix milliseconds.
    """

    __slots__ = ("_folder_at", "_ids", "bytes", "created_ms", "digests", "folder_texts", "folders", "moved", "names",
                 "rows", "stats", "tombstoned_ms")  # fmt: skip

    def __init__(self, pieces: Sequence[Sequence[pa.Array]]) -> None:
        """`pieces`: what `_columns` makes of some markers, each."""
        keys, digests, *others = zip(*pieces, strict=True)
        self.folders, self.names = _split(_joined(keys))
        self.digests = _joined_digests(digests)
        self.bytes, self.created_ms, self.tombstoned_ms, self.rows, self.stats, self.moved = map(_joined, others)
        self.folder_texts: list[str] = self.folders.dictionary.to_pylist()
        self._folder_at = memoryview(self.folders.indices.buffers()[1]).cast("i")
        self._ids = memoryview(self.names.buffers()[1]) if self.names.type == _PACKED else None

    def __len__(self) -> int:
        return len(self.bytes)

    def key(self, number: int) -> str:
        """The key of the marker of that number."""
        folder = self.folder_texts[self._folder_at[number]]
        if self._ids is None:
            return folder + str(self.names[number].as_py())
        return folder + self._ids[_ID_BYTES * number : _ID_BYTES * (number + 1)].hex() + _SUFFIX

    def markers(self, numbers: Sequence[int]) -> Iterator[Marker]:
        """The markers of these numbers, in their order."""
        columns = (self.bytes, self.created_ms, self.tombstoned_ms, self.rows, self.stats, self.digests, self.moved)
        if isinstance(numbers, range) and numbers.step == 1:
            some = [c.slice(numbers.start, len(numbers)) for c in columns]
        else:
            chosen = row_numbers(numbers)
            some = [c.take(chosen) for c in columns]
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
    def has_packed_names(self) -> bool:
        """Whether all names are part ids and `.parquet`."""
        return self._ids is not None

    def firsts(self) -> pa.Array:
        """The first eight bytes of the packed names, as numbers of the same order."""
        halves = array("Q")
        halves.frombytes(self._ids or b"")
        if sys.byteorder == "little":
            halves.byteswap()
        return pa.Array.from_buffers(pa.uint64(), len(self), [None, pa.py_buffer(halves[::2])])

    def keys(self) -> pa.Array:
        """All keys, as texts of Arrow."""
        folders, names = self.folders.cast(pa.large_string()), self.names
        if self._ids is not None:
            names = _texts([n.hex() + _SUFFIX for n in names.to_pylist()])
        return pc.binary_join_element_wise(
            folders, names.cast(pa.large_string()), _texts([""]).cast(pa.large_string())[0]
        )

    def samples(self) -> Iterator[str]:
        """Keys, not all of them the markers', that together have every folder and every name."""
        for folder in self.folder_texts:
            yield folder + "0" * _HEX + _SUFFIX
        if self._ids is None:
            for name in self.names.unique().to_pylist():
                yield self.folder_texts[0] + name

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        columns = (self.folders, self.names, self.bytes, self.created_ms, self.tombstoned_ms, self.rows, self.stats,
                   self.digests, self.moved)  # fmt: skip
        return sum(int(c.get_total_buffer_size()) for c in columns)


class MarkerColumns(PackedMarkers):
    """Markers in blocks of columns."""

    __slots__ = ("_starts", "blocks")

    def __init__(self, pieces: Iterable[list[Marker]]) -> None:
        """The markers of all pieces, each of which is emptied before the next is asked for.

        Raises OverflowError, or ValueError (Arrow's), for a number or a text that no column can hold.
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
        """These markers. Raises as the class itself."""
        rest = iter(markers)
        return cls(iter(lambda: list(islice(rest, AT_ONCE)), []))

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
            for start in range(0, len(block), AT_ONCE):
                yield from block.markers(range(start, min(start + AT_ONCE, len(block))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkerColumns | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MarkerColumns({len(self)} markers)"

    def samples(self) -> Iterator[str]:
        """Keys, not all of them the markers', that together have every folder and every name."""
        for block in self.blocks:
            yield from block.samples()

    @property
    def newest_tombstone_ms(self) -> int:
        """The newest of the markers' tombstones; 0: there is none."""
        return max((pc.max(b.tombstoned_ms).as_py() for b in self.blocks if _is_some(b.tombstoned_ms)), default=0)

    @property
    def carries_tombstones(self) -> bool:
        """Whether some marker has a tombstone."""
        return any(_is_some(b.tombstoned_ms) for b in self.blocks)

    @property
    def bytes_together(self) -> int:
        """The bytes of all their parts."""
        return sum(pc.sum(b.bytes).as_py() or 0 for b in self.blocks)

    @property
    def rows_together(self) -> int | None:
        """The rows of all their parts; None when one of them does not say."""
        if any(b.rows.null_count for b in self.blocks):
            return None
        return sum(pc.sum(b.rows).as_py() or 0 for b in self.blocks)

    def told(self) -> Iterator[tuple[str, bool]]:
        """The key of each marker, and whether it has a tombstone."""
        for block in self.blocks:
            yield from zip(map(block.key, range(len(block))), pc.is_valid(block.tombstoned_ms).to_pylist(), strict=True)

    def tombstoned(self) -> Sequence[Marker]:
        """The markers with a tombstone."""
        return [
            marker
            for block in self.blocks
            if _is_some(block.tombstoned_ms)
            for marker in block.markers(pc.indices_nonzero(pc.is_valid(block.tombstoned_ms)).to_pylist())
        ]

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        return sum(b.nbytes for b in self.blocks)


def row_numbers(numbers: Iterable[int]) -> pa.Array:
    """As Arrow has them."""
    made = array("I", numbers)
    return pa.Array.from_buffers(pa.uint32(), len(made), [None, pa.py_buffer(made)])


def packed_name(name: str) -> bytes | None:
    """The 16 bytes of a part's name, the last piece of its key; None when it is not an id and `.parquet`."""
    text = name.removesuffix(_SUFFIX)
    return _from_hex(text) if len(text) == _HEX and len(name) > _HEX else None


def _from_hex(text: str) -> bytes | None:
    """What some small hexadecimal digits, and nothing else, stand for."""
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        return None
    return packed if packed.hex() == text else None


# ------------------------------------------------------------------------------------------------ making columns

# By way of buffers: where pandas is installed, `pa.array` and `pa.scalar` load it before they look at what they get.


def _columns(markers: Sequence[Marker]) -> list[pa.Array]:
    """Keys as texts, and the other columns as they stay, though digests perhaps as texts."""
    return [
        _texts([m.key for m in markers]),
        _digests([m.digest for m in markers]),
        _numbers([m.bytes for m in markers]),
        _numbers([m.created_ms for m in markers]),
        _numbers([m.tombstoned_ms for m in markers]),
        _numbers([m.rows for m in markers]),
        _binaries(_copied([m.stats for m in markers]), pa.binary()),
        _flags([m.moved for m in markers]),
    ]


def _copied(stats: Sequence[Stats]) -> Sequence[bytes | None]:
    """What is encoded: a view of it would hold the whole log file's bytes."""
    with suppress(TypeError):  # some marker has none
        copied = b"\n".join(stats).split(b"\n")  # type: ignore[arg-type]
        if len(copied) == len(stats):  # as in every log file, whose lines these are of
            return copied
    return [None if isinstance(one, msgspec.UnsetType) else bytes(one) for one in stats]


def _flags(values: Sequence[bool]) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(bytes(values))]).cast(pa.bool_())


def _numbers(values: Sequence[int | None]) -> pa.Array:
    if (absent := values.count(None)) == len(values):
        return pa.nulls(absent)
    if absent:
        present = [v is not None for v in values]
        return _with_nulls(_numbers([v or 0 for v in values]), present)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])  # type: ignore[type-var]


def _texts(values: Sequence[str | None]) -> pa.Array:
    try:
        joined = "".join(values)  # type: ignore[arg-type]
    except TypeError:
        return _binaries([None if v is None else v.encode() for v in values], pa.string())
    if not joined.isascii():
        return _binaries([v and v.encode() for v in values], pa.string())
    return pa.Array.from_buffers(pa.string(), len(values), [None, _ends(values), pa.py_buffer(joined.encode())])


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
    """Where each one's text ends in all of them together; before the first, 0."""
    lengths = list(map(len, values))
    step = lengths[0] if lengths else 0
    if step and lengths.count(step) == len(lengths):
        return pa.py_buffer(array("i", range(0, step * len(lengths) + 1, step)))
    return pa.py_buffer(array("i", accumulate(lengths, initial=0)))


def _digests(values: Sequence[str | None]) -> pa.Array:
    """Packed, if that is simple to see."""
    if None in values:
        return _texts(values)
    joined = "".join(values)  # type: ignore[arg-type]
    packed = _from_hex(joined) if set(map(len, values)) == {_HEX} else None  # type: ignore[arg-type]
    return _texts(values) if packed is None else _of_ids(packed, len(values))


def _joined_digests(columns: Sequence[pa.Array]) -> pa.Array:
    if all(c.type == _PACKED for c in columns):
        return pa.concat_arrays(columns)
    as_texts = [_texts([d.hex() for d in c.to_pylist()]) if c.type == _PACKED else c for c in columns]
    texts = _joined(as_texts)
    packed = _hexadecimal(texts)
    return texts if packed is None else packed


def _of_ids(packed: bytes, count: int) -> pa.Array:
    return pa.Array.from_buffers(_PACKED, count, [None, pa.py_buffer(packed)])


def _with_nulls(values: pa.Array, present: Sequence[bool]) -> pa.Array:
    return pc.if_else(_flags(present), values, pa.nulls(1, values.type)[0])


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    types = {c.type for c in columns}
    type_ = next(iter(types - {pa.null()}), pa.null())
    return pa.concat_arrays(columns if len(types) == 1 else [c.cast(type_) for c in columns])


def _is_some(column: pa.Array) -> bool:
    return bool(column.null_count < len(column))


def _split(keys: pa.Array) -> tuple[pa.DictionaryArray, pa.Array]:
    """Folders and names of keys."""
    raw = keys.view(pa.binary())
    ends = pc.binary_slice(raw, -len(_SUFFIX))
    if _bytes_of(ends) == _SUFFIX.encode() * len(keys):
        packed = _hexadecimal(pc.binary_slice(raw, -_HEX - len(_SUFFIX), -len(_SUFFIX)))
        folders = pc.binary_slice(raw, 0, -_HEX - len(_SUFFIX)).view(pa.string()).dictionary_encode()
        if packed is not None and all(t.endswith("/") for t in folders.dictionary.to_pylist()):
            return folders, packed
    pieces = [key.rpartition("/") for key in keys.to_pylist()]
    folders = _texts([folder + slash for folder, slash, _ in pieces]).dictionary_encode()
    return folders, _texts([name for _, _, name in pieces])


def _hexadecimal(texts: pa.Array) -> pa.Array | None:
    """The 16 bytes that each text of 32 small hexadecimal digits stands for; None when there is another text."""
    if texts.type == pa.null():
        return None
    count, present = len(texts), pc.is_valid(texts) if texts.null_count else None
    if present is not None:
        texts = pc.fill_null(texts, _texts(["0" * _HEX])[0])
    lengths = pc.min_max(pc.binary_length(texts))
    if not lengths["min"].as_py() == lengths["max"].as_py() == _HEX:
        return None
    try:
        packed = _from_hex(_bytes_of(texts).decode("ascii"))
    except UnicodeDecodeError:
        return None
    if packed is None:
        return None
    # Copied, by Arrow, into memory of its own: what stays among what goes would hold that too.
    found = _of_ids(packed, count)
    found = pa.concat_arrays([found.slice(0, 1), found.slice(1)])
    return found if present is None else pc.if_else(present, found, pa.nulls(1, _PACKED)[0])


def _bytes_of(texts: pa.Array) -> bytes:
    """Those of all texts, one after another. The array has no offset."""
    return bytes(texts.buffers()[2] or b"")
