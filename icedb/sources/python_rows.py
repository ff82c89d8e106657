"""Batches of rows as dicts: all rows are observed first, then converted to Arrow chunk by chunk.

The columns are the union over all rows, in order of appearance. A column has the table's type if that holds all its
values unchanged, else the natural type of the values. Later steps check that type against the table.

A Python text for a column of JSON is JSON already: `'[1]'` is a list, and a string is `'"x"'`. Every other value is
encoded as JSON. In JSON lines a text is a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icedb.errors import IceDBError, InvalidBatch, SchemaConflict
from icedb.sources.batch import CHUNK_ROWS, Batch, OnConflict
from icedb.sources.inference.arrow_builder import build_array
from icedb.sources.inference.common_type import MixedTypes, fits, natural_type
from icedb.sources.inference.fields import columns_of
from icedb.sources.inference.python_values import UnknownValue
from icedb.sources.inference.type_tree import ColumnType, arrow_type, is_arrow_exact, parse_type, sql_type
from icedb.sources.inference.value_types import Shape, UnsupportedValue
from icedb.sql.types import storage_type

__all__ = ["BatchBuilder", "RowObserver", "open_rows"]

_JSON = ColumnType("JSON")
# The number of values that are kept as columns between the two passes, at 8 bytes each beside the rows.
KEPT_VALUES = 4_000_000


def open_rows(
    rows: Sequence[Any],
    *,
    table: str,
    table_columns: Mapping[str, str],
    on_conflict: OnConflict,
    failed: Callable[[IceDBError], None],
) -> Batch:
    """Open a sequence of dicts as a batch. Raises InvalidBatch, SchemaConflict, UnsupportedType."""
    observer = RowObserver(table, table_columns, failed)
    starts = range(0, len(rows), CHUNK_ROWS)
    kept: dict[int, Mapping[str, list[Any]]] = {}
    for start in starts:
        chunk_columns = observer.observe(rows[start : start + CHUNK_ROWS], start)
        if start * len(chunk_columns) < KEPT_VALUES:
            kept[start] = chunk_columns
    columns = observer.columns(on_conflict)

    def chunks() -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
        for start in starts:
            chunk = rows[start : start + CHUNK_ROWS]
            yield len(chunk), kept.pop(start) if start in kept else columns_of(chunk)

    return columns.batch(chunks(), source="insert")


def _row(number: int) -> str:
    return f"row {number}"


@dataclass(frozen=True, slots=True)
class _ColumnPlan:
    """The type in which a column is built, and the type to which a read casts it."""

    type: ColumnType
    cast: str = ""
    keep_json: bool = True
    is_mixed: bool = False


@dataclass(slots=True)
class RowObserver:
    """The columns and types of rows that are to be built. `where` names a row in messages.

    `json`: all numbers are of one kind. `failed` gets the errors that occur when the rows are built.
    """

    table: str
    table_columns: Mapping[str, str]
    failed: Callable[[IceDBError], None]
    json: bool = False
    where: Callable[[int], str] = _row
    rows: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)

    def observe(self, rows: Sequence[Any], first: int) -> Mapping[str, list[Any]]:
        """Observe rows, of which the first has that number, and return their columns. Raises InvalidBatch."""
        self.rows += len(rows)
        are_dicts = set(map(type, rows)) <= {dict}
        columns = columns_of(rows) if are_dicts else {}
        if not are_dicts or not all(type(name) is str for name in columns):
            for number, row in enumerate(rows, first):
                self._check_row(row, number)
            columns = columns_of(rows)
        for name, values in columns.items():
            self.observe_column(name, values, first)
        return columns

    def _check_row(self, row: object, number: int) -> None:
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"{self.table}: row {number} is a {type(row).__name__}, not a dict.")
        for name in row:
            if not isinstance(name, str):
                raise InvalidBatch(f"{self.table}: row {number} has the column name {name!r}, which is not text.")

    def observe_column(self, name: str, values: list[Any], first: int) -> None:
        """Observe values of one column, of which the first is in the row of that number. Raises InvalidBatch."""
        want = parse_type(self.table_columns[name]) if name in self.table_columns else None
        if name not in self.shapes:
            self.shapes[name] = Shape(name)
        try:
            self.shapes[name].observe(values, range(first, first + len(values)), want)
        except UnsupportedValue as error:
            where = f"{self.where(error.row)} of column '{error.path}'"
            raise InvalidBatch(f"{self.table}: {where} holds {error.reason}.") from None
        except RecursionError:
            raise self._too_deep(name) from None

    def _too_deep(self, name: str) -> InvalidBatch:
        return InvalidBatch(f"{self.table}: column '{name}' holds a value that is nested too deep. Store it as text.")

    def columns(self, on_conflict: OnConflict) -> BatchBuilder:
        """Return the builder of the observed rows. Raises SchemaConflict, InvalidBatch, UnsupportedType."""
        if self.rows and not self.shapes:
            raise InvalidBatch(f"{self.table}: none of the {self.rows} rows has a column.")
        columns = {}
        for name, shape in self.shapes.items():
            try:
                columns[name] = self._column(name, shape, on_conflict)
            except RecursionError:
                raise self._too_deep(name) from None
        return BatchBuilder(self.table, columns, json=self.json, failed=self.failed)

    def _column(self, name: str, shape: Shape, on_conflict: OnConflict) -> _ColumnPlan:
        table_type = self.table_columns.get(name)
        if table_type is not None and fits(shape, parse_type(table_type), json=self.json):
            return self._as_in_table(shape, table_type)
        try:
            type_ = natural_type(shape, json=self.json)
        except MixedTypes as error:
            if on_conflict == "raise":
                raise self._conflict(error) from None
            return _ColumnPlan(_JSON, "JSON", keep_json=False, is_mixed=True)
        self._check_names(type_, shape.path)
        if type_.name == "NULL":
            return _ColumnPlan(type_)
        if _is_untyped(type_):
            raise self._untyped(type_, name, table_type)
        storage_type(sql_type(type_), column=name, table=self.table)
        return _ColumnPlan(type_, "" if is_arrow_exact(type_) else sql_type(type_))

    def _as_in_table(self, shape: Shape, table_type: str) -> _ColumnPlan:
        type_ = parse_type(table_type)
        if not shape.kinds:
            return _ColumnPlan(ColumnType("NULL"))
        # A Python text for JSON is JSON already, as queries of the table return it, also beside values of other types.
        return _ColumnPlan(type_, "" if is_arrow_exact(type_) else sql_type(type_), keep_json=not self.json)

    def _untyped(self, type_: ColumnType, name: str, table_type: str | None) -> SchemaConflict | InvalidBatch:
        """Return the error of lists or dicts that are empty or hold only null."""
        if table_type is None:
            message = f"column '{name}' holds only empty or null elements, so its type is unknown"
            return InvalidBatch(f"{self.table}: {message}. Give the batch a schema.")
        message = (
            f"column '{name}' is {table_type} in the table and holds empty lists or dicts in the batch. Write null"
        )
        return SchemaConflict(f"{self.table}: {message}.", column=name, types=(table_type, sql_type(type_)))

    def _conflict(self, error: MixedTypes) -> InvalidBatch | SchemaConflict:
        where = self.where(error.row)
        if error.reason:
            return InvalidBatch(f"{self.table}: column '{error.path}' holds, in {where}, {error.reason}.")
        before, here = error.types
        return SchemaConflict(
            f"{self.table}: the values of column '{error.path}' are not of one type: {before}, and {here} in "
            f"{where}. Convert them, write them as text, or choose another on_conflict.",
            column=error.path,
            types=error.types,
        )

    def _check_names(self, type_: ColumnType, path: str) -> None:
        names: dict[str, str] = {}
        for name, inner in type_.children:
            other = names.setdefault(name.casefold(), name)
            if type_.name == "STRUCT" and (other != name or not name or "\0" in name):
                problem = (
                    f"'{other}' and '{name}', which differ only in case" if other != name else f"the name {name!r}"
                )
                raise InvalidBatch(f"{self.table}: column '{path}' has dicts with {problem}. Rename it.")
            self._check_names(inner, f"{path}.{name}")


@dataclass(frozen=True, slots=True)
class BatchBuilder:
    """The conversion of observed rows to Arrow, column by column."""

    table: str
    columns: Mapping[str, _ColumnPlan]
    json: bool
    failed: Callable[[IceDBError], None]

    def batch(self, chunks: Iterator[tuple[int, Mapping[str, list[Any]]]], *, source: str) -> Batch:
        """Return observed chunks, as row count and columns, as a batch. Its stream raises InvalidBatch."""
        try:
            schema = pa.schema([(n, self.arrow_type(n)) for n in self.columns])
        except UnicodeEncodeError as error:
            raise InvalidBatch(
                f"{self.table}: a column or field is called {error.object!r}, which is no Unicode text (half of a "
                "surrogate pair). Rename it."
            ) from None
        batches = (
            pa.RecordBatch.from_arrays(
                [self.build(n, columns[n] if n in columns else [None] * rows) for n in self.columns], schema=schema
            )
            for rows, columns in chunks
        )
        return self.described(pa.RecordBatchReader.from_batches(schema, batches), source=source)

    def described(self, stream: pa.RecordBatchReader, *, source: str) -> Batch:
        """Return a stream with at least these columns as a batch, with the types that Arrow cannot express."""
        return Batch(
            stream,
            types={n: c.cast for n, c in self.columns.items() if c.cast},
            parsed=frozenset(n for n, c in self.columns.items() if self.json and c.type.name == "VARCHAR"),
            mixed=frozenset(n for n, c in self.columns.items() if c.is_mixed),
            source=source,
        )

    def arrow_type(self, name: str) -> pa.DataType:
        """Return Arrow's type of a column."""
        return arrow_type(self.columns[name].type)

    def build(self, name: str, values: list[Any]) -> pa.Array:
        """Convert values of a column to Arrow. Raises InvalidBatch if Arrow cannot hold one."""
        column = self.columns[name]
        try:
            return build_array(values, column.type, keep_json=column.keep_json)
        except (pa.ArrowException, OverflowError, UnknownValue) as error:
            reason = str(error).splitlines()[0]
            invalid = InvalidBatch(f"{self.table}: column '{name}' holds a value that cannot be stored: {reason}.")
            self.failed(invalid)
            raise invalid from None


def _is_untyped(type_: ColumnType) -> bool:
    return (
        type_.name == "NULL"
        or (type_.name == "STRUCT" and not type_.children)
        or any(_is_untyped(t) for _, t in type_.children)
    )
