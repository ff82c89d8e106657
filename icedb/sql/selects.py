"""Checks of callers' queries over a snapshot: one SELECT, and with `sandbox` one that reads the table alone.

The check uses DuckDB's parser, which returns the kind of each statement and, in its syntax tree, the functions. The
connection that runs the query is a second barrier. It downloads nothing, and its settings are locked. With `sandbox` it
opens the snapshot's parts and no other file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb

from icedb.errors import InvalidOption
from icedb.sql.expressions import syntax_tree, walk
from icedb.sql.user_queries import check_reads

__all__ = ["check_select"]

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(\([\w\s,]*\)\s*)?", re.IGNORECASE)
# Functions of a SELECT that write, change the connection, or run SQL from a text.
_ACTS = frozenset((
    "add_parquet_key", "checkpoint", "copy_database", "force_checkpoint", "import_database",
    "json_execute_serialized_sql", "query", "query_table", "truncate_duckdb_logs", "write_log",
))  # fmt: skip
_SWITCHES = ("disable_", "enable_", "verify_")
_WORD = re.compile(r"\w+")


def check_select(
    con: duckdb.DuckDBPyConnection, sql: str, *, table: str, sandbox: bool = False, relation: str = "t"
) -> None:
    """Raise InvalidOption unless `sql` is one SELECT, or EXPLAIN of one. Raise InvalidQuery if a sandbox rejects it.

    `relation` is the name of the rows in `sql`. In a sandbox it is "t".

    DESCRIBE, SUMMARIZE, VALUES, FROM and PIVOT are SELECTs, too. A sandbox rejects DESCRIBE, SUMMARIZE, EXPLAIN, and
    PIVOT without the values to pivot on. Raises DuckDB's errors for invalid SQL.
    """
    if sandbox:
        check_reads(sql, tables=("t", "final"), table=table)
        return
    _check_kinds(con, sql, table, relation)
    if name := next(filter(_acts, _called(sql)), None):
        raise InvalidOption(f"{table}: the query calls {name}(), which does more than read. Leave it out.")


def _check_kinds(con: duckdb.DuckDBPyConnection, sql: str, table: str, relation: str) -> None:
    statements = con.extract_statements(sql)
    # For PIVOT, DuckDB adds a CREATE TYPE statement without text.
    kinds = [s.type for s in statements if s.type != duckdb.StatementType.CREATE or s.query]
    if kinds == [duckdb.StatementType.EXPLAIN] and (prefix := _EXPLAIN.match(sql)) is not None:
        kinds = [s.type for s in con.extract_statements(sql[prefix.end() :])]  # EXPLAIN ANALYZE runs what it explains
    if kinds != [duckdb.StatementType.SELECT]:
        raise InvalidOption(
            f"{table}: the query returns no rows, or is not one SELECT: {sql.strip()[:80]!r}. "
            f"Write one SELECT over {relation}."
        )


def _called(sql: str) -> Iterator[str]:
    """Yield the functions that a query calls in lower case, or every word if DuckDB returns no syntax tree."""
    words = list(map(str.lower, _WORD.findall(sql)))
    if "u&" not in sql.lower() and not any(map(_acts, words)):
        return  # most queries end here: to make the tree takes longer than to run a small query
    tree = syntax_tree(sql)
    if tree.get("error"):
        yield from words
        return
    for node in walk(tree):
        if node.get("class") == "FUNCTION":
            yield str(node["function_name"]).lower()


def _acts(name: str) -> bool:
    return name in _ACTS or name.startswith(_SWITCHES)
