"""The columns that log files name, together: what their types are, and where log files disagree.

Types come from other programs too, and become part of queries: each text is checked before anybody sees it. Who
checks is passed in, for nothing here knows the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from icedb.errors import CorruptLog, SchemaConflict

__all__ = ["Conflicts", "TypeName", "check_types", "describe_conflict", "schema_conflict", "unite_schemas"]

#: The one name of a type that may have several (INT8 is BIGINT); None for a text that is no type.
TypeName = Callable[[str], str | None]
#: Column -> type -> the log files that say so, of columns of which log files say several types.
Conflicts = Mapping[str, Mapping[str, tuple[str, ...]]]

# A message names a text that may be anything.
TEXT_CHARS = 200


def unite_schemas(
    schemas: Sequence[tuple[str, Mapping[str, str]]], type_name: TypeName
) -> tuple[dict[str, str], Conflicts]:
    """Column -> type, as the first log file names it, and where they disagree. `schemas`: log files with theirs.

    Raises CorruptLog for a type that is none.
    """
    united: dict[str, str] = {}
    texts: dict[str, str] = {}
    several: set[str] = set()
    for key, schema in schemas:
        for column, text in schema.items():
            if column in united and texts[column] == text:
                continue  # as nearly all do
            type_ = _checked(type_name, key, column, text)
            texts.setdefault(column, text)
            if united.setdefault(column, type_) != type_:
                several.add(column)
    return united, {column: _said_types(schemas, column, type_name) for column in sorted(several)}


def _said_types(
    schemas: Sequence[tuple[str, Mapping[str, str]]], column: str, type_name: TypeName
) -> dict[str, tuple[str, ...]]:
    said: dict[str, list[str]] = {}
    for key, schema in schemas:
        if column in schema:
            said.setdefault(_checked(type_name, key, column, schema[column]), []).append(key)
    return {type_: tuple(keys) for type_, keys in said.items()}


def check_types(key: str, schema: Mapping[str, str], type_name: TypeName) -> None:
    """Raise CorruptLog when a column of a log file has a type that is none."""
    for column, text in schema.items():
        _checked(type_name, key, column, text)


def _checked(type_name: TypeName, key: str, column: str, text: str) -> str:
    type_ = type_name(text)
    if type_ is None:
        raise CorruptLog(
            f"the log file '{key}' says that the column {column[:TEXT_CHARS]!r} is a {text[:TEXT_CHARS]!r}, and DuckDB "
            "has no such type. A program that is none of ours wrote it, or the object was changed: restore it from a "
            "backup or an earlier version of it; do not delete it, the parts it names would be lost.",
            key=key,
        )
    return type_


def schema_conflict(table: str, conflicts: Conflicts) -> SchemaConflict:
    """The error of who cannot go on with a column of several types."""
    column, types = next(iter(conflicts.items()))
    (one, ones), (other, others) = list(types.items())[:2]
    return SchemaConflict(
        f"{table}: {describe_conflict(column, types)}",
        column=column,
        types=(one, other),
        log_files=(ones[0], others[0]),
    )


def describe_conflict(column: str, types: Mapping[str, tuple[str, ...]]) -> str:
    """What is wrong with a column that has several types, and what to do about it."""
    (one, ones), (other, others) = list(types.items())[:2]
    return (
        f"column '{column}' is {one} in the log file '{ones[0]}' and {other} in '{others[0]}'. A program that does not "
        "check the schema wrote one of them. Stop it, then repair the table: Table.repair_types() or icedb repair."
    )
