"""Results of user queries over stored rows, written as one file that replaces these: for merges and rewrites.

Our own SQL reads the parts and streams their rows into a sandbox. The user's query runs only there, over a table that
it may reference several times. Its result is cast to the table's types. It is rejected if that changes a value, or if a
row would move to another partition. All checks happen before anything is put.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.errors import InvalidBatch, InvalidQuery, InvariantViolated, SchemaConflict
from icedb.format.keys import decode_partition, encode_partition
from icedb.reader.scan_sql import relation, visible_partitions
from icedb.sql.casts import EXAMPLE_LENGTH_MAX, Conversion, fit_answer
from icedb.sql.column_stats import statistics_columns
from icedb.sql.connections import RESERVED, ROWS_PER_BATCH, quote_name
from icedb.sql.merge_strategies import MERGED, check_batch_columns, merge_sql
from icedb.sql.partition_expressions import PartitionExpression, parse_partition_by, partition_types
from icedb.sql.types import check_columns, describe, storage_type
from icedb.sql.user_queries import UserQuery, check_output, check_query
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.writer.encoding.parquet_encoder import MERGE_LEVEL, ParquetSettings
from icedb.writer.encoding.parquet_file import EncodedPart, write_query

__all__ = ["QueryOutput", "RewriteQuery", "write_query_output", "query_of_merges"]

_STREAM = f"{RESERVED}stream"
_ANSWER = f"{RESERVED}answer"
_VALUE = f"{RESERVED}p"


@dataclass(frozen=True, slots=True)
class RewriteQuery:
    """A checked query over the rows of some parts. `what` is its name in messages.

    With `new_columns`, its result may have columns that the table lacks. With `lenient`, dropping a column by which the
    table is partitioned or sorted is a warning instead of an error, as IceDB v3 programs expect.
    """

    query: UserQuery
    what: str
    new_columns: bool = False
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """The columns of a result with their DuckDB types, and its file, which is None for an empty result."""

    columns: Mapping[str, str]
    part: EncodedPart | None


def query_of_merges(handle: Handle, schema: Mapping[str, str], *, lenient: bool = False) -> RewriteQuery | None:
    """Return the query that merges of the table run, if any. Raises InvalidQuery, and InvalidBatch as `merge_sql`."""
    spec = handle.spec
    if spec.merge_query:
        query = check_query(spec.merge_query, relation=MERGED, table=handle.table, what="merge_query", v3=lenient)
        return RewriteQuery(query, "merge_query", lenient=lenient)
    if spec.merging is not None:
        sql = merge_sql(spec.merging, schema, table=handle.table)
        return RewriteQuery(UserQuery(sql, MERGED), type(spec.merging).__name__, lenient=lenient)
    return None


def write_query_output(
    handle: Handle,
    rewrite_query: RewriteQuery,
    inputs: Sequence[Part],
    schema: Mapping[str, str],
    path: Path,
    *,
    reader: duckdb.DuckDBPyConnection,
    sandbox: duckdb.DuckDBPyConnection,
) -> QueryOutput:
    """Write the result of a query over the rows of `inputs`, parts of one partition, to the file `path`.

    `reader` reads the parts. `sandbox` runs the query, and can only access the folder of `path`. Both are left
    unchanged. Raises InvalidQuery, InvalidBatch for rows of other partitions, SchemaConflict, UnsupportedType,
    InvariantViolated, and DuckDB's errors if parts cannot be read or memory is exhausted.
    """
    types = visible_partitions(schema, partition_types(handle.expressions, schema, table=handle.table))
    with sandbox.cursor() as con:
        _load(handle, rewrite_query, inputs, schema, types, reader=reader, con=con)
        work = _Work(handle, rewrite_query, inputs[0].partition, schema, types, con)
        try:
            return work.copy(path)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            raise work.refused(
                f"cannot be answered ({str(error).splitlines()[0]}). Correct it; the rows have the columns "
                f"{sorted({**schema, **types})}"
            ) from None


def _load(
    handle: Handle,
    rewrite_query: RewriteQuery,
    inputs: Sequence[Part],
    schema: Mapping[str, str],
    types: Mapping[str, str],
    *,
    reader: duckdb.DuckDBPyConnection,
    con: duckdb.DuckDBPyConnection,
) -> None:
    """Load the parts' rows into a table of the sandbox, with the table's columns and types and the partition's."""
    # Cast on both sides: parts may have other types, and Arrow cannot express all of DuckDB's types.
    select = ", ".join(f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in {**schema, **types}.items())
    with reader.cursor() as parts:
        parts.execute("SET arrow_lossless_conversion = true")  # keeps UUIDs
        rows = relation(handle, inputs, schema, partition_types(handle.expressions, schema, table=handle.table))
        con.register(_STREAM, parts.execute(f"SELECT {select} FROM ({rows})").to_arrow_reader(ROWS_PER_BATCH))
        name = quote_name(rewrite_query.query.relation)
        [(loaded,)] = con.execute(f"CREATE TEMP TABLE {name} AS SELECT {select} FROM {_STREAM}").fetchall()
        con.unregister(_STREAM)
    counts = [p.rows for p in inputs]
    if None not in counts and loaded != sum(c or 0 for c in counts):
        raise InvariantViolated(
            f"{handle.table}: {len(inputs)} parts of '{inputs[0].partition}' gave {loaded} rows instead of "
            f"{sum(c or 0 for c in counts)}. Nothing was published."
        )


@dataclass(slots=True)
class _Work:
    """The evaluation of one query, in a sandbox that has the query's relation."""

    handle: Handle
    rewrite_query: RewriteQuery
    partition: str
    schema: Mapping[str, str]
    types: Mapping[str, str]
    con: duckdb.DuckDBPyConnection

    def refused(self, why: str) -> InvalidQuery:
        sql = self.rewrite_query.query.sql[:200]
        return InvalidQuery(
            f"{self.handle.table}: {self.rewrite_query.what} {sql!r}, run over the rows of '{self.partition}', {why}. "
            "Nothing was changed."
        )

    def copy(self, path: Path) -> QueryOutput:
        stored = self._ask()
        columns, fitted = self._fit(stored)
        self._check_required(columns, fitted)
        [(rows,)] = self.con.execute(f"SELECT count(*) FROM {_ANSWER}").fetchall()
        if not rows:
            return QueryOutput(columns, None)
        self._check_partition(columns, fitted, rows)
        self.con.execute(f"DROP TABLE {quote_name(self.rewrite_query.query.relation)}")  # its memory is for sorting
        order = ", ".join(quote_name(c) for c in self.handle.spec.sort_by if c in columns)
        query = f"SELECT * FROM ({fitted}){' ORDER BY ' + order if order else ''}"
        statistics = statistics_columns(self.handle.spec.sort_by, columns, self.handle.expressions)
        settings = ParquetSettings(self.handle.table, self.handle.spec, MERGE_LEVEL)
        part = write_query(self.con, query, columns, settings, statistics, rows=rows, path=path)
        if part.file.rows != rows:
            raise InvariantViolated(
                f"{self.handle.table}: {part.file.rows} of {rows} rows of the result for '{self.partition}' were "
                "written. Nothing was published."
            )
        return QueryOutput(columns, part)

    def _ask(self) -> dict[str, str]:
        """Run the query once, because each run may return other rows. Return the table's name of each result column."""
        sql, spec = self.rewrite_query.query.sql, self.handle.spec
        names = [str(name) for name, *_ in self.con.execute(f"DESCRIBE {sql}").fetchall()]
        needed = {c.casefold() for c in (*spec.sort_by, *spec.required)}
        needed = needed.union(*(e.columns for e in self._expressions()))
        check_output(
            names,
            table_columns=self.schema,
            inputs=[*self.schema, *self.types],
            needed=[c for c in self.schema if c.casefold() in needed],
            query=self.rewrite_query.query,
            what=self.rewrite_query.what,
            table=self.handle.table,
            new_columns=self.rewrite_query.new_columns and spec.schema_policy == "open",
            lenient=self.rewrite_query.lenient,
        )
        spelled = {c.casefold(): c for c in self.schema}
        in_path = {n.casefold() for n in self.types}
        stored = {n: spelled.get(n.casefold(), n) for n in names if n.casefold() not in in_path}
        if not stored:
            raise self.refused(f"gives no column to store: {names}. Select the columns to store")
        select = ", ".join(map(quote_name, stored))
        self.con.execute(f"CREATE TEMP TABLE {_ANSWER} AS SELECT {select} FROM (\n{sql}\n)")
        return stored

    def _fit(self, stored: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """Return the columns of the new part, and the SQL of its rows. No value is changed."""
        sources = describe(self.con, f"SELECT * FROM {_ANSWER}")
        columns: dict[str, str] = {}
        select: list[str] = []
        conversions: list[Conversion] = []
        for name, column in stored.items():
            source, target = sources[name], self.schema.get(column)
            columns[column] = target or storage_type(source, column=column, table=self.handle.table)
            sql = f"CAST({quote_name(name)} AS {columns[column]})"
            if target is not None and source != target:
                what, table = f"the result of {self.rewrite_query.what}", self.handle.table
                conversions.append(fit_answer(self.con, _ANSWER, name, source, target, table=table, what=what))
                sql = conversions[-1].sql
            select.append(f"{sql} AS {quote_name(column)}")
        check_columns(columns, self.schema, table=self.handle.table)
        check_batch_columns(self.handle.spec.merging, columns, table=self.handle.table)
        self._check_values([c for c in conversions if c.misfit])
        return columns, f"SELECT {', '.join(select)} FROM {_ANSWER}"

    def _check_values(self, conversions: Sequence[Conversion]) -> None:
        if not conversions:
            return
        examples = ", ".join(
            f"any_value(CAST({quote_name(c.column)} AS VARCHAR)) FILTER (WHERE {c.misfit})" for c in conversions
        )
        [misfits] = self.con.execute(f"SELECT {examples} FROM {_ANSWER}").fetchall()
        for conversion, example in zip(conversions, misfits, strict=True):
            if example is not None:
                raise SchemaConflict(
                    f"{self.handle.table}: {self.rewrite_query.what} gives column '{conversion.column}' of "
                    f"'{self.partition}' as {conversion.source}, and the table has it as {conversion.target}, which "
                    f"cannot hold {example[:EXAMPLE_LENGTH_MAX]}, for example. Cast or round it there. Nothing was "
                    "changed.",
                    column=conversion.column,
                    types=(conversion.target, conversion.source),
                )

    def _check_required(self, columns: Mapping[str, str], fitted: str) -> None:
        required = [c for c in self.handle.spec.required if c in columns]
        nulls = " OR ".join(f"{quote_name(c)} IS NULL" for c in required)
        if nulls and self.con.execute(f"SELECT count(*) FROM ({fitted}) WHERE {nulls}").fetchone() != (0,):
            raise self.refused(f"gives rows in which one of {required} is null, and the table requires it")

    def _expressions(self) -> list[PartitionExpression]:
        """Return the expressions, of any revision of the spec, whose values are in the partition's path."""
        spec, names = self.handle.spec, decode_partition(self.partition)
        earlier = parse_partition_by(spec.earlier_partition_by, table=self.handle.table)
        return [e for e in (*self.handle.expressions, *earlier) if e.name in names and not e.path_only]

    def _check_partition(self, columns: Mapping[str, str], fitted: str, rows: int) -> None:
        """Raise InvalidBatch unless each row of the result has the partition values of an input row."""
        expressions = self._expressions()
        if not expressions:
            return
        values = ", ".join(f"(\n{e.sql}\n) AS {_VALUE}{n}" for n, e in enumerate(expressions))
        lacking = "".join(f", CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in self.schema.items() if c not in columns)
        before = f"SELECT DISTINCT {values} FROM {quote_name(self.rewrite_query.query.relation)}"
        after = f"SELECT {values}, count(*) AS n FROM (SELECT *{lacking} FROM ({fitted})) GROUP BY ALL"
        same = " AND ".join(f"a.{_VALUE}{n} IS NOT DISTINCT FROM b.{_VALUE}{n}" for n in range(len(expressions)))
        texts = ", ".join(f"CAST(a.{_VALUE}{n} AS VARCHAR)" for n in range(len(expressions)))
        outside = self.con.execute(
            f"SELECT [{texts}]::VARCHAR[], a.n FROM ({after}) AS a WHERE NOT EXISTS "
            f"(SELECT 1 FROM ({before}) AS b WHERE {same}) ORDER BY ALL"
        ).fetchall()
        if outside:
            names = [e.name for e in expressions]
            example = encode_partition(dict(zip(names, outside[0][0], strict=True)))
            raise InvalidBatch(
                f"{self.handle.table}: {sum(n for _, n in outside)} of {rows} rows that {self.rewrite_query.what} "
                f"gives are outside '{self.partition}', for example in '{example}'. Leave them out, or move them with "
                "overwrite. Nothing was changed."
            )
