"""IceDB: an open table format for event data. Parquet parts, an append-only JSONL log, DuckDB.

`Table` is the front door, `Snapshot` what a reader holds, `icedb.errors` everything that can go wrong. The names of
IceDB v3 (`IceDBv3`, `IceLogIO`, ...) are here too. Each name is loaded when somebody first asks for it, and with it
what stands behind it: Arrow, DuckDB, the object store's client. To import this package alone loads none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from icedb.errors import IceDBError

if TYPE_CHECKING:
    from icedb.buffering.submissions import Acknowledged, BufferStats
    from icedb.buffering.writer import BufferedWriter
    from icedb.changes import Changes
    from icedb.commit import Commit
    from icedb.diff import Diff
    from icedb.exporting.delta import DeltaReport
    from icedb.exporting.parquet import ParquetExportReport
    from icedb.foreseeing import Foreseen
    from icedb.handle import Part
    from icedb.history import CommitInfo
    from icedb.icedb import CompressionCodec, IceDBv3
    from icedb.log import (
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
    from icedb.maintenance.adopt import ImportReport
    from icedb.maintenance.audit import Problem
    from icedb.maintenance.cleanup import CleanupReport
    from icedb.maintenance.condition import Condition, Recommendation, Thresholds
    from icedb.maintenance.delete import DeleteReport
    from icedb.maintenance.drop import DropReport
    from icedb.maintenance.merge import MergeReport, Tiers
    from icedb.maintenance.orphans import SweepReport
    from icedb.maintenance.pins import Pin
    from icedb.maintenance.repair import RepairReport
    from icedb.maintenance.repair_spec import SpecRepairReport
    from icedb.maintenance.restore import RestoreReport
    from icedb.maintenance.rewrite import RewriteReport
    from icedb.maintenance.verify import VerifyReport
    from icedb.options import Timing
    from icedb.result import QueryResult
    from icedb.snapshot import Snapshot
    from icedb.spec import Aggregating, Dedup, Replacing
    from icedb.table import Table

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
    "Condition",
    "Dedup",
    "DeleteReport",
    "DeltaReport",
    "Diff",
    "DropReport",
    "FileMarker",
    "FileMarkerFromJSON",
    "Foreseen",
    "IceDBError",
    "IceDBv3",
    "IceLogIO",
    "ImportReport",
    "LogMetadata",
    "LogMetadataFromJSON",
    "LogTombstone",
    "LogTombstoneFromJSON",
    "MergeReport",
    "NoLogFilesException",
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
    "SweepReport",
    "Table",
    "Thresholds",
    "Tiers",
    "Timing",
    "VerifyReport",
    "get_log_file_info",
]

__version__ = "0.1.0"

# Where a name is; what is not here is loaded already.
_HOMES = {
    "icedb.buffering.submissions": ("Acknowledged", "BufferStats"),
    "icedb.buffering.writer": ("BufferedWriter",),
    "icedb.changes": ("Changes",),
    "icedb.commit": ("Commit",),
    "icedb.diff": ("Diff",),
    "icedb.exporting.delta": ("DeltaReport",),
    "icedb.exporting.parquet": ("ParquetExportReport",),
    "icedb.foreseeing": ("Foreseen",),
    "icedb.handle": ("Part",),
    "icedb.history": ("CommitInfo",),
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
    "icedb.maintenance.adopt": ("ImportReport",),
    "icedb.maintenance.audit": ("Problem",),
    "icedb.maintenance.cleanup": ("CleanupReport",),
    "icedb.maintenance.condition": ("Condition", "Recommendation", "Thresholds"),
    "icedb.maintenance.delete": ("DeleteReport",),
    "icedb.maintenance.drop": ("DropReport",),
    "icedb.maintenance.merge": ("MergeReport", "Tiers"),
    "icedb.maintenance.orphans": ("SweepReport",),
    "icedb.maintenance.pins": ("Pin",),
    "icedb.maintenance.repair": ("RepairReport",),
    "icedb.maintenance.repair_spec": ("SpecRepairReport",),
    "icedb.maintenance.restore": ("RestoreReport",),
    "icedb.maintenance.rewrite": ("RewriteReport",),
    "icedb.maintenance.verify": ("VerifyReport",),
    "icedb.options": ("Timing",),
    "icedb.result": ("QueryResult",),
    "icedb.snapshot": ("Snapshot",),
    "icedb.spec": ("Aggregating", "Dedup", "Replacing"),
    "icedb.table": ("Table",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # which knows all names, and shall tell those that are none

    def __getattr__(name: str) -> object:
        """A public name that nobody has asked for before."""
        if name not in _HOME:
            raise AttributeError(f"module 'icedb' has no attribute {name!r}")
        found: object = getattr(import_module(_HOME[name]), name)
        globals()[name] = found  # the next one who asks does not come here
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
