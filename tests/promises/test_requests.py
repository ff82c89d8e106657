"""The requests of each operation, counted on the wire to a real S3 server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from icedb import Table, Thresholds
from icedb.errors import AccessDenied, StoreUnavailable
from icedb.operations.commits.actions import Replace
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import CONCURRENT_GETS, DELETE_ATTEMPTS_MAX, ObjectNotFound, ObjectStore, open_store
from icedb.transaction.exclusive import commit_exclusive
from tests.support.object_stores.counting_proxy import CountingProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server: object) -> Iterator[CountingProxy]:
    with CountingProxy(s3_server.endpoint).running() as running:  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def options(proxy: CountingProxy, storage_options: dict[str, str]) -> dict[str, str]:
    return storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}


@pytest.fixture
def uri(s3: object) -> str:
    return str(s3.uri)  # type: ignore[attr-defined]


@pytest.fixture
def table(uri: str, options: dict[str, str], proxy: CountingProxy) -> Table:
    """A table of four partitions whose handle has written once."""
    made = Table.create(uri, partition_by=["n % 4 AS p"], storage_options=options)
    made.insert([{"n": n} for n in range(4)])
    proxy.reset()
    return made


@pytest.fixture
def store(uri: str, options: dict[str, str]) -> ObjectStore:
    return open_store(parse_location(uri, options))


def folders(proxy: CountingProxy) -> list[tuple[str, str]]:
    """Kind and folder (`_log`, `_data`, ...) of each request; a listing of the whole table has none."""
    return [(r.kind, next((s for s in r.path.split("/") if s.startswith("_")), "")) for r in proxy.requests]


# ------------------------------------------------------------------------------------------ the store


def test_each_verb_of_the_store_is_one_request(store: ObjectStore, proxy: CountingProxy) -> None:
    prefix = store.location.prefix
    store.create(f"{prefix}/_data/a", b"1")
    store.copy(f"{prefix}/_data/a", f"{prefix}/_data/b")
    assert store.get(f"{prefix}/_data/b").body == b"1"
    assert store.head(f"{prefix}/_data/b").bytes == 1
    assert len(store.list(f"{prefix}/_data/")) == 2
    store.delete([f"{prefix}/_data/a", f"{prefix}/_data/b"])
    assert [r.kind for r in proxy.requests] == ["PUT", "COPY", "GET", "HEAD", "LIST", "DELETE MANY"]


def test_many_gets_share_the_connections_that_are_open(store: ObjectStore, proxy: CountingProxy) -> None:
    key = f"{store.location.prefix}/_log/a"
    store.create(key, b"1")
    proxy.reset()
    assert store.get_many([key] * 10 * CONCURRENT_GETS)[key].body == b"1"
    assert proxy.counts == {"GET": 10 * CONCURRENT_GETS}
    # Two requests that need a connection at the same moment may both open one.
    assert len({r.client_port for r in proxy.requests}) <= 2 * CONCURRENT_GETS


def test_a_copy_of_a_missing_object_is_one_request(store: ObjectStore, proxy: CountingProxy) -> None:
    prefix = store.location.prefix
    with pytest.raises(ObjectNotFound):
        store.copy(f"{prefix}/_data/gone", f"{prefix}/_data/b")
    assert proxy.counts == {"COPY": 1}


def test_empty_calls_make_no_request(store: ObjectStore, proxy: CountingProxy) -> None:
    assert store.get_many([]) == {}
    store.delete([])
    assert proxy.requests == []


def test_deleting_1500_objects_is_two_requests(store: ObjectStore, proxy: CountingProxy) -> None:
    prefix = store.location.prefix
    keys = [f"{prefix}/_data/{n:04}" for n in range(1_500)]
    for key in (keys[0], keys[999], keys[1_000], keys[-1]):
        store.create(key, b"")
    proxy.reset()
    store.delete(keys)  # most do not exist, which makes no difference
    assert proxy.counts == {"DELETE MANY": 2}
    assert store.list(f"{prefix}/_data/") == []


def _refusing_deletions(code: str) -> Callable[[str, str, bytes], tuple[int, bytes] | None]:
    """Return an answer to bulk deletions that has this code for the last object. The status is 200."""

    def answer(kind: str, _: str, body: bytes) -> tuple[int, bytes] | None:
        if kind != "DELETE MANY":
            return None
        last = re.findall(b"<Key>(.*?)</Key>", body)[-1].decode()
        error = f"<Error><Key>{last}</Key><Code>{code}</Code><Message>no</Message></Error>"
        return 200, f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{error}</DeleteResult>'.encode()

    return answer


def test_an_object_that_a_bulk_delete_left_is_an_error(store: ObjectStore, proxy: CountingProxy) -> None:
    proxy.answer = _refusing_deletions("AccessDenied")
    proxy.reset()
    with pytest.raises(AccessDenied, match=r"cannot delete 'a' and 1 others: access was refused \(AccessDenied\)"):
        store.delete(["a", "b"])
    assert proxy.counts == {"DELETE MANY": 1}


@pytest.mark.parametrize(("repeat", "requests"), [(False, 1), (True, DELETE_ATTEMPTS_MAX)])
def test_a_bulk_delete_that_the_store_cannot_serve_is_repeated_only_if_the_caller_allows_it(
    store: ObjectStore, proxy: CountingProxy, repeat: bool, requests: int
) -> None:
    proxy.answer = _refusing_deletions("Unknown")
    proxy.reset()
    with pytest.raises(StoreUnavailable, match=r"cannot delete 'a' and 1 others: .*\(Unknown\)"):
        store.delete(["a", "b"], repeat=repeat)
    assert proxy.counts == {"DELETE MANY": requests}


@pytest.mark.parametrize("way", ["unpin", "cleanup", "export_parquet"])
def test_a_deletion_of_a_name_that_may_be_used_again_is_not_repeated(
    table: Table, proxy: CountingProxy, way: str
) -> None:
    """The store may execute the first request later, and would delete a new pin or file of this name."""
    target = f"{table.uri}-target"
    calls: dict[str, Callable[[], object]] = {
        "unpin": lambda: table.unpin("daily"),
        "cleanup": lambda: table.cleanup(grace_ms=0, allow_short_grace=True),
        "export_parquet": lambda: table.export_parquet(target, overwrite=True),
    }
    table.pin("daily", expires=timedelta(milliseconds=1_500))
    table.export_parquet(target)
    wait_until(lambda: table.pins()[0].expired(table.handle.clock.now_ms()), "the pin has expired")
    refuse, bodies = _refusing_deletions("Unknown"), []

    def answer(kind: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        if kind != "DELETE MANY" or b"/epoch-" in body:  # a cleanup deletes claims first
            return None
        bodies.append(body)
        return refuse(kind, path, body)

    proxy.answer = answer
    with pytest.raises(StoreUnavailable, match="cannot delete"):
        calls[way]()
    [body] = bodies
    assert re.search(b"pin-|_SUCCESS", body)


def test_a_code_in_a_key_is_not_the_code_of_the_response(store: ObjectStore) -> None:
    key = f"{store.location.prefix}/(code: NoSuchBucket) <Code>NoSuchBucket</Code>"
    with pytest.raises(ObjectNotFound):
        store.get(key)


def test_a_bulk_delete_stops_at_the_first_request_that_fails(store: ObjectStore, proxy: CountingProxy) -> None:
    prefix = store.location.prefix
    keys = [f"{prefix}/_data/{n:04}" for n in range(2_500)]
    for key in (keys[0], keys[1_000], keys[-1]):
        store.create(key, b"")
    key_counts: list[int] = []

    def fail_the_second(kind: str, _: str, body: bytes) -> tuple[int, bytes] | None:
        if kind != "DELETE MANY":
            return None
        key_counts.append(len(re.findall(b"<Key>", body)))
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if len(key_counts) == 2 else None

    proxy.answer = fail_the_second
    with pytest.raises(AccessDenied, match="_data/1000' and 999 others"):
        store.delete(keys)
    assert key_counts == [1_000, 1_000]
    assert [info.key for info in store.list(f"{prefix}/_data/")] == [keys[1_000], keys[-1]]
    store.delete(keys)
    assert key_counts == [1_000, 1_000, 1_000, 1_000, 500]
    assert store.list(f"{prefix}/_data/") == []


@pytest.mark.sampled(days=3)
def test_a_listing_is_a_request_per_thousand_objects(store: ObjectStore, proxy: CountingProxy) -> None:
    prefix = store.location.prefix
    keys = [f"{prefix}/_log/{n:04}" for n in range(1_001)]
    for key in keys:
        store.create(key, b"")
    proxy.reset()
    assert len(store.list(f"{prefix}/_log/")) == 1_001
    assert proxy.counts == {"LIST": 2}
    proxy.reset()
    assert len(store.list(f"{prefix}/_log/", after=keys[100])) == 900
    assert proxy.counts == {"LIST": 1}


# ------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize("partitions", [1, 4])
def test_an_append_puts_each_part_and_one_log_file(table: Table, proxy: CountingProxy, partitions: int) -> None:
    commit = table.insert([{"n": n} for n in range(partitions)])
    assert len(commit.parts) == partitions
    assert folders(proxy) == [*[("PUT", "_data")] * partitions, ("PUT", "_log")]


@pytest.mark.parametrize("drop", [True, False])
def test_an_exclusive_commit_without_conflicts_is_four_requests(table: Table, proxy: CountingProxy, drop: bool) -> None:
    key = table.snapshot().parts[0].key
    proxy.reset()
    if drop:
        table.drop_partitions(["p=1"])
    else:
        commit_exclusive(table.handle, Replace(lambda _: [key]))
    # Read the log, claim the epoch, check whether the epoch is decided, publish.
    assert folders(proxy) == [("LIST", "_log"), ("PUT", "_claims"), ("LIST", "_log"), ("PUT", "_log")]


# ------------------------------------------------------------------------------------------ reading


def test_a_refresh_without_changes_is_one_listing(table: Table, proxy: CountingProxy) -> None:
    table.snapshot()
    proxy.reset()
    for refreshes in (1, 2):
        table.snapshot()
        assert folders(proxy) == [("LIST", "_log")] * refreshes


def test_a_refresh_reads_the_new_log_files_only(
    table: Table, uri: str, storage_options: dict[str, str], proxy: CountingProxy
) -> None:
    table.snapshot()
    other = Table.open(uri, storage_options=storage_options)  # not through the proxy
    for n in range(3):
        other.insert([{"n": n}])
    proxy.reset()
    assert len(table.snapshot().parts) == 7
    assert sorted(folders(proxy)) == [("GET", "_log")] * 3 + [("LIST", "_log")]


def test_a_first_append_reads_few_objects(
    table: Table, uri: str, options: dict[str, str], proxy: CountingProxy
) -> None:
    for n in range(5):
        table.insert([{"n": n}])
    table.merge_log()
    proxy.reset()
    Table.open(uri, storage_options=options).insert([{"n": 5}])
    made = folders(proxy)
    before = made[: made.index(("PUT", "_claims"))]  # the probe; after it come the parts
    assert before == [("GET", "_table.json")]
    assert made[len(before) :] == [
        ("PUT", "_claims"),
        ("LIST", "_log"),
        ("GET", "_log"),
        ("PUT", "_data"),
        ("HEAD", "_data"),  # the clocks, once
        ("PUT", "_log"),
    ]


# ------------------------------------------------------------------------------------------ health, verify


def test_the_health_of_an_unchanged_table_is_one_listing(table: Table, proxy: CountingProxy) -> None:
    for n in range(4):
        table.insert([{"n": n}, {"n": 4}])
    early = Thresholds(hot_parts=4, log_files=4)
    table.health()
    for thresholds in (None, early):
        proxy.reset()
        health = table.health(thresholds)
        assert len(health.recommendations) == (2 if thresholds else 0)
        assert folders(proxy) == [("LIST", "_log")]


@pytest.mark.parametrize("commits", [1, 40])
def test_verify_of_the_log_costs_the_same(
    uri: str, options: dict[str, str], proxy: CountingProxy, commits: int
) -> None:
    table = Table.create(uri, partition_by=["n % 4 AS p"], storage_options=options)
    for n in range(commits):
        table.insert([{"n": 4 * n + k} for k in range(4)])
    table.merge_log()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    proxy.reset()
    assert table.verify(footers=False).ok
    assert proxy.counts == {"LIST": 3, "GET": 1}  # the table, its claims, its log; the one log file that is left
    assert [r for r in folders(proxy) if r[0] == "GET"] == [("GET", "_log")]
