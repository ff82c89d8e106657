"""IceDB: an open table format for event data. Parquet parts, an append-only JSONL log, DuckDB.

`Table` is the front door, `Snapshot` what a reader holds, `icedb.errors` everything that can go wrong. The names of
IceDB v3 (`IceDBv3`, `IceLogIO`, ...) are here too, and are loaded when somebody asks for one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from icedb.changes import Changes
from icedb.commit import Commit
from icedb.errors import IceDBError
from icedb.handle import Part
from icedb.maintenance.adopt import ImportReport
from icedb.maintenance.audit import Problem
from icedb.maintenance.cleanup import CleanupReport
from icedb.maintenance.condition import Condition, Recommendation, Thresholds
from icedb.maintenance.delete import DeleteReport
from icedb.maintenance.drop import DropReport
from icedb.maintenance.merge import MergeReport
from icedb.maintenance.orphans import SweepReport
from icedb.maintenance.pins import Pin
from icedb.maintenance.repair import RepairReport
from icedb.maintenance.restore import RestoreReport
from icedb.maintenance.rewrite import RewriteReport
from icedb.maintenance.verify import VerifyReport
from icedb.options import Timing
from icedb.result import QueryResult
from icedb.snapshot import Snapshot
from icedb.spec import Aggregating, Dedup, Replacing
from icedb.table import Table

if TYPE_CHECKING:
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

__all__ = [
    "Aggregating",
    "Changes",
    "CleanupReport",
    "Commit",
    "CompressionCodec",
    "Condition",
    "Dedup",
    "DeleteReport",
    "DropReport",
    "FileMarker",
    "FileMarkerFromJSON",
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
    "SweepReport",
    "Table",
    "Thresholds",
    "Timing",
    "VerifyReport",
    "get_log_file_info",
]

__version__ = "0.1.0"

_V3_FACADE = frozenset(("CompressionCodec", "IceDBv3"))
_V3_LOG = frozenset((
    "FileMarker", "FileMarkerFromJSON", "IceLogIO", "LogMetadata", "LogMetadataFromJSON", "LogTombstone",
    "LogTombstoneFromJSON", "NoLogFilesException", "S3Client", "Schema", "SchemaConflictException", "get_log_file_info",
))  # fmt: skip


def __getattr__(name: str) -> object:
    """The names of IceDB v3: programs that do not use them need not load what is behind them."""
    if name not in _V3_FACADE | _V3_LOG:
        raise AttributeError(f"module 'icedb' has no attribute {name!r}")
    return getattr(import_module("icedb.icedb" if name in _V3_FACADE else "icedb.log"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
