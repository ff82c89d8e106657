"""The answer to a query over a table: lazy, and as whatever its reader works with.

    result = table.query("SELECT event, count(*) FROM t GROUP BY ALL")
    print(result)                                  # as a table, the first rows
    result.fetchall(); result.to_arrow(); result.to_polars(); result.to_pandas()

It stands for a DuckDB relation, to which it passes on what is not here. Rows are read when somebody asks for them, and
a part may be gone by then: an error says what that means, as an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from icedb.errors import InvalidOption
from icedb.sql.connections import ROWS_PER_BATCH
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
    """What `Table.query` and `Snapshot.query` give. Iterating gives rows, as tuples.

    Every method raises MissingPart, SnapshotExpired, AccessDenied, StoreUnavailable, and InvalidQuery, with DuckDB's
    text, for a query that fails while it runs. It is an Arrow stream, too (`__arrow_c_stream__`), for whatever takes
    one. Frames have all rows, whatever was fetched before.
    """

    def __init__(
        self,
        relation: duckdb.DuckDBPyRelation,
        explained: Callable[[Exception], Exception],
        again: Callable[[], duckdb.DuckDBPyRelation] | None = None,
    ) -> None:
        """`again` gives the same relation on a connection of its own; without it, what is read bit by bit is kept."""
        #: DuckDB's relation itself, whose errors are DuckDB's.
        self.relation = relation
        self._explained = explained
        self._again = again
        self._fetching: duckdb.DuckDBPyRelation | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "relation":  # a copy asks for these before it has any
            raise AttributeError(name)
        with self._telling():
            found = getattr(self.relation, name)
        return self._told(found) if callable(found) else found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.relation)})

    def __repr__(self) -> str:
        """The first rows, as a table."""
        with self._telling():
            return repr(self.relation)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with self._telling():
            rows = self._apart()
            while found := rows.fetchmany(ROWS_PER_FETCH):
                yield from found

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        with self._telling():
            return self._apart().__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.relation.columns)

    @property
    def types(self) -> list[str]:
        """The DuckDB types of the columns."""
        return [str(type_) for type_ in self.relation.types]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that were not fetched yet; when all were, all of them again."""
        with self._telling():
            rows, self._fetching = self.relation if self._fetching is None else self._fetching, None
            return rows.fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next rows, at most `size`; none at the end."""
        _check_size("size", size, 0)
        with self._telling():
            if self._fetching is None:  # not asked as a truth value, which DuckDB would count rows for
                self._fetching = self._apart()
            return self._fetching.fetchmany(size)

    def query(self, name: str, sql: str) -> QueryResult:
        """The answer to a query over this one, which the query knows by `name`. Lazy, as this one is."""
        with self._telling():
            answer = self.relation.query(name, sql)
        again = self._again
        return QueryResult(answer, self._explained, None if again is None else lambda: again().query(name, sql))

    def to_arrow(self, *args: Any, **options: Any) -> pa.Table:
        """A pyarrow Table of all rows."""
        return self._told(self.relation.to_arrow_table)(*args, **options)

    def to_arrow_reader(self, batch_size: int = ROWS_PER_BATCH) -> pa.RecordBatchReader:
        """The rows as Arrow batches of at most `batch_size`, read as they are asked for."""
        _check_size("batch_size", batch_size, 1)
        with self._telling():
            reader = self._apart().to_arrow_reader(batch_size)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._telling():
                yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def to_pandas(self, *args: Any, **options: Any) -> PandasFrame:
        """A pandas DataFrame of all rows, as DuckDB makes it. Raises MissingExtra."""
        import_optional("pandas", extra="pandas")
        return self._told(self.relation.df)(*args, **options)

    def to_polars(self, *args: Any, **options: Any) -> PolarsFrame:
        """A Polars DataFrame of all rows. Raises MissingExtra."""
        import_optional("polars", extra="polars")
        frame: PolarsFrame = self._told(self.relation.pl)(*args, **options)
        return frame

    # DuckDB's names of them, of which more than one habit is made.
    to_arrow_table = fetch_arrow_table = to_arrow
    fetch_record_batch = fetch_arrow_reader = to_arrow_reader
    df = to_df = fetchdf = to_pandas
    pl = to_polars

    def _apart(self) -> duckdb.DuckDBPyRelation:
        """A relation to read bit by bit: DuckDB ends such a reading, in silence, when its connection is asked again."""
        return self._again() if self._again is not None else self.relation.select("*").execute()

    def _told(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method whose errors are explained, and whose relation, if it gives one, is such a result again."""

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with self._telling():
                answer = method(*args, **options)
            return QueryResult(answer, self._explained) if isinstance(answer, duckdb.DuckDBPyRelation) else answer

        return call

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._explained(error) from None


def _check_size(name: str, size: int, least: int) -> None:
    if not least <= size <= _SIZE_MAX:
        raise InvalidOption(f"{name} is out of range: give a number of rows from {least} to {_SIZE_MAX:,}.")
