"""The type of a column for which log files record several types: one into which all of them widen without loss.

Only the log's state is read here. A type may widen into one that cannot hold all of its values, such as BIGINT into
DOUBLE. `icedb.operations.integrity.cast_parts` checks later whether the stored values fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from icedb.errors import InvalidOption, SchemaConflict, UnknownColumn, UnsupportedType
from icedb.format.replay import TableState
from icedb.format.table_spec import TableSpec
from icedb.sql.casts import lossless, widening
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.types import describe, storage_type

__all__ = ["RepairedColumn", "choose_types", "common_type"]

# A common type that Parquet does not have, and its replacement with the same numbers.
_INSTEAD = {"HUGEINT": "DECIMAL(38,0)"}


@dataclass(frozen=True, slots=True)
class RepairedColumn:
    """A column for which log files record several `types`, and the `type` that the repair chose."""

    column: str
    types: tuple[str, ...]
    type: str
    #: The log files that record another type than the chosen one.
    log_files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}: {', '.join(self.types)} becomes {self.type}"


def choose_types(state: TableState, requested: Mapping[str, str], spec: TableSpec) -> tuple[RepairedColumn, ...]:
    """Return the chosen type of each column with a conflict. Opens no store.

    Raises SchemaConflict for a column without a common type, UnknownColumn, InvalidOption and UnsupportedType.
    """
    for column, type_ in requested.items():
        if column not in state.schema:
            raise UnknownColumn(
                f"{state.table}: types names '{column}', and the table has no such column (it has "
                f"{sorted(state.schema)})."
            )
        if column not in state.conflicts and state.schema[column] != type_:
            raise InvalidOption(
                f"{state.table}: types names {type_} for the column '{column}', which is {state.schema[column]} in all "
                "log files. Repair changes no column that has one type. Remove it from types."
            )
    _check_case(state)
    return tuple(_choose(state, column, types, requested, spec) for column, types in state.conflicts.items())


def _choose(
    state: TableState, column: str, types: Mapping[str, tuple[str, ...]], requested: Mapping[str, str], spec: TableSpec
) -> RepairedColumn:
    declared = {column: spec.columns[column]} if column in spec.columns else {}
    chosen = requested.get(column) or common_type([*types, *declared.values()], column=column, table=state.table)
    if chosen is None:
        where = " and ".join(f"{t} in {', '.join(map(repr, keys[:3]))}" for t, keys in types.items())
        one, other = list(types)[:2]
        raise SchemaConflict(
            f"{state.table}: column '{column}' is {where}, and no type holds all values without loss. Choose one: "
            f"types={{{column!r}: 'VARCHAR'}} converts every value to text (--type {column}=VARCHAR). Another type is "
            "accepted if each value can be converted to it and back.",
            column=column,
            types=(one, other),
            log_files=(types[one][0], types[other][0]),
        )
    wrong = sorted({key for type_, keys in types.items() if type_ != chosen for key in keys})
    return RepairedColumn(column, tuple(types), chosen, tuple(wrong))


def common_type(types: Sequence[str], *, column: str, table: str) -> str | None:
    """Return a type into which each of these widens without loss, or None. Prefers a type that needs no check of
    values.
    """
    candidates = []
    for candidate in dict.fromkeys(_candidates(types)):
        try:
            stored = storage_type(candidate, column=column, table=table)
        except UnsupportedType:
            continue
        if all(t == stored or _widens(t, stored) for t in types):
            candidates.append(stored)
    sure = [c for c in candidates if not any(t != c and lossless(column, t, c).misfit for t in types)]
    return next(iter([*sure, *candidates]), None)


def _widens(source: str, target: str) -> bool:
    return widening(source, target) or (target == "VARCHAR" and (source == "JSON" or source.startswith("ENUM(")))


def _candidates(types: Sequence[str]) -> Iterator[str]:
    with scratch_connection() as con:
        union = " UNION ALL ".join(f"SELECT CAST(NULL AS {t}) AS value" for t in types)
        try:
            united = describe(con, union)["value"]
            yield _INSTEAD.get(united, united)
        except duckdb.Error:
            pass  # no common type, such as for a number and a struct
    yield from types
    if "FLOAT" in types:
        yield "DOUBLE"  # exact for more integers


def _check_case(state: TableState) -> None:
    seen: dict[str, str] = {}
    for column in state.schema:
        other = seen.setdefault(column.casefold(), column)
        if other != column:
            first, second = (
                next(k for k, f in state.effective.items() if name in f.file.schema) for name in (other, column)
            )
            raise SchemaConflict(
                f"{state.table}: the columns '{other}' (in the log file '{first}') and '{column}' (in '{second}') "
                "differ only in case, which SQL does not distinguish, and repair does not merge them. While no program "
                f"writes, move '{second}' elsewhere, and insert the rows of its parts again, as '{other}'.",
                column=column,
                types=(state.schema[other], state.schema[column]),
                log_files=(first, second),
            )
