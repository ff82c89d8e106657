"""Staged batches: the rows of a batch in the order of their parts (data files), in Arrow or in a DuckDB sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from icedb.errors import TooManyPartitions
from icedb.format.table_spec import TableSpec
from icedb.sql.casts import MIXED
from icedb.sql.column_stats import statistics_columns
from icedb.sql.connections import ROWS_PER_BATCH, quote_name, quote_text
from icedb.writer.arrow_rows import ArrowRows, decoded
from icedb.writer.batch_loader import PREFIX, too_little_memory, unreadable
from icedb.writer.batch_schema import WriteContext
from icedb.writer.encoding.arrow_types import arrow_schema
from icedb.writer.encoding.parquet_encoder import INSERT_LEVEL, ParquetSettings, batch_rows
from icedb.writer.encoding.parquet_file import EncodedPart, encode_tables, write_query

__all__ = [
    "MISFIT",
    "QUARANTINE_COLUMNS",
    "PartitionRange",
    "StagedBatch",
    "lacking_columns",
    "staged_names",
    "too_many_partitions",
]

#: The columns of a quarantine table.
QUARANTINE_COLUMNS = {"quarantined_at": "TIMESTAMP WITH TIME ZONE", "source": "VARCHAR", "reason": "VARCHAR",
                      "row": "VARCHAR"}  # fmt: skip
#: The column with the reason in the table of rejected rows.
MISFIT = f"{PREFIX}misfit"


def too_many_partitions(table: str, partitions: int, partitions_max: int) -> TooManyPartitions:
    """Return the error of rows in too many partitions."""
    return TooManyPartitions(
        f"{table}: the rows lie in {partitions} partitions, and {partitions_max} are allowed at a time. Nothing was "
        "written. Send rows of fewer partitions at a time."
    )


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Adjacent rows of one partition, in the order of storage. `first` is the number of the first one."""

    first: int
    rows: int
    partition: str


@dataclass(slots=True)
class StagedBatch:
    """The rows of a batch in the order of their parts. Valid until the context of `stage_rows` ends."""

    con: duckdb.DuckDBPyConnection
    context: WriteContext
    folder: Path
    #: Column -> DuckDB type in the parts.
    columns: Mapping[str, str]
    ranges: Sequence[PartitionRange]
    #: The number of rejected rows (those for the quarantine), and their columns.
    misfits: int
    batch_columns: Mapping[str, str]
    source: str
    #: The table's spec, with smaller row groups if the table's would not fit into memory.
    spec: TableSpec
    #: The size of the batch in Arrow, in bytes; None if a query transformed the rows.
    bytes: int | None
    #: The rows; None if they are in the table `staged` of the sandbox.
    in_arrow: ArrowRows | None = None

    @property
    def rows(self) -> int:
        """The number of rows that become parts."""
        return sum(r.rows for r in self.ranges)

    @property
    def threads(self) -> int:
        """The number of parts to encode at a time: DuckDB's threads, which depend on the memory."""
        [(threads,)] = self.con.execute("SELECT CAST(current_setting('threads') AS BIGINT)").fetchall()
        return int(threads)

    def check_partitions(self, partitions_max: int | None) -> None:
        """Raise TooManyPartitions if the rows are in more partitions (None: no limit)."""
        if partitions_max is not None and len(self.ranges) > partitions_max:
            raise too_many_partitions(self.context.table, len(self.ranges), partitions_max)

    def read(self, first: int, rows: int) -> Iterator[pa.Table]:
        """Yield adjacent rows as tables with the types of their parts. It is thread-safe.

        Raises InvalidOption, InvalidBatch, DuckDB's errors.
        """
        if self.in_arrow is not None:
            yield self.in_arrow.gather(first, rows)
            return
        schema = arrow_schema(self.columns)
        try:
            with self.con.cursor() as con:
                for batch in con.execute(self._query(first, rows)).to_arrow_reader(batch_rows(self.spec)):
                    yield pa.Table.from_batches([batch]).cast(schema)
        except duckdb.OutOfMemoryException as error:
            raise too_little_memory(self.context.table, error) from None
        except (duckdb.DataError, duckdb.InvalidInputException) as error:
            raise unreadable(self.context.table, error) from None

    @property
    def is_encodable(self) -> bool:
        """Whether pyarrow writes the types of all columns as DuckDB does."""
        return arrow_schema(self.columns) is not None

    def settings(self) -> ParquetSettings:
        """Return the settings of the parts. Parts of few rows that are encoded with one object have equal encodings."""
        return ParquetSettings(self.context.table, self.spec, INSERT_LEVEL)

    def encode(
        self, tables: Iterable[pa.Table], piece: PartitionRange, settings: ParquetSettings, path: Path | None
    ) -> EncodedPart:
        """Encode the rows of a piece as one Parquet file, in memory or at `path`. It is thread-safe.

        Raises as `read`.
        """
        statistics = statistics_columns(self.context.spec.sort_by, self.columns, self.context.expressions)
        if self.is_encodable or path is None:
            return encode_tables(tables, settings, statistics, rows=piece.rows, path=path)
        with self.con.cursor() as con:
            query = self._query(piece.first, piece.rows)
            return write_query(con, query, self.columns, settings, statistics, rows=piece.rows, path=path)

    def _query(self, first: int, rows: int) -> str:
        columns = ", ".join(f"{staged} AS {quote_name(c)}" for c, staged in staged_names(self.columns).items())
        return f"SELECT {columns} FROM staged WHERE rowid BETWEEN {first} AND {first + rows - 1}"

    def stream(self) -> pa.RecordBatchReader:
        """Return the staged rows, with all columns of the table."""
        columns = ", ".join(["*", *lacking_columns(self.context.known_schema, self.columns)])
        rows = f"({self._query(0, self.rows)})"
        if self.in_arrow is not None:
            rows = f"{PREFIX}ordered"
            schema = decoded(self.in_arrow.table.slice(0, 0)).schema
            self.con.register(rows, pa.RecordBatchReader.from_batches(schema, self.in_arrow.batches()))
        return self.con.execute(f"SELECT {columns} FROM {rows}").to_arrow_reader(batch_rows(self.spec))

    def misfits_digest(self) -> str:
        """Return a digest of the rejected rows in any order: sixteen hexadecimal digits."""
        row = f"md5_number_lower({MISFIT} || {self._misfit_as_json()})"
        [(total,)] = self.con.execute(f"SELECT sum(CAST({row} AS HUGEINT)) FROM misfits").fetchall()
        return f"{int(total) % 2**64:016x}"

    def quarantined_rows(self, now_ms: int) -> pa.RecordBatchReader:
        """Return the rejected rows with QUARANTINE_COLUMNS."""
        return self.con.execute(
            f"SELECT make_timestamptz({now_ms * 1000}) AS quarantined_at, {quote_text(self.source)} AS source, "
            f"{MISFIT} AS reason, {self._misfit_as_json()} AS row FROM misfits"
        ).to_arrow_reader(ROWS_PER_BATCH)

    def _misfit_as_json(self) -> str:
        fields = []
        for column, type_ in self.batch_columns.items():
            name, key = quote_name(column), quote_text(json.dumps(column, ensure_ascii=False) + ":")
            # `to_json` would parse a JSON value again and turn its numbers into binary fractions.
            text = f"CAST(to_json({name}) AS VARCHAR)" if type_ != MIXED else f"CAST({name} AS VARCHAR)"
            fields.append(f"{key} || coalesce({text}, 'null')")
        return "'{' || " + " || ',' || ".join(fields) + " || '}'" if fields else "'{}'"


def staged_names(columns: Mapping[str, str]) -> dict[str, str]:
    """Return column -> its name in the staged table, where no column may be called `rowid`."""
    return {column: f"{PREFIX}c{n}" for n, column in enumerate(columns)}


def lacking_columns(table_columns: Mapping[str, str], columns: Mapping[str, str]) -> list[str]:
    """Return SQL of the columns that the batch lacks. They are null to an expression, and not stored."""
    return [f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in table_columns.items() if c not in columns]
