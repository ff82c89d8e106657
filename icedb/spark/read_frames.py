"""Snapshots as Spark DataFrames: by Spark's own Parquet scan where that gives the same rows, else by the data source.

Spark's scan is the faster one: it reads columns in vectors, only those that a query needs. But it takes partition
columns from paths by rules of its own, and knows fewer types than parts may have. So each snapshot is looked at first,
by its paths and types alone; no part is opened for it.
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
from icedb.reader.scan_sql import translate_read_error, visible_partitions
from icedb.reader.snapshot import Snapshot
from icedb.spark.datasource import pushdown_warning
from icedb.spark.datasource.options import check_place
from icedb.spark.datasource.part_scan import chosen_columns
from icedb.spark.datasource.type_mapping import held, spark_schema
from icedb.transaction.table_handle import Part

__all__ = ["ReadEngine", "frame"]

#: Who reads the parts: Spark's own Parquet scan, the data source, or what suits the snapshot.
ReadEngine = Literal["auto", "native", "python"]

# The texts of partition values that Spark reads as DuckDB does. The others are left to DuckDB.
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
# Spark takes each %XX for a character, DuckDB for a byte: they differ beyond ASCII.
_BEYOND_ASCII = re.compile(r"%[89A-F]")
# To Spark, these make a path a pattern.
_PATTERN = re.compile(r"[{}\[\]*?\\]")

# A part that is gone, or damaged, is an error, whatever the session says; days before 1582 are what they say.
_SCAN_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

# From how many files on Spark lists them by a job. One thread at a time changes it, or the change could stay.
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
    """A snapshot as a lazy DataFrame; see `icedb.spark.read`.

    Raises InvalidOption, UnknownColumn, InvalidPartitionExpression, MissingPart, SnapshotExpired.
    """
    if engine not in get_args(ReadEngine):
        raise InvalidOption(f"{snapshot.table}: engine is {engine!r}; give 'auto', 'native' or 'python'.")
    if snapshot.table.startswith("memory://"):
        raise InvalidOption(
            f"{snapshot.table}: the table is in this process's memory, where Spark's processes cannot read. Use "
            "spark.createDataFrame(snapshot.to_arrow())."
        )
    check_place(snapshot.table)
    pushdown_warning.warn_if_enabled(spark)
    chosen = chosen_columns(snapshot, columns)
    parts = snapshot.in_partitions(where)
    if not parts:
        return spark.createDataFrame([], spark_schema(chosen))
    if engine == "python":
        return _through_data_source(spark, snapshot, where, columns)
    obstacle = _obstacle(snapshot, parts, chosen, where=where)
    if obstacle is None and (engine == "native" or not snapshot.table.startswith("s3://")):
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
    in_paths = snapshot.partition_schema if _needs_paths(snapshot, chosen) else {}
    reader = spark.read.schema(spark_schema({**chosen, **in_paths})).options(**_SCAN_OPTIONS)
    if in_paths:  # without a base, Spark looks for no partition columns
        location = snapshot.handle.location
        reader = reader.option("basePath", _hadoop_path(f"{location.root_uri}/{location.keys.data_prefix}"))
    paths = snapshot.handle.own_paths(parts)
    try:
        with _listed_here(spark, snapshot):
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
def _listed_here(spark: SparkSession, snapshot: Snapshot) -> Iterator[None]:
    """Let the driver ask for the sizes of the parts: a folder answers it sooner than a Spark job with a task for each.

    The setting is the session's. Nothing else depends on it but how fast other frames find their files.
    """
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
    """With a scheme, whatever file system the session has for its own; S3 has another name there."""
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else f"file://{path}"


def _needs_paths(snapshot: Snapshot, chosen: Mapping[str, str]) -> bool:
    return not chosen.keys().isdisjoint(visible_partitions(snapshot.schema, snapshot.partition_schema))


def _obstacle(snapshot: Snapshot, parts: Sequence[Part], chosen: Mapping[str, str], *, where: str | None) -> str | None:
    """Why Spark's own scan would not give the rows that DuckDB gives; None: it would."""
    for name, type_ in chosen.items():
        if name in snapshot.schema and not held(type_).in_parquet:
            return f"column '{name}' is {type_}, which it does not have"
    if _PATTERN.search(snapshot.table):
        return f"the address holds a character that it takes for a pattern: {snapshot.table}"
    for part in parts:
        if part.key.rpartition("/")[2].startswith(("_", ".")):
            return f"it overlooks files that are named like '{part.key}'"
    if where is not None and any(not snapshot.partition_schema.keys() <= p.values.keys() for p in parts):
        return "there are parts of an older partitioning, whose paths do not say which of their rows 'where' means"
    return _obstacle_in_paths(snapshot, parts) if _needs_paths(snapshot, chosen) else None


def _obstacle_in_paths(snapshot: Snapshot, parts: Sequence[Part]) -> str | None:
    """Why it would not read the partition columns as they are."""
    types = snapshot.partition_schema
    visible = visible_partitions(snapshot.schema, types)
    if hidden := [name for name in types if name not in visible]:
        return f"column '{hidden[0]}' is stored, and it would take its values from the paths"
    texts = {name: _texts_of(held(type_).cast) for name, type_ in types.items()}
    if unread := [name for name in types if texts[name] is None]:
        return f"partition column '{unread[0]}' is {types[unread[0]]}, whose texts in paths it reads in its own way"
    for path in sorted({p.partition for p in parts}):
        values = decode_partition(path)
        if list(values) != list(types):
            return f"there are parts of an older partitioning ('{path}')"
        if encode_partition(values) != path or _BEYOND_ASCII.search(path) or not _are_read(values, texts):
            return f"it would not read the values in the path '{path}'"
    return None


def _are_read(values: Mapping[str, str | None], texts: Mapping[str, re.Pattern[str] | None]) -> bool:
    told = {name: text for name, text in values.items() if text is not None}
    return all((pattern := texts[name]) and pattern.fullmatch(text) for name, text in told.items())


def _texts_of(type_: str) -> re.Pattern[str] | None:
    """The texts of a type's values that Spark reads as DuckDB does."""
    return _DECIMAL_TEXT if type_.startswith("DECIMAL(") else _PATH_TEXTS.get(type_)
