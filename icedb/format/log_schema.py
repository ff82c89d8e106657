"""The union of the schemas of log files, and the columns on whose type they disagree.

Types may come from other programs and become part of queries, so each text is checked before it is used. The check is
passed in as a function, because this package does not import DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from icedb.errors import CorruptLog, SchemaConflict

__all__ = ["Conflicts", "TypeName", "check_types", "describe_conflict", "schema_conflict", "unite_schemas"]

#: Returns the canonical name of a type (INT8 is BIGINT); None for a text that is not a type.
TypeName = Callable[[str], str | None]
#: Column -> type -> the log files with that type, for columns that have several types.
Conflicts = Mapping[str, Mapping[str, tuple[str, ...]]]

# Messages quote at most this much of a text from a log file.
TEXT_CHARS = 200


def unite_schemas(
    schemas: Sequence[tuple[str, Mapping[str, str]]], type_name: TypeName
) -> tuple[dict[str, str], Conflicts]:
    """Return column -> type as in the first log file that has the column, and the conflicts.

    `schemas`: log file keys with their schemas. Raises CorruptLog for a text that is not a type.
    """
    united: dict[str, str] = {}
    texts: dict[str, str] = {}
    several: set[str] = set()
    for key, schema in schemas:
        for column, text in schema.items():
            if column in united and texts[column] == text:
                continue  # the usual case, without a check
            type_ = _checked(type_name, key, column, text)
            texts.setdefault(column, text)
            if united.setdefault(column, type_) != type_:
                several.add(column)
    return united, {column: _log_files_by_type(schemas, column, type_name) for column in sorted(several)}


def _log_files_by_type(
    schemas: Sequence[tuple[str, Mapping[str, str]]], column: str, type_name: TypeName
) -> dict[str, tuple[str, ...]]:
    by_type: dict[str, list[str]] = {}
    for key, schema in schemas:
        if column in schema:
            by_type.setdefault(_checked(type_name, key, column, schema[column]), []).append(key)
    return {type_: tuple(keys) for type_, keys in by_type.items()}


def check_types(key: str, schema: Mapping[str, str], type_name: TypeName) -> None:
    """Raise CorruptLog if a column of a log file has a text that is not a type."""
    for column, text in schema.items():
        _checked(type_name, key, column, text)


def _checked(type_name: TypeName, key: str, column: str, text: str) -> str:
    type_ = type_name(text)
    if type_ is None:
        raise CorruptLog(
            f"the log file '{key}' says that the column {column[:TEXT_CHARS]!r} is a {text[:TEXT_CHARS]!r}, and DuckDB "
            "has no such type. Another program wrote it, or the object was changed. Restore it from a backup or an "
            "earlier version of it. Do not delete it: the parts it names would be lost.",
            key=key,
        )
    return type_


def schema_conflict(table: str, conflicts: Conflicts) -> SchemaConflict:
    """Return the error for a column with several types."""
    column, types = next(iter(conflicts.items()))
    (one, ones), (other, others) = list(types.items())[:2]
    return SchemaConflict(
        f"{table}: {describe_conflict(column, types)}",
        column=column,
        types=(one, other),
        log_files=(ones[0], others[0]),
    )


def describe_conflict(column: str, types: Mapping[str, tuple[str, ...]]) -> str:
    """Describe the conflict of a column that has several types, and its repair."""
    (one, ones), (other, others) = list(types.items())[:2]
    return (
        f"column '{column}' is {one} in the log file '{ones[0]}' and {other} in '{others[0]}'. A program that does not "
        "check the schema wrote one of them. Stop it, then repair the table: Table.repair_types() or icedb repair."
    )
