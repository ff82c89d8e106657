"""The front door: a table and its verbs.

    table = Table.create("s3://lake/events", partition_by=["strftime(ts, '%Y-%m-%d') AS d"], sort_by=["user", "ts"])
    table.insert([{"ts": datetime(2026, 11, 21), "user": 7, "event": "open"}])
    table.query("SELECT event, count(*) FROM t GROUP BY ALL").show()

A `Table` holds no connection and no lock; open as many as you like, in any process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Self, overload

from icedb.errors import InvalidOption, TableNotFound
from icedb.format.change_feed import Limits
from icedb.format.table_spec import ROW_GROUP_ROWS, Compression, Merging, SchemaPolicy, TableSpec
from icedb.format.timing import Timing
from icedb.operations.commits.alter import alter, spec_change
from icedb.operations.commits.drop_partitions import DropReport, check_chosen, drop_partitions
from icedb.operations.export.delta import KEEP, DeltaReport, export_delta
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
from icedb.operations.rewrite.engine import LOCAL_ENGINE, Engine, LocalEngine, ResourceLimits
from icedb.operations.rewrite.merge import (
    INPUT_BYTES_MAX,
    INPUT_PARTS_MAX,
    PART_BYTES_MAX,
    MergeReport,
    Order,
    TieredMerge,
    merge,
)
from icedb.operations.rewrite.rewrite_partition import RewriteReport, rewrite_partition
from icedb.operations.rewrite.rewriter import rewrite_parts
from icedb.operations.write.insert import insert, overwrite
from icedb.operations.write.spark_frames import append_frame, is_spark_frame, overwrite_frame
from icedb.operations.write.views import create_view, drop_view, refresh_view
from icedb.operations.write.write_plan import WritePlan, plan_write
from icedb.reader.changes import Changes, take_changes
from icedb.reader.diff import Diff, diff
from icedb.reader.history import CommitInfo, history
from icedb.reader.snapshot import Snapshot, Where, take_snapshot
from icedb.sources.batch import OnConflict, Rows
from icedb.sql.query_result import QueryResult
from icedb.storage.credentials import CredentialProvider
from icedb.storage.location import parse_location, with_log
from icedb.storage.obstore_store import open_store
from icedb.transaction.append import Commit
from icedb.transaction.idempotent_append import Txn, check_txn
from icedb.transaction.open_table import create_handle, open_handle
from icedb.transaction.pin_objects import Pin, read_pins
from icedb.transaction.table_handle import Fencing, Handle
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock
from icedb.util.times import AsOf, as_of_ms
from icedb.writer.spec_validation import DeclaredSchema, declared_columns

__all__ = ["Table"]


@checks_arguments
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
        schema: DeclaredSchema | None = None,
        required: Sequence[str] = (),
        schema_policy: SchemaPolicy = "open",
        path_columns: Mapping[str, str] | None = None,
        insert_query: str = "",
        merge_query: str = "",
        merging: Merging | None = None,
        row_id: bool = False,
        preserve_partition: bool = False,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        log_uri: str | os.PathLike[str] | None = None,
        log_storage_options: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
        dry_run: bool = False,
    ) -> Self:
        """Create an empty table.

        `partition_by`: DuckDB expressions over a row's columns, each with a name (`"strftime(ts, '%Y') AS y"`).
        `sort_by`: columns that the rows of a part are sorted by. `row_group_rows`: rows per Parquet row group.

        `schema`: columns that are declared before any batch brings them: a dict of DuckDB types, or a pyarrow schema.
        With `schema_policy="declared"` no others are taken. `required`: columns that must not be null.
        `path_columns`: partition columns, with their types, that only the paths tell: a batch has a column of that
        name, which is not stored, or `_partition`. `preserve_partition`: store `_partition` as well.

        `insert_query`: a query over `_rows`, whose answer is stored in their place. `merging`: what a merge makes of
        rows with one key (`Dedup`, `Replacing`, `Aggregating`); or `merge_query`, a query of your own over
        `source_files`. Queries see the rows that they are given and nothing else. `row_id`: give each row a unique
        `_row_id`, unless it brings one.

        `storage_options`: as for deltalake and Polars (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...); what is not
        given comes from the environment. `credential_provider`: a boto3 Session, or a function that returns a dict with
        `access_key_id`, `secret_access_key`, `token` and `expires_at`: it is asked again when these expire.

        `log_uri`: where the log is, if not beside the parts; the table remembers it.
        `log_storage_options`: those of the log's store; None means `storage_options` if both are of one kind.
        `fencing`: `"none"` for a store without create-only puts. `dry_run`: check all this, and that no table is there,
        and create none: the Table that is returned can only say what its `spec` would be.

        Raises TableExists, InvalidPartitionExpression, InvalidOption, InvalidQuery, InvalidURI, UnknownColumn,
        UnsupportedType, UnsupportedStore, BucketNotFound, AccessDenied, StoreUnavailable.
        """
        location = parse_location(uri, storage_options, credential_provider)
        if log_uri is not None:
            location = with_log(location, log_uri, log_storage_options)
        elif log_storage_options is not None:
            raise InvalidOption(f"{location.uri}: log_storage_options are given, but no log_uri.")
        store = open_store(location)
        spec = TableSpec(
            id=SystemClock().new_id(),
            partition_by=tuple(partition_by),
            sort_by=tuple(sort_by),
            compression=compression,
            row_group_rows=row_group_rows,
            log_uri=location.log.uri if location.log else "",
            columns=declared_columns(schema if schema is not None else {}, table=location.uri),
            required=tuple(required),
            schema_policy=schema_policy,
            path_columns=dict(path_columns or {}),
            insert_query=insert_query,
            merge_query=merge_query,
            merging=merging,
            row_id=row_id,
            preserve_partition=preserve_partition,
        )
        return cls(create_handle(store, spec, timing=timing, fencing=fencing, dry_run=dry_run))

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        log_storage_options: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        fencing: Fencing = "claims",
    ) -> Self:
        """Open a table that exists. Raises TableNotFound, CorruptLog, InvalidURI, InvalidOption, the store's errors.

        `credential_provider` and `log_storage_options`, for a log in a store of its own, are as in `create`; where the
        log is, the table knows.
        """
        store = open_store(parse_location(uri, storage_options, credential_provider))
        return cls(open_handle(store, log_storage_options=log_storage_options, timing=timing, fencing=fencing))

    @classmethod
    def exists(
        cls,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        log_storage_options: Mapping[str, str] | None = None,
    ) -> bool:
        """Whether a table can be opened there. Raises the store's errors."""
        try:
            cls.open(
                uri,
                storage_options=storage_options,
                credential_provider=credential_provider,
                log_storage_options=log_storage_options,
            )
        except TableNotFound:
            return False
        return True

    @classmethod
    def repair_spec(
        cls,
        uri: str | os.PathLike[str],
        *,
        spec: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        log_uri: str | os.PathLike[str] | None = None,
        log_storage_options: Mapping[str, str] | None = None,
        fencing: Fencing = "claims",
        dry_run: bool = False,
    ) -> SpecRepairReport:
        """Create a lost `_table.json` anew, from the newest spec that the log records.

        Until then the table opens read-only. `log_uri`: where the log is, if not beside the parts. `spec`: for a log
        that records none, a dict with the keys of `_table.json`; it is compared with the columns and paths in the log.
        A `_table.json` that is there is never replaced. The repair can be repeated, and two at once do no harm.

        Raises TableNotFound without a log; CorruptLog when the log records no spec and none is given, or is that of
        another table; InvalidOption for a `spec` that does not fit the log; TableExists when another spec came back
        meanwhile; UnsupportedStore, StoreUnavailable and the store's errors.
        """
        location = parse_location(uri, storage_options, credential_provider)
        if log_uri is not None:
            location = with_log(location, log_uri, log_storage_options)
        return repair_spec(Handle(open_store(location), TableSpec(), fencing=fencing), spec, dry_run=dry_run)

    # ------------------------------------------------------------------------------------ write

    @overload
    def insert(
        self,
        data: Rows,
        *,
        txn: Txn | None = ...,
        on_conflict: OnConflict = ...,
        memory_bytes: int | None = ...,
        dry_run: Literal[False] = ...,
    ) -> Commit: ...

    @overload
    def insert(
        self,
        data: Rows,
        *,
        txn: Txn | None = ...,
        on_conflict: OnConflict = ...,
        memory_bytes: int | None = ...,
        dry_run: Literal[True],
    ) -> WritePlan: ...

    def insert(
        self,
        data: Rows,
        *,
        txn: Txn | None = None,
        on_conflict: OnConflict = "raise",
        memory_bytes: int | None = None,
        dry_run: bool = False,
    ) -> Commit | WritePlan:
        """Append rows: parts, then one log file. Needs no lock; any number of writers at a time.

        `data`: a list of dicts; a pyarrow Table, RecordBatch or RecordBatchReader; a pandas or Polars frame, lazy ones
        too; a DuckDB relation; anything with `__arrow_c_stream__`; a path or glob, or a list of them, of Parquet, JSON
        lines or CSV (local or `s3://`); a Spark DataFrame. It is streamed: `memory_bytes` (default: half of the
        machine's or container's) is what sorting may use before it spills to disk. Without rows there is no commit.

        `txn`: `(application, sequence)` makes it exactly once, whatever is retried: a sequence that is committed
        already (or a later one of that application) adds nothing, and the Commit says `repeated`.

        `on_conflict`: what becomes of values that are not of their column's type. `"raise"`: the batch is refused.
        `"cast"`: numbers become wider numbers, dates timestamps, and everything text, where no value changes.
        `"quarantine"`: rows that do not fit go to the table `<name>_quarantine`, and the rest is committed; the Commit
        counts both.

        `dry_run`: check all rows, write nothing, and return what would be committed. Rows are read, transformed by the
        insert query, partitioned and sorted; Parquet is not encoded, and views are not fed.

        A text column `_partition` chooses the partition of its row, as a path; else the table's expressions do.

        Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidQuery, InvalidPartitionExpression,
        InvalidPartitionValue before anything is visible; CommitStateUnknown; StaleView; the store's errors.
        """
        if txn is not None:
            txn = check_txn(txn, table=self.uri)
        if dry_run:
            return plan_write(
                self._handle, data, replaces=False, txn=txn, on_conflict=on_conflict, memory_bytes=memory_bytes
            )
        if is_spark_frame(data):
            return append_frame(self._handle, data, txn=txn, on_conflict=on_conflict, memory_bytes=memory_bytes)
        return insert(self._handle, data, txn=txn, on_conflict=on_conflict, memory_bytes=memory_bytes)

    @overload
    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = ...,
        on_conflict: OnConflict = ...,
        memory_bytes: int | None = ...,
        dry_run: Literal[False] = ...,
    ) -> Commit: ...

    @overload
    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = ...,
        on_conflict: OnConflict = ...,
        memory_bytes: int | None = ...,
        dry_run: Literal[True],
    ) -> WritePlan: ...

    def overwrite(
        self,
        data: Rows,
        *,
        partitions: Sequence[str] | str | None = None,
        on_conflict: OnConflict = "raise",
        memory_bytes: int | None = None,
        dry_run: bool = False,
    ) -> Commit | WritePlan:
        """Replace live parts by these rows, atomically. The other options are as for `insert`.

        `partitions`: paths (`["d=2026-11-21"]`) of the partitions to replace, or a DuckDB predicate over the
        partition columns; None replaces the whole table. Rows outside them are refused. What other writers append
        meanwhile survives. Views are not told: refresh them. Raises EmptyBatch (use `drop_partitions` to empty),
        InvalidRequestError, and as `insert` does.
        """
        if partitions is not None:
            check_chosen(self._handle, partitions)
        if dry_run:
            return plan_write(
                self._handle,
                data,
                replaces=True,
                partitions=partitions,
                on_conflict=on_conflict,
                memory_bytes=memory_bytes,
            )
        if is_spark_frame(data):
            return overwrite_frame(
                self._handle, data, partitions=partitions, on_conflict=on_conflict, memory_bytes=memory_bytes
            )
        return overwrite(self._handle, data, partitions, on_conflict=on_conflict, memory_bytes=memory_bytes)

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
        """A materialized view: a table `name` beside this one, which every insert here feeds in the same call.

        `query`: one SELECT over `_rows`, the rows of one insert as they are stored. With `merging`, what several
        inserts gave becomes one again. `backfill`: fill it with what is there already. Programs that have this table
        open feed the view when they have next read the log; refresh it then. Its guarantees are in docs/queries.md.

        Raises InvalidQuery, TableExists, and as `create` and `refresh_view` do.
        """
        spec = TableSpec(
            id=self._handle.clock.new_id(),
            partition_by=tuple(partition_by),
            sort_by=tuple(sort_by),
            merging=merging,
            merge_query=merge_query,
            columns=declared_columns(schema if schema is not None else {}, table=self.uri),
        )
        return type(self)(create_view(self._handle, name, query, spec, backfill=backfill))

    def refresh_view(self, name: str, *, memory_bytes: int | None = None) -> Commit:
        """Make a view anew from all rows of this table, atomically; nobody should insert meanwhile.

        Raises InvalidOption when there is no such view, InvalidQuery, and as `overwrite` does.
        """
        return refresh_view(self._handle, name, memory_bytes=memory_bytes)

    def views(self) -> list[str]:
        """The names of the views that inserts here feed, by the log. Raises CorruptLog and the store's errors."""
        self._handle.read()
        return [view.name for view in self.spec.views]

    def drop_view(self, name: str) -> None:
        """Feed a view no longer. Its table stays. Raises InvalidOption when there is no such view."""
        drop_view(self._handle, name)

    # ------------------------------------------------------------------------------------ read

    def snapshot(self, as_of: AsOf | None = None) -> Snapshot:
        """The live parts and the schema, now or at a time.

        Raises InvalidOption for a time before the table's creation or in the future (more than twice `max_skew_ms`
        ahead of this clock, and later than every commit), SnapshotExpired, CorruptLog, the store's errors.
        """
        return take_snapshot(self._handle, None if as_of is None else as_of_ms(as_of))

    def query(
        self, sql: str, *, as_of: AsOf | None = None, where: Where | None = None, sandbox: bool = False
    ) -> QueryResult:
        """The answer to a DuckDB query over the table `t`: `print` it, `.fetchall()`, `.to_arrow()`, `.to_polars()`.

        `final` is, beside `t`, what that will be when all is merged: the exact rows of a table with `merging`.
        `where`: a predicate over any columns. `t` holds the rows for which it is true, and no part is opened that
        certainly has none; so it is with what the query's own WHERE says of `t`.
        `sandbox`: the query reads the table and nothing else, for SQL that others wrote; without it, it may read other
        files of this machine, too (`Snapshot.query`).
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
        """The rows that came between two points of the table's history, each once: what a merge wrote is not new.

        `since` is a time (what was committed later), the `cursor` of earlier changes, or None: first all rows that the
        table has, then what came. `until` is a time or a cursor, None for now; `parts_max` and `bytes_max` (of Parquet)
        bound what is given at once. To go on, give the result's `cursor` as `since`:

            changes = table.changes(cursor)
            process(changes.to_arrow())
            cursor = changes.cursor  # keep it with the results

        A cursor misses nothing: it knows what was seen of the last minutes, in which a commit with an earlier time may
        still appear. Two times do not. Rows that were deleted or replaced after they came are given as they came.

        Raises InvalidOption; SnapshotExpired when cleanup has forgotten some of it; UncoordinatedMaintenance when a
        program of IceDB v3 merged meanwhile; CorruptLog and the store's errors.
        """
        return take_changes(
            self._handle,
            since if since is None or isinstance(since, str) else as_of_ms(since, name="since"),
            until if until is None or isinstance(until, str) else as_of_ms(until, name="until"),
            limits=Limits(parts_max, bytes_max),
        )

    def history(self, *, limit: int | None = None, since: AsOf | None = None) -> list[CommitInfo]:
        """The commits that the log remembers, newest first: when, of what kind, what came and what went.

        `limit`: so many; `since`: those of this time and later. A commit stays known when log files are merged; its
        writer does not. What cleanup has forgotten is left out, and a commit that may lack some of it says so
        (`exact`). Several commits of one millisecond are one, once their log files are merged. Raises InvalidOption,
        CorruptLog, SchemaConflict and the store's errors.
        """
        return history(self._handle, limit=limit, since_ms=None if since is None else as_of_ms(since, name="since"))

    def diff(self, since: AsOf, until: AsOf | None = None, *, rows: bool = False) -> Diff:
        """What is different between two times (`until`: None for now): parts by partition, and columns.

        `rows`: compare the rows of the parts that came and went, too, and count those that are there at one time only.
        Equal rows stand for each other, so what was merely merged does not count. It reads these parts.

        Raises SnapshotExpired when cleanup has forgotten one of the times, InvalidOption, MissingPart, CorruptLog and
        the store's errors.
        """
        return diff(
            self._handle,
            as_of_ms(since, name="since"),
            None if until is None else as_of_ms(until, name="until"),
            rows=rows,
        )

    def schema(self) -> dict[str, str]:
        """Column -> DuckDB type."""
        self._handle.read()
        return self._handle.columns

    # ------------------------------------------------------------------------------------ maintain

    def health(self, thresholds: Thresholds | None = None) -> TableHealth:
        """What the table is like now, and which maintenance is due: small parts, log files, what has expired.

        `thresholds`: what its figures should stay below. Only the log is read: one LIST when nothing is new. Raises
        CorruptLog, SchemaConflict and the store's errors.
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
        memory_bytes: int | None = None,
        engine: Engine | None = None,
        dry_run: bool = False,
    ) -> MergeReport:
        """Merge parts smaller than `part_bytes_max`, partition by partition, in one exclusive commit.

        `order`: whose groups come first when the budget of `input_parts_max` and `input_bytes_max` does not reach
        (`remaining` in the report): `"newest"` for hot partitions, often; `"oldest"` for full optimisation. `tiers`:
        merge only what pays, for who merges often; None merges all that is small.
        `memory_bytes` is what all groups together may use (default: half of the machine's or container's); what does
        not fit is spilled to disk. `engine`: who writes the new parts, with memory of its own, if not this process:
        `icedb.spark.SparkEngine`. The commit is one all the same. `dry_run`: only say what there is to merge. To
        merge for a limited time, see `icedb.operations.rewrite.merge_loop`.

        Raises InvalidOption, MissingPart, CommitConflict, CommitStateUnknown, the store's and the engine's errors; with
        a merge query also InvalidQuery, InvalidBatch, SchemaConflict and UnsupportedType.
        """
        if engine is not None and memory_bytes is not None:
            raise InvalidOption(
                f"{self.uri}: memory_bytes is given for this process and an engine that does the work elsewhere. Leave "
                "memory_bytes out, and give it to the engine."
            )
        return merge(
            self._handle,
            order=order,
            part_bytes_max=part_bytes_max,
            input_parts_max=input_parts_max,
            input_bytes_max=input_bytes_max,
            tiers=tiers,
            dry_run=dry_run,
            rewriter=partial(rewrite_parts, engine=engine or LocalEngine(ResourceLimits(memory_bytes))),
        )

    def merge_log(self, *, lines_max: int = LINES_MAX, files_min: int = 2, dry_run: bool = False) -> MergeLogReport:
        """Merge small log files, in tiers, so that opening the table stays cheap; no part is touched.

        `lines_max`: of the new log file. `files_min`: fewer log files are left as they are. Raises InvalidOption,
        CommitConflict, CommitStateUnknown, the store's errors.
        """
        return merge_log(self._handle, lines_max=lines_max, files_min=files_min, dry_run=dry_run)

    def alter(
        self,
        *,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        compression: Compression | None = None,
        row_group_rows: int | None = None,
        schema: DeclaredSchema | None = None,
        required: Sequence[str] | None = None,
        schema_policy: SchemaPolicy | None = None,
        path_columns: Mapping[str, str] | None = None,
        insert_query: str | None = None,
        merge_query: str | None = None,
        merging: Merging | Literal["none"] | None = None,
        row_id: bool | None = None,
        timing: Timing | None = None,
    ) -> Commit:
        """Change how new parts are partitioned, sorted, stored and merged; what is None stays. Parts stay as they are.

        `timing`: all of the table's times. A longer one counts at once. Of one that is shortened, the earlier value
        goes on to count for a while, see docs/format.md, "A change of times".

        Queries see the new partition columns for all rows. `schema` declares further columns. An empty query and
        `merging="none"` take back what there was. Raises InvalidOption, InvalidPartitionExpression, InvalidQuery,
        UnknownColumn, SchemaConflict, CommitConflict, CommitStateUnknown and the store's errors.
        """
        change = spec_change(
            table=self.uri,
            partition_by=partition_by,
            sort_by=sort_by,
            compression=compression,
            row_group_rows=row_group_rows,
            schema=schema,
            required=required,
            schema_policy=schema_policy,
            path_columns=path_columns,
            insert_query=insert_query,
            merge_query=merge_query,
            merging=merging,
            row_id=row_id,
            timing=timing,
        )
        return alter(self._handle, change)

    def delete(self, where: str, *, dry_run: bool = False, engine: Engine | None = None) -> DeleteReport:
        """Delete the rows for which `where` is true: a DuckDB condition over the columns of `t`. All partitions.

        Only parts with such rows are written again, in one exclusive commit; readers of older snapshots keep reading
        until `cleanup`. Rows that are appended or merged meanwhile survive: repeat it until `second_pass_needed` is
        false, to be sure. `engine`: who searches and writes, as for `merge`. Raises InvalidOption, UnknownColumn,
        MissingPart, CommitConflict, CommitStateUnknown, the store's and the engine's errors.
        """
        engine = engine or LOCAL_ENGINE
        return delete(
            self._handle,
            where,
            dry_run=dry_run,
            rewriter=partial(rewrite_parts, engine=engine),
            finder=partial(find_rows, engine=engine),
        )

    def rewrite_partition(
        self,
        partition: str,
        query: str,
        *,
        new_columns: bool = False,
        dry_run: bool = False,
        engine: Engine | None = None,
    ) -> RewriteReport:
        """Put the answer of a query in the place of a partition's rows, atomically.

        `query`: one SELECT over `_rows` (or `t`), which holds the rows of that partition only, with its partition
        columns. It runs in a sandbox and sees nothing else. Each row of the answer must belong to that partition, and
        its values must fit the table's types; a column that is left out becomes null, but those that partition or sort
        the table must be there; an answer without rows empties the partition. What is appended meanwhile survives.
        `new_columns`: the answer may bring columns that the table does not have. `engine`: who asks the query and
        writes, as for `merge`.

        Raises InvalidOption for a partition that is not there, InvalidQuery for a query that cannot be answered or asks
        for more than its rows, InvalidBatch for rows of other partitions, SchemaConflict, UnsupportedType, MissingPart,
        CommitConflict, CommitStateUnknown, the store's and the engine's errors.
        """
        return rewrite_partition(
            self._handle, partition, query, new_columns=new_columns, dry_run=dry_run, engine=engine or LOCAL_ENGINE
        )

    def drop_partitions(
        self, partitions: Sequence[str] | str, *, missing_ok: bool = False, dry_run: bool = False
    ) -> DropReport:
        """Tombstone all live parts of some partitions: paths, or a DuckDB predicate over the partition columns.

        A predicate names a partition column, or is `true`: all partitions. A path without live parts is refused,
        unless `missing_ok`. Readers of older snapshots keep reading until `cleanup`. A predicate never takes parts of a
        partitioning before the last `alter` (`older_parts` in the report): `delete` does. Raises InvalidRequestError
        errors and the store's.
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
        """Delete what was superseded longer than `grace_ms` ago (default: the table's, an hour) and no pin needs.

        `deletes_max` log files and parts at most; the report says what remains. With a grace period that is shorter
        than the table's, nobody may pin meanwhile. Raises GraceTooShort, InvalidOption, CorruptLog (a pin that cannot
        be read: nothing is deleted then), CommitConflict, CommitStateUnknown and the store's errors.
        """
        return cleanup(
            self._handle,
            grace_ms=grace_ms,
            allow_short_grace=allow_short_grace,
            deletes_max=deletes_max,
            dry_run=dry_run,
        )

    def repair_types(self, types: Mapping[str, str] | None = None, *, dry_run: bool = False) -> RepairReport:
        """Give one type to each column of which log files say several, so that the table can be read again.

        Only programs that do not check the schema make such a table; stop them first. A column gets the type that
        `types` says, or one into which all the others widen without loss. Live parts with another type are written
        again, and the log files that say another one are replaced, in one exclusive commit. Each value is checked:
        converted back, it must be what it was. `VARCHAR`, if you give it, takes everything: JSON of what is nested,
        plain text of all else. Snapshots of earlier times stay readable until `cleanup`. Other programs that have the
        table open must open it again: they may go on to write the type that they know.

        Raises SchemaConflict (no common type, or a value that would be lost: nothing was changed), UnknownColumn,
        InvalidOption, UnsupportedType, InvalidPartitionExpression when the partition expressions do not fit the new
        types, MissingPart, CommitConflict, CommitStateUnknown and the store's errors.
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
        """Make existing Parquet part of the table without writing it again, in one exclusive commit.

        `source`: a folder or bucket prefix, one file, or a glob (`*`, `?`, `[...]`, `**`); Hive folders
        (`d=2026-11-21`) give the partition columns. Files below the table's own `_data` are registered as they are, and
        are the table's from then on: cleanup deletes them once they are superseded. All others are copied there, by the
        store itself where both lie in it, and are never touched. A file that the log knows already is skipped, so an
        import that did not finish can be repeated.

        `storage_options`: of the source; None: as the table's. `trust_paths`: do not compare the rows with what their
        paths say of computed partition columns. `verify`: decode every row and note a digest, instead of footers alone.
        `first_time`: your word that none of the files was ever imported; needed for files that are older than what
        cleanup has made the log forget. `engine`: who looks at the files and copies them, as for `merge`.

        Raises SchemaConflict, UnknownColumn, UnsupportedType, InvalidBatch, InvalidOption, InvalidPartitionValue, which
        name the file, before anything is copied; CommitTimedOut, CommitConflict, CommitStateUnknown, MissingPart (an
        orphan sweep deleted a file of `_data` meanwhile), the store's and the engine's errors.
        """
        return import_files(
            self._handle,
            source,
            storage_options=storage_options,
            trust_paths=trust_paths,
            verify=verify,
            first_time=first_time,
            dry_run=dry_run,
            engine=engine or LOCAL_ENGINE,
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
        """Create a table that is laid out as existing Parquet is, and import that.

        Hive folders become `path_columns`, or `partition_by` where the files store these columns too. What it does not
        finish, `import_files` does. Raises TableExists, and as `create` and `import_files` do.
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
            engine=engine or LOCAL_ENGINE,
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
        """Publish the table as a Delta table at the same address: a Delta log over the same parts, nothing copied.

        An export adds a Delta version with the difference to the one before, or none if nothing differs; who has an
        older one open reads on for the grace period. Delta's own programs can read the table, and refuse to write to
        it. `exclude_columns`: columns that Delta does not get.

        Delta's readers see the parts of the last export, also when a merge has superseded them. A pin keeps these from
        cleanup until the next export has come and the grace period is over, but for `keep` at most; None: however long
        that takes. So export again after each merge, and more often than `keep`.

        Raises UnsupportedType, InvalidPartitionValue and UnknownColumn, which name the columns, before anything is
        written; UncoordinatedMaintenance when another program wrote to the Delta log; SnapshotExpired, CommitConflict,
        CommitTimedOut, and as `pin` does. After StoreUnavailable it may have been published: to repeat it does no
        harm.
        """
        return export_delta(
            self._handle,
            None if as_of is None else as_of_ms(as_of),
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
        """Write the rows to a folder or bucket prefix as plain Parquet, in Hive's folders (`d=2026-11-21`).

        Parts are copied as they are, by the store itself where it can. With `where`, a predicate as for `query`, their
        rows are filtered. `storage_options`: of the target; None: as the table's. `on_part`: called after each part
        with how many are done, of how many, and their bytes.

        The target must be empty; `overwrite` replaces an earlier export, and nothing else. The file `_SUCCESS` comes
        last, and goes first: without it an export is not finished. One that fails removes what it wrote; of one that
        was killed, files without `_SUCCESS` stay. Let one program at a time export to a target.

        Raises InvalidOption, UnknownColumn, InvalidURI before anything is written; SnapshotExpired when cleanup took a
        part meanwhile (pin the time of long exports), MissingPart, the errors of both stores; CommitStateUnknown when
        all but the last put was answered.
        """
        return export_parquet(
            self._handle,
            target,
            None if as_of is None else as_of_ms(as_of),
            where=where,
            storage_options=storage_options,
            overwrite=overwrite,
            on_part=on_part,
            dry_run=dry_run,
        )

    # ------------------------------------------------------------------------------------ undo and keep

    def restore(self, as_of: AsOf, *, allow_empty: bool = False, dry_run: bool = False) -> RestoreReport:
        """Make the table what it was at a time, in one exclusive commit: undo a drop, overwrite, deletion or bad merge.

        Parts that were superseded since come back as copies that the store makes; parts that came since are
        tombstoned, so rows that were appended after `as_of` go, those of transactions too (which stay recorded, and
        are not written again when they are retried). What a plain append adds after the restore has last read the log
        survives. Rows that somebody deleted on purpose come back as well. The schema and the spec stay as they are.
        The restore can be undone by another one, to the time before it. A restore that leaves no rows is refused,
        unless `allow_empty`; the report has the table's rows before and after.

        Works as far back as snapshots can be read: from the horizon on, and at pinned times. Raises SnapshotExpired
        (nothing was restored), InvalidOption for a time before the table's creation or in the future, CommitConflict,
        CommitStateUnknown, CommitTimedOut and the store's errors.
        """
        return restore(self._handle, as_of_ms(as_of), allow_empty=allow_empty, dry_run=dry_run)

    def pin(
        self, name: str, as_of: AsOf | None = None, *, expires: Expires | None = None, dry_run: bool = False
    ) -> Pin:
        """Keep the snapshot at a time readable, whatever cleanup does: `snapshot(as_of=pin.as_of_ms)`, `restore`.

        `as_of`: None is the time of the newest commit. `expires`: an aware datetime, unix milliseconds, or a timedelta
        from now; None: it holds until `unpin`. Its parts are kept, with all rows that were deleted from the table.
        As with every snapshot, a plain append may still join it while `as_of` is younger than the commit timeout.

        Superseded parts can only be pinned while no cleanup can be deleting them: well within the table's grace
        period. A cleanup that is called with a shorter one may be deleting already what this pin needs, so do not pin
        while such a cleanup runs; later ones, whatever their grace period, respect the pin.

        Raises PinExists, SnapshotExpired, InvalidOption, CommitTimedOut (the store got it too late: try again),
        ClockSkew and the store's errors. After StoreUnavailable the pin may be there.
        """
        at_ms = None if as_of is None else as_of_ms(as_of)
        return pin(self._handle, name, at_ms, expires=expires, dry_run=dry_run)

    def unpin(self, name: str, *, dry_run: bool = False) -> bool:
        """Remove a pin; False when there was none. The next cleanup takes what only this pin needed, without grace."""
        return unpin(self._handle, name, dry_run=dry_run)

    def pins(self) -> list[Pin]:
        """The pins by name, expired ones too, which cleanup removes in time. Raises CorruptLog, the store's errors."""
        return read_pins(self._handle)

    def delete_orphans(
        self, *, min_age_ms: int | None = None, limit: int = ORPHANS_MAX, dry_run: bool = False
    ) -> OrphansReport:
        """Delete parts that no log file and no undecided claim names and that are older than `min_age_ms`.

        The default age is a day. At most `limit` go; the report says what remains. In a folder, it also deletes what
        puts of killed processes have left (`unfinished_puts`), and skips symbolic links. Raises GraceTooShort,
        ClockSkew, SymbolicLink when a folder of the table itself is one, and CorruptLog when a log file or a claim
        cannot be read: nothing is deleted then.
        """
        return delete_orphans(self._handle, min_age_ms=min_age_ms, limit=limit, dry_run=dry_run)

    def verify(self, *, deep: bool = False, footers: bool = True) -> VerifyReport:
        """Look at every object of the table, change nothing, and list every problem; safe while others write.

        `deep` fetches all live parts, decodes every row and compares digests; without it, sizes and footers are
        compared. `footers=False` opens no part: listings with their sizes, log and claims are compared, which costs the
        same however many rows there are. Problems are in the report, not raised; raises InvalidOption for both at once,
        and the store's errors.
        """
        return verify(self._handle, deep=deep, footers=footers)
