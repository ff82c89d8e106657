"""Tables come into being and are opened here: below the front door, for what opens the tables beside a table too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from icedb.errors import CorruptLog, InvalidOption, InvalidRequestError, SchemaConflict, TableExists, TableNotFound
from icedb.format.keys import decode_partition, encode_value, partition_of
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, decode_spec, encode_spec
from icedb.format.timing import Timing, timing_differences
from icedb.sql.partition_expressions import path_value_types
from icedb.storage.obstore_store import ObjectExists, ObjectNotFound, ObjectStore, some_below
from icedb.transaction.separate_log import claim_log_store, find_log_owner, find_log_store, refuse_log_of_another
from icedb.transaction.table_handle import Fencing, Handle, damaged_spec
from icedb.transaction.table_place import check_address
from icedb.util.clock import Clock
from icedb.writer.spec_validation import check_stored_spec, checked_spec

__all__ = ["create_handle", "is_lost", "one_line", "open_beside", "open_handle", "quarantine_name"]


def open_handle(
    store: ObjectStore,
    *,
    log_storage_options: Mapping[str, str] | None = None,
    timing: Timing | None = None,
    fencing: Fencing = "claims",
    clock: Clock | None = None,
) -> Handle:
    """The handle of the table in a store, and of its log, if that is in another. Raises TableNotFound, CorruptLog.

    `timing`: raise InvalidOption unless these are the table's times. Log files without a spec are a table of an
    IceDB v3 program: its paths tell what its partition columns are. If the log says that the table had a spec
    (`is_lost`), the handle reads with the newest that the log records, and does not write.
    """
    location = store.location
    try:
        body = store.get(location.keys.spec).body
    except ObjectNotFound:
        adopted = _adopt(Handle(store, TableSpec(), fencing=fencing, clock=clock))
        try:
            body = store.get(location.keys.spec).body  # may have come with its log files since we looked
        except ObjectNotFound:
            return _checked_timing(adopted, timing)
    spec = decode_spec(body, table=location.uri, key=location.keys.spec)
    store = find_log_store(store, spec, log_storage_options)
    handle = Handle(store, TableSpec(), fencing=fencing, clock=clock)
    handle.stored_spec = one_line(body)
    try:
        check_stored_spec(spec, table=handle.table)
        handle = handle.with_spec(spec)
    except InvalidRequestError as error:  # another program may have written it
        raise damaged_spec(handle.table, handle.keys.spec, error) from None
    return _checked_timing(handle, timing)


def _checked_timing(handle: Handle, timing: Timing | None) -> Handle:
    """Return the handle. Raises InvalidOption if the caller asks for other times than the table's newest spec has."""
    if timing is None:
        return handle
    handle.read()
    own = handle.spec.timing
    if names := timing_differences(timing, own):
        table_has = ", ".join(f"{name}={getattr(own, name)}" for name in names)
        asked_for = ", ".join(f"{name}={getattr(timing, name)}" for name in names)
        raise InvalidOption(
            f"{handle.table}: the table has the times {table_has}, and this program asks for {asked_for}. All programs "
            "use those of the table. Open it without timing, or change the table's with Table.alter(timing=...) or "
            "icedb alter."
        )
    return handle


def _adopt(handle: Handle) -> Handle:
    """The handle of a table that has no spec. Raises TableNotFound when it has no log files either."""
    try:
        state = handle.read()
    except SchemaConflict:
        return handle  # repair opens it, nothing else can be done with it; then it is opened anew
    if not state.listed_ms:
        # Another program may have created the table since its spec was looked for.
        if (parts := some_below(handle.store, handle.keys.data_prefix)) and not _has_spec(handle):
            raise CorruptLog(
                f"{handle.table}: '{handle.keys.spec}' is missing, and neither a log nor a spec says what the files "
                f"below '_data/' are ('{parts[0].key}'). If this table has a log_uri, restore '_table.json' from a "
                "backup: it says where the log is. If the files are of another program, make a table of them with "
                "Table.create_from_files.",
                key=handle.keys.spec,
            )
        raise TableNotFound(
            f"{handle.table}: there is no table ('{handle.keys.spec}' is missing). Create one with Table.create, or "
            "correct the address."
        )
    if is_lost(state, handle):
        return _read_only(handle, state)
    if handle.spec.revision == 0:  # else `alter` recorded one, with the path columns that it knew
        return handle.with_spec(TableSpec(path_columns=_path_columns(handle, state)))
    return handle


def one_line(body: bytes) -> msgspec.Raw:
    """Return the body of `_table.json` as a log file records it."""
    return msgspec.Raw(msgspec.json.format(body, indent=-1))


def is_lost(state: TableState, handle: Handle) -> bool:
    """Whether a log that has no `_table.json` is of a table that had one, and not of programs of IceDB v3.

    The first exclusive commit records the spec. That of a table without `_table.json` has no id.
    """
    if not state.spec:
        return state.epoch > 0  # before exclusive commits recorded it
    return bool(decode_spec(bytes(state.spec), table=handle.table, key=handle.keys.log_prefix).id)


def _read_only(handle: Handle, state: TableState) -> Handle:
    """The handle of a table whose `_table.json` is gone. Raises CorruptLog for a log without the parts beside it."""
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
    handle.spec_is_lost = True
    return handle


def _path_columns(handle: Handle, state: TableState) -> dict[str, str]:
    """Those of the newest part's path; none if a data column has such a name, for a batch must be able to bring it."""
    live = sorted(state.live, key=lambda m: (m.created_ms, m.key))
    if not live:
        return {}
    paths = {partition_of(handle.keys.data_prefix, m.key) for m in live}
    found = path_columns(partition_of(handle.keys.data_prefix, live[-1].key), paths)
    data = {c.casefold() for c in state.schema}
    return found if data.isdisjoint(name.casefold() for name in found) else {}


def path_columns(path: str, paths: Iterable[str]) -> dict[str, str]:
    """The partition columns that a path tells, with types for the values in those paths that tell the same.

    There are none when a name is not written as this library would write it.
    """
    names = list(decode_partition(path))
    folded = {name.casefold() for name in names}
    if len(folded) < len(path.split("/")) or not all(n and encode_value(n) == n for n in names):
        return {}
    alike = [found for p in paths if list(found := decode_partition(p)) == names]
    return path_value_types({name: [found[name] for found in alike] for name in names})


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
    """Create an empty table with this spec. A dry run looks whether it could.

    `over_files`: files may lie below `_data/`, for an import in place. Raises TableExists, InvalidURI for an address
    inside another table, InvalidRequestError errors for the spec, the store's errors.
    """
    spec = spec if timing is None else msgspec.structs.replace(spec, timing=timing)
    spec = checked_spec(spec, table=store.location.uri)  # refuses a bad one before anything is written
    handle = Handle(store, spec, fencing=fencing, clock=clock)
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
    """What the table is called that takes the rows which do not fit, beside the table itself."""
    return f"{handle.location.name}_quarantine"


def open_beside(handle: Handle, name: str, spec: TableSpec | None = None) -> Handle:
    """The table `name` in the same folder; with a `spec`, created if it is not there.

    Raises TableNotFound, InvalidURI when there is no such folder, and the store's errors.
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
    except TableExists:  # somebody else was faster
        return open_handle(store, **with_ours)


def _refuse_leftovers(handle: Handle, *, over_files: bool) -> None:
    """Refuse a place where objects of a table lie without its spec: the next sweep or commit would use them."""
    keys = handle.keys
    places = [("log files", keys.log_prefix), ("claims", keys.claims_prefix)]
    places += [] if over_files else [("files", keys.data_prefix)]
    for what, prefix in places:
        listed = [i.key for i in some_below(handle.store, prefix)]
        if keys.probe in listed and handle.location.log is None:
            refuse_log_of_another(handle)
        found = [key for key in listed if key != keys.probe]
        if found and not _has_spec(handle):
            raise TableExists(
                f"{handle.table}: {what} are there already ('{found[0]}'), and '{keys.spec}' is missing: they belong "
                "to a table whose '_table.json' was lost, or to another program. Restore '_table.json' from a backup, "
                "or choose another address. To create a table over Parquet files below '_data/', use "
                "Table.create_from_files."
            )


def _create_spec(handle: Handle) -> None:
    body = encode_spec(handle.spec)
    try:
        handle.store.create(handle.keys.spec, body)
    except ObjectExists:
        # The spec holds a random id: equal bytes are our own put, answered too late and repeated.
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
