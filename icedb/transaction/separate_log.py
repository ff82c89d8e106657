"""A log in a store of its own: who may use it, and whether it is there.

A log that cannot be found looks like the log of an empty table, and a log that two tables share would give each the
rows of the other. So the probe among the claims says whose log this is, and no table is opened without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from icedb.errors import CorruptLog, InvalidOption, TableExists
from icedb.format.table_spec import TableSpec, decode_spec
from icedb.storage.location import Location, parse_location, with_log
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, open_store
from icedb.storage.split_store import SplitStore
from icedb.transaction.table_handle import Handle

__all__ = [
    "check_log_place",
    "claim_log",
    "claim_log_store",
    "check_log_owner",
    "find_log_owner",
    "find_log_store",
    "refuse_log_of_another",
]


def claim_log_store(handle: Handle) -> None:
    """Make the place of a new table's log its own; a repetition finds its own claim. Raises TableExists."""
    log = handle.location.log
    if log is None:
        return
    try:
        handle.store.head(handle.keys.spec)
    except ObjectNotFound:
        pass
    else:  # before anything is put: the place of its log may be an empty folder, where a disk is not mounted
        raise TableExists(f"{handle.table}: a table is there already. Open it with Table.open.")
    claim_log(handle)


def claim_log(handle: Handle) -> None:
    """Let the log's store say that it holds the log of this table and of no other. Raises TableExists."""
    log = handle.location.log
    if log is None:
        return
    body = _whose(handle.table)
    try:
        handle.store.create(handle.keys.probe, body)
    except ObjectExists:
        if handle.store.get(handle.keys.probe).body != body:
            raise TableExists(
                f"{handle.table}: '{log.uri}' holds the log of another table ('{handle.keys.probe}' says which). Give "
                "each table a log_uri of its own."
            ) from None


def refuse_log_of_another(handle: Handle) -> None:
    """Raise TableExists where the probe says that another table has its log there."""
    try:
        owner = find_log_owner(handle.store)
    except ObjectNotFound:
        return
    if owner is not None and owner.uri != handle.table:
        raise TableExists(
            f"{handle.table}: the table '{owner.uri}' has its log there ('{handle.keys.probe}' says so). Two tables "
            "cannot share a log. Choose another address."
        )


def check_log_place(handle: Handle) -> bytes | None:
    """Return the body of `_table.json`, if there is one.

    Raises InvalidOption when it says that the log is elsewhere: two logs would be two tables.
    """
    try:
        body = handle.store.get(handle.keys.spec).body
    except ObjectNotFound:
        return None
    log = handle.location.log
    said = decode_spec(body, table=handle.table, key=handle.keys.spec).log_uri
    if said != (log.uri if log else ""):
        raise InvalidOption(
            f"{handle.table}: its log is at '{said or handle.table}', as '{handle.keys.spec}' says, and not at "
            f"'{log.uri if log else handle.table}'. Open it with the log that it has."
        )
    return body


def find_log_store(store: ObjectStore, spec: TableSpec, options: Mapping[str, str] | None) -> ObjectStore:
    """The store of a table as its spec says, with the log's own. Raises CorruptLog when the log is not there."""
    if not spec.log_uri or store.location.log is not None:
        return store
    location = with_log(store.location, spec.log_uri, options)
    whole = store if location.log is None else SplitStore(store, open_store(location.log))
    check_log_owner(whole)
    return whole


def check_log_owner(store: ObjectStore) -> None:
    """Raise CorruptLog unless the log, if it is in a store of its own, is there and is that of this table."""
    table, log, key = store.location.uri, store.location.log, store.location.keys.probe
    if log is None:
        return
    try:
        probe = store.get(key)  # not HEAD: its answer cannot say that the bucket is missing
    except ObjectNotFound:
        raise CorruptLog(
            f"{table}: its log should be at '{log.uri}', but nothing of it is there "
            f"('{key}' is missing). Without it the table would look empty. Mount the log's folder, or give "
            "log_storage_options that lead to its store.",
            key=key,
        ) from None
    if probe.body != _whose(table):
        raise CorruptLog(
            f"{table}: '{log.uri}' holds the log of another table ('{key}' says which). With it, all "
            "parts would look like orphans. Mount the right folder, or give log_storage_options that lead to it.",
            key=key,
        )


def find_log_owner(store: ObjectStore) -> Location | None:
    """Where the parts of the log in this store are, if in another store.

    Raises ObjectNotFound when nobody has written there yet but programs of IceDB v3, which do not say; CorruptLog.
    """
    key = store.location.keys.probe
    body = store.get(key).body
    try:
        owner = msgspec.json.decode(body, type=_Probe).table
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"{store.location.uri}: '{key}' does not say whose log this is ({error}).", key=key) from None
    return parse_location(owner) if owner else None


class _Probe(msgspec.Struct):
    table: str = ""


def _whose(table: str) -> bytes:
    return msgspec.json.encode({"table": table})
