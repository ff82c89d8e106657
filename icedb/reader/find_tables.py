"""The tables below an address, found by listing one folder after another."""

from __future__ import annotations

import os
from collections.abc import Iterator

from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_single_store
from icedb.transaction.table_place import RESERVED
from icedb.util.progress import progress

__all__ = ["find_tables"]


def find_tables(root: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the address of each table at `root` and below it, in the order of their names.

    Each folder costs a request, except those that a table owns. Folders whose name begins with a dot, and symbolic
    links, are skipped. A table without `_table.json`, such as one of IceDB v3, is recognised by its `_data` and `_log`.
    Raises InvalidURI and the store's errors.
    """
    location = parse_location(root)
    store = open_single_store(location)
    with progress("listing folders", None, "objects") as advance:
        folders = ["" if location.scheme == "file" else location.prefix]
        while folders:
            folder = folders.pop()
            objects, below = store.list_folder(folder)
            advance(1)
            if "_table.json" in objects or {"_data", "_log"} <= set(below):
                yield f"{location.root_uri}/{folder}".rstrip("/")
            names = sorted((n for n in below if n not in RESERVED and not n.startswith(".")), reverse=True)
            folders += [f"{folder}/{name}" if folder else name for name in names]
