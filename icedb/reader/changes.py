"""The change feed: the parts (data files) that added rows between two points of a table's history.

The outputs of merges are not among them, because their rows were in the table before. Parts that were tombstoned
since are, until cleanup deletes them. See `icedb.format.change_feed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import duckdb

from icedb.errors import InvalidOption
from icedb.format.change_feed import (
    BEGINNING,
    Cursor,
    Limits,
    Removals,
    advance,
    at_time,
    between,
    check_order,
    decode_cursor,
    encode_cursor,
    removals,
)
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import all_columns
from icedb.reader.scan_sql import relation
from icedb.reader.snapshot import Snapshot
from icedb.reader.time_bounds import check_readable_time, resolve_time
from icedb.sql.predicates import Predicate
from icedb.transaction.table_handle import Handle
from icedb.util.times import time_text

__all__ = ["Changes", "changes_of", "cursor_of", "settled_ms", "take_changes"]

_NO_REMOVALS = re.compile(r'Table with name "?(?:removed|restored)"? does not exist', re.IGNORECASE)


@dataclass(frozen=True)
class Changes(Snapshot):
    """The parts that added rows, in `parts`, with all methods of a snapshot. `Table.changes` returns it.

    Example:
        ```python
        changes = table.changes(cursor)
        rows = changes.to_arrow()
        cursor = changes.cursor  # store it with the rows
        ```

    In queries, the relation `removed` has the rows that commits between the two cursors removed or replaced, as they
    were. `restored` has the rows that a restore brought back, or that the query of a `rewrite_partition` wrote. Both
    have the columns of `t`. They read the parts that these commits superseded, and those to which they moved rows.

    Example:
        ```python
        deleted = changes.query("SELECT id FROM removed EXCEPT SELECT id FROM t")
        ```
    """

    #: The cursor at which the changes begin.
    since: str
    #: The cursor at which the changes end. Pass it as `since` to the next call, which then returns the rows after these
    #: without a gap and without repetition.
    cursor: str
    _find_removals: Callable[[], Removals] = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Changes({self.table!r}, parts={len(self.parts)}, rows={self.rows}, as_of_ms={self.as_of_ms})"

    @cached_property
    def removals(self) -> Removals:
        """The parts from which `removed` and `restored` are read. Every part of the table is examined to find them."""
        return self._find_removals()

    def _run(self, con: duckdb.DuckDBPyConnection, sql: str, predicate: Predicate | None) -> duckdb.DuckDBPyRelation:
        """Create `removed` and `restored` only if the query names one of them, because most consumers do not."""
        try:
            return super()._run(con, sql, predicate)
        except duckdb.CatalogException as error:
            if not _NO_REMOVALS.search(str(error)):
                raise
        superseded, moved = (
            relation(
                self._handle,
                [self._handle.part(m) for m in markers],
                self.schema,
                self.partition_schema,
                expressions=self.expressions,
            )
            for markers in (self.removals.superseded, self.removals.moved)
        )
        con.execute(f"CREATE VIEW removed AS ({superseded}) EXCEPT ALL ({moved})")
        con.execute(f"CREATE VIEW restored AS ({moved}) EXCEPT ALL ({superseded})")
        return super()._run(con, sql, predicate)


def take_changes(
    handle: Handle,
    since: int | str | None = None,
    until: int | str | None = None,
    *,
    limits: Limits | None = None,
) -> Changes:
    """Return the changes after `since`: a time (unix milliseconds), a cursor, or None to begin with all rows.

    `until` is a time or a cursor, too. A time must not be in the future, see `check_readable_time`.

    Raises InvalidOption, SnapshotExpired, UncoordinatedMaintenance and the errors of `LogReader.read`.
    """
    _check_limits(handle, limits)
    now_ms = handle.clock.now_ms()  # before the log is read
    state = handle.read()
    for at_ms in (since, until):
        if isinstance(at_ms, int):
            check_readable_time(handle, state, at_ms, now_ms=now_ms, may_precede=True)
    settled = settled_ms(handle, now_ms)
    start = BEGINNING if since is None else cursor_of(handle, since)
    if isinstance(until, str):
        end = decode_cursor(until, table=handle.table)
        check_order(start, end, handle.keys, table=handle.table)
        markers = between(state, handle.keys, start, end)
    else:
        _check_until(handle, start, until)
        end, markers = advance(state, handle.keys, start, settled_ms=settled, until_ms=until, limits=limits)
    until_ms = until if isinstance(until, int) else None
    time = resolve_time(handle, state, until_ms, now_ms=now_ms - 1)
    as_of_ms = time.as_of_ms if until_ms is None else until_ms
    changes = changes_of(handle, state, start, end, markers, as_of_ms=as_of_ms)
    return changes if time.is_latest else replace(changes, schema=time.columns, _spec=time.spec)


def changes_of(
    handle: Handle, state: TableState, start: Cursor, end: Cursor, markers: Sequence[Marker], *, as_of_ms: int
) -> Changes:
    """Return parts of the change feed as an object that can be queried."""
    return Changes(
        table=handle.table,
        as_of_ms=as_of_ms,
        parts=tuple(map(handle.part, markers)),
        schema=all_columns(handle.spec, state.schema),
        log_files=len(state.files),
        epoch=state.epoch,
        _handle=handle,
        _spec=handle.spec,
        since=encode_cursor(start),
        cursor=encode_cursor(end),
        _find_removals=partial(removals, state, start, end),
    )


def cursor_of(handle: Handle, since: int | str) -> Cursor:
    """Return the cursor of a time (unix milliseconds) or of a cursor's text. Raises InvalidOption."""
    return decode_cursor(since, table=handle.table) if isinstance(since, str) else at_time(since)


def settled_ms(handle: Handle, now_ms: int) -> int:
    """Return the time (unix milliseconds) up to which no more log files can appear in a log read after `now_ms`.

    Call it after the log was read, because the log can extend the time limit of publications.
    """
    return now_ms - handle.timing.late_publication_ms


def _check_until(handle: Handle, start: Cursor, until_ms: int | None) -> None:
    if until_ms is None:
        return
    if start == BEGINNING:
        raise InvalidOption(f"{handle.table}: until needs since. To read the table at a time, use snapshot(until).")
    if until_ms < start.t_ms:
        raise InvalidOption(
            f"{handle.table}: until ({time_text(until_ms)}) is before since ({time_text(start.t_ms)}). Exchange them."
        )


def _check_limits(handle: Handle, limits: Limits | None) -> None:
    for name, limit in () if limits is None else (("parts_max", limits.parts), ("bytes_max", limits.bytes)):
        if limit is not None and limit < 1:
            raise InvalidOption(f"{handle.table}: {name} is {limit}. Pass a number above 0, or None for no limit.")
