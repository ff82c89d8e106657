"""The API of IceDB v3: a program that was written for it runs on this library unchanged.

    ice = IceDBv3(partition_function, sort_order, region, key, secret, endpoint, s3_client, "web-1", s3_use_path=True)
    ice.insert(rows); ice.merge(); ice.tombstone_cleanup(60_000)

It is a thin facade: rows are staged, parts merged, and log files published by what `icedb.Table` stands on, and so
under the same promises (docs/format.md). What a v3 program keeps in its source code (partition function, sort order,
queries) stays there: the facade neither needs nor writes `_table.json`. What differs: docs/v3.md.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

import duckdb
import msgspec

from icedb.clock import SystemClock
from icedb.commit import Commit
from icedb.engine import load_httpfs, quote_text
from icedb.errors import CommitContended, InvalidBatch, InvalidOption, InvalidPartitionValue
from icedb.format.snapshot import LogState
from icedb.handle import Handle, Part
from icedb.incoming import PARTITION_COLUMN
from icedb.inputs.opening import open_batch
from icedb.location import with_log
from icedb.log import S3Client, metadata_of, writer_of
from icedb.log_records import FileMarker, LogMetadata, Schema, schema_of, v3_conflicts
from icedb.log_store import check_log_place, claim_log
from icedb.maintenance.cleanup import cleanup
from icedb.maintenance.drop import drop_partitions
from icedb.maintenance.merge import MergePlan, carry_out, mergeable
from icedb.maintenance.rewrite import rewrite_partition, write_answer
from icedb.parts import put_parts
from icedb.publishing import prepare, publish_append
from icedb.spec import Compression, TableSpec, check_spec
from icedb.staging import Stage, stage_rows
from icedb.store import ObjectNotFound, open_store
from icedb.v3_rules import column_name, plan_v3_merge, seeing_path, stored_paths

__all__ = ["CompressionCodec", "IceDBv3"]

#: A row of a v3 program.
Row = Mapping[str, Any]
PartitionFunction = Callable[[Any], str]
RowFormatter = Callable[[dict[str, Any]], dict[str, Any]]

# Each lost attempt means that others merged or dropped the same parts meanwhile.
MERGE_ATTEMPTS_MAX = 5


class CompressionCodec(Enum):
    """How the columns of new parts are compressed."""

    UNCOMPRESSED = "UNCOMPRESSED"
    SNAPPY = "SNAPPY"
    ZSTD = "ZSTD"
    GZIP = "GZIP"


class InvalidCodec(InvalidOption, AttributeError):
    """`compression_codec` is no CompressionCodec; v3 programs catch AttributeError."""


class IceDBv3:
    """A table as programs of IceDB v3 use it. Safe to share between threads."""

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
        compression_codec: CompressionCodec = CompressionCodec.SNAPPY,
        preserve_partition: bool = False,
        max_threads: int | None = os.cpu_count(),
        log_s3_client: S3Client | None = None,
        *,
        partition_strategy: PartitionFunction | None = None,
        format_row: RowFormatter | None = None,
    ) -> None:
        """See docs/v3.md for what each argument does. Makes no request.

        `partition_strategy` is another name of `partition_function`. `s3_region` to `s3_endpoint` and `s3_use_path` are
        for `get_duckdb`; everything else goes through `s3_client`. Raises InvalidOption, InvalidURI.
        """
        if not isinstance(s3_client, S3Client):
            raise InvalidOption(f"s3_client is a {type(s3_client).__name__}: give an icedb.log.S3Client.")
        function = partition_function or partition_strategy
        if function is not None and not callable(function):
            raise InvalidOption(f"{s3_client.location.uri}: partition_function must be a function from a row to text.")
        if not isinstance(compression_codec, CompressionCodec):
            raise InvalidCodec(f"{s3_client.location.uri}: compression_codec is none of {list(CompressionCodec)}.")
        self.partition_function = function
        self.format_row = format_row
        self.data_s3c = self.s3c = s3_client
        self.log_s3c = log_s3_client or s3_client
        self.custom_merge_query = custom_merge_query
        self.custom_insert_query = custom_insert_query
        self.max_threads = max_threads
        self._s3_region, self._s3_access_key, self._s3_secret_key = s3_region, s3_access_key, s3_secret_key
        self._s3_endpoint, self._s3_use_path, self._duckdb_ext_dir = s3_endpoint, s3_use_path, duckdb_ext_dir
        spec = TableSpec(
            sort_by=tuple(column_name(c) for c in sort_order),
            compression=cast("Compression", compression_codec.value.lower()),
            row_group_rows=row_group_size,
            preserve_partition=preserve_partition,
        )
        check_spec(spec, table=s3_client.location.uri)
        self._open(spec, path_safe_hostname)

    def _open(self, spec: TableSpec, host: str) -> None:
        location, log = self.data_s3c.location, self.log_s3c
        if log is not self.data_s3c:
            location = with_log(location, log.location.uri, log.storage_options)
        self._handle = Handle(open_store(location), spec, fixed_spec=True)
        self._handle.writer = writer_of(host, SystemClock())
        self._log_is_ours = False

    # ------------------------------------------------------------------------------------ rows in

    def get_schema(self, rows: Sequence[Row]) -> Schema:
        """Columns and types that these rows have, or the answer of the insert query over them."""
        handle = self._now()
        with self._staged(handle, rows, known={}) as stage:
            return schema_of(stage.columns)

    def insert(self, rows: Sequence[Row]) -> list[FileMarker]:
        """Write rows as a part for each partition, in one log file. No row is modified.

        A row's `_partition` chooses its partition, else the partition function does, before `format_row` and the insert
        query see the row. Raises SchemaConflictException and FixInput errors before anything is visible;
        CommitUncertain; the store's errors.
        """
        handle = self._writable()
        with v3_conflicts():
            prepare(handle)
        with self._staged(handle, rows, known=handle.known_schema) as stage:
            written = put_parts(stage, store=handle.store, clock=handle.clock)
        with v3_conflicts():
            commit = publish_append(handle, written)
        return [_file_marker(p) for p in commit.parts]

    @contextmanager
    def _staged(self, handle: Handle, rows: Sequence[Row], *, known: Mapping[str, str]) -> Iterator[Stage]:
        spec = handle.spec
        context = dataclasses.replace(handle.write_context(), known_schema=dict(known), lenient=bool(spec.insert_query))
        prepared = [self._prepared(handle, number, row) for number, row in enumerate(rows)]
        with (
            v3_conflicts(),
            # A query makes the table's columns of others, which may have the same names.
            open_batch(prepared, location=handle.location, known={} if spec.insert_query else known) as batch,
            stage_rows(context, batch) as stage,
        ):
            yield stage

    def _prepared(self, handle: Handle, number: int, row: Row) -> dict[str, Any]:
        """A copy of the row, formatted, with its partition."""
        if not isinstance(row, Mapping):
            raise InvalidBatch(f"{handle.table}: row {number} is a {type(row).__name__}, not a dict.")
        partition = row.get(PARTITION_COLUMN)
        if partition is None and self.partition_function is not None:
            partition = self.partition_function(row)
        if not isinstance(partition, str):
            raise InvalidPartitionValue(
                f"{handle.table}: the partition of row {number} is a {type(partition).__name__}. The partition "
                "function must return text such as 'd=2026-11-21', or the row must have it as '_partition'."
            )
        made = dict(row) if self.format_row is None else self.format_row(copy.deepcopy(dict(row)))
        return {**made, PARTITION_COLUMN: partition}

    # ------------------------------------------------------------------------------------ maintenance

    def merge(
        self, max_file_size: int = 10_000_000, max_file_count: int = 10, asc: bool = False
    ) -> tuple[str | None, FileMarker | None, str | None, list[FileMarker], LogMetadata | None]:
        """Merge parts of one partition into one; `(None, None, None, [], None)` when there is nothing to merge.

        The partition with the most parts that has something to merge (`asc`: with the fewest). Its smallest parts are
        taken until they have `max_file_size` bytes, or are `max_file_count`. The new part is None when the merge query
        left no row. Raises FixInput errors for a query that does not fit, MissingPart, CommitContended,
        CommitUncertain, the store's errors.
        """
        handle = self._writable()
        for _ in range(MERGE_ATTEMPTS_MAX):
            state = self._read(handle)
            rewrite = plan_v3_merge(
                mergeable(handle, state), max_file_size=max_file_size, max_file_count=max_file_count, asc=asc
            )
            if rewrite is None:
                return None, None, None, [], None
            with v3_conflicts():
                asking = seeing_path(handle, rewrite)
                commit = carry_out(asking, state, MergePlan((rewrite,), 0), lenient=True).commit
            if commit.key is not None:
                new = next(map(_file_marker, commit.parts), None)
                merged = [_file_marker(p) for p in commit.tombstoned]
                return commit.key, new, unquote(rewrite.partition), merged, _metadata(handle, commit)
        raise CommitContended(
            f"{handle.table}: others took the parts of {MERGE_ATTEMPTS_MAX} merges in a row. Nothing was published. "
            "Try again when fewer programs maintain it."
        )

    def tombstone_cleanup(self, min_age_ms: int) -> tuple[list[str], list[str], list[str]]:
        """Delete what was superseded that long ago: cleaned log files, deleted log files, deleted parts.

        Cleaned are the merged log files in whose place there is one now without the deleted parts. Below ten minutes
        nothing else may use the table; then it repeats until nothing is old enough. Raises GraceTooShort, DamagedLog,
        CommitContended, CommitUncertain, the store's errors.
        """
        handle = self._writable()
        with v3_conflicts():
            report = cleanup(handle, grace_ms=min_age_ms, allow_short_grace=True)
        cleaned = dict.fromkeys(k for k in report.rewritten_log_files if handle.keys.parse_log_file(k).merged)
        deleted = [k for k in report.deleted_log_files if k not in cleaned]
        return list(cleaned), deleted, list(report.deleted_parts)

    def remove_inactive_parts(self, min_age_ms: int) -> tuple[list[str], list[str], list[str]]:
        """Another name of `tombstone_cleanup`."""
        return self.tombstone_cleanup(min_age_ms)

    def remove_partitions(
        self, remove_func: Callable[[list[str]], Iterable[str]], max_files: int = 1000
    ) -> tuple[str | None, LogMetadata | None, int]:
        """Drop the partitions that a function chooses of those with parts; log file, its first line, parts dropped.

        It stops after the partition with which `max_files` parts are reached. What is not among the partitions is
        ignored. Raises CommitContended, CommitUncertain, the store's errors.
        """
        handle = self._writable()
        parts = [handle.part(m) for m in self._read(handle).live]
        stored = stored_paths(p.partition for p in parts)
        chosen = remove_func(list(stored))
        if isinstance(chosen, str) or not isinstance(chosen, Iterable):
            raise InvalidOption(f"{handle.table}: the function of remove_partitions must return a list of partitions.")
        paths: set[str] = set()
        for partition in chosen:
            paths |= stored.get(partition, frozenset())
            if sum(p.partition in paths for p in parts) >= max_files:
                break
        if not paths:
            return None, None, 0
        commit = drop_partitions(handle, sorted(paths)).commit
        return commit.key, _metadata(handle, commit), len(commit.tombstoned)

    def rewrite_partition(self, partition: str, sql: str) -> tuple[str | None, LogMetadata | None, list[str]]:
        """Put the answer of a query over `_rows` in the place of a partition's rows; the parts that it replaced.

        `(None, None, [])` when there is no such partition. Raises InvalidQuery, SchemaConflictException,
        CommitContended, CommitUncertain, the store's errors.
        """
        handle = self._writable()
        live = [handle.part(m).partition for m in self._read(handle).live]
        paths = stored_paths(live).get(partition, frozenset({partition}.intersection(live)))
        if not paths:
            return None, None, []
        with v3_conflicts():
            writer = partial(write_answer, new_columns=True, lenient=True)
            commit = rewrite_partition(handle, min(paths), sql, writer=writer).commit
        return commit.key, _metadata(handle, commit), [p.key for p in commit.tombstoned]

    # ------------------------------------------------------------------------------------ DuckDB

    def get_duckdb(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads the bucket: httpfs and the credentials. Raises StoreUnavailable, InvalidOption."""
        con = duckdb.connect(":memory:")
        settings = {"extension_directory": self._duckdb_ext_dir}
        _apply(con, settings)
        if self.max_threads is not None:
            con.execute(f"SET threads = {int(self.max_threads)}")
        load_httpfs(con)
        _apply(con, self._s3_settings())
        return con

    def _s3_settings(self) -> dict[str, str | None]:
        location = self.data_s3c.location
        found = location.credentials()
        scheme, _, host = (self._s3_endpoint or location.endpoint or "").rpartition("://")
        return {
            "s3_region": self._s3_region or location.region or "us-east-1",
            "s3_access_key_id": self._s3_access_key or (found.access_key_id if found else None),
            "s3_secret_access_key": self._s3_secret_key or (found.secret_access_key if found else None),
            "s3_session_token": None if self._s3_access_key or not found else found.session_token,
            "s3_endpoint": host or None,
            "s3_use_ssl": "false" if scheme == "http" else None,
            "s3_url_style": "path" if self._s3_use_path else None,
        }

    # ------------------------------------------------------------------------------------ the table

    def _now(self) -> Handle:
        """The table with the queries that the program has assigned by now."""
        spec = msgspec.structs.replace(
            self._handle.spec,
            insert_query=self.custom_insert_query or "",
            merge_query=self.custom_merge_query or "",
        )
        if spec != self._handle.spec:
            self._handle = self._handle.with_spec(spec)
        return self._handle

    def _writable(self) -> Handle:
        handle = self._now()
        if not self._log_is_ours:
            check_log_place(handle)
            claim_log(handle)
            self._log_is_ours = True
        handle.check_writable()
        return handle

    def _read(self, handle: Handle) -> LogState:
        with v3_conflicts():
            return handle.read(fresh=True)


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
