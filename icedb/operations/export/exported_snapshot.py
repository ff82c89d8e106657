"""The snapshot and the columns of an export that shares the parts (data files) of the table."""

from __future__ import annotations

from collections.abc import Sequence

from icedb.errors import InvalidOption, UnknownColumn
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.reader.time_bounds import newest_ms
from icedb.transaction.table_handle import Handle

__all__ = ["exported_columns", "exported_snapshot"]


def exported_snapshot(handle: Handle, as_of_ms: int | None) -> tuple[Snapshot, int | None]:
    """Return the snapshot to export, and the time to pin: that of the newest commit.

    A commit that supersedes the parts has a later time than that, by any clock, but perhaps not later than now.
    """
    if as_of_ms is not None:
        return take_snapshot(handle, as_of_ms), as_of_ms
    now_ms = handle.clock.now_ms()
    state = handle.read()
    pin_ms = newest_ms(handle, state, now_ms) or None
    if (pin_ms or 0) == state.newest_ms:
        return take_snapshot(handle, pin_ms), pin_ms
    # A commit of a clock far ahead can neither be pinned nor superseded before its time.
    return take_snapshot(handle), pin_ms


def exported_columns(snapshot: Snapshot, exclude_columns: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns in the parts and those that are only in paths, without `exclude_columns`."""
    if isinstance(exclude_columns, str):
        raise InvalidOption(f"{snapshot.table}: exclude_columns is a text; give a list of columns.")
    partitions = snapshot.visible_partitions
    if unknown := [c for c in exclude_columns if c not in snapshot.schema and c not in partitions]:
        raise UnknownColumn(
            f"{snapshot.table}: exclude_columns names {unknown}; the table has {[*snapshot.schema, *partitions]}."
        )
    columns = {c: t for c, t in snapshot.schema.items() if c not in exclude_columns}
    partitions = {c: t for c, t in partitions.items() if c not in exclude_columns}
    if not columns:
        raise InvalidOption(
            f"{snapshot.table}: there is no column to export. Insert rows or declare columns first, and do not exclude "
            "all of them."
        )
    return columns, partitions
