"""The names that the library's own SQL uses, read from its sources, so that a new one is tested as a column at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NAMES", "names_in"]

ROOT = Path(__file__).parents[3]

_IS_SQL = re.compile(r"\b(SELECT|FROM|WHERE|GROUP BY|ORDER BY|CREATE|COPY|JOIN|WITH)\b")
# An alias or a relation after a keyword; an alias without AS after a subquery or a table function; a field of a row.
_USES = re.compile(
    r"\b(?:AS|FROM|TABLE|VIEW|INTO|JOIN|WITH)\s+\(?(?P<named>[A-Za-z_]\w*)\b(?!\()"
    r"|[)}]\s+(?P<alias>[a-z_]\w*)(?=[\s,)]|$)"
    r"|\b(?P<row>[a-z_]\w*)\.[a-z_{]"
)
#: DuckDB's and ClickHouse's virtual columns, relations that callers name, words that DuckDB takes for a function, and
#: SQL's own keywords.
_BESIDES = (
    "filename", "file_row_number", "file_index", "rowid", "_path", "_file", "t", "final", "_rows", "source_files", "b",
    "user", "current_date", "value", "columns", "all", "select", "from", "group", "order", "exclude", "struct", "count",
    "unnest", "__time",
)  # fmt: skip


def names_in(*folders: str) -> set[str]:
    """Return the aliases, relations and qualifiers in the SQL texts of these folders' modules, in lower case."""
    sources = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    trees = (ast.parse(source) for source in sources if _IS_SQL.search(source))
    names = {name for tree in trees for text in _texts(tree) for name in _names(text)}
    return {name for name in names if not name.startswith("__icedb_")}


def _texts(tree: ast.Module) -> Iterator[str]:
    """Return the string literals. Values in f-strings are `{}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n\n" not in node.value:
            yield node.value


def _names(text: str) -> Iterator[str]:
    if _IS_SQL.search(text):
        for use in _USES.finditer(text):
            yield str(use[use.lastgroup or 0]).lower()


#: Sorted, each once.
NAMES = tuple(sorted(names_in("icedb", "icedb_dagster") | set(_BESIDES)))
