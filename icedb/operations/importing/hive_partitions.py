"""The partitions of imported files: their `name=value` folders, compared with the table and the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from icedb.errors import InvalidBatch, InvalidOption, InvalidPartitionValue
from icedb.format.table_spec import TableSpec
from icedb.operations.importing.list_files import ImportSource, SourceFile
from icedb.operations.importing.parquet_footer import Footers
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import quote_name, quote_texts
from icedb.sql.partition_expressions import partition_types, path_value_types
from icedb.transaction.table_handle import Handle
from icedb.util.clock import SystemClock

__all__ = ["check_rows_of", "infer_spec", "partition_values"]

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_INTEGERS = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
                       "UBIGINT", "UHUGEINT"))  # fmt: skip


def partition_values(
    handle: Handle, files: Sequence[SourceFile], schema: Mapping[str, str]
) -> dict[str, dict[str, str | None]]:
    """Return, for each file id, the values of the partition columns in its path, as this library would write them."""
    names = [e.name for e in handle.expressions]
    types = partition_types(handle.expressions, schema, table=handle.table)
    in_paths = {f.id: _path_values(handle, f, names) for f in files}
    texts = {name: _canonical({v[name] for v in in_paths.values()}, types[name]) for name in names}
    result = {}
    for file in files:
        for name, value in in_paths[file.id].items():
            if value is not None and texts[name][value] is None:
                raise InvalidPartitionValue(
                    f"{handle.table}: the path of '{file.path}' has {name} = '{value}', which is no {types[name]}. "
                    "Correct the path, or the column's type in path_columns."
                )
        result[file.id] = {n: None if v is None else texts[n][v] for n, v in in_paths[file.id].items()}
    return result


def _path_values(handle: Handle, file: SourceFile, names: Sequence[str]) -> dict[str, str | None]:
    """Return the values of the last folders above the file. They must be the table's columns, all below the source."""
    above = list(file.values)
    own = above[len(above) - len(names) :] if names else []
    if own != list(names) or len(above) < len(names) or file.below > len(names):
        expected = "/".join(f"{n}=..." for n in names) or "none"
        remedy = (
            f"Create the table with path_columns={{{', '.join(f'{n!r}: ...' for n in above)}}}"
            if not names
            else "Import files with this layout, or insert the others"
        )
        raise InvalidBatch(
            f"{handle.table}: '{file.path}' is in the folders '{file.folders or '(none)'}', but the table's partition "
            f"columns are {expected}. {remedy}."
        )
    return {name: file.values[name] for name in names}


def _canonical(values: Iterable[str | None], type_: str) -> dict[str, str | None]:
    """Return DuckDB's text of the value of each text in that type; None if it is no such value, or not exact."""
    texts = sorted({v for v in values if v is not None})
    if type_ == "VARCHAR":
        return {t: t for t in texts}
    with scratch_connection() as con:
        cast = f"TRY_CAST(text AS {type_})"
        exact = "true"
        if type_ in ("DATE", "TIMESTAMP"):
            exact = f"CAST({cast} AS TIMESTAMP) IS NOT DISTINCT FROM TRY_CAST(text AS TIMESTAMP)"
        rows = con.execute(
            f"SELECT text, CASE WHEN {exact} THEN CAST({cast} AS VARCHAR) END "
            f"FROM (SELECT unnest({quote_texts(texts)}) AS text)"
        ).fetchall()
    return {t: None if type_ in _INTEGERS and not _WHOLE_NUMBER.fullmatch(t) else value for t, value in rows}


def check_rows_of(
    handle: Handle, file: SourceFile, in_path: Sequence[str | None], in_rows: Sequence[Sequence[str | None]]
) -> None:
    """Raise InvalidBatch unless all rows are of the partition in the path."""
    wrong = next((list(values) for values in in_rows if list(values) != list(in_path)), None)
    if wrong is None:
        return
    names = [e.name for e in handle.expressions if not e.path_only]
    actual = ", ".join(f"{n} = {v!r}" for n, v in zip(names, wrong, strict=True))
    raise InvalidBatch(
        f"{handle.table}: '{file.path}' has rows of another partition than its path: {actual}, by the table's "
        "expressions. Insert the file: insert puts each row into its partition."
    )


def infer_spec(source: ImportSource, footers: Footers, *, sort_by: Sequence[str], table: str) -> TableSpec:
    """Return the spec of a table with the layout of the files: their folders, and the columns in the first file."""
    first = source.files[0]
    names = list(first.values)[len(first.values) - first.below :]
    for file in source.files:
        if list(file.values)[len(file.values) - file.below :] != names:
            raise InvalidBatch(
                f"{table}: '{file.path}' is in the folders '{file.folders or '(none)'}', but '{first.path}' is in "
                f"'{first.folders or '(none)'}'. Import one layout at a time."
            )
    stored = [n for n in names if n in footers.read(first).columns]
    if stored and stored != names:
        raise InvalidOption(
            f"{table}: '{first.path}' stores {stored}, but not all of the columns {names} of its folders. Create the "
            "table with partition_by and path_columns, then import the files."
        )
    types = path_value_types({n: [f.values[n] for f in source.files] for n in names})
    return TableSpec(
        id=SystemClock().new_id(),
        partition_by=tuple(map(quote_name, stored)),
        path_columns={} if stored else types,
        sort_by=tuple(sort_by),
    )
