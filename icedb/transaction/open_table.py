"""Creation and opening of tables, as handles: for `icedb.table`, and for code that opens quarantines and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from icedb.errors import CorruptLog, InvalidOption, InvalidRequestError, SchemaConflict, TableExists, TableNotFound
from icedb.format.keys import decode_partition, encode_value, partition_of
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, decode_spec, encode_spec
from icedb.format.timing import Timing, timing_differences
from icedb.sql.partition_expressions import path_value_types
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, some_below
from icedb.transaction.current_spec import damaged_spec
from icedb.transaction.separate_log import claim_log_store, find_log_owner, find_log_store, refuse_log_of_another
from icedb.transaction.table_handle import Fencing, Handle
from icedb.transaction.table_place import check_address
from icedb.util.clock import Clock
from icedb.util.progress import COMMITTING, progress
from icedb.writer.spec_validation import check_stored_spec, checked_spec

__all__ = ["create_handle", "is_lost", "one_line", "open_handle", "open_sibling", "path_columns", "quarantine_name"]


def open_handle(
    store: ObjectStore,
    *,
    log_storage_options: Mapping[str, str] | None = None,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    clock: Clock | None = None,
) -> Handle:
    """Open the table in a store, and its log, which may be in another store. Raises TableNotFound, CorruptLog.

    `timing`: raise InvalidOption unless these are the table's times. Log files without a spec are a table of an
    IceDB v3 program, whose partition columns are derived from its paths. If the log records that the table had a spec
    (`is_lost`), the handle reads with the newest recorded spec, and does not write.
    """
    location = store.location
    try:
        body = store.get(location.keys.spec).body
    except ObjectNotFound:
        adopted = _adopt(Handle.of(store, TableSpec(), fencing=fencing, clock=clock))
        try:
            body = store.get(location.keys.spec).body  # another program may have created the table meanwhile
        except ObjectNotFound:
            return _checked_timing(adopted, timing)
    spec = decode_spec(body, table=location.uri, key=location.keys.spec)
    store = find_log_store(store, spec, log_storage_options)
    handle = Handle.of(store, TableSpec(), fencing=fencing, clock=clock)
    try:
        check_stored_spec(spec, table=handle.table)
        handle = replace(handle.with_spec(spec), stored_spec=one_line(body))
    except InvalidRequestError as error:  # another program may have written it
        raise damaged_spec(handle.table, handle.keys.spec, error) from None
    return _checked_timing(handle, timing)


def _checked_timing(handle: Handle, timing: Timing | None) -> Handle:
    """Return the handle. Raises InvalidOption if the caller passes other times than the table's newest spec has."""
    if timing is None:
        return handle
    handle.read()
    own = handle.spec.timing
    if names := timing_differences(timing, own):
        table_has = ", ".join(f"{name}={getattr(own, name)}" for name in names)
        requested = ", ".join(f"{name}={getattr(timing, name)}" for name in names)
        raise InvalidOption(
            f"{handle.table}: the table has the times {table_has}, and this program asks for {requested}. All programs "
            "use those of the table. Open it without timing, or change the table's with Table.alter(timing=...) or "
            "icedb alter."
        )
    return handle


def _adopt(handle: Handle) -> Handle:
    """Return the handle of a table without a spec. Raises TableNotFound if it has no log files either."""
    try:
        state = handle.read()
    except SchemaConflict:
        return handle  # only `repair_types` can use it. Afterwards it is opened again
    if not state.listed_ms:
        # Another program may have created the table since the first look-up of its spec.
        if (parts := some_below(handle.store, handle.keys.data_prefix)) and not _has_spec(handle):
            raise CorruptLog(
                f"{handle.table}: '{handle.keys.spec}' is missing, and no log and no spec describes the files "
                f"below '_data/' ('{parts[0].key}'). If this table has a log_uri, restore '_table.json' from a "
                "backup: it has the address of the log. If another program wrote the files, create a table over them "
                "with Table.create_from_files.",
                key=handle.keys.spec,
            )
        raise TableNotFound(
            f"{handle.table}: there is no table ('{handle.keys.spec}' is missing). Create one with Table.create, or "
            "correct the address."
        )
    if is_lost(state, handle):
        return _read_only(handle, state)
    if handle.spec.revision == 0:  # otherwise `alter` recorded a spec, with the path columns of its time
        return handle.with_spec(TableSpec(path_columns=_path_columns(handle, state)))
    return handle


def one_line(body: bytes) -> msgspec.Raw:
    """Return the body of `_table.json` as a log file records it."""
    return msgspec.Raw(msgspec.json.format(body, indent=-1))


def is_lost(state: TableState, handle: Handle) -> bool:
    """Whether a log without `_table.json` belongs to a table that had one, and not to programs of IceDB v3.

    The first exclusive commit records the spec. The spec of a table that never had a `_table.json` has no id.
    """
    if not state.spec:
        return state.epoch > 0  # before exclusive commits recorded it
    return bool(decode_spec(bytes(state.spec), table=handle.table, key=handle.keys.log_prefix).id)


def _read_only(handle: Handle, state: TableState) -> Handle:
    """Return the handle of a table whose `_table.json` is missing. Raises CorruptLog if its parts are elsewhere."""
    if state.spec:
        recorded = decode_spec(bytes(state.spec), table=handle.table, key=handle.keys.log_prefix)
        if recorded.log_uri and handle.location.log is None:
            owner = find_log_owner(handle.store)
            raise CorruptLog(
                f"{handle.table}: this is the log of a table whose parts are elsewhere"
                f"{f', at {owner.uri!r}' if owner else ''}. Open that table.",
                key=handle.keys.spec,
            )
        handle = handle.with_spec(recorded)
    else:
        handle = handle.with_spec(TableSpec(path_columns=_path_columns(handle, state)))
    return replace(handle, spec_is_lost=True)


def _path_columns(handle: Handle, state: TableState) -> dict[str, str]:
    """Return the path columns of the newest part; none if a data column has such a name."""
    live = sorted(state.live, key=lambda m: (m.created_ms, m.key))
    if not live:
        return {}
    paths = {partition_of(handle.keys.data_prefix, m.key) for m in live}
    columns = path_columns(partition_of(handle.keys.data_prefix, live[-1].key), paths)
    data = {c.casefold() for c in state.schema}
    return columns if data.isdisjoint(name.casefold() for name in columns) else {}


def path_columns(path: str, paths: Iterable[str]) -> dict[str, str]:
    """Return the partition columns of a path, with types that fit their values in all paths with the same columns.

    There are none if a name is not encoded as this library encodes it.
    """
    names = list(decode_partition(path))
    folded = {name.casefold() for name in names}
    if len(folded) < len(path.split("/")) or not all(n and encode_value(n) == n for n in names):
        return {}
    alike = [values for p in paths if list(values := decode_partition(p)) == names]
    return path_value_types({name: [values[name] for values in alike] for name in names})


def create_handle(
    store: ObjectStore,
    spec: TableSpec,
    *,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    clock: Clock | None = None,
    over_files: bool = False,
    dry_run: bool = False,
) -> Handle:
    """Create an empty table with this spec. A dry run only checks whether that is possible.

    `over_files` allows files below `_data/`, for an import in place. Raises TableExists, InvalidURI for an address
    inside another table, InvalidRequestError for the spec, and the store's errors.
    """
    spec = spec if timing is None else msgspec.structs.replace(spec, timing=timing)
    spec = checked_spec(spec, table=store.location.uri)  # rejects an invalid spec before anything is written
    handle = Handle.of(store, spec, fencing=fencing, clock=clock)
    check_address(handle)
    _refuse_leftovers(handle, over_files=over_files)
    if dry_run:
        if _has_spec(handle):
            raise _table_exists(handle)
        return handle
    claim_log_store(handle)
    handle.check_writable()
    _create_spec(handle)
    return handle


def quarantine_name(handle: Handle) -> str:
    """Return the name of the table for rows that do not fit, which lies next to the table itself."""
    return f"{handle.location.name}_quarantine"


def open_sibling(handle: Handle, name: str, spec: TableSpec | None = None) -> Handle:
    """Open the table `name` in the same folder. With a `spec`, create it if it does not exist.

    Raises TableNotFound, InvalidURI if the table has no folder around it, and the store's errors.
    """
    store = handle.store.sibling(handle.location.sibling(name))
    with_ours: dict[str, Any] = {"fencing": handle.fencing, "clock": handle.clock}
    try:
        return open_handle(store, **with_ours)
    except TableNotFound:
        if spec is None:
            raise
    try:
        return create_handle(store, spec, timing=handle.spec.timing, **with_ours)
    except TableExists:  # another program was faster
        return open_handle(store, **with_ours)


def _refuse_leftovers(handle: Handle, *, over_files: bool) -> None:
    """Reject a place with objects of a table but without its spec: the next sweep or commit would use them."""
    keys = handle.keys
    places = [("log files", keys.log_prefix), ("claims", keys.claims_prefix)]
    places += [] if over_files else [("files", keys.data_prefix)]
    for what, prefix in places:
        listed = [i.key for i in some_below(handle.store, prefix)]
        if keys.probe in listed and handle.location.log is None:
            refuse_log_of_another(handle)
        leftovers = [key for key in listed if key != keys.probe]
        if leftovers and not _has_spec(handle):
            raise TableExists(
                f"{handle.table}: {what} are there already ('{leftovers[0]}'), and '{keys.spec}' is missing: they "
                "belong to a table whose '_table.json' was lost, or to another program. Restore '_table.json' from a "
                "backup, or choose another address. To create a table over Parquet files below '_data/', use "
                "Table.create_from_files."
            )


def _create_spec(handle: Handle) -> None:
    body = encode_spec(handle.spec)
    try:
        with progress(COMMITTING, 1, "objects"):
            handle.store.create(handle.keys.spec, body)
    except ObjectExists:
        # The spec has a random id. Equal bytes are our own put, which the client repeated after a lost response.
        if handle.store.get(handle.keys.spec).body != body:
            raise _table_exists(handle) from None


def _table_exists(handle: Handle) -> TableExists:
    return TableExists(f"{handle.table}: a table is there already. Open it with Table.open.")


def _has_spec(handle: Handle) -> bool:
    try:
        handle.store.head(handle.keys.spec)
    except ObjectNotFound:
        return False
    return True
