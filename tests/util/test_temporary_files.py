"""Temporary folders contain unencrypted rows: the next process removes those of killed processes, and no others."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import duckdb
import pytest

import icedb
from icedb.sql import connection_pool
from icedb.util import temporary_files
from icedb.util.temporary_files import make_folder, remove_folder, temporary_folder
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECRET = b"user7@example.com"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder for temporary files, for this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(temporary_files, "_looked_s", {})
    connection_pool._close_all()
    yield folder
    connection_pool._close_all()


def run(program: str, place: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that runs a program, and wait until it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


HOLDS_ROWS = """
import sys, time
from pathlib import Path
from icedb.util.temporary_files import make_folder
folder = make_folder("rows", below=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
(folder / "rows.txt").write_bytes(b"user7@example.com")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def alive(place: Path) -> Iterator[subprocess.Popen[str]]:
    process = run(HOLDS_ROWS, place)
    yield process
    process.kill()
    process.communicate()


def roots(place: Path) -> list[Path]:
    return sorted(place.glob("icedb-temporary-*"))


def named(place: Path, pattern: str) -> list[Path]:
    """Return the files below a folder in which other processes create and delete some, on which `rglob` may fail."""
    return [Path(folder, name) for folder, _, names in os.walk(place) for name in names if fnmatch(name, pattern)]


def rows(place: Path) -> list[Path]:
    return [f for f in place.rglob("*") if f.is_file() and not f.is_symlink() and SECRET in f.read_bytes()]


def remove_dead_again(place: Path) -> None:
    """Remove the roots of dead processes, although this process has just done so."""
    temporary_files._looked_s.clear()
    temporary_files._remove_dead(place)


# ------------------------------------------------------------------------------------------ killed processes


@pytest.mark.process
def test_the_next_process_removes_the_folders_of_a_killed_one(alive: subprocess.Popen[str], place: Path) -> None:
    [file] = rows(place)
    assert place.stat().st_uid == file.stat().st_uid
    assert [p.stat().st_mode & 0o777 for p in (file.parent.parent, file.parent)] == [0o700, 0o700]
    kill(alive)
    assert rows(place) == [file]
    with temporary_folder("next"):
        assert len(roots(place)) == 1
        assert rows(place) == []
    assert list(place.iterdir()) == []


@pytest.mark.process
def test_folders_of_live_processes_are_kept(alive: subprocess.Popen[str], place: Path) -> None:
    [file] = rows(place)
    with temporary_folder("next") as own:
        assert rows(place) == [file]
        (own / "mine").touch()
        remove_dead_again(place)  # a process does not remove its own root
        assert (own / "mine").exists()
    assert rows(place) == [file]


#: Programs that stop before they put a part.
STOPS = """
import sys, time
import icedb, icedb.writer.batch_loader, icedb.writer.part_writer, icedb.operations.rewrite.rewriter

def put(*arguments, **options):
    print("ready", flush=True)
    time.sleep(600)

table = icedb.Table.create(sys.argv[1], sort_by=["email"])
"""
#: DuckDB stages the rows, as those of a batch that is too large for Arrow.
INSERTS = f"""{STOPS}
icedb.writer.batch_loader._HELD_DIVISOR = 1 << 60
icedb.writer.part_writer.put_part = put
table.insert([{{"email": "user7@example.com"}}])
"""
REWRITES = f"""{STOPS}
for n in range(2):
    table.insert([{{"email": f"user{{n + 6}}@example.com"}}])
icedb.operations.rewrite.rewriter.put_part = put
table.merge()
"""


@pytest.mark.sampled(days=3)
@pytest.mark.process
@pytest.mark.parametrize("program", [INSERTS, REWRITES], ids=["insert", "merge"])
def test_a_killed_insert_or_merge_leaves_rows_until_the_next_insert(program: str, place: Path, tmp_path: Path) -> None:
    process = run(program, place, tmp_path / "table")
    kill(process)
    assert [file.suffix for file in rows(place)] == [".parquet"]
    icedb.Table.create(tmp_path / "another").insert([{"n": 1}])
    assert rows(place) == []


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_standard_input_of_a_command_that_is_killed_is_removed_by_the_next_command(place: Path, tmp_path: Path) -> None:
    icedb.Table.create(tmp_path / "table")
    process = subprocess.Popen(
        [sys.executable, "-m", "icedb.cli", "insert", str(tmp_path / "table"), "-"],
        env={**os.environ, "TMPDIR": str(place)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        text=False,
    )
    assert process.stdin is not None
    process.stdin.write(b'{"email": "user7@example.com"}\n' * 10_000)
    process.stdin.flush()
    wait_until(lambda: rows(place), "the command writes rows")
    process.kill()
    process.wait()
    process.stdin.close()
    assert len(rows(place)) == 1
    with temporary_folder("next"):
        assert rows(place) == []


SPILLS = """
import sys, time
import icedb, icedb.sql.connections

limit = icedb.sql.connections._limit
icedb.sql.connections._limit = lambda con, memory_bytes, threads: limit(con, 32_000_000, 1)
table = icedb.Table.open(sys.argv[1])
print("ready", flush=True)
table.query("SELECT email, md5(r::VARCHAR) AS text FROM range(100_000_000) AS s(r), t ORDER BY text").fetchone()
"""


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_a_query_spills_into_a_temporary_folder_and_not_into_the_working_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = icedb.Table.create(tmp_path / "table")
    table.insert([{"email": "user7@example.com"}])
    [(spill,)] = table.query("SELECT current_setting('temp_directory') FROM t").fetchall()
    assert Path(spill).parent in roots(place)
    assert not Path(spill).exists()
    process = run(SPILLS, place, tmp_path / "table")
    wait_until(lambda: named(place, "duckdb_temp_*"), "the query spills")
    kill(process)
    assert not (tmp_path / ".tmp").exists()
    temporary_files._looked_s.clear()
    with temporary_folder("next"):
        assert list(place.rglob("duckdb_temp_*")) == []


def test_queries_do_not_spill_without_a_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = icedb.Table.create(tmp_path / "table")
    table.insert([{"n": 1}])
    connection_pool._close_all()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert table.query("SELECT n, current_setting('temp_directory') FROM t").fetchall() == [(1, "")]


# ------------------------------------------------------------------------------------------ folders of others


def dead_root(place: Path, name: str = "icedb-temporary-dead") -> Path:
    """Make a root as a killed process leaves it."""
    root = place / name
    (root / "write-1").mkdir(parents=True, mode=0o700)
    (root / "write-1" / "rows.txt").write_bytes(SECRET)
    (root / "owner").write_text(f"{temporary_files._TITLE}\n{temporary_files._kernel()}\n")
    return root


def test_the_simulated_root_of_a_dead_process_is_removed(place: Path) -> None:
    dead_root(place)
    temporary_files._remove_dead(place)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "kind", ["name", "no owner", "unnamed owner", "another owner", "link", "hard link", "pipe", "folder"]
)
def test_other_folders_are_kept(kind: str, place: Path, tmp_path: Path) -> None:
    root = dead_root(place, "another-dead" if kind == "name" else "icedb-temporary-dead")
    owner, elsewhere = root / "owner", tmp_path / "elsewhere"
    if kind in ("no owner", "pipe", "folder"):
        owner.unlink()
    match kind:
        case "unnamed owner":  # the owner file is not locked yet
            owner.rename(root / "owner.new")
        case "another owner":
            owner.write_text("mine")
        case "link":
            owner.rename(elsewhere)
            owner.symlink_to(elsewhere)
        case "hard link":
            elsewhere.hardlink_to(owner)
        case "pipe":
            os.mkfifo(owner)
        case "folder":
            owner.mkdir()
    temporary_files._remove_dead(place)
    assert (root / "write-1" / "rows.txt").read_bytes() == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("path", ["", "owner"])
def test_a_folder_of_another_user_is_kept(path: str, place: Path) -> None:
    root = dead_root(place)
    os.chown(root / path, 12_345, 12_345)
    temporary_files._remove_dead(place)
    assert (root / "write-1" / "rows.txt").read_bytes() == SECRET


def test_a_folder_is_kept_if_the_process_runs_as_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dead_root(place)
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    temporary_files._remove_dead(place)
    assert (root / "write-1" / "rows.txt").read_bytes() == SECRET


def test_links_are_never_followed(place: Path, tmp_path: Path) -> None:
    """Neither instead of a root, nor inside one."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    real = dead_root(tmp_path, "elsewhere")
    (place / "icedb-temporary-link").symlink_to(real)
    root = dead_root(place)
    (root / "folder").symlink_to(precious)
    (root / "file").symlink_to(precious / "file")
    (root / "write-1" / "folder").symlink_to(precious)
    (root / "dangling").symlink_to(root / "nothing")
    (root / "loop").symlink_to(root / "loop")
    temporary_files._remove_dead(place)
    assert not root.exists()
    assert (precious / "file").read_text() == "keep"
    assert (real / "write-1" / "rows.txt").exists()


def test_on_shared_file_systems_only_the_same_kernel_removes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some network file systems, the lock of an owner on another machine is not visible."""
    root = dead_root(place)
    (root / "owner").write_text(f"{temporary_files._TITLE}\nanother kernel\n")
    monkeypatch.setattr(temporary_files, "_LOCAL", frozenset())
    remove_dead_again(place)
    assert root.exists()
    with monkeypatch.context() as patch:
        patch.setattr(temporary_files, "_kernel", lambda: "")  # two unknown kernels are not equal
        (root / "owner").write_text(f"{temporary_files._TITLE}\n\n")
        remove_dead_again(place)
    assert root.exists()
    (root / "owner").write_text(f"{temporary_files._TITLE}\n{temporary_files._kernel()}\n")
    remove_dead_again(place)
    assert not root.exists()


def test_after_a_restart_roots_on_local_disks_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dead_root(place)
    (root / "owner").write_text(f"{temporary_files._TITLE}\nthe kernel before\n")
    monkeypatch.setattr(temporary_files, "_is_local", lambda place: True)
    temporary_files._remove_dead(place)
    assert not root.exists()


def test_the_visible_mount_decides_the_file_system(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(temporary_files, "_MOUNTS", mounts)

    def mount(*lines: tuple[Path, str]) -> None:
        encoded = [
            os.fsencode(path).replace(b" ", b"\\040") + b" rw shared:1 - " + kind.encode() + b" source rw"
            for path, kind in lines
        ]
        mounts.write_bytes(b"".join(b"36 35 98:0 / " + line + b"\n" for line in encoded))

    spaced = tmp_path / "with space é"
    spaced.mkdir()
    mount((Path("/"), "ext4"))
    assert temporary_files._is_local(spaced)
    mount((Path("/"), "ext4"), (spaced, "nfs4"))
    assert not temporary_files._is_local(spaced / "below")
    assert temporary_files._is_local(place)
    mount((Path("/"), "nfs4"), (spaced, "nfs4"), (spaced, "xfs"))
    assert temporary_files._is_local(spaced)
    mounts.write_bytes(b"nonsense\n")
    assert not temporary_files._is_local(spaced)
    mounts.unlink()  # as on macOS
    assert not temporary_files._is_local(spaced)


def test_without_locks_folders_are_never_removed_by_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = make_folder("rows")
    (folder / "rows.txt").write_bytes(SECRET)
    dead = dead_root(place)
    monkeypatch.undo()
    assert not (folder.parent / "owner").exists()
    monkeypatch.setattr(temporary_files, "_looked_s", {})
    temporary_files._remove_dead(place)
    assert (folder / "rows.txt").exists()
    assert not dead.exists()
    remove_folder(folder)
    assert list(place.iterdir()) == []


# ------------------------------------------------------------------------------------------ races


def test_a_root_never_has_an_unlocked_owner_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal between any two steps of the creation removes nothing."""
    removed = []

    def tried(real: object) -> object:
        def step(*arguments: object, **options: object) -> object:
            for when in ("before", "after"):
                if when == "after":
                    result = real(*arguments, **options)  # type: ignore[operator]
                for root in roots(place):
                    monkey.undo()
                    removed.append(temporary_files._removed(root, time.monotonic() + 60))
                    patch()
            return result

        return step

    monkey = pytest.MonkeyPatch()
    steps = [(os, "open"), (fcntl, "flock"), (os, "write"), (Path, "rename")]
    real = [getattr(*step) for step in steps]

    def patch() -> None:
        for (owner, name), function in zip(steps, real, strict=True):
            monkey.setattr(owner, name, tried(function))

    patch()
    try:
        root = temporary_files._new_root(place)
    finally:
        monkey.undo()
    assert len(removed) >= 8
    assert not any(removed)
    assert (root.path / "owner").exists()
    root.close()


def test_two_cleaners_at_once_remove_each_root_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [dead_root(place, f"icedb-temporary-{n}") for n in range(60)]
    begin = threading.Barrier(4)
    removed: list[Path] = []

    def clean() -> None:
        begin.wait()
        removed.extend(root for root in dead if temporary_files._removed(root, time.monotonic() + 60))

    with ThreadPoolExecutor(4) as pool:
        for cleaner in [pool.submit(clean) for _ in range(4)]:
            cleaner.result()
    assert sorted(removed) == sorted(dead)
    assert list(place.iterdir()) == []


def test_an_interrupted_removal_is_continued(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dead_root(place)
    real = shutil.rmtree

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        temporary_files._remove_dead(place)
    assert (root / "owner").exists()
    monkeypatch.setattr(shutil, "rmtree", real)
    remove_dead_again(place)
    assert not root.exists()


@pytest.mark.parametrize(("name", "value", "left"), [("REMOVED_MAX", 2, 3), ("REMOVAL_S", -1.0, 5)])
def test_a_process_removes_some_at_a_time_and_once_an_hour(
    name: str, value: float, left: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        dead_root(place, f"icedb-temporary-{n}")
    monkeypatch.setattr(temporary_files, name, value)
    temporary_files._remove_dead(place)
    temporary_files._remove_dead(place)
    assert len(roots(place)) == left
    monkeypatch.undo()
    now = time.monotonic()
    monkeypatch.setattr(temporary_files.time, "monotonic", lambda: now + temporary_files.REMOVAL_EVERY_S + 1)
    temporary_files._remove_dead(place)
    assert roots(place) == []


# ------------------------------------------------------------------------------------------ forks and places


FORKS = """
import os, sys, time
from icedb.util.temporary_files import make_folder, temporary_folder
folder = make_folder("rows")
(folder / "rows.txt").write_bytes(b"user7@example.com")
if os.fork():
    print("ready", flush=True)
    time.sleep(600)
own = make_folder("child")
assert own.parent != folder.parent, own
(own / "child.txt").write_text(str(os.getpid()))
sys.stdin.read()
"""


def written_by_child(place: Path) -> Path:
    """Wait for the file of the forked process, which contains its process id."""
    [file] = wait_until(lambda: [p for p in named(place, "child.txt") if p.read_text()], "the child writes")
    return file


@pytest.mark.process
def test_a_fork_has_its_own_root_and_neither_removes_the_other(place: Path) -> None:
    process = run(FORKS, place)
    child = written_by_child(place)
    [parent] = rows(place)
    number = int(child.read_text())
    with temporary_folder("next"):
        assert parent.exists()
        assert child.exists()
    os.kill(number, signal.SIGKILL)

    def is_removed() -> bool:
        remove_dead_again(place)
        return not child.exists()

    wait_until(is_removed, "the root of the killed child is removed")
    assert parent.exists(), "the end of a child does not release the lock of its parent"
    kill(process)
    remove_dead_again(place)
    assert rows(place) == []


@pytest.mark.process
def test_a_child_that_outlives_its_parent_does_not_keep_the_parent_s_rows(place: Path) -> None:
    process = run(FORKS, place)
    child = written_by_child(place)
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        temporary_files._remove_dead(place)
        assert rows(place) == []
        assert child.exists()
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)
        process.communicate()


@pytest.mark.process
def test_a_forked_process_does_not_remove_the_folders_of_its_parent(place: Path) -> None:
    with temporary_folder("rows") as folder:
        process = multiprocessing.get_context("fork").Process(target=remove_folder, args=(folder,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert folder.is_dir()


@pytest.mark.process
def test_a_folder_of_the_caller_is_left_clean(tmp_path: Path, alive: subprocess.Popen[str]) -> None:
    own = tmp_path / "own"
    own.mkdir()
    other = run(HOLDS_ROWS, tmp_path, own)
    kill(other)
    assert len(rows(own)) == 1
    with temporary_folder("one", below=own) as one, temporary_folder("two", below=own) as two:
        assert one.parent == two.parent
        assert one.parent.parent == own
        with temporary_folder("inside", below=one) as inside:
            assert inside.parent == one
        assert rows(own) == []
    assert list(own.iterdir()) == []


def test_a_long_lived_process_updates_the_time_of_its_owner_file(place: Path) -> None:
    """Programs that empty temporary folders would delete it, and the process would seem to have no lock."""
    with temporary_folder("rows") as folder:
        os.utime(folder.parent / "owner", (1, 1))
        temporary_files._looked_s.clear()
        with temporary_folder("more"):
            assert (folder.parent / "owner").stat().st_mtime > time.time() - 600


def test_below_an_own_folder_nothing_is_searched(place: Path) -> None:
    with temporary_folder("rows") as folder, temporary_folder("inside", below=folder):
        assert list(temporary_files._looked_s) == [place]


def test_a_place_emptied_by_another_program_gets_a_new_root(place: Path) -> None:
    one = make_folder("one")
    shutil.rmtree(one.parent)
    two = make_folder("two")
    assert two.is_dir()
    assert two.parent != one.parent
    remove_folder(one)
    remove_folder(two)
    assert list(place.iterdir()) == []


@pytest.mark.process
def test_a_process_removes_its_folders_when_it_ends(place: Path) -> None:
    program = (
        HOLDS_ROWS.replace("time.sleep(600)", "")
        + "\nfrom icedb.util.temporary_files import spill_path\nspill_path()\n"
    )
    process = run(program, place)
    process.communicate()
    assert process.returncode == 0
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("package", ["icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs"])
def test_every_folder_of_the_library_has_an_owner(package: str) -> None:
    """By default, each connection of DuckDB spills to `.tmp` in the working directory."""
    assert duckdb.connect().execute("SELECT current_setting('temp_directory')").fetchone() == (".tmp",)
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        assert "con = duckdb.connect(" not in text or "set_spill(con, " in text, path
        if path.name != "temporary_files.py":
            assert not re.search(r"mkdtemp\(|TemporaryDirectory\(", text), f"{path}: take icedb.util.temporary_files"
