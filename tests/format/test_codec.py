"""The encoding of log files: round trips, compatibility with programs of IceDB v3, and damaged bytes."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb.errors import CorruptLog
from icedb.format.codec import decode, encode
from icedb.format.keys import Keys
from icedb.format.records import LogFile, LogTombstoneRecord, Marker

KEYS = Keys("t")
KEY = KEYS.log_file(1_700_000_000_000, merged=False, writer="w")

times = st.integers(min_value=0, max_value=2**45)
text = st.text(max_size=12)
stats = st.one_of(
    st.just(msgspec.UNSET),
    st.builds(lambda d: msgspec.Raw(json.dumps(d).encode()), st.dictionaries(text, st.tuples(text, text, times))),
)
markers = st.builds(
    Marker,
    key=st.builds(lambda n: f"t/_data/d=ü%2F/{n}.parquet", times),
    bytes=times,
    created_ms=times,
    tombstoned_ms=st.none() | times,
    rows=st.none() | times,
    stats=stats,
)
tombstones = st.builds(LogTombstoneRecord, key=st.builds(lambda n: f"t/_log/{n}.jsonl", times), created_ms=times)
epochs = st.one_of(
    st.just((None, ())),
    st.sets(st.integers(1, 99), min_size=1).map(lambda le: (max(le), tuple(sorted(le)))),
)


@st.composite
def log_files(draw: st.DrawFn) -> LogFile:
    epoch, live_epochs = draw(epochs)
    return LogFile(
        t_ms=draw(times),
        schema=draw(st.dictionaries(text.filter(lambda c: c and "\0" not in c), text, max_size=4)),
        markers=tuple(draw(st.lists(markers, max_size=4))),
        tombstones=tuple(draw(st.lists(tombstones, max_size=3))),
        epoch=epoch,
        live_epochs=live_epochs,
        void=draw(st.booleans()),
        horizon_ms=draw(times),
        txn=draw(st.dictionaries(text, st.tuples(times, times), max_size=2)),
    )


@pytest.mark.long
@given(log_files())
def test_a_log_file_round_trips(file: LogFile) -> None:
    body = encode(file)
    again = decode(body, KEY, KEYS)
    assert again == file
    assert encode(again) == body


@pytest.mark.long
@given(log_files())
def test_a_v3_program_reads_our_log_files(file: LogFile) -> None:
    body = encode(file).decode()
    assert not body.endswith("\n"), "v3 parses every line, also an empty last one"
    lines = body.split("\n")
    header = json.loads(lines[0])
    assert header["v"] == 1
    assert header["t"] == file.t_ms
    assert json.loads(lines[header["sch"]]) == file.schema
    # As v3 parses it: log tombstones from `tmb` to `f`, part markers from `f` on.
    dead = lines[header["tmb"] : header["f"]] if "tmb" in header else []
    assert [(x["p"], x["t"]) for x in map(json.loads, dead)] == [(t.key, t.created_ms) for t in file.tombstones]
    parts = [json.loads(line) for line in lines[header["f"] :]]
    assert [(x["p"], x["b"], x["t"], x.get("tmb")) for x in parts] == [
        (m.key, m.bytes, m.created_ms, m.tombstoned_ms) for m in file.markers
    ]


V3_HEADER = {"v": "1", "t": 1700000000000, "sch": 1, "f": 2}
V3_SCHEMA = {"user_id": "VARCHAR", "ts": "BIGINT"}
V3_MARKERS = [
    {"p": "t/_data/cust=a/d=2023-02-11/1.parquet", "b": 470, "t": 1700000000000},
    {"p": "t/_data/cust=b/d=2023-02-11/2.parquet", "b": 471, "t": 1699999999999, "tmb": 1700000000000},
]


def v3_body(header: dict[str, object], *rest: object) -> bytes:
    """Return a body as v3 programs write it: json.dumps with its spaces."""
    return "\n".join(json.dumps(line) for line in (header, *rest)).encode()


@pytest.mark.parametrize("version", ["1", 1])
def test_a_log_file_of_a_v3_program_is_read(version: object) -> None:
    body = v3_body({**V3_HEADER, "v": version}, V3_SCHEMA, *V3_MARKERS)
    assert b'{"v": ' in body
    assert b", " in body
    file = decode(body, KEY, KEYS)
    assert (file.t_ms, file.schema) == (1700000000000, V3_SCHEMA)
    assert (file.tombstones, file.epoch, file.void, file.txn) == ((), None, False, {})
    assert [(m.key, m.bytes, m.created_ms, m.tombstoned_ms, m.rows) for m in file.markers] == [
        ("t/_data/cust=a/d=2023-02-11/1.parquet", 470, 1700000000000, None, None),
        ("t/_data/cust=b/d=2023-02-11/2.parquet", 471, 1699999999999, 1700000000000, None),
    ]


def test_a_merged_log_file_of_a_v3_program_is_read() -> None:
    tombstone = {"p": "t/_log/1699999999998_w.jsonl", "t": 1700000000000}
    body = v3_body({**V3_HEADER, "tmb": 2, "f": 3}, V3_SCHEMA, tombstone, *V3_MARKERS)
    file = decode(body, KEY, KEYS)
    assert file.tombstones == (LogTombstoneRecord("t/_log/1699999999998_w.jsonl", 1700000000000),)
    assert len(file.markers) == 2


def test_a_header_without_a_part_line_has_no_markers() -> None:
    header = {"v": 1, "t": 5, "sch": 1}
    assert decode(v3_body(header, {}), KEY, KEYS) == LogFile(5, {})
    assert decode(v3_body({**header, "f": 2}, {}), KEY, KEYS) == LogFile(5, {})
    only_tombstones = decode(v3_body({**header, "tmb": 2}, {}, {"p": "t/_log/x", "t": 1}), KEY, KEYS)
    assert only_tombstones.tombstones == (LogTombstoneRecord("t/_log/x", 1),)


def test_keys_of_a_later_version_are_ignored() -> None:
    header = {**V3_HEADER, "later": [1, {}]}
    marker = {**V3_MARKERS[0], "h": "hash", "s": {"ts": [1, 2, 0, "more"]}}
    [read] = decode(v3_body(header, V3_SCHEMA, marker), KEY, KEYS).markers
    assert read.bytes == 470


MARKER = V3_MARKERS[0]
DAMAGE = [
    ("nothing", b""),
    ("no JSON", b"\xff\xfe"),
    ("an empty first line", b"\n{}"),
    ("a header that is a list", b"[]\n{}"),
    ("a header without t", v3_body({"v": 1, "sch": 1, "f": 2}, {})),
    ("another version", v3_body({**V3_HEADER, "v": 2}, {})),
    ("another version as text", v3_body({**V3_HEADER, "v": "3.1"}, {})),
    ("no schema line", v3_body(V3_HEADER)),
    ("a schema line beyond the end", v3_body({**V3_HEADER, "sch": 9}, {})),
    ("a negative line", v3_body({**V3_HEADER, "sch": -1}, {})),
    ("part markers beyond the end", v3_body({**V3_HEADER, "f": 3}, {})),
    ("a schema that is a list", v3_body(V3_HEADER, [])),
    ("a schema of numbers", v3_body(V3_HEADER, {"a": 1})),
    ("a marker without bytes", v3_body(V3_HEADER, {}, {"p": "t/_data/x", "t": 1})),
    ("a marker that is null", v3_body(V3_HEADER, {}, None)),
    ("a cut line", v3_body(V3_HEADER, {}, MARKER)[:-5]),
    ("a newline at the end", v3_body(V3_HEADER, {}, MARKER) + b"\n"),
    ("a cut first line", v3_body(V3_HEADER, {})[:10]),
    ("part markers before tombstones", v3_body({**V3_HEADER, "tmb": 3, "f": 2}, {}, MARKER, {"p": "t/_log/x", "t": 1})),
    ("an epoch that is not live", v3_body({**V3_HEADER, "e": 3, "le": [1, 2]}, {})),
    ("an epoch without live epochs", v3_body({**V3_HEADER, "e": 3}, {})),
    ("a part of another table", v3_body(V3_HEADER, {}, {**MARKER, "p": "other/_data/x.parquet"})),
    ("a part that leaves the table", v3_body(V3_HEADER, {}, {**MARKER, "p": "t/_data/../../x.parquet"})),
    ("a part with an empty step", v3_body(V3_HEADER, {}, {**MARKER, "p": "t/_data//x.parquet"})),
    ("a part among the log files", v3_body(V3_HEADER, {}, {**MARKER, "p": "t/_log/x.parquet"})),
    ("a tombstone of a foreign log", v3_body({**V3_HEADER, "tmb": 2, "f": 3}, {}, {"p": "other/_log/x", "t": 1})),
]


@pytest.mark.parametrize("body", [d[1] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_a_damaged_log_file_raises_an_error_that_names_it(body: bytes) -> None:
    with pytest.raises(CorruptLog, match="Do not delete it") as caught:
        decode(body, KEY, KEYS)
    assert caught.value.key == KEY
    assert KEY in str(caught.value)


@pytest.mark.long
@given(log_files(), st.data())
def test_a_log_file_that_was_cut_anywhere_in_a_line_is_damage(file: LogFile, data: st.DataObject) -> None:
    body = encode(file)
    at = data.draw(st.integers(0, len(body) - 1))
    if body[at : at + 1] == b"\n" and at > body.index(b"\n"):
        return  # whole lines are missing, which v3 files do not record
    with pytest.raises(CorruptLog):
        decode(body[:at], KEY, KEYS)


@pytest.mark.long
@given(log_files(), st.integers(-2, 3))
def test_a_header_with_a_wrong_part_line_skips_no_marker(file: LogFile, shift: int) -> None:
    body = encode(file)
    first, rest = body.split(b"\n", 1)
    header = msgspec.json.decode(first)
    header["f"] += shift
    moved = msgspec.json.encode(header) + b"\n" + rest
    try:
        read = decode(moved, KEY, KEYS)
    except CorruptLog:
        assert shift != 0
    else:
        assert read.markers == file.markers
