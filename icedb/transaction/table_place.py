"""The rules for addresses of tables, the tables below an address, and the objects of other tables below a table.

A table owns what lies below its `_data/`, `_log/` and `_claims/`, and readers of Delta and Iceberg own `_delta_log/`
and `metadata/`. A table inside one of these folders would lose its objects to the maintenance of the outer table. An
address without such a segment costs no request. Plain nesting (`events` and `events/daily`) is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from icedb.errors import InvalidURI
from icedb.format.keys import Keys
from icedb.storage.credentials import CredentialProvider
from icedb.storage.location import Location, parse_location
from icedb.storage.obstore_store import ObjectNotFound, ObjectStore, open_single_store, some_below
from icedb.transaction.table_handle import Handle
from icedb.util.progress import progress

__all__ = [
    "RESERVED",
    "below_other_tables",
    "check_address",
    "find_tables",
    "foreign_roots",
    "is_below",
    "is_table",
    "locations_above",
]

#: Folders of a table that belong to the table, or to programs that read it in another format.
RESERVED = frozenset({"_data", "_log", "_claims", "_delta_log", "metadata"})

# An object by which a listing recognises a table: its spec, a log file, or the probe of a log in a store of its own.
_SIGN = re.compile(r"(?:(.*)/)?(?:_table\.json|_log/\d{13}[^/]*\.jsonl|_claims/probe\.json)")


def locations_above(location: Location) -> Iterator[Location]:
    """Yield the addresses above each reserved segment of an address. Makes no request."""
    in_folder = location.scheme == "file"
    segments = (location.root if in_folder else location.prefix).split("/")
    for number, segment in enumerate(segments):
        above = "/".join(segments[:number])
        if segment in RESERVED and (above or not in_folder):
            changed = replace(location, root=above) if in_folder else replace(location, prefix=above)
            yield replace(changed, log=None)


def check_address(handle: Handle) -> None:
    """Raise InvalidURI if the address of the table or its log is another table's, or lies in a folder of one."""
    for location in (handle.location, handle.location.log):
        for above in locations_above(location) if location is not None else ():
            if location is not None and is_table(handle.store.sibling(above)):
                raise InvalidURI(
                    f"'{location.uri}' lies in a folder that belongs to the table '{above.uri}'. The maintenance of "
                    "that table would delete the objects of this one. Choose an address beside that table."
                )
    log = handle.location.log
    if log is not None and _is_there(handle.store.sibling(log), log.keys.spec):
        raise InvalidURI(
            f"{handle.table}: the log_uri '{log.uri}' is the address of another table. Choose an address of its own."
        )


def is_table(store: ObjectStore) -> bool:
    """Whether a store's address has a table, or the log of one. Makes up to three requests."""
    keys = store.location.keys
    return any(_is_there(store, key) for key in (keys.spec, keys.probe)) or bool(some_below(store, keys.log_prefix))


def find_tables(
    root: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> Iterator[str]:
    """Yield the address of each table at `root` and below it, in the order of their names.

    Each folder costs a request, except those that a table owns. Folders whose name begins with a dot, and symbolic
    links, are skipped. A table without `_table.json`, such as one of IceDB v3, is recognised by its `_data` and `_log`.
    Raises InvalidURI and the store's errors.
    """
    location = parse_location(root, storage_options, credential_provider)
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


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


def below_other_tables(handle: Handle, keys: Iterable[str]) -> frozenset[str]:
    """Return the parts that lie in a folder of another table. Makes requests only for keys with such a folder."""
    by_root: dict[str, list[str]] = {}
    for key in keys:
        segments = key.split("/")
        for number in range(handle.keys.data_prefix.count("/"), len(segments)):
            if segments[number] in RESERVED:
                by_root.setdefault("/".join(segments[:number]), []).append(key)
    at = handle.location
    in_tables = [k for root, k in by_root.items() if is_table(handle.store.sibling(_below(at, root)))]
    return frozenset(key for some in in_tables for key in some)


def _below(location: Location, folder: str) -> Location:
    """Return the location of a folder in a table's own store, by its key."""
    if location.scheme == "file":
        return replace(location, root=f"{location.root}/{folder}", log=None)
    return replace(location, prefix=folder, log=None)


def foreign_roots(keys: Iterable[str], own: Keys) -> frozenset[str]:
    """Return the folders of other tables, each with a final slash, that listed keys below this table show. Pure."""
    prefix = own.data_prefix.removesuffix("_data/")
    ours = (own.log_prefix, own.claims_prefix, own.spec)
    roots = set()
    for key in keys:
        if key.endswith((".json", ".jsonl")) and key.startswith(prefix) and not key.startswith(ours):
            sign = _SIGN.fullmatch(key.removeprefix(prefix))
            if sign is not None and sign[1]:
                roots.add(f"{prefix}{sign[1]}/")
    return frozenset(roots)


def is_below(key: str, roots: frozenset[str]) -> bool:
    """Whether a key lies below one of these folders."""
    return bool(roots) and any(key[: at + 1] in roots for at, char in enumerate(key) if char == "/")
