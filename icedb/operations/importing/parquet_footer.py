"""The footer and rows of an existing Parquet file: columns, counts, statistics, partition.

DuckDB reads the file in place. The store's client fetches it first if DuckDB cannot open it (a path with wildcards, a
store in this process's memory) or failed to read it, because a network failure is no damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import duckdb

from icedb.errors import InvalidBatch, InvalidOption, UnsupportedType
from icedb.format.records import Stats
from icedb.operations.importing.list_files import Origin, SourceFile
from icedb.operations.rewrite.engine import ResourceLimits
from icedb.sql.column_stats import encode_statistics, figures_sql
from icedb.sql.connection_pool import reader
from icedb.sql.connections import RESERVED, quote_name, quote_text, read_file
from icedb.sql.field_ids import field_id
from icedb.sql.partition_expressions import PartitionExpression
from icedb.sql.types import describe, storage_type
from icedb.storage.obstore_store import ObjectNotFound, ObjectStore, fetch
from icedb.util.temporary_files import temporary_folder
from icedb.writer.encoding.parquet_encoder import file_digest

__all__ = ["ContentRequest", "FileContent", "Footer", "Footers"]

_Result = TypeVar("_Result")

_ROW = f"{RESERVED}row"

# Characters that DuckDB or a URL would not interpret as part of a name.
_SPECIAL = frozenset("*?[]#%\\")
# Types whose bounds in a footer are exact. Other types may have NaN, truncated texts or another order.
_EXACT = frozenset(
    ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "DATE", "TIMESTAMP",
     "TIMESTAMP WITH TIME ZONE")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Footer:
    """The rows of a file and its columns with their DuckDB types. `untyped` columns have only nulls.

    `foreign_ids`: a column has another field id than the one of its name, from a writer of Iceberg or Arrow.
    """

    rows: int
    columns: Mapping[str, str]
    untyped: frozenset[str]
    foreign_ids: bool = False


@dataclass(frozen=True, slots=True)
class ContentRequest:
    """The values to compute from the rows of a file.

    `schema` has the columns that an expression may use, `statistics` the columns with their types. `required` columns
    must have no nulls. `content` decodes every row and computes the digest.
    """

    schema: Mapping[str, str]
    expressions: Sequence[PartitionExpression]
    statistics: Mapping[str, str]
    required: Sequence[str]
    content: bool


@dataclass(frozen=True, slots=True)
class FileContent:
    """The result of an examination. `partitions` are the texts of the expressions' values: the most frequent and one
    more.
    """

    stats: Stats
    partitions: tuple[tuple[str | None, ...], ...]
    digest: str | None


class Footers:
    """Reads the files of a source. Safe to share between threads. A context manager with a connection and a folder.

    `table` is the store of the table into which the files are imported. `read_bytes` is the size of the files of which
    more than the footer is read.
    """

    def __init__(
        self, origin: Origin, *, table: ObjectStore, limits: ResourceLimits | None = None, read_bytes: int = 0
    ) -> None:
        self._location = origin.location
        self._store = origin.store(table)
        self._table = table.location.uri
        self._limits = limits or ResourceLimits()
        self._read_bytes = read_bytes
        self._numbers = count(1)

    def __enter__(self) -> Self:
        limits = self._limits
        with ExitStack() as stack:
            self._folder = stack.enter_context(temporary_folder("import", below=limits.folder))
            borrowed = reader(
                self._location,
                read_bytes=self._read_bytes,
                memory_bytes=limits.memory_bytes,
                folder=self._folder,
                threads=limits.threads,
            )
            self._con = stack.enter_context(borrowed)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def read(self, file: SourceFile) -> Footer:
        """Return the footer. Raises InvalidBatch if the file cannot be read as Parquet, and UnsupportedType."""
        return self._run(file, lambda con, path: self._footer(con, path, file))

    def examine(self, file: SourceFile, footer: Footer, demand: ContentRequest) -> FileContent:
        """Examine the rows, as far as the request needs. Raises InvalidBatch."""
        return self._run(file, lambda con, path: self._examine(con, path, file, footer, demand), whole=demand.content)

    @contextmanager
    def fetched(self, file: SourceFile) -> Iterator[Path]:
        """Yield a local path: the file's own, or that of a temporary copy. Raises InvalidBatch."""
        if self._location.scheme == "file":
            yield Path(file.path)
            return
        path = self._folder / f"{next(self._numbers)}.parquet"
        try:
            fetch(self._store, file.key, path)
            yield path
        except ObjectNotFound:
            raise self._gone(file) from None
        finally:
            path.unlink(missing_ok=True)

    def _gone(self, file: SourceFile) -> InvalidBatch:
        return InvalidBatch(
            f"{self._table}: '{file.path}' was removed while it was imported. Nothing was imported. Ensure that no "
            "program changes the files, and import them again."
        )

    def _run(
        self, file: SourceFile, query: Callable[[duckdb.DuckDBPyConnection, str], _Result], *, whole: bool = False
    ) -> _Result:
        in_place = self._location.is_opened_by_engines and not _SPECIAL & set(file.path)
        if in_place and not whole:
            try:
                with self._con.cursor() as con:
                    return query(con, file.path)
            except duckdb.Error:
                pass  # retried below with the whole object, read by the store's client
        with self.fetched(file) as path, self._plain(path) as plain, self._con.cursor() as con:
            try:
                return query(con, str(plain))
            except duckdb.OutOfMemoryException as error:
                raise InvalidOption(
                    f"{self._table}: '{file.path}' needs more memory than is available "
                    f"({str(error).splitlines()[0]}). Nothing was imported. Give the engine more memory_bytes, or "
                    "import without verify."
                ) from None
            except duckdb.Error as error:
                if not path.exists():
                    raise self._gone(file) from None
                reason = str(error).splitlines()[0].replace(str(plain), "it")
                raise InvalidBatch(
                    f"{self._table}: '{file.path}' cannot be read as Parquet ({reason}). Nothing was imported. Repair "
                    "the file, or exclude it by a glob that matches the others."
                ) from None

    @contextmanager
    def _plain(self, path: Path) -> Iterator[Path]:
        """Yield a path of the file without wildcards."""
        if not _SPECIAL & set(str(path)):
            yield path
            return
        link = self._folder / f"{next(self._numbers)}.parquet"
        link.symlink_to(path)
        try:
            yield link
        finally:
            link.unlink()

    def _footer(self, con: duckdb.DuckDBPyConnection, path: str, file: SourceFile) -> Footer:
        described = describe(con, f"SELECT * FROM {read_file(path)}")
        text = quote_text(path)
        [(rows,)] = con.execute(f"SELECT sum(num_rows) FROM parquet_file_metadata({text})").fetchall()
        tree = con.execute(
            f"SELECT name, coalesce(num_children, 0), logical_type, field_id FROM parquet_schema({text})"
        ).fetchall()
        nulls, foreign_ids = _examine_tree([_Element(str(n), int(c), str(t), id_) for n, c, t, id_ in tree])
        nested = [c for c in nulls if "(" in described.get(c, "") or "[" in described.get(c, "")]
        if nested:
            raise UnsupportedType(
                f"{self._table}: column '{nested[0]}' of '{file.path}' is {described[nested[0]]}, and some of its "
                "elements have no type, because all are null. Insert the file: insert gives them the table's type."
            )
        columns = {
            c: storage_type(t, column=c, table=f"{self._table}: '{file.path}'")
            for c, t in described.items()
            if c not in nulls
        }
        return Footer(int(rows), columns, frozenset(nulls), foreign_ids)

    def _examine(
        self, con: duckdb.DuckDBPyConnection, path: str, file: SourceFile, footer: Footer, demand: ContentRequest
    ) -> FileContent:
        hashed = file_digest(Path(path)) if demand.content else None
        decode = f", bit_xor(hash({_ROW}))" if demand.content else ""
        required = [c for c in demand.required if c in footer.columns]
        if required or decode:
            counts = "".join(f", count({quote_name(c)})" for c in required)
            [(rows, *present)] = con.execute(
                f"SELECT count(*){counts}{decode} FROM {read_file(path)} AS {_ROW}"
            ).fetchall()
            self._check_counts(file, int(rows), dict(zip(required, present, strict=False)), footer)
        partitions = _partitions(con, path, footer, demand) if demand.expressions else ()
        return FileContent(_statistics(con, path, footer, demand.statistics), partitions, hashed)

    def _check_counts(self, file: SourceFile, rows: int, present: Mapping[str, int], footer: Footer) -> None:
        if rows != footer.rows:
            raise InvalidBatch(
                f"{self._table}: '{file.path}' has {rows} rows, but its footer counts {footer.rows}. Repair the file."
            )
        for column, filled in present.items():
            if filled != rows:
                raise InvalidBatch(
                    f"{self._table}: column '{column}' is null in {rows - filled} rows of '{file.path}', but the table "
                    "requires it. Fill it in, or exclude the file."
                )


class _Element(NamedTuple):
    """An element of a Parquet schema."""

    name: str
    children: int
    logical_type: str
    field_id: int | None


def _examine_tree(tree: Sequence[_Element]) -> tuple[set[str], bool]:
    """Return the columns with an element without a type, and whether a column has a foreign field id.

    Elements are in depth-first order, the root first.
    """
    nulls: set[str] = set()
    foreign_ids = False
    position = 1

    def walk(column: str) -> None:
        nonlocal position, foreign_ids
        element = tree[position]
        position += 1
        if element.logical_type == "NullType()":
            nulls.add(column or element.name)
        if not column and element.field_id is not None and element.field_id != field_id(element.name):
            foreign_ids = True
        for _ in range(element.children):
            walk(column or element.name)

    while position < len(tree):
        walk("")
    return nulls, foreign_ids


def _partitions(
    con: duckdb.DuckDBPyConnection, path: str, footer: Footer, demand: ContentRequest
) -> tuple[tuple[str | None, ...], ...]:
    """Return the partitions of the rows: the most frequent one, and another if there are several."""
    select = [f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in footer.columns.items()]
    select += [f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in demand.schema.items() if c not in footer.columns]
    values = ", ".join(f"CAST((\n{e.sql}\n) AS VARCHAR)" for e in demand.expressions)
    rows = con.execute(
        f"SELECT [{values}]::VARCHAR[], count(*) FROM (SELECT {', '.join(select)} FROM {read_file(path)}) "
        "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 2"
    ).fetchall()
    return tuple(tuple(texts) for texts, _ in rows)


def _statistics(con: duckdb.DuckDBPyConnection, path: str, footer: Footer, columns: Mapping[str, str]) -> Stats:
    """Return the statistics, from the footer if it is exact, else from the rows."""
    present = {c: t for c, t in columns.items() if c in footer.columns}
    bounds = {c: f for c, t in present.items() if t in _EXACT and (f := _from_footer(con, path, c, t)) is not None}
    remaining = {c: t for c, t in present.items() if c not in bounds}
    if remaining:
        [(figures,)] = con.execute(f"SELECT {figures_sql(remaining)} FROM {read_file(path)}").fetchall()
        bounds |= {c: list(figures[3 * n : 3 * n + 3]) for n, c in enumerate(remaining)}
    return encode_statistics(present, [figure for c in present for figure in bounds[c]], footer.rows)


def _from_footer(con: duckdb.DuckDBPyConnection, path: str, column: str, type_: str) -> list[str | None] | None:
    """Return the minimum, the maximum and the count as texts; None if a row group lacks them."""
    [(low, high, present, values, exact)] = con.execute(
        f"""SELECT CAST(min(CAST(stats_min_value AS {type_})) AS VARCHAR),
                   CAST(max(CAST(stats_max_value AS {type_})) AS VARCHAR),
                   sum(num_values - stats_null_count),
                   sum(num_values),
                   bool_and(stats_null_count IS NOT NULL AND (stats_null_count = num_values
                       OR coalesce(min_is_exact AND max_is_exact, false)
                           AND stats_min_value IS NOT NULL AND stats_max_value IS NOT NULL))
            FROM parquet_metadata({quote_text(path)}) WHERE path_in_schema = {quote_text(column)}"""
    ).fetchall()
    return [low, high, str(present)] if exact and values is not None else None
