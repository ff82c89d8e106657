"""Implementation of `icedb.spark.write`: optional shuffle, write with the data source, and the commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import get_args

from pyspark.sql import DataFrame

from icedb.errors import InvalidOption
from icedb.operations.write.spark_frames import Distribution, append_frame, check_frame, overwrite_frame
from icedb.spark.datasource.options import Overwrite
from icedb.spark.distribution import distribute
from icedb.spark.distribution_choice import choose_distribution, source_bytes
from icedb.table import Table
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn, check_txn
from icedb.transaction.table_handle import Handle
from icedb.writer.batch_loader import PARTITION_COLUMN

__all__ = ["write"]

logger = logging.getLogger(__name__)


def write(
    frame: DataFrame,
    table: Table,
    *,
    overwrite: Overwrite | None,
    partitions: Sequence[str] | str | None,
    distribution: Distribution,
    txn: Txn | None,
    part_bytes: int | None,
    memory_bytes: int | None,
    partitions_max: int | None = None,
) -> Commit:
    """Write a frame; see `icedb.spark.write`."""
    _check(table.uri, overwrite, partitions, distribution, txn)
    if txn is not None:
        txn = check_txn(txn, table=table.uri)
    if distribution == "auto":
        distribution, frame = _choose(table.handle, frame, partitions)
    if distribution == "partition":
        check_frame(table.handle)
        frame = distribute(frame, table.handle)
    if overwrite is None:
        return append_frame(
            table.handle,
            frame,
            txn=txn,
            memory_bytes=memory_bytes,
            part_bytes=part_bytes,
            partitions_max=partitions_max,
        )
    return overwrite_frame(
        table.handle,
        frame,
        partitions=partitions,
        dynamic=overwrite == "dynamic",
        memory_bytes=memory_bytes,
        part_bytes=part_bytes,
        partitions_max=partitions_max,
    )


def _choose(handle: Handle, frame: DataFrame, partitions: Sequence[str] | str | None) -> tuple[Distribution, DataFrame]:
    """Choose the distribution, and return the frame with fewer tasks if it is small."""
    # The partitions of an insert query's result are unknown before it runs.
    is_partitioned = (bool(handle.expressions) or PARTITION_COLUMN in frame.columns) and not handle.spec.insert_query
    is_one = partitions is not None and not isinstance(partitions, str) and len(partitions) == 1
    choice = choose_distribution(source_bytes(frame), many_partitions=is_partitioned and not is_one)
    tasks = "" if choice.tasks_max is None else f" in at most {choice.tasks_max} tasks"
    logger.info("%s: writing with distribution='%s'%s: %s", handle.table, choice.distribution, tasks, choice.reason)
    return choice.distribution, frame if choice.tasks_max is None else frame.coalesce(choice.tasks_max)


def _check(
    table: str,
    overwrite: str | None,
    partitions: Sequence[str] | str | None,
    distribution: str,
    txn: Txn | None,
) -> None:
    if distribution not in get_args(Distribution):
        raise InvalidOption(f"{table}: distribution is {distribution!r}. Pass 'auto', 'none' or 'partition'.")
    if overwrite is not None and overwrite not in get_args(Overwrite):
        raise InvalidOption(f"{table}: overwrite is {overwrite!r}. Pass 'table', 'partitions' or 'dynamic'.")
    if (overwrite == "partitions") != (partitions is not None):
        raise InvalidOption(
            f"{table}: overwrite is {overwrite!r} and partitions is {partitions!r}. Pass both: "
            "overwrite='partitions', partitions=['d=2026-11-21']."
        )
    if txn is not None and overwrite is not None:
        raise InvalidOption(f"{table}: an overwrite takes no txn, because a repetition has the same result. Omit it.")
