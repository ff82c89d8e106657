"""Inputs of assets: rows of a snapshot as the type of the input's annotation.

Types of optional packages are recognized by name, and their packages are imported only if an input needs them. A
Dataset, a LazyFrame, a RecordBatchReader, a relation and a Spark frame are lazy.
"""

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import NoneType, UnionType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icedb import Snapshot
from icedb.engines import polars
from icedb.engines.arrow import dataset
from icedb.errors import IceDBError, InvalidOption, TableNotFound, UnknownColumn
from icedb.reader.scan_sql import relation
from icedb.sql.connections import ROWS_PER_BATCH, quote_name
from icedb.sql.expressions import Expression, parse_expression
from icedb.sql.predicates import check_predicate
from icedb_dagster.io.options import input_options

__all__ = ["Rows", "empty", "is_optional", "load", "spark_session", "type_name"]

# Names for messages: the module paths of DuckDB's and Arrow's types are private.
_SUPPORTED_TYPES = (
    "pyarrow.Table, pyarrow.RecordBatchReader, pyarrow.dataset.Dataset, pandas.DataFrame, polars.DataFrame, "
    "polars.LazyFrame, duckdb.DuckDBPyRelation, pyspark.sql.DataFrame, list[dict[str, Any]] or icedb.Snapshot"
)


@dataclass(frozen=True)
class Rows:
    """Selected rows of a snapshot.

    `where` is a predicate over the partition columns. `columns` and `condition` come from the input's metadata. For
    each of the three, None selects everything. `session` returns the Spark session for a DataFrame; None: the
    active one.
    """

    snapshot: Snapshot
    where: str | None
    columns: Sequence[str] | None
    condition: Expression | None
    session: Callable[[], Any] | None = None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        where: str | None,
        metadata: Mapping[str, Any],
        session: Callable[[], Any] | None = None,
    ) -> "Rows":
        """Select rows as the metadata of an `AssetIn` requests with `columns` and `where`.

        Raises InvalidOption, and UnknownColumn for a column that the table does not have.
        """
        options = input_options(metadata, snapshot.table)
        columns, condition = options.get("columns"), options.get("where")
        if columns is not None and (
            not isinstance(columns, list | tuple) or not columns or not all(isinstance(c, str) for c in columns)
        ):
            raise InvalidOption(
                f"{snapshot.table}: the input's metadata 'columns' is {columns!r}; give a list of names."
            )
        existing = {**snapshot.schema, **snapshot.partition_schema}
        if unknown := [c for c in columns or () if c not in existing]:
            raise UnknownColumn(
                f"{snapshot.table}: the input's metadata 'columns' names '{unknown[0]}', but the table has "
                f"{[*existing]}. Correct the name."
            )

        def refuse(why: str) -> IceDBError:
            return InvalidOption(
                f"{snapshot.table}: the input's metadata 'where' is {condition!r}, which {why}. Give one DuckDB "
                "condition over the columns of a row."
            )

        parsed = None if condition is None else parse_expression(condition, refuse=refuse, stable=False)
        if parsed is not None and existing:
            visible = snapshot.visible_partitions
            check_predicate(parsed.sql, snapshot.schema, visible, table=snapshot.table, at_once=True)
        return cls(snapshot, where, columns, parsed, session)

    @property
    def is_whole(self) -> bool:
        """True if neither columns nor a condition are selected."""
        return self.columns is None and self.condition is None

    def table(self) -> pa.Table:
        """Read the rows."""
        return self.relation().to_arrow_table() if self.snapshot.schema else pa.table({})

    def relation(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a lazy DuckDB relation. DuckDB rejects a relation without columns."""
        return self.chosen.query(self._select("t")).relation

    def sql(self) -> str:
        """Return the SELECT of the rows, for a DuckDB connection that can read the parts."""
        of = self.chosen
        rows = relation(of.handle, of.parts, of.schema, of.partition_schema, expressions=of.expressions)
        return self._select(f"({rows}) AS t")

    def _select(self, source: str) -> str:
        selected = "*" if self.columns is None else ", ".join(map(quote_name, self.columns))
        conditions = [] if self.condition is None else [self.condition.sql]
        if self.predicate is not None and any(map(self.chosen.is_older, self.chosen.parts)):
            conditions.append(self.predicate)  # their paths do not determine whether it is true
        where = " AND ".join(f"(\n{one}\n)" for one in conditions)
        return f"SELECT {selected} FROM {source}{' WHERE ' + where if where else ''}"

    @cached_property
    def chosen(self) -> Snapshot:
        """The snapshot with only the parts of the selected partitions."""
        return replace(self.snapshot, parts=tuple(self.snapshot.in_partitions(self.predicate)))

    @cached_property
    def predicate(self) -> str | None:
        """The predicate over partition columns: `where`, and the conjuncts of the condition over them alone."""
        conjuncts = self.condition.conjuncts if self.condition else ()
        of_paths = [c.sql for c in conjuncts if c.columns and c.columns <= self._in_paths]
        predicates = [*([] if self.where is None else [self.where]), *of_paths]
        return " AND ".join(f"(\n{one}\n)" for one in predicates) if predicates else None

    def check_of_partitions(self, type_: str) -> None:
        """Raise InvalidOption unless the condition is over partition columns: lazy types filter rows themselves."""
        conjuncts = self.condition.conjuncts if self.condition else ()
        if beyond := [c.sql for c in conjuncts if not c.columns or not c.columns <= self._in_paths]:
            raise InvalidOption(
                f"{self.snapshot.table}: the input is a {type_}, and the condition {beyond[0]!r} in its metadata "
                f"'where' uses other columns than the partition columns {sorted(self._in_paths)}. Filter the {type_} "
                "in "
                "the asset, or annotate the input as pyarrow.RecordBatchReader or duckdb.DuckDBPyRelation."
            )

    @cached_property
    def _in_paths(self) -> frozenset[str]:
        """The partition columns whose values in the paths equal those of the rows, case-folded."""
        visible = self.snapshot.visible_partitions
        stored = [e.name for e in self.snapshot.expressions if e.sql.strip('"') == e.name]
        return frozenset(name.casefold() for name in (*visible, *stored))


def load(rows: Rows, wanted: Any) -> Any:
    """Return the rows as the type `wanted`. Raises InvalidOption, and the errors of `icedb.Snapshot.query`."""
    name = type_name(wanted)
    if name == "icedb.Snapshot":
        if not rows.is_whole:
            raise InvalidOption(
                f"{rows.snapshot.table}: the input is an icedb.Snapshot, which always has all rows and columns, but "
                "its "
                "metadata has 'columns' or 'where'. Remove them, and query the snapshot."
            )
        return rows.snapshot
    if name not in _LOADERS:
        raise InvalidOption(
            f"{rows.snapshot.table}: an input cannot be loaded as {wanted}. Annotate it as {_SUPPORTED_TYPES}."
        )
    return _LOADERS[name](rows)


def empty(wanted: Any, *, table: str) -> Any:
    """Return the empty rows of a missing table as the type `wanted`, without columns.

    Raises TableNotFound if the type has no empty value.
    """
    name = type_name(wanted)
    if name not in _EMPTY:
        raise TableNotFound(
            f"{table}: the table does not exist, and an empty {name} cannot be made. Create it with Table.create, or "
            f"annotate the input as one of {', '.join(_EMPTY)}, which can be empty."
        )
    return _EMPTY[name](pa.table({}))


def type_name(wanted: Any) -> str:
    """Return a supported type as `package.Name`, or the text of an unsupported one.

    An input without annotation is a pyarrow Table. `Optional[...]` has the name of the type in it.
    """
    if is_optional(wanted):
        wanted = next(t for t in typing.get_args(wanted) if t is not NoneType)
    if wanted in (Any, type(None), None):
        return "pyarrow.Table"
    if wanted is list or typing.get_origin(wanted) is list:
        return "list"
    names = map(_short_name, getattr(wanted, "__mro__", ()))
    return next((name for name in names if name in (*_LOADERS, "icedb.Snapshot")), str(wanted))


def is_optional(wanted: Any) -> bool:
    """Return whether an annotation is `Optional[...]` of one type."""
    arguments = typing.get_args(wanted)
    return typing.get_origin(wanted) in (typing.Union, UnionType) and len(arguments) == 2 and NoneType in arguments


def spark_session(resources: Iterable[object], *, table: str) -> Any:
    """Return the session of the first resource that has one, or the active session of the process.

    A lazy resource starts its session. Raises InvalidOption if there is none.
    """
    for resource in resources:
        if (session := getattr(resource, "spark_session", None)) is not None:
            return session
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except (PySparkException, RuntimeError):
        raise InvalidOption(
            f"{table}: the input is a Spark DataFrame, but no Spark session is running in this step. Give the asset or "
            "the IO manager a PySparkResource: IceDBIOManager(..., pyspark=PySparkResource(spark_config={}))."
        ) from None


def _short_name(type_: type) -> str:
    """Return the name without a package's internal modules. Spark is an exception: it has two kinds of DataFrame."""
    package, _, rest = type_.__module__.partition(".")
    of_sql = f"{package}.sql" if package == "pyspark" and rest.startswith("sql") else package.lstrip("_")
    return f"{of_sql}.{type_.__name__}"


def _reader(rows: Rows) -> pa.RecordBatchReader:
    relation = rows.relation()

    def batches() -> Iterator[pa.RecordBatch]:
        yield from relation.to_arrow_reader(ROWS_PER_BATCH)

    return pa.RecordBatchReader.from_batches(relation.limit(0).to_arrow_table().schema, batches())


def _dataset(rows: Rows) -> Any:
    rows.check_of_partitions("Dataset")
    whole = dataset(rows.chosen)
    if rows.columns is None:
        return whole
    return whole.replace_schema(pa.schema([whole.schema.field(c) for c in rows.columns]))


def _polars_frame(table: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(table)


def _lazy_frame(rows: Rows) -> Any:
    rows.check_of_partitions("LazyFrame")
    frame = polars.scan(rows.chosen)
    return frame if rows.columns is None else frame.select(rows.columns)


def _spark_frame(rows: Rows) -> Any:
    from icedb import spark as icedb_spark

    rows.check_of_partitions("DataFrame of Spark")
    session = rows.session() if rows.session is not None else spark_session((), table=rows.snapshot.table)
    return icedb_spark.frame(session, rows.snapshot, where=rows.predicate, columns=rows.columns)


_EMPTY: Mapping[str, Callable[[pa.Table], Any]] = {
    "pyarrow.Table": lambda table: table,
    "pyarrow.RecordBatchReader": pa.Table.to_reader,
    "pyarrow.Dataset": ds.dataset,
    "pandas.DataFrame": pa.Table.to_pandas,
    "polars.DataFrame": _polars_frame,
    "polars.LazyFrame": lambda table: _polars_frame(table).lazy(),
    "list": pa.Table.to_pylist,
}
_LOADERS: Mapping[str, Callable[[Rows], Any]] = {
    "pyarrow.Table": Rows.table,
    "pyarrow.RecordBatchReader": _reader,
    "pyarrow.Dataset": _dataset,
    "pandas.DataFrame": lambda rows: rows.table().to_pandas(),
    "polars.DataFrame": lambda rows: _polars_frame(rows.table()),
    "polars.LazyFrame": _lazy_frame,
    "duckdb.DuckDBPyRelation": Rows.relation,
    "pyspark.sql.DataFrame": _spark_frame,
    "list": lambda rows: rows.table().to_pylist(),
    "icedb_dagster.Rows": lambda rows: rows,
}
