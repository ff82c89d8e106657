"""Conformance tests of all stores: the real ones, the one for tests, and the one with fault injection."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import icedb.storage.obstore_store
from icedb.errors import AccessDenied, BucketNotFound, StoreUnavailable, UnsupportedStore
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, open_store
from icedb.storage.split_store import SplitStore
from icedb.table import Table
from icedb.testing import ClockedStore, Crash, Fault, FaultyStore, ManualClock, create_table, open_table
from tests.support.object_stores.stores import CLOUDS

KINDS = ["local", "memory", pytest.param("s3", marks=pytest.mark.s3), *CLOUDS]
KINDS += ["clocked", "faulty", "two"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "clocked":
        return ClockedStore(ManualClock())
    if request.param == "two":
        return SplitStore(ClockedStore(ManualClock()), ClockedStore(ManualClock()))
    name = "memory" if request.param == "faulty" else request.param
    place = request.getfixturevalue(name)
    opened = open_store(parse_location(place.uri, place.storage_options))
    return FaultyStore(opened) if request.param == "faulty" else opened


def _key(store: ObjectStore, path: str) -> str:
    return f"{store.location.prefix}/{path}".lstrip("/")


def test_a_created_object_is_read_back(store: ObjectStore) -> None:
    key = _key(store, "_log/a")
    store.create(key, b"body")
    stored = store.get(key)
    assert stored.body == b"body"
    assert stored.stored_ms > 1_600_000_000_000
    info = store.head(key)
    [listed] = store.list(_key(store, "_log/"))
    assert (info.key, info.bytes) == (listed.key, listed.bytes) == (key, 4)
    # HTTP headers have whole seconds, listings may have more.
    assert abs(info.stored_ms - stored.stored_ms) < 1_000
    assert abs(info.stored_ms - listed.stored_ms) < 1_000


@pytest.mark.sampled(days=3)
def test_a_file_is_put_completely(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 6_000_000)  # more than one chunk of any client
    store.create(_key(store, "_data/p"), source)
    assert store.head(_key(store, "_data/p")).bytes == 6_000_000
    assert source.exists()


def test_an_object_is_never_replaced(store: ObjectStore) -> None:
    key = _key(store, "_log/a")
    store.create(key, b"first")
    with pytest.raises(ObjectExists):
        store.create(key, b"second")
    assert store.get(key).body == b"first"


@pytest.mark.sampled(days=3)
def test_exactly_one_of_sixteen_concurrent_creators_wins(store: ObjectStore) -> None:
    key = _key(store, "_claims/epoch-1.json")
    barrier = threading.Barrier(16)

    def wins(number: int) -> bool:
        barrier.wait()
        try:
            store.create(key, str(number).encode())
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(wins, range(16)))
    assert won.count(True) == 1
    assert store.get(key).body == str(won.index(True)).encode()


@pytest.mark.sampled(days=3)
def test_a_copy_has_the_content_and_a_time_of_its_own(store: ObjectStore) -> None:
    source, target = _key(store, "_data/d=1/a.parquet"), _key(store, "_data/d=2/b.parquet")
    store.create(source, b"x" * 3_000_000)
    before = store.head(source).stored_ms
    if store.location.scheme == "file":  # an orphan sweep checks the age, so the copy must not seem a year old
        os.utime(Path(store.location.root, source), (1_600_000_000, 1_600_000_000))
    store.copy(source, target)
    assert store.get(target).body == b"x" * 3_000_000
    assert store.head(target).stored_ms >= before
    store.delete([source])
    assert store.head(target).bytes == 3_000_000


def test_copying_a_missing_object_raises_not_found(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        store.copy(_key(store, "_data/gone"), _key(store, "_data/b"))
    assert store.list(_key(store, "_data/")) == []


def test_a_missing_object_raises_not_found(store: ObjectStore) -> None:
    for request in (store.get, store.head):
        with pytest.raises(ObjectNotFound):
            request(_key(store, "_log/nothing"))
    assert store.list(_key(store, "_log/")) == []
    assert store.get_many([_key(store, "_log/nothing")]) == {}


def test_a_listing_is_sorted_and_stays_below_its_prefix(store: ObjectStore) -> None:
    inside = [_key(store, f"_log/{name}") for name in ("c", "a", "b/d", "a-b", "a.b")]
    for key in [*inside, _key(store, "_log2/a"), _key(store, "_logs")]:
        store.create(key, b"")
    assert [info.key for info in store.list(_key(store, "_log/"))] == sorted(inside)


def test_a_listing_begins_after_a_key(store: ObjectStore) -> None:
    keys = [_key(store, f"_log/{n}") for n in range(5)]
    for key in keys:
        store.create(key, b"")
    after = [info.key for info in store.list(_key(store, "_log/"), after=keys[2])]
    assert after == keys[3:]
    # A listing may also begin after a key that no longer exists.
    store.delete([keys[2]])
    assert [info.key for info in store.list(_key(store, "_log/"), after=keys[2])] == keys[3:]
    assert store.list(_key(store, "_log/"), after=keys[4]) == []


@pytest.mark.sampled(days=3)
def test_many_objects_are_read_at_once_and_missing_ones_are_omitted(store: ObjectStore) -> None:
    keys = [_key(store, f"_log/{n:03}") for n in range(40)]
    for key in keys[::2]:
        store.create(key, key.encode())
    objects = store.get_many(keys)
    assert {k: o.body for k, o in objects.items()} == {k: k.encode() for k in keys[::2]}


def test_after_an_error_no_further_objects_are_requested(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(parse_location(memory.uri))
    requested: list[str] = []

    def refused(key: str) -> None:
        requested.append(key)
        raise StoreUnavailable(key)

    monkeypatch.setattr(store, "get", refused)
    monkeypatch.setattr(icedb.storage.obstore_store, "CONCURRENT_GETS", 1)
    with pytest.raises(StoreUnavailable, match=r"^a$"):
        store.get_many(["a", "b", "c"])
    assert requested == ["a"]


def test_deleting_a_missing_object_succeeds(store: ObjectStore) -> None:
    keys = [_key(store, f"_data/{n}") for n in range(3)]
    store.create(keys[1], b"")
    store.delete(keys)
    store.delete(keys)
    store.delete([])
    assert store.list(_key(store, "_data/")) == []


@pytest.mark.sampled(cases=3, days=3)
def test_more_than_a_thousand_objects_are_listed_and_deleted(store: ObjectStore) -> None:
    keys = [_key(store, f"_log/{n:05}") for n in range(1_101)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.create(key, b""), keys))
    assert [info.key for info in store.list(_key(store, "_log/"))] == keys
    assert len(store.list(_key(store, "_log/"), after=keys[9])) == 1_091
    store.delete([*keys, _key(store, "_log/none")])
    assert store.list(_key(store, "_log/")) == []


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", ["a%2Fb", "50%", "with space", "grüße-日本", "a=b+c&d", "it's", "%E2%82%AC~"])
def test_a_key_may_hold_any_character(store: ObjectStore, name: str) -> None:
    key = _key(store, f"_data/d={name}/x.parquet")
    store.create(key, b"1")
    assert store.get(key).body == b"1"
    assert [info.key for info in store.list(_key(store, "_data/"))] == [key]
    with pytest.raises(ObjectExists):
        store.create(key, b"2")
    store.delete([key])
    assert store.list(_key(store, "_data/")) == []


def test_a_local_key_is_the_name_of_its_file(local: Any) -> None:
    # DuckDB opens the file by this name, so the store must not encode it once more.
    open_store(parse_location(local.uri)).create("_data/d=a%2Fb ü/x.parquet", b"1")
    assert Path(local.uri, "_data/d=a%2Fb ü/x.parquet").read_bytes() == b"1"


# ------------------------------------------------------------------------------------------ errors


def test_a_missing_bucket_raises_bucket_not_found(storage_options: dict[str, str]) -> None:
    uri = "s3://no-such-bucket/table"
    store = open_store(parse_location(uri, storage_options))
    requests: list[Callable[[], object]] = [
        lambda: store.get("table/x"),
        lambda: store.create("table/x", b""),
        lambda: store.list("table/"),
        lambda: store.delete(["table/x"]),
        *(partial(act, uri, storage_options=storage_options) for act in (Table.create, Table.open, Table.exists)),
    ]
    for request in requests:
        with pytest.raises(BucketNotFound, match="'no-such-bucket' does not exist") as caught:
            request()
        assert "Create it" in str(caught.value)


def test_a_wrong_secret_is_denied_and_not_shown(
    s3: Any, storage_options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "wrongwrongwrongwrongwrongwrongwrongwrong"
    options = storage_options | {"AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "tokentokentoken"}
    location = parse_location(s3.uri, options)
    store = open_store(location)
    texts = [repr(location), str(location), repr(store), repr(location.explicit_credentials)]
    for request in (lambda: store.list("x/"), lambda: store.get("x/y"), lambda: store.create("x/y", b"")):
        with pytest.raises(AccessDenied, match="Check the access key") as caught:
            request()
        texts += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
    for text in [*texts, caplog.text]:
        assert secret not in text
        assert "tokentokentoken" not in text
    assert all(storage_options["AWS_ACCESS_KEY_ID"] not in text for text in texts[4:])


@pytest.mark.sampled(days=3)
def test_an_unreachable_endpoint_is_unavailable(storage_options: dict[str, str]) -> None:
    options = storage_options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    with pytest.raises(StoreUnavailable, match="Check the endpoint") as caught:
        Table.open("s3://bucket/table", storage_options=options)
    assert storage_options["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


class OverwritingStore(ClockedStore):
    """A store that ignores the condition of a create-only put, as some servers do."""

    def create(self, key: str, body: bytes | Path) -> None:
        self.objects.pop(key, None)
        super().create(key, body)


def test_a_store_that_overwrites_is_accepted_only_without_fencing() -> None:
    clock = ManualClock()
    store = OverwritingStore(clock)
    table = create_table(store, clock)
    before = set(store.objects)
    for write in (lambda: table.insert([{"a": 1}]), table.merge, lambda: table.cleanup(grace_ms=None)):
        with pytest.raises(UnsupportedStore, match="fencing='none'"):
            write()
    assert set(store.objects) - before == {store.location.keys.probe}
    table = open_table(store, clock, fencing="none")
    table.insert([{"a": 1}])
    assert table.query("FROM t").fetchall() == [(1,)]


# ------------------------------------------------------------------------------------------ the faults themselves


@pytest.fixture
def faulty(clocked: ClockedStore) -> FaultyStore:
    return FaultyStore(clocked)


def test_requests_are_counted_by_kind(faulty: FaultyStore) -> None:
    faulty.create("a", b"")
    faulty.get_many(["a", "b"])
    faulty.list("x/")
    faulty.head("a")
    faulty.copy("a", "c")
    faulty.delete(["a", "b"])
    assert faulty.counts == {"create": 1, "get": 2, "list": 1, "head": 1, "copy": 1, "delete": 1}
    assert [r.number for r in faulty.requests] == [1, 2, 3, 4, 5, 6, 7]
    assert faulty.requests[5].keys == ("a", "c")


def test_a_delete_is_a_request_per_thousand_keys(faulty: FaultyStore) -> None:
    keys = [f"{n:04}" for n in range(2_500)]
    faulty.delete(keys)
    faulty.delete([])
    assert [(r.kind, len(r.keys)) for r in faulty.requests] == [("delete", 1_000), ("delete", 1_000), ("delete", 500)]
    assert [k for r in faulty.requests for k in r.keys] == keys


def test_a_fault_strikes_between_two_requests_of_a_delete(faulty: FaultyStore, clocked: ClockedStore) -> None:
    keys = [f"{n:04}" for n in range(2_500)]
    for key in keys:
        clocked.create(key, b"")
    faulty.inject(Fault.FAIL, number=2)
    with pytest.raises(StoreUnavailable):
        faulty.delete(keys)
    assert sorted(clocked.objects) == keys[1_000:]
    faulty.inject(Fault.CRASH_AFTER, number=4)  # the second of this call
    with pytest.raises(Crash):
        faulty.delete(keys)
    assert sorted(clocked.objects) == keys[2_000:]


@pytest.mark.parametrize(("fault", "applied"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)])
def test_after_a_crash_every_request_of_the_actor_fails(
    faulty: FaultyStore, clocked: ClockedStore, fault: Fault, applied: bool
) -> None:
    faulty.inject(fault, number=2)
    faulty.create("a", b"")
    with pytest.raises(Crash):
        faulty.create("b", b"")
    with pytest.raises(Crash):
        faulty.delete(["a"])
    assert set(clocked.objects) == ({"a", "b"} if applied else {"a"})


@pytest.mark.parametrize(("fault", "applied"), [(Fault.FAIL, False), (Fault.LOSE_RESPONSE, True)])
def test_a_request_without_a_response_may_have_been_executed(
    faulty: FaultyStore, clocked: ClockedStore, fault: Fault, applied: bool
) -> None:
    faulty.inject(fault, kind="create", key="b")
    faulty.create("a", b"")
    with pytest.raises(StoreUnavailable):
        faulty.create("b", b"")
    assert ("b" in clocked.objects) is applied
    faulty.delete(["b"])
    faulty.create("b", b"")  # once only


def test_a_repeated_create_fails_against_its_own_success(faulty: FaultyStore, clocked: ClockedStore) -> None:
    faulty.inject(Fault.REPEAT, kind="create")
    with pytest.raises(ObjectExists):
        faulty.create("a", b"mine")
    assert clocked.get("a").body == b"mine"


def test_a_delayed_request_is_executed_on_delivery(faulty: FaultyStore, clocked: ClockedStore) -> None:
    faulty.inject(Fault.DELAY, kind="create")
    with pytest.raises(StoreUnavailable):
        faulty.create("a", b"")
    assert not clocked.objects
    faulty.deliver()
    assert set(clocked.objects) == {"a"}


def test_others_may_act_before_and_after_a_request(faulty: FaultyStore, clocked: ClockedStore) -> None:
    calls = []
    faulty.before = lambda request: calls.append((request.kind, "a" in clocked.objects))
    faulty.after = lambda request: calls.append((request.kind, "a" in clocked.objects))
    faulty.create("a", b"")
    assert calls == [("create", False), ("create", True)]


def test_listing_an_absent_folder_does_not_create_it(local: Any) -> None:
    open_store(parse_location(local.uri)).list("_log/")
    assert not Table.exists(local.uri)
    assert not Path(local.uri).exists()
