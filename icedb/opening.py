"""Tables come into being and are opened here: below the front door, for what opens the tables beside a table too."""

from __future__ import annotations

from collections.abc import Mapping

from icedb.clock import Clock
from icedb.errors import TableExists, TableNotFound
from icedb.handle import Fencing, Handle
from icedb.log_store import claim_log_store, find_log_store
from icedb.options import Timing
from icedb.spec import TableSpec, check_spec, decode_spec, encode_spec
from icedb.store import ObjectExists, ObjectNotFound, ObjectStore

__all__ = ["create_handle", "open_handle"]


def open_handle(
    store: ObjectStore,
    *,
    log_storage_options: Mapping[str, str] | None = None,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    clock: Clock | None = None,
) -> Handle:
    """The handle of the table in a store, and of its log, if that is in another. Raises TableNotFound, DamagedLog."""
    location = store.location
    try:
        body = store.get(location.keys.spec).body
    except ObjectNotFound:
        raise TableNotFound(
            f"{location.uri}: there is no table ('{location.keys.spec}' is missing). Create one with Table.create, or "
            "correct the address."
        ) from None
    spec = decode_spec(body, table=location.uri, key=location.keys.spec)
    store = find_log_store(store, spec, log_storage_options)
    return Handle(store, spec, timing=timing, fencing=fencing, clock=clock)


def create_handle(
    store: ObjectStore,
    spec: TableSpec,
    *,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    clock: Clock | None = None,
) -> Handle:
    """Create an empty table with this spec. Raises TableExists, FixInput errors for the spec, the store's errors."""
    check_spec(spec, table=store.location.uri)
    handle = Handle(store, spec, timing=timing, fencing=fencing, clock=clock)
    _ = handle.expressions  # refuses a bad one before anything is written
    _refuse_foreign_log(handle)
    claim_log_store(handle)
    handle.check_writable()
    _create_spec(handle)
    return handle


def _refuse_foreign_log(handle: Handle) -> None:
    if handle.log.list_after(None) and not _has_spec(handle):
        raise TableExists(
            f"{handle.table}: log files are there already (of a table that another program made, or whose "
            "_table.json was lost). Choose another address, or restore '_table.json'."
        )


def _create_spec(handle: Handle) -> None:
    body = encode_spec(handle.spec)
    try:
        handle.store.create(handle.keys.spec, body)
    except ObjectExists:
        # The spec holds a random id: equal bytes are our own put, answered too late and repeated.
        if handle.store.get(handle.keys.spec).body != body:
            raise TableExists(f"{handle.table}: a table is there already. Open it with Table.open.") from None


def _has_spec(handle: Handle) -> bool:
    try:
        handle.store.head(handle.keys.spec)
    except ObjectNotFound:
        return False
    return True
