"""A snapshot as a Polars LazyFrame. Polars reads the live parts itself, and only what a query needs of them.

    rows = scan(table.snapshot()).filter(pl.col("d") == date(2026, 11, 21))
    rows.select("user_id").collect()

Columns and types are those of `Snapshot.to_arrow`. Polars reads only the selected columns and skips row groups by their
statistics. It skips parts by their paths if it interprets the paths as DuckDB does. That requires partition columns of
numbers, booleans, texts, dates or timestamps, none with the name of a data column. Otherwise the partition columns are
exact constants of each partition, and no part is skipped by them. `parts_where` skips parts beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icedb.engines.engine_parts import arrow_schema, chosen_parts, lossless_schema, path_values
from icedb.engines.polars.bucket_access import access
from icedb.errors import UnsupportedType
from icedb.format.keys import NULL_VALUE, encode_partition, encode_value
from icedb.reader.snapshot import Snapshot
from icedb.sql.connection_pool import scratch_connection
from icedb.sql.connections import connect_sandbox, quote_text, quote_texts
from icedb.sql.types import typed_nothing
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional
from icedb.util.temporary_files import temporary_folder

if TYPE_CHECKING:
    import polars as pl

__all__ = ["scan"]

# Polars and DuckDB read these types from a path alike if DuckDB would write the value so. Tested for each of them.
_SAME_IN_PATHS = re.compile(
    r"U?(?:TINYINT|SMALLINT|INTEGER|BIGINT)|BOOLEAN|FLOAT|DOUBLE|DECIMAL\(.*\)|VARCHAR|UUID|JSON"
    r"|DATE|TIMESTAMP|TIMESTAMP_NS|TIMESTAMP WITH TIME ZONE"
)
# Neither infinity nor a year before 1 or after 9999.
_USUAL_DAY = re.compile(r"\d{4}-[^(]*")


@checks_arguments
def scan(snapshot: Snapshot, parts_where: str | None = None) -> pl.LazyFrame:
    """Return the rows of a snapshot as a LazyFrame.

    Rows are read when the frame is collected, with the credentials of that time. Polars then raises its own errors,
    also if cleanup deleted a part.

    Args:
        snapshot: The snapshot to read.
        parts_where: A DuckDB predicate. Parts that cannot contain matching rows are skipped. It does not filter rows,
            so filter the frame as well.

    Returns:
        A LazyFrame with the columns of the snapshot.

    Raises:
        MissingExtra: If Polars is not installed.
        InvalidOption: If a part was written before the last `alter` of the partitioning, because its path lacks
            partition columns. Also the errors of `Snapshot.files`.
        UnsupportedType: If Polars has no type for a column.

    Example:
        >>> scan(table.snapshot()).filter(pl.col("user_id") == 7).collect()
    """
    polars = import_optional("polars", extra="polars")
    parts = chosen_parts(snapshot, parts_where)
    if not snapshot.schema:
        nothing: pl.LazyFrame = polars.LazyFrame()
        return nothing
    columns = _Columns.of(snapshot, polars)
    rows = _Scan(snapshot.handle, columns, polars, access(snapshot.handle.location)).rows(parts)
    changed = [as_wanted for c in snapshot.schema if (as_wanted := columns.conversion(c)) is not None]
    frame: pl.LazyFrame = (rows.with_columns(changed) if changed else rows).select(list(columns.wanted))
    return frame


@dataclass(frozen=True)
class _Columns:
    """The columns of a snapshot, as Polars reads them from parts and as the frame returns them."""

    polars: Any
    #: Partition column -> DuckDB type, for those without a data column of the same name.
    visible: Mapping[str, str]
    #: The schema with Arrow's extension types.
    lossless: pa.Schema
    #: The schema of a query's result.
    result: pa.Schema
    #: The Polars types of a part that has all data columns.
    stored: Mapping[str, Any]
    #: The Polars types of a query's result.
    wanted: Mapping[str, Any]

    @classmethod
    def of(cls, snapshot: Snapshot, polars: Any) -> _Columns:
        visible = snapshot.visible_partitions
        lossless = lossless_schema({**snapshot.schema, **visible})
        result = arrow_schema({**snapshot.schema, **visible}, uuid=pa.string())
        if intervals := [f.name for f in result if pa.types.is_interval(f.type)]:
            raise UnsupportedType(
                f"{snapshot.table}: the column '{intervals[0]}' is INTERVAL, for which Polars has no type. Query the "
                "snapshot, or partition by something else."
            )
        return cls(
            polars,
            visible,
            lossless,
            result,
            _stored_schema(tuple(snapshot.schema.items())),
            dict(polars.from_arrow(result.empty_table()).schema),
        )

    def conversion(self, column: str) -> pl.Expr | None:
        """Return the expression that converts a stored column to its result type; None if they are equal."""
        if self.stored[column] == self.wanted[column]:
            return None
        expression: pl.Expr = _converted(self.polars, self.polars.col(column), self.lossless.field(column).type)
        return expression.cast(self.wanted[column]).alias(column)


@lru_cache(maxsize=64)
def _stored_schema(schema: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    """Return the types that this version of Polars reads from a part of DuckDB, found with an empty part."""
    polars = import_optional("polars", extra="polars")
    with temporary_folder("polars") as folder:
        path = str(folder / "nothing.parquet")
        with connect_sandbox(folder) as con:
            con.execute(f"COPY ({typed_nothing(dict(schema))}) TO {quote_text(path)} (FORMAT parquet)")
        return dict(polars.read_parquet_schema(path))


def _converted(polars: Any, value: Any, type_: pa.DataType) -> Any:
    """Return an expression that converts a stored value. Polars reads JSON and UUIDs as bytes; queries return text."""
    if isinstance(type_, pa.JsonType):
        return value.cast(polars.String)
    if isinstance(type_, pa.UuidType):
        digits = value.bin.encode("hex")
        groups = [digits.str.slice(start, n) for start, n in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
        return polars.concat_str(groups, separator="-")
    if pa.types.is_list(type_):
        return value.list.eval(_converted(polars, polars.element(), type_.value_type))
    if pa.types.is_map(type_):
        type_ = pa.struct([("key", type_.key_type), ("value", type_.item_type)])
        return value.list.eval(_converted(polars, polars.element(), type_))
    if pa.types.is_struct(type_):
        fields = [_converted(polars, polars.field(f.name), f.type).alias(f.name) for f in type_]
        return value.struct.with_fields(fields)
    return value


def _grouped(parts: Sequence[Part], key: Callable[[Part], Any]) -> dict[Any, list[Part]]:
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        groups.setdefault(key(part), []).append(part)
    return groups


@dataclass(frozen=True)
class _Scan:
    """Parts as one LazyFrame of the stored types."""

    handle: Handle
    columns: _Columns
    polars: Any
    #: Options and credentials for `scan_parquet`.
    access: Mapping[str, Any]

    def rows(self, parts: Sequence[Part]) -> Any:
        """Return all data columns, followed by the visible partition columns."""
        if not parts:
            types = {c: self.columns.stored.get(c, type_) for c, type_ in self.columns.wanted.items()}
            return self.polars.LazyFrame(schema=types)
        if self.columns.visible and self._hive(parts):
            frames = self._of_paths(parts)
        else:
            groups = _grouped(parts, lambda part: tuple(part.values[c] for c in self.columns.visible))
            constants = self._constants(list(groups))
            frames = [self._parquet(group).with_columns(constants[values]) for values, group in groups.items()]
        return self.polars.concat(frames) if len(frames) > 1 else frames[0]

    def _of_paths(self, parts: Sequence[Part]) -> list[Any]:
        """Return frames whose partition columns Polars reads from the paths, except nulls and texts equal to the null
        value.

        In filters Polars treats a null in a path as 0 or an empty text, and the text of the null value as null. Such
        values become constants.
        """
        wanted = {c: self.columns.wanted[c] for c in self.columns.visible}

        def misread(part: Part) -> tuple[tuple[str, str | None], ...]:
            return tuple((c, v) for c in wanted if (v := part.values[c]) in (None, NULL_VALUE))

        frames = []
        for values, group in _grouped(parts, misread).items():
            frame = self._parquet(group, hive_schema=wanted)
            constants = [self.polars.lit(v, dtype=wanted[c]).alias(c) for c, v in values]
            frames.append(frame.with_columns(constants) if constants else frame)
        return frames

    def _parquet(self, parts: Sequence[Part], *, hive_schema: Mapping[str, Any] | None = None) -> Any:
        polars = self.polars
        return polars.scan_parquet(
            self.handle.part_paths.readable(parts),
            glob=False,
            schema=self.columns.stored,
            hive_partitioning=hive_schema is not None,
            hive_schema=hive_schema,
            missing_columns="insert",
            extra_columns="ignore",
            cast_options=polars.ScanCastOptions(
                integer_cast=["upcast", "allow-float"],
                float_cast="upcast",
                datetime_cast=["upcast", "nanosecond-downcast"],
                missing_struct_fields="insert",
                extra_struct_fields="ignore",
                categorical_to_string="allow",
            ),
            **self.access,
        )

    def _hive(self, parts: Sequence[Part]) -> bool:
        """Whether Polars reads the same values from these paths as DuckDB."""
        paths = {p.partition: p.values for p in parts}
        visible = self.columns.visible
        above = self.handle.part_paths.readable([parts[0]])[0].removesuffix(parts[0].key)
        if "=" in above or "=" in self.handle.keys.data_prefix:
            return False  # Polars would read that as a partition column
        if any(encode_value(c) != c for c in visible):
            return False  # Polars decodes values, but not names
        if not all(map(_SAME_IN_PATHS.fullmatch, visible.values())):
            return False
        ours = all(list(values) == list(visible) and encode_partition(values) == path for path, values in paths.items())
        return ours and self._written_as_usual(list(paths.values()))

    def _written_as_usual(self, partitions: Sequence[Mapping[str, str | None]]) -> bool:
        """Whether DuckDB would write all values in the paths in the same way, and Polars reads their years."""
        with scratch_connection() as con:
            for column, type_ in self.columns.visible.items():
                texts = list({text for values in partitions if (text := values[column]) is not None})
                if type_.startswith(("DATE", "TIMESTAMP")) and not all(map(_USUAL_DAY.fullmatch, texts)):
                    return False
                again = f"CAST(TRY_CAST(v AS {type_}) AS VARCHAR) IS DISTINCT FROM v"
                values = f"(SELECT unnest({quote_texts(texts)}) AS v)"
                if con.execute(f"SELECT count(*) FROM {values} WHERE {again}").fetchone() != (0,):
                    return False
        return True

    def _constants(self, groups: Sequence[tuple[str | None, ...]]) -> dict[tuple[str | None, ...], list[Any]]:
        """Return, for each group of path values, the partition columns as constant expressions."""
        polars, visible, result = self.polars, self.columns.visible, self.columns.result
        typed = path_values((dict(zip(visible, g, strict=True)) for g in groups), visible, result)
        constants: dict[tuple[str | None, ...], list[Any]] = {group: [] for group in groups}
        for n, column in enumerate(visible):
            arrow, dtype = result.field(column).type, self.columns.wanted[column]
            series = polars.from_arrow(pa.array(typed[column].values(), type=arrow)).cast(dtype)
            literals: dict[str | None, pl.Expr] = {
                text: self._literal(series, i, text) for i, text in enumerate(typed[column])
            }
            literals[None] = polars.lit(None, dtype=dtype)
            for group in groups:
                constants[group].append(literals[group[n]].alias(column))
        return constants

    def _literal(self, values: pl.Series, index: int, text: str) -> pl.Expr:
        """Return one of the values as a constant. A time is a number, because Python's times have a smaller range."""
        polars, dtype = self.polars, values.dtype
        literal: pl.Expr
        if not dtype.is_nested() and not dtype.is_temporal():
            literal = polars.lit(values[index], dtype=dtype)
        elif dtype == polars.Time or _USUAL_DAY.fullmatch(text):
            literal = polars.lit(values.to_physical()[index]).cast(dtype)
        else:  # Polars cannot print such values; filters are not pushed below it
            literal = polars.lit(values.slice(index, 1)).first()
        return literal
