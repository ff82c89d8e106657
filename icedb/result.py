"""The answer to a query over a table: lazy, and as whatever its reader works with.

    result = table.query("SELECT event, count(*) FROM t GROUP BY ALL")
    print(result)                                  # as a table, the first rows
    result.fetchall(); result.to_arrow(); result.to_polars(); result.to_pandas()

It stands for a DuckDB relation and has all of its methods. Rows are read when somebody asks for them, and a part may be
gone by then: an error says what that means, as an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from icedb.extras import imported

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame

__all__ = ["QueryResult"]

ROWS_PER_FETCH = 10_000


class QueryResult:
    """What `Table.query` and `Snapshot.query` give. Iterating gives rows, as tuples.

    Every method raises MissingPart, SnapshotExpired, AccessDenied, StoreUnavailable, and DuckDB's own errors for what
    the query does. It is an Arrow stream, too (`__arrow_c_stream__`), for whatever takes one.
    """

    def __init__(self, relation: duckdb.DuckDBPyRelation, explained: Callable[[Exception], Exception]) -> None:
        #: DuckDB's relation itself, whose errors are DuckDB's.
        self.relation = relation
        self._explained = explained

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # whoever copies or pickles asks for these before there is a relation
            raise AttributeError(name)
        found = getattr(self.relation, name)
        return self._told(found) if callable(found) else found

    def __repr__(self) -> str:
        """The first rows, as a table."""
        return str(self._told(self.relation.__repr__)())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self.fetchmany(ROWS_PER_FETCH):
            yield from rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._told(self.relation.__arrow_c_stream__)(requested_schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.relation.columns)

    @property
    def types(self) -> list[str]:
        """The DuckDB types of the columns."""
        return [str(type_) for type_ in self.relation.types]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows (that were not fetched yet)."""
        rows: list[tuple[Any, ...]] = self._told(self.relation.fetchall)()
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None."""
        row: tuple[Any, ...] | None = self._told(self.relation.fetchone)()
        return row

    def fetchmany(self, rows: int = 1) -> list[tuple[Any, ...]]:
        """The next rows, at most so many."""
        found: list[tuple[Any, ...]] = self._told(self.relation.fetchmany)(rows)
        return found

    def to_arrow(self) -> pa.Table:
        """A pyarrow Table of all rows."""
        return self._told(self.relation.to_arrow_table)()

    def to_pandas(self) -> PandasFrame:
        """A pandas DataFrame of all rows, as DuckDB makes it. Raises MissingExtra."""
        imported("pandas", extra="pandas")
        return self._told(self.relation.df)()

    def to_polars(self) -> PolarsFrame:
        """A Polars DataFrame of all rows. Raises MissingExtra."""
        imported("polars", extra="polars")
        frame: PolarsFrame = self._told(self.relation.pl)()
        return frame

    # DuckDB's names of them, of which more than one habit is made.
    to_arrow_table = fetch_arrow_table = to_arrow
    df = to_df = fetchdf = to_pandas
    pl = to_polars

    def _told(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method whose errors are explained, and whose relation, if it gives one, is such a result again."""

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            try:
                answer = method(*args, **options)
            except duckdb.Error as error:
                raise self._explained(error) from None
            return QueryResult(answer, self._explained) if isinstance(answer, duckdb.DuckDBPyRelation) else answer

        return call
