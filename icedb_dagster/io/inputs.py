"""What an asset asks for: rows of a snapshot as the type of its annotation.

Types of packages that need not be installed are recognised by their names, and imported when somebody wants them. A
Dataset, a LazyFrame, a RecordBatchReader, a relation and a Spark frame read no rows before they are asked to.
"""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from icedb import Snapshot
from icedb.engines import polars
from icedb.engines.arrow import dataset
from icedb.errors import IceDBError, InvalidOption, TableNotFound, UnknownColumn
from icedb.reader.scan_sql import visible_partitions
from icedb.sql.connections import ROWS_PER_BATCH, quote_name
from icedb.sql.expressions import Expression, parse_expression
from icedb.sql.predicates import check_predicate
from icedb_dagster.io.options import plain

__all__ = ["Rows", "load", "nothing", "type_name"]

# A path of DuckDB's own is private, and so is Arrow's.
_SHOWN = (
    "pyarrow.Table, pyarrow.RecordBatchReader, pyarrow.dataset.Dataset, pandas.DataFrame, polars.DataFrame, "
    "polars.LazyFrame, duckdb.DuckDBPyRelation, pyspark.sql.DataFrame, list[dict[str, Any]] or icedb.Snapshot"
)


@dataclass(frozen=True)
class Rows:
    """Some rows of a snapshot: those of the partitions `where`, of which the asset wants `columns` and a `condition`.

    `where`: a predicate over the partition columns. Of all three, None stands for all.
    """

    snapshot: Snapshot
    where: str | None
    columns: Sequence[str] | None
    condition: Expression | None

    @classmethod
    def of(cls, snapshot: Snapshot, where: str | None, metadata: Mapping[str, Any]) -> "Rows":
        """As the metadata of an `AssetIn` says: `columns` and `where`. Raises InvalidOption, UnknownColumn."""
        columns, condition = plain(metadata.get("columns")), plain(metadata.get("where"))
        if columns is not None and (
            not isinstance(columns, list | tuple) or not columns or not all(isinstance(c, str) for c in columns)
        ):
            raise InvalidOption(
                f"{snapshot.table}: the input's metadata 'columns' is {columns!r}; give a list of names."
            )
        known = {**snapshot.schema, **snapshot.partition_schema}
        if unknown := [c for c in columns or () if c not in known]:
            raise UnknownColumn(
                f"{snapshot.table}: the input's metadata 'columns' names '{unknown[0]}', and the table has {[*known]}."
            )

        def refuse(why: str) -> IceDBError:
            return InvalidOption(
                f"{snapshot.table}: the input's metadata 'where' is {condition!r}, which {why}. Give one DuckDB "
                "condition over the columns of a row."
            )

        parsed = None if condition is None else parse_expression(condition, refuse=refuse, stable=False)
        if parsed is not None and known:
            visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
            check_predicate(parsed.sql, snapshot.schema, visible, table=snapshot.table, at_once=True)
        return cls(snapshot, where, columns, parsed)

    @property
    def is_whole(self) -> bool:
        """Whether the asset wants neither columns nor a condition."""
        return self.columns is None and self.condition is None

    def table(self) -> pa.Table:
        """The rows, read."""
        return self.relation().to_arrow_table() if self.snapshot.schema else pa.table({})

    def relation(self) -> duckdb.DuckDBPyRelation:
        """The rows as a lazy DuckDB relation. DuckDB has none without columns: it gets one of a table that has none."""
        selected = "*" if self.columns is None else ", ".join(map(quote_name, self.columns))
        conditions = [] if self.condition is None else [self.condition.sql]
        if self.predicate is not None and any(map(self.chosen.is_older, self.chosen.parts)):
            conditions.append(self.predicate)  # their paths do not say whether it is true
        where = " AND ".join(f"(\n{one}\n)" for one in conditions)
        return self.chosen.query(f"SELECT {selected} FROM t{' WHERE ' + where if where else ''}").relation

    @cached_property
    def chosen(self) -> Snapshot:
        """The snapshot with the parts of the partitions that are meant."""
        return replace(self.snapshot, parts=tuple(self.snapshot.in_partitions(self.predicate)))

    @cached_property
    def predicate(self) -> str | None:
        """What is known of the partitions: `where`, and what of the condition is about them alone."""
        conjuncts = self.condition.conjuncts if self.condition else ()
        of_paths = [c.sql for c in conjuncts if c.columns and c.columns <= self._in_paths]
        known = [*([] if self.where is None else [self.where]), *of_paths]
        return " AND ".join(f"(\n{one}\n)" for one in known) if known else None

    def check_of_partitions(self, type_: str) -> None:
        """Raise InvalidOption when the condition is about more than partitions: others filter by themselves."""
        conjuncts = self.condition.conjuncts if self.condition else ()
        if beyond := [c.sql for c in conjuncts if not c.columns or not c.columns <= self._in_paths]:
            raise InvalidOption(
                f"{self.snapshot.table}: the input is a {type_}, and the condition {beyond[0]!r} in its metadata "
                f"'where' is not about partition columns ({sorted(self._in_paths)}) alone. Filter the {type_} in the "
                "asset; or annotate the input as pyarrow.RecordBatchReader or duckdb.DuckDBPyRelation."
            )

    @cached_property
    def _in_paths(self) -> frozenset[str]:
        """The partition columns whose values in the paths are those of the rows, case folded."""
        visible = visible_partitions(self.snapshot.schema, self.snapshot.partition_schema)
        stored = [e.name for e in self.snapshot.expressions if e.sql.strip('"') == e.name]
        return frozenset(name.casefold() for name in (*visible, *stored))


def load(rows: Rows, wanted: Any) -> Any:
    """The rows as `wanted`, a type or what stands for any. Raises InvalidOption, and as `Snapshot.query` does."""
    name = type_name(wanted)
    if name == "icedb.Snapshot":
        if not rows.is_whole:
            raise InvalidOption(
                f"{rows.snapshot.table}: the input is an icedb.Snapshot, which is whole: it has no 'columns' and no "
                "'where' in its metadata. Leave them out, and query the snapshot."
            )
        return rows.snapshot
    if name not in _LOADERS:
        raise InvalidOption(f"{rows.snapshot.table}: an input cannot be loaded as {wanted}. Annotate it as {_SHOWN}.")
    return _LOADERS[name](rows)


def nothing(wanted: Any, *, table: str) -> Any:
    """What there is in a table that is not there yet, as `wanted`: no rows, and no columns. Raises TableNotFound."""
    name = type_name(wanted)
    if name not in _OF_TABLES:
        raise TableNotFound(
            f"{table}: there is no table yet, and no {name} of one. Create it with Table.create, and begin; or "
            f"annotate the input as one of {', '.join(_OF_TABLES)}, which are empty then."
        )
    return _OF_TABLES[name](pa.table({}))


def type_name(wanted: Any) -> str:
    """A type that inputs may have, as `package.Name`; its own name if it is none. What is not annotated is a Table."""
    if wanted in (Any, type(None), None):
        return "pyarrow.Table"
    if wanted is list or typing.get_origin(wanted) is list:
        return "list"
    names = map(_short_name, getattr(wanted, "__mro__", ()))
    return next((name for name in names if name in (*_LOADERS, "icedb.Snapshot")), str(wanted))


def _short_name(type_: type) -> str:
    """Without the modules in between, which are a package's own. But Spark has two kinds of DataFrame."""
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
    found = dataset(rows.chosen)
    if rows.columns is None:
        return found
    return found.replace_schema(pa.schema([found.schema.field(c) for c in rows.columns]))


def _polars_frame(table: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(table)


def _lazy_frame(rows: Rows) -> Any:
    rows.check_of_partitions("LazyFrame")
    frame = polars.scan(rows.chosen)
    return frame if rows.columns is None else frame.select(rows.columns)


def _spark_frame(rows: Rows) -> Any:
    from pyspark.sql import SparkSession

    from icedb import spark as icedb_spark

    rows.check_of_partitions("DataFrame of Spark")
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidOption(
            f"{rows.snapshot.table}: the input wants a Spark DataFrame, and no Spark session is running in this step. "
            "Give the asset a PySparkResource."
        )
    return icedb_spark.frame(spark, rows.snapshot, where=rows.predicate, columns=rows.columns)


_OF_TABLES: Mapping[str, Callable[[pa.Table], Any]] = {
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
}
