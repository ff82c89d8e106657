"""Random batches of all types that a table stores, with the values at which types differ, for hypothesis."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

#: Names that SQL, Parquet's paths or the library's own queries could confuse.
NAMES = ["rowid", "n", "v", "r", "a.b", "a", "b c", 'quo"te', "it's", "é", "select", "k0", "c0", "e%2Ff", "x.list.y"]
LONG = "x" * 70
TEXTS = [
    "", "a", "a\0", "a\0b", "A", "ab", "é", "z", "\U0001f600", "\uffff", "\ue000", LONG, LONG + "y", " ", "01", "1",
    "null", "\ud7ff" * 65, "\U0010ffff" * 66, "a/b=c", "%41", ".",
]  # fmt: skip
#: NaN with each sign, infinities, zeros with each sign, and the ends of the range.
DOUBLES = np.array([0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 1 << 63, 0, 1, 0x7FEF << 48], np.uint64)
FLOATS = np.array([0x7FC0 << 16, 0xFFC0 << 16, 0x7F80 << 16, 0xFF80 << 16, 1 << 31, 0, 1, 0x7F7F << 16], np.uint32)
#: DuckDB's infinities are the greatest integer and its negative.
DAY_INFINITIES = [2**31 - 1, -(2**31 - 1)]
TIME_INFINITIES = [2**63 - 1, -(2**63 - 1)]
MICROS_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class Kind:
    """A type of columns: `make` returns an array of drawn `values`, which can be null."""

    values: st.SearchStrategy[Any]
    make: Callable[[list[Any]], pa.Array]
    #: Whether min and max of the type are in the statistics of a Parquet file and of a marker.
    is_flat: bool = True


def _plain(type_: pa.DataType, values: st.SearchStrategy[Any], **options: Any) -> Kind:
    return Kind(values, lambda drawn: pa.array(drawn, type_), **options)


def _viewed(raw: pa.DataType, type_: pa.DataType, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(values, lambda drawn: pa.array(drawn, raw).view(type_))


def _extension(type_: Any, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(values, lambda drawn: pa.ExtensionArray.from_storage(type_, pa.array(drawn, type_.storage_type)))


def _ints(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from([low, high, max(low, -1), 0, 1]) | st.integers(low, high)


def _decimals(precision: int, scale: int) -> Kind:
    largest = 10**precision - 1
    return _plain(
        pa.decimal128(precision, scale),
        _ints(-largest, largest).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))),
    )


def _instants(unit: str, zone: str | None = None) -> Kind:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    far = min(9_000_000_000, 2**62 // 10**9) * per_second  # the year 2116 at least
    infinities = TIME_INFINITIES if unit in ("us", "ns") else []
    values = st.sampled_from([0, -1, *infinities]) | st.integers(-far, far)
    return _viewed(pa.int64(), pa.timestamp(unit, zone), values)


def _categories(values: list[Any]) -> pa.Array:
    """Return a column with a dictionary that is unsorted, has a value twice, and one that no row has."""
    dictionary = ["unused", *dict.fromkeys(v for v in reversed(values) if v is not None), "twice", "twice"]
    indices = [None if v is None else dictionary.index(v) for v in values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), pa.array(dictionary, pa.string()))


TEXT = st.sampled_from(TEXTS) | st.text(max_size=5)
SMALL = st.integers(-3, 3)
UUIDS = st.sampled_from([b"\0" * 16, b"\x7f" + b"\xff" * 15, b"\xff" * 16]) | st.binary(min_size=16, max_size=16)
DAYS = st.sampled_from([0, -1, *DAY_INFINITIES]) | st.integers(-700_000, 700_000)
_STRUCT = pa.struct([("b", pa.int32()), ("t", pa.string())])

KINDS: dict[str, Kind] = {
    **{f"int{b}": _plain(getattr(pa, f"int{b}")(), _ints(-(2 ** (b - 1)), 2 ** (b - 1) - 1)) for b in (8, 16, 32, 64)},
    **{f"uint{b}": _plain(getattr(pa, f"uint{b}")(), _ints(0, 2**b - 1)) for b in (8, 16, 32, 64)},
    "float": _viewed(
        pa.uint32(), pa.float32(),
        st.sampled_from(FLOATS.tolist()) | SMALL.map(lambda n: int(np.float32(n).view("u4"))),
    ),
    "double": _viewed(
        pa.uint64(), pa.float64(),
        st.sampled_from(DOUBLES.tolist()) | SMALL.map(lambda n: int(np.float64(n).view("u8"))),
    ),
    **{f"decimal{p}": _decimals(p, s) for p, s in ((4, 2), (9, 0), (10, 10), (18, 3), (19, 2), (38, 10))},
    "text": _plain(pa.string(), TEXT),
    "large text": _plain(pa.large_string(), TEXT),
    "text view": _plain(pa.string_view(), TEXT),
    "category": Kind(TEXT, _categories),
    "json": _extension(pa.json_(pa.string()), st.sampled_from(["{}", "1", '"a"', '{"b": [1, null]}', "null", " 2"])),
    "bytes": _plain(pa.binary(), st.binary(max_size=4)),
    "large bytes": _plain(pa.large_binary(), st.binary(max_size=4)),
    "fixed bytes": _plain(pa.binary(3), st.binary(min_size=3, max_size=3)),
    "uuid": _extension(pa.uuid(), UUIDS),
    "date": _viewed(pa.int32(), pa.date32(), DAYS),
    "time": _viewed(
        pa.int64(), pa.time64("us"), st.sampled_from([0, MICROS_PER_DAY - 1]) | st.integers(0, MICROS_PER_DAY - 1)
    ),
    "time ms": _viewed(pa.int32(), pa.time32("ms"), st.integers(0, 86_399_999)),
    **{f"timestamp {u}": _instants(u) for u in ("s", "ms", "us", "ns")},
    "timestamptz": _instants("us", "UTC"),
    "timestamptz of Berlin": _instants("us", "Europe/Berlin"),
    "timestamptz ms": _instants("ms", "+05:30"),
    "boolean": _plain(pa.bool_(), st.booleans()),
    "list": _plain(pa.list_(pa.int32()), st.lists(st.none() | SMALL, max_size=3), is_flat=False),
    "large list": _plain(pa.large_list(pa.string()), st.lists(st.none() | TEXT, max_size=3), is_flat=False),
    "fixed list": _plain(
        pa.list_(pa.float32(), 2), st.lists(st.sampled_from([None, float("nan"), 1.5]), min_size=2, max_size=2),
        is_flat=False,
    ),
    "struct": _plain(
        _STRUCT, st.fixed_dictionaries({"b": st.none() | SMALL, "t": st.none() | TEXT}), is_flat=False
    ),
    "structs": _plain(
        pa.struct([("s", _STRUCT), ("l", pa.list_(_STRUCT)), ("d", pa.float64())]),
        st.fixed_dictionaries(
            {
                "s": st.none() | st.fixed_dictionaries({"b": SMALL, "t": TEXT}),
                "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"b": SMALL, "t": TEXT}), max_size=2),
                "d": st.sampled_from([None, 1.0, float("nan"), float("inf")]),
            }
        ),
        is_flat=False,
    ),
    "map": _plain(
        pa.map_(pa.string(), pa.int32()),
        st.dictionaries(TEXT, st.none() | SMALL, max_size=2).map(lambda pairs: [*pairs.items()]),
        is_flat=False,
    ),
}  # fmt: skip
#: Kinds of which a batch can have more distinct values than ranks have bits.
NUMEROUS: dict[str, Callable[[Any], Any]] = {
    "int64": int,
    "uint32": int,
    "text": str,
    "large text": lambda n: f"é{n:09d}",
    "timestamp us": int,
    "decimal19": lambda n: Decimal(int(n)),
    "uuid": lambda n: uuid.UUID(int=int(n) * 2**90).bytes,
}


@dataclass(frozen=True)
class RandomBatch:
    """Rows with an `id` that is unique, and the kind of each other column."""

    table: pa.Table
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain(self) -> pa.Table:
        """The same rows without slices and chunks, which DuckDB could misread."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table.combine_chunks())
        return pa.ipc.open_stream(sink.getvalue()).read_all()


@st.composite
def random_batches(
    draw: st.DrawFn, *, kinds: list[str] | None = None, columns_max: int = 4, rows: list[int] | None = None
) -> RandomBatch:
    """Draw a batch: few values of each column at random places, as a slice of a longer table or in several chunks."""
    count = draw(st.sampled_from(rows or [1, 2, 7, 60, 350, 2_500]))
    names = draw(st.lists(st.sampled_from(NAMES), max_size=columns_max, unique=True))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    before, after = draw(st.sampled_from([(0, 0), (3, 0), (0, 9), (13, 6)]))
    total = before + count + after
    is_sorted = draw(st.booleans())
    arrays: dict[str, pa.Array] = {"id": pa.array(np.arange(total) if is_sorted else chance.permutation(total))}
    chosen: dict[str, str] = {}
    for name in names:
        kind = draw(st.sampled_from(kinds or list(KINDS)))
        chosen[name] = kind
        if kind in NUMEROUS and draw(st.integers(0, 3)) == 0:
            pool = [NUMEROUS[kind](n) for n in np.sort(chance.integers(0, 2**31, total))]
        else:
            pool = draw(st.lists(KINDS[kind].values, min_size=1, max_size=6))
        if draw(st.booleans()):
            pool = [*pool, None]
        if draw(st.integers(0, 9)) == 0:
            pool = [None]
        picked = chance.integers(0, len(pool), total)
        picked = np.sort(picked) if is_sorted else picked
        arrays[name] = KINDS[kind].make([pool[n] for n in picked])
    table = pa.table(arrays)
    if draw(st.booleans()):
        cut = total // 2
        table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    return RandomBatch(table.slice(before, count), chosen)
