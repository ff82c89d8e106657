"""A pool of DuckDB sandboxes, because to create one takes longer than to write a small batch.

A caller has exclusive use of a sandbox, through a separate connection whose temporary tables and relations end with
it. A sandbox is returned to the pool if it was used without an error and marked `kept`. It is reused for the same
memory and number of threads. Pooled sandboxes are closed before this process forks, and when it ends.
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

# The maximum of idle sandboxes with the same memory and threads. Each takes some megabytes.
_IDLE_MAX = 4
# The maximum of all idle sandboxes. A program uses few different limits.
_ALL_IDLE_MAX = 12


@dataclass(slots=True)
class Sandbox:
    """A connection, and the folder in which it can read and write.

    `kept`: whether to return it to the pool. Then the folder and the database must be empty.
    """

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
    """Borrow a sandbox, see `connect_sandbox`. Its folder is new, below `folder` (None: the system's)."""
    borrowed = _take(memory_bytes, threads) if folder is None else None
    if borrowed is None:
        own = make_folder("write", below=folder)
        try:
            root = connect_sandbox(own, memory_bytes=memory_bytes, threads=threads)
        except BaseException:
            remove_folder(own)
            raise
        borrowed = _Idle(root, own, memory_bytes, threads)
    kept = False
    try:
        with borrowed.root.cursor() as con:
            lent = Sandbox(con, borrowed.folder)
            yield lent
        kept = lent.kept and folder is None and _has_room(borrowed) and _is_empty(borrowed)
    finally:
        if kept:
            _idle.append(borrowed)
        else:
            borrowed.close()


@contextmanager
def scratch_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Borrow a sandbox for short queries that leave only temporary tables behind."""
    with sandbox(None, memory_bytes=None, threads=None) as lent:
        yield lent.con
        lent.kept = True


def _take(memory_bytes: int | None, threads: int | None) -> _Idle | None:
    for idle in list(_idle):
        if (idle.memory_bytes, idle.threads) == (memory_bytes, threads):
            try:
                _idle.remove(idle)
            except ValueError:
                continue  # another thread took it
            if idle.folder.is_dir():
                return idle
            idle.close()
    return None


def _has_room(used: _Idle) -> bool:
    alike = sum((idle.memory_bytes, idle.threads) == (used.memory_bytes, used.threads) for idle in list(_idle))
    return alike < _IDLE_MAX and len(_idle) < _ALL_IDLE_MAX


def _is_empty(used: _Idle) -> bool:
    """Return whether no file and no table is left. Spilled data has a separate folder inside."""
    if any(not file.is_dir() for file in used.folder.rglob("*")):
        return False
    try:
        return used.root.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
    except duckdb.Error:  # after a fatal error a database rejects every query
        return False


def _close_all() -> None:
    while _idle:
        _idle.pop().close()


os.register_at_fork(before=_close_all)  # DuckDB's threads are not in the child, which would wait for them
atexit.register(_close_all)
