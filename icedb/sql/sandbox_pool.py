"""Sandboxes that are used again: to make one takes longer than to write a small batch.

Who asks for one has it alone, and gets a connection to it of his own, whose temporary tables and relations end with it.
One that was used without an error, and that says it may be, is kept for the next who wants as much memory and as many
threads. Those that are kept are closed before this process forks, and when it ends.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.sql.connections import connect_sandbox
from icedb.util.temporary_files import make_folder, remove_folder

__all__ = ["Sandbox", "scratch_connection", "sandbox"]

# Of those with as much memory and as many threads, more are rarely wanted at a time; each takes some megabytes.
_IDLE_MAX = 4
# Of all kinds: a program gives few different limits.
_ALL_IDLE_MAX = 12


@dataclass(slots=True)
class Sandbox:
    """A connection and the folder that it can read and write in. `kept`: whether others may have it afterwards; the
    folder and the database must be empty then."""

    con: duckdb.DuckDBPyConnection
    folder: Path
    kept: bool = False


@dataclass(frozen=True, slots=True)
class _Idle:
    root: duckdb.DuckDBPyConnection
    folder: Path
    memory_bytes: int | None
    threads: int | None

    def close(self) -> None:
        self.root.close()
        remove_folder(self.folder)


_idle: list[_Idle] = []


@contextmanager
def sandbox(folder: Path | None, *, memory_bytes: int | None, threads: int | None) -> Iterator[Sandbox]:
    """See `connect_sandbox`. Its folder is a new one below `folder` (None: where the system keeps temporary files)."""
    found = _take(memory_bytes, threads) if folder is None else None
    if found is None:
        own = make_folder("write", below=folder)
        try:
            root = connect_sandbox(own, memory_bytes=memory_bytes, threads=threads)
        except BaseException:
            remove_folder(own)
            raise
        found = _Idle(root, own, memory_bytes, threads)
    kept = False
    try:
        with found.root.cursor() as con:
            lent = Sandbox(con, found.folder)
            yield lent
        kept = lent.kept and folder is None and _has_room(found) and _is_empty(found)
    finally:
        if kept:
            _idle.append(found)
        else:
            found.close()


@contextmanager
def scratch_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A sandbox for what is answered at once, and leaves nothing behind but temporary tables."""
    with sandbox(None, memory_bytes=None, threads=None) as lent:
        yield lent.con
        lent.kept = True


def _take(memory_bytes: int | None, threads: int | None) -> _Idle | None:
    for idle in list(_idle):
        if (idle.memory_bytes, idle.threads) == (memory_bytes, threads):
            try:
                _idle.remove(idle)
            except ValueError:
                continue  # somebody else was faster
            if idle.folder.is_dir():
                return idle
            idle.close()
    return None


def _has_room(used: _Idle) -> bool:
    alike = sum((idle.memory_bytes, idle.threads) == (used.memory_bytes, used.threads) for idle in list(_idle))
    return alike < _IDLE_MAX and len(_idle) < _ALL_IDLE_MAX


def _is_empty(used: _Idle) -> bool:
    """Whether nothing of what it was used for is left. What spills has a folder of its own in there."""
    if any(not file.is_dir() for file in used.folder.rglob("*")):
        return False
    try:
        return used.root.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
    except duckdb.Error:  # after a fatal error a database answers nothing any more
        return False


def _close_all() -> None:
    while _idle:
        _idle.pop().close()


os.register_at_fork(before=_close_all)  # its threads would not be in the child, which would wait for them
atexit.register(_close_all)
