"""Loading of a batch into DuckDB: its columns with their types, and the result of a query over it.

The stream is read once. It becomes a temporary table if it is needed more than once, for a query or for a check of its
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch, InvalidOption, InvalidQuery, UnsupportedType
from icedb.sources.batch import Batch, names_in_table
from icedb.sql.connections import RESERVED, disk_full, is_disk_full, quote_name, quote_text
from icedb.sql.types import check_columns, checked_type, describe, describe_arrow
from icedb.sql.user_queries import UserQuery, check_output
from icedb.util.arrow_offsets import copy_nested_slices
from icedb.writer.arrow_rows import BYTES_MAX, ROWS_AT_A_TIME, one_chunk

__all__ = [
    "CHOSEN",
    "PARTITION_COLUMN",
    "PREFIX",
    "LoadedBatch",
    "held_bytes_max",
    "load_batch",
    "too_little_memory",
    "unreadable",
]

#: The reserved prefix of names. A batch's columns must not begin with it.
PREFIX = RESERVED
#: The column of a batch that chooses a row's partition, as a path.
PARTITION_COLUMN = "_partition"
#: The internal name of that column, because `_partition` can be a column to store.
CHOSEN = f"{PREFIX}chosen"

_STREAM = f"{PREFIX}stream"
_TABLE = f"{PREFIX}incoming"
_ANSWER = f"{PREFIX}answer"

# A stream of at most the memory divided by this is read whole, and freed while DuckDB sorts it.
_SHORT_DIVISOR = 2
# A stream of at most the memory divided by this is held until it is encoded. Sort keys, gathered rows and encoded parts
# need as much again, or twice as much if all rows become one part.
_HELD_DIVISOR = 4
# Of a longer stream, the memory divided by this is loaded at a time.
_PIECE_DIVISOR = 16


def held_bytes_max(memory_bytes: int) -> int:
    """Return the maximum size in Arrow, in bytes, of rows that are staged in Arrow."""
    return min(memory_bytes // _HELD_DIVISOR, BYTES_MAX)


@dataclass(slots=True)
class LoadedBatch:
    """The rows of a batch as the relation `relation`: `select[column]` is SQL over it, of type `columns[column]`."""

    con: duckdb.DuckDBPyConnection
    table: str
    batch: Batch
    relation: str
    columns: dict[str, str]
    select: dict[str, str]
    #: SQL of the path that a row chooses; empty if the batch has no such column.
    chosen: str
    #: Columns without a type: null in every row, and not in the table.
    untyped: list[str]
    counted: _CountedRows
    #: Whether the rows are the result of a query. Then numbers are cast to the table's types if no value changes.
    answered: bool = False
    #: The rows, if the stream is short and they were not changed.
    held: pa.Table | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the relation is a stream, which can be read once."""
        return self.relation == _STREAM

    def begin(self, memory_bytes: int) -> None:
        """Hold the stream, register it, or load it in pieces if it is long: DuckDB reads ahead without limit."""
        bytes_max = memory_bytes // _SHORT_DIVISOR
        first = self._take(self.counted.batches, bytes_max)
        if self.counted.bytes < held_bytes_max(memory_bytes) and self._hold(first):
            return
        if self.counted.bytes < bytes_max:
            self._register(_drain(first))
        else:
            self._load(chain(_drain(first), self.counted.batches), memory_bytes // _PIECE_DIVISOR)

    def _hold(self, batches: list[pa.RecordBatch]) -> bool:
        """Hold the rows, and clear the list to free its references.

        Returns False if they do not fit into arrays, or are invalid for their types, which is reported when they are
        read.
        """
        table = pa.Table.from_batches(batches, self.counted.schema)
        try:
            table.validate(full=True)  # DuckDB validates UTF-8 when it stores a text, but not when it copies one
            self.held = one_chunk(table)
        except pa.ArrowException:
            return False
        if self.held is not None:
            batches.clear()
        return self.held is not None

    def keep(self) -> None:
        """Load the stream into a table that can be read more than once. Raises InvalidBatch."""
        if not self.is_stream:
            return
        self.release()
        self._execute(f"CREATE TEMP TABLE {_TABLE} AS {self._typed()}")
        self._become(_TABLE)

    def release(self) -> None:
        """Register the held rows as a stream that is read once."""
        if self.held is not None:
            self._register(self.held.to_batches())
            self.held = None

    def drop(self) -> None:
        """Free the memory of the rows once they are staged."""
        self.held = None
        if not self.is_stream:
            self.con.execute(f"DROP TABLE {self.relation}")

    def _register(self, batches: Iterable[pa.RecordBatch]) -> None:
        # A thread of DuckDB reads one slice at a time.
        slices = (b.slice(n, ROWS_AT_A_TIME) for b in batches for n in range(0, b.num_rows, ROWS_AT_A_TIME))
        self.con.register(
            _STREAM, pa.RecordBatchReader.from_batches(self.counted.schema, map(copy_nested_slices, slices))
        )

    def _load(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        """Load the stream into a table in pieces."""
        self._register([])
        self._execute(f"CREATE TEMP TABLE {_TABLE} AS {self._typed()}")
        while piece := self._take(batches, bytes_max):
            self._register(_drain(piece))
            self._execute(f"INSERT INTO {_TABLE} {self._typed()}")
        pa.default_memory_pool().release_unused()  # DuckDB has the rows now, and needs the memory
        self._become(_TABLE)

    def _execute(self, sql: str) -> None:
        """Run SQL that reads the stream. Raises InvalidOption, InvalidBatch."""
        try:
            self.con.execute(sql)
        except duckdb.OutOfMemoryException as error:
            raise too_little_memory(self.table, error) from None
        except duckdb.Error as error:
            raise unreadable(self.table, error) from None

    def _take(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> list[pa.RecordBatch]:
        """Take batches from the stream until they have that many bytes, or to its end. Raises InvalidBatch."""
        taken: list[pa.RecordBatch] = []
        size = 0
        try:
            while size < bytes_max and (batch := next(batches, None)) is not None:
                taken.append(batch)
                size += batch.nbytes
        except IceDBError:
            raise
        except Exception as error:  # noqa: BLE001  the caller's stream can raise any error
            raise unreadable(self.table, error) from None
        return taken

    def _typed(self) -> str:
        texts = [f"{sql} AS {quote_name(column)}" for column, sql in self.select.items()]
        texts += [f"{self.chosen} AS {CHOSEN}"] if self.chosen else []
        return f"SELECT {', '.join(texts) or '1 AS nothing'} FROM {_STREAM}"

    def count(self) -> int:
        """Return the number of rows of the batch, or of the query's result, after they were read."""
        if self.relation != _ANSWER:
            return self.counted.rows
        [(count,)] = self.con.execute(f"SELECT count(*) FROM {self.relation}").fetchall()
        return int(count)

    def answer(
        self,
        query: UserQuery,
        *,
        table_columns: Mapping[str, str],
        needed: Sequence[str],
        what: str,
        new_columns: bool,
        lenient: bool,
    ) -> None:
        """Replace the rows by the result of a query. If rows choose their partitions, it runs for each partition.

        Raises InvalidQuery if the query does not fit the rows, or returns rows that the table cannot store.
        """
        self.keep()
        inputs = dict(self.columns)
        rows = f"SELECT {', '.join(map(quote_name, self.columns)) or '1 AS nothing'} FROM {_TABLE}"
        try:
            columns = self._ask(query, rows)
        except duckdb.Error as error:
            raise InvalidQuery(
                f"{self.table}: the {what} {query.sql[:200]!r} failed ({str(error).splitlines()[0]}). The "
                f"rows have the columns {sorted(inputs)}."
            ) from None
        names = [c for c in columns if c != CHOSEN]
        check_output(
            names, table_columns=table_columns, inputs=inputs, needed=needed, query=query, what=what, table=self.table,
            new_columns=new_columns, lenient=lenient,
        )  # fmt: skip
        self.columns = {
            c: t for c, t in columns.items() if c != CHOSEN and not self._is_still_untyped(c, table_columns)
        }
        self._become(_ANSWER)
        self.answered = True
        self._take_chosen()

    def _ask(self, query: UserQuery, rows: str) -> dict[str, str]:
        view = f"CREATE OR REPLACE TEMP VIEW {quote_name(query.relation)} AS {rows}"
        # Without input rows the result has only columns: a count of no rows is not stored.
        sql = query.sql if self.counted.rows else f"SELECT * FROM (\n{query.sql}\n) LIMIT 0"
        if not self.chosen:
            self.con.execute(view)
            # Checked first, because CREATE TABLE would rename a column that the query returns twice.
            described = self.con.execute(f"DESCRIBE {query.sql}").fetchall()
            if len({name for name, *_ in described}) < len(described):
                raise InvalidQuery(
                    f"{self.table}: the result of {query.sql[:200]!r} has a column twice: "
                    f"{[name for name, *_ in described]}. Name them with AS."
                )
            self.con.execute(f"CREATE TEMP TABLE {_ANSWER} AS {sql}")
            return describe(self.con, f"SELECT * FROM {_ANSWER}")
        paths = self.con.execute(f"SELECT DISTINCT {CHOSEN} FROM {_TABLE} ORDER BY 1").fetchall()
        for number, (path,) in enumerate(paths or [(None,)]):
            text = "CAST(NULL AS VARCHAR)" if path is None else quote_text(path)
            self.con.execute(f"{view} WHERE {CHOSEN} IS NOT DISTINCT FROM {text}")
            answer = f"SELECT *, {text} AS {CHOSEN} FROM (\n{sql}\n)"
            begin = f"INSERT INTO {_ANSWER} BY NAME" if number else f"CREATE TEMP TABLE {_ANSWER} AS"
            self.con.execute(f"{begin} {answer}")
        return describe(self.con, f"SELECT * FROM {_ANSWER}")

    def _is_still_untyped(self, column: str, table_columns: Mapping[str, str]) -> bool:
        if column not in self.untyped or column in table_columns:
            return False
        return self.con.execute(f"SELECT count({quote_name(column)}) FROM {_ANSWER}").fetchone() == (0,)

    def _become(self, relation: str) -> None:
        self.relation = relation
        self.select = {column: quote_name(column) for column in self.columns}
        self.chosen = CHOSEN if self.chosen else ""

    def _take_chosen(self) -> None:
        """Let a query choose the partition, in a column of its result."""
        if not self.chosen and PARTITION_COLUMN in self.columns:
            self.chosen = quote_name(PARTITION_COLUMN)


def _drain(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches and remove them from the list, so that the consumer has the only reference."""
    batches.reverse()
    while batches:
        yield batches.pop()


class _CountedRows:
    """A stream that counts its rows, and their size in Arrow in bytes. `names`: columns that are renamed.

    It raises InvalidBatch for a batch whose columns differ from the stream's schema, because DuckDB reads the columns
    of a batch by position.
    """

    def __init__(self, stream: pa.RecordBatchReader, names: Mapping[str, str], table: str) -> None:
        self.table = table
        self.rows = 0
        self.bytes = 0
        renamed = [field.with_name(names.get(field.name, field.name)) for field in stream.schema]
        self.schema = pa.schema(renamed, stream.schema.metadata) if names else stream.schema
        self.batches = self._counting(stream)

    def _counting(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        expected = stream.schema
        for batch in stream:
            if batch.schema.names != expected.names or batch.schema.types != expected.types:
                raise InvalidBatch(
                    f"{self.table}: the schema of the stream has the columns {_columns_text(expected)}, and a batch "
                    f"has {_columns_text(batch.schema)}. Give all batches the schema of the stream."
                )
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            if self.schema is not expected:
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            yield batch


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def load_batch(
    con: duckdb.DuckDBPyConnection,
    batch: Batch,
    table_columns: Mapping[str, str],
    *,
    table: str,
    strict: bool = True,
    memory_bytes: int,
) -> LoadedBatch:
    """Hold or register a batch, or load it if it may need more than `memory_bytes`.

    `strict`: reject a nested column with an incomplete type, unless the table has the column. Otherwise the column is
    text without a value, so that a query can name it. Raises InvalidBatch, UnsupportedType.
    """
    names = names_in_table(batch.stream.schema.names, table_columns)
    counted = _CountedRows(batch.stream, names, table)
    batch = batch.rename_properties(names)
    schema = counted.schema
    _check_names(schema.names, table)
    casts = {c: checked_type(t, what=f"column '{c}'", table=table) for c, t in batch.types.items()}
    types = {**_described(con, schema, table), **casts}
    columns: dict[str, str] = {}
    untyped: list[str] = []
    for column in schema:
        if not _is_untyped(column.type):
            columns[column.name] = types[column.name]
        elif column.name in table_columns:
            filled = _fill(column.type, duckdb.sqltype(types[column.name]), duckdb.sqltype(table_columns[column.name]))
            columns[column.name] = checked_type(filled, what=f"column '{column.name}'", table=table)
        elif strict and not pa.types.is_null(column.type):
            raise InvalidBatch(
                f"{table}: column '{column.name}' holds only empty or null elements ({column.type}), so its type is "
                "not known. Give the batch a schema."
            )
        else:
            untyped.append(column.name)
            if not strict:  # a query can name it
                columns[column.name] = "VARCHAR"
    # Rows of a query already have their partitions, so `_partition` is a normal column of theirs.
    chosen = "" if batch.is_answer else _chosen(columns, table)
    select = {c: f"CAST({quote_name(c)} AS {t})" for c, t in columns.items()}
    incoming = LoadedBatch(con, table, batch, _STREAM, columns, select, chosen, untyped, counted, batch.is_answer)
    if schema.names:  # DuckDB has no table without columns
        incoming.begin(memory_bytes)
    return incoming


def too_little_memory(table: str, error: duckdb.OutOfMemoryException) -> InvalidOption | OSError:
    """Return the error for a batch that cannot be sorted or written within the memory limit, or on a full disk."""
    if is_disk_full(error):
        return disk_full(table)
    return InvalidOption(
        f"{table}: memory_bytes is too little for rows as wide as these ({str(error).splitlines()[0]}). Pass more, or "
        "insert fewer rows at a time."
    )


def unreadable(table: str, error: Exception) -> InvalidBatch:
    """Return the error for a batch whose stream fails, or whose values do not match its schema."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InvalidBatch(f"{table}: the batch cannot be read: {reason}")


def _check_names(names: Sequence[str], table: str) -> None:
    if len(set(names)) < len(names):
        raise InvalidBatch(f"{table}: the batch has a column twice: {list(names)}.")
    if reserved := [n for n in names if n.casefold().startswith(PREFIX)]:
        raise InvalidBatch(f"{table}: the column name '{reserved[0]}' is reserved. Rename it.")
    check_columns(dict.fromkeys(names, ""), {}, table=table)


def _chosen(columns: Mapping[str, str], table: str) -> str:
    type_ = columns.get(PARTITION_COLUMN)
    if type_ not in (None, "VARCHAR"):
        raise InvalidBatch(
            f"{table}: the column '{PARTITION_COLUMN}' chooses the partition of a row, as a path, and is {type_}. Make "
            "it text such as 'd=2026-11-21', or rename it."
        )
    return quote_name(PARTITION_COLUMN) if type_ else ""


def _described(con: duckdb.DuckDBPyConnection, schema: pa.Schema, table: str) -> dict[str, str]:
    try:
        return describe_arrow(con, schema)
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedType(
            f"{table}: the batch has a column of a type that DuckDB does not have: {reason}"
        ) from None


def _fill(arrow: pa.DataType, batch_type: Any, table_type: Any) -> str:
    """Return the type of a column in which nested parts have no type, completed by the table's type.

    A field without a type that the table does not have is left out. It is null in every row.
    """
    if pa.types.is_null(arrow):
        return str(table_type)
    if batch_type.id == table_type.id == "struct":
        theirs = {name.casefold(): type_ for name, type_ in table_type.children}
        fields = [
            f"{quote_name(name)} {_fill(arrow.field(n).type, type_, theirs.get(name.casefold(), type_))}"
            for n, (name, type_) in enumerate(batch_type.children)
            if name.casefold() in theirs or not pa.types.is_null(arrow.field(n).type)
        ]
        return f"STRUCT({', '.join(fields)})" if fields else str(table_type)
    if batch_type.id == table_type.id == "list":
        return f"{_fill(arrow.value_type, batch_type.children[0][1], table_type.children[0][1])}[]"
    if batch_type.id == table_type.id == "map":
        key, item = (type_ for _, type_ in table_type.children)
        return (
            f"MAP({_fill(arrow.key_type, batch_type.children[0][1], key)}, "
            f"{_fill(arrow.item_type, batch_type.children[1][1], item)})"
        )
    return str(batch_type)


def _is_untyped(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_):
        return True
    return any(_is_untyped(type_.field(i).type) for i in range(type_.num_fields))
