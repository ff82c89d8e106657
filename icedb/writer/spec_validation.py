"""Validation of table specs: types, expressions and queries are checked before they are recorded.

A spec can also come from a `_table.json` that another program wrote, so its queries are checked again before they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import pyarrow as pa

from icedb.errors import InvalidOption, UnknownColumn
from icedb.format.table_spec import SchemaPolicy, TableSpec, check_spec, visible_schema
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.merge_strategies import MERGED, check_aggregated_types, check_batch_columns, check_merging
from icedb.sql.partition_expressions import parse_partition_by, partition_expressions, partition_types
from icedb.sql.types import ROW_ID, check_columns, check_sort_columns, checked_type, describe_arrow, storage_type
from icedb.sql.user_queries import check_query
from icedb.writer.batch_loader import PARTITION_COLUMN, PREFIX
from icedb.writer.encoding.bloom_filters import check_bloom_filters

__all__ = ["ROWS", "DeclaredSchema", "check_name", "check_stored_spec", "checked_spec", "declared_columns"]

#: The relation that the query of an insert or a view reads.
ROWS = "_rows"

#: Columns with their types: a dict of column -> DuckDB type, or an Arrow schema.
DeclaredSchema = Any


def declared_columns(schema: DeclaredSchema, *, table: str) -> dict[str, str]:
    """Return column -> DuckDB type. Raises InvalidOption unless `schema` is a dict of texts or an Arrow schema."""
    if isinstance(schema, pa.Schema):
        with scratch_connection() as con:
            return describe_arrow(con, schema)
    if isinstance(schema, Mapping) and all(isinstance(t, str) for pair in schema.items() for t in pair):
        return dict(schema)
    raise InvalidOption(
        f"{table}: schema must be a dict of column -> DuckDB type, or a pyarrow schema, not a {type(schema).__name__}."
    )


def checked_spec(spec: TableSpec, *, table: str, schema: Mapping[str, str] | None = None) -> TableSpec:
    """Check a spec, and return it with DuckDB's own names of types. `schema` is the log's, if the table exists.

    Raises InvalidOption, InvalidBatch (a column's name), InvalidPartitionExpression, InvalidQuery, UnknownColumn,
    UnsupportedType, SchemaConflict.
    """
    check_spec(spec, table=table)
    columns = {c: _checked_column(c, t, table) for c, t in spec.columns.items()}
    check_columns(columns, schema or {}, table=table)
    _check_policy(spec, columns, table)
    table_columns = visible_schema(spec, {**columns, **(schema or {})})
    expressions = partition_expressions(spec, table=table)
    if schema or spec.schema_policy == "declared":  # otherwise a batch can still add the columns that they use
        partition_types(expressions, table_columns, table=table)
    if spec.columns and spec.schema_policy == "declared":
        check_sort_columns(spec.sort_by, {}, table_columns, table=table)
    may_grow = not schema and spec.schema_policy != "declared"
    check_bloom_filters(spec.bloom_filters, table_columns, table=table, may_grow=may_grow)
    if spec.insert_query:
        check_query(spec.insert_query, relation=ROWS, table=table, what="insert_query")
    if spec.merge_query:
        check_query(spec.merge_query, relation=MERGED, table=table, what="merge_query")
    if spec.merging is not None:
        if spec.merge_query:
            raise InvalidOption(f"{table}: a table has a merge_query or a merging, not both. Remove one of them.")
        inputs = frozenset[str]().union(*(e.columns for e in expressions))
        check_merging(spec.merging, table=table, columns=schema or None, partition_inputs=inputs)
        check_aggregated_types(spec.merging, table_columns, table=table)
        if spec.row_id:
            check_batch_columns(spec.merging, [ROW_ID], table=table)
    for view in spec.views:
        check_name(view.name, table=table)
        check_query(view.query, relation=ROWS, table=table, what=f"query of the view '{view.name}'")
    types = {n: checked_type(t, what=f"path column '{n}'", table=table) for n, t in spec.path_columns.items()}
    return msgspec.structs.replace(spec, columns=columns, path_columns=types)


def check_stored_spec(spec: TableSpec, *, table: str) -> None:
    """Check the SQL of a stored spec, and the names of its views, because another program may have written it.

    Raises errors of type InvalidRequestError. Checks that need the log's columns are made when rows are written.
    """
    expressions = partition_expressions(spec, table=table)
    parse_partition_by(spec.earlier_partition_by, table=table)
    for query, relation, what in (
        (spec.insert_query, ROWS, "insert_query"),
        (spec.merge_query, MERGED, "merge_query"),
        *((view.query, ROWS, f"query of the view '{view.name}'") for view in spec.views),
        *((earlier.merge_query, MERGED, "earlier merge_query") for earlier in spec.earlier),
    ):
        if query:
            check_query(query, relation=relation, table=table, what=what)
    for view in spec.views:
        check_name(view.name, table=table)
    for earlier in spec.earlier:
        parse_partition_by(earlier.partition_by, table=table)
    if spec.merging is not None:
        inputs = frozenset[str]().union(*(e.columns for e in expressions))
        check_merging(spec.merging, table=table, partition_inputs=inputs)


def check_name(name: str, *, table: str) -> str:
    """Return the name of a sibling table. Raises InvalidOption for an invalid name."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        return name
    raise InvalidOption(
        f"{table}: {name!r} cannot be the name of a table. Use up to 100 letters, digits, '.', '_' and '-'; the first "
        "one is a letter or digit."
    )


def _checked_column(column: str, type_: str, table: str) -> str:
    if column.casefold().startswith(PREFIX):
        raise InvalidOption(f"{table}: the column name '{column}' is reserved. Choose another.")
    if column == ROW_ID and type_ != "VARCHAR":
        raise InvalidOption(f"{table}: the column '{ROW_ID}' is for the ids of rows, so it is VARCHAR.")
    if column == PARTITION_COLUMN and type_ != "VARCHAR":
        raise InvalidOption(f"{table}: the column '{PARTITION_COLUMN}' chooses a row's partition, so it is VARCHAR.")
    canonical = checked_type(type_, what=f"column '{column}'", table=table)
    return storage_type(canonical, column=column, table=table)


def _check_policy(spec: TableSpec, columns: Mapping[str, str], table: str) -> None:
    if spec.schema_policy not in get_args(SchemaPolicy):
        raise InvalidOption(f"{table}: schema_policy is {spec.schema_policy!r}. Pass 'open' or 'declared'.")
    if spec.schema_policy == "declared" and not columns:
        raise InvalidOption(f"{table}: schema_policy 'declared' takes only declared columns, and schema has none.")
    unknown = [c for c in spec.required if columns and c not in columns and spec.schema_policy == "declared"]
    if unknown:
        raise UnknownColumn(
            f"{table}: '{unknown[0]}' is required, and it is not declared (there are {sorted(columns)})."
        )
    if any(not isinstance(c, str) or not c for c in spec.required):
        raise InvalidOption(f"{table}: required must be a list of columns' names, not {spec.required!r}.")
