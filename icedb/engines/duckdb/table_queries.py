"""The SQL of an attached table's rows, which DuckDB requests whenever it binds a query.

DuckDB does not know the table format. Whenever it binds a view or macro, it calls a function that returns the text of a
query, and runs that text. So late parts, new columns and older partitionings need no support in DuckDB. All queries of
one transaction use one snapshot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from icedb.engines.duckdb.bucket_access import BucketSecret
from icedb.engines.duckdb.macro_arguments import (
    UTC_NAMES,
    Condition,
    DateColumns,
    as_of_argument_ms,
    depends_on_zone,
    equality,
)
from icedb.errors import IceDBError, InvalidOption, SnapshotExpired
from icedb.format.replay import TableState
from icedb.reader.scan_sql import relation
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.sql.connections import quote_name, quote_text
from icedb.sql.predicates import Predicate, check_predicate
from icedb.sql.types import typed_nothing
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["MACRO", "NOTHING", "RANGE", "VIEW", "TableQueries"]

#: The column of a view of a table without columns, because SQL has no table without columns.
NOTHING = "nothing"

#: The caller: a view, a macro, or a macro with a range of days.
VIEW, MACRO, RANGE = "view", "macro", "range"

K = TypeVar("K")
V = TypeVar("V")

# The number of transactions whose snapshot is kept: more than a connection pool has open at a time.
TRANSACTIONS_MAX = 64
# The number of evicted transactions that are remembered, so that they do not receive a second snapshot.
FORGOTTEN_MAX = 10_000
# The number of texts kept for one snapshot. Each is as long as the paths of its parts.
TEXTS_MAX = 16


@dataclass(frozen=True, slots=True)
class _CachedSnapshot:
    """A snapshot, and the SQL texts that were made from it."""

    snapshot: Snapshot
    texts: OrderedDict[object, str] = field(default_factory=OrderedDict)
    #: The caller's text -> the checked predicate.
    predicates: OrderedDict[str, Predicate] = field(default_factory=OrderedDict)


class TableQueries:
    """The queries of one attached table. Safe to share between threads."""

    def __init__(self, handle: Handle, access: BucketSecret) -> None:
        self._handle = handle
        self._access = access
        self._lock = threading.Lock()
        #: By transaction and time; the most recently used is last.
        self._of_transactions: OrderedDict[tuple[int, int | None], _CachedSnapshot] = OrderedDict()
        self._forgotten: OrderedDict[tuple[int, int | None], None] = OrderedDict()
        self._latest: tuple[TableState, _CachedSnapshot] | None = None
        #: The columns of every view that was created, by its number. A transaction may still see an older view.
        self.views: list[dict[str, str]] = []
        #: The number of the newest view.
        self.view = -1
        self.dates: DateColumns | None = None
        #: Called if the table has other columns than the newest view.
        self.when_columns_change: Callable[[], None] = lambda: None

    def sql(self, transaction: int, parameters: Sequence[str | None]) -> str:
        """Return the SQL of the requested rows, or SQL that makes DuckDB raise the error.

        `parameters` are the caller, the connection's time zone, then the number of a view or the arguments of a macro.
        """
        caller, zone, *arguments = parameters
        view = self.views[int(str(arguments[0])) if caller == VIEW else self.view]
        try:
            self._access.renew()
            if caller == VIEW:
                return self._for_view(self._kept(transaction, None), view, str(zone))
            return self._for_macro(transaction, caller == RANGE, str(zone), arguments)
        except IceDBError as error:
            columns = ", ".join(f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in view.items())
            message = f"{type(error).__name__}: {error}"
            return f"SELECT {columns or f'NULL AS {NOTHING}'} WHERE error({quote_text(message)})"

    # ------------------------------------------------------------------------------------ callers

    def _for_view(self, kept: _CachedSnapshot, view: Mapping[str, str], zone: str) -> str:
        columns = kept.snapshot.columns
        if self.views[self.view] != columns:
            self.when_columns_change()
        if changed := next((c for c, t in view.items() if columns.get(c) != t), None):
            raise InvalidOption(
                f"{self._handle.table}: the view was made when the column '{changed}' was {view[changed]}, and it is "
                f"{columns.get(changed, 'no column of the table')} now. Run the query again. If the error persists, "
                "attach the table again, or refresh() it."
            )
        rows = self._rows(kept, None, [], zone)
        # A view of a table that had no columns then has one placeholder column; its rows can be counted.
        return f"SELECT NULL AS {NOTHING} FROM ({rows})" if columns and not view else rows

    def _for_macro(self, transaction: int, ranged: bool, zone: str, arguments: Sequence[str | None]) -> str:
        as_of_type, as_of, predicate, *of_columns = arguments
        kept = self._kept(transaction, as_of_argument_ms(str(as_of_type), as_of, table=self._handle.table))
        conditions: list[Condition] = []
        if ranged:
            days = None if self.dates is None else self.dates.between(of_columns, table=self._handle.table)
            conditions = [] if days is None else [days]
        else:
            for column, type_, text in zip(*(of_columns[n::3] for n in range(3)), strict=True):
                if text is not None:
                    conditions.append(equality(str(column), str(type_), text))
        return self._rows(kept, predicate, conditions, zone)

    # ------------------------------------------------------------------------------------ snapshots

    def _kept(self, transaction: int, as_of_ms: int | None) -> _CachedSnapshot:
        """Return the snapshot of the transaction, or take it now."""
        key = transaction, as_of_ms
        with self._lock:
            if (kept := self._of_transactions.get(key)) is not None:
                self._of_transactions.move_to_end(key)
                return kept
            if key in self._forgotten:
                raise SnapshotExpired(
                    f"{self._handle.table}: the snapshot of this transaction is no longer kept, because "
                    f"{TRANSACTIONS_MAX} other transactions have taken one since. Begin a new transaction.",
                    horizon_ms=self._handle.clock.now_ms(),
                )
        kept = self._now() if as_of_ms is None else self._at(as_of_ms)
        with self._lock:
            self._of_transactions[key] = kept
            if len(self._of_transactions) > TRANSACTIONS_MAX:
                self._forgotten[self._of_transactions.popitem(last=False)[0]] = None
            if len(self._forgotten) > FORGOTTEN_MAX:
                self._forgotten.popitem(last=False)
        return kept

    def _now(self) -> _CachedSnapshot:
        """Return the latest snapshot. It costs one LIST if the log is unchanged."""
        state = self._handle.read()
        with self._lock:
            if self._latest is not None and self._latest[0] is state:
                return self._latest[1]
        kept = self._at(None)
        with self._lock:
            self._latest = state, kept
        return kept

    def _at(self, as_of_ms: int | None) -> _CachedSnapshot:
        return _CachedSnapshot(take_snapshot(self._handle, as_of_ms))

    # ------------------------------------------------------------------------------------ rows

    def _rows(self, kept: _CachedSnapshot, where: str | None, conditions: Sequence[Condition], zone: str) -> str:
        """Return the SQL of the rows for which `where` and the conditions are true."""
        snapshot = kept.snapshot
        if not snapshot.schema:
            return typed_nothing({})
        predicate, zoned = self._predicate(kept, where, zone)
        of_paths = " AND ".join(f"({condition(quote_name)})" for condition in conditions)
        key = None if predicate is None else predicate.sql, of_paths, zone.casefold() in UTC_NAMES
        with self._lock:
            if (text := kept.texts.get(key)) is not None:
                kept.texts.move_to_end(key)
                return text
        parts = snapshot.files(None if zoned else predicate)
        if of_paths:
            chosen = {p.key for p in snapshot.in_partitions(of_paths)}
            parts = [p for p in parts if p.key in chosen]
        text = self._union(kept, parts, conditions, zone)
        if predicate is not None:
            text = f"SELECT * FROM ({text}) AS t WHERE (\n{predicate.sql}\n)"
        self._keep(kept.texts, key, text)
        return text

    def _keep(self, cache: OrderedDict[K, V], key: K, value: V) -> None:
        with self._lock:
            cache[key] = value
            if len(cache) > TEXTS_MAX:
                cache.popitem(last=False)

    def _predicate(self, kept: _CachedSnapshot, where: str | None, zone: str) -> tuple[Predicate | None, bool]:
        """Return the checked predicate, and whether its value may differ between the connection's time zone and UTC."""
        snapshot = kept.snapshot
        if where is None:
            return None, False
        with self._lock:
            checked = kept.predicates.get(where)
        if checked is None:
            visible = snapshot.visible_partitions
            check = partial(check_predicate, where, snapshot.schema, visible, table=snapshot.table)
            try:
                checked = check()
                self._keep(kept.predicates, where, checked)
            except InvalidOption:  # or it depends on the current time, so it is checked at each use
                checked = check(at_once=True)
        zoned = zone.casefold() not in UTC_NAMES and depends_on_zone(checked.sql, snapshot.columns)
        return checked, zoned

    def _union(self, kept: _CachedSnapshot, parts: Sequence[Part], conditions: Sequence[Condition], zone: str) -> str:
        """Return the SQL of the rows of these parts. The conditions selected the parts; rows of older partitionings are
        filtered.

        Raises InvalidOption if the connection's time zone would change the partition values of these rows.
        """
        snapshot = kept.snapshot
        older = [p for p in parts if snapshot.is_older(p)]
        self._check_zone(kept, older, zone)
        if not older or not conditions:
            return self._relation(kept, parts)
        newer = [p for p in parts if not snapshot.is_older(p)]
        shadowed = snapshot.partition_schema.keys() - snapshot.visible_partitions
        computed = {e.name: f"(\n{e.sql}\n)" for e in snapshot.expressions if e.name in shadowed}
        filters = " AND ".join(
            f"({condition(lambda column: computed.get(column, quote_name(column)))})" for condition in conditions
        )
        chosen = f"SELECT * FROM ({self._relation(kept, older)}) AS t WHERE {filters}"
        return f"{self._relation(kept, newer)} UNION ALL {chosen}" if newer else chosen

    def _relation(self, kept: _CachedSnapshot, parts: Sequence[Part]) -> str:
        snapshot = kept.snapshot
        return relation(
            self._handle, parts, snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions
        )

    def _check_zone(self, kept: _CachedSnapshot, older: Sequence[Part], zone: str) -> None:
        if not older or zone.casefold() in UTC_NAMES:
            return
        for expression in kept.snapshot.expressions:
            lacking = any(expression.name not in p.values for p in older)
            if lacking and depends_on_zone(expression.sql, kept.snapshot.schema):
                raise InvalidOption(
                    f"{self._handle.table}: some parts are older than the partitioning by '{expression.name}', which "
                    f"is computed in UTC, and this connection's time zone is {zone}. Run SET TimeZone = 'UTC'."
                )
