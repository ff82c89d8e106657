"""A table with its log in another store works like any other, and never appears empty by mistake."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
from icedb.errors import (
    BucketNotFound,
    CommitStateUnknown,
    CorruptLog,
    InvalidOption,
    InvalidURI,
    InvariantViolated,
    StoreUnavailable,
    TableExists,
)
from icedb.storage.location import parse_location, with_log
from icedb.storage.obstore_store import open_store
from icedb.storage.split_store import SplitStore
from icedb.testing import ClockedStore, Fault, FaultyStore, ManualClock, create_table
from icedb.writer.part_writer import write_parts

FAST = "icedb-tests-fast"
PAIRS = [
    "local+local",
    "local+memory",
    "memory+local",
    *(pytest.param(p, marks=pytest.mark.s3) for p in ("s3+s3", "s3+local", "local+s3")),
]


class StorePair:
    """The stores of the parts and the log of one table."""

    def __init__(self, pair: str, request: pytest.FixtureRequest) -> None:
        self.folder: Path = request.getfixturevalue("tmp_path")
        self.request = request
        data, log = pair.split("+")
        self.uri, self.options = self._place(data, "icedb-tests", "lake")
        self.log_uri, log_options = self._place(log, FAST, "log")
        self.log_options = None if data == log else log_options

    def _place(self, kind: str, bucket: str, name: str) -> tuple[str, dict[str, str] | None]:
        if kind == "local":
            return str(self.folder / name), None
        if kind == "memory":
            return f"memory://{uuid.uuid4().hex}/{name}", None
        server = self.request.getfixturevalue("s3_server")
        server.client().create_bucket(Bucket=bucket)
        return f"s3://{bucket}/{uuid.uuid4().hex}/{name}", server.storage_options

    def create(self, **options: Any) -> Table:
        return Table.create(
            self.uri,
            storage_options=self.options,
            log_uri=self.log_uri,
            log_storage_options=self.log_options,
            **options,
        )

    def open(self) -> Table:
        return Table.open(self.uri, storage_options=self.options, log_storage_options=self.log_options)

    def objects(self) -> tuple[set[str], set[str]]:
        """Return the first folder (or file) of each object below the addresses of the parts and of the log."""
        return _tops(self.uri, self.options), _tops(self.log_uri, self.log_options or self.options)


def _tops(uri: str, options: dict[str, str] | None) -> set[str]:
    location = parse_location(uri, options)
    prefix = f"{location.prefix}/" if location.prefix else ""
    return {info.key.removeprefix(prefix).split("/")[0] for info in open_store(location).list(prefix)}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> StorePair:
    return StorePair(request.param, request)


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
def test_a_table_works_with_its_log_elsewhere(pair: StorePair) -> None:
    table = pair.create(partition_by=["d"], sort_by=["n"])
    for n in range(4):
        table.insert([{"d": "a", "n": n}, {"d": "b", "n": n}])
    table.overwrite([{"d": "b", "n": 9}], partitions=["d=b"])
    assert table.merge().merged_parts == 4
    table.insert([{"d": "c", "n": 5, "new": "x"}])
    table.drop_partitions(["d=c"])
    rows = [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 9)]
    for one in (table, pair.open()):
        assert one.query("SELECT d, n FROM t ORDER BY ALL").fetchall() == rows
    done = table.cleanup(grace_ms=0, allow_short_grace=True)
    assert len(done.deleted_parts) == 4 + 4 + 1
    assert pair.objects() == ({"_data", "_table.json"}, {"_log", "_claims"})
    again = pair.open()
    again.insert([{"d": "a", "n": 7}])
    assert again.query("SELECT d, n FROM t ORDER BY ALL").fetchall() == sorted([*rows, ("a", 7)])
    assert len(list(again.snapshot().files())) == len(again.handle.store.list(again.handle.keys.data_prefix)) == 3


@pytest.mark.sampled(days=3)
def test_the_spec_contains_the_address_of_the_log_and_no_secret(pair: StorePair) -> None:
    table = pair.create()
    body = table.handle.store.get(table.handle.keys.spec).body.decode()
    assert json.loads(body)["log_uri"] == pair.log_uri == table.spec.log_uri
    options = (pair.options or {}) | (pair.log_options or {})
    assert not [name for name, value in options.items() if "KEY" in name and value in body]


def test_the_spec_of_a_table_with_one_store_names_no_log(local: Any) -> None:
    table = Table.create(local.uri)
    assert "log_uri" not in table.handle.store.get("_table.json").body.decode()


@pytest.mark.sampled(days=3)
def test_a_task_on_another_machine_puts_parts_with_the_location_alone(pair: StorePair) -> None:
    table = pair.create()
    context = pickle.loads(pickle.dumps(table.handle.write_context()))
    rows = pa.table({"n": [1, 2]}).to_reader()
    written = write_parts(context, rows, store=open_store(context.location), clock=table.handle.clock)
    [part] = table.handle.store.list(table.handle.keys.data_prefix)
    assert [m.key for m in written.markers] == [part.key]
    assert pair.objects()[1] == {"_claims"}


# ------------------------------------------------------------------------------------------ a missing log


def test_an_unmounted_log_is_not_an_empty_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "lake", log_uri=tmp_path / "log")
    table.insert([{"a": 1}])
    (tmp_path / "log").rename(tmp_path / "unmounted")
    for mount_point in (False, True):
        if mount_point:
            (tmp_path / "log").mkdir()
        for verb in (Table.open, Table.exists):
            with pytest.raises(CorruptLog, match=r"its log should be at .*/log.*Mount the log's folder"):
                verb(tmp_path / "lake")
        with pytest.raises(TableExists, match="a table is there already"):
            Table.create(tmp_path / "lake", log_uri=tmp_path / "log")
    assert list((tmp_path / "log").iterdir()) == [], "no object may be put at the mount point of the log"
    (tmp_path / "log").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "log")
    assert Table.open(tmp_path / "lake").query("FROM t").fetchall() == [(1,)]


def test_a_log_that_is_deleted_under_an_open_table_raises_an_error(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "lake", log_uri=tmp_path / "log")
    table.insert([{"a": 1}])
    (tmp_path / "log").rename(tmp_path / "unmounted")
    for use in (table.snapshot, table.merge):
        with pytest.raises(StoreUnavailable, match="mount it again"):
            use()
    with pytest.raises(CommitStateUnknown):  # a put without a response
        table.insert([{"a": 2}])
    assert not (tmp_path / "log").exists()


def test_a_missing_bucket_of_the_log_is_named(tmp_path: Path, s3_server: Any, storage_options: dict[str, str]) -> None:
    bucket = f"gone-{uuid.uuid4().hex}"
    s3_server.client().create_bucket(Bucket=bucket)
    table = Table.create(tmp_path / "lake", log_uri=f"s3://{bucket}/log", log_storage_options=storage_options)
    table.handle.store.delete([table.handle.keys.probe])
    with pytest.raises(CorruptLog, match=f"should be at 's3://{bucket}/log'"):
        Table.open(tmp_path / "lake", log_storage_options=storage_options)
    s3_server.client().delete_bucket(Bucket=bucket)
    with pytest.raises(BucketNotFound, match=bucket):
        Table.open(tmp_path / "lake", log_storage_options=storage_options)


# ------------------------------------------------------------------------------------------ logs of other tables


def test_two_tables_never_share_a_log(tmp_path: Path) -> None:
    one = Table.create(tmp_path / "one", log_uri=tmp_path / "log")
    for _ in range(2):  # before its first commit, and after
        with pytest.raises(TableExists, match="log"):
            Table.create(tmp_path / "two", log_uri=tmp_path / "log")
        one.insert([{"a": 1}])
    assert not Table.exists(tmp_path / "two")


@pytest.mark.parametrize("lost", [Fault.FAIL, Fault.LOSE_RESPONSE, Fault.CRASH_BEFORE])
def test_a_create_that_failed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Fault) -> None:
    def flaky(location: Any) -> Any:
        store = FaultyStore(open_store(location))
        store.inject(lost, kind="create", key="_table.json")
        return store

    with monkeypatch.context() as patch:
        patch.setattr("icedb.table.open_store", flaky)
        with pytest.raises(BaseException, match=r"had no answer|^$"):
            Table.create(tmp_path / "lake", log_uri=tmp_path / "log")
    if lost is Fault.LOSE_RESPONSE:
        assert Table.exists(tmp_path / "lake")
    else:
        Table.create(tmp_path / "lake", log_uri=tmp_path / "log").insert([{"a": 1}])


# ------------------------------------------------------------------------------------------ addresses


def test_a_relative_log_uri_is_resolved_at_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Table.create("lake", log_uri="log").insert([{"a": 1}])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    table = Table.open("../lake")
    assert table.spec.log_uri == str(tmp_path / "log")
    assert table.query("FROM t").fetchall() == [(1,)]


def test_the_same_address_is_one_store(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "lake", log_uri=f"{tmp_path}/x/../lake/")
    assert table.spec.log_uri == ""
    assert not isinstance(table.handle.store, SplitStore)


@pytest.mark.parametrize(
    ("uri", "log_uri"),
    [
        ("s3://b/lake", "s3://b/lake/log"),
        ("s3://b/lake/table", "s3://b/lake"),
        ("s3://b", "s3://b/log"),
        ("s3://b/log/_log/table", "s3://c/log"),
        ("s3://b/_claims", "s3://c"),
        ("s3://b/lake", "s3://c/lake/_data/d=1"),
        ("/lake/table", "/lake/table/log"),
        ("/lake/table", "/lake"),
        ("memory://m/a", "memory://m/a/b"),
    ],
)
def test_overlapping_stores_are_rejected(uri: str, log_uri: str) -> None:
    with pytest.raises(InvalidURI, match="could not be distinguished"):
        with_log(parse_location(uri), log_uri)


@pytest.mark.parametrize(
    ("uri", "log_uri"),
    [("s3://b/lake", "s3://b/lake-log"), ("s3://b/lake", "s3://c/lake"), ("s3://b/lake", "s3://c"), ("/a/t", "/b/t")],
)
def test_stores_side_by_side_are_accepted(uri: str, log_uri: str) -> None:
    location = with_log(parse_location(uri), log_uri)
    assert location.log is not None
    assert (location.uri, location.log.uri) == (uri, log_uri)


def test_the_log_has_the_options_of_the_parts_or_its_own() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hidden-in-all-texts"}
    data = parse_location("s3://b/t", {"AWS_ENDPOINT_URL": "http://slow:1", **keys})
    log = with_log(data, "s3://fast/t").log
    assert log is not None
    assert (log.endpoint, log.explicit_credentials, log.root) == ("http://slow:1", data.explicit_credentials, "fast")
    log = with_log(data, "s3://fast/t", {"AWS_ENDPOINT_URL": "http://fast:1"}).log
    assert log is not None
    assert (log.endpoint, log.explicit_credentials) == ("http://fast:1", None)
    log = with_log(data, "/log").log
    assert log is not None
    assert (log.scheme, log.fsync, log.endpoint) == ("file", True, None)
    assert "hidden-in-all-texts" not in repr(with_log(data, "s3://fast/t"))


def test_options_of_a_log_need_a_log(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no log_uri"):
        Table.create(tmp_path / "lake", log_storage_options={})


def test_one_name_at_two_endpoints_is_two_stores() -> None:
    # Without its own options, the log would be searched in the store of the parts, where the probe is missing.
    data = parse_location("s3://b/t", {"AWS_ENDPOINT_URL": "http://one:1"})
    location = with_log(data, "s3://b/t", {"AWS_ENDPOINT_URL": "http://two:1"})
    assert location.log is not None
    assert location.log.endpoint == "http://two:1"


# ------------------------------------------------------------------------------------------ the store itself


def test_requests_go_to_the_store_of_their_keys() -> None:
    clock = ManualClock()
    data, log = FaultyStore(ClockedStore(clock)), FaultyStore(ClockedStore(clock, prefix="fast"))
    store = SplitStore(data, log)
    keys = store.location.keys
    for key in (keys.part("", "a"), f"{keys.log_prefix}1", keys.probe, keys.spec):
        store.create(key, b"")
    assert [r.keys for r in data.requests] == [(keys.part("", "a"),), (keys.spec,)]
    assert [r.keys for r in log.requests] == [(f"{keys.log_prefix}1",), (keys.probe,)]
    assert set(store.get_many([keys.probe, keys.spec, "table/none"])) == {keys.probe, keys.spec}
    store.copy(keys.part("", "a"), keys.part("", "b"))
    with pytest.raises(InvariantViolated, match="two stores"):
        store.copy(keys.part("", "a"), f"{keys.log_prefix}2")
    store.delete([keys.part("", "a"), keys.part("", "b"), f"{keys.log_prefix}1"])
    assert store.list(keys.log_prefix) == store.list(keys.data_prefix) == []
    assert (data.counts["delete"], log.counts["delete"]) == (1, 1)


def test_no_part_is_deleted_if_its_log_file_could_not_be_deleted() -> None:
    clock = ManualClock()
    data, log = ClockedStore(clock), FaultyStore(ClockedStore(clock, prefix="fast"))
    store = SplitStore(data, log)
    keys = store.location.keys
    store.create(keys.part("", "a"), b"")
    log.inject(Fault.FAIL, kind="delete")
    with pytest.raises(ConnectionError):
        store.delete([keys.part("", "a"), f"{keys.log_prefix}1"])
    assert set(data.objects) == {keys.part("", "a")}


def test_the_test_utilities_support_two_stores() -> None:
    clock = ManualClock()
    store = SplitStore(ClockedStore(clock), ClockedStore(clock, prefix="fast"))
    table = create_table(store, clock)
    table.insert([{"a": 1}])
    assert len(table.snapshot().parts) == 1


def test_a_table_is_not_opened_with_the_log_of_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Table.create(tmp_path / name, log_uri=str(tmp_path / f"log-{name}")).insert([{"n": 1}])
    (tmp_path / "log-a").rename(tmp_path / "aside")
    (tmp_path / "log-b").rename(tmp_path / "log-a")
    with pytest.raises(CorruptLog, match="log of another table"):
        Table.open(tmp_path / "a")
