"""Snapshots as Spark DataFrames, through Spark's own Parquet scan if it returns the same rows, else the data source.

Spark's scan is faster: it is vectorized and reads only the columns that a query needs. But it parses partition columns
from paths by its own rules, and supports fewer types than parts (data files) may have. So each snapshot is checked
first, by its paths and types only, without opening a part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Literal, get_args

from pyspark.sql import DataFrame, SparkSession

from icedb.errors import InvalidOption
from icedb.format.keys import decode_partition, encode_partition
from icedb.reader.changes import Changes
from icedb.reader.scan_sql import translate_read_error
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource import pushdown_warning
from icedb.spark.datasource.part_scan import select_columns
from icedb.spark.datasource.type_mapping import spark_schema, type_mapping_of
from icedb.sql.column_stats import Bounds, bounds_of
from icedb.storage.parts import Part

__all__ = ["ReadEngine", "frame"]

#: The reader of the parts: Spark's own Parquet scan, the data source, or the better one for the snapshot.
ReadEngine = Literal["auto", "native", "python"]

# Texts of partition values that Spark parses as DuckDB does. DuckDB parses the others.
_WHOLE = re.compile(r"-?\d{1,20}")
_SECOND = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"
_PATH_TEXTS = {
    "VARCHAR": re.compile(r"(?s:.+)"),
    "TINYINT": _WHOLE,
    "SMALLINT": _WHOLE,
    "INTEGER": _WHOLE,
    "BIGINT": _WHOLE,
    "BOOLEAN": re.compile(r"true|false"),
    "DATE": re.compile(r"\d{4}-\d\d-\d\d"),
    "TIMESTAMP": re.compile(_SECOND),
    "TIMESTAMP WITH TIME ZONE": re.compile(_SECOND + r"\+00"),
}
_DECIMAL_TEXT = re.compile(r"-?\d+(\.\d+)?")
# Spark decodes each %XX as a character, DuckDB as a byte. They differ beyond ASCII.
_BEYOND_ASCII = re.compile(r"%[89A-F]")
# With these characters, Spark treats a path as a pattern.
_PATTERN = re.compile(r"[{}\[\]*?\\]")

# A missing or damaged part is an error in every session. Dates before 1582 are not shifted.
_SCAN_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

# The number of files from which Spark lists them with a job. The lock keeps threads from saving a changed value.
_LISTING_SETTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTING = Lock()


def frame(
    spark: SparkSession,
    snapshot: Snapshot,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    engine: ReadEngine = "auto",
) -> DataFrame:
    """Return a snapshot as a lazy DataFrame; see `icedb.spark.read`.

    Raises InvalidOption, UnknownColumn, InvalidPartitionExpression, MissingPart, SnapshotExpired.
    """
    if engine not in get_args(ReadEngine):
        raise InvalidOption(f"{snapshot.table}: engine is {engine!r}. Pass 'auto', 'native' or 'python'.")
    if snapshot.table.startswith("memory://"):
        raise InvalidOption(
            f"{snapshot.table}: the table is in the memory of this process, which Spark's processes cannot read. Use "
            "spark.createDataFrame(snapshot.to_arrow())."
        )
    pushdown_warning.warn_if_enabled(spark)
    chosen = select_columns(snapshot, columns)
    parts = snapshot.in_partitions(where)
    if not parts:
        return spark.createDataFrame([], spark_schema(chosen))
    if engine == "python":
        return _through_data_source(spark, snapshot, where, columns)
    obstacle = _obstacle(snapshot, parts, chosen, where=where)
    if obstacle is None and (engine == "native" or snapshot.handle.location.scheme == "file"):
        return _through_parquet(spark, snapshot, parts, chosen)
    if engine == "native":
        raise InvalidOption(f"{snapshot.table}: Spark's own scan cannot read this: {obstacle}. Use engine='python'.")
    return _through_data_source(spark, snapshot, where, columns)


def _through_data_source(
    spark: SparkSession, snapshot: Snapshot, where: str | None, columns: Sequence[str] | None
) -> DataFrame:
    options = {**snapshot.handle.location.storage_options}
    if isinstance(snapshot, Changes):
        options |= {"since": snapshot.since, "until": snapshot.cursor}
    else:
        options["as_of"] = str(snapshot.as_of_ms)
    if where is not None:
        options["where"] = where
    if columns is not None:
        options["columns"] = json.dumps(list(columns))
    return spark.read.format("icedb").options(**options).load(snapshot.table)


def _through_parquet(
    spark: SparkSession, snapshot: Snapshot, parts: Sequence[Part], chosen: Mapping[str, str]
) -> DataFrame:
    in_paths = snapshot.partition_schema if _reads_paths(snapshot, parts, chosen) else {}
    reader = spark.read.schema(spark_schema({**chosen, **in_paths})).options(**_SCAN_OPTIONS)
    if in_paths:  # without basePath, Spark parses no partition columns
        location = snapshot.handle.location
        reader = reader.option("basePath", _hadoop_path(f"{location.root_uri}/{location.keys.data_prefix}"))
    paths = snapshot.handle.part_paths.original(parts)
    try:
        with _list_on_driver(spark, snapshot):
            rows = reader.parquet(*map(_hadoop_path, paths))
    except Exception as error:  # noqa: BLE001 - Spark's and Py4J's errors have no root in common
        if "S3AFileSystem" in str(error):
            raise InvalidOption(
                f"{snapshot.table}: Spark's own scan needs hadoop-aws to read from S3, and this session has none. Use "
                "engine='python', or start Spark with that package and its credentials."
            ) from None
        raise translate_read_error(snapshot.handle, parts, error, as_of_ms=snapshot.as_of_ms) from None
    return rows.select(*(f"`{name.replace('`', '``')}`" for name in chosen))


@contextmanager
def _list_on_driver(spark: SparkSession, snapshot: Snapshot) -> Iterator[None]:
    """Let the driver list the sizes of the parts. In a folder this is faster than a Spark job with a task for each."""
    if snapshot.table.startswith("s3://"):
        yield
        return
    with _LISTING:
        before = str(spark.conf.get(_LISTING_SETTING))
        spark.conf.set(_LISTING_SETTING, str(2**31 - 1))
        try:
            yield
        finally:
            spark.conf.set(_LISTING_SETTING, before)


def _hadoop_path(path: str) -> str:
    """Return a path with a scheme, because the session may have another default file system. Hadoop calls S3 `s3a`."""
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else f"file://{path}"


def _needs_paths(snapshot: Snapshot, chosen: Mapping[str, str]) -> bool:
    return not chosen.keys().isdisjoint(snapshot.visible_partitions)


def _reads_paths(snapshot: Snapshot, parts: Sequence[Part], chosen: Mapping[str, str]) -> bool:
    """Whether Spark's scan takes partition columns from the paths: it must, or its filters then skip partitions."""
    if _needs_paths(snapshot, chosen):
        return True
    return not chosen.keys().isdisjoint(snapshot.partition_schema) and _obstacle_in_paths(snapshot, parts) is None


def _obstacle(snapshot: Snapshot, parts: Sequence[Part], chosen: Mapping[str, str], *, where: str | None) -> str | None:
    """Return why Spark's own scan would return other rows than DuckDB; None: it would not."""
    for name, type_ in chosen.items():
        if name in snapshot.schema and not type_mapping_of(type_).in_parquet:
            return f"column '{name}' is {type_}, which it does not support"
    if not snapshot.handle.location.is_opened_by_engines:
        return "it reads only tables in folders and in S3"
    if _PATTERN.search(snapshot.table):
        return f"the address has a character that it treats as a pattern: {snapshot.table}"
    for part in parts:
        if part.key.rpartition("/")[2].startswith(("_", ".")):
            return f"it skips files with names such as '{part.key}'"
    if where is not None and any(not snapshot.partition_schema.keys() <= p.values.keys() for p in parts):
        return "there are parts of an older partitioning, whose paths do not say which of their rows 'where' means"
    return _obstacle_in_paths(snapshot, parts) if _needs_paths(snapshot, chosen) else None


def _obstacle_in_paths(snapshot: Snapshot, parts: Sequence[Part]) -> str | None:
    """Return why Spark's own scan would parse other partition values; None: it would not."""
    types = snapshot.partition_schema
    visible = snapshot.visible_partitions
    for name in types:
        if name not in visible and not _is_as_in_paths(snapshot, parts, name):
            return f"column '{name}' is stored in the parts, and it would read the values from the paths"
    texts = {name: _texts_of(type_mapping_of(type_).cast) for name, type_ in types.items()}
    if unread := [name for name in types if texts[name] is None]:
        return f"partition column '{unread[0]}' is {types[unread[0]]}, which it parses differently in paths"
    for path in sorted({p.partition for p in parts}):
        values = decode_partition(path)
        if list(values) != list(types):
            return f"there are parts of an older partitioning ('{path}')"
        if encode_partition(values) != path or _BEYOND_ASCII.search(path) or not _readable(values, texts):
            return f"it would parse other values in the path '{path}'"
    return None


def _is_as_in_paths(snapshot: Snapshot, parts: Sequence[Part], name: str) -> bool:
    """Whether the statistics show that a stored column has the value of the path in each row.

    A row can choose another partition than that of its value (`_partition`).
    """
    type_ = snapshot.partition_schema[name]
    if snapshot.schema.get(name) != type_:
        return False
    stats = bounds_of([p.stats for p in parts], {name: type_})
    return all(_is_constant(part, bounds, part.values.get(name)) for part, [bounds] in zip(parts, stats, strict=True))


def _is_constant(part: Part, bounds: Bounds | None, value: str | None) -> bool:
    """Whether bounds show that a column has one value. The bounds of a long text are no values, and differ."""
    if bounds is None:
        return False
    low, high, nulls = bounds
    return nulls == part.rows if value is None else (low == high == value and nulls == 0)


def _readable(values: Mapping[str, str | None], texts: Mapping[str, re.Pattern[str] | None]) -> bool:
    present = {name: text for name, text in values.items() if text is not None}
    return all((pattern := texts[name]) and pattern.fullmatch(text) for name, text in present.items())


def _texts_of(type_: str) -> re.Pattern[str] | None:
    """Return the texts of a type's values that Spark parses as DuckDB does."""
    return _DECIMAL_TEXT if type_.startswith("DECIMAL(") else _PATH_TEXTS.get(type_)
