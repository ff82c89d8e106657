"""The front door: a table and its verbs.

    table = Table.create("s3://lake/events", partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user", "ts"])
    table.insert([{"ts": datetime(2026, 11, 21), "user": 7, "event": "open"}])
    table.query("SELECT event, count(*) FROM t GROUP BY ALL").show()

A `Table` holds no connection and no lock; open as many as you like, in any process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

import duckdb

from icedb.clock import Clock, SystemClock
from icedb.commit import Commit
from icedb.errors import InvalidOption, TableExists, TableNotFound
from icedb.handle import Fencing, Handle
from icedb.inputs import Rows, to_stream
from icedb.location import parse_location
from icedb.maintenance.cleanup import CleanupReport, cleanup
from icedb.maintenance.drop import DropReport, drop_partitions
from icedb.maintenance.merge import INPUT_BYTES_MAX, INPUT_PARTS_MAX, PART_BYTES_MAX, MergeReport, Order, merge
from icedb.options import Timing
from icedb.parts import WrittenParts
from icedb.snapshot import Snapshot, take_snapshot
from icedb.spec import ROW_GROUP_ROWS, Compression, TableSpec, check_spec, decode_spec, encode_spec
from icedb.store import ObjectExists, ObjectNotFound, ObjectStore, open_store
from icedb.writing import publish_append, publish_overwrite, write_stream

__all__ = ["AsOf", "Table", "as_of_ms", "open_handle"]

#: A point in time: an aware datetime, or unix milliseconds.
AsOf = datetime | int


class Table:
    """An open table. Made by `Table.create` and `Table.open`; safe to share between threads."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"

    @property
    def uri(self) -> str:
        """The table's address."""
        return self._handle.table

    @property
    def spec(self) -> TableSpec:
        """How the table is partitioned, sorted and stored."""
        return self._handle.spec

    @property
    def handle(self) -> Handle:
        """What the layers above and beside work on; not for everyday use."""
        return self._handle

    # ------------------------------------------------------------------------------------ create and open

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        compression: Compression = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        storage_options: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
    ) -> Self:
        """Create an empty table.

        `partition_by`: DuckDB expressions over a row's columns, each with a name (`"strftime(ts, '%Y') AS y"`).
        `sort_by`: columns that the rows of a part are sorted by. `row_group_rows`: rows per Parquet row group.
        `storage_options`: as for deltalake and Polars (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...); what is not
        given comes from the environment. `fencing`: `"none"` for a store without create-only puts.

        Raises TableExists, InvalidPartitionExpression, InvalidOption, InvalidURI, UnsupportedStore, BucketNotFound,
        AccessDenied, StoreUnavailable.
        """
        store = open_store(parse_location(uri, storage_options))
        for name, texts in (("partition_by", partition_by), ("sort_by", sort_by)):
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise InvalidOption(f"{store.location.uri}: {name} must be a list of texts, not {texts!r}.")
        if not isinstance(row_group_rows, int):
            raise InvalidOption(f"{store.location.uri}: row_group_rows must be a whole number, not {row_group_rows!r}.")
        spec = TableSpec(
            id=SystemClock().new_id(),
            partition_by=tuple(partition_by),
            sort_by=tuple(sort_by),
            compression=compression,
            row_group_rows=row_group_rows,
        )
        check_spec(spec, table=store.location.uri)
        handle = Handle(store, spec, timing=timing, fencing=fencing)
        _ = handle.expressions  # refuses a bad one before anything is written
        _refuse_foreign_log(handle)
        handle.check_writable()
        _create_spec(handle)
        return cls(handle)

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
    ) -> Self:
        """Open a table that exists. Raises TableNotFound, InvalidURI, InvalidOption and the store's errors."""
        store = open_store(parse_location(uri, storage_options))
        return cls(open_handle(store, timing=timing, fencing=fencing))

    @classmethod
    def exists(cls, uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> bool:
        """Whether a table can be opened there. Raises the store's errors."""
        try:
            cls.open(uri, storage_options=storage_options)
        except TableNotFound:
            return False
        return True

    # ------------------------------------------------------------------------------------ write

    def insert(self, data: Rows) -> Commit:
        """Append rows: parts, then one log file. Needs no lock; any number of writers at a time.

        `data`: a list of dicts, a pyarrow Table, RecordBatch or RecordBatchReader, or anything with
        `__arrow_c_stream__` (pandas, Polars, a DuckDB relation). Without rows there is no commit.

        Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidPartitionExpression,
        InvalidPartitionValue before anything is visible; CommitUncertain; the store's errors.
        """
        return publish_append(self._handle, self._write(data))

    def overwrite(self, data: Rows, *, partitions: Sequence[str] | str | None = None) -> Commit:
        """Replace live parts by these rows, atomically.

        `partitions`: paths (`["d=2026-11-21"]`) of the partitions to replace, or a DuckDB predicate over the
        partition columns; None replaces the whole table. Rows outside them are refused. What other writers append
        meanwhile survives. Raises EmptyBatch (use `drop_partitions` to empty), FixInput, and as `insert` does.
        """
        return publish_overwrite(self._handle, self._write(data), partitions)

    def _write(self, data: Rows) -> WrittenParts:
        return write_stream(self._handle, to_stream(data, table=self.uri))

    # ------------------------------------------------------------------------------------ read

    def snapshot(self, as_of: AsOf | None = None) -> Snapshot:
        """The live parts and the schema, now or at a time. Raises SnapshotExpired, DamagedLog, the store's errors."""
        return take_snapshot(self._handle, None if as_of is None else as_of_ms(as_of))

    def query(self, sql: str, *, as_of: AsOf | None = None, where: str | None = None) -> duckdb.DuckDBPyRelation:
        """The answer to a DuckDB query over the table `t`, as a lazy relation (`.show()`, `.fetchall()`, `.pl()`).

        `where`: a predicate over the partition columns that prunes before any part is opened.
        """
        return self.snapshot(as_of).query(sql, where=where)

    def schema(self) -> dict[str, str]:
        """Column -> DuckDB type."""
        return dict(self._handle.read().schema)

    # ------------------------------------------------------------------------------------ maintain

    def merge(
        self,
        *,
        order: Order = "oldest",
        part_bytes_max: int = PART_BYTES_MAX,
        input_parts_max: int = INPUT_PARTS_MAX,
        input_bytes_max: int = INPUT_BYTES_MAX,
    ) -> MergeReport:
        """Merge parts smaller than `part_bytes_max`, partition by partition, in one exclusive commit.

        `order`: whose groups come first when the budget of `input_parts_max` and `input_bytes_max` does not reach
        (`remaining` in the report): `"newest"` for hot partitions, often; `"oldest"` for full optimisation.
        """
        return merge(
            self._handle,
            order=order,
            part_bytes_max=part_bytes_max,
            input_parts_max=input_parts_max,
            input_bytes_max=input_bytes_max,
        )

    def drop_partitions(self, partitions: Sequence[str] | str, *, dry_run: bool = False) -> DropReport:
        """Tombstone all live parts of some partitions: paths, or a DuckDB predicate over the partition columns.

        Readers of older snapshots keep reading until `cleanup`. Raises FixInput errors and the store's.
        """
        return drop_partitions(self._handle, partitions, dry_run=dry_run)

    def cleanup(
        self, *, grace_ms: int | None = None, allow_short_grace: bool = False, dry_run: bool = False
    ) -> CleanupReport:
        """Delete what was superseded longer than `grace_ms` ago (default: the table's, an hour); see CleanupReport."""
        return cleanup(self._handle, grace_ms=grace_ms, allow_short_grace=allow_short_grace, dry_run=dry_run)


def open_handle(
    store: ObjectStore, *, timing: Timing | None = None, fencing: Fencing = "claims", clock: Clock | None = None
) -> Handle:
    """The handle of the table in a store. Raises TableNotFound."""
    location = store.location
    try:
        body = store.get(location.keys.spec).body
    except ObjectNotFound:
        raise TableNotFound(
            f"{location.uri}: there is no table ('{location.keys.spec}' is missing). Create one with Table.create, or "
            "correct the address."
        ) from None
    spec = decode_spec(body, table=location.uri, key=location.keys.spec)
    return Handle(store, spec, timing=timing, fencing=fencing, clock=clock)


def _refuse_foreign_log(handle: Handle) -> None:
    if handle.log.list_after(None) and not _has_spec(handle):
        raise TableExists(
            f"{handle.table}: log files are there already (of a table that another program made, or whose "
            "_table.json was lost). Choose another address, or restore '_table.json'."
        )


def _create_spec(handle: Handle) -> None:
    body = encode_spec(handle.spec)
    try:
        handle.store.create(handle.keys.spec, body)
    except ObjectExists:
        # The spec holds a random id: equal bytes are our own put, answered too late and repeated.
        if handle.store.get(handle.keys.spec).body != body:
            raise TableExists(f"{handle.table}: a table is there already. Open it with Table.open.") from None


def _has_spec(handle: Handle) -> bool:
    try:
        handle.store.head(handle.keys.spec)
    except ObjectNotFound:
        return False
    return True


def as_of_ms(as_of: AsOf) -> int:
    """A point in time as unix milliseconds. Raises InvalidOption for a datetime without a timezone."""
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidOption(f"as_of {as_of} has no timezone; give datetime(..., tzinfo=UTC) or unix milliseconds.")
        return int(as_of.astimezone(UTC).timestamp() * 1000)
    if not isinstance(as_of, int) or isinstance(as_of, bool):
        raise InvalidOption(f"as_of is {as_of!r}; give datetime(..., tzinfo=UTC) or unix milliseconds.")
    return as_of
