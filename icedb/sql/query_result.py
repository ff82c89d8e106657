"""The lazy result of a query over a table, as rows, Arrow, pandas or Polars.

It wraps a DuckDB relation and forwards every other attribute to it. Rows are read when the caller fetches them. A part
may be deleted by then, so errors of DuckDB and Arrow are translated into errors of `icedb.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from icedb.errors import InvalidOption
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.sql.selects import check_select
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame

__all__ = ["QueryResult"]

ROWS_PER_FETCH = 10_000
#: DuckDB counts rows of a batch in 32 bits.
_SIZE_MAX = 2**31 - 1


@checks_arguments
class QueryResult:
    """The lazy result of `Table.query` and `Snapshot.query`.

    Iteration yields rows as tuples. Libraries that read Arrow streams (`__arrow_c_stream__`) accept the result as it
    is. Arrow tables and frames contain all rows, also those that were fetched before. All attributes and methods of
    `duckdb.DuckDBPyRelation` are available too.

    Raises:
        MissingPart: A live part is missing from the store.
        SnapshotExpired: Cleanup has deleted a part of the snapshot.
        AccessDenied: The store rejects the request.
        StoreUnavailable: The store did not answer.
        InvalidQuery: The query failed while it ran. The message contains DuckDB's text.

    Every method can raise these errors.

    Example:
        ```python
        result = table.query("SELECT event, count(*) FROM t GROUP BY ALL")
        print(result)  # the first rows, as a table
        frame = result.to_polars()
        ```
    """

    def __init__(
        self,
        relation: duckdb.DuckDBPyRelation,
        translate: Callable[[Exception], Exception],
        again: Callable[[], duckdb.DuckDBPyRelation] | None = None,
    ) -> None:
        """Wrap a relation. `again` returns the same relation on a separate connection.

        Without `again`, a result that is read in pieces is kept in memory.
        """
        #: The relation itself. Its methods raise DuckDB's errors.
        self.relation = relation
        self._translate = translate
        self._again = again
        self._fetching: duckdb.DuckDBPyRelation | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "relation":  # `copy` reads these before __init__ has run
            raise AttributeError(name)
        with self._translate_errors():
            attribute = getattr(self.relation, name)
        return self._wrap(attribute) if callable(attribute) else attribute

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.relation)})

    def __repr__(self) -> str:
        """Return the first rows as a table."""
        with self._translate_errors():
            return repr(self.relation)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with self._translate_errors():
            relation = self._separate_relation()
            while rows := relation.fetchmany(ROWS_PER_FETCH):
                yield from rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        with self._translate_errors():
            return self._separate_relation().__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.relation.columns)

    @property
    def types(self) -> list[str]:
        """The DuckDB types of the columns."""
        return [str(type_) for type_ in self.relation.types]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Fetch the remaining rows.

        Returns:
            The rows that were not fetched yet, as tuples. If all were fetched, all rows again.

        Example:
            ```python
            rows = table.query("SELECT event, count(*) FROM t GROUP BY ALL").fetchall()
            ```
        """
        with self._translate_errors():
            rows, self._fetching = self.relation if self._fetching is None else self._fetching, None
            return rows.fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """Fetch the next row.

        Returns:
            The row as a tuple, or None at the end.

        Example:
            ```python
            (count,) = table.query("SELECT count(*) FROM t").fetchone()
            ```
        """
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Fetch the next rows.

        Args:
            size: The maximum number of rows.

        Returns:
            Rows as tuples; an empty list at the end.

        Raises:
            InvalidOption: `size` is negative or over 2,147,483,647.

        Example:
            ```python
            result = table.query("SELECT * FROM t ORDER BY ts")
            while rows := result.fetchmany(1000):
                send(rows)
            ```
        """
        _check_size("size", size, 0)
        with self._translate_errors():
            if self._fetching is None:  # not by truth value, for which DuckDB would count the rows
                self._fetching = self._separate_relation()
            return self._fetching.fetchmany(size)

    def query(self, name: str, sql: str) -> QueryResult:
        """Query this result.

        Args:
            name: The name of this result in `sql`.
            sql: A DuckDB query.

        Returns:
            A lazy result.

        Raises:
            InvalidOption: `sql` is not one SELECT, or calls a function that does more than read.
            InvalidQuery: DuckDB rejects `sql`.

        Example:
            ```python
            daily = table.query("SELECT d, count(*) AS events FROM t GROUP BY d")
            busiest = daily.query("daily", "SELECT * FROM daily ORDER BY events DESC LIMIT 3")
            ```
        """
        with self._translate_errors(), scratch_connection() as con:
            check_select(con, sql, table="the query of a result", relation=name)
            relation = self.relation.query(name, sql)
        if relation is None:
            raise InvalidOption(f"the query of a result explains a query: {sql.strip()[:80]!r}. Call explain() of it.")
        again = self._again
        return QueryResult(relation, self._translate, None if again is None else lambda: again().query(name, sql))

    def to_arrow(self, *args: Any, **options: Any) -> pa.Table:
        """Return all rows as a pyarrow Table.

        Example:
            ```python
            arrow = table.query("SELECT * FROM t WHERE user_id = 7").to_arrow()
            ```
        """
        return self._wrap(self.relation.to_arrow_table)(*args, **options)

    def to_arrow_reader(self, batch_size: int = ROWS_PER_BATCH) -> pa.RecordBatchReader:
        """Return the rows as a stream of Arrow batches, which are read on demand.

        Args:
            batch_size: The maximum number of rows in a batch.

        Raises:
            InvalidOption: `batch_size` is below 1 or over 2,147,483,647.

        Example:
            ```python
            for batch in table.query("SELECT * FROM t").to_arrow_reader():
                send(batch)
            ```
        """
        _check_size("batch_size", batch_size, 1)
        with self._translate_errors():
            reader = self._separate_relation().to_arrow_reader(batch_size)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._translate_errors():
                yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def to_pandas(self, *args: Any, **options: Any) -> PandasFrame:
        """Return all rows as a pandas DataFrame, with DuckDB's conversion of types.

        Raises:
            MissingExtra: pandas is not installed.

        Example:
            ```python
            frame = table.query("SELECT * FROM t").to_pandas()
            ```
        """
        import_optional("pandas", extra="pandas")
        return self._wrap(self.relation.df)(*args, **options)

    def to_polars(self, *args: Any, **options: Any) -> PolarsFrame:
        """Return all rows as a Polars DataFrame.

        Raises:
            MissingExtra: Polars is not installed.

        Example:
            ```python
            frame = table.query("SELECT * FROM t").to_polars()
            ```
        """
        import_optional("polars", extra="polars")
        frame: PolarsFrame = self._wrap(self.relation.pl)(*args, **options)
        return frame

    # DuckDB has several names for each of these methods.
    to_arrow_table = fetch_arrow_table = to_arrow
    fetch_record_batch = fetch_arrow_reader = to_arrow_reader
    df = to_df = fetchdf = to_pandas
    pl = to_polars

    def _separate_relation(self) -> duckdb.DuckDBPyRelation:
        """Return a relation to read in pieces. DuckDB silently ends such a read when its connection runs a query."""
        return self._again() if self._again is not None else self.relation.select("*").execute()

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with translated errors. If it returns a relation, that becomes a QueryResult."""

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with self._translate_errors():
                value = method(*args, **options)
            return QueryResult(value, self._translate) if isinstance(value, duckdb.DuckDBPyRelation) else value

        return call

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._translate(error) from None


def _check_size(name: str, size: int, least: int) -> None:
    if not least <= size <= _SIZE_MAX:
        raise InvalidOption(f"{name} is {size}, which is out of range. Pass a number from {least} to {_SIZE_MAX:,}.")
