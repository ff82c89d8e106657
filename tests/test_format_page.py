"""docs/format.md is true: the library writes and reads its examples, and a reader made from it alone agrees."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.format.codec import decode, encode
from icedb.format.names import Keys, decode_partition, encode_partition
from icedb.format.records import Header, LogFile, LogTombstone, Marker
from icedb.format.snapshot import LogState, StoredLogFile, live_markers, replay
from icedb.options import HOUR_MS, MINUTE_MS, Timing
from icedb.spec import decode_spec, encode_spec
from icedb.testing import ClockedStore, ManualClock, create_table

PAGE = (Path(__file__).parents[1] / "docs" / "format.md").read_text()
PREFIX = "lake/clicks"
#: Key -> content, in the order of the page.
OBJECTS = dict(re.findall(rf"^`({PREFIX}/\S+)`\n\n```jsonl?\n(.*?)\n```$", PAGE, flags=re.DOTALL | re.MULTILINE))
LOG = {key: body.encode() for key, body in OBJECTS.items() if "/_log/" in key}
KEYS = Keys(PREFIX)


# --------------------------------------------------------------------- a reader that knows the page and nothing else


@dataclass
class Reading:
    epoch: int
    ignored: set[str]
    markers: dict[str, dict[str, Any]]
    schema: dict[str, str]
    horizon: int

    def live(self, at: int | None = None) -> set[str]:
        if at is None:
            return {p for p, m in self.markers.items() if "tmb" not in m}
        if at < self.horizon:
            raise LookupError("expired")
        return {p for p, m in self.markers.items() if m["t"] <= at and ("tmb" not in m or m["tmb"] > at)}


def read_as_the_page_says(store: Mapping[str, bytes], prefix: str) -> Reading:
    """`store` holds the objects of one listing. Nothing of icedb is used."""
    files = {key: _parse(body) for key, body in store.items() if key.startswith(f"{prefix}_log/")}
    epochs = {header["e"]: key for key, (header, *_) in files.items() if "e" in header}
    assert len(epochs) == sum("e" in header for header, *_ in files.values()), "two log files of one epoch"
    head = max(epochs, default=0)
    live_epochs = set(files[epochs[head]][0]["le"]) if epochs else set()
    assert live_epochs <= epochs.keys(), "a torn listing"
    ignored = {key for e, key in epochs.items() if e not in live_epochs}
    ignored |= {dead["p"] for e in live_epochs for dead in files[epochs[e]][2]}
    markers: dict[str, dict[str, Any]] = {}
    schema: dict[str, str] = {}
    for header, columns, _, parts in (f for key, f in files.items() if key not in ignored):
        assert header["t"] > 0
        for column, type_ in columns.items():
            assert schema.setdefault(column, type_) == type_, "one column, two types"
        for part in parts:
            seen = markers.setdefault(part["p"], part)
            times = {k: min(m[k] for m in (seen, part) if k in m) for k in ("t", "tmb") if k in seen or k in part}
            markers[part["p"]] = {**part, **seen, **times}
    return Reading(head, ignored, markers, schema, max((h.get("hz", 0) for h, *_ in files.values()), default=0))


def _parse(body: bytes) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Header, schema, log tombstones, part markers."""
    lines = [json.loads(line) for line in body.decode().split("\n")]
    header = lines[0]
    assert header["v"] in (1, "1")
    parts_at = header.get("f", len(lines))
    return header, lines[header["sch"]], lines[header["tmb"] : parts_at] if "tmb" in header else [], lines[parts_at:]


# ------------------------------------------------------------------------------------------------ the page's examples


def tables_of(heading: str) -> list[list[list[str]]]:
    """The cells of the page's tables whose heading line begins so."""
    found = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    return [[[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()] for body in found]


def table_of(heading: str) -> list[list[str]]:
    [table] = tables_of(heading)
    return table


def log_of(times: str) -> dict[str, bytes]:
    return {key: body for key, body in LOG.items() if str(KEYS.parse_log_file(key).t_ms) in times.split()}


def state_of(log: Mapping[str, bytes]) -> LogState:
    return replay((StoredLogFile(k, decode(b, k, KEYS), 0) for k, b in log.items()), table=PREFIX)


def short(keys: set[str]) -> str:
    return " ".join(sorted(key.rsplit("/", 1)[1][:4] for key in keys))


def test_the_page_has_examples() -> None:
    assert len(LOG) == 5
    assert len(OBJECTS) == 7


@pytest.mark.parametrize("key", LOG)
def test_an_example_is_read_and_would_be_written_again_to_the_letter(key: str) -> None:
    file, name = decode(LOG[key], key, KEYS), KEYS.parse_log_file(key)
    assert encode(file) == LOG[key]
    assert (name.t_ms, name.merged, name.epoch) == (file.t_ms, file.carries_tombstones, file.epoch)


def test_the_example_of_a_claim_holds_its_log_file() -> None:
    claim = json.loads(OBJECTS[KEYS.epoch_claim(1)])
    assert claim["body"] == OBJECTS[claim["key"]]
    assert claim["t"] == json.loads(claim["body"].split("\n")[0])["t"]


def test_the_example_of_a_spec_is_one() -> None:
    body = OBJECTS[KEYS.spec].encode()
    spec = decode_spec(body, table=PREFIX, key=KEYS.spec)
    assert encode_spec(spec) == body
    assert list(json.loads(body)) == [name.strip("`") for name, *_ in table_of("key | meaning | when missing")]


def test_every_key_of_a_log_file_is_on_the_page() -> None:
    records = [{f.encode_name for f in msgspec.structs.fields(record)} for record in (Header, LogTombstone, Marker)]
    assert [{name.strip("`") for name, *_ in table} for table in tables_of("key | type | meaning")] == records


def test_the_example_of_a_void_is_what_is_written() -> None:
    [text] = re.findall(r"^```jsonl void\n(.*?)\n```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    key = max(LOG)
    void = decode(text.encode(), key, KEYS)
    assert void == LogFile(decode(LOG[key], key, KEYS).t_ms, {}, epoch=4, live_epochs=(3, 4), void=True)
    assert encode(void).decode() == text


@pytest.mark.parametrize("row", table_of("after"), ids=lambda row: row[0])
def test_the_examples_mean_what_the_page_says(row: list[str]) -> None:
    _, listed, epoch, ignored, live, rows = row
    state, reading = state_of(log_of(listed)), read_as_the_page_says(log_of(listed), f"{PREFIX}/")
    assert len(state.files) == len(listed.split())
    assert state.epoch == reading.epoch == int(epoch)
    assert {k for k in state.ignored if k in state.files} == set(log_of(ignored))
    assert state.ignored == reading.ignored
    assert short({m.key for m in state.live}) == short(reading.live()) == live
    assert sum(m.rows or 0 for m in state.live) == sum(reading.markers[p]["r"] for p in reading.live()) == int(rows)


@pytest.mark.parametrize("row", table_of("snapshot at"), ids=lambda row: row[0])
def test_the_past_of_the_examples_is_what_the_page_says(row: list[str]) -> None:
    as_of_ms = int(row[0])
    listings = {after: listed for after, listed, *_ in table_of("after")}
    for listed, expected in ((listings["the drop"], row[1]), (listings["the cleanup"], row[2])):
        state, reading = state_of(log_of(listed)), read_as_the_page_says(log_of(listed), f"{PREFIX}/")
        if expected == "expired":
            with pytest.raises(SnapshotExpired):
                live_markers(state, as_of_ms)
            with pytest.raises(LookupError):
                reading.live(as_of_ms)
        else:
            expected = expected.replace("none", "")
            assert short({m.key for m in live_markers(state, as_of_ms)}) == short(reading.live(as_of_ms)) == expected


def test_the_library_still_writes_the_examples(clock: ManualClock) -> None:
    clock.set(1_795_255_200_000)
    store = ClockedStore(clock, prefix=PREFIX)
    table = create_table(store, clock, partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user_id"])
    table.handle.writer = "web-41-d4735e3a265e"
    written: dict[str, bytes] = {}

    def note(act: Callable[[], object], *, minutes: int) -> None:
        act()
        written.update({k: o.body for k, o in store.objects.items() if "/_data/" not in k})
        clock.advance(minutes * MINUTE_MS)

    first = [(20, 23, 7, "open"), (21, 9, 7, "buy")]
    second = [(21, 10, 3, "open"), (21, 10, 7, None)]
    note(lambda: table.insert(clicks(first)), minutes=1)
    note(lambda: table.insert(clicks(second)), minutes=9)
    note(table.merge, minutes=10)
    note(lambda: table.drop_partitions(["d=2026-11-20"]), minutes=120)
    note(table.cleanup, minutes=0)
    for key, body in OBJECTS.items():
        assert without_sizes(written[key].decode()) == without_sizes(body), key
    assert {k for k in written if "/_log/" in k} == set(LOG)
    left = [k for k in store.objects if "/_log/" in k or "/_claims/" in k]
    assert sorted(left) == sorted([*sorted(LOG)[-2:], KEYS.epoch_claim(4), KEYS.probe])


def clicks(rows: list[tuple[int, int, int, str | None]]) -> list[dict[str, object]]:
    return [{"ts": datetime(2026, 11, day, hour), "user_id": user, "event": event} for day, hour, user, event in rows]


def without_sizes(text: str) -> str:
    """How many bytes a part has is for Parquet's writer to say."""
    return re.sub(r'(\\?"b\\?"):\d+', r"\1:0", text)


@pytest.mark.parametrize("row", table_of("value"), ids=lambda row: row[1])
def test_values_are_encoded_as_the_page_says(row: list[str]) -> None:
    words = {"null": None, "the empty text": ""}
    value = row[0].strip("`") if row[0].startswith("`") else words[row[0]]
    path = row[1].strip("`")
    assert encode_partition({"c": value}) == path
    assert decode_partition(path) == {"c": value}


def test_the_times_are_the_defaults() -> None:
    units = {"minute": MINUTE_MS, "minutes": MINUTE_MS, "hour": HOUR_MS, "hours": HOUR_MS}
    documented = {}
    for name, default, *_ in table_of("name"):
        number, unit = default.split()
        documented[name.strip("`")] = int(number) * units[unit]
    assert documented == {name: getattr(Timing(), name) for name in Timing.__dataclass_fields__}


def test_the_links_of_the_page_lead_somewhere() -> None:
    headings = {h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", PAGE, flags=re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        assert not file or (Path(__file__).parents[1] / "docs" / file).is_file(), target
        assert not anchor or anchor in headings, target


# ------------------------------------------------------------------------------------------------ a table of its own


def agrees(table: Table, store: Mapping[str, bytes], prefix: str) -> None:
    state, reading = table.handle.read(), read_as_the_page_says(store, prefix)
    assert (reading.epoch, reading.horizon, reading.schema) == (state.epoch, state.horizon_ms, dict(state.schema))
    assert reading.live() == {p.key for p in table.snapshot().parts}
    assert (
        sum(reading.markers[p]["r"] for p in reading.live()) == table.query("SELECT count(*) FROM t").fetchall()[0][0]
    )
    for at in sorted({m[k] for m in reading.markers.values() for k in ("t", "tmb") if k in m}):
        if at >= state.horizon_ms:
            assert reading.live(at) == {m.key for m in live_markers(state, at)}


def steps(table: Table) -> Iterator[object]:
    """Two rounds of everything that this version can do to a table."""
    for n in range(2):
        for k in ("1", "2", None):
            yield table.insert([{"k": k, "n": 10 * n}, {"k": "a/b =ü", "n": n}])
        yield table.insert([{"k": "1", f"new_{n}": "x"}])
        yield table.merge()
        yield table.insert([{"k": "1", "n": 7}])
        yield table.overwrite([{"k": "2", "n": 99}], partitions=["p=2"])
        yield table.drop_partitions("p = '1'")
        yield table.cleanup(grace_ms=0, allow_short_grace=True)


def test_a_reader_made_from_the_page_agrees_on_a_local_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", partition_by=["k AS p"], sort_by=["n"])
    done = 0
    for _ in steps(table):
        files = (f for f in (tmp_path / "t").rglob("*") if f.is_file())
        agrees(table, {f.relative_to(tmp_path / "t").as_posix(): f.read_bytes() for f in files}, "")
        done += 1
    assert done == 18


def test_a_reader_made_from_the_page_agrees_at_every_hour(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k AS p"], sort_by=["n"])
    horizons = set()
    for _ in steps(table):
        agrees(table, {k: o.body for k, o in clocked.objects.items()}, f"{clocked.location.prefix}/")
        clock.advance(HOUR_MS)
        table.cleanup()
        agrees(table, {k: o.body for k, o in clocked.objects.items()}, f"{clocked.location.prefix}/")
        horizons.add(table.handle.read().horizon_ms)
    assert len(horizons) > 3, "cleanup had something to forget"
