"""Tables that this process keeps open between sensor ticks, so that a tick reads only what is new.

A tick is a call in the code server with a new resource, but the process stays. A table is kept under its address and a
digest of the resource that opened it. With other credentials, or another endpoint, it is opened again. The digest is
keyed with a secret of this process, so it reveals nothing about the resource. Credentials are renewed as for any open
table, from the provider of the resource that opened it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

import icedb
from icedb_dagster.resource import IceDBResource

__all__ = ["OpenTables", "open_tables"]

# An open table keeps its log in memory. Beyond this number, the least recently used table is closed.
TABLES_MAX = 1_000


class OpenTables:
    """Open tables by address and access. Thread-safe."""

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self._secret = os.urandom(32)
        self._tables: OrderedDict[tuple[str, str], icedb.Table] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tables)"

    def __len__(self) -> int:
        return len(self._tables)

    @contextmanager
    def use(self, lake: IceDBResource, key: dg.AssetKey) -> Iterator[icedb.Table]:
        """Yield the table of an asset, opened if needed. If the block raises, the next use opens the table again.

        Raises the errors of `IceDBResource.table`.
        """
        name = lake.uri(key), self._digest(lake)
        with self._lock:
            table = self._tables.get(name)
        if table is None:
            table = lake.table(key)
        try:
            yield table
        except BaseException:
            self._forget(name)
            raise
        self._keep(name, table)

    def _keep(self, name: tuple[str, str], table: icedb.Table) -> None:
        with self._lock:
            self._tables[name] = table
            self._tables.move_to_end(name)
            while len(self._tables) > self._tables_max:
                self._tables.popitem(last=False)

    def forget(self, lake: IceDBResource, key: dg.AssetKey) -> None:
        """Open the table again at the next use: its log is empty, so it is new or was deleted."""
        self._forget((lake.uri(key), self._digest(lake)))

    def _forget(self, name: tuple[str, str]) -> None:
        with self._lock:
            self._tables.pop(name, None)

    def _digest(self, lake: IceDBResource) -> str:
        access = f"{type(lake).__module__}.{type(lake).__qualname__} {_plain(lake)!r}"
        return hashlib.blake2b(access.encode(), key=self._secret, digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Return a resource's field, including secrets, such that equal fields have equal representations."""
    if isinstance(value, dg.EnvVar):
        return value.get_value()
    if isinstance(value, dg.ConfigurableResource):
        return [type(value).__qualname__, *((name, _plain(field)) for name, field in value)]
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(field)) for name, field in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(field) for field in value]
    return value


#: The open tables of this process.
open_tables = OpenTables()
