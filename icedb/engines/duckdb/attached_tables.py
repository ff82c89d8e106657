"""A table in somebody's own DuckDB connection: as a view, and as a macro with time travel and pruning.

    attach(con, "s3://lake/events", "events", storage_options=...)
    con.sql("SELECT count(*) FROM events WHERE d = '2026-11-21'")
    con.sql("SELECT * FROM events(as_of := TIMESTAMP '2026-11-21 10:00:00', d := '2026-11-20')")
    con.sql("SELECT * FROM events(filter := 'user_id = 7')")

Both ask the log whenever DuckDB binds them, so that what was committed before a query is in it; all that one
transaction asks has one snapshot. Parts are read by DuckDB itself. In an in-memory database its cursors see the table
as well; in a file it is temporary, of this connection only: the file would outlive the function that both need.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress

import duckdb
from duckdb.func import FunctionNullHandling

from icedb.engines.duckdb.attached_names import FUNCTION, Names, drop, drop_macros, functions_behind
from icedb.engines.duckdb.bucket_access import Access
from icedb.engines.duckdb.macro_arguments import date_columns as found_date_columns
from icedb.engines.duckdb.table_queries import MACRO, NOTHING, RANGE, VIEW, Answers, columns_of
from icedb.errors import InvalidOption
from icedb.reader.snapshot import take_snapshot
from icedb.sql.connections import quote_name, quote_text
from icedb.storage.credentials import CredentialProvider
from icedb.table import Table
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock
from icedb.util.optional_deps import import_optional

__all__ = ["Attached", "attach", "detach"]

_AS_OF, _FILTER = "as_of", "filter"
_RANGE = ("start_year", "start_month", "start_day", "end_year", "end_month", "end_day")

_log = logging.getLogger(__name__)

#: What is attached in this process, by the name of its function, until it is detached or its connection is gone.
_sources: dict[str, _Source] = {}


def _answer(function: str, transaction: int, given: list[str | None]) -> str:
    """What DuckDB calls, for every table that is attached.

    A transaction that has begun, and a cursor, may call it when the table was detached, or its connection is gone. So
    it is a function of this module, which is never collected: DuckDB calls it by its place in memory.
    """
    source = _sources.get(function)
    if source is None:
        raise InvalidOption(
            "The table was detached or replaced, or the connection that it was attached to is gone. Begin a new "
            "transaction; or attach it again, to a connection that you keep."
        )
    return source.answers.answer(transaction, given)


class Attached:
    """A table that is attached to a connection. Made by `attach`."""

    def __init__(self, source: _Source) -> None:
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
        """Make view and macros anew, with the columns and partition columns that the table has now.

        Raises InvalidOption when the connection is gone, or something else has the name now; DuckDB's
        ConnectionException when it is closed, and the errors of reading the log.
        """
        con = self._source.connection()
        self._source.check_names(con)
        self._source.define(con)

    def detach(self) -> None:
        """Take it away again; what is gone already, or is something else by now, does not matter."""
        con = self._source.con()
        if con is not None and self._source.function in _sources:
            with suppress(duckdb.ConnectionException, InvalidOption):  # closed, or not ours any more
                self._source.check_names(con)
                drop(con, self._source.names)
        self._source.close()


@checks_arguments
def attach(
    con: duckdb.DuckDBPyConnection,
    table: str | os.PathLike[str] | Table,
    name: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
    log_storage_options: Mapping[str, str] | None = None,
    date_macro: str | None = None,
    date_columns: Sequence[str] | None = None,
) -> Attached:
    """Let the queries of a DuckDB connection see a table under this name.

    The view `name` has the columns of `t`. The macro `name(...)` has them as they are at each query, and takes
    `as_of` (TIMESTAMPTZ; TIMESTAMP, which is meant in UTC; text with a zone; unix milliseconds), `filter` (a predicate
    over all columns, as text: parts that cannot hold such rows are not opened) and every partition column: the value
    that it shall have, or a list of them; NULL is any, `[NULL]` is null. A partition column that is called as_of or
    filter is no parameter; ask for it in `filter`.

    `date_macro` is the name of another macro, by which programs of IceDB v2 ask for days, as `icedb`:
    `icedb(start_year := 2026, start_month := 2, start_day := 1, end_year := 2026, end_month := 8, end_day := 1)`. The
    end is within, a month or day that is left out is 1. `date_columns` are its partition columns: year, month and day,
    or one date; None: they are found.

    A bucket is read with a secret for the table's prefix, renewed while the connection lives. What is attached by the
    same name is replaced. The connection is not kept alive; keep it, if only cursors of it are used.

    Raises MissingExtra without numpy, InvalidOption for a name that something else has, TableNotFound, the store's
    errors, and DuckDB's.
    """
    import_optional("numpy", extra="duckdb")
    if not isinstance(con, duckdb.DuckDBPyConnection):
        raise InvalidOption(f"{name}: {type(con).__name__} is no connection of DuckDB. Give one: duckdb.connect().")
    if not isinstance(table, Table):
        table = Table.open(
            table,
            storage_options=storage_options,
            credential_provider=credential_provider,
            log_storage_options=log_storage_options,
        )
    elif any(given is not None for given in (storage_options, credential_provider, log_storage_options)):
        raise InvalidOption(f"{table.uri}: the table is open already; give options of the store with its address.")
    names = Names.of(con, name, date_macro, table=table.uri)
    replaced = _replaced(con, names)
    source = _Source(con, table.handle, names, date_columns)
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
    """Take away what is attached under this name. Raises InvalidOption when nothing is."""
    sources = [s for f in functions_behind(con, name) if (s := _sources.get(f)) is not None and s.names.name == name]
    if not sources:
        raise InvalidOption(f"{name}: no table is attached under this name here. Correct the name.")
    drop(con, sources[0].names)
    sources[0].close()


def _replaced(con: duckdb.DuckDBPyConnection, names: Names) -> list[_Source]:
    """What is attached under these names. Raises InvalidOption when one is somebody else's."""
    found: dict[str, _Source] = {}
    for name in names.all:
        for function in functions_behind(con, name):
            source = _sources.get(function)
            if source is not None and source.names.name.casefold() != names.name.casefold():
                raise InvalidOption(
                    f"{name}: the table attached as '{source.names.name}' has a macro of this name. Choose another, or "
                    "detach that."
                )
            if source is not None:
                found[function] = source
    return list(found.values())


class _Source:
    """An attached table, as DuckDB's function holds it: without the connection, which holds the function."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, handle: Handle, names: Names, dates: Sequence[str] | None
    ) -> None:
        self.handle, self.names = handle, names
        self.con = weakref.ref(con, self._connection_is_gone)
        self._date_columns = dates
        #: Held while view and macros are made: DuckDB binds them then, and may find that the columns have changed.
        self._defining = threading.Lock()
        self._access = Access(con, handle.location)
        self.answers = Answers(handle, self._access)
        self.answers.when_columns_change = self._columns_changed
        self.function = FUNCTION + SystemClock().new_id()
        con.create_function(
            self.function,
            _answer,
            ["VARCHAR", "UBIGINT", "VARCHAR[]"],
            "VARCHAR",
            null_handling=FunctionNullHandling.SPECIAL,
        )
        _sources[self.function] = self

    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection. Raises InvalidOption when there is none any more, or nothing is attached any more."""
        con = self.con()
        if con is None or self.function not in _sources:
            gone = "the connection it was attached to is gone" if con is None else "it was detached or replaced"
            raise InvalidOption(f"{self.handle.table}: {gone}. Attach the table anew.")
        return con

    def define(self, con: duckdb.DuckDBPyConnection) -> None:
        """View and macros for the columns of now."""
        with self._defining:
            self._define(con)

    def _define(self, con: duckdb.DuckDBPyConnection) -> None:
        snapshot = take_snapshot(self.handle)
        columns = columns_of(snapshot)
        macros = {self.names.name: self._macro()}
        if self.names.date_macro is not None:
            self.answers.dates = found_date_columns(
                snapshot.partition_schema, self._date_columns, table=self.handle.table
            )
            macros[self.names.date_macro] = self._date_macro()
        answers, before = self.answers, self.answers.view
        answers.views.append(columns)
        answers.view = len(answers.views) - 1  # first, for DuckDB binds what it is told to make
        try:
            self._create(con, columns, macros)
        except BaseException:
            answers.view = before
            raise

    def _create(
        self, con: duckdb.DuckDBPyConnection, columns: Mapping[str, str], macros: Mapping[str, tuple[list[str], str]]
    ) -> None:
        selected = ", ".join(map(quote_name, columns)) or NOTHING
        asked = self._asked(VIEW, quote_text(str(self.answers.view)))
        con.execute(f"{self.names.create} VIEW {quote_name(self.names.name)} AS SELECT {selected} FROM {asked}")
        for name, (parameters, asked) in macros.items():
            defaults = ", ".join(f"{quote_name(p)} := NULL" for p in parameters)
            con.execute(f"{self.names.create} MACRO {quote_name(name)}({defaults}) AS TABLE SELECT * FROM {asked}")

    def _macro(self) -> tuple[list[str], str]:
        """Parameters, and what is asked with them."""
        names = [e.name for e in self.handle.expressions if e.name.casefold() not in (_AS_OF, _FILTER)]
        given = [f"typeof({_AS_OF})", f"CAST({_AS_OF} AS VARCHAR)", f"CAST({quote_name(_FILTER)} AS VARCHAR)"]
        for name in names:
            value = quote_name(name)
            given += [quote_text(name), f"typeof({value})", f"CAST({value} AS VARCHAR)"]
        return [_AS_OF, _FILTER, *names], self._asked(MACRO, *given)

    def _date_macro(self) -> tuple[list[str], str]:
        of_days = [f"CAST({parameter} AS VARCHAR)" for parameter in _RANGE]
        given = [f"typeof({_AS_OF})", f"CAST({_AS_OF} AS VARCHAR)", f"CAST({quote_name(_FILTER)} AS VARCHAR)"]
        return [*_RANGE, _AS_OF, _FILTER], self._asked(RANGE, *given, *of_days)

    def _asked(self, who: str, *given: str) -> str:
        """The rows, to select from. By its transaction's id DuckDB asks anew, and the same in all of a transaction."""
        arguments = ", ".join([quote_text(who), "current_setting('TimeZone')", *given])
        return f"query({self.function}({quote_text(self.function)}, current_transaction_id(), [{arguments}]))"

    def check_names(self, con: duckdb.DuckDBPyConnection) -> None:
        """Raise InvalidOption if something else has one of the names."""
        for name in self.names.all:
            if any(function != self.function for function in functions_behind(con, name)):
                raise InvalidOption(f"{name}: another table is attached under this name now. Choose another name.")

    def _columns_changed(self) -> None:
        """View and macros anew, for the statements after the one that is being bound."""
        con = self.con()
        if con is None or self.names.temporary:  # a cursor does not see what is temporary
            return
        # Two who make the same view are a conflict, for whichever of them is later.
        if not self._defining.acquire(blocking=False):
            return  # the next query tries again
        try:
            with con.cursor() as cursor:
                self.check_names(cursor)
                self._define(cursor)
        except (duckdb.Error, InvalidOption) as error:  # somebody else is changing it: the next query tries again
            _log.info("the view '%s' was not made anew: %s", self.names.name, str(error).splitlines()[0])
        finally:
            self._defining.release()

    def close(self) -> None:
        """Answer no more."""
        con = self.con()
        self._access.close(drop=con is not None and not self._is_attached_otherwise(con))
        if _sources.pop(self.function, None) is not None and con is not None:
            with suppress(duckdb.Error):  # closed, and with it the function is gone
                con.remove_function(self.function)

    def _is_attached_otherwise(self, con: duckdb.DuckDBPyConnection) -> bool:
        """Whether the table is attached to this DuckDB once more, under another name, so that its secret is needed."""
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
