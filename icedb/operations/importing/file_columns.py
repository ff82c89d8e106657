"""The columns of imported files: one type for each, and the checks that a batch with them would have to pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icedb.errors import InvalidBatch, SchemaConflict, UnknownColumn, UnsupportedType
from icedb.operations.importing.list_files import SourceFile
from icedb.operations.importing.parquet_footer import Footer
from icedb.sql.connections import RESERVED, quote_name
from icedb.sql.types import check_columns, new_columns
from icedb.transaction.table_handle import Handle
from icedb.writer.encoding.bloom_filters import check_bloom_filters

__all__ = ["check_file_columns", "union_of_columns"]

_PARTITION_COLUMN = "_partition"


def union_of_columns(
    handle: Handle, files: Sequence[tuple[SourceFile, Footer]], table_columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns of all files. Raises SchemaConflict if two files, or a file and the table, disagree."""
    columns: dict[str, str] = {}
    first: dict[str, str] = {}
    for file, footer in files:
        for column, type_ in footer.columns.items():
            other = columns.setdefault(column, type_)
            where = f"'{first.setdefault(column, file.path)}'"
            if column in table_columns:
                other, where = table_columns[column], "the table"
            if other != type_:
                raise SchemaConflict(
                    f"{handle.table}: column '{column}' is {other} in {where} and {type_} in '{file.path}'. Nothing "
                    "was imported. Exclude that file by a glob, and insert it: insert(path, on_conflict='cast') "
                    "widens a type if no value is lost.",
                    column=column,
                    types=(other, type_),
                )
    for file, footer in files:
        if untyped := sorted(footer.untyped - columns.keys() - table_columns.keys()):
            raise UnsupportedType(
                f"{handle.table}: column '{untyped[0]}' of '{file.path}' has only nulls and no type, and neither "
                "another file nor the table has a type for it. Declare it: Table.create(..., schema={...}), or alter."
            )
    return columns


def check_file_columns(
    handle: Handle,
    files: Sequence[tuple[SourceFile, Footer]],
    table_columns: Mapping[str, str],
    columns: Mapping[str, str],
) -> None:
    """Apply the checks of a batch with these columns. Errors name the first file that fails."""
    spec = handle.spec
    check_columns(columns, table_columns, table=handle.table)
    if sort := [c for c in spec.sort_by if c not in columns and c not in table_columns]:
        raise UnknownColumn(
            f"{handle.table}: sort_by names '{sort[0]}', and neither the table nor a file has such a column (there are "
            f"{sorted(columns)}). Correct sort_by."
        )
    check_bloom_filters(
        spec.bloom_filters, new_columns(columns, table_columns), table=handle.table, other_columns=table_columns
    )
    for file, footer in files:
        of_file = {*footer.columns, *footer.untyped}
        if reserved := [c for c in of_file if c.casefold().startswith(RESERVED)]:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' has a column '{reserved[0]}', a reserved name. Rename the column."
            )
        if _PARTITION_COLUMN in of_file and not spec.preserve_partition:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' has a column '_partition', which selects the partition of inserted "
                "rows. Insert the file, or create the table with preserve_partition=True."
            )
        if spec.schema_policy == "declared" and (more := sorted(footer.columns.keys() - table_columns.keys())):
            raise UnknownColumn(
                f"{handle.table}: '{file.path}' has a column '{more[0]}', and the table takes only columns that were "
                f"declared ({sorted(table_columns)}). Declare it with alter(schema=...)."
            )
        if lacking := [c for c in spec.required if c not in footer.columns]:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' lacks the column '{lacking[0]}', which the table requires. "
                "Exclude the file."
            )
        _check_shadowing(handle, file, footer, columns, table_columns)


def _check_shadowing(
    handle: Handle,
    file: SourceFile,
    footer: Footer,
    columns: Mapping[str, str],
    table_columns: Mapping[str, str],
) -> None:
    """Reject a path with a partition column that a data column of the same name would hide."""
    of_file = {c.casefold() for c in footer.columns}
    added = {c.casefold() for c in columns if c not in table_columns}
    for expression in handle.expressions:
        name = expression.name.casefold()
        if expression.path_only and name in of_file:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' stores the column '{expression.name}', which this table reads from "
                f"the path. Import the files into a table with partition_by=['{quote_name(expression.name)}']."
            )
        if expression.path_only:
            continue
        is_column = expression.sql in (expression.name, quote_name(expression.name))
        if is_column and name not in of_file:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' lacks the column '{expression.name}', by which the table is "
                "partitioned, so its rows would be null despite the path. Import the files into a table with "
                f"path_columns={{'{expression.name}': ...}}."
            )
        if not is_column and name in added:
            raise InvalidBatch(
                f"{handle.table}: '{file.path}' stores a column '{expression.name}', but the table computes a "
                "partition column of that name from other columns. Insert the file without it."
            )
