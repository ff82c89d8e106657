"""The SQL of merging tables (Dedup, Replacing, Aggregating), for merges (compaction) and for the relation `final`.

Each query is associative: it returns the same for all rows at once as for its result over some of them with the rest.
So a merge can take any parts of a partition in any order, and `final` is right at any time. If several rows qualify,
the values of all columns, in the order of their names, decide. A column that is added later is null in older rows and
does not change the choice. Null keys are equal to each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from icedb.errors import InvalidBatch, InvalidOption, UnknownColumn
from icedb.format.table_spec import Aggregating, Dedup, Merging, Replacing
from icedb.sql.connections import quote_name, quote_text

__all__ = [
    "MERGED",
    "check_aggregated_types",
    "check_batch_columns",
    "check_keys",
    "check_merging",
    "final_sql",
    "merge_sql",
    "named_columns",
    "seeds",
]

#: The relation that a merge query reads.
MERGED = "source_files"

_INTEGERS = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"))
_NUMBERS = _INTEGERS | {"FLOAT", "DOUBLE"}


def merge_sql(merging: Merging, columns: Mapping[str, str], *, table: str) -> str:
    """Return a query over `source_files` that returns these columns.

    Raises InvalidBatch for a column that an aggregating table does not name.
    """
    return _merged(merging, columns, rows=MERGED, kept=(), table=table)


def final_sql(
    merging: Merging, columns: Mapping[str, str], partition_columns: Sequence[str], *, rows: str, table: str
) -> str:
    """Return the query of `final` over the relation `rows`, which has `columns` and `partition_columns`.

    The rows of a partition are equal in all `partition_columns`. The result has these, too. Raises as `merge_sql`.
    """
    return _merged(merging, columns, rows=rows, kept=partition_columns, table=table)


def _merged(merging: Merging, columns: Mapping[str, str], *, rows: str, kept: Sequence[str], table: str) -> str:
    check_keys(merging, columns, table=table)
    keys = [*kept, *merging.by]
    if isinstance(merging, Aggregating):
        check_batch_columns(merging, columns, table=table)
        return _aggregated(merging, columns, rows=rows, kept=kept, keys=keys)
    select = ", ".join(map(quote_name, [*columns, *kept]))
    order = [quote_name(c) for c in sorted(columns) if c not in merging.by]
    if isinstance(merging, Replacing) and merging.version in columns:
        order.insert(0, f"{quote_name(merging.version)} DESC NULLS LAST")
    window = f"PARTITION BY {', '.join(map(quote_name, keys))} " if keys else ""
    window += f"ORDER BY {', '.join(order)}" if order else ""
    return f"SELECT {select} FROM {rows} QUALIFY row_number() OVER ({window}) = 1"


def _aggregated(
    merging: Aggregating, columns: Mapping[str, str], *, rows: str, kept: Sequence[str], keys: Sequence[str]
) -> str:
    aggregates = {c: _sum(c, columns[c], quote_name(c)) for c in merging.sum if c in columns}
    if (count := merging.count) in columns:
        # A row without a count was written by a program that does not set it, and counts as one row.
        aggregates[count] = _sum(count, columns[count], f"coalesce({quote_name(count)}, 1)")
    aggregates |= {c: f"max({quote_name(c)})" for c in merging.max if c in columns}
    # `any` is the minimum, so that the result does not depend on the order of rows.
    aggregates |= {c: f"min({quote_name(c)})" for c in (*merging.min, *merging.any) if c in columns}
    select = [f"{aggregates[c]} AS {quote_name(c)}" if c in aggregates else quote_name(c) for c in columns]
    select += map(quote_name, kept)
    group = f" GROUP BY {', '.join(map(quote_name, keys))}" if keys else " HAVING count(*) > 0"
    return f"SELECT {', '.join(select)} FROM {rows}{group}"


def _sum(column: str, type_: str, value: str) -> str:
    """Return SQL of a sum in the column's type, which raises an error on overflow."""
    total = f"sum({value})"
    if type_ in ("FLOAT", "DOUBLE"):
        return f"CAST({total} AS {type_})"
    wrong = quote_text(f"a sum of the column '{column}' is beyond {type_}. Give the column a wider type. The sum is ")
    cast = f"TRY_CAST({total} AS {type_})"
    return f"CASE WHEN {total} IS NOT NULL AND {cast} IS NULL THEN error({wrong} || {total}) ELSE {cast} END"


def named_columns(merging: Merging) -> list[str]:
    """Return the columns that the merging of a table names, in order, with repetitions."""
    if isinstance(merging, Dedup):
        return list(merging.by)
    if isinstance(merging, Replacing):
        return [*merging.by, merging.version]
    counts = [merging.count] if merging.count else []
    return [*merging.by, *merging.sum, *merging.min, *merging.max, *merging.any, *counts]


def check_merging(
    merging: Merging, *, table: str, columns: Mapping[str, str] | None = None, partition_inputs: Collection[str] = ()
) -> None:
    """Raise InvalidOption or UnknownColumn for an invalid merging.

    `columns` are the table's, if there are any yet. `partition_inputs` are the columns that its partition expressions
    use, in any case of letters.
    """
    if not isinstance(merging, Dedup | Replacing | Aggregating):
        raise InvalidOption(f"{table}: merging is {merging!r}; give a Dedup, Replacing or Aggregating.")
    kind = type(merging).__name__
    for name in ("by", "sum", "min", "max", "any"):
        value = getattr(merging, name, ())
        if not isinstance(value, list | tuple):
            noun = "a text" if isinstance(value, str) else f"of type {type(value).__name__}"
            raise InvalidOption(f"{table}: {kind} takes lists of columns, and {name} is {noun}. Write it as (name,).")
    named = named_columns(merging)
    if not merging.by:
        raise InvalidOption(f"{table}: {kind} needs the key of a row: give the names of its columns in `by`.")
    if wrong := [n for n in named if not isinstance(n, str) or not n]:
        raise InvalidOption(f"{table}: {kind} names the column {wrong[0]!r}; give a name.")
    folded = [n.casefold() for n in named]
    if twice := [n for n in named if folded.count(n.casefold()) > 1]:
        raise InvalidOption(f"{table}: {kind} names the column '{twice[0]}' twice. Each column has one purpose.")
    if isinstance(merging, Aggregating):
        _check_in_partition(merging, {c.casefold() for c in partition_inputs}, table)
    if columns is not None:
        _check_known(merging, columns, table)


def _check_in_partition(merging: Aggregating, partition_inputs: Collection[str], table: str) -> None:
    for column in (*merging.sum, merging.count):
        if column.casefold() in partition_inputs:
            raise InvalidOption(
                f"{table}: the table is partitioned by '{column}', and a merge sums it, which would move rows to other "
                "partitions. Put it into `by`, or partition by another column."
            )


def _check_known(merging: Merging, columns: Mapping[str, str], table: str) -> None:
    if unknown := [n for n in named_columns(merging) if n not in columns]:
        raise UnknownColumn(
            f"{table}: {type(merging).__name__} names the column '{unknown[0]}', and the table has no such column (it "
            f"has {sorted(columns)}). Correct the name, or declare the column."
        )
    check_aggregated_types(merging, columns, table=table)
    check_batch_columns(merging, columns, table=table)


def check_aggregated_types(merging: Merging | None, columns: Mapping[str, str], *, table: str) -> None:
    """Raise InvalidOption for a column that cannot be summed or counted. Columns that are missing are not checked."""
    if not isinstance(merging, Aggregating):
        return
    for column in (c for c in merging.sum if c in columns):
        if columns[column] not in _NUMBERS and not columns[column].startswith("DECIMAL"):
            raise InvalidOption(f"{table}: '{column}' is {columns[column]}, which has no sum. Use min, max or any.")
    if merging.count in columns and columns[merging.count] not in _INTEGERS:
        raise InvalidOption(
            f"{table}: '{merging.count}' is {columns[merging.count]}, and a count is an integer. Declare it as BIGINT."
        )


def check_keys(merging: Merging | None, columns: Collection[str], *, table: str) -> None:
    """Raise UnknownColumn if a key column is missing, because rows with different keys would become one."""
    if merging is not None and (lacking := [c for c in merging.by if c not in columns]):
        raise UnknownColumn(
            f"{table}: the key of a row is '{lacking[0]}', among others, and the table has no such column (it has "
            f"{sorted(columns)}). Bring that column, or correct the table's merging with alter(merging=...)."
        )


def check_batch_columns(merging: Merging | None, columns: Iterable[str], *, table: str) -> None:
    """Raise InvalidBatch for a column that an aggregating table does not name."""
    if not isinstance(merging, Aggregating):
        return
    named = set(named_columns(merging))
    if unnamed := [c for c in columns if c not in named]:
        raise InvalidBatch(
            f"{table}: the table aggregates its rows, and its merging does not name the column '{unnamed[0]}'. Leave "
            f"it out, or name it in by, sum, min, max or any of the table's merging (it names {sorted(named)})."
        )


def seeds(merging: Merging | None, columns: Iterable[str]) -> dict[str, str]:
    """Return the columns that are added to every row of a batch with `columns`: column -> SQL of its value."""
    if not isinstance(merging, Aggregating) or not merging.count or merging.count in set(columns):
        return {}
    return {merging.count: "1::BIGINT"}
