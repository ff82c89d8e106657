"""Logs in a separate store: their owner, and whether they exist.

A missing log looks like the log of an empty table, and a log that two tables share would give each the rows of the
other. So the probe object below the claims' prefix names the owner of the log, and the table does not open without it.
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
    """Claim the place of a new table's log. A retry accepts its own claim. Raises TableExists."""
    log = handle.location.log
    if log is None:
        return
    try:
        handle.store.head(handle.keys.spec)
    except ObjectNotFound:
        pass
    else:  # before any put: the place of its log may be an empty folder because a disk is not mounted
        raise TableExists(f"{handle.table}: a table is there already. Open it with Table.open.")
    claim_log(handle)


def claim_log(handle: Handle) -> None:
    """Record in the log's store that it holds the log of this table only. Raises TableExists."""
    log = handle.location.log
    if log is None:
        return
    body = _owner_body(handle.table)
    try:
        handle.store.create(handle.keys.probe, body)
    except ObjectExists:
        if handle.store.get(handle.keys.probe).body != body:
            raise TableExists(
                f"{handle.table}: '{log.uri}' holds the log of another table ('{handle.keys.probe}' names it). Give "
                "each table a log_uri of its own."
            ) from None


def refuse_log_of_another(handle: Handle) -> None:
    """Raise TableExists if the probe names another table as the owner of the log."""
    try:
        owner = find_log_owner(handle.store)
    except ObjectNotFound:
        return
    if owner is not None and owner.uri != handle.table:
        raise TableExists(
            f"{handle.table}: the table '{owner.uri}' has its log there, according to '{handle.keys.probe}'. Two "
            "tables cannot share a log. Choose another address."
        )


def check_log_place(handle: Handle) -> bytes | None:
    """Return the body of `_table.json`, if there is one.

    Raises InvalidOption if the log is elsewhere according to it: two logs would be two tables.
    """
    try:
        body = handle.store.get(handle.keys.spec).body
    except ObjectNotFound:
        return None
    log = handle.location.log
    log_uri = decode_spec(body, table=handle.table, key=handle.keys.spec).log_uri
    if log_uri != (log.uri if log else ""):
        raise InvalidOption(
            f"{handle.table}: its log is at '{log_uri or handle.table}' according to '{handle.keys.spec}', and not at "
            f"'{log.uri if log else handle.table}'. Pass that log_uri, or none if the log is at the table's address."
        )
    return body


def find_log_store(store: ObjectStore, spec: TableSpec, options: Mapping[str, str] | None) -> ObjectStore:
    """Return the store of a table, with the log's store according to the spec. Raises CorruptLog if there is no log."""
    if not spec.log_uri or store.location.log is not None:
        return store
    location = with_log(store.location, spec.log_uri, options)
    whole = store if location.log is None else SplitStore(store, open_store(location.log))
    check_log_owner(whole)
    return whole


def check_log_owner(store: ObjectStore) -> None:
    """Raise CorruptLog unless a log in a separate store exists and belongs to this table."""
    table, log, key = store.location.uri, store.location.log, store.location.keys.probe
    if log is None:
        return
    try:
        probe = store.get(key)  # not HEAD, whose response does not reveal that the bucket is missing
    except ObjectNotFound:
        raise CorruptLog(
            f"{table}: its log should be at '{log.uri}', but nothing of it is there "
            f"('{key}' is missing). Without it the table would look empty. Mount the log's folder, or give "
            "log_storage_options that lead to its store.",
            key=key,
        ) from None
    if probe.body != _owner_body(table):
        raise CorruptLog(
            f"{table}: '{log.uri}' holds the log of another table ('{key}' names it). With it, all "
            "parts would look like orphans. Mount the right folder, or give log_storage_options that lead to it.",
            key=key,
        )


def find_log_owner(store: ObjectStore) -> Location | None:
    """Return the location of the parts of the log in this store, if they are in another store.

    Raises ObjectNotFound if only programs of IceDB v3 have written there, which record no owner. Raises CorruptLog.
    """
    key = store.location.keys.probe
    body = store.get(key).body
    try:
        owner = msgspec.json.decode(body, type=_Probe).table
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(
            f"{store.location.uri}: '{key}' does not name the owner of the log ({error}).", key=key
        ) from None
    return parse_location(owner) if owner else None


class _Probe(msgspec.Struct):
    table: str = ""


def _owner_body(table: str) -> bytes:
    return msgspec.json.encode({"table": table})
