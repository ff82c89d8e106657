"""The log API of IceDB v3, with its names and behaviour, over this library's own log.

`IceLogIO` reads, lists and appends log files. `S3Client` has their address. Both are facades over
`icedb.transaction.log_reader`, `icedb.format` and `icedb.transaction.append`. New programs use `icedb.Table`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from icedb.errors import CommitConflict, CommitStateUnknown, CorruptLog, InvalidArgument, InvalidOption, InvalidURI
from icedb.format.codec import VERSION, decode, encode
from icedb.format.column_times import schema_at
from icedb.format.keys import has_reserved_end, has_unsafe_segment
from icedb.format.records import LogFile, LogTombstoneRecord, Marker
from icedb.format.replay import TableState, live_markers, replay
from icedb.format.table_spec import TableSpec
from icedb.sql.types import check_columns, checked_type
from icedb.storage.location import Location, parse_location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.transaction.append import PutOutcome, put_if_absent
from icedb.transaction.separate_log import find_log_owner
from icedb.transaction.table_handle import Handle
from icedb.transaction.table_place import check_address
from icedb.util.arguments import checks_arguments
from icedb.util.clock import Clock, SystemClock
from icedb.v3.log_records import (
    FileMarker,
    FileMarkerFromJSON,
    LogMetadata,
    LogMetadataFromJSON,
    LogTombstone,
    LogTombstoneFromJSON,
    NoLogFilesException,
    Schema,
    SchemaConflictException,
    get_log_file_info,
    schema_of,
    v3_conflicts,
)

__all__ = [
    "FileMarker",
    "FileMarkerFromJSON",
    "IceLogIO",
    "LogMetadata",
    "LogMetadataFromJSON",
    "LogTombstone",
    "LogTombstoneFromJSON",
    "NoLogFilesException",
    "S3Client",
    "Schema",
    "SchemaConflictException",
    "get_log_file_info",
    "metadata_of",
    "sources",
    "writer_of",
]

# An attempt is lost to a log file that this object put in the same millisecond.
APPEND_ATTEMPTS_MAX = 20
# 13 digits, as in the name of a log file.
TIMESTAMP_MS_MAX = 9_999_999_999_999
# Long enough to recognize the host, short enough for a file name.
HOST_CHARS_MAX = 100
_WHOLE = "Give a whole number, such as round(time.time() * 1000)."


@checks_arguments
class S3Client:
    """The address of a table in S3, and the credentials. `s3` is a boto3 client with path addressing.

    Without a key pair, boto3's credential chain is used. An empty `s3prefix` means the bucket's root. Raises
    InvalidURI, InvalidOption.
    """

    def __init__(
        self,
        s3prefix: str | None,
        s3bucket: str,
        s3region: str | None = None,
        s3endpoint: str | None = None,
        s3accesskey: str | None = None,
        s3secretkey: str | None = None,
    ) -> None:
        if not s3bucket or "/" in s3bucket:
            raise InvalidURI(f"'{s3bucket}' is no bucket name. Give the bucket alone, and the path as s3prefix.")
        if has_reserved_end((s3prefix or "").split("/")):
            raise InvalidURI(
                f"'{s3prefix}' cannot be a table's prefix: a segment of it ends in '_data' or '_log', which programs "
                "of IceDB v3 use to parse keys. Choose another prefix."
            )
        options = {
            "AWS_REGION": s3region,
            "AWS_ENDPOINT_URL": s3endpoint,
            "AWS_ACCESS_KEY_ID": s3accesskey,
            "AWS_SECRET_ACCESS_KEY": s3secretkey,
        }
        self.storage_options = {name: value for name, value in options.items() if value}
        self.location: Location = parse_location(f"s3://{s3bucket}/{s3prefix or ''}", self.storage_options)
        self._table: Handle | None = None
        self._is_known = False
        self.s3prefix = self.location.prefix
        self.s3bucket = s3bucket

    def __repr__(self) -> str:
        return f"S3Client({self.location.uri!r})"

    @cached_property
    def session(self) -> Any:
        """The boto3 session. Created on first use: it takes half a second, and the log does not need it."""
        import boto3

        return boto3.Session(
            aws_access_key_id=self.storage_options.get("AWS_ACCESS_KEY_ID"),
            aws_secret_access_key=self.storage_options.get("AWS_SECRET_ACCESS_KEY"),
            region_name=self.storage_options.get("AWS_REGION"),
        )

    @cached_property
    def s3(self) -> Any:
        """The boto3 client for the program's own requests."""
        from botocore.config import Config

        endpoint_url = self.storage_options.get("AWS_ENDPOINT_URL")
        return self.session.client("s3", endpoint_url=endpoint_url, config=Config(s3={"addressing_style": "path"}))

    @property
    def table(self) -> Handle:
        """The table whose log is at this address. If its parts are in another store, the log has their address."""
        if self._table is None or not self._is_known:
            self._table = self._find_table(self._table)
        return self._table

    def _find_table(self, before: Handle | None) -> Handle:
        store = open_store(self.location)
        try:
            owner = find_log_owner(store)
        except ObjectNotFound:  # the table may not have been inserted into yet
            return before or Handle.of(store, TableSpec(), fixed_spec=True)
        self._is_known = True
        if owner is not None:
            # Parts are not read; only their keys are compared.
            root = owner.root if owner.scheme == "s3" else self.location.root
            data = replace(self.location, root=root, prefix=owner.prefix)
            store = open_store(replace(data, log=self.location))
        elif before is not None:
            return before
        return Handle.of(store, TableSpec(), fixed_spec=True)


def writer_of(path_safe_hostname: str, clock: Clock) -> str:
    """Return a writer name that begins with the v3 program's host and is unique to the process."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", str(path_safe_hostname))[:HOST_CHARS_MAX] or "host"
    return f"{host}-{os.getpid()}-{clock.new_id()[:12]}"


def file_marker(marker: Marker, *, source: str | None = None, tombstone: int | None = None) -> FileMarker:
    """Convert a marker to v3."""
    v3_marker = FileMarker(marker.key, marker.created_ms, marker.bytes, tombstone)
    v3_marker.vir_source_log_file = source
    return v3_marker


def metadata_of(body: bytes) -> LogMetadata:
    """Parse the first line of a log file."""
    return LogMetadataFromJSON(body.split(b"\n", 1)[0].decode())


@checks_arguments
class IceLogIO:
    """The reader and writer of log files of v3. The names of new log files contain `path_safe_hostname`."""

    def __init__(self, path_safe_hostname: str) -> None:
        self.path_safe_hostname = path_safe_hostname
        self._clock = SystemClock()
        self._writer = writer_of(path_safe_hostname, self._clock)
        self._last_ms = 0

    def read_at_max_time(
        self, s3client: S3Client, timestamp: int
    ) -> tuple[Schema, list[FileMarker], list[LogTombstone], list[str]]:
        """Return schema, live and tombstoned parts, log tombstones and log files as of a time in unix milliseconds.

        A log file of exactly that time is included. The schema has the columns of that time. Log tombstones are those
        of existing log files. Raises NoLogFilesException, SnapshotExpired, SchemaConflictException, CorruptLog, the
        store's errors.
        """
        with v3_conflicts():
            state = s3client.table.read(fresh=True)
        live = {m.key for m in live_markers(state, timestamp)}  # first: it raises SnapshotExpired
        keys = sorted(k for k in state.listed_ms if s3client.table.keys.parse_log_file(k).t_ms <= timestamp)
        if not keys:
            raise NoLogFilesException
        markers = [
            file_marker(m, source=source, tombstone=None if m.key in live else m.tombstoned_ms)
            for m, source in _decided(state)
            if m.created_ms <= timestamp
        ]
        tombstones = [
            LogTombstone(key, t)
            for key, t in sorted(state.log_tombstones.items())
            if t <= timestamp and key in state.listed_ms
        ]
        return schema_of(schema_at(state, timestamp)), markers, tombstones, keys

    def read_log_forward(
        self, s3client: S3Client, log_files: Sequence[str]
    ) -> tuple[Schema, list[FileMarker], list[LogTombstone]]:
        """Replay these log files and no others. Raises InvalidOption if one does not exist."""
        fetched = [(key, s3client.table.log.fetch(key)) for key in sorted(set(log_files))]
        if missing_keys := [key for key, stored in fetched if stored is None]:
            raise InvalidOption(
                f"{s3client.table.table}: the log file '{missing_keys[0]}' does not exist (any more). List them again."
            )
        with v3_conflicts():
            state = replay([stored for _, stored in fetched if stored is not None], table=s3client.table.table)
        markers = [file_marker(m, source=source, tombstone=m.tombstoned_ms) for m, source in _decided(state)]
        return schema_of(state.schema), markers, [LogTombstone(k, t) for k, t in sorted(state.log_tombstones.items())]

    def get_current_log_files(self, s3client: S3Client) -> list[dict[str, Any]]:
        """Return the existing log files in boto3's shape: 'Key', 'Size', 'LastModified'."""
        return [
            {"Key": i.key, "Size": i.bytes, "LastModified": datetime.fromtimestamp(i.stored_ms / 1000, UTC)}
            for i in s3client.table.store.list(s3client.table.keys.log_prefix)
        ]

    def append(
        self,
        s3client: S3Client,
        version: int | str,
        schema: Schema,
        files: Iterable[FileMarker],
        tombstones: Iterable[LogTombstone] | None = None,
        merged: bool = False,
        timestamp: int | None = None,
    ) -> tuple[str, LogMetadata]:
        """Publish a log file with these markers. Return its key and its first line. Nothing is overwritten.

        Raises InvalidOption for markers that no log file can hold, for a `timestamp` that exists, and for tombstones in
        a log with exclusive commits; SchemaConflictException; CommitConflict, CommitStateUnknown, the store's errors.
        """
        handle = s3client.table
        files, tombstones = list(files), list(() if tombstones is None else tombstones)
        for name, records, type_ in (("files", files, FileMarker), ("tombstones", tombstones, LogTombstone)):
            if not all(isinstance(record, type_) for record in records):
                raise InvalidArgument(f"{handle.table}: {name} must be a list of {type_.__name__}.")
        # In DuckDB's spelling, because other programs compare the texts.
        types = {c: checked_type(t, what=f"column '{c}'", table=handle.table) for c, t in schema.pairs()}
        file = LogFile(
            t_ms=0,
            schema=types,
            markers=tuple(Marker(f.path, f.fileBytes, f.createdMS, tombstoned_ms=f.tombstone) for f in files),
            tombstones=tuple(LogTombstoneRecord(t.path, t.createdMS) for t in tombstones),
        )
        _check_markers(handle, file)
        self._check(handle, version, file)
        handle.check_writable()
        if timestamp is not None:
            key, body = self._encode(handle, file, timestamp, merged=merged)
            _check_absent(handle, key)
            outcomes: Iterator[tuple[str, bytes]] = iter([(key, body)])
        else:
            outcomes = self._next(handle, file, merged=merged)
        for key, body in outcomes:
            match put_if_absent(handle.store, key, body):
                case PutOutcome.CREATED:
                    return key, metadata_of(body)
                case PutOutcome.NOT_FOUND:
                    raise CommitStateUnknown(
                        f"{handle.table}: '{key}' may or may not have been published. List the log."
                    )
        raise CommitConflict(f"{handle.table}: '{key}' was put by another writer meanwhile. Retry the append.")

    def _next(self, handle: Handle, file: LogFile, *, merged: bool) -> Iterator[tuple[str, bytes]]:
        for _ in range(APPEND_ATTEMPTS_MAX):
            self._last_ms = max(self._clock.now_ms(), self._last_ms + 1)
            yield self._encode(handle, file, self._last_ms, merged=merged)

    def _encode(self, handle: Handle, file: LogFile, timestamp: int, *, merged: bool) -> tuple[str, bytes]:
        if not isinstance(timestamp, int) or not 0 <= timestamp <= TIMESTAMP_MS_MAX:
            raise InvalidOption(
                f"{handle.table}: the timestamp {timestamp!r} is no time in unix milliseconds. {_WHOLE}"
            )
        stamped = LogFile(timestamp, file.schema, file.markers, file.tombstones)
        key = handle.keys.log_file(timestamp, merged=merged or stamped.carries_tombstones, writer=self._writer)
        body = encode(stamped)
        try:
            decode(body, key, handle.keys)  # an unreadable file must not become part of the log
        except CorruptLog as error:
            raise InvalidOption(f"{handle.table}: no log file can hold that: {error}") from None
        return key, body

    def _check(self, handle: Handle, version: int | str, file: LogFile) -> None:
        if str(version) != str(VERSION):
            raise InvalidOption(f"{handle.table}: log files of version {version!r} cannot be written; give {VERSION}.")
        with v3_conflicts():
            state = handle.read(fresh=True)
            if not state.files:  # the first append makes the table
                check_address(handle)
            check_columns(file.schema, state.schema, table=handle.table)
        if file.carries_tombstones and state.epoch:
            raise InvalidOption(
                f"{handle.table}: the log has exclusive commits, and readers ignore other tombstones then. Use merge, "
                "remove_partitions or rewrite_partition of IceDBv3."
            )


def _check_markers(handle: Handle, file: LogFile) -> None:
    """Check the caller's arguments, so that an error names them and not a corrupt log file."""
    table, keys = handle.table, handle.keys
    for number, marker in enumerate(file.markers):
        _check_path(table, f"files[{number}]", marker.key, keys.data_prefix)
        times = {"createdMS": marker.created_ms, "fileBytes": marker.bytes, "tombstone": marker.tombstoned_ms or 0}
        for name, value in times.items():
            _check_whole(table, f"files[{number}].{name}", value)
    for number, tombstone in enumerate(file.tombstones):
        _check_path(table, f"tombstones[{number}]", tombstone.key, keys.log_prefix)
        _check_whole(table, f"tombstones[{number}].createdMS", tombstone.created_ms)


def _check_path(table: str, what: str, path: object, prefix: str) -> None:
    if not isinstance(path, str) or not path.startswith(prefix) or has_unsafe_segment(path[len(prefix) :].split("/")):
        raise InvalidOption(f"{table}: the path of {what} is {path!r}. Give the key of an object below '{prefix}'.")


def _check_whole(table: str, what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidOption(f"{table}: {what} is {value!r}. {_WHOLE}")


def _check_absent(handle: Handle, key: str) -> None:
    try:
        handle.store.head(key)
    except ObjectNotFound:
        return
    raise InvalidOption(f"{handle.table}: the log file '{key}' exists already. Give another timestamp, or none.")


def sources(state: TableState) -> dict[str, str]:
    """Return the deciding log file of each part: the last that names a live part, or that tombstones a dead one."""
    return {
        m.key: key
        for key, stored in state.effective.items()
        for m in stored.file.markers
        if m.tombstoned_ms is not None or state.parts[m.key].tombstoned_ms is None
    }


def _decided(state: TableState) -> list[tuple[Marker, str]]:
    """Return each part with its deciding log file."""
    source = sources(state)
    return [(marker, source[key]) for key, marker in sorted(state.parts.items())]
