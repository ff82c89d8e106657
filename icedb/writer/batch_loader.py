"""A batch inside DuckDB: its columns with their types, and the answer of a query over it.

The stream is read once. It is kept as a temporary table when somebody must look at it more than once: a query, or a
check of its values.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch, InvalidOption, InvalidQuery, UnsupportedType
from icedb.sources.batch import Batch
from icedb.sql.connections import RESERVED, quote_name, quote_text
from icedb.sql.types import check_columns, checked_type, describe
from icedb.sql.user_queries import UserQuery, check_output
from icedb.util.arrow_offsets import copy_nested_slices
from icedb.writer.deferred_gather import ROWS_AT_A_TIME, BufferedRows, buffer_rows

__all__ = ["CHOSEN", "PARTITION_COLUMN", "PREFIX", "LoadedBatch", "load_batch"]

#: Names that a batch's columns must not begin with: they are ours.
PREFIX = RESERVED
#: The column of a batch that chooses a row's partition, as a path.
PARTITION_COLUMN = "_partition"
#: What it is called here, where `_partition` may be a column to store.
CHOSEN = f"{PREFIX}chosen"

_STREAM = f"{PREFIX}stream"
_TABLE = f"{PREFIX}incoming"
_ANSWER = f"{PREFIX}answer"

# A stream that is no longer than this part of the memory is held, and given away while it is sorted.
_SHORT_PART = 2
# One that is no longer than this part is held until it is encoded: then it is there twice, or three times.
_HELD_PART = 8
# Of one that is longer, so much is loaded at a time.
_PARTS_OF_MEMORY = 16


@dataclass(slots=True)
class LoadedBatch:
    """The rows of a batch as the relation `relation`: `select[column]` is SQL over it, of type `columns[column]`."""

    con: duckdb.DuckDBPyConnection
    table: str
    batch: Batch
    relation: str
    columns: dict[str, str]
    select: dict[str, str]
    #: SQL of the path that a row chose for itself; empty when the batch has no such column.
    chosen: str
    #: Columns without a type: null in every row, and unknown to the table.
    untyped: list[str]
    counted: _CountedRows
    #: Whether a query made these rows: then numbers become the table's, where no value changes.
    answered: bool = False
    #: The rows, when the stream is short and they were not changed.
    held: BufferedRows | None = None

    def begin(self, memory_bytes: int | None) -> None:
        """Hold the stream, register it, or load it when it is long: DuckDB reads ahead of it, as much as there is."""
        if memory_bytes is None:
            self._register(self.counted.batches)
            return
        bytes_max = memory_bytes // _SHORT_PART
        first = self._take(self.counted.batches, bytes_max)
        if self.counted.bytes < memory_bytes // _HELD_PART:
            self.held = buffer_rows(self.counted.schema, first)
        if self.held is not None:
            return
        if self.counted.bytes < bytes_max:
            self._register(_given_away(first))
        else:
            self._load(chain(_given_away(first), self.counted.batches), memory_bytes // _PARTS_OF_MEMORY)

    def keep(self) -> None:
        """Make a table of the stream, to be looked at more than once. Raises InvalidBatch."""
        if self.relation != _STREAM:
            return
        self.let_go()
        self._execute(f"CREATE TEMP TABLE {_TABLE} AS {self._typed()}")
        self._become(_TABLE)

    def let_go(self) -> None:
        """Register what is held: all of it is to be looked at once."""
        if self.held is not None:
            self._register(self.held.batches())
            self.held = None

    def drop(self) -> None:
        """Free what the rows take, once they are staged."""
        if self.relation != _STREAM:
            self.con.execute(f"DROP TABLE {self.relation}")

    def _register(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.con.register(_STREAM, pa.RecordBatchReader.from_batches(self.counted.schema, batches))

    def _load(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        """Make a table of the stream, piece by piece."""
        self._register([])
        self._execute(f"CREATE TEMP TABLE {_TABLE} AS {self._typed()}")
        while piece := self._take(batches, bytes_max):
            self._register(_given_away(piece))
            self._execute(f"INSERT INTO {_TABLE} {self._typed()}")
        pa.default_memory_pool().release_unused()  # DuckDB has the rows now, and needs the memory
        self._become(_TABLE)

    def _execute(self, sql: str) -> None:
        """Run what reads the stream. Raises InvalidOption, InvalidBatch."""
        try:
            self.con.execute(sql)
        except duckdb.OutOfMemoryException as error:
            raise too_little_memory(self.table, error) from None
        except duckdb.Error as error:
            raise unreadable(self.table, error) from None

    def _take(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> list[pa.RecordBatch]:
        """The next batches, as many as have that many bytes, or all that are left. Raises InvalidBatch."""
        taken: list[pa.RecordBatch] = []
        size = 0
        try:
            while size < bytes_max and (batch := next(batches, None)) is not None:
                taken.append(batch)
                size += batch.nbytes
        except IceDBError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the caller's stream raises
            raise unreadable(self.table, error) from None
        return taken

    def _typed(self) -> str:
        texts = [f"{sql} AS {quote_name(column)}" for column, sql in self.select.items()]
        texts += [f"{self.chosen} AS {CHOSEN}"] if self.chosen else []
        return f"SELECT {', '.join(texts) or '1 AS nothing'} FROM {_STREAM}"

    def count(self) -> int:
        """Rows of the batch, or of the answer; once they were read."""
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
        """Become the answer of a query. Rows that chose their partition are asked partition by partition.

        Raises InvalidQuery when it does not fit the rows, or gives what the table cannot store.
        """
        self.keep()
        inputs = dict(self.columns)
        rows = f"SELECT {', '.join(map(quote_name, self.columns)) or '1 AS nothing'} FROM {_TABLE}"
        try:
            columns = self._ask(query, rows)
        except duckdb.Error as error:
            raise InvalidQuery(
                f"{self.table}: the {what} {query.sql[:200]!r} cannot be answered ({str(error).splitlines()[0]}). The "
                f"rows have the columns {sorted(inputs)}."
            ) from None
        names = [c for c in columns if c != CHOSEN]
        if lenient:
            needed = self._warn_of_dropped(names, needed, what)
        check_output(
            names, table_columns=table_columns, inputs=inputs, needed=needed, query=query, what=what, table=self.table,
            new_columns=new_columns,
        )  # fmt: skip
        self.columns = {
            c: t for c, t in columns.items() if c != CHOSEN and not self._is_still_untyped(c, table_columns)
        }
        self._become(_ANSWER)
        self.answered = True
        self._take_chosen()

    def _ask(self, query: UserQuery, rows: str) -> dict[str, str]:
        view = f"CREATE OR REPLACE TEMP VIEW {quote_name(query.relation)} AS {rows}"
        # Without rows there is no answer either, but its columns: a count of nothing is not stored.
        sql = query.sql if self.counted.rows else f"SELECT * FROM (\n{query.sql}\n) LIMIT 0"
        if not self.chosen:
            self.con.execute(view)
            # Apart, for a table cannot have a column twice, and whoever wrote the query should hear of it.
            described = self.con.execute(f"DESCRIBE {query.sql}").fetchall()
            if len({name for name, *_ in described}) < len(described):
                raise InvalidQuery(
                    f"{self.table}: the answer of {query.sql[:200]!r} has a column twice: "
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

    def _warn_of_dropped(self, names: Sequence[str], needed: Sequence[str], what: str) -> Sequence[str]:
        dropped = [c for c in needed if c not in names]
        if dropped:
            message = f"{self.table}: the {what} drops {dropped}, by which the table is partitioned or sorted."
            warnings.warn(message, stacklevel=2)
        return [c for c in needed if c in names]

    def _is_still_untyped(self, column: str, table_columns: Mapping[str, str]) -> bool:
        if column not in self.untyped or column in table_columns:
            return False
        return self.con.execute(f"SELECT count({quote_name(column)}) FROM {_ANSWER}").fetchone() == (0,)

    def _become(self, relation: str) -> None:
        self.relation = relation
        self.select = {column: quote_name(column) for column in self.columns}
        self.chosen = CHOSEN if self.chosen else ""

    def _take_chosen(self) -> None:
        """A query may choose the partition as a column of its answer."""
        if not self.chosen and PARTITION_COLUMN in self.columns:
            self.chosen = quote_name(PARTITION_COLUMN)


def _given_away(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One after the other; whoever asks for them is the only one that has them then."""
    batches.reverse()
    while batches:
        yield batches.pop()


class _CountedRows:
    """A stream that knows how many rows, and bytes of Arrow, went through it.

    DuckDB takes the columns of every batch by their places. Raises InvalidBatch for a batch that has others than the
    stream says.
    """

    def __init__(self, stream: pa.RecordBatchReader, table: str) -> None:
        self.table = table
        self.rows = 0
        self.bytes = 0
        self.schema = stream.schema
        self.batches = self._counting(stream)

    def _counting(self, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for given in stream:
            if given.schema.names != self.schema.names or given.schema.types != self.schema.types:
                raise InvalidBatch(
                    f"{self.table}: the stream says that it has the columns {_told(self.schema)}, and gives a batch "
                    f"with {_told(given.schema)}. Give all batches the schema of the stream."
                )
            for first in range(0, given.num_rows, ROWS_AT_A_TIME):  # each thread of DuckDB reads one at a time
                batch = copy_nested_slices(given.slice(first, ROWS_AT_A_TIME))
                self.rows += batch.num_rows
                self.bytes += batch.nbytes
                yield batch


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def load_batch(
    con: duckdb.DuckDBPyConnection,
    batch: Batch,
    table_columns: Mapping[str, str],
    *,
    table: str,
    strict: bool = True,
    memory_bytes: int | None = None,
) -> LoadedBatch:
    """Register a batch, or load it when it may be too much for `memory_bytes`.

    `strict`: a nested column whose type is not whole is refused, unless the table knows it. Else it is text without a
    value, for a query that may name it. Raises InvalidBatch, UnsupportedType.
    """
    schema = batch.stream.schema
    _check_names(schema.names, table)
    told = {c: checked_type(t, what=f"column '{c}'", table=table) for c, t in batch.types.items()}
    types = {**_describe_arrow(con, schema, table), **told}
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
            if not strict:  # a query may name it
                columns[column.name] = "VARCHAR"
    # In rows that are a table's already, it is a column like others: a query over them may still give one.
    chosen = "" if batch.is_answer else _chosen(columns, table)
    counted = _CountedRows(batch.stream, table)
    select = {c: f"CAST({quote_name(c)} AS {t})" for c, t in columns.items()}
    incoming = LoadedBatch(con, table, batch, _STREAM, columns, select, chosen, untyped, counted, batch.is_answer)
    if schema.names:  # DuckDB has no table without columns
        incoming.begin(memory_bytes)
    return incoming


def too_little_memory(table: str, error: Exception) -> InvalidOption:
    """The error for a batch that cannot be sorted or written in the memory that it was given."""
    return InvalidOption(
        f"{table}: memory_bytes is too little for rows as wide as these ({str(error).splitlines()[0]}). Give more, or "
        "insert fewer rows at a time."
    )


def unreadable(table: str, error: Exception) -> InvalidBatch:
    """The error for a batch whose stream breaks, or whose values are not what its schema says."""
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


def _describe_arrow(con: duckdb.DuckDBPyConnection, schema: pa.Schema, table: str) -> dict[str, str]:
    if not schema.names:
        return {}
    try:
        con.register(f"{PREFIX}shape", pa.RecordBatchReader.from_batches(schema, []))
        return describe(con, f"SELECT * FROM {PREFIX}shape")
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise UnsupportedType(
            f"{table}: the batch has a column of a type that DuckDB does not have: {reason}"
        ) from None


def _fill(arrow: pa.DataType, batch_type: Any, table_type: Any) -> str:
    """The type of a column of which some nested part has no type, as the table knows that part.

    A field without a type that the table does not have is left out: it is null in every row.
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
