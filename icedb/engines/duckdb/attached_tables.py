"""A table in the caller's DuckDB connection, as a view and as a macro with time travel and pruning.

    attach(con, "s3://lake/events", "events", storage_options=...)
    con.sql("SELECT count(*) FROM events WHERE d = '2026-11-21'")
    con.sql("SELECT * FROM events(as_of := TIMESTAMP '2026-11-21 10:00:00')")
    con.sql("SELECT * FROM events(filter := 'user_id = 7')")

Both read the log whenever DuckDB binds them, so a query sees all commits that were made before it. All queries of one
transaction use one snapshot. DuckDB reads the parts itself. In an in-memory database, cursors of the connection see the
table too. In a database file the view and macro are temporary and belong to this connection. A file would outlive the
function that both need.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Unpack

import duckdb
from duckdb.func import FunctionNullHandling

from icedb.engines.duckdb.attached_names import FUNCTION, AttachedNames, drop, drop_macros, functions_behind
from icedb.engines.duckdb.bucket_access import BucketSecret
from icedb.engines.duckdb.macro_arguments import date_columns as resolve_date_columns
from icedb.engines.duckdb.table_queries import MACRO, NOTHING, RANGE, VIEW, TableQueries
from icedb.errors import InvalidOption
from icedb.reader.snapshot import take_snapshot
from icedb.sql.connections import quote_name, quote_text
from icedb.storage.location import StoreOptions
from icedb.table import Table
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock

__all__ = ["Attached", "attach", "detach"]

_AS_OF, _FILTER = "as_of", "filter"
_COMMON_ARGUMENTS = (f"typeof({_AS_OF})", f"CAST({_AS_OF} AS VARCHAR)", f"CAST({quote_name(_FILTER)} AS VARCHAR)")
_RANGE = ("start_year", "start_month", "start_day", "end_year", "end_month", "end_day")

_log = logging.getLogger(__name__)

#: The attached tables of this process by the names of their functions, until the table or the connection is closed.
_sources: dict[str, _AttachedTable] = {}


def _table_sql(function: str, transaction: int, arguments: list[str | None]) -> str:
    """Return the SQL of a table's rows. DuckDB calls this function for every attached table.

    A running transaction or a cursor may call it after the table was detached or the connection was closed. DuckDB
    calls it by its address in memory. So it is a function of this module, which is never garbage collected.
    """
    source = _sources.get(function)
    if source is None:
        raise InvalidOption(
            "The table was detached or replaced, or the connection that it was attached to is gone. Begin a new "
            "transaction, or attach the table again to a connection that stays open."
        )
    return source.queries.sql(transaction, arguments)


class Attached:
    """A table that `attach` attached to a connection."""

    def __init__(self, source: _AttachedTable) -> None:
        self._source = source

    def __repr__(self) -> str:
        return f"Attached({self.name!r}, {self.table!r})"

    @property
    def name(self) -> str:
        """The name of the view and of the macro."""
        return self._source.names.name

    @property
    def table(self) -> str:
        """The table's address."""
        return self._source.handle.table

    def refresh(self) -> None:
        """Recreate the view and macros with the table's current columns and partition columns.

        Raises:
            InvalidOption: If the connection is gone, or another object has the name.
            duckdb.ConnectionException: If the connection is closed. Also the errors of reading the log.
        """
        con = self._source.connection()
        self._source.check_names(con)
        self._source.define(con)

    def detach(self) -> None:
        """Drop the view and macros. Objects that are already gone, or were replaced, are skipped."""
        con = self._source.con()
        if con is not None and self._source.function in _sources:
            with suppress(duckdb.ConnectionException, InvalidOption):  # closed, or no longer ours
                self._source.check_names(con)
                drop(con, self._source.names)
        self._source.close()


@checks_arguments
def attach(
    con: duckdb.DuckDBPyConnection,
    table: str | os.PathLike[str] | Table,
    name: str,
    *,
    date_macro: str | None = None,
    date_columns: Sequence[str] | None = None,
    **access: Unpack[StoreOptions],
) -> Attached:
    """Attach a table to a DuckDB connection, as a view and as a macro.

    The view `name` has the columns of the table. The macro `name(...)` has the columns at the time of each query. The
    parameters of the macro are:

    - `as_of`: the time of the snapshot, as TIMESTAMPTZ, TIMESTAMP (in UTC), text with a zone, or unix milliseconds.
    - `filter`: a predicate over all columns, as text. Parts that cannot contain matching rows are not opened.
    - every partition column: its value, or a list of values. NULL means any value, `[NULL]` means null. A partition
        column with the name `as_of` or `filter` is no parameter; use `filter` for it.

    Access to a bucket uses a DuckDB secret for the table's prefix, which is renewed while the connection exists. The
    connection is not kept alive: keep it, even if only its cursors are used. An attached table of the same name is
    replaced.

    Args:
        con: The connection.
        table: The address of the table, or an opened table.
        name: The name of the view and the macro.
        storage_options: Options of the store, if `table` is an address.
        credential_provider: A callable that returns credentials, if `table` is an address.
        log_storage_options: Options of the log's store, if the log is in another store.
        date_macro: The name of a second macro with a range of days, for programs of IceDB v2. Its parameters are
            `start_year`, `start_month`, `start_day`, `end_year`, `end_month`, `end_day`, `as_of` and `filter`. The end
            is inclusive; an omitted month or day is 1.
        date_columns: The partition columns of `date_macro`: year, month and day, or one date. None: they are detected.

    Returns:
        The attached table, which can be refreshed and detached.

    Raises:
        InvalidOption: If another object has the name, or an argument is invalid.
        TableNotFound: If there is no table at the address. Also the errors of the store and of DuckDB.

    Example:
        >>> attach(con, "s3://lake/events", "events")
        >>> con.sql("SELECT count(*) FROM events WHERE d = '2026-11-21'")
    """
    if not isinstance(con, duckdb.DuckDBPyConnection):
        raise InvalidOption(
            f"{name}: {type(con).__name__} is not a DuckDB connection. Pass the result of duckdb.connect()."
        )
    if not isinstance(table, Table):
        table = Table.open(table, **access)
    elif any(option is not None for option in access.values()):
        raise InvalidOption(
            f"{table.uri}: the table is open already, so it takes no options of the store. Pass them with its address."
        )
    names = AttachedNames.of(con, name, date_macro, table=table.uri)
    replaced = _replaced(con, names)
    source = _AttachedTable(con, table.handle, names, date_columns)
    try:
        source.define(con)
    except BaseException:
        source.close()
        raise
    for other in replaced:
        drop_macros(con, other.names, but=names)
        other.close()
    return Attached(source)


@checks_arguments
def detach(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Detach the table with this name.

    Args:
        con: The connection.
        name: The name of the view and the macro.

    Raises:
        InvalidOption: If no table is attached under this name.

    Example:
        >>> detach(con, "events")
    """
    sources = [s for f in functions_behind(con, name) if (s := _sources.get(f)) is not None and s.names.name == name]
    if not sources:
        raise InvalidOption(f"{name}: no table is attached under this name here. Correct the name.")
    drop(con, sources[0].names)
    sources[0].close()


def _replaced(con: duckdb.DuckDBPyConnection, names: AttachedNames) -> list[_AttachedTable]:
    """Return the attached tables with these names. Raises InvalidOption if another object has one of the names."""
    replaced: dict[str, _AttachedTable] = {}
    for name in names.all:
        for function in functions_behind(con, name):
            source = _sources.get(function)
            if source is not None and source.names.name.casefold() != names.name.casefold():
                raise InvalidOption(
                    f"{name}: the table attached as '{source.names.name}' has a macro of this name. Choose another "
                    f"name, or detach '{source.names.name}'."
                )
            if source is not None:
                replaced[function] = source
    return list(replaced.values())


class _AttachedTable:
    """An attached table, as DuckDB's function refers to it. The connection owns the function and is not kept alive."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, handle: Handle, names: AttachedNames, dates: Sequence[str] | None
    ) -> None:
        self.handle, self.names = handle, names
        self.con = weakref.ref(con, self._connection_is_gone)
        self._date_columns = dates
        #: Held while view and macros are created: DuckDB binds them then, and may detect changed columns.
        self._defining = threading.Lock()
        self._access = BucketSecret(con, handle.location)
        self.queries = TableQueries(handle, self._access)
        self.queries.when_columns_change = self._columns_changed
        self.function = FUNCTION + SystemClock().new_id()
        con.create_function(
            self.function,
            _table_sql,
            ["VARCHAR", "UBIGINT", "VARCHAR[]"],
            "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL,
        )
        _sources[self.function] = self

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return the connection. Raises InvalidOption if it is gone, or if the table was detached."""
        con = self.con()
        if con is None or self.function not in _sources:
            reason = "the connection it was attached to is gone" if con is None else "it was detached or replaced"
            raise InvalidOption(f"{self.handle.table}: {reason}. Attach the table again.")
        return con

    def define(self, con: duckdb.DuckDBPyConnection) -> None:
        """Create the view and macros with the current columns."""
        with self._defining:
            self._define(con)

    def _define(self, con: duckdb.DuckDBPyConnection) -> None:
        snapshot = take_snapshot(self.handle)
        columns = dict(snapshot.columns)
        macros = {self.names.name: self._macro()}
        if self.names.date_macro is not None:
            self.queries.dates = resolve_date_columns(
                snapshot.partition_schema, self._date_columns, table=self.handle.table
            )
            macros[self.names.date_macro] = self._date_macro()
        queries, before = self.queries, self.queries.view
        queries.views.append(columns)
        queries.view = len(queries.views) - 1  # before the statements, because DuckDB binds a view that it creates
        try:
            self._create(con, columns, macros)
        except BaseException:
            queries.view = before
            raise

    def _create(
        self, con: duckdb.DuckDBPyConnection, columns: Mapping[str, str], macros: Mapping[str, tuple[list[str], str]]
    ) -> None:
        selected = ", ".join(map(quote_name, columns)) or NOTHING
        source = self._call(VIEW, quote_text(str(self.queries.view)))
        con.execute(f"{self.names.create} VIEW {quote_name(self.names.name)} AS SELECT {selected} FROM {source}")
        for name, (parameters, source) in macros.items():
            defaults = ", ".join(f"{quote_name(p)} := NULL" for p in parameters)
            con.execute(f"{self.names.create} MACRO {quote_name(name)}({defaults}) AS TABLE SELECT * FROM {source}")

    def _macro(self) -> tuple[list[str], str]:
        """Return the parameters of the macro, and the relation that it selects from."""
        names = [e.name for e in self.handle.expressions if e.name.casefold() not in (_AS_OF, _FILTER)]
        arguments = list(_COMMON_ARGUMENTS)
        for name in names:
            value = quote_name(name)
            arguments += [quote_text(name), f"typeof({value})", f"CAST({value} AS VARCHAR)"]
        return [_AS_OF, _FILTER, *names], self._call(MACRO, *arguments)

    def _date_macro(self) -> tuple[list[str], str]:
        days = [f"CAST({parameter} AS VARCHAR)" for parameter in _RANGE]
        return [*_RANGE, _AS_OF, _FILTER], self._call(RANGE, *_COMMON_ARGUMENTS, *days)

    def _call(self, caller: str, *arguments: str) -> str:
        """Return a relation with the table's rows. With its id, DuckDB calls the function once for each transaction."""
        values = ", ".join([quote_text(caller), "current_setting('TimeZone')", *arguments])
        return f"query({self.function}({quote_text(self.function)}, current_transaction_id(), [{values}]))"

    def check_names(self, con: duckdb.DuckDBPyConnection) -> None:
        """Raise InvalidOption if another object has one of the names."""
        for name in self.names.all:
            if any(function != self.function for function in functions_behind(con, name)):
                raise InvalidOption(f"{name}: another table is attached under this name now. Choose another name.")

    def _columns_changed(self) -> None:
        """Recreate view and macros, for the statements after the one that DuckDB is binding."""
        con = self.con()
        if con is None or self.names.temporary:  # a cursor does not see temporary objects
            return
        # If two threads create the same view, DuckDB raises a conflict in the later one.
        if not self._defining.acquire(blocking=False):
            return  # the next query tries again
        try:
            with con.cursor() as cursor:
                self.check_names(cursor)
                self._define(cursor)
        except (duckdb.Error, InvalidOption) as error:  # another cursor is changing it: the next query tries again
            _log.info("the view '%s' was not recreated: %s", self.names.name, str(error).splitlines()[0])
        finally:
            self._defining.release()

    def close(self) -> None:
        """Stop answering queries, and remove the function and the secret."""
        con = self.con()
        self._access.close(drop=con is not None and not self._is_attached_otherwise(con))
        if _sources.pop(self.function, None) is not None and con is not None:
            with suppress(duckdb.Error):  # a closed connection no longer has the function
                con.remove_function(self.function)

    def _is_attached_otherwise(self, con: duckdb.DuckDBPyConnection) -> bool:
        """Whether the table is attached to this DuckDB under another name too, so that its secret is still needed."""
        others = {s.function for s in _sources.values() if s is not self and s.handle.table == self.handle.table}
        if not others:
            return False
        try:
            with con.cursor() as cursor:
                ours = "SELECT function_name FROM duckdb_functions() WHERE starts_with(function_name, $1)"
                return not others.isdisjoint(name for (name,) in cursor.execute(ours, [FUNCTION]).fetchall())
        except duckdb.ConnectionException:  # closed
            return False

    def _connection_is_gone(self, _: object) -> None:
        _sources.pop(self.function, None)
        self._access.close(drop=False)
