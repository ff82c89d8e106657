"""What an attached table answers when DuckDB binds a query: the SQL of its rows at this moment.

DuckDB knows nothing of tables of ours. It calls a function for the text of a query, whenever it binds a view or macro,
and reads what the text says: so late parts, new columns and older partitionings need no words of their own here. All
that is asked in one transaction is answered from one snapshot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from icedb.engines.duckdb.bucket_access import Access
from icedb.engines.duckdb.macro_arguments import UTC_NAMES, Condition, DateColumns, depends_on_zone, equality, given_ms
from icedb.errors import IceDBError, InvalidOption, SnapshotExpired
from icedb.format.replay import TableState
from icedb.reader.scan_sql import relation, visible_partitions
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.sql.connections import quote_name, quote_text
from icedb.sql.predicates import Predicate, check_predicate
from icedb.sql.types import typed_nothing
from icedb.transaction.table_handle import Handle, Part

__all__ = ["MACRO", "NOTHING", "RANGE", "VIEW", "Answers", "columns_of"]

#: The column of a view of a table that has none: SQL has no table without columns.
NOTHING = "nothing"

#: Who asks.
VIEW, MACRO, RANGE = "view", "macro", "range"

K = TypeVar("K")
V = TypeVar("V")

# Transactions whose snapshot is kept: more than a connection pool has open at a time.
TRANSACTIONS_MAX = 64
# Those of which it is remembered that they had one, so that they do not get another.
FORGOTTEN_MAX = 10_000
# Texts of one snapshot: each is as long as the paths of its parts.
TEXTS_MAX = 16


def columns_of(snapshot: Snapshot) -> dict[str, str]:
    """The columns of a snapshot's rows, with their types."""
    return {**snapshot.schema, **visible_partitions(snapshot.schema, snapshot.partition_schema)}


@dataclass(frozen=True, slots=True)
class _Kept:
    """A snapshot, and the SQL that was made of it."""

    snapshot: Snapshot
    texts: OrderedDict[object, str] = field(default_factory=OrderedDict)
    #: As they were given -> checked.
    predicates: OrderedDict[str, Predicate] = field(default_factory=OrderedDict)


class Answers:
    """The answers about one table. Safe to share between threads."""

    def __init__(self, handle: Handle, access: Access) -> None:
        """Raises the errors of `take_snapshot`."""
        self._handle = handle
        self._access = access
        self._lock = threading.Lock()
        #: By transaction and time, the one that was asked for last at the end.
        self._of_transactions: OrderedDict[tuple[int, int | None], _Kept] = OrderedDict()
        self._forgotten: OrderedDict[tuple[int, int | None], None] = OrderedDict()
        self._latest: tuple[TableState, _Kept] | None = None
        #: The columns of every view that was made, by its number: a transaction may still see an older one.
        self.views: list[dict[str, str]] = []
        #: The number of the newest.
        self.view = -1
        self.dates: DateColumns | None = None
        #: Called when the table has other columns than the newest view.
        self.when_columns_change: Callable[[], None] = lambda: None

    def answer(self, transaction: int, given: Sequence[str | None]) -> str:
        """SQL of the rows that are asked for; of an error, which DuckDB raises, if there are none to be had.

        `given`: who asks, the connection's time zone, then of a view its number, of a macro its arguments.
        """
        who, zone, *arguments = given
        view = self.views[int(str(arguments[0])) if who == VIEW else self.view]
        try:
            self._access.renew()
            if who == VIEW:
                return self._for_view(self._kept(transaction, None), view, str(zone))
            return self._for_macro(transaction, who == RANGE, str(zone), arguments)
        except IceDBError as error:
            columns = ", ".join(f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in view.items())
            message = f"{type(error).__name__}: {error}"
            return f"SELECT {columns or f'NULL AS {NOTHING}'} WHERE error({quote_text(message)})"

    # ------------------------------------------------------------------------------------ who asks

    def _for_view(self, kept: _Kept, view: Mapping[str, str], zone: str) -> str:
        found = columns_of(kept.snapshot)
        if self.views[self.view] != found:
            self.when_columns_change()
        if other := next((c for c, t in view.items() if found.get(c) != t), None):
            raise InvalidOption(
                f"{self._handle.table}: the view was made when the column '{other}' was {view[other]}, and it is "
                f"{found.get(other, 'no column of the table')} now. Run the query again; if this stays so, attach the "
                "table again, or refresh() it."
            )
        rows = self._rows(kept, None, [], zone)
        # Made when there was no column, it has one of another name; but its rows can be counted.
        return f"SELECT NULL AS {NOTHING} FROM ({rows})" if found and not view else rows

    def _for_macro(self, transaction: int, ranged: bool, zone: str, arguments: Sequence[str | None]) -> str:
        as_of_type, as_of, predicate, *of_columns = arguments
        kept = self._kept(transaction, given_ms(str(as_of_type), as_of, table=self._handle.table))
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

    def _kept(self, transaction: int, as_of_ms: int | None) -> _Kept:
        """The snapshot that the transaction has, or gets now."""
        key = transaction, as_of_ms
        with self._lock:
            if (found := self._of_transactions.get(key)) is not None:
                self._of_transactions.move_to_end(key)
                return found
            if key in self._forgotten:
                raise SnapshotExpired(
                    f"{self._handle.table}: the snapshot of this transaction is no longer kept, for {TRANSACTIONS_MAX} "
                    "others have asked for theirs since. Begin a new transaction.",
                    horizon_ms=self._handle.clock.now_ms(),
                )
        found = self._now() if as_of_ms is None else self._at(as_of_ms)
        with self._lock:
            self._of_transactions[key] = found
            if len(self._of_transactions) > TRANSACTIONS_MAX:
                self._forgotten[self._of_transactions.popitem(last=False)[0]] = None
            if len(self._forgotten) > FORGOTTEN_MAX:
                self._forgotten.popitem(last=False)
        return found

    def _now(self) -> _Kept:
        """The latest snapshot. One LIST, and nothing else, when the log is as it was."""
        state = self._handle.read()
        with self._lock:
            if self._latest is not None and self._latest[0] is state:
                return self._latest[1]
        kept = self._at(None)
        with self._lock:
            self._latest = state, kept
        return kept

    def _at(self, as_of_ms: int | None) -> _Kept:
        return _Kept(take_snapshot(self._handle, as_of_ms))

    # ------------------------------------------------------------------------------------ rows

    def _rows(self, kept: _Kept, where: str | None, conditions: Sequence[Condition], zone: str) -> str:
        """SQL of the rows for which `where` and the conditions are true."""
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

    def _keep(self, found: OrderedDict[K, V], key: K, value: V) -> None:
        with self._lock:
            found[key] = value
            if len(found) > TEXTS_MAX:
                found.popitem(last=False)

    def _predicate(self, kept: _Kept, where: str | None, zone: str) -> tuple[Predicate | None, bool]:
        """It checked, and whether its value may be another in this connection's time zone than in UTC."""
        snapshot = kept.snapshot
        if where is None:
            return None, False
        with self._lock:
            checked = kept.predicates.get(where)
        if checked is None:
            visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
            check = partial(check_predicate, where, snapshot.schema, visible, table=snapshot.table)
            try:
                checked = check()
                self._keep(kept.predicates, where, checked)
            except InvalidOption:  # or it asks for the time, and will have another answer the next time
                checked = check(at_once=True)
        zoned = zone.casefold() not in UTC_NAMES and depends_on_zone(checked.sql, columns_of(snapshot))
        return checked, zoned

    def _union(self, kept: _Kept, parts: Sequence[Part], conditions: Sequence[Condition], zone: str) -> str:
        """SQL of the rows of these parts. The conditions chose them; of parts of older partitionings they choose rows.

        Raises InvalidOption when the connection's time zone would change what these rows' partitions are.
        """
        snapshot = kept.snapshot
        older = [p for p in parts if snapshot.is_older(p)]
        self._check_zone(kept, older, zone)
        if not older or not conditions:
            return self._relation(kept, parts)
        newer = [p for p in parts if not snapshot.is_older(p)]
        shadowed = snapshot.partition_schema.keys() - visible_partitions(snapshot.schema, snapshot.partition_schema)
        computed = {e.name: f"(\n{e.sql}\n)" for e in snapshot.expressions if e.name in shadowed}
        wanted = " AND ".join(
            f"({condition(lambda column: computed.get(column, quote_name(column)))})" for condition in conditions
        )
        chosen = f"SELECT * FROM ({self._relation(kept, older)}) AS t WHERE {wanted}"
        return f"{self._relation(kept, newer)} UNION ALL {chosen}" if newer else chosen

    def _relation(self, kept: _Kept, parts: Sequence[Part]) -> str:
        snapshot = kept.snapshot
        return relation(
            self._handle, parts, snapshot.schema, snapshot.partition_schema, expressions=snapshot.expressions
        )

    def _check_zone(self, kept: _Kept, older: Sequence[Part], zone: str) -> None:
        if not older or zone.casefold() in UTC_NAMES:
            return
        for expression in kept.snapshot.expressions:
            lacking = any(expression.name not in p.values for p in older)
            if lacking and depends_on_zone(expression.sql, kept.snapshot.schema):
                raise InvalidOption(
                    f"{self._handle.table}: parts from before the table was partitioned by '{expression.name}' need "
                    f"times in UTC to compute it, and this connection's time zone is {zone}. SET TimeZone = 'UTC'."
                )
