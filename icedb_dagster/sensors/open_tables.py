"""The tables that this process keeps open between the ticks of sensors, so that a tick reads only what is new.

A tick is a call in the code server, with a resource made for it; the process stays. A table is kept under its address
and a digest of the resource that opened it: with other credentials, or an endpoint of another deployment, it is opened
anew. The digest is keyed with a secret of this process, so it says nothing of what was digested. Credentials are
renewed as for any open table: the provider of the resource that opened it is asked again and again.
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

# What is known of a table's log stays in memory. Beyond this, the table that was not looked at for longest is closed.
TABLES_MAX = 1_000


class OpenTables:
    """Tables by address and access. Safe to share between threads."""

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
        """The table of an asset, opened unless it is open. When something goes wrong inside, it is opened anew next.

        Raises as `IceDBResource.table` does.
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
        """Open the table anew next time: its log is empty, so it is new, or was deleted."""
        self._forget((lake.uri(key), self._digest(lake)))

    def _forget(self, name: tuple[str, str]) -> None:
        with self._lock:
            self._tables.pop(name, None)

    def _digest(self, lake: IceDBResource) -> str:
        told = f"{type(lake).__module__}.{type(lake).__qualname__} {_plain(lake)!r}"
        return hashlib.blake2b(told.encode(), key=self._secret, digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """A field of a resource, secrets and all, such that equal fields look equal."""
    if isinstance(value, dg.EnvVar):
        return value.get_value()
    if isinstance(value, dg.ConfigurableResource):
        return [type(value).__qualname__, *((name, _plain(field)) for name, field in value)]
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(field)) for name, field in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(field) for field in value]
    return value


#: Those of this process.
open_tables = OpenTables()
