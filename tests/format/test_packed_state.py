"""Log files and states in columns have the same content as those of marker objects."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Table
from icedb.errors import CorruptLog, InvariantViolated
from icedb.format import codec
from icedb.format.codec import decode, encode
from icedb.format.commit_draft import CommitDraft, check_draft, draft
from icedb.format.keys import Keys
from icedb.format.packed_markers import MarkerColumns
from icedb.format.packed_state import MarkerView, PartColumns
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import StoredLogFile, TableState, live_markers, replay
from icedb.reader.lazy_parts import LiveParts
from tests.support.tables.packed_states import columns_from

KEYS = Keys("table")
PREFIX = KEYS.data_prefix
RAW = (b"null", b'{"a":[1, 2,0]}', '{"é":["x","y",3]}'.encode(), b"7")


# ---------------------------------------------------------------------------------------------------- any log files

IDS = st.integers(0, 5).map(lambda n: f"{n:032x}")
# Ids that differ only at their end.
NEAR = st.sampled_from(["f" * 31 + "0", "f" * 31 + "1", "0" * 31 + "f"])
NAMES = st.one_of(
    IDS.map(lambda i: f"{i}.parquet"),
    NEAR.map(lambda i: f"{i}.parquet"),
    st.sampled_from(["F" * 32 + ".parquet", "d=1", "a.parquet", "é.parquet", "0" * 32, " " * 32 + ".parquet"]),
)
PACKED_NAMES = st.one_of(IDS, NEAR).map(lambda i: f"{i}.parquet")
FOLDERS = st.sampled_from(["", "d=1/", "d=1/e=2/", "d=2/", "d=\u00fc/"])
FLAT_FOLDERS = st.sampled_from(["d=1/", "d=2/", "d=\u00fc/"])
TIMES = st.integers(1, 6)
DIGESTS = st.one_of(st.none(), st.just("ab" * 16), st.just("AB" * 16), st.just("short"))


def markers(folders: Any, names: Any) -> st.SearchStrategy[Marker]:
    return st.builds(
        Marker,
        key=st.tuples(folders, names).map(lambda t: PREFIX + "".join(t)),
        bytes=st.sampled_from([0, 1, 2**40]),
        created_ms=TIMES,
        tombstoned_ms=st.one_of(st.none(), st.none(), TIMES),
        rows=st.one_of(st.none(), st.integers(0, 9)),
        stats=st.one_of(st.just(msgspec.UNSET), st.sampled_from(RAW).map(msgspec.Raw)),
        digest=DIGESTS,
        moved=st.booleans(),
    )


MARKERS = st.one_of(
    st.lists(markers(FOLDERS, NAMES), max_size=6),
    st.lists(markers(FLAT_FOLDERS, PACKED_NAMES), max_size=6),
)


@st.composite
def logs(draw: Any) -> list[StoredLogFile]:
    """Draw log files of programs with and without epochs, which replace earlier ones or only tombstone them."""
    files: list[StoredLogFile] = []
    flat = draw(st.booleans())
    some = st.lists(markers(FLAT_FOLDERS, PACKED_NAMES) if flat else markers(FOLDERS, NAMES), max_size=6)
    for n in range(draw(st.integers(1, 5))):
        epoch = n + 1 if draw(st.booleans()) else None
        replaced = draw(st.lists(st.sampled_from([f.key for f in files]), unique=True)) if files else []
        live = tuple(e for f in files if (e := f.file.epoch) is not None and draw(st.booleans()))
        file = LogFile(
            draw(TIMES),
            {},
            tuple(draw(some)),
            tuple(LogTombstoneRecord(k, draw(TIMES)) for k in replaced),
            epoch=epoch,
            live_epochs=() if epoch is None else (*live, epoch),
        )
        name = KEYS.log_file(
            file.t_ms, merged=file.carries_tombstones, writer=f"w{n}" + (f".e{epoch}" if epoch else "")
        )
        files.append(StoredLogFile(name, file, draw(TIMES)))
    return files


def read(files: list[StoredLogFile]) -> list[StoredLogFile]:
    return [StoredLogFile(f.key, decode(encode(f.file), f.key, KEYS), f.stored_ms) for f in files]


def same(columns: TableState, few: TableState) -> None:
    keys = sorted(few.parts)
    assert list(columns.parts) == keys
    assert dict(columns.parts.items()) == few.parts
    assert list(columns.parts.values()) == [few.parts[k] for k in keys]
    for key in keys:
        assert columns.parts[key] == few.parts[key]
        named, expected = columns.parts_named[key], few.parts_named[key]
        assert named.by == expected.by
        assert sorted(named.tombstoned_by_ms) == sorted(expected.tombstoned_by_ms)
        assert key + "x" not in columns.parts
    assert columns.live == few.live
    for view in (v for v in (columns.live, columns.dead) if isinstance(v, MarkerView)):
        assert view.key_texts().to_pylist() == list(view.keys)
        assert view.key_checksums().to_pylist() == [crc32(key.encode()) for key in view.keys]
    assert list(columns.dead) == list(few.dead)
    for at_ms in range(8):
        assert list(live_markers(columns, at_ms)) == list(live_markers(few, at_ms))


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(logs(), st.integers(0, 5))
def test_a_state_in_columns_is_the_state_of_few_markers(files: list[StoredLogFile], earlier: int) -> None:
    few = replay(files, table="table")
    with columns_from(1):
        large = read(files)
        same(replay(large, table="table"), few)
        same(replay(files, table="table"), few)  # of small log files
        mixed = [files[n] if n % 2 else large[n] for n in range(len(files))]
        previous = replay([f for f in mixed[:earlier] if not f.file.live_epochs], table="table")
        same(replay(mixed, table="table", previous=previous), few)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(MARKERS.filter(len), MARKERS)
def test_markers_in_columns_are_written_as_they_were_read(some: list[Marker], more: list[Marker]) -> None:
    body = encode(LogFile(1, {"a": "BIGINT"}, (*some, *more)))
    with columns_from(1), patch.object(codec, "_PIECE_BYTES", 100):
        file = decode(body, "table/_log/x", KEYS)
    assert isinstance(file.markers, MarkerColumns)
    assert encode(file) == body
    assert file.markers == (*some, *more)
    assert [file.markers[n] for n in range(-1, len(some))] == [(*some, *more)[n] for n in range(-1, len(some))]
    assert file.markers[1:3] == tuple([*some, *more][1:3])
    assert file.carries_tombstones == any(m.tombstoned_ms is not None for m in (*some, *more))
    assert list(file.markers.tombstoned()) == [m for m in (*some, *more) if m.tombstoned_ms is not None]


def test_columns_hold_numbers_of_any_size_and_texts_of_many_lines() -> None:
    sizes = [0, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)]
    some = [
        Marker(f"{PREFIX}d={n % 3}/{n:032x}.parquet", size, other, rows=rows, digest=f"{n:032x}")
        for n, (size, other) in enumerate(zip(sizes, reversed(sizes), strict=True))
        for rows in (None, size)
    ]
    odd = [
        Marker(f"{PREFIX}a\nb.parquet", 1, 1, digest="0" * 15 + "\n" + "0" * 16, stats=msgspec.Raw(b"[1,\n2]")),
        Marker(f"{PREFIX}{'0' * 32}.parquet", 1, 1, digest=f"{'0' * 32}\n{'0' * 32}", stats=msgspec.Raw(b"[1,2]")),
    ]
    for chosen in ([m] for m in (*some, *odd)):
        assert MarkerColumns.of(chosen) == tuple(chosen)
    for upto in range(2, len(some)):
        assert MarkerColumns.of(some[:upto]) == tuple(some[:upto])
    assert MarkerColumns([some[:3], odd[:], some[3:]]) == (*some[:3], *odd, *some[3:])  # each piece with its own types


# ---------------------------------------------------------------------------------------------------- drafts


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.data(), logs())
def test_a_log_file_that_replaces_others_is_the_same(data: Any, files: list[StoredLogFile]) -> None:
    few = replay(files, table="table")
    keys = sorted(few.parts)
    dead = data.draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    gone = [m.key for m in few.dead if m.key not in dead]
    forget = data.draw(st.lists(st.sampled_from(gone), unique=True)) if gone else []
    replaces = few.replaceable([*dead, *forget], t_ms=9)
    new = [Marker(f"{PREFIX}new/{n:032x}.parquet", 1, 1) for n in range(data.draw(st.integers(0, 2)))]
    with columns_from(1):
        large = replay(read(files), table="table")
        assert large.replaceable([*dead, *forget], t_ms=9) == replaces
        drafts = [
            draft(state, t_ms=9, add=new, tombstone=dead, replaces=replaces, forget=forget) for state in (few, large)
        ]
        assert encode(drafts[0].file) == encode(drafts[1].file)
        assert refusal(large, drafts[1]) == refusal(few, drafts[0])
        if drafts[1].file.markers:
            lacking = replace(drafts[1], file=replace_markers(drafts[1].file, drafts[1].file.markers[1:]))
            assert refusal(large, lacking) == refusal(few, lacking)


def replace_markers(file: LogFile, some: Sequence[Marker]) -> LogFile:
    return msgspec.structs.replace(file, markers=some)


def refusal(state: TableState, planned: CommitDraft) -> str | None:
    try:
        check_draft(state, planned)
    except InvariantViolated as error:
        return str(error)
    return None


# ---------------------------------------------------------------------------------------------------- many parts


def many(count: int, folders: int = 7) -> LogFile:
    def marker(n: int) -> Marker:
        stats = msgspec.Raw(msgspec.json.encode({"n": [n, n + 9, 0], "s": [f"a{n}", f"b{n}", 1]}))
        digits = hashlib.sha256(str(n).encode()).hexdigest()
        key = f"{PREFIX}d={n % folders}/{digits[:32]}.parquet"
        return Marker(key, n, 1 + n % 5, rows=10, stats=stats, digest=digits[32:])

    return LogFile(9, {"n": "BIGINT", "s": "VARCHAR"}, tuple(map(marker, range(count))))


def stored(name: str, file: LogFile) -> StoredLogFile:
    key = KEYS.log_file(file.t_ms, merged=file.carries_tombstones, writer=name)
    return StoredLogFile(key, decode(encode(file), key, KEYS), file.t_ms)


@pytest.mark.long
def test_a_part_takes_little_memory() -> None:
    large = stored("w", many(50_000))
    state = replay([large], table="table")
    assert isinstance(large.file.markers, MarkerColumns)
    assert isinstance(state.parts, PartColumns)
    assert len(state.live) == 50_000
    assert state.parts.nbytes / 50_000 <= 200, "bytes of a part, its statistics included"


def test_a_large_log_file_holds_the_greatest_numbers_and_refuses_greater_ones() -> None:
    most = 2**53 - 1
    odd = Marker(f"{PREFIX}a.parquet", most, 1, rows=most)
    file = replace_markers(many(5_000), (*many(5_000).markers, odd))
    assert encode(stored("w", file).file) == encode(file)
    state = replay([stored("w", file)], table="table")
    assert (len(state.live), state.parts[odd.key]) == (5_001, odd)
    for larger in (Marker(f"{PREFIX}a.parquet", most + 1, 1), Marker(f"{PREFIX}a.parquet", 1, 1, rows=most + 1)):
        with pytest.raises(CorruptLog, match="9007199254740991"):
            stored("w", replace_markers(many(5_000), (*many(5_000).markers, larger)))


@pytest.mark.parametrize(
    "key", ["table/x", "elsewhere/a.parquet", f"{PREFIX}../a.parquet", f"{PREFIX}d=1//a", f"{PREFIX}a\0", ""]
)
@pytest.mark.parametrize("others", [0, 5_000])
def test_a_large_log_file_names_no_part_outside_its_table(key: str, others: int) -> None:
    file = many(others)
    file = replace_markers(file, (*file.markers, Marker(key, 1, 1)))
    with columns_from(1), pytest.raises(CorruptLog, match="names"):
        stored("w", file)
    body = encode(many(5_000)).replace(b'"b":4321', b'"b":true')
    with pytest.raises(CorruptLog, match="is not what its section says"):
        decode(body, "table/_log/x", KEYS)


def test_a_small_commit_on_a_large_log_file_takes_its_columns_over() -> None:
    large = stored("a", many(20_000))
    previous = replay([large], table="table")
    first = large.file.markers[0]
    later = LogFile(10, {}, (Marker(f"{PREFIX}d=new/{'0' * 32}.parquet", 1, 10), Marker(first.key, 1, 10, 10)))
    state = replay([large, stored("b", later)], table="table", previous=previous)
    assert state.columns is not None
    assert state.columns._groups[0].columns is large.file.markers
    assert len(state.live) == len(previous.live) == 20_000
    assert state.parts[first.key].tombstoned_ms == 10
    assert len(live_markers(state, 9)) == 20_000
    assert len(state.parts_named[first.key].by) == 2
    assert replay([large], table="table", previous=previous).parts is previous.parts


@pytest.mark.long
def test_parts_of_a_large_table(tmp_path: Path) -> None:
    """Parts of a snapshot, and their pruning by a predicate, are as for a small table."""
    table = Table.create(str(tmp_path), partition_by=["k"], sort_by=["n"])
    for start in range(0, 12, 3):
        table.insert([{"k": n % 4, "n": n, "s": str(n)} for n in range(start, start + 3)])
    few = table.snapshot()
    with columns_from(1):
        large = Table.open(str(tmp_path)).snapshot(as_of=few.as_of_ms)
    assert isinstance(large.parts, LiveParts)
    assert large.parts == few.parts
    assert few.parts == large.parts
    assert large.parts[1:3] == few.parts[1:3]
    assert large.parts[-1] == few.parts[-1]
    assert pickle.loads(pickle.dumps(large.parts)) == few.parts
    assert (large.rows, large.bytes, large.id, large.partitions()) == (few.rows, few.bytes, few.id, few.partitions())
    for where in ("k = 1", "n < 4", "k = 1 AND n > 3", "k = 1 OR n > 9", "s = '7'", "n IS NULL", "k + n = 3", "true"):
        for _ in range(2):  # the second time from a cache
            assert large.files(where) == few.files(where), where
    assert large.in_partitions("k > 1") == few.in_partitions("k > 1")
    assert large.query("SELECT count(*), sum(n) FROM t WHERE n > 5").fetchall() == [(6, 51)]
