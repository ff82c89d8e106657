"""The names under which a table is attached, and the owner of each name in a database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name

__all__ = ["FUNCTION", "AttachedNames", "drop", "drop_macros", "functions_behind"]

#: The prefix of our functions' names; 32 hexadecimal digits follow.
FUNCTION = "__icedb_"
_OUR_SQL = re.compile(rf'\bquery\("?({FUNCTION}[0-9a-f]{{32}})"?\(')

_HERE = "database_name IN (current_database(), 'temp') AND schema_name IN (current_schema(), 'main')"
# The kind and SQL of all objects that a query would find under a name.
_OF_NAME = f"""
    SELECT 'view', sql FROM duckdb_views() WHERE lower(view_name) = lower($name) AND NOT internal AND {_HERE}
    UNION ALL SELECT 'table', NULL FROM duckdb_tables() WHERE lower(table_name) = lower($name) AND {_HERE}
    UNION ALL SELECT if(internal, 'table function', 'table macro'), macro_definition FROM duckdb_functions()
        WHERE lower(function_name) = lower($name) AND function_type IN ('table', 'table_macro')
            AND (internal OR {_HERE})
"""


@dataclass(frozen=True, slots=True)
class AttachedNames:
    """The names of the objects that `attach` creates: a view and a macro of one name, and optionally a second macro."""

    name: str
    date_macro: str | None
    #: Whether the objects are temporary: a database file must not keep objects that need a function of this process.
    temporary: bool

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, name: str, date_macro: str | None, *, table: str) -> AttachedNames:
        """Return the names, for the connection's current database. Raises InvalidOption."""
        for text in (name,) if date_macro is None else (name, date_macro):
            if not isinstance(text, str) or not text or "\0" in text:
                raise InvalidOption(f"{table}: {text!r} cannot be the name of a view or macro. Choose another name.")
        if date_macro is not None and date_macro.casefold() == name.casefold():
            raise InvalidOption(f"{table}: '{name}' cannot be the name of both macros. Choose another date_macro.")
        path = con.execute("SELECT path FROM duckdb_databases() WHERE database_name = current_database()").fetchone()
        return cls(name, date_macro, temporary=path != (None,))

    @property
    def create(self) -> str:
        """The beginning of a statement that creates a view or macro."""
        return "CREATE OR REPLACE TEMP" if self.temporary else "CREATE OR REPLACE"

    @property
    def all(self) -> tuple[str, ...]:
        """All names."""
        return (self.name,) if self.date_macro is None else (self.name, self.date_macro)


def functions_behind(con: duckdb.DuckDBPyConnection, name: str) -> Iterator[str]:
    """Return our functions that the view and macro of this name call. Raises InvalidOption if another object has the
    name.
    """
    for kind, sql in con.execute(_OF_NAME, {"name": name}).fetchall():
        call = _OUR_SQL.search(sql or "")
        if call is None:
            raise InvalidOption(f"{name}: there is a {kind} of this name in the database. Choose another name.")
        yield call[1]


def drop(con: duckdb.DuckDBPyConnection, names: AttachedNames) -> None:
    """Drop the view and the macros of these names."""
    con.execute(f"DROP VIEW IF EXISTS {quote_name(names.name)}")
    drop_macros(con, names)


def drop_macros(con: duckdb.DuckDBPyConnection, names: AttachedNames, *, but: AttachedNames | None = None) -> None:
    """Drop the macros of these names, except names that `but` uses now."""
    kept = {name.casefold() for name in (() if but is None else but.all)}
    for name in names.all:
        if name.casefold() not in kept:
            con.execute(f"DROP MACRO TABLE IF EXISTS {quote_name(name)}")
