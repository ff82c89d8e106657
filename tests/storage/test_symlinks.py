"""Readers, the proxy, sweeps, copies and puts never follow symbolic links inside a table."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.engines import arrow, polars
from icedb.engines.clickhouse import part_files
from icedb.errors import CorruptionError, CorruptLog, InvalidOption, SymbolicLink
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import (
    ObjectExists,
    ObjectNotFound,
    ObjectStore,
    fetch,
    open_store,
    open_stream,
    some_below,
)
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from tests.support.proxy.proxy_worlds import KEY, AppEndpoint, make_app

SECRET = b"root:x:0:0"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the table, with a file of the host."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "table", partition_by=["d"], sort_by=["n"])
    made.insert([{"d": 1, "n": 1}, {"d": 2, "n": 2}])
    return made


def part(table: Table, partition: str = "d=1") -> Path:
    [path] = [p.path for p in table.snapshot().parts if p.partition == partition]
    return Path(path)


def as_link(path: Path, target: Path) -> None:
    """Move a file or folder to a target, and replace it by a link to the target."""
    shutil.move(path, target)
    path.symlink_to(target)


# ------------------------------------------------------------------------------------------ the store


@pytest.fixture
def store(tmp_path: Path, outside: Path) -> ObjectStore:
    """A store with one file, and links to a file, a folder, nothing, itself, and the folder above."""
    store = open_store(parse_location(tmp_path / "table"))
    store.create("_data/d=1/a.parquet", b"content")
    data = tmp_path / "table" / "_data"
    (data / "d=1" / "file.parquet").symlink_to(outside / "secret")
    (data / "d=1" / "beside.parquet").symlink_to("a.parquet")
    (data / "folder").symlink_to(outside)
    (data / "dangling").symlink_to(outside / "nothing")
    (data / "loop").symlink_to("loop")
    (data / "above").symlink_to("..")
    return store


LINKS = ["_data/above", "_data/d=1/beside.parquet", "_data/d=1/file.parquet", "_data/dangling", "_data/folder",
         "_data/loop"]  # fmt: skip
BELOW = ["_data/above/_data/d=1/a.parquet", "_data/folder/secret", "_data/loop/x", "_data/dangling/x"]


def stream(store: ObjectStore, key: str) -> bytes:
    async def read() -> bytes:
        return b"".join([piece async for piece in await open_stream(store, key, 0, 4)])

    return asyncio.run(read())


READS: dict[str, Callable[[ObjectStore, str, Path], Any]] = {
    "get": lambda store, key, _: store.get(key),
    "get many": lambda store, key, _: store.get_many([key, "_data/d=1/a.parquet"]),
    "head": lambda store, key, _: store.head(key),
    "fetch": lambda store, key, path: fetch(store, key, path / "fetched"),
    "stream": lambda store, key, _: stream(store, key),
    "copy": lambda store, key, _: store.copy(key, "_data/copy.parquet"),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("key", [*LINKS, *BELOW])
def test_no_request_follows_a_link(store: ObjectStore, read: str, key: str, tmp_path: Path) -> None:
    link = next(k for k in LINKS if f"{key}/".startswith(f"{k}/"))
    with pytest.raises(SymbolicLink, match=f"'{link}' is a symbolic link. .* Put the file or folder itself"):
        READS[read](store, key, tmp_path)
    assert not (tmp_path / "table" / "_data" / "copy.parquet").exists()


def test_a_listing_has_links_as_links_and_nothing_below_them(store: ObjectStore) -> None:
    listed = {info.key: info.is_link for info in store.list("_data/")}
    assert listed == {**dict.fromkeys(LINKS, True), "_data/d=1/a.parquet": False}
    assert {info.key for info in some_below(store, "_data/")} == set(listed)
    with pytest.raises(SymbolicLink, match="_data/folder"):
        store.list("_data/folder/")


@pytest.mark.parametrize("key", BELOW)
def test_nothing_is_deleted_through_a_link(store: ObjectStore, key: str, outside: Path) -> None:
    with pytest.raises(SymbolicLink):
        store.delete([key])
    assert (outside / "secret").read_bytes() == SECRET
    assert store.get("_data/d=1/a.parquet").body == b"content"


def test_deleting_a_link_deletes_the_link_itself(store: ObjectStore, outside: Path) -> None:
    store.delete(LINKS)
    assert [info.key for info in store.list("_data/")] == ["_data/d=1/a.parquet"]
    assert (outside / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("key", ["_data/folder/new", "_data/folder/more/new", "_data/dangling/new", "_data/loop/new"])
def test_nothing_is_put_through_a_link(store: ObjectStore, key: str, outside: Path) -> None:
    with pytest.raises(SymbolicLink):
        store.create(key, b"new")
    with pytest.raises(SymbolicLink):
        store.copy("_data/d=1/a.parquet", key)
    assert [p.name for p in outside.iterdir()] == ["secret"]


def test_a_put_does_not_replace_a_link(store: ObjectStore, outside: Path) -> None:
    for key in ("_data/dangling", "_data/d=1/file.parquet"):
        with pytest.raises(ObjectExists):
            store.create(key, b"new")
    assert [p.name for p in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET


def test_a_link_that_is_created_between_two_steps_is_detected(
    store: ObjectStore, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is replaced by a link after it was opened. The opened folder is used."""
    (outside / "a.parquet").write_bytes(SECRET)
    folder = tmp_path / "table" / "_data" / "d=1"
    real = os.open

    def replacing(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if path == "a.parquet":
            folder.rename(tmp_path / "moved")
            folder.symlink_to(outside)
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", replacing)
    assert store.get("_data/d=1/a.parquet").body == b"content"
    monkeypatch.undo()
    with pytest.raises(SymbolicLink):
        store.get("_data/d=1/a.parquet")


def test_only_regular_files_are_objects(store: ObjectStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table" / "_data" / "pipe")
    for key in ("_data/pipe", "_data/d=1", "_data/missing/a"):
        for read in READS.values():
            if read is not READS["get many"]:
                with pytest.raises(ObjectNotFound):
                    read(store, key, tmp_path)
    assert "_data/pipe" not in {info.key for info in store.list("_data/")}


@pytest.mark.sampled(days=3)
def test_the_table_itself_may_lie_behind_links(tmp_path: Path) -> None:
    """Temporary folders of macOS are behind links, and mounted volumes may be."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    one = Table.create(tmp_path / "link" / "table", partition_by=["d"])
    one.insert([{"d": 1, "n": 1}])
    (tmp_path / "to the table").symlink_to(tmp_path / "real" / "table")
    for address in (tmp_path / "link" / "table", tmp_path / "to the table"):
        table = Table.open(address)
        table.insert([{"d": 1, "n": 2}])
        table.merge()
        table.cleanup(grace_ms=0, allow_short_grace=True)
        assert table.verify(deep=True).ok
        assert table.query("SELECT n FROM t ORDER BY n").fetchall()[0] == (1,)


# ------------------------------------------------------------------------------------------ reading a table


def clickhouse(table: Table, _: Path) -> object:
    snapshot = table.snapshot()
    return part_files.part_relations(snapshot.handle, snapshot.parts, "n Int64", None)


USES: dict[str, Callable[[Table, Path], object]] = {
    "query": lambda table, _: table.query("SELECT * FROM t").fetchall(),
    "sandboxed query": lambda table, _: table.query("SELECT * FROM t", sandbox=True).fetchall(),
    "dataset": lambda table, _: arrow.dataset(table.snapshot()).to_table(),
    "polars": lambda table, _: polars.scan(table.snapshot()).collect(),
    "clickhouse": clickhouse,
    "export": lambda table, path: table.export_parquet(path / "export"),
    "merge": lambda table, _: (table.insert([{"d": 1, "n": 3}]), table.merge()),
    "delete": lambda table, _: table.delete("n > 0"),
}


@pytest.mark.sampled(cases=15)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", ["part", "partition", "data", "dangling", "loop"])
def test_a_part_behind_a_link_is_not_read(use: str, where: str, table: Table, outside: Path, tmp_path: Path) -> None:
    path = part(table)
    if use == "query":
        USES[use](Table.open(table.uri), tmp_path)
    if where in ("dangling", "loop"):
        path.unlink()
        path.symlink_to(outside / "nothing" if where == "dangling" else path)
    else:
        as_link({"part": path, "partition": path.parent, "data": path.parent.parent}[where], outside / "moved")
    before = sorted(outside.rglob("*"))
    with pytest.raises(SymbolicLink, match=f"{table.uri}: '_data.*' is a symbolic link") as caught:
        USES[use](Table.open(table.uri), tmp_path)
    assert isinstance(caught.value, CorruptionError)
    assert isinstance(caught.value, OSError)
    assert sorted(outside.rglob("*")) == before


def test_spark_checks_its_paths(table: Table, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own scan opens parts by path in other processes. The data source reads as `query` does."""
    pytest.importorskip("pyspark")
    from icedb.spark import read_frames

    class Reader:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: self

        def parquet(self, *paths: str) -> Any:
            raise AssertionError(f"Spark would open {paths}")

    class SessionOfReader:
        read = Reader()

    as_link(part(table), outside / "moved")
    snapshot = table.snapshot()
    with pytest.raises(SymbolicLink):
        read_frames._through_parquet(SessionOfReader(), snapshot, snapshot.parts, {"n": "BIGINT"})  # type: ignore[arg-type]


def test_a_fetched_copy_of_a_part_may_be_anywhere(table: Table, outside: Path) -> None:
    [one, _] = table.snapshot().parts
    (outside / "copy").symlink_to(part(table))
    copy: Part = replace(one, path=str(outside / "copy"))
    assert table.handle.part_paths.original([copy]) == [copy.path]


def test_each_folder_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "table", partition_by=["d"])
    for _ in range(3):
        table.insert([{"d": 1, "n": 1}, {"d": 2, "n": 2}])
    checked: list[str] = []
    real = os.lstat

    def lstat(path: Any, **options: Any) -> os.stat_result:
        checked.append(str(path))
        return real(path, **options)

    parts = table.snapshot().parts
    monkeypatch.setattr(os, "lstat", lstat)
    table.handle.part_paths.readable(parts)
    assert len(checked) == len(set(checked)) == 3 + 6  # _data, two partitions, and the parts


# ------------------------------------------------------------------------------------------ the proxy


@pytest.mark.parametrize("where", ["part", "partition"])
def test_the_proxy_serves_nothing_behind_a_link(where: str, table: Table, outside: Path, caplog: Any) -> None:
    path = part(table)
    secret = outside / "secret"
    secret.write_bytes(SECRET * 100)
    if where == "part":
        path.unlink()
        path.symlink_to(secret)
    else:
        (outside / "folder").mkdir()
        (outside / "folder" / path.name).write_bytes(SECRET * 100)
        shutil.rmtree(path.parent)
        path.parent.symlink_to(outside / "folder")
    bucket = VirtualBucket(name="events", table=table.uri)

    def opened(address: str, _: Any) -> Handle:
        return Table.open(address).handle

    with asyncio.Runner() as runner:
        app = AppEndpoint(make_app(TableCatalog(open_table=opened), [bucket]), runner, KEY)
        key = str(path.relative_to(table.uri)).removeprefix("_data/")
        listed = app.ask("GET", "/events", {"list-type": "2"})
        assert listed.status == 200
        assert path.name.encode() in listed.body
        for headers in ({}, {"range": "bytes=0-9"}):
            answer = app.ask("GET", f"/events/{key}", headers=headers)
            assert answer.status >= 400
            assert SECRET not in answer.body
            assert str(outside).encode() not in answer.body
        other = part(table, "d=2")
        whole = app.ask("GET", f"/events/{str(other.relative_to(table.uri)).removeprefix('_data/')}")
        assert whole.status == 200
        assert whole.body == other.read_bytes()


# ------------------------------------------------------------------------------------------ maintenance


def aged_orphans(table: Table) -> Table:
    """Open the table with a clock that is a week ahead."""
    for path in Path(table.uri).rglob("*.parquet"):
        if not path.is_symlink():
            os.utime(path, (path.stat().st_mtime - 7 * 86_400, path.stat().st_mtime - 7 * 86_400))
    return table


def test_a_sweep_deletes_nothing_behind_a_link(table: Table, tmp_path: Path) -> None:
    """Through a linked folder, the sweep would delete the parts of another table."""
    other = Table.create(tmp_path / "other", partition_by=["d"])
    other.insert([{"d": 9, "n": 9}])
    data = Path(table.uri) / "_data"
    (data / "d=9").symlink_to(Path(other.uri) / "_data" / "d=9")
    (data / "d=1" / "old.parquet").symlink_to(part(other, "d=9"))
    (data / "d=1" / "orphan.parquet").write_bytes(b"left by a crash")
    for made in (table, other):
        aged_orphans(made)
    before = other.query("SELECT * FROM t").fetchall()
    report = table.delete_orphans(dry_run=True)
    assert report.deleted_parts == ("_data/d=1/orphan.parquet",)
    assert set(report.foreign) == {"_data/d=9", "_data/d=1/old.parquet"}
    assert table.delete_orphans().deleted_parts == report.deleted_parts
    assert other.query("SELECT * FROM t").fetchall() == before
    assert (data / "d=9").is_symlink()
    assert (data / "d=1" / "old.parquet").is_symlink()


@pytest.mark.parametrize("folder", ["_data", "_log", "_claims"])
def test_a_linked_folder_of_the_table_raises_in_every_operation(folder: str, table: Table, outside: Path) -> None:
    as_link(Path(table.uri) / folder, outside / "moved")
    before = sorted(outside.rglob("*"))
    opened = Table.open(table.uri)
    for use in (lambda: opened.insert([{"d": 1, "n": 3}]), opened.delete_orphans, opened.verify):
        with pytest.raises(SymbolicLink, match=f"'{folder}' is a symbolic link"):
            use()
    assert sorted(outside.rglob("*")) == before


def test_cleanup_deletes_nothing_behind_a_link(table: Table, outside: Path) -> None:
    table.insert([{"d": 1, "n": 3}])
    table.merge()
    folder = Path(table.uri) / "_data" / "d=1"
    as_link(folder, outside / "moved")
    before = sorted(outside.rglob("*"))
    with pytest.raises(SymbolicLink, match="'_data/d=1' is a symbolic link"):
        table.cleanup(grace_ms=0, allow_short_grace=True)
    assert sorted(outside.rglob("*")) == before
    folder.unlink()
    shutil.move(outside / "moved", folder)
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert table.verify(deep=True).ok
    assert table.query("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,), (3,)]


def test_verify_lists_every_link(table: Table, outside: Path) -> None:
    path = part(table)
    as_link(path, outside / "moved")
    (Path(table.uri) / "_data" / "d=9").symlink_to(outside)
    (Path(table.uri) / "beside").symlink_to(outside)
    for options in ({}, {"footers": False}, {"deep": True}):
        report = table.verify(**options)
        assert not report.ok
        key = str(path.relative_to(table.uri))
        assert [(p.kind, p.key) for p in report.problems if p.severity == "error"] == [
            ("symbolic_link", key),
            ("symbolic_link", "_data/d=9"),
        ]
        assert report.foreign == ("beside",)
    as_link(Path(table.uri) / "_data" / "d=2", outside / "partition")
    kinds = {(p.kind, p.key.partition("/")[2].partition("/")[0]) for p in table.verify().problems}
    assert {("symbolic_link", "d=2"), ("missing_part", "d=2")} <= kinds


@pytest.mark.sampled(days=3)
def test_a_linked_log_file_raises_and_is_not_skipped(table: Table, outside: Path) -> None:
    [log] = (Path(table.uri) / "_log").glob("*.jsonl")
    as_link(log, outside / "moved")
    with pytest.raises(SymbolicLink, match=f"'_log/{log.name}' is a symbolic link"):
        Table.open(table.uri).query("SELECT * FROM t")
    report = Table.open(table.uri).verify()
    assert ("symbolic_link", f"_log/{log.name}") in [(p.kind, p.key) for p in report.problems]
    log.unlink()
    shutil.move(outside / "moved", log)
    assert Table.open(table.uri).query("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_a_linked_claim_raises(table: Table, outside: Path) -> None:
    claims = Path(table.uri) / "_claims"
    (claims / "e00000001.json").symlink_to(outside / "secret")
    with pytest.raises(CorruptLog, match="symbolic link"):
        table.delete_orphans()
    assert not table.verify().ok or "unknown_claim" in [p.kind for p in table.verify().problems]


def test_a_linked_spec_is_not_read(table: Table, outside: Path) -> None:
    as_link(Path(table.uri) / "_table.json", outside / "moved")
    with pytest.raises(SymbolicLink, match=r"'_table\.json' is a symbolic link"):
        Table.open(table.uri)


@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/**/*.parquet"])
@pytest.mark.parametrize("linked", ["file", "folder"])
def test_an_import_rejects_links(linked: str, pattern: str, table: Table, outside: Path, tmp_path: Path) -> None:
    """In a folder that others can write to, a link could lead to any file of the machine."""
    files = tmp_path / "files"
    files.mkdir()
    (outside / "rows").mkdir()
    pq.write_table(pa.table({"d": [1], "n": [3]}), files / "a.parquet")
    pq.write_table(pa.table({"d": [1], "n": [4]}), outside / "rows" / "b.parquet")
    source = outside / "rows" / "b.parquet" if linked == "file" else outside / "rows"
    (files / ("b.parquet" if linked == "file" else "more")).symlink_to(source)
    with pytest.raises(InvalidOption, match="is a symbolic link, which imports do not follow"):
        table.import_files(f"{files}{pattern}")
    assert table.query("SELECT count(*) FROM t").fetchall() == [(2,)]
