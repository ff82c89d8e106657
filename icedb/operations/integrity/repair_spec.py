"""Make a lost `_table.json` anew, from the spec that the log records.

The first exclusive commit of a table records its spec in the log, so the newest one is there. A log that is older than
that rule has none: then the caller says what the spec is, and the parts of the log are compared with it. The object is
created by one create-only put, whose bytes follow from the log. So a repair that died is repeated, two repairs at once
make the same object, and a spec that reappears is never replaced.
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
    """The spec of a table, and where it came from."""

    table: str
    #: Whether `_table.json` was created, or would be by a dry run. False: it was there.
    repaired: bool
    #: `stored`: `_table.json` was there; `log`: the log records the spec; `caller`: the caller gave it.
    source: SpecSource
    revision: int
    spec: dict[str, Any]
    live_parts: int
    dry_run: bool


def repair_spec(handle: Handle, spec: Mapping[str, Any] | None = None, *, dry_run: bool = False) -> SpecRepairReport:
    """Create `_table.json` from the log; see `Table.repair_spec`. `handle` is of a table whose spec was not read."""
    check_log_owner(handle.store)
    state = handle.read(fresh=True)
    stored = _stored(handle)
    if stored is not None:
        return _report(handle, state, decode_spec(stored, table=handle.table, key=handle.keys.spec), "stored", dry_run)
    if not state.files:
        raise TableNotFound(
            f"{handle.table}: there is no log, so nothing says what the spec was. If the log is elsewhere, give its "
            "log_uri; else restore the log, or '_table.json', from a backup."
        )
    body, source = _body(handle, state, spec)
    wanted = decode_spec(body, table=handle.table, key=handle.keys.spec)
    _check_log_uri(handle, wanted)
    if not dry_run:
        handle.check_writable()
        source = _create(handle, body, wanted, source)
    return _report(handle, state, wanted, source, dry_run)


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
    """The bytes of `_table.json`. What the log records is kept as it is, with keys that this version does not know."""
    if state.spec and is_lost(state, handle):
        if spec is not None:
            raise InvalidOption(
                f"{handle.table}: the log records the newest spec of this table, and a spec was given, too. Leave it "
                "out."
            )
        return msgspec.json.format(bytes(state.spec), indent=2), "log"
    if state.spec:
        raise InvalidOption(
            f"{handle.table}: IceDB v3 programs made this table, and it needs no '{handle.keys.spec}'. Open it as it "
            "is; alter changes how new parts are laid out."
        )
    if spec is None:
        raise CorruptLog(
            f"{handle.table}: the log does not record the spec. Either an older version of this library created the "
            "table, or only IceDB v3 programs wrote to it. Nothing was written. Restore "
            f"'{handle.keys.spec}' from a backup, or say how the table was created: 'icedb repair-spec --spec FILE' "
            "with the keys of '_table.json', or Table.repair_spec(spec={...}).",
            key=handle.keys.spec,
        )
    return encode_spec(_checked(handle, state, spec)), "caller"


def _checked(handle: Handle, state: TableState, said: Mapping[str, Any]) -> TableSpec:
    """The caller's spec, compared with the log. Raises InvalidOption, and as `checked_spec`."""
    try:
        spec = decode_spec(msgspec.json.encode(said), table=handle.table, key="spec")
    except (CorruptLog, TypeError, ValueError) as error:
        raise InvalidOption(f"{handle.table}: that is no spec: {error}") from None
    spec = checked_spec(spec, table=handle.table, schema=state.schema)
    unknown = [c for c in spec.sort_by if c not in all_columns(spec, state.schema)]
    if unknown and state.schema:
        raise InvalidOption(
            f"{handle.table}: sort_by names '{unknown[0]}', and the log has no such column (it has "
            f"{sorted(state.schema)}). Give the spec that the table was created with."
        )
    names = [e.name for e in parse_partition_by(spec.partition_by, table=handle.table)] + list(spec.path_columns)
    for marker in state.live:
        path = partition_of(handle.keys.data_prefix, marker.key)
        if list(decode_partition(path)) != names:
            raise InvalidOption(
                f"{handle.table}: the partition columns of that spec are {names}, and the part '{marker.key}' has "
                f"{list(decode_partition(path))}. Give the spec that the table was created with."
            )
    return spec if spec.id else msgspec.structs.replace(spec, id=handle.clock.new_id())


def _check_log_uri(handle: Handle, spec: TableSpec) -> None:
    """The spec that is made must lead to this log. Raises InvalidOption."""
    log = handle.location.log
    if spec.log_uri != (log.uri if log else ""):
        raise InvalidOption(
            f"{handle.table}: the log was read at '{log.uri if log else handle.table}', and the spec says that it is "
            f"at '{spec.log_uri or handle.table}'. Give that log_uri, and the table's own address."
        )


def _create(handle: Handle, body: bytes, spec: TableSpec, source: SpecSource) -> SpecSource:
    """Put the object; another repair's, or the lost one that came back, stays. Raises TableExists, StoreUnavailable."""
    outcome = put_if_absent(handle.store, handle.keys.spec, body)
    if outcome is PutOutcome.CREATED:
        return source
    stored = _stored(handle)
    if outcome is PutOutcome.NOT_FOUND or stored is None:
        raise StoreUnavailable(
            f"{handle.table}: the store did not answer, and '{handle.keys.spec}' is not there. Repeat the repair."
        )
    if source == "log" and decode_spec(stored, table=handle.table, key=handle.keys.spec).id == spec.id:
        return "stored"
    raise TableExists(
        f"{handle.table}: '{handle.keys.spec}' came back meanwhile, and is another spec. It was not replaced. Open the "
        "table, and compare its spec."
    )
