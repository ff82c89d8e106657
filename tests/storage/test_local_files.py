"""Puts into a local folder are atomic, also after a power failure."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.errors import InvalidOption, InvalidRequestError, InvalidURI, StoreUnavailable, UnsupportedStore
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, open_store

KEY = "_data/d=1/u=2/a.parquet"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The created folders, links and syncs below the test's folder, in order."""
    done: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "mkdir")}

    def name(path: str | Path) -> str:
        text = str(Path(path).relative_to(tmp_path))
        return f"{text.split('#')[0]}#" if "#" in text else text

    def fsync(file: int) -> None:
        real["fsync"](file)
        path = Path(f"/proc/self/fd/{file}").readlink()
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            assert os.fstat(file).st_size == len(b"content"), "synced before everything was written"
        done.append(("sync", name(path)))

    def link(source: Any, target: Any, **how: Any) -> None:
        assert Path(source).read_bytes() == b"content"
        real["link"](source, target, **how)
        done.append(("link", name(target)))

    def mkdir(path: Any, *how: Any, **more: Any) -> None:
        real["mkdir"](path, *how, **more)
        done.append(("mkdir", name(path)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "mkdir", mkdir)
    return done


@pytest.mark.parametrize("from_file", [False, True])
def test_content_folders_and_names_are_synced(tmp_path: Path, calls: list[tuple[str, str]], from_file: bool) -> None:
    body: bytes | Path = b"content"
    if from_file:
        body = tmp_path / "source"
        body.write_bytes(b"content")
    open_store(parse_location(tmp_path / "lake" / "table")).create(KEY, body)
    folder = "lake/table/_data/d=1/u=2"
    assert calls == [
        *[("mkdir", "lake"), ("sync", ".")],
        *[("mkdir", "lake/table"), ("sync", "lake")],
        *[("mkdir", "lake/table/_data"), ("sync", "lake/table")],
        *[("mkdir", "lake/table/_data/d=1"), ("sync", "lake/table/_data")],
        *[("mkdir", folder), ("sync", "lake/table/_data/d=1")],
        ("sync", f"{folder}/.staged#"),
        ("link", f"{folder}/a.parquet"),
        # All of them, because another writer may have created a folder and not synced its name yet.
        *[("sync", p) for p in (folder, "lake/table/_data/d=1", "lake/table/_data", "lake/table")],
    ]


def test_a_copy_is_synced_like_a_put(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = open_store(parse_location(tmp_path / "table"))
    store.create("_data/a", b"content")
    calls.clear()
    store.copy("_data/a", "_data/b")
    assert calls == [("sync", "table/_data/.staged#"), ("link", "table/_data/b"), ("sync", "table/_data")]


def test_the_names_of_folders_are_synced_again_if_they_are_replaced(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    table, folder = tmp_path / "table", tmp_path / "table" / "_data" / "d=1"
    folder.mkdir(parents=True)  # by another writer, who may not have synced it
    store = open_store(parse_location(table))
    calls.clear()
    file = [("sync", "table/_data/d=1/.staged#"), ("link", "table/_data/d=1/a"), ("sync", "table/_data/d=1")]
    above = [("sync", "table/_data"), ("sync", "table")]
    store.create("_data/d=1/a", b"content")
    assert calls == file + above
    (folder / "a").unlink()
    calls.clear()
    store.create("_data/d=1/a", b"content")
    assert calls == file
    (table / "_data").rename(tmp_path / "away")
    folder.mkdir(parents=True)
    calls.clear()
    store.create("_data/d=1/a", b"content")
    assert calls == file + above


def test_syncing_is_skipped_only_with_the_option(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    for value in ("true", "1", "TRUE"):
        assert parse_location(tmp_path / "table", {"fsync": value}).fsync
    assert parse_location(tmp_path / "table").fsync
    open_store(parse_location(tmp_path / "table", {"fsync": "false"})).create(KEY, b"content")
    assert {kind for kind, _ in calls} == {"mkdir", "link"}
    with pytest.raises(InvalidOption, match="fsync is 'perhaps'; give 'true' or 'false'"):
        parse_location(tmp_path / "table", {"fsync": "perhaps"})


def test_every_object_of_a_table_is_synced(local: Any, calls: list[tuple[str, str]], monkeypatch: Any) -> None:
    monkeypatch.undo()
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        if stat.S_ISREG(os.fstat(file).st_mode):
            synced.append(str(os.fstat(file).st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    table = Table.create(local.uri)
    table.insert([{"a": 1}])
    table.insert([{"a": 2}])
    table.merge()
    objects = [p for p in Path(local.uri).rglob("*") if p.is_file()]
    assert {p.parts[len(Path(local.uri).parts)] for p in objects} == {"_log", "_data", "_claims", "_table.json"}
    assert {str(p.stat().st_ino) for p in objects} <= set(synced)


def test_staged_files_of_a_crash_are_not_listed_and_block_no_put(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(parse_location(local.uri))

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        patch.setattr(os, "unlink", die)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                store.create("_log/1", b"half")
    left = list(Path(local.uri, "_log").iterdir())
    assert len(left) == 3
    assert store.list("_log/") == []
    with pytest.raises(ObjectNotFound):
        store.get("_log/1")
    # As another process with the same id.
    monkeypatch.setattr("icedb.storage.local_store._numbers", iter(range(1, 10**6)))
    store.create("_log/1", b"whole")
    assert store.get("_log/1").body == b"whole"
    assert sorted(p.name for p in Path(local.uri, "_log").iterdir()) == sorted([*(p.name for p in left), "1"])


def test_a_rejected_put_leaves_nothing_behind(local: Any) -> None:
    store = open_store(parse_location(local.uri))
    store.create("_log/1", b"first")
    with pytest.raises(ObjectExists):
        store.create("_log/1", b"second")
    with pytest.raises(ObjectNotFound):
        store.create("_log/2", Path(local.uri, "no-such-source"))
    assert [p.name for p in Path(local.uri, "_log").iterdir()] == ["1"]


def _create_in_process(uri: str, number: int) -> bool:
    try:
        open_store(parse_location(uri)).create("_claims/x/y/epoch-1.json", str(number).encode() * 500_000)
    except ObjectExists:
        return False
    return True


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_of_many_creating_processes_one_wins_with_a_complete_object(local: Any) -> None:
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        won = list(pool.map(_create_in_process, [local.uri] * 8, range(8)))
    assert sum(won) == 1
    body = open_store(parse_location(local.uri)).get("_claims/x/y/epoch-1.json").body
    assert body == str(won.index(True)).encode() * 500_000


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_rejected(local: Any, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(UnsupportedStore, match="no hard links"):
        Table.create(local.uri)
    assert not [p for p in Path(local.uri).rglob("*") if p.is_file()]


def test_the_error_of_a_failing_disk_names_the_disk(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match=r"No space left.*Check the folder and its disk"):
        open_store(parse_location(local.uri)).create("_log/1", b"")


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
@pytest.mark.parametrize("verb", [Table.create, Table.open, Table.exists], ids=lambda v: v.__name__)
def test_a_file_cannot_hold_a_table(tmp_path: Path, below: str, verb: Callable[[str], object]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InvalidURI, match="this path is a file or is below one") as caught:
        verb(str(file / below))
    assert isinstance(caught.value, InvalidRequestError)
    assert "endpoint" not in str(caught.value)
    assert file.read_text() == "mine"


def test_a_file_among_the_folders_of_a_table_is_named(local: Any) -> None:
    store = open_store(parse_location(local.uri))
    store.create("_data/x", b"")
    with pytest.raises(InvalidURI, match="'_data/x/y'") as caught:
        store.create("_data/x/y", b"")
    assert "endpoint" not in str(caught.value)


def test_a_deleted_folder_is_not_an_empty_store(local: Any) -> None:
    store = open_store(parse_location(local.uri))
    store.create("_log/1", b"")
    Path(local.uri).rename(f"{local.uri}-unmounted")
    for request in (lambda: store.list("_log/"), lambda: store.create("_log/2", b""), lambda: store.get("_log/1")):
        with pytest.raises(StoreUnavailable, match="mount it again"):
            request()
    assert not Path(local.uri).exists()
    Path(f"{local.uri}-unmounted").rename(local.uri)
    assert [info.key for info in store.list("_log/")] == ["_log/1"]


def test_a_store_opened_before_its_folder_sees_objects_of_others(local: Any) -> None:
    early = open_store(parse_location(local.uri))
    assert early.list("_log/") == []
    open_store(parse_location(local.uri)).create("_log/1", b"1")
    assert [info.key for info in early.list("_log/")] == ["_log/1"]
    assert early.get("_log/1").body == b"1"


@pytest.mark.parametrize("key", ["../out", "_data//x", "_data/./x", "/etc/x", ""])
def test_no_key_leaves_the_folder(local: Any, key: str) -> None:
    with pytest.raises(InvalidURI):
        open_store(parse_location(local.uri)).create(key, b"")


DIES_WHILE_PUTTING = """
import os, sys, time
from pathlib import Path
import icedb

def link(source, target, link=os.link, **options):
    if str(target).endswith(".parquet"):
        print("ready", flush=True)
        time.sleep(600)
    link(source, target, **options)

os.link = link
icedb.Table.open(sys.argv[1]).insert([{"email": "user7@example.com"}])
"""


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_the_staged_file_of_a_killed_put_is_swept_when_it_is_old(tmp_path: Path) -> None:
    """No listing has it, but it contains unencrypted rows."""
    table = Table.create(tmp_path / "table", sort_by=["email"])
    process = subprocess.Popen(
        [sys.executable, "-c", DIES_WHILE_PUTTING, str(tmp_path / "table")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    [staged] = (tmp_path / "table").rglob(".staged#*")
    assert b"user7@example.com" in staged.read_bytes()
    other = staged.with_name("others#1")  # of another program
    other.touch()
    link = staged.with_name(".staged#7")
    link.symlink_to(other)
    table.insert([{"email": "user8@example.com"}])
    assert table.delete_orphans().unfinished_puts == 0, "a running process may still write it"
    for path in (staged, other, link):
        os.utime(path, (path.lstat().st_mtime - 86_400 * 2,) * 2, follow_symlinks=False)
    assert table.delete_orphans(dry_run=True).unfinished_puts == 1
    assert staged.exists()
    assert table.delete_orphans().unfinished_puts == 1
    assert not staged.exists()
    assert other.exists()
    assert link.is_symlink()
    assert table.verify(deep=True).ok


def test_a_put_fails_if_its_staged_file_was_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was paused for a day between writing the content and linking the name."""
    store = open_store(parse_location(tmp_path / "table"))
    real = os.link

    def late(staged: Any, *rest: Any, **how: Any) -> None:
        Path(staged).unlink()
        real(staged, *rest, **how)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(StoreUnavailable, match="Stale"):
        store.create(KEY, b"content")
    assert store.list("_data/") == []
