"""Pools of DuckDB databases, because to create one takes longer than to write or read a small batch.

A caller has exclusive use of a database, through a separate connection whose temporary tables and relations end with
it. A database is reused for the same limits, if its last use succeeded, left nothing behind and was small. Pooled
databases are closed before this process forks, and when it ends.

Sandboxes are for statements of users, and readers for the library's own queries over parts. A reader of a bucket has
credentials, so it is not reused.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import duckdb

from icedb.sql.connections import MIB, connect_reader, connect_sandbox, set_spill, spill_folder
from icedb.storage.location import Location
from icedb.util.temporary_files import make_folder, remove_folder

__all__ = ["READ_BYTES_MAX", "Sandbox", "reader", "sandbox", "scratch_connection"]

# A reader that read more Parquet may retain much of the memory that it used, so it is not reused.
READ_BYTES_MAX = 16 * MIB
# The maximum of idle databases with the same limits. Each takes some megabytes.
_IDLE_MAX = 4
# The maximum of all idle databases. A program uses few different limits.
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
class _Limits:
    """The settings that are made once. Databases with the same ones replace each other."""

    memory_bytes: int | None
    threads: int | None
    is_reader: bool = False
    lossless: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Database:
    root: duckdb.DuckDBPyConnection
    #: The folder of a sandbox. Each user of a reader has its own.
    folder: Path | None
    limits: _Limits

    def close(self) -> None:
        self.root.close()
        if self.folder is not None:
            remove_folder(self.folder)


_idle: list[_Database] = []
_lock = threading.RLock()


@contextmanager
def sandbox(folder: Path | None, *, memory_bytes: int | None, threads: int | None) -> Iterator[Sandbox]:
    """Borrow a sandbox, see `connect_sandbox`. Its folder is new, below `folder` (None: the system's)."""
    limits = _Limits(memory_bytes, threads)
    used = (_take(limits) if folder is None else None) or _new_sandbox(limits, folder)
    kept = False
    try:
        with used.root.cursor() as con:
            lent = Sandbox(con, cast("Path", used.folder))
            yield lent
        kept = lent.kept and folder is None and _is_empty(used)
    finally:
        _return(used, kept)


@contextmanager
def scratch_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Borrow a sandbox for short queries of the library that leave only temporary tables behind.

    It is reused also after an error, because many are about an invalid expression.
    """
    limits = _Limits(None, None)
    used = _take(limits) or _new_sandbox(limits, None)
    try:
        with used.root.cursor() as con:
            yield con
    finally:
        _return(used, _is_usable(used))


@contextmanager
def reader(
    location: Location,
    *,
    read_bytes: int,
    memory_bytes: int | None = None,
    threads: int | None = None,
    folder: Path | None = None,
    lossless: bool = False,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Borrow a connection for the library's own queries, see `connect_reader`. They must not change settings.

    `read_bytes` is the size of the parts that they read. With `lossless`, Arrow output keeps types such as UUID.
    """
    limits = _Limits(memory_bytes, threads, is_reader=True, lossless=lossless)
    is_local = location.scheme != "s3"
    used = _take(limits) if is_local else None
    if used is None:
        used = _new_reader(limits, location, folder)
    else:
        set_spill(used.root, spill_folder(folder))
    kept = False
    try:
        with used.root.cursor() as con:
            yield con
        kept = is_local and read_bytes <= READ_BYTES_MAX and _has_not_spilled(used) and _is_empty(used)
    finally:
        _return(used, kept)


def _new_sandbox(limits: _Limits, below: Path | None) -> _Database:
    folder = make_folder("write", below=below)
    try:
        root = connect_sandbox(folder, memory_bytes=limits.memory_bytes, threads=limits.threads)
    except BaseException:
        remove_folder(folder)
        raise
    return _Database(root, folder, limits)


def _new_reader(limits: _Limits, location: Location, folder: Path | None) -> _Database:
    root = connect_reader(location, memory_bytes=limits.memory_bytes, threads=limits.threads, folder=folder)
    if location.scheme != "s3":  # the cache does not notice that a file was just replaced
        root.execute("SET enable_external_file_cache = false")
    if limits.lossless:
        root.execute("SET GLOBAL arrow_lossless_conversion = true")
    return _Database(root, None, limits)


def _take(limits: _Limits) -> _Database | None:
    while True:
        with _lock:
            used = next((idle for idle in reversed(_idle) if idle.limits == limits), None)
            if used is None:
                return None
            _idle.remove(used)
        if used.folder is None or used.folder.is_dir():
            return used
        used.close()


def _return(used: _Database, kept: bool) -> None:
    """Add a database to the pool or close it. A full pool closes its least recently used one."""
    closed: _Database | None = used
    if kept:
        with _lock:
            _idle.append(used)
            alike = [idle for idle in _idle if idle.limits == used.limits]
            closed = alike[0] if len(alike) > _IDLE_MAX else _idle[0] if len(_idle) > _ALL_IDLE_MAX else None
            if closed is not None:
                _idle.remove(closed)
    if closed is not None:
        closed.close()


def _is_usable(used: _Database) -> bool:
    """Return whether the database still runs statements. After a fatal error it rejects them all."""
    try:
        used.root.execute("BEGIN; COMMIT")
    except duckdb.Error:
        return False
    return True


def _is_empty(used: _Database) -> bool:
    """Return whether no file, table or secret is left. Spilled data has a separate folder inside."""
    if used.folder is not None and any(not file.is_dir() for file in used.folder.rglob("*")):
        return False
    left = "SELECT 1 FROM duckdb_tables()"
    if used.limits.is_reader:  # a sandbox can have no secret
        left += " UNION ALL SELECT 1 FROM duckdb_secrets() WHERE NOT persistent"
    try:
        return used.root.execute(left).fetchone() is None
    except duckdb.Error:  # after a fatal error a database rejects every query
        return False


def _has_not_spilled(used: _Database) -> bool:
    """Detach the database from its user's folder. DuckDB rejects this after it has spilled."""
    try:
        set_spill(used.root, None)
    except duckdb.Error:
        return False
    return True


def _close_all() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


def _before_fork() -> None:
    """Close all, because DuckDB's threads are not in the child, which would wait for them."""
    _lock.acquire()
    _close_all()


# While the process forks, no other thread returns a database to the pool.
os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)
atexit.register(_close_all)
