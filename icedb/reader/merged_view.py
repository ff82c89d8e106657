"""The relation `final`: the rows of a table as they will be when every partition is merged (compacted).

Like a merge, it combines only rows of the same path. If a path of an older partitioning lacks a partition column, the
column is computed from the merged rows, as for `t`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icedb.errors import InvalidOption
from icedb.format.table_spec import Merging, TableSpec
from icedb.reader.scan_sql import FILE_COLUMN, relation, visible_partitions
from icedb.sql.connections import RESERVED, quote_name
from icedb.sql.merge_strategies import final_sql
from icedb.sql.partition_expressions import PartitionExpression
from icedb.sql.types import typed_nothing
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["final_relation"]

_PATH = f"{RESERVED}path"


def final_relation(
    handle: Handle,
    spec: TableSpec,
    parts: Sequence[Part],
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    expressions: Sequence[PartitionExpression],
) -> str:
    """Return a query with the columns of `t`. `spec` and `expressions` are the snapshot's.

    Raises InvalidOption for a table with a merge query, and the errors of `final_sql`.
    """
    if spec.merge_query:
        raise InvalidOption(
            f"{handle.table}: there is no 'final': the result of the table's merge_query depends on earlier merges. "
            "Query t, or create the table with merging=Dedup, Replacing or Aggregating."
        )
    if spec.merging is None:
        return "SELECT * FROM t"
    if not parts:
        return typed_nothing({**schema, **visible_partitions(schema, partition_schema)})
    layouts: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        layouts.setdefault(tuple(part.values), []).append(part)
    return " UNION ALL BY NAME ".join(
        _of_layout(handle, spec.merging, names, of_layout, schema, partition_schema, expressions=expressions)
        for names, of_layout in layouts.items()
    )


def _of_layout(
    handle: Handle,
    merging: Merging,
    names: Sequence[str],
    parts: Sequence[Part],
    schema: Mapping[str, str],
    partition_schema: Mapping[str, str],
    *,
    expressions: Sequence[PartitionExpression],
) -> str:
    """Return the query over parts whose paths have the same partition columns."""
    in_path = {n: t for n, t in partition_schema.items() if n in names}
    visible = visible_partitions(schema, partition_schema)
    kept = [n for n in visible if n in in_path]
    rows = relation(handle, parts, schema, in_path, expressions=expressions, with_file=True)
    # Group by path and not by partition columns: a data column may hide one of them, and a row may be in another
    # partition than its expressions compute.
    rows = f"(SELECT *, regexp_replace({FILE_COLUMN}, '[^/]*$', '') AS {_PATH} FROM ({rows}))"
    merged = final_sql(merging, schema, [*kept, _PATH], rows=rows, table=handle.table)
    lacking = {e.name: e.sql for e in expressions if e.name in visible and e.name not in in_path}
    computed = "".join(f", CAST((\n{sql}\n) AS {visible[name]}) AS {quote_name(name)}" for name, sql in lacking.items())
    columns = ", ".join(map(quote_name, [*schema, *visible]))
    return f"SELECT {columns} FROM (SELECT *{computed} FROM ({merged}))"
