"""The import path of the log's API of IceDB v3; the code is in `icedb.v3.log_io` and `icedb.v3.log_records`."""

from icedb.v3.log_io import (
    FileMarker,
    FileMarkerFromJSON,
    IceLogIO,
    LogMetadata,
    LogMetadataFromJSON,
    LogTombstone,
    LogTombstoneFromJSON,
    NoLogFilesException,
    S3Client,
    Schema,
    SchemaConflictException,
    get_log_file_info,
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
]
