"""Partitions of files that are imported: what their `name=value` folders say, held against the table and the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from icedb.errors import InvalidBatch, InvalidOption, InvalidPartitionValue
from icedb.format.table_spec import TableSpec
from icedb.operations.importing.list_files import Source, SourceFile
from icedb.operations.importing.parquet_footer import Footers
from icedb.sql.connections import quote_name
from icedb.sql.partition_expressions import partition_types, path_value_types
from icedb.sql.sandbox_pool import scratch_connection
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock

__all__ = ["check_rows_of", "infer_spec", "partition_values"]

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_INTEGERS = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
                       "UBIGINT", "UHUGEINT"))  # fmt: skip


def partition_values(
    handle: Handle, files: Sequence[SourceFile], schema: Mapping[str, str]
) -> dict[str, dict[str, str | None]]:
    """Id of a file -> what its path says of each partition column, as this library would write it."""
    names = [e.name for e in handle.expressions]
    types = partition_types(handle.expressions, schema, table=handle.table)
    told = {f.id: _told(handle, f, names) for f in files}
    texts = {name: _canonical({v[name] for v in told.values()}, types[name]) for name in names}
    found = {}
    for file in files:
        for name, value in told[file.id].items():
            if value is not None and texts[name][value] is None:
                raise InvalidPartitionValue(
                    f"{handle.table}: the path of '{file.path}' says that {name} is '{value}', which is no "
                    f"{types[name]}. Correct the path, or the column's type in path_columns."
                )
        found[file.id] = {n: None if v is None else texts[n][v] for n, v in told[file.id].items()}
    return found


def _told(handle: Handle, file: SourceFile, names: Sequence[str]) -> dict[str, str | None]:
    """The values of the last folders above the file; they must be those of the table, and all below the source."""
    above = list(file.values)
    own = above[len(above) - len(names) :] if names else []
    if own != list(names) or len(above) < len(names) or file.below > len(names):
        wanted = "/".join(f"{n}=..." for n in names) or "none"
        remedy = (
            f"Create the table with path_columns={{{', '.join(f'{n!r}: ...' for n in above)}}}"
            if not names
            else "Import files with this layout, or insert the others"
        )
        raise InvalidBatch(
            f"{handle.table}: '{file.path}' lies in the folders '{file.folders or '(none)'}', and the table's "
            f"partition columns are {wanted}. {remedy}."
        )
    return {name: file.values[name] for name in names}


def _canonical(values: Iterable[str | None], type_: str) -> dict[str, str | None]:
    """Text -> DuckDB's text of the same value of that type; None when it is none, or not quite."""
    texts = sorted({v for v in values if v is not None})
    if type_ == "VARCHAR":
        return {t: t for t in texts}
    with scratch_connection() as con:
        cast = f"TRY_CAST(text AS {type_})"
        exact = "true"
        if type_ in ("DATE", "TIMESTAMP"):
            exact = f"CAST({cast} AS TIMESTAMP) IS NOT DISTINCT FROM TRY_CAST(text AS TIMESTAMP)"
        found = con.execute(
            f"SELECT text, CASE WHEN {exact} THEN CAST({cast} AS VARCHAR) END "
            "FROM (SELECT unnest(CAST($1 AS VARCHAR[])) AS text)",
            [texts],
        ).fetchall()
    return {t: None if type_ in _INTEGERS and not _WHOLE_NUMBER.fullmatch(t) else value for t, value in found}


def check_rows_of(
    handle: Handle, file: SourceFile, told: Sequence[str | None], found: Sequence[Sequence[str | None]]
) -> None:
    """The rows must be of the one partition that the path tells."""
    wrong = next((list(values) for values in found if list(values) != list(told)), None)
    if wrong is None:
        return
    names = [e.name for e in handle.expressions if not e.path_only]
    shown = ", ".join(f"{n} = {v!r}" for n, v in zip(names, wrong, strict=True))
    raise InvalidBatch(
        f"{handle.table}: '{file.path}' holds rows of another partition than its path says: of {shown}, by the table's "
        "expressions. Insert the file: insert puts each row where it belongs."
    )


def infer_spec(source: Source, footers: Footers, *, sort_by: Sequence[str], table: str) -> TableSpec:
    """The spec of a table that is laid out as the files are: by their folders, and what the first file stores."""
    first = source.files[0]
    names = list(first.values)[len(first.values) - first.below :]
    for file in source.files:
        if list(file.values)[len(file.values) - file.below :] != names:
            raise InvalidBatch(
                f"{table}: '{file.path}' lies in the folders '{file.folders or '(none)'}', and '{first.path}' in "
                f"'{first.folders or '(none)'}'. Import one layout at a time."
            )
    stored = [n for n in names if n in footers.read(first).columns]
    if stored and stored != names:
        raise InvalidOption(
            f"{table}: '{first.path}' stores {stored} of the columns {names} of its folders. Create the table "
            "yourself, with partition_by and path_columns."
        )
    types = path_value_types({n: [f.values[n] for f in source.files] for n in names})
    return TableSpec(
        id=SystemClock().new_id(),
        partition_by=tuple(map(quote_name, stored)),
        path_columns={} if stored else types,
        sort_by=tuple(sort_by),
    )
