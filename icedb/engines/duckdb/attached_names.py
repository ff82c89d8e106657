"""The names under which a table is attached, and who has them in a database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from icedb.errors import InvalidOption
from icedb.sql.connections import quote_name

__all__ = ["FUNCTION", "Names", "drop", "drop_macros", "functions_behind"]

#: What the names of our functions begin with; 32 hexadecimal digits follow.
FUNCTION = "__icedb_"
_OUR_SQL = re.compile(rf'\bquery\("?({FUNCTION}[0-9a-f]{{32}})"?\(')

_HERE = "database_name IN (current_database(), 'temp') AND schema_name IN (current_schema(), 'main')"
# Whatever has a name where a query would look for it: kind and SQL.
_OF_NAME = f"""
    SELECT 'view', sql FROM duckdb_views() WHERE lower(view_name) = lower($name) AND NOT internal AND {_HERE}
    UNION ALL SELECT 'table', NULL FROM duckdb_tables() WHERE lower(table_name) = lower($name) AND {_HERE}
    UNION ALL SELECT if(internal, 'table function', 'table macro'), macro_definition FROM duckdb_functions()
        WHERE lower(function_name) = lower($name) AND function_type IN ('table', 'table_macro')
            AND (internal OR {_HERE})
"""


@dataclass(frozen=True, slots=True)
class Names:
    """What is made in the database: a view and a macro of one name, and perhaps another macro."""

    name: str
    date_macro: str | None
    #: In a database file nothing may stay that needs a function of this process.
    temporary: bool

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, name: str, date_macro: str | None, *, table: str) -> Names:
        """The names, for the database that the connection uses now. Raises InvalidOption."""
        for given in (name,) if date_macro is None else (name, date_macro):
            if not isinstance(given, str) or not given or "\0" in given:
                raise InvalidOption(f"{table}: {given!r} cannot be the name of a view or macro. Give it another.")
        if date_macro is not None and date_macro.casefold() == name.casefold():
            raise InvalidOption(f"{table}: '{name}' cannot be the name of both macros. Give date_macro another.")
        path = con.execute("SELECT path FROM duckdb_databases() WHERE database_name = current_database()").fetchone()
        return cls(name, date_macro, temporary=path != (None,))

    @property
    def create(self) -> str:
        """How a statement begins that makes a view or macro."""
        return "CREATE OR REPLACE TEMP" if self.temporary else "CREATE OR REPLACE"

    @property
    def all(self) -> tuple[str, ...]:
        """Every name."""
        return (self.name,) if self.date_macro is None else (self.name, self.date_macro)


def functions_behind(con: duckdb.DuckDBPyConnection, name: str) -> Iterator[str]:
    """The functions of ours that view and macro of this name ask. Raises InvalidOption when one is somebody else's."""
    for kind, sql in con.execute(_OF_NAME, {"name": name}).fetchall():
        found = _OUR_SQL.search(sql or "")
        if found is None:
            raise InvalidOption(f"{name}: there is a {kind} of this name in the database. Choose another name.")
        yield found[1]


def drop(con: duckdb.DuckDBPyConnection, names: Names) -> None:
    """Take away the view and the macros of these names."""
    con.execute(f"DROP VIEW IF EXISTS {quote_name(names.name)}")
    drop_macros(con, names)


def drop_macros(con: duckdb.DuckDBPyConnection, names: Names, *, but: Names | None = None) -> None:
    """Take away the macros of these names, but for those whose names others have now."""
    kept = {name.casefold() for name in (() if but is None else but.all)}
    for name in names.all:
        if name.casefold() not in kept:
            con.execute(f"DROP MACRO TABLE IF EXISTS {quote_name(name)}")
