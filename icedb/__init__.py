"""IceDB: an open table format for event data. Parquet parts, an append-only JSONL log, DuckDB.

Begin with `Table`. Its `snapshot` method returns a `Snapshot`, the state of a table at one time. `icedb.errors` defines
all errors. The API of IceDB v3 (`IceDBv3`, `IceLogIO`, ...) is also exported here.

Each name is imported on first access, together with its dependencies (Arrow, DuckDB, the object store's client).
`import icedb` alone imports none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from icedb.errors import IceDBError

if TYPE_CHECKING:
    from icedb.buffering.submissions import Acknowledged, BufferStats
    from icedb.buffering.writer import BufferedWriter
    from icedb.format.table_spec import Aggregating, Dedup, Replacing
    from icedb.format.timing import Timing
    from icedb.operations.commits.drop_partitions import DropReport
    from icedb.operations.export.delta import DeltaReport
    from icedb.operations.export.iceberg import IcebergReport
    from icedb.operations.export.parquet import ParquetExportReport
    from icedb.operations.health.table_health import Recommendation, TableHealth, Thresholds
    from icedb.operations.importing.import_files import ImportReport
    from icedb.operations.integrity.log_audit import Problem
    from icedb.operations.integrity.repair_spec import SpecRepairReport
    from icedb.operations.integrity.repair_types import RepairReport
    from icedb.operations.integrity.verify import VerifyReport
    from icedb.operations.retention.cleanup import CleanupReport
    from icedb.operations.retention.orphans import OrphansReport
    from icedb.operations.retention.restore import RestoreReport
    from icedb.operations.rewrite.delete import DeleteReport
    from icedb.operations.rewrite.merge import MergeReport, TieredMerge
    from icedb.operations.rewrite.rewrite_partition import RewriteReport
    from icedb.operations.upsert.update import UpdateReport
    from icedb.operations.upsert.upsert import UpsertReport
    from icedb.operations.write.write_plan import WritePlan
    from icedb.reader.changes import Changes
    from icedb.reader.diff import Diff
    from icedb.reader.history import CommitInfo
    from icedb.reader.snapshot import Snapshot
    from icedb.sql.query_result import QueryResult
    from icedb.storage.parts import Part
    from icedb.table import Table
    from icedb.transaction.append import Commit
    from icedb.transaction.pin_objects import Pin
    from icedb.v3.icedb_v3 import CompressionCodec, IceDBv3
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
    "Acknowledged",
    "Aggregating",
    "BufferStats",
    "BufferedWriter",
    "Changes",
    "CleanupReport",
    "Commit",
    "CommitInfo",
    "CompressionCodec",
    "Dedup",
    "DeleteReport",
    "DeltaReport",
    "Diff",
    "DropReport",
    "FileMarker",
    "FileMarkerFromJSON",
    "IceDBError",
    "IceDBv3",
    "IceLogIO",
    "IcebergReport",
    "ImportReport",
    "LogMetadata",
    "LogMetadataFromJSON",
    "LogTombstone",
    "LogTombstoneFromJSON",
    "MergeReport",
    "NoLogFilesException",
    "OrphansReport",
    "ParquetExportReport",
    "Part",
    "Pin",
    "Problem",
    "QueryResult",
    "Recommendation",
    "RepairReport",
    "Replacing",
    "RestoreReport",
    "RewriteReport",
    "S3Client",
    "Schema",
    "SchemaConflictException",
    "Snapshot",
    "SpecRepairReport",
    "Table",
    "TableHealth",
    "Thresholds",
    "TieredMerge",
    "Timing",
    "UpdateReport",
    "UpsertReport",
    "VerifyReport",
    "WritePlan",
    "get_log_file_info",
]

__version__ = "0.1.0"

# Module -> the public names that are imported from it on first access. Other names are imported eagerly.
_LAZY_NAMES = {
    "icedb.buffering.submissions": ("Acknowledged", "BufferStats"),
    "icedb.buffering.writer": ("BufferedWriter",),
    "icedb.reader.changes": ("Changes",),
    "icedb.transaction.append": ("Commit",),
    "icedb.reader.diff": ("Diff",),
    "icedb.operations.export.delta": ("DeltaReport",),
    "icedb.operations.export.iceberg": ("IcebergReport",),
    "icedb.operations.export.parquet": ("ParquetExportReport",),
    "icedb.operations.write.write_plan": ("WritePlan",),
    "icedb.storage.parts": ("Part",),
    "icedb.reader.history": ("CommitInfo",),
    "icedb.icedb": ("CompressionCodec", "IceDBv3"),
    "icedb.log": (
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
    ),
    "icedb.operations.importing.import_files": ("ImportReport",),
    "icedb.operations.integrity.log_audit": ("Problem",),
    "icedb.operations.retention.cleanup": ("CleanupReport",),
    "icedb.operations.health.table_health": ("TableHealth", "Recommendation", "Thresholds"),
    "icedb.operations.rewrite.delete": ("DeleteReport",),
    "icedb.operations.commits.drop_partitions": ("DropReport",),
    "icedb.operations.rewrite.merge": ("MergeReport", "TieredMerge"),
    "icedb.operations.retention.orphans": ("OrphansReport",),
    "icedb.transaction.pin_objects": ("Pin",),
    "icedb.operations.integrity.repair_types": ("RepairReport",),
    "icedb.operations.integrity.repair_spec": ("SpecRepairReport",),
    "icedb.operations.retention.restore": ("RestoreReport",),
    "icedb.operations.rewrite.rewrite_partition": ("RewriteReport",),
    "icedb.operations.upsert.update": ("UpdateReport",),
    "icedb.operations.upsert.upsert": ("UpsertReport",),
    "icedb.operations.integrity.verify": ("VerifyReport",),
    "icedb.format.timing": ("Timing",),
    "icedb.sql.query_result": ("QueryResult",),
    "icedb.reader.snapshot": ("Snapshot",),
    "icedb.format.table_spec": ("Aggregating", "Dedup", "Replacing"),
    "icedb.table": ("Table",),
}
_MODULE_OF = {name: module for module, names in _LAZY_NAMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept every attribute

    def __getattr__(name: str) -> object:
        """Import a public name on first access."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'icedb' has no attribute {name!r}")
        value: object = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # later accesses skip this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
