"""The batch of an upsert: its rows with the types of the table, and each key once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import msgspec

from icedb.errors import InvalidBatch, InvalidOption, UnknownColumn
from icedb.format.table_spec import TableSpec
from icedb.operations.upsert.arrow_file import ArrowFile
from icedb.sources.batch import OnConflict, Rows
from icedb.sources.open_source import open_batch
from icedb.sql.connections import READING_SHARE, ROWS_PER_BATCH, quote_name, quote_text
from icedb.sql.expressions import columns_of
from icedb.sql.predicates import check_predicate
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_loader import PARTITION_COLUMN
from icedb.writer.staged_batch import staged_names
from icedb.writer.staging import stage_rows

__all__ = ["DELETES", "NUMBER", "IncomingRows", "read_incoming"]

#: The column with the number of a row in the batch, and the one with whether the row deletes the stored row.
NUMBER = "number"
DELETES = "deletes"

# Of a key column with at most so many values, the parts are chosen by the values instead of their range.
_VALUES_MAX = 100
# The length of all of these values as text.
_LENGTH_MAX = 8_192
_LAMBDA = re.compile(r"\blambda\b", re.IGNORECASE)
# The types whose text DuckDB reads back exactly, and whose order is that of the statistics.
_ORDERED = frozenset((
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "HUGEINT", "BOOLEAN",
    "VARCHAR", "UUID", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class IncomingRows:
    """The rows of a batch that are stored, deleted or compared, as a table with NUMBER, DELETES and named columns."""

    file: ArrowFile
    rows: int
    #: How many of them delete stored rows.
    deleting_rows: int
    #: Column of the batch -> its DuckDB type. Columns that only `delete_where` and `order_by` use are not among them.
    columns: Mapping[str, str]
    #: Column of the batch -> its name in the table.
    names: Mapping[str, str] = field(repr=False)
    #: A condition over the table's rows that is true for all that can match, or None if nothing is known.
    possible: str | None = field(repr=False)


def read_incoming(
    handle: Handle,
    data: Rows,
    on: Sequence[str],
    *,
    stored_too: Sequence[str],
    con: duckdb.DuckDBPyConnection,
    folder: Path,
    order_by: Sequence[str],
    delete_where: str | None,
    on_conflict: OnConflict,
    memory_bytes: int,
) -> IncomingRows | None:
    """Read a batch into a file in `folder`, by a connection that holds it as a temporary table meanwhile.

    `on` are the key columns, and `stored_too` others that are stored in any case. Of rows with the same key, the last
    one by `order_by` is kept. A key with a null equals no other one. Without rows and columns, return None.

    Raises InvalidBatch, InvalidOption, UnknownColumn, and the errors of an insert.
    """
    # Only the types are checked here: the rows that are stored are checked when they are written.
    spec = msgspec.structs.replace(
        handle.spec, partition_by=(), path_columns={}, sort_by=(), required=(), bloom_filters=(), row_id=False,
        schema_policy=TableSpec().schema_policy, dropped={}, views=(),
    )  # fmt: skip
    table_columns = {**handle.spec.path_columns, **handle.columns}
    context = replace(handle.write_context(), spec=spec, expressions=(), known_schema=table_columns)
    # An insert query computes the table's columns from other columns, which may have the same names.
    read_columns = {} if handle.spec.insert_query else table_columns
    with (
        open_batch(
            data,
            location=handle.location,
            table_columns=read_columns,
            on_conflict=on_conflict,
            memory_bytes=memory_bytes,
        ) as batch,
        stage_rows(
            context, batch, on_conflict=on_conflict, memory_bytes=memory_bytes - memory_bytes // READING_SHARE
        ) as stage,
    ):
        if PARTITION_COLUMN in batch.stream.schema.names:
            raise InvalidBatch(
                f"{handle.table}: the batch has the column '{PARTITION_COLUMN}'. An upsert computes the partition of "
                "each row. Leave that column out."
            )
        if not stage.columns:
            return None
        columns = dict(stage.columns)
        _check_columns(handle, columns, on=on, order_by=order_by)
        deletes, named = _deletes(handle, columns, delete_where)
        names = staged_names(columns)
        selected = ", ".join(f"{quote_name(c)} AS {name}" for c, name in names.items())
        con.register("batch", stage.stream())
        try:
            con.execute(
                f"CREATE OR REPLACE TEMP TABLE incoming AS SELECT row_number() OVER () - 1 AS {NUMBER}, "
                f"{deletes} AS {DELETES}, {selected} FROM batch AS t"
            )
        except duckdb.DataError as error:
            raise InvalidOption(
                f"{handle.table}: delete_where {quote_text(str(delete_where))} has no value for some row of the batch "
                f"({str(error).splitlines()[0]}). Use TRY_CAST, or correct the rows."
            ) from None
        con.unregister("batch")
    keys = [names[c] for c in on]
    if order_by:
        _keep_last(con, keys, [names[c] for c in order_by])
    _check_keys(handle, con, on, keys, order_by)
    file = ArrowFile.write(folder / "incoming.arrow", con.execute("FROM incoming").to_arrow_reader(ROWS_PER_BATCH))
    [(rows, deleting)] = con.execute(f"SELECT count(*), count(*) FILTER ({DELETES}) FROM incoming").fetchall()
    possible = _possible(con, {c: (names[c], columns[c]) for c in on}, table_columns)
    con.execute("DROP TABLE incoming")
    stored_names = {c.casefold() for c in (*table_columns, *on, *stored_too, *_named_by(handle))}
    unstored = {c for c in columns if (c.casefold() in named or c in order_by) and c.casefold() not in stored_names}
    stored = {c: t for c, t in columns.items() if c not in unstored}
    return IncomingRows(file, int(rows), int(deleting), stored, names, possible)


def _check_columns(handle: Handle, columns: Mapping[str, str], *, on: Sequence[str], order_by: Sequence[str]) -> None:
    for option, named in (("on", on), ("order_by", order_by)):
        if missing := [c for c in named if c not in columns]:
            raise UnknownColumn(
                f"{handle.table}: {option} names '{missing[0]}', and the batch has no such column (it has "
                f"{sorted(columns)}). Correct it, or add the column to the batch."
            )
    present = {c.casefold() for c in columns}
    for expression in handle.expressions:
        if expression.path_only and expression.name.casefold() not in present:
            raise InvalidBatch(
                f"{handle.table}: the batch lacks '{expression.name}', by which the table is partitioned. Add that "
                "column."
            )


def _deletes(handle: Handle, columns: Mapping[str, str], delete_where: str | None) -> tuple[str, frozenset[str]]:
    """Return SQL of whether a row of the batch deletes, and the columns that it names, case folded."""
    if delete_where is None:
        return "false", frozenset()
    predicate = check_predicate(delete_where, columns, {}, table=handle.table, what="delete_where", rows="the batch")
    sql = f"coalesce((\n{predicate.sql}\n), false)"
    # A parameter of a lambda may have the name of a column. Then all columns are stored.
    named = frozenset() if _LAMBDA.search(delete_where) else columns_of(predicate.tree)
    return sql, named


def _named_by(handle: Handle) -> Iterator[str]:
    """Yield the columns that the table's spec needs in parts."""
    yield from handle.spec.sort_by
    yield from handle.spec.required
    yield from handle.spec.bloom_filters
    for expression in handle.expressions:
        yield from expression.columns


def _keep_last(con: duckdb.DuckDBPyConnection, keys: Sequence[str], order_by: Sequence[str]) -> None:
    """Keep the last row of each key. Rows that `order_by` does not distinguish are all kept."""
    is_null = " OR ".join(f"{key} IS NULL" for key in keys)
    last = ", ".join(f"{column} DESC NULLS LAST" for column in order_by)
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE incoming AS FROM incoming QUALIFY {is_null} OR "
        f"rank() OVER (PARTITION BY {', '.join(keys)} ORDER BY {last}) = 1"
    )


def _check_keys(
    handle: Handle, con: duckdb.DuckDBPyConnection, on: Sequence[str], keys: Sequence[str], order_by: Sequence[str]
) -> None:
    """Raise InvalidBatch if a key occurs twice."""
    texts = ", ".join(f"any_value(CAST({key} AS VARCHAR))" for key in keys)
    not_null = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    twice = con.execute(
        f"SELECT count(*), {texts} FROM incoming WHERE {not_null} GROUP BY {', '.join(keys)} "
        "HAVING count(*) > 1 LIMIT 1"
    ).fetchone()
    if twice is None:
        return
    count, *values = twice
    key = ", ".join(f"{c} = {str(v)[:80]}" for c, v in zip(on, values, strict=True))
    remedy = (
        f"order_by {list(order_by)} has equal values for them: add a column that distinguishes them."
        if order_by
        else "Remove all but one, or name the columns of which the last one counts in order_by."
    )
    raise InvalidBatch(f"{handle.table}: {count} rows of the batch have the key {key}. Nothing was written. {remedy}")


def _possible(
    con: duckdb.DuckDBPyConnection, keys: Mapping[str, tuple[str, str]], table_columns: Mapping[str, str]
) -> str | None:
    """Return a condition that is true for all rows with a key of the batch: the values, or the range, of each column.

    `keys`: column -> its name in the batch, and its type.
    """
    conditions = []
    for column, (name, type_) in keys.items():
        if table_columns.get(column) != type_ or (type_ not in _ORDERED and not type_.startswith("DECIMAL(")):
            continue
        values = _texts(
            con,
            f"SELECT DISTINCT CAST({name} AS VARCHAR) FROM incoming WHERE {name} IS NOT NULL LIMIT {_VALUES_MAX + 1}",
        )
        if values is None or len(values) > _VALUES_MAX:
            ends = f"SELECT CAST(min({name}) AS VARCHAR) FROM incoming UNION ALL SELECT CAST(max({name}) AS VARCHAR)"
            if (range_ := _texts(con, f"{ends} FROM incoming")) is None:
                continue
            first, last = (f"CAST({quote_text(text)} AS {type_})" for text in range_)
            conditions.append(f"{quote_name(column)} BETWEEN {first} AND {last}")
        elif values:
            literals = ", ".join(f"CAST({quote_text(text)} AS {type_})" for text in values)
            conditions.append(f"{quote_name(column)} IN ({literals})")
        else:
            conditions.append("false")
    return " AND ".join(conditions) or None


def _texts(con: duckdb.DuckDBPyConnection, query: str) -> list[str] | None:
    """Return the texts of a column; None if they are too long for a condition, or cannot be part of one."""
    texts = [str(text) for (text,) in con.execute(query).fetchall()]
    return None if sum(map(len, texts)) > _LENGTH_MAX or any("\0" in text for text in texts) else texts
