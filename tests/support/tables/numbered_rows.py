"""Tables of rows (k, n), partitioned by k, and the keys of their objects."""

from __future__ import annotations

from typing import Any

from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile
from icedb.storage.obstore_store import ObjectStore

#: Each n after `fill`.
FULL = [0, 1, 10, 11, 20, 21]


def fill(table: Table, batches: int = 3) -> None:
    """Insert batches of one row in each of the partitions k=0 and k=1."""
    for n in range(batches):
        table.insert([{"k": k, "n": 10 * n + k} for k in range(2)])


def numbers(table: Table, as_of: int | None = None) -> list[Any]:
    """Query each n, sorted."""
    return [n for (n,) in table.query("SELECT n FROM t ORDER BY n", as_of=as_of).fetchall()]


def data_keys(store: ObjectStore) -> set[str]:
    """Return the keys of all stored parts, also of orphans."""
    return {i.key for i in store.list(store.location.keys.data_prefix)}


def log_keys(store: ObjectStore) -> list[str]:
    """Return the keys of all stored log files."""
    return [i.key for i in store.list(store.location.keys.log_prefix)]


def put_log(store: ObjectStore, file: LogFile, *, writer: str = "other") -> str:
    """Put a log file as another program does, and return its key."""
    key = store.location.keys.log_file(file.t_ms, merged=file.carries_tombstones, writer=writer)
    store.create(key, encode(file))
    return key
