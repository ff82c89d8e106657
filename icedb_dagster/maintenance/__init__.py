"""A table's maintenance as Dagster jobs. docs/maintenance.md describes each job and how to run it."""

from icedb_dagster.maintenance.configs import (
    CleanupConfig,
    DeleteConfig,
    ExportConfig,
    MergeConfig,
    MergeLogConfig,
    OrphansConfig,
    RestoreConfig,
    RewriteConfig,
    TtlConfig,
    VerifyConfig,
)
from icedb_dagster.maintenance.definitions import build_table_definitions
from icedb_dagster.maintenance.exports import TableExport
from icedb_dagster.maintenance.run_retention import build_run_retention
from icedb_dagster.maintenance.time_to_live import TimeToLive

__all__ = [
    "CleanupConfig",
    "DeleteConfig",
    "ExportConfig",
    "MergeConfig",
    "MergeLogConfig",
    "OrphansConfig",
    "RestoreConfig",
    "RewriteConfig",
    "TableExport",
    "TimeToLive",
    "TtlConfig",
    "VerifyConfig",
    "build_run_retention",
    "build_table_definitions",
]
