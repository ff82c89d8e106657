"""Spark's side of a batch write: parts by the tasks, one commit by the driver.

Each task hands its rows to `icedb.parts.write_parts`, as every other writer does: DuckDB sorts, partitions and
encodes them, and the parts go straight to the store, without Hadoop's file systems. Nothing is visible until the
driver commits what all tasks report. A task that is retried, killed or run twice leaves parts that no log file
names: orphans, which an orphan sweep removes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from icedb.clock import SystemClock
from icedb.errors import InvalidOption, InvariantViolated, UnsupportedType
from icedb.parts import WrittenParts, write_parts
from icedb.publishing import publish_append, publish_overwrite
from icedb.shaping import WriteContext
from icedb.staging import check_batch
from icedb.store import open_store
from icedb.table import Table
from icedb.transactions import Txn, check_txn

__all__ = ["IceDBDataSource"]

logger = logging.getLogger(__name__)

_VARIANT = re.compile(r"(?<![\w`])variant(?![\w`:])")
_OPTIONS = (
    "path", "overwrite", "memory_bytes", "partitionoverwritemode", "job", "txn_application", "txn_sequence",
)  # fmt: skip
WriteMode = Literal["append", "overwrite"]

# What DuckDB may take in one task before it spills; several tasks share a machine, so not DuckDB's own 80% of it.
MEMORY_BYTES = 1024 * 1024 * 1024


class IceDBDataSource(DataSource):
    """`format("icedb")`. Options: `path`, storage options (`AWS_...`), `memory_bytes`, and `overwrite`.

    `txn_application` and `txn_sequence`: the two halves of a `txn` (see `Table.insert`). `job`: up to 32 letters and
    digits that the names of the new parts begin with.
    """

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "icedb"

    def schema(self) -> StructType:
        """Spark asks for it only to read, which this source does not do."""
        raise InvalidOption(
            f"{_path(self.options)}: spark.read.format('icedb') cannot read yet. Use icedb.spark.read(spark, uri)."
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of one job; runs on the driver, before any task. Raises FixInput errors."""
        options = dict(self.options.items())
        path = _path(options)
        mode: WriteMode = "overwrite" if overwrite else "append"
        _check_overwrite(path, options, mode)
        txn = _txn(options, path)
        if txn is not None and mode == "overwrite":
            raise InvalidOption(f"{path}: an overwrite takes no txn: done twice, it is as if it was done once.")
        storage_options = _storage_options(options, path)
        table = Table.open(path, storage_options=storage_options)
        table.handle.check_writable()
        table.schema()
        if table.spec.views:
            raise InvalidOption(
                f"{path}: the table has views ({[v.name for v in table.spec.views]}), which a Spark job does not feed. "
                "Write with Table.insert(frame.toArrow()), or drop the views."
            )
        context = replace(table.handle.write_context(), job=_job(options, path))
        check_batch(context, _arrow_schema(schema, path))
        return _BatchWriter(context, storage_options, mode, _memory_bytes(options, path), txn)


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path", "")
    if not path:
        raise InvalidOption(
            'icedb: no table is named. Say where it is: df.write.format("icedb").option("path", "s3://bucket/table").'
        )
    return path


def _arrow_schema(schema: StructType, path: str) -> pa.Schema:
    """What the tasks will get. Raises UnsupportedType for a type that Arrow or Parquet does not have."""
    return pa.schema([_arrow_field(field, path) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    type_ = field.dataType.simpleString()
    try:
        arrow = to_arrow_schema(StructType([field]), timezone="UTC").field(0)
    except (PySparkException, ValueError):  # pyarrow's, for the elements of `array()`
        arrow = None
    if arrow is None or _VARIANT.search(type_):  # to Arrow, a variant is a struct of two undocumented blobs
        raise UnsupportedType(
            f"{path}: column '{field.name}' is {type_}, which cannot be stored. Cast it to the type that it shall have "
            "in the table (a variant: to_json)."
        )
    return arrow


def _check_overwrite(path: str, options: Mapping[str, str], mode: WriteMode) -> None:
    """Spark does not tell a data source whether its overwrite is dynamic, so an overwrite must say what it is."""
    lowered = {k.lower(): v.lower() for k, v in options.items()}
    if lowered.get("partitionoverwritemode") == "dynamic":
        raise InvalidOption(
            f"{path}: dynamic partition overwrite is not supported. Use Table.overwrite(rows, partitions=[...]), which "
            "replaces exactly those partitions."
        )
    if mode == "overwrite" and lowered.get("overwrite") != "table":
        raise InvalidOption(
            f"{path}: mode('overwrite') would replace every row of the table, even where Spark is set to dynamic "
            "partition overwrite. If that is what you want, say .option('overwrite', 'table')."
        )


def _storage_options(options: Mapping[str, str], path: str) -> dict[str, str]:
    storage = {k: v for k, v in options.items() if k.lower() not in _OPTIONS}
    if unknown := [k for k in storage if not k.lower().startswith("aws_") and k.lower() != "fsync"]:
        raise InvalidOption(
            f"{path}: unknown options {sorted(unknown)}. Known: path, overwrite, memory_bytes, and storage options "
            "such as AWS_ENDPOINT_URL."
        )
    return storage


def _memory_bytes(options: Mapping[str, str], path: str) -> int:
    text = {k.lower(): v for k, v in options.items()}.get("memory_bytes", str(MEMORY_BYTES))
    if not text.isdigit() or int(text) < 64 * 1024 * 1024:
        raise InvalidOption(f"{path}: memory_bytes is '{text}'; give at least 67108864 (64 MiB per task).")
    return int(text)


def _job(options: Mapping[str, str], path: str) -> str:
    job = {k.lower(): v for k, v in options.items()}.get("job", "")
    if not re.fullmatch(r"[A-Za-z0-9]{0,32}", job):
        raise InvalidOption(f"{path}: job is '{job}'; give up to 32 letters and digits.")
    return job


def _txn(options: Mapping[str, str], path: str) -> Txn | None:
    lowered = {k.lower(): v for k, v in options.items()}
    application, sequence = lowered.get("txn_application"), lowered.get("txn_sequence")
    if application is None and sequence is None:
        return None
    number = int(sequence) if sequence is not None and sequence.isdigit() else sequence
    return check_txn((application, number), table=path)


@dataclass
class _TaskMessage(WriterCommitMessage):
    """What one task wrote; None when it had no rows."""

    written: WrittenParts | None


class _BatchWriter(DataSourceArrowWriter):
    """Pickled to each task. It carries the storage options, so its repr says nothing of them."""

    def __init__(
        self,
        context: WriteContext,
        storage_options: Mapping[str, str],
        mode: WriteMode,
        memory_bytes: int,
        txn: Txn | None,
    ) -> None:
        self._context = context
        self._storage_options = dict(storage_options)
        self._mode = mode
        self._memory_bytes = memory_bytes
        self._txn = txn

    def __repr__(self) -> str:
        return f"_BatchWriter({self._context.table!r}, mode={self._mode!r})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: turn its rows into parts."""
        first = next(iterator, None)
        if first is None:
            return _TaskMessage(None)
        written = write_parts(
            self._context,
            pa.RecordBatchReader.from_batches(first.schema, chain([first], iterator)),
            store=open_store(self._context.location),
            clock=SystemClock(),
            memory_bytes=self._memory_bytes,
        )
        return _TaskMessage(written)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: one log file for the whole job."""
        reports = [m for m in messages if isinstance(m, _TaskMessage)]
        if len(reports) < len(messages):
            raise InvariantViolated(
                f"{self._context.table}: {len(messages) - len(reports)} of {len(messages)} tasks did not say what they "
                "wrote. Nothing was published."
            )
        pieces = [m.written for m in reports if m.written is not None]
        handle = Table.open(self._context.location.uri, storage_options=self._storage_options).handle
        written = WrittenParts(
            schema={c: t for p in pieces for c, t in p.schema.items()},
            markers=tuple(m for p in pieces for m in p.markers),
            born_ms=min((p.born_ms for p in pieces), default=handle.clock.now_ms()),
        )
        if self._mode == "overwrite":
            publish_overwrite(handle, written, None)
        else:
            publish_append(handle, written, txn=self._txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when the job failed; Spark may call it after a commit that landed, so nothing is deleted."""
        parts = sum(len(m.written.markers) for m in messages if isinstance(m, _TaskMessage) and m.written is not None)
        logger.warning(
            "%s: the write job was aborted; up to %d parts stay behind as orphans", self._context.table, parts
        )
