"""docs/format.md: the library writes and reads its examples, and agrees with a reader made from the page alone."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.format.codec import decode, encode
from icedb.format.keys import Keys, decode_partition, encode_partition
from icedb.format.records import Header, LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import StoredLogFile, TableState, live_markers, replay
from icedb.format.table_spec import Merging, TableSpec, decode_spec, encode_spec
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS, Timing
from icedb.operations.retention.pins import pin
from icedb.operations.retention.restore import restore
from icedb.reader.history import CommitKind
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.transaction.pin_objects import read_pins
from icedb.util.times import COUNT_MAX
from icedb.writer.spec_validation import checked_spec
from tests.support.site.page_reader import PageReading, Refresher, read_as_the_page_says

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
PREFIX = "lake/clicks"
#: Key -> content, in the order of the page.
OBJECTS = dict(re.findall(rf"^`({PREFIX}/\S+)`\n\n```jsonl?\n(.*?)\n```$", PAGE, flags=re.DOTALL | re.MULTILINE))
LOG = {key: body.encode() for key, body in OBJECTS.items() if "/_log/" in key}
KEYS = Keys(PREFIX)


def tables_of(heading: str) -> list[list[list[str]]]:
    """Return the cells of the page's tables whose heading line begins with this."""
    bodies = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    return [[[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()] for body in bodies]


def block_of(language: str) -> str:
    [text] = re.findall(rf"^```{language}\n(.*?)\n```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return text


def table_of(heading: str) -> list[list[str]]:
    [table] = tables_of(heading)
    return table


def log_of(times: str) -> dict[str, bytes]:
    return {key: body for key, body in LOG.items() if str(KEYS.parse_log_file(key).t_ms) in times.split()}


def state_of(log: Mapping[str, bytes]) -> TableState:
    return replay((StoredLogFile(k, decode(b, k, KEYS), 0) for k, b in log.items()), table=PREFIX)


def short(keys: set[str]) -> str:
    return " ".join(sorted(key.rsplit("/", 1)[1][:4] for key in keys))


def test_the_page_has_examples() -> None:
    assert len(LOG) == 6
    assert len(OBJECTS) == 9


@pytest.mark.parametrize("key", LOG)
def test_an_example_is_decoded_and_encoded_to_the_same_bytes(key: str) -> None:
    file, name = decode(LOG[key], key, KEYS), KEYS.parse_log_file(key)
    assert encode(file) == LOG[key]
    assert (name.t_ms, name.merged, name.epoch) == (file.t_ms, file.carries_tombstones, file.epoch)


@pytest.mark.parametrize("key", [KEYS.epoch_claim(1), KEYS.txn_claim("orders", 17)])
def test_the_examples_of_claims_contain_their_log_files(key: str) -> None:
    claim = json.loads(OBJECTS[key])
    assert claim["body"] == OBJECTS[claim["key"]]
    assert claim["t"] == json.loads(claim["body"].split("\n")[0])["t"]


def test_the_example_of_a_spec_is_valid() -> None:
    body = OBJECTS[KEYS.spec].encode()
    spec = decode_spec(body, table=PREFIX, key=KEYS.spec)
    assert encode_spec(spec) == body
    fields = [f.encode_name for f in msgspec.structs.fields(TableSpec)]
    always = list(json.loads(body))
    assert always == fields[: fields.index("log_uri")]
    assert [name.strip("`") for name, *_ in table_of("key | meaning | when missing")] == fields


def test_the_example_of_optional_spec_keys_is_encoded_so() -> None:
    text = block_of("json spec")
    spec = decode_spec(text.encode(), table=PREFIX, key=KEYS.spec)
    assert json.loads(encode_spec(spec)) == json.loads(encode_spec(TableSpec())) | json.loads(text)
    assert checked_spec(spec, table=PREFIX) == spec


def test_the_kinds_of_merging_are_on_the_page() -> None:
    kinds = {k.__struct_config__.tag: {f.encode_name for f in msgspec.structs.fields(k)} for k in get_args(Merging)}
    documented = {kind.strip("`"): {"by", *re.findall(r"`(\w+)`", keys)} for kind, _, keys in table_of("`kind`")}
    assert documented == kinds


def test_every_key_of_a_log_file_is_on_the_page() -> None:
    kinds = (Header, LogTombstoneRecord, Marker)
    records = [{f.encode_name for f in msgspec.structs.fields(kind)} for kind in kinds]
    assert [{name.strip("`") for name, *_ in table} for table in tables_of("key | type | meaning")] == records


def test_the_examples_of_carried_times_are_encoded_so() -> None:
    files = {}
    for name, writer in (("columns", "w.e3"), ("operations", "w.e9")):
        text = block_of(f"jsonl {name}")
        files[name] = decode(text.encode(), KEYS.log_file(1_795_263_600_000, merged=True, writer=writer), KEYS)
        assert encode(files[name]).decode() == text
    columns, operations = files["columns"], files["operations"]
    assert (columns.schema_ms, columns.column_ms) == (1_795_255_200_000, {"seen": 1_795_255_260_000})
    carried = {1_795_255_800_000: "merge", 1_795_256_400_000: "merge", 1_795_257_000_000: "restore"}
    assert (operations.operation, operations.operations) == ("merge_log", carried)


def test_the_names_of_operations_are_on_the_page() -> None:
    [text] = re.findall(r"^A commit records its operation as `op`:(.*?)\. A void", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", text)) == set(get_args(CommitKind)) - {"log", "void"}


def test_the_example_of_a_void_is_encoded_so() -> None:
    text = block_of("jsonl void")
    key = max(LOG)
    void = decode(text.encode(), key, KEYS)
    assert void == LogFile(decode(LOG[key], key, KEYS).t_ms, {}, epoch=4, live_epochs=(3, 4), void=True)
    assert encode(void).decode() == text


@pytest.mark.parametrize("row", table_of("after"), ids=lambda row: row[0])
def test_replay_of_the_examples_equals_the_page(row: list[str]) -> None:
    _, listed, epoch, ignored, live, rows = row
    state, reading = state_of(log_of(listed)), read_as_the_page_says(log_of(listed), f"{PREFIX}/")
    assert len(state.files) == len(listed.split())
    assert state.epoch == reading.epoch == int(epoch)
    assert {k for k in state.ignored if k in state.files} == set(log_of(ignored))
    assert state.ignored == reading.ignored
    assert short({m.key for m in state.live}) == short(reading.live()) == live
    assert sum(m.rows or 0 for m in state.live) == sum(reading.markers[p]["r"] for p in reading.live()) == int(rows)


@pytest.mark.parametrize("row", table_of("snapshot at"), ids=lambda row: row[0])
def test_snapshots_of_the_examples_equal_the_page(row: list[str]) -> None:
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


def write_examples(clock: ManualClock) -> tuple[dict[str, bytes], ClockedStore]:
    """Return all objects except parts that were ever written, and the store at the end."""
    clock.set(1_795_255_200_000)
    store = ClockedStore(clock, prefix=PREFIX)
    table = create_table(store, clock, partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user_id"])
    table = Table(dataclasses.replace(table.handle, writer="web-41-d4735e3a265e"))
    written: dict[str, bytes] = {}

    def note(act: Callable[[], object], *, minutes: int) -> None:
        act()
        written.update({k: o.body for k, o in store.objects.items() if "/_data/" not in k})
        clock.advance(minutes * MINUTE_MS)

    first = [(20, 23, 7, "open"), (21, 9, 7, "buy")]
    second = [(21, 10, 3, "open"), (21, 10, 7, None)]
    third = [(21, 10, 3, "buy")]
    note(lambda: table.insert(clicks(first)), minutes=1)
    note(lambda: table.insert(clicks(second)), minutes=4)
    note(lambda: table.insert(clicks(third), txn=("orders", 17)), minutes=5)
    note(table.merge, minutes=10)
    note(lambda: table.drop_partitions(["d=2026-11-20"]), minutes=120)
    note(table.cleanup, minutes=0)
    return written, store


def test_the_library_writes_the_examples(clock: ManualClock) -> None:
    written, store = write_examples(clock)
    for key, body in OBJECTS.items():
        assert without_contents(written[key].decode()) == without_contents(body), key
    assert {k for k in written if "/_log/" in k} == set(LOG)
    left = [k for k in store.objects if "/_log/" in k or "/_claims/" in k]
    assert sorted(left) == sorted([*sorted(LOG)[-2:], KEYS.epoch_claim(4), KEYS.probe])


def clicks(rows: Sequence[tuple[int, int, int, str | None]]) -> list[dict[str, object]]:
    return [{"ts": datetime(2026, 11, day, hour), "user_id": user, "event": event} for day, hour, user, event in rows]


def without_contents(text: str) -> str:
    """Remove sizes and digests of parts, which depend on the writer of Parquet."""
    return re.sub(r'(\\?"h\\?":\\?)"\w+', r'\1"', re.sub(r'(\\?"b\\?"):\d+', r"\1:0", text))


@pytest.mark.parametrize("row", table_of("value"), ids=lambda row: row[1])
def test_partition_values_are_encoded_as_documented(row: list[str]) -> None:
    words = {"null": None, "the empty text": ""}
    value = row[0].strip("`") if row[0].startswith("`") else words[row[0]]
    path = row[1].strip("`")
    assert encode_partition({"c": value}) == path
    assert decode_partition(path) == {"c": value}


def test_the_documented_times_are_the_defaults() -> None:
    units = {"minute": MINUTE_MS, "minutes": MINUTE_MS, "hour": HOUR_MS, "hours": HOUR_MS, "days": DAY_MS}
    defaults = {name.strip("`"): default.split() for name, default, *_ in table_of("name")}
    documented = {name: int(number) * units[unit] for name, (number, unit) in defaults.items()}
    assert documented == {name: getattr(Timing(), name) for name in Timing.__dataclass_fields__}


def check_same(table: Table, reading: PageReading) -> None:
    """Check that both readers agree about the present and each time of a change."""
    handle, state = table.handle, table.handle.read(fresh=True)
    assert (reading.epoch, reading.horizon, reading.schema) == (state.epoch, state.horizon_ms, dict(state.schema))
    assert reading.txn == {application: sequence for application, (sequence, _) in state.txn.items()}
    assert decode_spec(json.dumps(reading.spec).encode(), table=table.uri, key="") == table.spec
    assert reading.live() == {p.key for p in table.snapshot().parts}
    assert reading.columns(COUNT_MAX) == set(table.schema())
    rows = sum(reading.markers[p]["r"] for p in reading.live())
    assert rows == table.query("SELECT count(*) FROM t").fetchall()[0][0]
    pinned = {p.as_of_ms for p in read_pins(handle) if not p.expired(handle.clock.now_ms())}
    assert reading.pinned == pinned
    for at in sorted({m[k] for m in reading.markers.values() for k in ("t", "tmb") if k in m} | pinned):
        if at >= state.horizon_ms:
            assert reading.live(at) == {m.key for m in live_markers(state, at)}
            assert reading.columns(at) == set(table.snapshot(at).schema)
        elif at in pinned:
            assert reading.live(at) == {p.key for p in table.snapshot(at).parts}
        else:
            with pytest.raises(LookupError):
                reading.live(at)
            with pytest.raises(SnapshotExpired):
                table.snapshot(at)


def steps(table: Table) -> Iterator[object]:
    """Apply every operation of this version to a table, twice."""
    for n in range(2):
        for k in ("1", "2", None):
            yield table.insert([{"k": k, "n": 10 * n}, {"k": "a/b =ü", "n": n}])
        yield table.insert([{"k": "1", f"new_{n}": "x"}])
        yield table.insert([{"k": "1", "n": 1}], txn=("app", n))
        yield table.insert([{"k": "1", f"newer_{n}": "x"}], txn=("other", n))
        yield table.merge()
        yield table.insert([{"k": "1", "n": 1}], txn=("app", n))
        yield table.insert([{"k": "1", "n": 7}])
        at = pin(table.handle, f"before-{n}", None).as_of_ms
        yield at
        yield table.overwrite([{"k": "2", "n": 99}], partitions=["p=2"])
        yield table.alter(sort_by=["n", "k"] if n else ["k"])
        yield table.alter(drop_columns=[f"new_{n}"])
        yield table.rewrite_partition("p=2", "SELECT k, n + 1 AS n FROM t")
        yield table.delete("n = 7")
        yield table.drop_partitions("p = '1'")
        yield restore(table.handle, at)
        yield table.alter(drop_columns=[f"newer_{n}"])
        yield table.merge_log()
        yield table.drop_partitions("p = '1'")
        yield table.cleanup(grace_ms=0, allow_short_grace=True)


STEPS = 2 * 21


def read_store(store: ClockedStore, clock: ManualClock) -> PageReading:
    objects = dict(store.objects)
    stored_ms = {k: o.stored_ms for k, o in objects.items()}
    bodies = {k: o.body for k, o in objects.items()}
    return read_as_the_page_says(bodies, f"{store.location.prefix}/", stored_ms=stored_ms, now_ms=clock.now_ms())


def read_folder(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def stored_times(folder: Path) -> dict[str, int]:
    files = (f for f in folder.rglob("*") if f.is_file())
    return {f.relative_to(folder).as_posix(): f.stat().st_mtime_ns // 1_000_000 for f in files}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_reader_made_from_the_page_agrees_on_a_local_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", partition_by=["k AS p"], sort_by=["n"])
    done = 0
    for _ in steps(table):
        objects, stored_ms = read_folder(tmp_path / "t"), stored_times(tmp_path / "t")
        check_same(table, read_as_the_page_says(objects, "", stored_ms=stored_ms))
        done += 1
    assert done == STEPS


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_reader_made_from_the_page_agrees_on_a_table_in_two_stores(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    table = Table.create(data, partition_by=["k AS p"], sort_by=["n"], log_uri=log)
    for _ in steps(table):
        reading = read_as_the_page_says(
            read_folder(data), "", log_store=read_folder(log), stored_ms=stored_times(log), now_ms=0
        )
        check_same(Table.open(data), reading)
    assert {key.split("/")[0] for key in read_folder(data)} == {"_data", "_table.json"}
    assert {key.split("/")[0] for key in read_folder(log)} == {"_log", "_claims"}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_reader_made_from_the_page_agrees_at_every_hour(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k AS p"], sort_by=["n"])
    horizons, pins_needed = set(), 0
    for _ in steps(table):
        check_same(table, read_store(clocked, clock))
        clock.advance(HOUR_MS)
        table.cleanup()
        reading = read_store(clocked, clock)
        check_same(table, reading)
        horizons.add(reading.horizon)
        pins_needed += sum(at < reading.horizon for at in reading.pinned)
    assert len(horizons) > 3, "cleanup advanced no horizon"
    assert pins_needed > 3, "no pin was older than the horizon"


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_refreshing_reader_made_from_the_page_agrees(clocked: ClockedStore, clock: ManualClock) -> None:
    table, refresher = create_table(clocked, clock, partition_by=["k AS p"], sort_by=["n"]), Refresher()
    prefix = f"{clocked.location.prefix}/"
    for _ in steps(table):
        clock.advance(7 * MINUTE_MS)
        table.cleanup()
        objects = {k: o.body for k, o in clocked.objects.items()}
        log_files = refresher.refresh(objects, f"{prefix}_log/", clock.now_ms())
        some, everything = (read_as_the_page_says(files, prefix) for files in (log_files, objects))
        assert (some.live(), some.schema, some.txn) == (everything.live(), everything.schema, everything.txn)
        refresher.forget(some.ignored)
    assert refresher.partly > 20
    assert refresher.whole > 3
