"""Lossless conversions between column types, and SQL that finds the values which cannot be converted.

Conversions are SQL and are checked by value: converted back, a value must be the same. `widening` decides which pairs
of types are convertible: numbers to wider numbers, dates to timestamps, structs to structs with more fields. A JSON
column of a batch has values of several types (see `icedb.sources.python_rows`), and each value is checked separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

from icedb.errors import SchemaConflict
from icedb.sql.connections import quote_name, quote_text

__all__ = [
    "EXAMPLE_LENGTH_MAX",
    "MIXED",
    "Conversion",
    "convert",
    "convert_answer",
    "fit_answer",
    "from_text",
    "keeps_all",
    "lossless",
    "stringify",
    "widening",
]

#: The number of characters of a value in an error.
EXAMPLE_LENGTH_MAX = 80
#: The type of a column whose values have several types.
MIXED = "JSON"

_SIGNED = {"tinyint": 7, "smallint": 15, "integer": 31, "bigint": 63, "hugeint": 127}
_UNSIGNED = {"utinyint": 8, "usmallint": 16, "uinteger": 32, "ubigint": 64, "uhugeint": 128}
_INTEGERS = _SIGNED | _UNSIGNED
# The number of bits of the integers that the type represents exactly.
_EXACT_BITS = {"float": 24, "double": 53}
_NESTED = ("struct", "list", "array", "map")
_JSON_NUMBERS = "'BIGINT', 'UBIGINT', 'DOUBLE'"
# The number of digits that distinguish a binary fraction from its neighbours. The type cannot represent more.
_DIGITS = {"float": 9, "double": 17}
_DAY, _CLOCK = "[0-9]{4,}-[0-9]{2}-[0-9]{2}", "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{0,6}0*)?)?"
# The text of a time without a zone must not have one, and the text of a time with a zone must.
_TIMES = {
    "date": _DAY,
    "time": _CLOCK,
    "timestamp": f"{_DAY}([T ]{_CLOCK})?",
    "timestamp_ns": f"{_DAY}([T ]{_CLOCK.replace('6', '9')})?",
    "timestamp with time zone": f"{_DAY}[T ]{_CLOCK} ?(Z|UTC|[+-][0-9]{{2}}(:?[0-9]{{2}})?)",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of a column to the type `target`, as SQL over the column's name.

    `sql` is null for a value that does not fit, and `misfit` is true for it. `misfit` is empty if every value fits.
    """

    column: str
    source: str
    target: str
    sql: str
    misfit: str = ""


def convert(column: str, source: str, target: str, *, parsed: bool, text: bool) -> Conversion | None:
    """Return the conversion of a column, or None if no value of `source` can become a `target`.

    `parsed`: the column is text of a file without types, so it may be parsed as any type. `text`: values of any type
    may become text.
    """
    name = quote_name(column)
    if source == MIXED and target != MIXED:
        return _of_mixed(column, target, text=text)
    if parsed and source == "VARCHAR":
        return from_text(column, target)
    if widening(source, target):
        return lossless(column, source, target)
    if text and target == "VARCHAR":
        return Conversion(column, source, target, stringify(name, source))
    return None


def convert_answer(column: str, source: str, target: str) -> Conversion | None:
    """Return the lossless conversion of a query's result column to the table's type, or None if there is none."""
    if widening(source, target) or (_is_number(source) and _is_number(target)):
        return lossless(column, source, target)
    if target == "VARCHAR" and (source == MIXED or source.startswith("ENUM(")):
        return Conversion(column, source, target, stringify(quote_name(column), source))
    return None


def fit_answer(
    con: duckdb.DuckDBPyConnection, answer: str, column: str, source: str, target: str, *, table: str, what: str
) -> Conversion:
    """Return the conversion of a column in the relation `answer`, the result of a query, to the table's type.

    `what` names the result in the message. Raises SchemaConflict if no value can be converted without loss.
    """
    conversion = convert_answer(column, source, target)
    if conversion is not None:
        return conversion
    if con.execute(f"SELECT count({quote_name(column)}) FROM {answer}").fetchone() == (0,):
        return Conversion(column, source, target, f"CAST(NULL AS {target})")  # DuckDB gives a bare NULL some type
    raise SchemaConflict(
        f"{table}: column '{column}' is {target} in the table and {source} in {what}. Cast it to {target} in the "
        "query, or give it another name with AS. Nothing was changed.",
        column=column,
        types=(target, source),
    )


def _is_number(type_: str) -> bool:
    return _type(type_).id in (*_INTEGERS, *_EXACT_BITS, "decimal")


def lossless(column: str, source: str, target: str) -> Conversion:
    """Return a cast that rejects the values which it would change."""
    name = quote_name(column)
    if keeps_all(source, target):
        return Conversion(column, source, target, f"CAST({name} AS {target})")
    cast = f"TRY_CAST({name} AS {target})"
    back = f"TRY_CAST({cast} AS {source})"
    return Conversion(column, source, target, cast, f"({name} IS NOT NULL AND {back} IS DISTINCT FROM {name})")


def stringify(name: str, source: str) -> str:
    """Return SQL that converts a value to text: JSON for nested types, DuckDB's text for others."""
    if source == MIXED:
        return _text_of_json(name)
    return f"CAST(to_json({name}) AS VARCHAR)" if _type(source).id in _NESTED else f"CAST({name} AS VARCHAR)"


def from_text(column: str, target: str) -> Conversion:
    """Return the conversion of text, which rejects a text unless the value represents all of it."""
    name = quote_name(column)
    fits = _text_fits(name, target)
    sql = f"CASE WHEN {fits} THEN TRY_CAST({name} AS {target}) END"
    return Conversion(column, "VARCHAR", target, sql, f"({name} IS NOT NULL AND NOT {fits})")


def _text_of_json(name: str) -> str:
    """Return SQL of a JSON value as text: a string without its quotes, a number with all its digits."""
    return f"CASE WHEN json_type({name}) = 'VARCHAR' THEN {name} ->> '$' ELSE CAST({name} AS VARCHAR) END"


def _of_mixed(column: str, target: str, *, text: bool) -> Conversion:
    """Return the conversion of a JSON column, for each value by its JSON type."""
    name = quote_name(column)
    plain, kind = f"({_text_of_json(name)})", f"json_type({name})"
    type_ = _type(target)
    if type_.id in _NESTED:
        cast = f"TRY_CAST({name} AS {target})"
        # Containment compares numbers as binary fractions, so it is only used if all numbers are short.
        same = f"json_contains(to_json({cast}), {name}) AND NOT regexp_matches({plain}, '[0-9][0-9.]{{15}}')"
        condition = f"{kind} IN ('OBJECT', 'ARRAY') AND (CAST(to_json({cast}) AS VARCHAR) = {plain} OR ({same}))"
    else:
        cast = f"TRY_CAST({plain} AS {target})"
        condition = "true" if text and type_.id == "varchar" else f"{_json_kinds(kind, type_.id)}"
        condition += f" AND {_text_fits(plain, target)}"
    condition = f"coalesce({condition}, false)"
    null = f"({name} IS NULL OR {kind} = 'NULL')"
    return Conversion(
        column, MIXED, target, f"CASE WHEN {null} OR NOT ({condition}) THEN NULL ELSE {cast} END",
        f"(NOT {null} AND NOT ({condition}))",
    )  # fmt: skip


def _json_kinds(kind: str, type_id: str) -> str:
    if type_id == "boolean":
        return f"{kind} = 'BOOLEAN'"
    if type_id in _INTEGERS or type_id in _EXACT_BITS:
        return f"{kind} IN ({_JSON_NUMBERS})"
    return f"{kind} IN ({_JSON_NUMBERS}, 'VARCHAR')" if type_id == "decimal" else f"{kind} = 'VARCHAR'"


def _text_fits(text: str, target: str) -> str:
    """Return SQL of whether a text is exactly a value of `target`."""
    type_ = _type(target)
    castable = f"TRY_CAST({text} AS {target}) IS NOT NULL"
    if type_.id == "varchar":
        return f"json_valid({text})" if target == MIXED else "true"
    if type_.id in _INTEGERS:
        wanted = _matches(text, "[+-]?[0-9]+")
    elif type_.id == "decimal":
        digits = f"length(rtrim(regexp_extract({text}, '[.]([0-9]*)$', 1), '0'))"
        wanted = f"{_matches(text, '[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)')} AND {digits} <= {_scale(type_)}"
    elif type_.id in _EXACT_BITS:
        digits = f"length(ltrim(regexp_replace(split_part(lower({text}), 'e', 1), '[^0-9]', '', 'g'), '0'))"
        number = _matches(text, "[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")
        finite = f"isfinite(TRY_CAST({text} AS {target})) AND {digits} <= {_DIGITS[type_.id]}"
        wanted = f"(({number} AND {finite}) OR {_matches(text.join(('lower(', ')')), '[+-]?(nan|inf|infinity)')})"
    elif type_.id in _TIMES:
        wanted = _matches(text, _TIMES[type_.id])
    elif type_.id == "boolean":
        wanted = f"lower({text}) IN ('true', 'false')"
    elif type_.id == "uuid":
        wanted = "true"
    else:  # types with many spellings must have DuckDB's
        wanted = f"replace(CAST(TRY_CAST({text} AS {target}) AS VARCHAR), ' ', '') = replace({text}, ' ', '')"
    return f"coalesce({wanted} AND {castable}, false)"


def _matches(text: str, pattern: str) -> str:
    return f"regexp_full_match({text}, {quote_text(pattern)})"


def widening(source: str, target: str) -> bool:
    """Return whether all or most values of `source` are values of `target`, so that a check by value is useful."""
    return _widens(_type(source), _type(target))


def _widens(source: Any, target: Any) -> bool:
    if str(source) == str(target):
        return True
    if target.id in _INTEGERS:
        return source.id in _INTEGERS and _range(source.id, target.id)
    if target.id == "decimal":
        return source.id in _INTEGERS or (source.id == "decimal" and _scale(target) >= _scale(source))
    if target.id in _EXACT_BITS:
        return source.id in _INTEGERS or source.id == "decimal" or (source.id, target.id) == ("float", "double")
    if target.id == "timestamp":
        return source.id in ("date", "timestamp_s", "timestamp_ms", "timestamp")
    if source.id == target.id == "struct":
        ours = {name.casefold(): type_ for name, type_ in target.children}
        if not any(name.casefold() in ours for name, _ in source.children):
            return False  # no common field
        # A field that the target lacks may be null in every row. The check by value finds the others.
        return all(_widens(type_, ours.get(name.casefold(), type_)) for name, type_ in source.children)
    if source.id == target.id and source.id in ("list", "map"):
        return all(_widens(s, t) for (_, s), (_, t) in zip(source.children, target.children, strict=True))
    return False


def keeps_all(source: str, target: str) -> bool:
    """Return whether each value of the type `source` is a value of `target`: an INTEGER is a BIGINT."""
    return _keeps_all(_type(source), _type(target))


def _keeps_all(source: Any, target: Any) -> bool:
    if source.id in _INTEGERS and target.id in _INTEGERS:
        return _range(source.id, target.id)
    if source.id in _INTEGERS and target.id in _EXACT_BITS:
        return _INTEGERS[source.id] <= _EXACT_BITS[target.id]
    if source.id == target.id == "decimal":
        return _whole_digits(target) >= _whole_digits(source) and _scale(target) >= _scale(source)
    return (source.id, target.id) in (("float", "double"), ("timestamp_s", "timestamp"), ("timestamp_ms", "timestamp"))


def _range(source: str, target: str) -> bool:
    return _INTEGERS[source] <= _INTEGERS[target] and not (source in _SIGNED and target in _UNSIGNED)


def _scale(type_: Any) -> int:
    return int(dict(type_.children)["scale"])


def _whole_digits(type_: Any) -> int:
    return int(dict(type_.children)["precision"]) - _scale(type_)


@lru_cache(maxsize=4096)
def _type(text: str) -> Any:
    return duckdb.sqltype(text)
