"""Tables of the tests of Spark: how a test creates them, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icedb import Table
from tests.support.object_stores.stores import Place

#: Creates a table in the test's folder or bucket, with these rows (if any) and properties.
Create = Callable[..., Table]


def creating(place: Place) -> Create:
    """Return a function that creates a table in a place."""

    def create(rows: Any = None, **spec: Any) -> Table:
        table = Table.create(place.uri, storage_options=place.storage_options, **spec)
        if rows is not None:
            table.insert(rows)
        return table

    return create


def part_keys(table: Table) -> set[str]:
    """Return the keys of all stored parts, also of orphans."""
    return {o.key for o in table.handle.store.list(table.handle.keys.data_prefix)}


def log_keys(table: Table) -> set[str]:
    """Return the keys of all stored log files."""
    return {o.key for o in table.handle.store.list(table.handle.keys.log_prefix)}


def content(table: Table, columns: str = "n") -> list[tuple[Any, ...]]:
    """Query these columns, in order."""
    return table.query(f"SELECT {columns} FROM t ORDER BY ALL").fetchall()
