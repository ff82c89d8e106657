"""The public API: a table and its operations.

    table = Table.create("s3://lake/events", partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user", "ts"])
    table.insert([{"ts": datetime(2026, 11, 21), "user": 7, "event": "open"}])
    table.query("SELECT event, count(*) FROM t GROUP BY ALL").show()

Two operations have other names elsewhere: `merge` is compaction or OPTIMIZE, and `cleanup` is VACUUM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Self, Unpack, overload

from icedb.errors import InvalidOption, TableNotFound
from icedb.format.change_feed import Limits
from icedb.format.table_spec import Merging, SchemaMode, TableSpec
from icedb.format.timing import Timing
from icedb.operations.commits.alter import alter
from icedb.operations.commits.drop_partitions import DropReport, check_chosen, drop_partitions
from icedb.operations.export.delta import DeltaReport, export_delta
from icedb.operations.export.export_pins import KEEP
from icedb.operations.export.iceberg import IcebergReport, export_iceberg
from icedb.operations.export.parquet import OnPart, ParquetExportReport, export_parquet
from icedb.operations.health.table_health import TableHealth, Thresholds, examine
from icedb.operations.importing.import_files import ImportReport, create_by_import, import_files
from icedb.operations.integrity.repair_spec import SpecRepairReport, repair_spec
from icedb.operations.integrity.repair_types import RepairReport, repair
from icedb.operations.integrity.verify import VerifyReport, verify
from icedb.operations.retention.cleanup import DELETES_MAX, CleanupReport, cleanup
from icedb.operations.retention.merge_log import LINES_MAX, MergeLogReport, merge_log
from icedb.operations.retention.orphans import ORPHANS_MAX, OrphansReport, delete_orphans
from icedb.operations.retention.pins import Expires, pin, unpin
from icedb.operations.retention.restore import RestoreReport, restore
from icedb.operations.rewrite.delete import DeleteReport, delete, find_rows
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine
from icedb.operations.rewrite.merge import (
    INPUT_BYTES_MAX,
    INPUT_PARTS_MAX,
    PART_BYTES_MAX,
    MergeReport,
    Order,
    TieredMerge,
)
from icedb.operations.rewrite.merge_loop import merge_engine, merge_within
from icedb.operations.rewrite.rewrite_partition import RewriteReport, rewrite_partition
from icedb.operations.rewrite.rewriter import rewrite_parts
from icedb.operations.upsert.update import UpdateReport, update
from icedb.operations.upsert.upsert import UpsertReport, WhenMatched, upsert
from icedb.operations.write.insert import insert, overwrite
from icedb.operations.write.spark_frames import append_frame, is_spark_frame, overwrite_frame
from icedb.operations.write.views import create_view, drop_view, refresh_view
from icedb.operations.write.write_plan import WritePlan, plan_write
from icedb.reader.changes import Changes, take_changes
from icedb.reader.diff import Diff, diff
from icedb.reader.history import CommitInfo, history
from icedb.reader.snapshot import Snapshot, Where, take_snapshot
from icedb.sources.batch import OnConflict, Rows, WriteOptions
from icedb.sql.query_result import QueryResult
from icedb.storage.credentials import CredentialProvider
from icedb.storage.location import StoreOptions, parse_location, with_log
from icedb.storage.obstore_store import open_store
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn, check_txn
from icedb.transaction.open_table import create_handle, open_handle
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Fencing, Handle
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock
from icedb.util.times import AsOf, as_of_ms
from icedb.writer.spec_options import AlterOptions, SpecOptions, spec_change
from icedb.writer.spec_validation import DeclaredSchema

__all__ = ["Table"]


@checks_arguments
class Table:
    """An open table. `Table.create` and `Table.open` return one.

    A table holds no connection and no lock. Threads can share one, and any number of processes can open the same table.

    Every method that sends requests to the store also raises the store's errors: StoreUnavailable, AccessDenied and
    BucketNotFound. Methods that read the log also raise CorruptLog if a log file cannot be read. An exclusive commit
    also raises CommitConflict if other exclusive commits always came first, and then nothing was committed. Every
    commit also raises CommitStateUnknown if its outcome is unknown: check `history` before you retry.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"

    @property
    def uri(self) -> str:
        """The address of the table."""
        return self._handle.table

    @property
    def spec(self) -> TableSpec:
        """How the table is partitioned, sorted and stored."""
        return self._handle.spec

    @property
    def handle(self) -> Handle:
        """The open table as the packages of icedb use it. Not for everyday use."""
        return self._handle

    # ------------------------------------------------------------------------------------ create and open

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        *,
        preserve_partition: bool = False,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        log_uri: str | os.PathLike[str] | None = None,
        log_storage_options: Mapping[str, str] | None = None,
        fencing: Fencing = "claims",
        dry_run: bool = False,
        **options: Unpack[SpecOptions],
    ) -> Self:
        """Create an empty table.

        An option that is None has its default. The queries (`insert_query`, `merge_query`) run in a sandbox and see
        only their input rows.

        Args:
            uri: A folder, or an address such as `s3://bucket/prefix`.
            partition_by: DuckDB expressions over the columns of a row, each with a name (`"strftime(ts, '%Y') AS y"`).
            sort_by: The columns by which the rows of a part (data file) are sorted.
            compression: The Parquet codec of new parts. The default is `"zstd"`.
            row_group_rows: Rows per Parquet row group. The default is 122,880.
            bloom_filters: Columns for which new parts have a Parquet bloom filter, by which readers skip row groups
                without a value. Not for BOOLEAN, FLOAT, DOUBLE and nested columns.
            schema: Columns to declare before a batch brings them, as a dict of DuckDB types or a pyarrow schema.
            required: Columns that must not be null.
            schema_policy: With `"declared"`, batches with columns that are not declared are rejected. The default is
                `"open"`.
            path_columns: Partition columns and their types whose values only the paths contain. A batch has a column of
                that name, which is not stored, or `_partition`.
            insert_query: A query over `_rows`. Its result is stored in their place.
            merge_query: A query over `source_files` that computes the rows of a merged part.
            merging: How a merge combines rows with the same key (`Dedup`, `Replacing`, `Aggregating`). Excludes
                `merge_query`.
            row_id: Give each row a unique `_row_id`, unless it brings one.
            preserve_partition: Also store `_partition`.
            storage_options: The names of deltalake and Polars (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...). The
                environment supplies the rest.
            credential_provider: A boto3 Session, or a function that returns a dict with `access_key_id`,
                `secret_access_key`, `token` and `expires_at`. It is called again when these expire.
            log_uri: The address of the log if it is not stored with the parts. The table records it.
            log_storage_options: Options for the log's store. None means `storage_options` if both stores are of one
                kind.
            timing: The times on which the table's consistency depends. The default is `Timing()`.
            fencing: `"none"` for a store without create-only puts.
            dry_run: Check everything, also that no table exists at the address, and create nothing. The returned Table
                only serves to read its `spec`.

        Returns:
            The open table.

        Raises:
            TableExists: A table exists at the address.
            InvalidOption, InvalidURI: An option or the address is invalid.
            InvalidPartitionExpression, InvalidQuery, UnknownColumn, UnsupportedType: The spec is invalid.
            UnsupportedStore: The store has no create-only puts, or cannot put an object whole.

        Example:
            >>> table = icedb.Table.create(
            ...     "s3://lake/events", partition_by=["ts::DATE AS d"], sort_by=["user", "ts"]
            ... )
        """
        location = with_log(parse_location(uri, storage_options, credential_provider), log_uri, log_storage_options)
        spec = TableSpec(
            id=SystemClock().new_id(),
            log_uri=location.log.uri if location.log else "",
            preserve_partition=preserve_partition,
        )
        spec = spec_change(location.uri, **options)(spec)
        return cls(create_handle(open_store(location), spec, fencing=fencing, dry_run=dry_run))

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
        **access: Unpack[StoreOptions],
    ) -> Self:
        """Open an existing table.

        Args:
            uri: The address of the table.
            timing: The times that the table must have. If it has others, InvalidOption is raised.
            fencing: As for `create`.
            storage_options: As for `create`.
            credential_provider: As for `create`.
            log_storage_options: As for `create`. The table records where its log is.

        Returns:
            The open table.

        Raises:
            TableNotFound: There is no table at the address.
            InvalidURI, InvalidOption: The address or an option is invalid.

        Example:
            >>> table = icedb.Table.open("s3://lake/events")
        """
        store = open_store(parse_location(uri, access.get("storage_options"), access.get("credential_provider")))
        log_options = access.get("log_storage_options")
        return cls(open_handle(store, log_storage_options=log_options, timing=timing, fencing=fencing))

    @classmethod
    def exists(cls, uri: str | os.PathLike[str], **access: Unpack[StoreOptions]) -> bool:
        """Return whether a table can be opened at an address.

        Args:
            uri: The address.
            storage_options: As for `create`.
            credential_provider: As for `create`.
            log_storage_options: As for `create`.

        Raises:
            InvalidURI, InvalidOption: The address or an option is invalid.

        Example:
            >>> icedb.Table.exists("s3://lake/events")
            True
        """
        try:
            cls.open(uri, **access)
        except TableNotFound:
            return False
        return True

    @classmethod
    def repair_spec(
        cls,
        uri: str | os.PathLike[str],
        *,
        spec: Mapping[str, Any] | None = None,
        log_uri: str | os.PathLike[str] | None = None,
        fencing: Fencing = "claims",
        dry_run: bool = False,
        **access: Unpack[StoreOptions],
    ) -> SpecRepairReport:
        """Write a lost `_table.json` again, from the newest spec that the log records.

        Until then the table opens read-only. An existing `_table.json` is never replaced. The repair can be repeated,
        and concurrent repairs are safe.

        Args:
            uri: The address of the table.
            spec: For a log that records no spec, a dict with the keys of `_table.json`. It is compared with the columns
                and paths in the log.
            log_uri: The address of the log if it is not stored with the parts.
            fencing: As for `create`.
            dry_run: Return the report, and write nothing.
            storage_options: As for `create`.
            credential_provider: As for `create`.
            log_storage_options: As for `create`.

        Raises:
            TableNotFound: There is no log.
            CorruptLog: The log records no spec and no `spec` was passed, or the log belongs to another table.
            InvalidOption: `spec` does not fit the log.
            TableExists: Another spec was written meanwhile.
            UnsupportedStore: The store has no create-only puts.

        Example:
            >>> icedb.Table.repair_spec("s3://lake/events")
        """
        location = parse_location(uri, access.get("storage_options"), access.get("credential_provider"))
        location = with_log(location, log_uri, access.get("log_storage_options"))
        return repair_spec(Handle.of(open_store(location), TableSpec(), fencing=fencing), spec, dry_run=dry_run)

    # ------------------------------------------------------------------------------------ write

    @overload
    def insert(
        self, data: Rows, *, txn: Txn | None = ..., dry_run: Literal[False] = ..., **options: Unpack[WriteOptions]
    ) -> Commit: ...

    @overload
    def insert(
        self, data: Rows, *, txn: Txn | None = ..., dry_run: Literal[True], **options: Unpack[WriteOptions]
    ) -> WritePlan: ...

    def insert(
        self,
        data: Rows,
        *,
        txn: Txn | None = None,
        on_conflict: OnConflict = "raise",
        memory_bytes: int | None = None,
        partitions_max: int | None = None,
        dry_run: bool = False,
    ) -> Commit | WritePlan:
        """Append rows, in one commit.

        An insert puts the parts and then one log file. It takes no lock, and any number of writers can insert at a
        time. A text column `_partition` sets the partition of its row, as a path. Without it the table's expressions
        do. A batch without rows makes no commit.

        Args:
            data: The rows, which are streamed: a list of dicts; a pyarrow Table, RecordBatch or RecordBatchReader; a
                pandas or Polars frame, also a lazy one; a DuckDB relation; an object with `__arrow_c_stream__`; a Spark
                DataFrame; or a path or glob, or a list of them, of Parquet, JSON lines or CSV (local or `s3://`).
            txn: The idempotency key `(application, sequence)`. If this or a later sequence of the application is
                committed, the insert adds nothing and the Commit has `repeated` set. So retries never duplicate rows.
            on_conflict: How to treat values that do not fit the type of their column. `"raise"` rejects the batch.
                `"cast"` converts numbers to wider numbers, dates to timestamps and anything to text, if no value
                changes. `"quarantine"` commits such rows to the table `<name>_quarantine` and the rest to this one. The
                Commit counts both.
            memory_bytes: The memory that sorting may use before it spills to disk. The default is half of the memory of
                the machine or container.
            partitions_max: Reject rows that are in more partitions of the table, or of one of its views. None: no
                limit.
            dry_run: Check all rows and write nothing. Rows are read, transformed by the insert query, partitioned and
                sorted. Parquet is not encoded, and views are not fed.

        Returns:
            The commit, or with `dry_run` the plan of it.

        Raises:
            SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch: The rows do not fit. Nothing is visible.
            TooManyPartitions: The rows are in more than `partitions_max` partitions. Nothing is visible.
            InvalidQuery, InvalidPartitionExpression, InvalidPartitionValue: A query or expression of the table fails on
                the rows. Nothing is visible.
            StaleView: The rows are committed, but a view of the table lacks them.

        Example:
            >>> rows = [{"ts": datetime(2026, 11, 21), "user": 7, "event": "open"}]
            >>> table.insert(rows, txn=("loader", 1)).rows
            1
        """
        if txn is not None:
            txn = check_txn(txn, table=self.uri)
        options = WriteOptions(on_conflict=on_conflict, memory_bytes=memory_bytes, partitions_max=partitions_max)
        if dry_run:
            return plan_write(self._handle, data, replaces=False, txn=txn, **options)
        if is_spark_frame(data):
            return append_frame(self._handle, data, txn=txn, **options)
        return insert(self._handle, data, txn=txn, **options)

    @overload
    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = ...,
        schema_mode: SchemaMode = ...,
        dry_run: Literal[False] = ...,
        **options: Unpack[WriteOptions],
    ) -> Commit: ...

    @overload
    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = ...,
        schema_mode: SchemaMode = ...,
        dry_run: Literal[True],
        **options: Unpack[WriteOptions],
    ) -> WritePlan: ...

    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = None,
        schema_mode: SchemaMode = "merge",
        on_conflict: OnConflict = "raise",
        memory_bytes: int | None = None,
        partitions_max: int | None = None,
        dry_run: bool = False,
    ) -> Commit | WritePlan:
        """Replace live parts with these rows, in one exclusive commit.

        Rows that other writers append meanwhile survive. Views are not fed: call `refresh_view` afterwards.

        Args:
            data: As for `insert`.
            partitions: The partitions to replace: paths (`["d=2026-11-21"]`), or a DuckDB predicate over the partition
                columns. None replaces the whole table. Rows outside of these partitions are rejected.
            schema_mode: `merge` keeps the columns that the rows lack. `overwrite` drops them, as
                `alter(drop_columns=...)` does, and lets dropped columns come back. It requires that the whole table is
                replaced. No column changes its type.
            on_conflict: As for `insert`.
            memory_bytes: As for `insert`.
            partitions_max: As for `insert`.
            dry_run: As for `insert`.

        Returns:
            The commit, or with `dry_run` the plan of it.

        Raises:
            EmptyBatch: There are no rows. To empty partitions, use `drop_partitions`.
            InvalidRequestError: The rows or the partitions are invalid, as for `insert`.

        Example:
            >>> table.overwrite(frame, partitions=["d=2026-11-21"])
        """
        if partitions is not None:
            check_chosen(self._handle, partitions)
        options = WriteOptions(on_conflict=on_conflict, memory_bytes=memory_bytes, partitions_max=partitions_max)
        if dry_run:
            return plan_write(
                self._handle, data, replaces=True, partitions=partitions, schema_mode=schema_mode, **options
            )
        if is_spark_frame(data):
            return overwrite_frame(self._handle, data, partitions=partitions, schema_mode=schema_mode, **options)
        return overwrite(self._handle, data, partitions, schema_mode=schema_mode, **options)

    # ------------------------------------------------------------------------------------ views

    def create_view(
        self,
        name: str,
        query: str,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        merging: Merging | None = None,
        merge_query: str = "",
        schema: DeclaredSchema | None = None,
        backfill: bool = True,
    ) -> Self:
        """Create a materialized view: a table that every insert into this one also feeds, in the same call.

        Programs that already have this table open feed the view once they have next read the log. Call `refresh_view`
        then. docs/queries.md describes the guarantees of a view.

        Args:
            name: The name of the view's table, which lies next to this one.
            query: One SELECT over `_rows`, the rows of one insert as they are stored.
            partition_by: As for `create`.
            sort_by: As for `create`.
            merging: As for `create`. It combines the results of several inserts into one again.
            merge_query: As for `create`.
            schema: As for `create`.
            backfill: Fill the view with the existing rows.

        Returns:
            The table of the view.

        Raises:
            InvalidQuery: The query is not one SELECT over `_rows`.
            TableExists: A table of that name exists.

        Example:
            >>> counts = "SELECT user, count(*) AS n FROM _rows GROUP BY ALL"
            >>> view = table.create_view("daily", counts)
        """
        change = spec_change(
            self.uri,
            partition_by=partition_by,
            sort_by=sort_by,
            merging=merging,
            merge_query=merge_query,
            schema=schema,
        )
        return type(self)(create_view(self._handle, name, query, change(TableSpec()), backfill=backfill))

    def refresh_view(self, name: str, *, memory_bytes: int | None = None) -> Commit:
        """Compute a view again from all rows of this table, in one exclusive commit. Do not insert meanwhile.

        Args:
            name: The name of the view.
            memory_bytes: As for `insert`.

        Raises:
            InvalidOption: There is no view of that name.
            InvalidQuery: The query fails on the rows. `overwrite` lists further errors.

        Example:
            >>> table.refresh_view("daily")
        """
        return refresh_view(self._handle, name, memory_bytes=memory_bytes)

    def views(self) -> list[str]:
        """Return the names of the views that inserts into this table feed, according to the log.

        Example:
            >>> table.views()
            ['daily']
        """
        self._handle.read()
        return [view.name for view in self.spec.views]

    def drop_view(self, name: str) -> None:
        """Stop feeding a view. Its table stays.

        Args:
            name: The name of the view.

        Raises:
            InvalidOption: There is no view of that name.

        Example:
            >>> table.drop_view("daily")
        """
        drop_view(self._handle, name)

    # ------------------------------------------------------------------------------------ read

    def snapshot(self, as_of: AsOf | None = None) -> Snapshot:
        """Return the live parts and the schema, now or at an earlier time.

        Args:
            as_of: The time, or None for now.

        Raises:
            InvalidOption: The time is before the creation of the table or in the future: more than twice `max_skew_ms`
                ahead of this clock, and later than every commit.
            SnapshotExpired: Cleanup has deleted parts of that time.

        Example:
            >>> snapshot = table.snapshot(datetime(2026, 11, 21, tzinfo=UTC))
            >>> snapshot.query("SELECT count(*) FROM t").fetchall()
        """
        return take_snapshot(self._handle, as_of_ms(as_of))

    def query(
        self, sql: str, *, as_of: AsOf | None = None, where: Where | None = None, sandbox: bool = False
    ) -> QueryResult:
        """Run a DuckDB query over the rows of the table, as `t`.

        The relation `final` has the rows that `t` will have after all merges: the exact rows of a table with `merging`.
        Parts that certainly have no row for `where`, or for the query's own WHERE on `t`, are not opened.

        Args:
            sql: The query.
            as_of: As for `snapshot`.
            where: A predicate over any columns. `t` has only the rows for which it is true.
            sandbox: Restrict the query to the table, for SQL from untrusted sources. Otherwise it may also read other
                files of this machine (see `Snapshot.query`).

        Returns:
            The result: print it, or call `.fetchall()`, `.to_arrow()` or `.to_polars()`.

        Raises:
            InvalidOption, SnapshotExpired: As for `snapshot`.

        Example:
            >>> counts = "SELECT event, count(*) FROM t GROUP BY ALL"
            >>> table.query(counts, where="user = 7").fetchall()
            [('open', 1)]
        """
        return self.snapshot(as_of).query(sql, where=where, sandbox=sandbox)

    def changes(
        self,
        since: AsOf | str | None = None,
        until: AsOf | str | None = None,
        *,
        parts_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Changes:
        """Return the rows that were added between two points of the history, each once (incremental read, change feed).

        Rows that a merge wrote are not new. Rows that were deleted or replaced after they were added are returned as
        they were added. A cursor misses nothing, because it records what its consumer saw of the last minutes, in which
        a commit with an earlier time may still appear. Two times may miss such a commit.

        Args:
            since: The `cursor` of earlier changes, or a time, for what was committed later. None returns all rows of
                the table first, and then what is added.
            until: A time or a cursor, or None for now.
            parts_max: The limit of parts of one call. A call returns at least one part.
            bytes_max: The limit of Parquet bytes of one call.

        Returns:
            The changes. To continue, pass their `cursor` as `since`.

        Raises:
            InvalidOption: A time or cursor is invalid.
            SnapshotExpired: Cleanup has removed some of the changes from the log.
            UncoordinatedMaintenance: A program of IceDB v3 merged meanwhile.

        Example:
            >>> changes = table.changes(cursor)
            >>> process(changes.to_arrow())
            >>> cursor = changes.cursor  # store it with the results
        """
        return take_changes(
            self._handle,
            since if isinstance(since, str) else as_of_ms(since, name="since"),
            until if isinstance(until, str) else as_of_ms(until, name="until"),
            limits=Limits(parts_max, bytes_max),
        )

    def history(self, *, limit: int | None = None, since: AsOf | None = None) -> list[CommitInfo]:
        """Return the commits that the log records, newest first: time, kind, added and removed parts.

        A merge of log files keeps the commits and loses their writers. It also joins commits of the same millisecond.
        Commits that cleanup has removed from the log are missing. A commit that may lack some of its parts has `exact`
        set to False.

        Args:
            limit: The maximal number of commits.
            since: Return only the commits of this time and later.

        Raises:
            InvalidOption: An argument is invalid.
            SchemaConflict: Log files record different types for one column.

        Example:
            >>> [commit.kind for commit in table.history(limit=2)]
            ['merge', 'insert']
        """
        return history(self._handle, limit=limit, since_ms=as_of_ms(since, name="since"))

    def diff(self, since: AsOf, until: AsOf | None = None, *, rows: bool = False) -> Diff:
        """Compare two times: the parts of each partition, and the columns.

        Args:
            since: The earlier time.
            until: The later time, or None for now.
            rows: Also read the parts that differ, and count the rows that exist at one time only. Equal rows cancel
                each other out, so merged rows do not count.

        Raises:
            SnapshotExpired: Cleanup has deleted parts of one of the times.
            InvalidOption: A time is invalid.
            MissingPart: The object of a part does not exist.

        Example:
            >>> table.diff(datetime(2026, 11, 20, tzinfo=UTC), rows=True)
        """
        return diff(self._handle, as_of_ms(since, name="since"), as_of_ms(until, name="until"), rows=rows)

    def schema(self) -> dict[str, str]:
        """Return the DuckDB type of each column.

        Example:
            >>> table.schema()
            {'ts': 'TIMESTAMP', 'user': 'BIGINT', 'event': 'VARCHAR'}
        """
        self._handle.read()
        return self._handle.columns

    # ------------------------------------------------------------------------------------ maintain

    def health(self, thresholds: Thresholds | None = None) -> TableHealth:
        """Measure the table, and recommend the maintenance that is due: small parts, log files, expired objects.

        Only the log is read: one LIST request if nothing is new.

        Args:
            thresholds: The values below which the measurements should stay.

        Raises:
            SchemaConflict: Log files record different types for one column.

        Example:
            >>> health = table.health(icedb.Thresholds(hot_parts=8))
            >>> [recommendation.due for recommendation in health.recommendations]
            ['merge_newest']
        """
        return examine(self._handle, thresholds)

    def merge(
        self,
        *,
        order: Order = "oldest",
        part_bytes_max: int = PART_BYTES_MAX,
        input_parts_max: int = INPUT_PARTS_MAX,
        input_bytes_max: int = INPUT_BYTES_MAX,
        tiers: TieredMerge | None = None,
        max_seconds: float | None = None,
        memory_bytes: int | None = None,
        engine: Engine | None = None,
        dry_run: bool = False,
    ) -> MergeReport:
        """Merge small parts (compaction, OPTIMIZE), partition by partition, in one exclusive commit.

        Rows and query results stay the same, unless the table has a merge query or `merging`. The replaced parts stay
        readable in older snapshots until `cleanup`.

        Args:
            order: The partitions to merge first if the limits below do not allow all of them. `"newest"` fits frequent
                merges of hot partitions, and `"oldest"` a full optimisation.
            part_bytes_max: Merge parts that are smaller than this, into parts of up to this size.
            input_parts_max: The limit of parts that one call reads. The report counts the `remaining` groups.
            input_bytes_max: The limit of bytes that one call reads.
            tiers: Merge only parts of a similar size, so that frequent merges rewrite few bytes. None merges all small
                parts.
            max_seconds: Merge again and again, with a commit for each merge, until nothing is left to merge or this
                time is over. Each merge is as large as the rest of the time allows, within the limits above. A group of
                parts is never divided, so the call may take longer by one group. A dry run plans one merge.
            memory_bytes: The memory that all groups together may use before they spill to disk. The default is half of
                the memory of the machine or container.
            engine: Where to read and write parts, with its own memory, such as `icedb.spark.SparkEngine`. The default
                is this process. The work is published in one commit all the same.
            dry_run: Return the report of what would be merged, and write nothing.

        Returns:
            The report: with `max_seconds`, of all merges of the call.

        Raises:
            InvalidOption: An argument is invalid, or both `engine` and `memory_bytes` are set.
            MissingPart: The object of a part does not exist.
            InvalidQuery, InvalidBatch, SchemaConflict, UnsupportedType: The merge query fails, or its rows do not fit.
            IceDBError: The engine failed.

        Example:
            >>> table.merge(order="newest", max_seconds=60).merged_parts
            12
        """
        return merge_within(
            self._handle,
            max_seconds,
            tiers=tiers,
            rewriter=partial(rewrite_parts, engine=merge_engine(engine, memory_bytes, table=self.uri)),
            dry_run=dry_run,
            order=order,
            part_bytes_max=part_bytes_max,
            input_parts_max=input_parts_max,
            input_bytes_max=input_bytes_max,
        )

    def merge_log(self, *, lines_max: int = LINES_MAX, files_min: int = 2, dry_run: bool = False) -> MergeLogReport:
        """Merge small log files into larger ones, so that opening the table stays cheap. No part is changed.

        Args:
            lines_max: The limit of lines of a new log file.
            files_min: Do nothing if the table has fewer log files. Values above 2 are for frequent calls: large log
                files are then rewritten only together with many others.
            dry_run: Return the report of what would be merged, and write nothing.

        Raises:
            InvalidOption: An argument is invalid.

        Example:
            >>> table.merge_log()
        """
        return merge_log(self._handle, lines_max=lines_max, files_min=files_min, dry_run=dry_run)

    def alter(self, **options: Unpack[AlterOptions]) -> Commit:
        """Change how new parts are partitioned, sorted, stored and merged, or drop columns, in one exclusive commit.

        An argument that is None leaves its property unchanged. Existing parts stay as they are. Queries see new
        partition columns for all rows.

        A dropped column is hidden from all readers from this commit on, and batches with it are rejected. Earlier
        snapshots still have it. Existing parts keep its values until they are merged or rewritten.

        Args:
            partition_by: As for `create`.
            sort_by: As for `create`.
            compression: As for `create`.
            row_group_rows: As for `create`.
            bloom_filters: As for `create`.
            schema: Further columns to declare. A dropped column comes back with its earlier type, once no live part
                contains its old values.
            required: As for `create`.
            schema_policy: As for `create`.
            path_columns: As for `create`.
            insert_query: As for `create`. An empty text removes the query.
            merge_query: As for `create`. An empty text removes the query.
            merging: As for `create`. `"none"` removes it.
            row_id: As for `create`.
            drop_columns: Columns to hide.
            timing: All times of the table. A longer time takes effect at once. The earlier value of a shortened one
                stays in force for a while (docs/format.md, "A change of times").

        Raises:
            InvalidOption, InvalidPartitionExpression, InvalidQuery: An argument is invalid.
            UnknownColumn, SchemaConflict: The new spec does not fit the columns of the table.
            MissingPart: The object of a part does not exist. Only if a dropped column comes back.

        Example:
            >>> table.alter(sort_by=["user", "ts"], drop_columns=["email"])
        """
        return alter(self._handle, spec_change(self.uri, **options))

    def delete(self, where: str, *, dry_run: bool = False, engine: Engine | None = None) -> DeleteReport:
        """Delete the rows for which a predicate is true, in all partitions, in one exclusive commit.

        Only parts with such rows are rewritten. Older snapshots stay readable until `cleanup`. Rows that are appended
        or merged meanwhile survive: repeat the call until `second_pass_needed` is False.

        Args:
            where: A DuckDB condition over the columns of `t`.
            dry_run: Return the report, and write nothing.
            engine: As for `merge`. It also searches for the rows.

        Raises:
            InvalidOption, UnknownColumn: The predicate is invalid.
            MissingPart: The object of a part does not exist.
            IceDBError: The engine failed.

        Example:
            >>> table.delete("user = 7").deleted_rows
            1
            >>> table.delete("user = 7").second_pass_needed
            False
        """
        engine = engine or LOCAL_ENGINE
        return delete(
            self._handle,
            where,
            dry_run=dry_run,
            rewriter=partial(rewrite_parts, engine=engine),
            finder=partial(find_rows, engine=engine),
        )

    def upsert(
        self,
        data: Rows,
        on: Sequence[str],
        *,
        when_matched: WhenMatched = "update",
        columns: Sequence[str] | None = None,
        delete_where: str | None = None,
        order_by: Sequence[str] = (),
        on_conflict: OnConflict = "raise",
        txn: Txn | None = None,
        dry_run: bool = False,
        memory_bytes: int | None = None,
        partitions_max: int | None = None,
        engine: Engine | None = None,
    ) -> UpsertReport:
        """Insert rows with new keys, and update or delete the stored rows with the others, in one exclusive commit.

        A stored row takes the values of the batch's row with its key. Columns that the batch lacks keep their values. A
        key with a null equals no other one, so its row is inserted. If the table has several rows of one key, each is
        updated. A row whose partition changes moves there.

        All rows of earlier commits are seen, also of those that land while the upsert runs, except rows of an `insert`
        that lands at the same moment as its commit. Views are not updated.

        Args:
            data: The rows, of any kind that `insert` takes except Spark DataFrames (`icedb.spark.upsert`).
            on: The key columns. The batch must have each key once.
            when_matched: "update" updates stored rows. "skip" leaves them, so only rows with new keys are inserted.
            columns: The columns to update (default: all columns of the batch). Inserted rows have all columns.
            delete_where: A DuckDB condition over the rows of the batch, such as `"op = 'D'"`. Where it is true, stored
                rows with the key are deleted, and nothing is inserted. A column that only `delete_where` and `order_by`
                name, and that the table lacks, is not stored.
            order_by: Of the batch's rows with the same key, the one with the greatest values of these columns counts
                (default: a key that occurs twice is an error).
            on_conflict: "raise" or "cast", as for `insert`.
            txn: As for `insert`: the same transaction is committed once.
            dry_run: Return the report, and write nothing.
            memory_bytes: The memory for matching, sorting and rewriting rows. More rows are spilled to disk.
            partitions_max: Reject a batch whose inserted and updated rows are in more partitions.
            engine: As for `merge`. It also searches for the rows. The batch is sent to each of its tasks.

        Raises:
            InvalidBatch: A key occurs twice, or a row is invalid, as for `insert`.
            InvalidOption: An argument is invalid, or merges combine rows of the table (`merging`, `merge_query`).
            UnknownColumn, SchemaConflict, UnsupportedType: The batch does not fit the columns of the table.
            MissingPart: The object of a part does not exist.
            CommitStateUnknown: It is not known whether the commit succeeded.

        Example:
            >>> report = table.upsert([{"user": 7, "ts": ts, "event": "close"}], on=["user", "ts"])
            >>> report.inserted_rows, report.updated_rows
            (0, 1)
        """
        txn = None if txn is None else check_txn(txn, table=self.uri)
        if is_spark_frame(data):
            raise InvalidOption(
                f"{self.uri}: data is a Spark DataFrame. Call icedb.spark.upsert(frame, uri, on=[...]), or give its "
                "rows as Arrow: frame.toArrow()."
            )
        return upsert(
            self._handle,
            data,
            on,
            when_matched=when_matched,
            columns=columns,
            delete_where=delete_where,
            order_by=order_by,
            on_conflict=on_conflict,
            txn=txn,
            dry_run=dry_run,
            memory_bytes=memory_bytes,
            partitions_max=partitions_max,
            engine=engine,
        )

    def update(
        self,
        set: Mapping[str, str],  # noqa: A002 (the word of SQL)
        where: str,
        *,
        txn: Txn | None = None,
        dry_run: bool = False,
        memory_bytes: int | None = None,
        engine: Engine | None = None,
    ) -> UpdateReport:
        """Set columns of the rows for which a predicate is true, in one exclusive commit.

        Rows that another commit adds are treated as by `upsert`. Views are not updated.

        Args:
            set: Column -> a DuckDB expression over the columns of `t`. NULL and a text literal get the type of the
                column. A number is cast to it if its value does not change.
            where: A DuckDB condition over the columns of `t`; "true" for all rows.
            txn: As for `upsert`.
            dry_run: As for `upsert`.
            memory_bytes: As for `upsert`.
            engine: As for `upsert`.

        Raises:
            InvalidOption, UnknownColumn: An argument is invalid, or merges combine rows of the table.
            SchemaConflict: A new value does not fit the type of its column.
            InvalidBatch: A new value is null where the table requires one.
            MissingPart: The object of a part does not exist.
            CommitStateUnknown: It is not known whether the commit succeeded.

        Example:
            >>> table.update({"event": "upper(event)"}, where="user = 7").updated_rows
            1
        """
        txn = None if txn is None else check_txn(txn, table=self.uri)
        return update(self._handle, set, where, txn=txn, dry_run=dry_run, memory_bytes=memory_bytes, engine=engine)

    def rewrite_partition(
        self,
        partition: str,
        query: str,
        *,
        new_columns: bool = False,
        dry_run: bool = False,
        engine: Engine | None = None,
    ) -> RewriteReport:
        """Replace the rows of a partition with the result of a query, in one exclusive commit.

        Each row of the result must belong to the partition and fit the types of the table. A column that the result
        lacks becomes null, but the columns that partition or sort the table are required. A result without rows empties
        the partition. Rows that are appended meanwhile survive.

        Args:
            partition: The path of the partition (`"d=2026-11-21"`).
            query: One SELECT over `_rows` (or `t`): the rows of that partition with its partition columns. It runs in a
                sandbox and can read nothing else.
            new_columns: Allow columns that the table does not have.
            dry_run: Return the report, and write nothing.
            engine: As for `merge`. It also runs the query.

        Raises:
            InvalidOption: The partition does not exist.
            InvalidQuery: The query fails, or reads something other than its rows.
            InvalidBatch: A row of the result belongs to another partition.
            SchemaConflict, UnsupportedType: A value of the result does not fit its column.
            MissingPart: The object of a part does not exist.
            IceDBError: The engine failed.

        Example:
            >>> table.rewrite_partition("d=2026-11-21", "SELECT * FROM _rows WHERE event <> 'test'")
        """
        return rewrite_partition(
            self._handle, partition, query, new_columns=new_columns, dry_run=dry_run, engine=engine or LOCAL_ENGINE
        )

    def drop_partitions(
        self, partitions: Sequence[str] | str, *, missing_ok: bool = False, dry_run: bool = False
    ) -> DropReport:
        """Drop whole partitions: tombstone all their live parts, in one exclusive commit.

        Older snapshots stay readable until `cleanup`. A predicate never selects parts of a partitioning before the last
        `alter` (`older_parts` in the report). Use `delete` for these.

        Args:
            partitions: Paths, or a DuckDB predicate over the partition columns. A predicate names a partition column,
                or is `true` for all partitions.
            missing_ok: Accept paths without live parts, which are rejected otherwise.
            dry_run: Return the report, and write nothing.

        Raises:
            InvalidRequestError: A path or the predicate is invalid.

        Example:
            >>> table.drop_partitions("d < '2026-01-01'")
        """
        return drop_partitions(self._handle, partitions, missing_ok=missing_ok, dry_run=dry_run)

    def cleanup(
        self,
        *,
        grace_ms: int | None = None,
        allow_short_grace: bool = False,
        deletes_max: int = DELETES_MAX,
        dry_run: bool = False,
    ) -> CleanupReport:
        """Delete superseded parts and log files (VACUUM), unless a pin (tag) needs them.

        Args:
            grace_ms: Delete what was superseded longer ago than this (milliseconds). The default is the table's grace
                period, an hour unless it was changed.
            allow_short_grace: Allow a grace period that is shorter than the table's. No program may create a pin
                meanwhile.
            deletes_max: The limit of log files and parts of one call. The report counts the rest.
            dry_run: Return the report of what would be deleted, and delete nothing.

        Raises:
            GraceTooShort: Readers or writers may still need what that grace period would delete.
            InvalidOption: An argument is invalid.
            CorruptLog: A log file or a pin cannot be read. Nothing was deleted.

        Example:
            >>> table.cleanup(dry_run=True)
        """
        return cleanup(
            self._handle,
            grace_ms=grace_ms,
            allow_short_grace=allow_short_grace,
            deletes_max=deletes_max,
            dry_run=dry_run,
        )

    def repair_types(self, types: Mapping[str, str] | None = None, *, dry_run: bool = False) -> RepairReport:
        """Unify the types of columns for which log files record several, so that the table can be read again.

        Only programs that do not check the schema cause this state: stop them first. Live parts with another type are
        rewritten, and log files that record another type are replaced, in one exclusive commit. Each value is checked:
        it must convert back to what it was. Snapshots of earlier times stay readable until `cleanup`. Other programs
        must open the table again, because they may still write the old type.

        Args:
            types: The types of columns. Without an entry, a column gets a type to which all the others widen without
                loss. `VARCHAR` fits everything: nested values become JSON, and all others plain text.
            dry_run: Return the report, and write nothing.

        Raises:
            SchemaConflict: There is no common type, or a value would be lost. Nothing was changed.
            UnknownColumn, InvalidOption, UnsupportedType: `types` is invalid.
            InvalidPartitionExpression: The partition expressions do not fit the new types.
            MissingPart: The object of a part does not exist.

        Example:
            >>> table.repair_types({"user": "VARCHAR"})
        """
        return repair(self._handle, types, dry_run=dry_run)

    # ------------------------------------------------------------------------------------ take over

    def import_files(
        self,
        source: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        trust_paths: bool = False,
        verify: bool = False,
        first_time: bool = False,
        dry_run: bool = False,
        engine: Engine | None = None,
    ) -> ImportReport:
        """Add existing Parquet files to the table without rewriting them, in one exclusive commit.

        Hive folders (`d=2026-11-21`) supply the partition columns. Files below the table's own `_data` are registered
        in place. The table owns them from then on: cleanup deletes them once they are superseded. All other files are
        copied, by the store itself if it holds both ends, and stay unchanged. Files that the log already records are
        skipped, so an interrupted import can be repeated.

        Args:
            source: A folder or bucket prefix, one file, or a glob (`*`, `?`, `[...]`, `**`).
            storage_options: Options for the source. None means those of the table.
            trust_paths: Do not compare the rows with the values that their paths state for computed partition columns.
            verify: Decode every row and record a digest, instead of reading footers alone.
            first_time: Confirm that none of the files was ever imported. Required for files that are older than what
                cleanup has removed from the log.
            dry_run: Return the report, and write nothing.
            engine: As for `merge`. It inspects and copies the files.

        Raises:
            SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidOption, InvalidPartitionValue: A file
                does not fit. The message names it. Nothing was copied.
            CommitTimedOut: The copies are too old to be committed.
            MissingPart: An orphan sweep deleted a file of `_data` meanwhile.
            IceDBError: The engine failed.

        Example:
            >>> table.import_files("s3://archive/events/**/*.parquet", dry_run=True)
        """
        return import_files(
            self._handle,
            source,
            storage_options=storage_options,
            trust_paths=trust_paths,
            verify=verify,
            first_time=first_time,
            dry_run=dry_run,
            engine=engine,
        )

    @classmethod
    def create_from_files(
        cls,
        uri: str | os.PathLike[str],
        source: str | os.PathLike[str],
        *,
        sort_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        source_storage_options: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
        trust_paths: bool = False,
        verify: bool = False,
        dry_run: bool = False,
        engine: Engine | None = None,
    ) -> ImportReport:
        """Create a table with the layout of existing Parquet files, and import these.

        Hive folders become `path_columns`, or `partition_by` if the files also store these columns. `import_files`
        completes an interrupted call.

        Args:
            uri: The address of the new table.
            source: As for `import_files`.
            sort_by: As for `create`.
            storage_options: As for `create`.
            source_storage_options: Options for the source. None means `storage_options`.
            timing: As for `create`.
            fencing: As for `create`.
            trust_paths: As for `import_files`.
            verify: As for `import_files`.
            dry_run: Return the report, and create nothing.
            engine: As for `import_files`.

        Raises:
            TableExists: A table exists at the address. `create` and `import_files` list further errors.

        Example:
            >>> icedb.Table.create_from_files("s3://lake/events", "s3://archive/events")
        """
        return create_by_import(
            uri,
            source,
            sort_by=sort_by,
            storage_options=storage_options,
            source_storage_options=source_storage_options,
            timing=timing,
            fencing=fencing,
            trust_paths=trust_paths,
            verify=verify,
            dry_run=dry_run,
            engine=engine,
        )

    # ------------------------------------------------------------------------------------ leave

    def export_delta(
        self,
        *,
        as_of: AsOf | None = None,
        exclude_columns: Sequence[str] = (),
        keep: timedelta | None = KEEP,
        dry_run: bool = False,
    ) -> DeltaReport:
        """Publish the table as Delta Lake at the same address: a Delta log over the same parts, without copies.

        An export adds a Delta version with the changes since the one before, or none if there are none. Delta programs
        can read the table and refuse to write to it. They see the parts of the last export, even after a merge has
        superseded them, so export again after each merge, and more often than `keep`. Readers of an older version have
        the grace period to finish.

        Args:
            as_of: As for `snapshot`.
            exclude_columns: Columns to leave out.
            keep: For how long at most a pin keeps the exported parts from cleanup. The pin ends earlier once the next
                export has come and the grace period is over. None sets no limit.
            dry_run: Return the report, and write nothing.

        Raises:
            UnsupportedType, InvalidPartitionValue, UnknownColumn: Delta cannot hold a column, which the message names.
                Nothing was written.
            UncoordinatedMaintenance: Another program wrote to the Delta log.
            SnapshotExpired: Cleanup has deleted parts of that time.
            CommitConflict, CommitTimedOut: The export was not published. `pin` lists further errors.
            StoreUnavailable: The export may have been published. It can be repeated safely.

        Example:
            >>> table.export_delta()
        """
        return export_delta(
            self._handle,
            as_of_ms(as_of),
            exclude_columns=exclude_columns,
            keep=keep,
            dry_run=dry_run,
        )

    def export_iceberg(
        self,
        *,
        as_of: AsOf | None = None,
        exclude_columns: Sequence[str] = (),
        keep: timedelta | None = KEEP,
        dry_run: bool = False,
    ) -> IcebergReport:
        """Publish the table as an Iceberg table at the same address: metadata over the same parts, without copies.

        An export writes a new metadata document in `metadata/`, and the manifests that changed, or nothing if nothing
        has changed. Readers open the document whose address is in the report. They see the parts of that export, even
        after a merge has superseded them, so export again after each merge, and more often than `keep`. A document also
        lists the earlier exports of the grace period, and the snapshots that `pin` keeps, as tags.

        Args:
            as_of: As for `snapshot`.
            exclude_columns: Columns to leave out.
            keep: For how long at most a pin keeps the exported parts from cleanup. The pin ends earlier once the next
                export has come and the grace period is over. None sets no limit.
            dry_run: Return the report, and write nothing.

        Raises:
            UnsupportedType, InvalidPartitionValue, UnknownColumn: Iceberg cannot hold a column, which the message
                names. Nothing was written.
            UncoordinatedMaintenance: Another program wrote metadata there.
            SnapshotExpired: Cleanup has deleted parts of that time.
            CommitConflict, CommitTimedOut: The export was not published. `pin` lists further errors.
            StoreUnavailable: The export may have been published. It can be repeated safely.

        Example:
            >>> table.export_iceberg().metadata
        """
        return export_iceberg(
            self._handle,
            as_of_ms(as_of),
            exclude_columns=exclude_columns,
            keep=keep,
            dry_run=dry_run,
        )

    def export_parquet(
        self,
        target: str | os.PathLike[str],
        *,
        as_of: AsOf | None = None,
        where: Where | None = None,
        storage_options: Mapping[str, str] | None = None,
        overwrite: bool = False,
        on_part: OnPart | None = None,
        dry_run: bool = False,
    ) -> ParquetExportReport:
        """Write the rows as plain Parquet to a folder or bucket prefix, in Hive folders (`d=2026-11-21`).

        Parts are copied as they are, by the store itself if possible. The file `_SUCCESS` is written last and removed
        first, so an export without it is incomplete. A failed export removes its files. A killed one leaves files
        without `_SUCCESS`. Only one program at a time may export to a target.

        Args:
            target: The folder or prefix, which must be empty.
            as_of: As for `snapshot`.
            where: A predicate as for `query`. Parts are then rewritten with the rows for which it is true.
            storage_options: Options for the target. None means those of the table.
            overwrite: Replace an earlier export in the target, and nothing else.
            on_part: A function to call after each part, with the parts done, the parts in all, and the bytes done.
            dry_run: Return the report, and write nothing.

        Raises:
            InvalidOption, UnknownColumn, InvalidURI: An argument is invalid. Nothing was written.
            SnapshotExpired: Cleanup deleted a part meanwhile. Pin the time of long exports.
            MissingPart: The object of a part does not exist.
            CommitStateUnknown: Every put but the last was answered.

        Example:
            >>> table.export_parquet("s3://archive/events", where="user = 7")
        """
        return export_parquet(
            self._handle,
            target,
            as_of_ms(as_of),
            where=where,
            storage_options=storage_options,
            overwrite=overwrite,
            on_part=on_part,
            dry_run=dry_run,
        )

    # ------------------------------------------------------------------------------------ undo and keep

    def restore(self, as_of: AsOf, *, allow_empty: bool = False, dry_run: bool = False) -> RestoreReport:
        """Restore the table to an earlier time, in one exclusive commit: undo a drop, overwrite, deletion or bad merge.

        Superseded parts return as copies that the store makes. Parts that were added since are tombstoned: rows that
        were appended after `as_of` disappear, also those of transactions. These stay recorded, so a retry does not
        write them again. A plain append survives if it lands after the restore has last read the log. Deliberately
        deleted rows return as well. The schema and the spec stay unchanged. Restoring to the time before the restore
        undoes it.

        Args:
            as_of: The time: from the horizon (the oldest readable time) on, or a pinned time.
            allow_empty: Allow a restore that leaves no rows.
            dry_run: Return the report, and write nothing.

        Returns:
            The report, with the rows of the table before and after.

        Raises:
            SnapshotExpired: The time can no longer be read. Nothing was restored.
            InvalidOption: The time is before the creation of the table or in the future, or no rows would be left.
            CommitTimedOut: The copies are too old to be committed.

        Example:
            >>> table.restore(datetime(2026, 11, 21, 8, tzinfo=UTC), dry_run=True)
        """
        return restore(self._handle, as_of_ms(as_of), allow_empty=allow_empty, dry_run=dry_run)

    def pin(
        self, name: str, as_of: AsOf | None = None, *, expires: Expires | None = None, dry_run: bool = False
    ) -> Pin:
        """Create a pin (tag): keep the snapshot at a time readable by name, whatever cleanup deletes.

        The parts of the snapshot are kept, with all rows that were deleted from the table since. Pass `pin.as_of_ms` to
        `snapshot` or `restore`. As in every snapshot, a plain append may still join it while `as_of` is younger than
        the commit timeout.

        Superseded parts can only be pinned while no cleanup can be deleting them: well within the table's grace period.
        Do not pin while a cleanup with a shorter grace period runs, because it may already delete these parts. Every
        later cleanup respects the pin.

        Args:
            name: The name of the pin.
            as_of: The time, or None for the time of the newest commit.
            expires: An aware datetime, unix milliseconds, or a timedelta from now. None keeps the pin until `unpin`.
            dry_run: Check everything, and write nothing.

        Raises:
            PinExists: A pin of that name exists.
            SnapshotExpired: The time can no longer be read.
            InvalidOption: An argument is invalid.
            CommitTimedOut: The pin reached the store too late. Retry the call.
            ClockSkew: This machine's clock differs too much from the store's.
            StoreUnavailable: The pin may exist.

        Example:
            >>> pin = table.pin("audit-2026", expires=timedelta(days=90))
            >>> table.snapshot(as_of=pin.as_of_ms)
        """
        return pin(self._handle, name, as_of_ms(as_of), expires=expires, dry_run=dry_run)

    def unpin(self, name: str, *, dry_run: bool = False) -> bool:
        """Remove a pin. The next cleanup deletes what only this pin needed, without a grace period.

        Args:
            name: The name of the pin.
            dry_run: Return whether there is a pin of that name, and remove nothing.

        Returns:
            False if there was no pin of that name.

        Example:
            >>> table.unpin("audit-2026")
            True
        """
        return unpin(self._handle, name, dry_run=dry_run)

    def pins(self) -> list[Pin]:
        """Return the pins, sorted by name. Expired pins are included until cleanup removes them.

        Example:
            >>> [pin.name for pin in table.pins()]
            ['audit-2026']
        """
        return read_pins(self._handle)

    def delete_orphans(
        self, *, min_age_ms: int | None = None, limit: int = ORPHANS_MAX, dry_run: bool = False
    ) -> OrphansReport:
        """Delete orphans: parts that neither a log file nor an undecided claim names, as a crashed writer leaves them.

        In a local folder it also deletes the unfinished files of killed processes (`unfinished_puts`), and skips
        symbolic links.

        Args:
            min_age_ms: The least age of an orphan to delete (milliseconds). The default is the table's, a day unless it
                was changed.
            limit: The maximal number of parts to delete. The report counts the rest.
            dry_run: Return the report of what would be deleted, and delete nothing.

        Raises:
            GraceTooShort: Parts of that age may still be committed.
            ClockSkew: This machine's clock differs too much from the store's.
            SymbolicLink: A folder of the table itself is a symbolic link.
            CorruptLog: A log file or a claim cannot be read. Nothing was deleted.

        Example:
            >>> table.delete_orphans(dry_run=True)
        """
        return delete_orphans(self._handle, min_age_ms=min_age_ms, limit=limit, dry_run=dry_run)

    def verify(self, *, deep: bool = False, footers: bool = True) -> VerifyReport:
        """Check every object of the table and report all problems. Changes nothing, and is safe while others write.

        Args:
            deep: Fetch all live parts, decode every row and compare digests. Otherwise sizes and footers are compared.
            footers: If False, open no part, and compare only listings with sizes, log and claims. The cost then does
                not depend on the number of rows.

        Returns:
            The report with the problems, which are not raised.

        Raises:
            InvalidOption: `deep` is set without `footers`.

        Example:
            >>> table.verify().problems
            ()
        """
        return verify(self._handle, deep=deep, footers=footers)
