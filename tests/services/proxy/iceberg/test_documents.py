"""The metadata of buckets depends on the log and the visible parts alone, and any proxy computes it from its name."""

from __future__ import annotations

import asyncio
import io
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pytest

from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile, Marker
from icedb.format.timing import HOUR_MS
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.settings import IcebergSettings
from icedb.services.proxy.config.tenants import Scope, VirtualBucket
from icedb.services.proxy.iceberg.metadata_catalog import MetadataCatalog
from icedb.services.proxy.iceberg.names import DocumentName, ManifestName, parse_name
from icedb.services.proxy.iceberg.rest import RestError
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from tests.support.tables.packed_states import columns_from

ACME, RIVAL = ("u=1",), ("u=2",)


@dataclass(frozen=True)
class Metadata:
    """All objects that a bucket's document refers to, by address, with the document's own."""

    address: str
    objects: Mapping[str, bytes]

    @property
    def document(self) -> Any:
        return json.loads(self.objects[self.address])

    @property
    def values(self) -> list[Any]:
        """All keys and values of all objects, with the headers of Avro files, without structure."""
        avro = [fastavro.reader(io.BytesIO(b)) for b in self.objects.values() if b.startswith(b"Obj\x01")]
        documents = [json.loads(b) for b in self.objects.values() if not b.startswith(b"Obj\x01")]
        return list(scalars([documents, [[*one, one.metadata] for one in avro]]))


def scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from scalars([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for one in value:
            yield from scalars(one)
    else:
        yield value


def key_of(address: str) -> str:
    return address.removeprefix("s3://").partition("/")[2]


def records(body: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(body)))


class Proxy:
    """The metadata of a new process."""

    def __init__(self, bucket: VirtualBucket, *, refresh_ms: int = 0, **settings: Any) -> None:
        self.bucket = bucket
        options: dict[str, Any] = {}
        if bucket.table in STORES:
            store, clock = STORES[bucket.table]
            options = {"clock": clock, "open_table": lambda *_: open_table(store, clock).handle}
        self.catalog = MetadataCatalog(TableCatalog(refresh_ms=refresh_ms, **options), IcebergSettings(**settings))

    async def document(self, as_of_ms: int | None = None) -> tuple[str, bytes]:
        document = await self.catalog.document(self.bucket, as_of_ms)
        return document.address, document.body

    async def get(self, address: str) -> bytes:
        name, _, key = address.removeprefix("s3://").partition("/")
        _, _, time_text = name.partition("--")
        metadata_name = parse_name(key)
        assert metadata_name is not None, address
        return await self.catalog.find(self.bucket, int(time_text) if time_text else None, metadata_name)

    async def read(self, as_of_ms: int | None = None, *, newest_only: bool = False) -> Metadata:
        """Return the document with the objects of all snapshots, or of the newest one."""
        address, body = await self.document(as_of_ms)
        objects = {address: await self.get(address)}
        assert objects[address] == body
        for snapshot in json.loads(body)["snapshots"][-1 if newest_only else 0 :]:
            objects[snapshot["manifest-list"]] = listed = await self.get(snapshot["manifest-list"])
            for record in records(listed):
                objects[record["manifest_path"]] = manifest = await self.get(record["manifest_path"])
                assert record["manifest_length"] == len(manifest)
        return Metadata(address, objects)


def read(bucket: VirtualBucket, as_of_ms: int | None = None, **settings: Any) -> Metadata:
    """Return the metadata as a new process computes it."""
    return asyncio.run(Proxy(bucket, **settings).read(as_of_ms))


#: The store and the clock of a test's table, which new processes open.
STORES: dict[str, tuple[ClockedStore, ManualClock]] = {}


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    """Rows of two tenants, in commits of both."""
    STORES["table"] = clocked, clock
    table = create_table(clocked, clock, partition_by=["u"], sort_by=["n", "s"])
    for first in (0, 10):
        table.insert([{"u": u, "n": 7000 * u + first + n, "s": f"tenant-{u}-{n}"} for u in (1, 2) for n in range(5)])
        tick()
    return table


def tick(by_ms: int = 3) -> None:
    STORES["table"][1].advance(by_ms)


def bucket(*partitions: str, **scope: Any) -> VirtualBucket:
    return VirtualBucket("events", "table", Scope(partitions, **scope))


# ------------------------------------------------------------------------------------------------ isolation


def commit_late(table: Table) -> None:
    """Publish a commit with a time before all others, which names the columns in another order."""
    handle = table.handle
    t_ms = min(handle.read().times_ms) - 1
    marker = Marker(handle.keys.part("u=2", handle.clock.new_id()), 10, t_ms, rows=1)
    schema = dict(reversed(table.snapshot().schema.items()))
    key = handle.keys.log_file(t_ms, merged=False, writer=handle.clock.new_id())
    handle.store.create(key, encode(LogFile(t_ms, schema, (marker,))))


#: Commits that change only parts of the second tenant.
OTHERS: Mapping[str, Callable[[Table], object]] = {
    "insert": lambda t: t.insert([{"u": 2, "n": 1, "s": "tenant-2"}]),
    "new column": lambda t: t.insert([{"u": 2, "n": 1, "rivals_column": 9}]),
    "rewrite": lambda t: t.rewrite_partition("u=2", "SELECT * FROM _rows"),
    "delete": lambda t: t.delete("u = 2 AND n = 14001"),
    "drop": lambda t: t.drop_partitions(["u=2"]),
    "late": commit_late,
}


@pytest.mark.parametrize("name", OTHERS)
def test_commits_of_another_tenant_change_no_byte(table: Table, name: str) -> None:
    before = read(bucket(*ACME))
    if name != "late":
        OTHERS["new column"](table)
    tick()
    OTHERS[name](table)
    tick()
    if name != "late":
        table.merge_log()
    assert read(bucket(*ACME)).objects == before.objects


def test_metadata_holds_nothing_of_another_tenant(table: Table) -> None:
    table.insert([{"u": 2, "n": 98765, "s": "tenant-2", "rivals_column": n} for n in range(4321)])
    table.pin("pin-of-tenant-2")
    metadata = read(bucket(*ACME))
    values = metadata.values
    texts = b"\n".join(v if isinstance(v, bytes) else v.encode() for v in values if isinstance(v, str | bytes))
    rivals = [part for part in table.snapshot().parts if part.partition == "u=2"]
    hidden = ["rivals_column", "tenant-2", "u=2", table.uri, "_data", *(p.key.rpartition("/")[2] for p in rivals)]
    assert not [text for text in hidden if text.encode() in texts]
    assert b"tenant-1" in texts
    assert metadata.document["snapshots"][-1]["summary"]["total-data-files"] == "2"
    numbers = {98765, 4321, table.snapshot().rows}
    numbers |= {n for p in rivals for n in (p.bytes, p.rows)} - {
        p.rows for p in table.snapshot().parts if p not in rivals
    }
    assert numbers.isdisjoint(v for v in values if isinstance(v, int))
    assert {str(number) for number in numbers}.isdisjoint(v for v in values if isinstance(v, str))
    assert struct.pack("<q", 98765) not in texts
    assert struct.pack("<q", 7004) in texts
    of_rival = read(bucket(*RIVAL)).document["schemas"][-1]["fields"]
    assert "rivals_column" in {f["name"] for f in of_rival}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_earlier_states_do_not_show_when_another_tenant_wrote_a_column(
    table: Table, merged: bool, declared: bool
) -> None:
    table.insert([{"u": 2, "c": 1}])
    tick()
    table.insert([{"u": 1, "n": 1, "s": "x"}])
    tick()
    before = read(bucket(*ACME)).objects
    table.insert([{"u": 1, "c": 1}])
    tick()
    if declared:
        table.alter(schema={"c": "BIGINT"})
    if merged:
        table.merge_log()
    metadata = read(bucket(*ACME))
    schemas = {s["schema-id"]: {f["name"] for f in s["fields"]} for s in metadata.document["schemas"]}
    columns = [schemas[s["schema-id"]] for s in metadata.document["snapshots"]]
    assert columns == [{"u", "n", "s"}] * 3 + [{"u", "n", "s", "c"}]

    async def follow() -> None:
        proxy = Proxy(bucket(*ACME))
        for address, body in before.items():
            assert await proxy.get(address) == body, address

    asyncio.run(follow())


def test_a_column_is_seen_in_parts_that_are_older_than_their_log_file(table: Table) -> None:
    handle = table.handle
    tick(100)
    table.insert([{"u": 1, "c": 1}])
    key, stored = next((k, f) for k, f in handle.read().files.items() if "c" in f.file.schema)
    handle.store.delete([key])
    t_ms = stored.file.t_ms + 50
    later = handle.keys.log_file(t_ms, merged=False, writer=handle.clock.new_id())
    handle.store.create(later, encode(LogFile(t_ms, stored.file.schema, stored.file.markers)))
    tick(100)
    assert "c" in {f["name"] for f in read(bucket(*ACME)).document["schemas"][-1]["fields"]}


def test_rows_that_the_log_does_not_count_come_from_visible_parts_only(table: Table, monkeypatch: Any) -> None:
    import icedb.services.proxy.iceberg.bucket_manifests as bucket_manifests
    from icedb.transaction.append import append

    rival = next(p for p in table.snapshot().parts if p.partition == "u=2")
    opened: list[str] = []
    part_rows = bucket_manifests.part_rows
    monkeypatch.setattr(
        bucket_manifests,
        "part_rows",
        lambda handle, parts: opened.extend(p.key for p in parts) or part_rows(handle, parts),
    )
    handle = table.handle
    markers = []
    for u, source in ((1, next(p for p in table.snapshot().parts if p.partition == "u=1")), (2, rival)):
        body = handle.store.get(source.key).body
        key = handle.keys.part(f"u={u}", handle.clock.new_id())
        handle.store.create(key, body)
        markers.append(Marker(key, len(body), handle.clock.now_ms()))
    append(handle, markers, dict(table.snapshot().schema), oldest_part_ms=handle.clock.now_ms())
    metadata = read(bucket(*ACME))
    assert set(opened) == {markers[0].key}
    counts = [
        r["data_file"]["record_count"]
        for address in metadata.objects
        if isinstance(parse_name(key_of(address)), ManifestName) and address.startswith("s3://events/")
        for r in records(metadata.objects[address])
    ]
    assert sorted(counts) == [5, 5, 5]


def test_columns_of_other_tenants_cost_at_most_one_read_of_each_visible_footer(table: Table, monkeypatch: Any) -> None:
    import icedb.services.proxy.iceberg.visible_columns as visible_columns

    table.insert([{"u": 2, **{f"rivals_{n}": n for n in range(10)}}])
    for n in range(12):
        table.insert([{"u": 1, "n": n, "s": "x"}])
    table.merge_log()
    opened: list[str] = []
    part_columns = visible_columns.part_columns
    monkeypatch.setattr(
        visible_columns,
        "part_columns",
        lambda handle, parts, columns: opened.extend(p.key for p in parts) or part_columns(handle, parts, columns),
    )

    async def ask() -> None:
        proxy = Proxy(bucket(*ACME))
        await proxy.read()
        assert len(opened) == len(set(opened)) > 12
        assert set(opened) <= {p.key for p in table.snapshot().parts if p.partition == "u=1"}
        opened.clear()
        table.insert([{"u": 2, "rivals_10": 1}])
        tick(100)  # the commits above were faster than the clock
        table.insert([{"u": 1, "n": 99, "s": "x"}])
        table.merge_log()
        await proxy.read()
        assert len(opened) == 1

    asyncio.run(ask())


# ------------------------------------------------------------------------------------------------ the same everywhere

#: Changes of a table, and of its names: each is followed by all of its objects at a second and a third process.
CHANGES: Mapping[str, Callable[[Table], object]] = {
    "insert": lambda t: t.insert([{"u": 1, "n": 1, "s": "x"}]),
    "column": lambda t: t.insert([{"u": 1, "n": 1, "later": 1.5}]),
    "merge": lambda t: t.merge(),
    "delete": lambda t: t.delete("n = 7001"),
    "drop": lambda t: t.drop_partitions(["u=1"]),
    "alter": lambda t: t.alter(partition_by=["u", "n // 100000 AS high"]),
    "declare": lambda t: t.alter(schema={"declared": "BIGINT"}),
}


@pytest.mark.long
@pytest.mark.parametrize("scope", [(), ACME])
@pytest.mark.parametrize("name", CHANGES)
def test_two_processes_have_the_same_bytes_and_the_names_of_the_first_stay_valid(
    table: Table, name: str, scope: tuple[str, ...]
) -> None:
    CHANGES["insert"](table)
    tick()
    CHANGES[name](table)
    first = read(bucket(*scope))
    second = read(bucket(*scope))
    assert second == first

    async def follow() -> None:
        restarted = Proxy(bucket(*scope))
        for address, body in first.objects.items():
            assert await restarted.get(address) == body, address

    asyncio.run(follow())
    tick()
    table.insert([{"u": 1, "n": 2, "s": "y"}])  # the process that restarts knows a later state
    asyncio.run(follow())
    tick()
    table.drop_partitions(["u=1"])
    asyncio.run(follow())


def insert_late(table: Table) -> None:
    """Publish a part with a time before some others."""
    handle = table.handle
    if not (live := table.snapshot().parts):
        return
    t_ms = max(handle.clock.now_ms() - 4, handle.read().horizon_ms + 1)
    key = handle.keys.part(live[0].partition, handle.clock.new_id())
    handle.store.create(key, handle.store.get(live[0].key).body)
    marker = Marker(key, live[0].bytes, t_ms, rows=live[0].rows, stats=live[0].stats)
    log_key = handle.keys.log_file(t_ms, merged=False, writer=handle.clock.new_id())
    handle.store.create(log_key, encode(LogFile(t_ms, dict(table.snapshot().schema), (marker,))))


def clean_up(table: Table) -> None:
    tick(2 * HOUR_MS)
    table.cleanup()


#: Changes in any order.
STEPS: Mapping[str, Callable[[Table], object]] = {
    "insert": lambda t: t.insert([{"u": u, "n": n, "s": f"x{u}"} for u in (1, 2, 3) for n in range(2)]),
    "insert 2": lambda t: t.insert([{"u": 2, "n": 5, "s": "y"}]),
    "insert late": insert_late,
    "merge log": lambda t: t.merge_log(),
    "clean up": clean_up,
    "drop": lambda t: t.drop_partitions(["u=1"], missing_ok=True),
    **{name: CHANGES[name] for name in ("column", "merge", "delete", "declare")},
}


@pytest.mark.sampled(cases=3)
@pytest.mark.parametrize("seed", range(12))
def test_a_process_that_follows_any_changes_has_the_bytes_of_a_new_one(
    table: Table, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The first keeps parts in columns, as of large tables, and the new one has objects, as of small tables."""
    monkeypatch.setattr("icedb.reader.iceberg.manifests._PARTS", 3)
    draw = random.Random(seed)

    async def follow() -> None:
        following = {scope: Proxy(bucket(*scope)) for scope in ((), ACME)}
        for step in draw.choices(list(STEPS), k=12):
            STEPS[step](table)
            for scope, proxy in following.items():
                with columns_from(1):
                    metadata = await proxy.read(newest_only=True)
                with columns_from(10**9):
                    assert await Proxy(bucket(*scope)).read(newest_only=True) == metadata, step
            tick(draw.randrange(5))

    asyncio.run(follow())


@pytest.mark.parametrize("scope", [(), ACME])
def test_a_document_stays_valid_after_pins_were_created(table: Table, scope: tuple[str, ...]) -> None:
    first_ms = table.snapshot().parts[0].created_ms
    documents = {}
    for pin in ("first", "second", "third"):
        address, body = asyncio.run(Proxy(bucket(*scope), snapshots=0).document())
        documents[address] = body
        tick()
        table.pin(pin, as_of=first_ms)
        tick()

    async def follow() -> None:
        for address, body in documents.items():
            assert await Proxy(bucket(*scope), snapshots=0).get(address) == body

    assert len(documents) == (2 if scope else 3)  # the tags of pins are not in the buckets of some partitions
    asyncio.run(follow())


@pytest.mark.parametrize("kind", [".metadata.json", "/snap-", "/metadata/0"])
@pytest.mark.parametrize("name", ["insert", "drop"])
def test_a_process_that_need_not_refresh_yet_has_the_objects_of_a_newer_state(
    table: Table, name: str, kind: str
) -> None:
    async def follow() -> None:
        behind = Proxy(bucket(), refresh_ms=60_000)
        await behind.read()
        CHANGES[name](table)
        objects = (await Proxy(bucket()).read()).objects
        newest = [address for address in objects if kind in address and "--" not in address]
        assert [await behind.get(a) for a in newest] == [objects[a] for a in newest] != []

    asyncio.run(follow())


@pytest.mark.long
@pytest.mark.parametrize("parts", [2, 4096])
@pytest.mark.parametrize("name", ["delete", "merge", "drop"])
def test_each_object_of_a_replaced_state_can_be_fetched_after_many_commits(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str, parts: int
) -> None:
    import icedb.reader.iceberg.manifests as manifests

    monkeypatch.setattr(manifests, "_PARTS", parts)
    for n in range(4):
        table.insert([{"u": u, "n": n, "s": "x"} for u in (1, 2, 3)])
        tick()
    CHANGES[name](table)
    objects = read(bucket(), snapshots=0).objects
    for n in range(12):
        tick()
        table.insert([{"u": 1, "n": n, "s": "y"}])
    tick()
    table.drop_partitions(["u=2"])
    for address, body in objects.items():
        assert asyncio.run(Proxy(bucket(), snapshots=0).get(address)) == body, address


def test_partition_values_that_files_mix_are_an_error_with_a_remedy(table: Table) -> None:
    table.alter(partition_by=["u", "n % 2 AS odd"])
    with pytest.raises(RestError, match=r"several values .* in odd\. .*exclude_columns") as raised:
        read(bucket())
    assert raised.value.status == 404
    assert "memory://" not in str(raised.value)
    without = replace(bucket(), exclude_columns=("odd",))
    assert {f["name"] for f in read(without).document["schemas"][-1]["fields"]} == {"u", "n", "s"}


def test_an_append_changes_the_last_manifest_only(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    import icedb.reader.iceberg.manifests as manifests

    monkeypatch.setattr(manifests, "_PARTS", 4)
    for n in range(40):
        table.insert([{"u": 1, "n": n, "s": "x"}])
    plain = "s3://events/"

    def names(metadata: Metadata) -> list[str]:
        return [a for a in metadata.objects if a.startswith(plain) and isinstance(parse_name(key_of(a)), ManifestName)]

    before = names(read(bucket(), snapshots=0))
    table.insert([{"u": 1, "n": 99, "s": "x"}])
    after = names(read(bucket(), snapshots=0))
    assert len(before) > 5
    assert len(set(before) - set(after)) <= 1


def test_a_snapshot_of_a_time_stays_the_same_and_has_no_bounds(table: Table) -> None:
    """A column may get another type after its parts are superseded, so their bounds would not stay valid."""
    at_ms = table.snapshot().as_of_ms
    before = read(bucket(), at_ms)
    tick()
    table.merge()
    assert read(bucket(), at_ms).objects == before.objects

    def bounds(metadata: Metadata) -> set[bool]:
        manifests = [b for a, b in metadata.objects.items() if isinstance(parse_name(key_of(a)), ManifestName)]
        return {r["data_file"]["lower_bounds"] is not None for body in manifests for r in records(body)}

    assert bounds(before) == {False}
    assert bounds(read(bucket(), snapshots=0)) == {True}


def test_names_with_a_wrong_hash_or_time_do_not_exist(table: Table) -> None:
    async def ask() -> None:
        proxy = Proxy(bucket())
        metadata = await proxy.read()
        for address in metadata.objects:
            place = len(address) - (15 if address.endswith(".json") else 6)
            for changed in (place, address.index("/metadata/") + 18):
                wrong = address[:changed] + ("1" if address[changed] != "1" else "2") + address[changed + 1 :]
                if parse_name(key_of(wrong)) is None:
                    continue
                with pytest.raises(S3Error) as raised:
                    await proxy.get(wrong)
                assert raised.value.code == "NoSuchKey", wrong

    asyncio.run(ask())


def test_a_name_cannot_make_a_proxy_list_more_states_than_its_documents_have(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import icedb.services.proxy.iceberg.bucket_history as bucket_history

    for n in range(5):
        table.insert([{"u": 1, "n": n, "s": "x"}])
        tick()
    encode_document = bucket_history.encode_document
    listed: list[int] = []

    def counting(*arguments: Any) -> bytes:
        listed.append(len(arguments[5]))
        return encode_document(*arguments)

    monkeypatch.setattr(bucket_history, "encode_document", counting)

    async def ask() -> None:
        proxy = Proxy(bucket(), snapshots=2)
        name = parse_name(key_of((await proxy.document())[0]))
        assert isinstance(name, DocumentName)
        assert name.earlier == 2
        for earlier in (1, 2, 3, 0xFFFF):
            with pytest.raises(S3Error, match="does not exist"):
                await proxy.get(f"s3://events/{replace(name, earlier=earlier, digest='0' * 16).key}")

    asyncio.run(ask())
    assert set(listed) == {1, 2}


# ------------------------------------------------------------------------------------------------ what is listed


def test_a_document_lists_the_newest_states_since_the_horizon(table: Table) -> None:
    for n in range(5):
        table.insert([{"u": 1, "n": n, "s": "x"}])
        tick()
    assert len(read(bucket(), snapshots=3).document["snapshots"]) == 4
    assert len(read(bucket(), snapshots=0).document["snapshots"]) == 1
    assert len(read(bucket()).document["snapshots"]) == 7
    times = [s["timestamp-ms"] for s in read(bucket()).document["snapshots"]]
    assert len(read(bucket(earliest_ms=times[4])).document["snapshots"]) == 3
    assert len(read(bucket(time_travel=False)).document["snapshots"]) == 1
    assert len(read(bucket(as_of_ms=times[4])).document["snapshots"]) == 1
    table.merge()
    tick(2 * HOUR_MS)
    table.cleanup()
    document = read(bucket()).document
    assert len(document["snapshots"]) == 1
    assert document["current-snapshot-id"] == document["snapshots"][0]["snapshot-id"]


def test_states_whose_columns_have_no_iceberg_type_are_not_listed(table: Table) -> None:
    table.insert(duckdb.sql("SELECT 1::BIGINT AS u, 1::BIGINT AS n, 'x' AS s, 1::UBIGINT AS big"))
    tick()
    with pytest.raises(RestError, match=r"'big' .UBIGINT."):
        read(bucket())
    table.alter(drop_columns=["big"])
    tick()
    table.insert([{"u": 1, "n": 1, "s": "x"}])
    document = read(bucket()).document
    assert len(document["snapshots"]) == 3
    assert "big" not in {f["name"] for schema in document["schemas"] for f in schema["fields"]}


def test_pins_stay_listed_after_cleanup(table: Table) -> None:
    pinned = table.pin("first")
    ids = {"first": read(bucket()).document["current-snapshot-id"]}
    assert {n: r["snapshot-id"] for n, r in read(bucket()).document["refs"].items() if n != "main"} == ids
    tick()
    table.insert([{"u": 1, "n": 1, "s": "x"}])
    table.merge()
    tick(2 * HOUR_MS)
    table.cleanup()
    metadata = read(bucket())
    tag = metadata.document["refs"]["first"]["snapshot-id"]
    [snapshot] = [s for s in metadata.document["snapshots"] if s["snapshot-id"] == tag]
    assert snapshot["summary"]["total-records"] == "20"
    assert snapshot["timestamp-ms"] <= pinned.as_of_ms
    scoped = read(bucket(*ACME)).document
    assert set(scoped["refs"]) == {"main"}
    assert len(scoped["snapshots"]) == 2


def test_a_damaged_pin_leaves_the_table_readable_without_tags(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.pin("first")
    key = table.handle.keys.pin("second")
    table.handle.store.create(key, b"{")
    document = read(bucket()).document
    assert set(document["refs"]) == {"main"}
    assert len(document["snapshots"]) == 2
    [message] = {r.getMessage() for r in caplog.records if r.name == "icedb.proxy"}
    assert key in message
    assert "lists no pins" in message


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({}, {"u": "long"}),
        ({"schema": {"n": "BIGINT"}}, {"n": "long"}),
        ({"partition_by": ["u", "n // 10 AS high"]}, {"u": "long", "high": "long"}),
    ],
)
def test_a_tenant_without_parts_has_an_empty_table(table: Table, changes: Any, columns: dict[str, str]) -> None:
    if changes:
        table.alter(**changes)
    tick()
    table.drop_partitions(["u=1"])
    tick(2 * HOUR_MS)
    table.cleanup()
    document = read(bucket(*ACME)).document
    assert document["snapshots"] == []
    assert {f["name"]: f["type"] for f in document["schemas"][-1]["fields"]} == columns


def test_a_table_that_never_had_a_part_has_no_snapshot(tmp_path: Path) -> None:
    Table.create(str(tmp_path), schema={"n": "BIGINT"})
    document = read(VirtualBucket("events", str(tmp_path))).document
    assert (document["current-snapshot-id"], document["snapshots"], document["refs"]) == (-1, [], {})
