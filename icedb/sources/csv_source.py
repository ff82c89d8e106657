"""Conversion of CSV files into a batch.

The first line has the names. The delimiter is that of `,`, `;`, tab and `|` which occurs most often in it. All fields
are read as text, so invalid lines are detected, and no type is guessed from a sample. A column of the table stays text,
which is converted to the table's type later. A new column has the type that all its texts have: BIGINT, DOUBLE,
BOOLEAN, DATE, TIME, TIMESTAMP (ISO 8601), else text. So `007` stays text, and no number is rounded. An empty field is
null, a quoted empty field is empty text.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import duckdb

from icedb.errors import IceDBError, InvalidBatch
from icedb.sources.batch import Batch
from icedb.sources.files import FILE_COLUMN, FileInput, first_line, no_values, partition_sql, select_list, stream
from icedb.sources.inference.value_types import is_exact_double
from icedb.sql.connections import quote_name, quote_text

__all__ = ["open_csv"]

_DELIMITERS = ",;\t|"
_DAY = r"\d{4}-\d{2}-\d{2}"
_TIME = r"\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_NUMBER = r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?"
# The patterns that all texts of a column must match for a type, besides being castable to it.
_PATTERNS = {
    "BIGINT": r"0|-?[1-9]\d*",
    "DOUBLE": _NUMBER,
    "BOOLEAN": r"(?i)true|false",
    "DATE": _DAY,
    "TIME": _TIME,
    "TIMESTAMP": rf"{_DAY}[ T]{_TIME}",
    "TIMESTAMP WITH TIME ZONE": rf"{_DAY}[ T]{_TIME}(Z|[+-]\d{{2}}(:?\d{{2}})?)",
}
# A number of up to 15 digits and no exponent is certainly a double. The others are checked one by one.
_SURE_DIGITS = 15
_FIRST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class _CsvFileGroup:
    """Files of the same first line."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    delimiter: str

    @property
    def relation(self) -> str:
        paths = ", ".join(map(quote_text, self.paths))
        columns = ", ".join(f"{quote_text(n)}: 'VARCHAR'" for n in self.names)
        return (
            f"read_csv([{paths}], auto_detect = false, columns = {{{columns}}}, header = true, "
            f"delim = {quote_text(self.delimiter)}, quote = '\"', escape = '\"', nullstr = '', "
            f"allow_quoted_nulls = false, hive_partitioning = false, filename = {quote_text(FILE_COLUMN)})"
        )


def open_csv(reading: FileInput, *, failed: Callable[[IceDBError], None]) -> Batch:
    """Open CSV files as a batch. Raises InvalidBatch."""
    groups = _groups(reading)
    columns = dict.fromkeys(n for g in groups for n in g.names)
    from_paths = partition_sql(reading, dict.fromkeys(columns, ""))
    types = _types(reading, groups, [c for c in columns if c not in reading.table_columns])
    typed = {c: f"CAST({quote_name(c)} AS {t})" for c, t in types.items() if t}
    stored = {c: types.get(c, "VARCHAR") for c in columns}
    nothing, untyped = no_values(stored), [c for c, t in stored.items() if not t]
    selects = []
    for group in groups:
        own = {c: typed.get(c, quote_name(c)) for c in group.names if c in reading.table_columns or types[c]}
        selects.append(f"{select_list(own | from_paths or nothing)} FROM {group.relation}")
    return Batch(
        stream(reading, "\nUNION ALL BY NAME\n".join(selects), failed=failed, untyped=untyped),
        parsed=frozenset(c for c in (*columns, *from_paths) if c in reading.table_columns or types.get(c) == "VARCHAR"),
        source=reading.files.summary,
    )


def _groups(reading: FileInput) -> list[_CsvFileGroup]:
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for path in reading.files.paths:
        line = first_line(reading, path)
        if not line.strip():
            continue
        delimiter = max(_DELIMITERS, key=lambda d: len(next(csv.reader([line], delimiter=d))))
        names = tuple(next(csv.reader([line], delimiter=delimiter)))
        _check_names(reading, path, names)
        groups.setdefault((delimiter, names), []).append(path)
    if not groups:
        raise InvalidBatch(f"{reading.table}: {reading.files.summary} has no line, so no column. Leave it out.")
    return [_CsvFileGroup(tuple(paths), names, delimiter) for (delimiter, names), paths in groups.items()]


def _check_names(reading: FileInput, path: str, names: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name.strip():
            problem = "an empty name"
        elif name.casefold() in seen:
            problem = f"the name '{name}' twice"
        elif name == FILE_COLUMN:
            problem = f"the reserved name '{name}'"
        else:
            seen.add(name.casefold())
            continue
        raise InvalidBatch(
            f"{reading.table}: the first line of '{path}' has {problem}. It must have the columns' names."
        )


def _types(reading: FileInput, groups: list[_CsvFileGroup], columns: list[str]) -> Mapping[str, str]:
    """Return column -> the type of its texts; an empty one if there is no text."""
    if not columns:
        return {}
    left = {c: tuple(_PATTERNS) for c in columns}
    # The first rows rule out most types, so few types are tested for all rows.
    _, left = _fitting(reading, groups, left, f"LIMIT {_FIRST_ROWS}")
    values, left = _fitting(reading, groups, left, "")
    types = {c: (left[c] or ("VARCHAR",))[0] if values[c] else "" for c in columns}
    doubles = [c for c, t in types.items() if t == "DOUBLE"]
    return types | {c: "VARCHAR" for c in doubles if not _are_doubles(reading, groups, c)}


def _fitting(
    reading: FileInput, groups: list[_CsvFileGroup], types: Mapping[str, tuple[str, ...]], limit: str
) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Return column -> the number of its texts, and column -> the types that all of its texts have."""
    figures = [(c, t, f"count(*) FILTER ({_test(c, t)})") for c, own in types.items() for t in own]
    figures += [(c, "", f"count({quote_name(c)})") for c in types]
    texts = f"SELECT * FROM ({_texts(groups, list(types))}) {limit}"
    try:
        row = reading.con.execute(f"SELECT {', '.join(sql for *_, sql in figures)} FROM ({texts})").fetchone()
    except duckdb.Error as error:
        reading.refuse(error)
    counts = {(c, t): count for (c, t, _), count in zip(figures, row or (), strict=True)}
    fitting = {c: tuple(t for t in own if counts[c, t] == counts[c, ""]) for c, own in types.items()}
    return {c: counts[c, ""] for c in types}, fitting


def _texts(groups: list[_CsvFileGroup], columns: list[str]) -> str:
    of_group = ([c for c in columns if c in g.names] for g in groups)
    selects = (
        f"SELECT {', '.join(map(quote_name, own)) or 'NULL AS nothing'} FROM {g.relation}"
        for g, own in zip(groups, of_group, strict=True)
    )
    return "\nUNION ALL BY NAME\n".join(selects)


def _test(column: str, type_: str) -> str:
    name = quote_name(column)
    return f"regexp_full_match({name}, {quote_text(_PATTERNS[type_])}) AND TRY_CAST({name} AS {type_}) IS NOT NULL"


def _are_doubles(reading: FileInput, groups: list[_CsvFileGroup], column: str) -> bool:
    name = quote_name(column)
    unsure = f"length(regexp_replace({name}, '[^0-9]', '', 'g')) > {_SURE_DIGITS} OR regexp_matches({name}, '[eE]')"
    numbers = reading.con.execute(f"SELECT {name} FROM ({_texts(groups, [column])}) WHERE {unsure}")
    while rows := numbers.fetchmany(10_000):
        if not all(is_exact_double(text) for (text,) in rows):
            return False
    return True
