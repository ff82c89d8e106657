"""Writes of Spark DataFrames through Spark's own writers. The rows never pass through this process.

Spark is not imported, because a caller with a frame has imported it. The data source `icedb` writes the parts in
Spark's tasks and commits on the driver, in a separate process. So a prefix of its parts' names identifies the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from icedb.errors import CommitStateUnknown, IceDBError, InvalidOption, SparkJobFailed, StaleView
from icedb.format.records import Marker
from icedb.format.replay import TableState
from icedb.format.table_spec import SchemaMode
from icedb.operations.write.small_parts import warn_of_small_parts
from icedb.sources.batch import OnConflict
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.idempotent_append import Txn, is_recorded, repeated
from icedb.transaction.table_handle import Handle

__all__ = ["Distribution", "append_frame", "check_frame", "is_spark_frame", "overwrite_frame", "size_options"]

#: `none`: no shuffle. `partition`: a shuffle gives each task a range of partitions. `auto`: one of the two by the
#: rules of `icedb.spark.distribution_choice.choose_distribution`.
Distribution = Literal["auto", "none", "partition"]

# Enough digits to be unique.
JOB_DIGITS = 12


def is_spark_frame(data: object) -> bool:
    """Whether it is a DataFrame of a classic Spark session or of Spark Connect."""
    return any(t.__module__.startswith("pyspark.sql") and t.__name__ == "DataFrame" for t in type(data).__mro__)


def append_frame(
    handle: Handle,
    frame: Any,
    *,
    txn: Txn | None = None,
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    part_bytes: int | None = None,
    partitions_max: int | None = None,
) -> Commit:
    """Append the rows of a DataFrame. `memory_bytes` is for each task. Raises InvalidOption and the job's errors."""
    options = {} if txn is None else {"txn_application": txn[0], "txn_sequence": str(txn[1])}
    options |= size_options(memory_bytes, part_bytes, partitions_max)
    check_frame(handle, on_conflict)
    if txn is not None and is_recorded(handle.read(fresh=True), txn):
        return repeated(handle)
    return _run(handle, frame, "append", options, txn)


def overwrite_frame(
    handle: Handle,
    frame: Any,
    *,
    partitions: Sequence[str] | str | None,
    dynamic: bool = False,
    schema_mode: SchemaMode = "merge",
    on_conflict: OnConflict = "raise",
    memory_bytes: int | None = None,
    part_bytes: int | None = None,
    partitions_max: int | None = None,
) -> Commit:
    """Replace rows by those of a DataFrame: all rows, those of `partitions`, or (`dynamic`) of the frame's partitions.

    Raises InvalidOption and the job's errors.
    """
    check_frame(handle, on_conflict, schema_mode)
    options = {"overwrite": "dynamic" if dynamic else "table"}
    if partitions is not None:
        options = {
            "overwrite": "partitions",
            # In parentheses, a predicate is never mistaken for a list.
            "partitions": f"({partitions})" if isinstance(partitions, str) else json.dumps(list(partitions)),
        }
    return _run(handle, frame, "overwrite", options | size_options(memory_bytes, part_bytes, partitions_max), None)


def size_options(memory_bytes: int | None, part_bytes: int | None, partitions_max: int | None = None) -> dict[str, str]:
    """Return the size options of a write job, without those that are None."""
    sizes = {"memory_bytes": memory_bytes, "part_bytes": part_bytes, "partitions_max": partitions_max}
    return {name: str(value) for name, value in sizes.items() if value is not None}


def check_frame(handle: Handle, on_conflict: OnConflict = "raise", schema_mode: SchemaMode = "merge") -> None:
    """Raise InvalidOption before a job starts for a write that Spark's processes cannot do."""
    if schema_mode != "merge":
        raise InvalidOption(
            f"{handle.table}: schema_mode is {schema_mode!r}, which a Spark DataFrame does not support. Drop columns "
            "with Table.alter(drop_columns=[...])."
        )
    if on_conflict != "raise":
        raise InvalidOption(
            f"{handle.table}: on_conflict='{on_conflict}' is not possible for a Spark DataFrame. Cast its columns, or "
            "give its rows as Arrow: frame.toArrow()."
        )
    if handle.location.scheme == "memory":
        raise InvalidOption(
            f"{handle.table}: the table is in this process's memory, where Spark's processes cannot write. Give the "
            "frame's rows as Arrow: frame.toArrow()."
        )
    handle.read()
    if handle.spec.views:
        raise InvalidOption(
            f"{handle.table}: the table has views ({[v.name for v in handle.spec.views]}), which a Spark job does not "
            "feed. Give the frame's rows as Arrow: frame.toArrow(); or drop the views."
        )


def _run(handle: Handle, frame: Any, mode: str, options: Mapping[str, str], txn: Txn | None) -> Commit:
    from icedb.operations.write.spark_errors import explained_of_frame, failed_before_commit

    job = handle.clock.new_id()[:JOB_DIGITS]
    writer = frame.write.format("icedb").mode(mode).option("path", handle.table).option("job", job)
    for name, value in {**handle.location.storage_options, **options}.items():
        writer = writer.option(name, value)
    try:
        writer.save()
    except Exception as error:  # noqa: BLE001  Spark raises errors of many types
        meaning = explained_of_frame(error, table=handle.table)
        landed = _landed(handle, job)
        if landed is None or isinstance(meaning, StaleView):
            # A commit that has not landed yet may still do so, unless it was never begun. A second overwrite is safe.
            repeatable = mode == "overwrite" or txn is not None or failed_before_commit(error)
            if isinstance(meaning, SparkJobFailed) and not repeatable:
                meaning = _uncertain(handle, job, meaning)
            raise meaning from None  # without Spark's Java traces, which stay in its context
        state = landed  # Spark reported a failure, but the commit landed: its response was lost, or Spark ended then
    else:
        state = _state_of_success(handle, job)
    ours = _of_job(state, job)
    if not ours:
        return repeated(handle) if txn is not None and is_recorded(state, txn) else nothing_to_commit(handle)
    # An overwrite is an exclusive commit, and no other exclusive commit has its time.
    dead = [m for m in state.parts.values() if m.tombstoned_ms == ours[0].created_ms] if mode == "overwrite" else []
    commit = _commit(handle, ours, dead, state.parts_named[ours[0].key].by[0])
    warn_of_small_parts(handle, commit.parts)
    return commit


def _landed(handle: Handle, job: str) -> TableState | None:
    """Return the state with the commit of a failed job, or None if there is no commit, or the log cannot be read."""
    try:
        state = handle.read(fresh=True)
    except IceDBError:
        return None
    return state if _of_job(state, job) else None


def _state_of_success(handle: Handle, job: str) -> TableState:
    try:
        return handle.read(fresh=True)
    except IceDBError as error:
        raise CommitStateUnknown(
            f"{handle.table}: the Spark job has succeeded, and its commit could not be read back ({error}). Do not "
            f"write these rows again; the names of their parts begin with '{job}'."
        ) from error


def _uncertain(handle: Handle, job: str, meaning: IceDBError) -> CommitStateUnknown:
    """Return the error for a job with an unknown outcome. Without a `txn`, a retry could duplicate rows."""
    return CommitStateUnknown(
        f"{meaning} The rows may have been published, or may still be: check whether the table {handle.table} has "
        f"parts whose names begin with '{job}' before you write them again. With a txn, a job can be retried safely."
    )


def _of_job(state: TableState, job: str) -> list[Marker]:
    return [m for m in state.parts.values() if m.key.rpartition("/")[2].startswith(job)]


def _commit(handle: Handle, markers: Sequence[Marker], dead: Sequence[Marker], key: str) -> Commit:
    parts, tombstoned = tuple(map(handle.part, markers)), tuple(map(handle.part, dead))
    epoch = handle.keys.parse_log_file(key).epoch
    return Commit(handle.table, key, parts[0].created_ms, epoch, parts, tombstoned)
