"""Recreate a lost `_table.json` from the spec that the log records.

The first exclusive commit of a table records its spec in the log, so the newest spec is there. Logs of older versions
of this library have none. Then the caller passes the spec, and it is compared with the parts in the log. The object is
created by one create-only put, and its bytes follow from the log. So a repair that died can be repeated, two concurrent
repairs create the same object, and a spec that reappears is never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from icedb.errors import CorruptLog, InvalidOption, StoreUnavailable, TableExists, TableNotFound
from icedb.format.keys import decode_partition, partition_of
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec, all_columns, decode_spec, encode_spec
from icedb.sql.partition_expressions import parse_partition_by
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.open_table import is_lost
from icedb.transaction.separate_log import check_log_owner
from icedb.transaction.table_handle import Handle
from icedb.writer.spec_validation import checked_spec

__all__ = ["SpecRepairReport", "SpecSource", "repair_spec"]

SpecSource = Literal["stored", "log", "caller"]


@dataclass(frozen=True, slots=True)
class SpecRepairReport:
    """The spec of a table, and its source."""

    table: str
    #: Whether `_table.json` was created, or a dry run would create it. False: it existed.
    repaired: bool
    #: `stored`: `_table.json` existed. `log`: the log records the spec. `caller`: the caller passed it.
    source: SpecSource
    revision: int
    spec: dict[str, Any]
    live_parts: int
    dry_run: bool


def repair_spec(handle: Handle, spec: Mapping[str, Any] | None = None, *, dry_run: bool = False) -> SpecRepairReport:
    """Create `_table.json` from the log; see `Table.repair_spec`. The spec of `handle` was not read from the store."""
    check_log_owner(handle.store)
    state = handle.read(fresh=True)
    stored = _stored(handle)
    if stored is not None:
        return _report(handle, state, decode_spec(stored, table=handle.table, key=handle.keys.spec), "stored", dry_run)
    if not state.files:
        raise TableNotFound(
            f"{handle.table}: there is no log from which the spec could be read. If the log is elsewhere, give its "
            "log_uri. Otherwise restore the log, or '_table.json', from a backup."
        )
    body, source = _body(handle, state, spec)
    repaired = decode_spec(body, table=handle.table, key=handle.keys.spec)
    _check_log_uri(handle, repaired)
    if not dry_run:
        handle.check_writable()
        source = _create(handle, body, repaired, source)
    return _report(handle, state, repaired, source, dry_run)


def _stored(handle: Handle) -> bytes | None:
    try:
        return handle.store.get(handle.keys.spec).body
    except ObjectNotFound:
        return None


def _report(handle: Handle, state: TableState, spec: TableSpec, source: SpecSource, dry_run: bool) -> SpecRepairReport:
    document = msgspec.json.decode(encode_spec(spec))
    return SpecRepairReport(
        table=handle.table,
        repaired=source != "stored",
        source=source,
        revision=spec.revision,
        spec=document,
        live_parts=len(state.live),
        dry_run=dry_run,
    )


def _body(handle: Handle, state: TableState, spec: Mapping[str, Any] | None) -> tuple[bytes, SpecSource]:
    """Return the bytes of `_table.json`. A spec in the log is unchanged, with keys that this version does not know."""
    if state.spec and is_lost(state, handle):
        if spec is not None:
            raise InvalidOption(
                f"{handle.table}: the log records the newest spec of this table, but spec was passed as well. Leave it "
                "out."
            )
        return msgspec.json.format(bytes(state.spec), indent=2), "log"
    if state.spec:
        raise InvalidOption(
            f"{handle.table}: IceDB v3 programs made this table, and it needs no '{handle.keys.spec}'. Open it as it "
            "is. To change the layout of new parts, use alter."
        )
    if spec is None:
        raise CorruptLog(
            f"{handle.table}: the log does not record the spec. Either an older version of this library created the "
            "table, or only IceDB v3 programs wrote to it. Nothing was written. Restore "
            f"'{handle.keys.spec}' from a backup, or pass the spec that the table was created with: 'icedb repair-spec "
            "--spec FILE' with the keys of '_table.json', or Table.repair_spec(spec={...}).",
            key=handle.keys.spec,
        )
    return encode_spec(_checked(handle, state, spec)), "caller"


def _checked(handle: Handle, state: TableState, document: Mapping[str, Any]) -> TableSpec:
    """Return the caller's spec, compared with the log. Raises InvalidOption and the errors of `checked_spec`."""
    try:
        spec = decode_spec(msgspec.json.encode(document), table=handle.table, key="spec")
    except (CorruptLog, TypeError, ValueError) as error:
        raise InvalidOption(f"{handle.table}: the passed spec is invalid: {error}") from None
    spec = checked_spec(spec, table=handle.table, schema=state.schema)
    unknown = [c for c in spec.sort_by if c not in all_columns(spec, state.schema)]
    if unknown and state.schema:
        raise InvalidOption(
            f"{handle.table}: sort_by names '{unknown[0]}', and the log has no such column (it has "
            f"{sorted(state.schema)}). Pass the spec that the table was created with."
        )
    names = [e.name for e in parse_partition_by(spec.partition_by, table=handle.table)] + list(spec.path_columns)
    for marker in state.live:
        path = partition_of(handle.keys.data_prefix, marker.key)
        if list(decode_partition(path)) != names:
            raise InvalidOption(
                f"{handle.table}: the partition columns of that spec are {names}, but the part '{marker.key}' has "
                f"{list(decode_partition(path))}. Pass the spec that the table was created with."
            )
    return spec if spec.id else msgspec.structs.replace(spec, id=handle.clock.new_id())


def _check_log_uri(handle: Handle, spec: TableSpec) -> None:
    """Raise InvalidOption unless the new spec refers to this log."""
    log = handle.location.log
    if spec.log_uri != (log.uri if log else ""):
        raise InvalidOption(
            f"{handle.table}: the log was read at '{log.uri if log else handle.table}', but the log_uri of the spec is "
            f"'{spec.log_uri or handle.table}'. Pass that log_uri, and the table's own address."
        )


def _create(handle: Handle, body: bytes, spec: TableSpec, source: SpecSource) -> SpecSource:
    """Put the object, unless another repair or the lost object is there. Raises TableExists, StoreUnavailable."""
    outcome = put_if_absent(handle.store, handle.keys.spec, body)
    if outcome is PutOutcome.CREATED:
        return source
    stored = _stored(handle)
    if outcome is PutOutcome.NOT_FOUND or stored is None:
        raise StoreUnavailable(
            f"{handle.table}: the store did not answer, and '{handle.keys.spec}' does not exist. Repeat the repair."
        )
    if source == "log" and decode_spec(stored, table=handle.table, key=handle.keys.spec).id == spec.id:
        return "stored"
    raise TableExists(
        f"{handle.table}: '{handle.keys.spec}' was restored during the repair, and is another spec. It was not "
        "replaced. Open the table, and compare its spec."
    )
