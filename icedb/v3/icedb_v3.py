"""The API of IceDB v3, for programs that were written for it.

    ice = IceDBv3(partition_function, sort_order, region, key, secret, endpoint, s3_client, "web-1", s3_use_path=True)
    ice.insert(rows); ice.merge(); ice.tombstone_cleanup(60_000)

It is a thin facade over the modules that `icedb.Table` uses, with the same guarantees (docs/format.md). The partition
function, sort order and queries stay in the source code of the program: the facade neither needs nor writes
`_table.json`. docs/how-to/from-v3.md lists the differences to v3.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, cast

import duckdb
import msgspec

from icedb.errors import CommitConflict, InvalidBatch, InvalidOption, InvalidPartitionValue
from icedb.format.replay import TableState
from icedb.format.table_spec import Compression, TableSpec, check_spec
from icedb.operations.commits.publish import prepare, publish_append
from icedb.operations.retention.cleanup import cleanup
from icedb.operations.rewrite.merge import MergePlan, carry_out, mergeable
from icedb.sources.open_source import open_batch
from icedb.sql.connections import load_httpfs, quote_text, set_spill
from icedb.storage.location import with_log
from icedb.storage.obstore_store import ObjectNotFound, open_store, some_below
from icedb.storage.parts import Part
from icedb.transaction.append import Commit
from icedb.transaction.current_spec import lost_spec
from icedb.transaction.open_table import is_lost, one_line
from icedb.transaction.separate_log import check_log_place, claim_log
from icedb.transaction.table_handle import Handle
from icedb.transaction.table_place import check_address
from icedb.util.arguments import checks_arguments
from icedb.util.clock import SystemClock
from icedb.util.temporary_files import spill_path
from icedb.v3.log_io import S3Client, metadata_of, sources, writer_of
from icedb.v3.log_records import FileMarker, LogMetadata, Schema, schema_of, v3_conflicts
from icedb.v3.v3_rules import (
    column_name,
    drop_paths,
    keep_raw_paths,
    plan_v3_merge,
    rewrite_text,
    stored_paths,
    with_path_columns,
)
from icedb.writer.batch_loader import PARTITION_COLUMN
from icedb.writer.part_writer import put_parts
from icedb.writer.staged_batch import StagedBatch
from icedb.writer.staging import stage_rows

__all__ = ["CompressionCodec", "IceDBv3"]

#: A row of a v3 program: a dict. Each row is checked alone, so that a message has its number.
Row = Any
PartitionFunction = Callable[[Any], str]
RowFormatter = Callable[[dict[str, Any]], dict[str, Any]]

# An attempt is lost if another program merged or dropped the same parts meanwhile.
MERGE_ATTEMPTS_MAX = 5
# The partition of rows of which only the columns are computed.
_ANY_PARTITION = "any"


class CompressionCodec(Enum):
    """The compression of the columns of new parts."""

    UNCOMPRESSED = "UNCOMPRESSED"
    SNAPPY = "SNAPPY"
    ZSTD = "ZSTD"
    GZIP = "GZIP"


class InvalidCodec(InvalidOption, AttributeError):
    """The error of a `compression_codec` that is no CompressionCodec. v3 programs catch AttributeError."""


@checks_arguments
class IceDBv3:
    """A table for programs of IceDB v3. Safe to share between threads."""

    def __init__(
        self,
        partition_function: PartitionFunction | None = None,
        sort_order: Sequence[str] = (),
        s3_region: str | None = None,
        s3_access_key: str | None = None,
        s3_secret_key: str | None = None,
        s3_endpoint: str | None = None,
        s3_client: S3Client | None = None,
        path_safe_hostname: str = "",
        s3_use_path: bool = False,
        duckdb_ext_dir: str | None = None,
        custom_merge_query: str | None = None,
        custom_insert_query: str | None = None,
        row_group_size: int = 122_880,
        compression_codec: CompressionCodec | Any = CompressionCodec.SNAPPY,  # InvalidCodec for any other
        preserve_partition: bool = False,
        max_threads: int | None = os.cpu_count(),
        log_s3_client: S3Client | None = None,
        *,
        partition_strategy: PartitionFunction | None = None,
        format_row: RowFormatter | None = None,
    ) -> None:
        """Open the table without a request. docs/how-to/from-v3.md describes the arguments.

        `partition_strategy` is another name of `partition_function`. `s3_region` to `s3_endpoint` and `s3_use_path` are
        for `get_duckdb`; all other requests use `s3_client`. Raises InvalidOption, InvalidURI.
        """
        if not isinstance(s3_client, S3Client):
            raise InvalidOption(f"s3_client is a {type(s3_client).__name__}: give an icedb.log.S3Client.")
        function = partition_function or partition_strategy
        if function is not None and not callable(function):
            raise InvalidOption(f"{s3_client.location.uri}: partition_function must be a function from a row to text.")
        self.partition_function = function
        self.format_row = format_row
        self.data_s3c = s3_client
        self.log_s3c = log_s3_client or s3_client
        self.path_safe_hostname = path_safe_hostname
        self.custom_merge_query = custom_merge_query
        self.custom_insert_query = custom_insert_query
        self.sort_order = sort_order
        self.row_group_size = row_group_size
        self.compression_codec = compression_codec
        self.preserve_partition = preserve_partition
        self.max_threads = max_threads
        self.s3_region, self.s3_access_key, self.s3_secret_key = s3_region, s3_access_key, s3_secret_key
        self.s3_endpoint, self.s3_use_path, self.duckdb_ext_dir = s3_endpoint, s3_use_path, duckdb_ext_dir
        self._opened = self._open(self._spec())

    def __repr__(self) -> str:
        return f"IceDBv3({self.data_s3c!r})"

    @property
    def s3c(self) -> S3Client:
        """The client of the parts. An assignment also moves the log, unless the log has its own client."""
        return self.data_s3c

    @s3c.setter
    def s3c(self, client: S3Client) -> None:
        if self.log_s3c is self.data_s3c:
            self.log_s3c = client
        self.data_s3c = client

    # ------------------------------------------------------------------------------------ rows in

    def get_schema(self, rows: Sequence[Row]) -> Schema:
        """Return columns and types of these rows, or of the result of the insert query over them."""
        opened = self._refresh()
        # Partitions and sort order do not change the columns.
        handle = opened.handle.with_spec(msgspec.structs.replace(opened.handle.spec, sort_by=()))
        prepared = [self._with_partition(handle, n, row, _ANY_PARTITION) for n, row in enumerate(rows)]
        with self._staged(handle, prepared, schema={}) as stage:
            return schema_of(stage.columns)

    def insert(self, rows: Sequence[Row]) -> list[FileMarker]:
        """Write rows as a part for each partition, in one log file. No row is modified.

        The partition is the row's `_partition`, else the result of the partition function, which runs before
        `format_row` and the insert query. Raises SchemaConflictException and InvalidRequestError errors before anything
        is visible; CommitStateUnknown; the store's errors.
        """
        handle = self._writable()
        with v3_conflicts():
            prepare(handle)
        prepared = [self._with_partition(handle, n, row, self._partition(handle, n, row)) for n, row in enumerate(rows)]
        with self._staged(handle, prepared, schema=handle.known_schema) as stage:
            with v3_conflicts():
                keep_raw_paths(handle, stage)
            written = put_parts(stage, store=handle.store, clock=handle.clock)
        with v3_conflicts():
            commit = publish_append(handle, written)
        return [_file_marker(p) for p in commit.parts]

    @contextmanager
    def _staged(self, handle: Handle, prepared: Sequence[Row], *, schema: Mapping[str, str]) -> Iterator[StagedBatch]:
        own_query = bool(handle.spec.insert_query)
        context = dataclasses.replace(handle.write_context(), known_schema=dict(schema), lenient=own_query)
        with (
            v3_conflicts(),
            # The input columns of an insert query may have the names of table columns.
            open_batch(
                list(prepared),
                location=handle.location,
                table_columns={} if own_query else schema,
            ) as batch,
            stage_rows(context, batch) as stage,
        ):
            yield stage

    def _partition(self, handle: Handle, number: int, row: Row) -> str:
        _check_row(handle, number, row)
        partition = row.get(PARTITION_COLUMN)
        if partition is None and self.partition_function is not None:
            partition = self.partition_function(row)
        if not isinstance(partition, str):
            raise InvalidPartitionValue(
                f"{handle.table}: the partition of row {number} is a {type(partition).__name__}. The partition "
                "function must return text such as 'd=2026-11-21', or the row must have it as '_partition'."
            )
        return partition

    def _with_partition(self, handle: Handle, number: int, row: Row, partition: str) -> dict[str, Any]:
        """Return a formatted copy of the row, with its partition."""
        _check_row(handle, number, row)
        formatted = dict(row) if self.format_row is None else self.format_row(copy.deepcopy(dict(row)))
        if not isinstance(formatted, Mapping):
            raise InvalidBatch(
                f"{handle.table}: format_row returned a {type(formatted).__name__} for row {number}. It must return a "
                "dict."
            )
        return {**formatted, PARTITION_COLUMN: partition}

    # ------------------------------------------------------------------------------------ maintenance

    def merge(
        self, max_file_size: int = 10_000_000, max_file_count: int = 10, asc: bool = False
    ) -> tuple[str | None, FileMarker | None, str | None, list[FileMarker], LogMetadata | None]:
        """Merge parts of one partition into one. Return `(None, None, None, [], None)` if nothing can be merged.

        The partition is the one with the most parts (`asc`: the fewest) of those that can be merged. Its smallest parts
        are taken until they have `max_file_size` bytes or number `max_file_count`. The new part is None if the merge
        query returned no row. Raises InvalidRequestError errors for an invalid query, MissingPart, CommitConflict,
        CommitStateUnknown, the store's errors.
        """
        handle = self._writable()
        _check_number(handle, "max_file_size", max_file_size)
        _check_number(handle, "max_file_count", max_file_count)
        for _ in range(MERGE_ATTEMPTS_MAX):
            state = self._read(handle)
            planned = plan_v3_merge(
                mergeable(handle, state), max_file_size=max_file_size, max_file_count=max_file_count, asc=asc
            )
            if planned is None:
                return None, None, None, [], None
            with v3_conflicts():
                querying, plan = with_path_columns(handle, planned.rewrite), MergePlan((planned.rewrite,), 0)
                commit = carry_out(querying, state, plan, rewriter=planned.rewriter, lenient=True).commit
            if commit.key is not None:
                new = next(map(_file_marker, commit.parts), None)
                log_files = sources(state)
                merged = [_merged_marker(p, log_files.get(p.key)) for p in commit.tombstoned]
                return commit.key, new, planned.text, merged, _metadata(handle, commit)
        raise CommitConflict(
            f"{handle.table}: other programs replaced the parts of {MERGE_ATTEMPTS_MAX} merges in a row. Nothing was "
            "published. Retry when fewer programs maintain the table."
        )

    def tombstone_cleanup(self, min_age_ms: int) -> tuple[list[str], list[str], list[str]]:
        """Delete what was superseded before that age. Return cleaned log files, deleted log files and deleted parts.

        Cleaned log files are merged ones that were replaced by one without the deleted parts. If the age is below ten
        minutes, no other program may use the table, and the cleanup repeats until nothing is old enough. Raises
        InvalidOption, CorruptLog, CommitConflict, CommitStateUnknown, the store's errors.
        """
        handle = self._writable()
        _check_number(handle, "min_age_ms", min_age_ms)
        with v3_conflicts():
            report = cleanup(handle, grace_ms=min_age_ms, allow_short_grace=True)
        cleaned = dict.fromkeys(k for k in report.rewritten_log_files if handle.keys.parse_log_file(k).merged)
        deleted = [k for k in report.deleted_log_files if k not in cleaned]
        return list(cleaned), deleted, list(report.deleted_parts)

    def remove_inactive_parts(self, min_age_ms: int) -> tuple[list[str], list[str], list[str]]:
        """Call `tombstone_cleanup`, whose other name this is."""
        return self.tombstone_cleanup(min_age_ms)

    def remove_partitions(
        self, removal_func: Callable[[list[str]], Iterable[str]], max_files: int = 1000
    ) -> tuple[str | None, LogMetadata | None, int]:
        """Drop the partitions that a function selects. Return the log file, its first line and the number of parts.

        It stops after the partition that reaches `max_files` parts. Unknown partitions are ignored. Raises
        CommitConflict, CommitStateUnknown, the store's errors.
        """
        handle = self._writable()
        parts = [handle.part(m) for m in self._read(handle).live]
        stored = stored_paths(parts)
        chosen = removal_func(list(stored))
        if isinstance(chosen, str) or not isinstance(chosen, Iterable):
            raise InvalidOption(f"{handle.table}: the function of remove_partitions must return a list of partitions.")
        paths: set[str] = set()
        for partition in chosen:
            paths |= stored.get(partition, frozenset())
            if sum(p.partition in paths for p in parts) >= max_files:
                break
        if not paths:
            return None, None, 0
        commit = drop_paths(handle, paths)
        return commit.key, _metadata(handle, commit), len(commit.tombstoned)

    def rewrite_partition(
        self, target_partition: str, filter_query: str
    ) -> tuple[str | None, LogMetadata | None, list[str]]:
        """Replace a partition's rows by the result of a query over `_rows`. Return the replaced parts.

        Returns `(None, None, [])` if the partition does not exist. Raises InvalidQuery, SchemaConflictException,
        CommitConflict, CommitStateUnknown, the store's errors.
        """
        handle = self._writable()
        with v3_conflicts():
            commit = rewrite_text(handle, target_partition, filter_query)
        if commit is None:
            return None, None, []
        return commit.key, _metadata(handle, commit), [p.key for p in commit.tombstoned]

    # ------------------------------------------------------------------------------------ DuckDB

    def get_duckdb(self) -> duckdb.DuckDBPyConnection:
        """Return a connection with httpfs and the bucket's credentials. Raises StoreUnavailable, InvalidOption."""
        con = duckdb.connect(":memory:")
        set_spill(con, spill_path())
        _apply(con, {"extension_directory": self.duckdb_ext_dir})
        if self.max_threads is not None:
            con.execute(f"SET threads = {int(self.max_threads)}")
        load_httpfs(con)
        _apply(con, self._s3_settings())
        return con

    def _s3_settings(self) -> dict[str, str | None]:
        location = self.data_s3c.location
        chain = location.credentials()
        scheme, _, host = (self.s3_endpoint or location.endpoint or "").rpartition("://")
        return {
            "s3_region": self.s3_region or location.region or "us-east-1",
            "s3_access_key_id": self.s3_access_key or (chain.access_key_id if chain else None),
            "s3_secret_access_key": self.s3_secret_key or (chain.secret_access_key if chain else None),
            "s3_session_token": None if self.s3_access_key or not chain else chain.session_token,
            "s3_endpoint": host or None,
            "s3_use_ssl": "false" if scheme == "http" else None,
            "s3_url_style": "path" if self.s3_use_path else None,
        }

    # ------------------------------------------------------------------------------------ the table

    def _spec(self) -> TableSpec:
        """Return the spec of the current attributes, which the program may have assigned."""
        for client in (self.data_s3c, self.log_s3c):
            if not isinstance(client, S3Client):
                raise InvalidOption(f"data_s3c or log_s3c is a {type(client).__name__}: give an icedb.log.S3Client.")
        codec, table = self.compression_codec, self.data_s3c.location.uri
        if not isinstance(codec, CompressionCodec):
            raise InvalidCodec(f"{table}: compression_codec is none of {list(CompressionCodec)}.")
        spec = TableSpec(
            sort_by=tuple(column_name(c) for c in self.sort_order or ()),
            compression=cast("Compression", codec.value.lower()),
            row_group_rows=self.row_group_size,
            preserve_partition=self.preserve_partition,
            insert_query=self.custom_insert_query or "",
            merge_query=self.custom_merge_query or "",
        )
        # The queries are checked when they run.
        check_spec(msgspec.structs.replace(spec, insert_query="", merge_query=""), table=table)
        return spec

    def _refresh(self) -> _Opened:
        """Return the table with the current attributes, which the program may have assigned."""
        opened, spec = self._opened, self._spec()
        if (opened.data, opened.log, opened.host) != (self.data_s3c, self.log_s3c, self.path_safe_hostname):
            opened = self._open(spec)
        elif spec != opened.handle.spec:
            opened = dataclasses.replace(opened, handle=opened.handle.with_spec(spec))
        self._opened = opened
        return opened

    def _open(self, spec: TableSpec) -> _Opened:
        data, log, host = self.data_s3c, self.log_s3c, self.path_safe_hostname
        location = data.location
        if log is not data:
            location = with_log(location, log.location.uri, log.storage_options)
        handle = Handle.of(open_store(location), spec, fixed_spec=True)
        return _Opened(data, log, host, dataclasses.replace(handle, writer=writer_of(host, SystemClock())))

    def _writable(self) -> Handle:
        opened = self._refresh()
        handle = opened.handle
        if not opened.log_is_ours:
            body = check_log_place(handle)
            if body is None and not some_below(handle.store, handle.keys.log_prefix):
                check_address(handle)  # the first write makes the table
            claim_log(handle)
            if body is not None:
                handle = dataclasses.replace(handle, stored_spec=one_line(body))
            elif is_lost(self._read(handle), handle):
                raise lost_spec(handle.table, handle.keys.spec)
            self._opened = dataclasses.replace(opened, handle=handle, log_is_ours=True)
        handle.check_writable()
        return handle

    def _read(self, handle: Handle) -> TableState:
        with v3_conflicts():
            return handle.read(fresh=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """An open table and its clients. `log_is_ours` is True once no other table can have its log there."""

    data: S3Client
    log: S3Client
    host: str
    handle: Handle
    log_is_ours: bool = False


def _check_row(handle: Handle, number: int, row: object) -> None:
    if not isinstance(row, Mapping):
        raise InvalidBatch(f"{handle.table}: row {number} is a {type(row).__name__}, not a dict.")


def _check_number(handle: Handle, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise InvalidOption(f"{handle.table}: {name} is {value!r}; give a number that is not below 0.")


def _merged_marker(part: Part, log_file: str | None) -> FileMarker:
    """Return the marker of a part before its merge."""
    marker = FileMarker(part.key, part.created_ms, part.bytes)
    marker.vir_source_log_file = log_file
    return marker


def _file_marker(part: Part) -> FileMarker:
    return FileMarker(part.key, part.created_ms, part.bytes, part.tombstoned_ms)


def _metadata(handle: Handle, commit: Commit) -> LogMetadata | None:
    if commit.key is None:
        return None
    try:
        return metadata_of(handle.store.get(commit.key).body)
    except ObjectNotFound:  # replaced and cleaned up meanwhile
        return None


def _apply(con: duckdb.DuckDBPyConnection, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is not None:
            con.execute(f"SET {name} = {quote_text(value)}")
