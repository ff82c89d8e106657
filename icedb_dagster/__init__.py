"""IceDB in Dagster: tables as assets, maintenance jobs, sensors, checks, a table lock, and places for Spark programs.

Each public name is imported on first access. Dagster's web server and daemon load only the run launcher, and neither
Arrow nor DuckDB.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

try:
    import dagster as _dagster  # noqa: F401
except ImportError as _error:
    if _error.name != "dagster":
        raise  # Dagster is installed, but one of its imports failed
    raise ImportError(
        "icedb_dagster needs the optional dependency Dagster, which is not installed. "
        "Install it with: pip install 'icedb-dagster[dagster]' ([dagster-spark] for Spark assets)."
    ) from None

if TYPE_CHECKING:
    from icedb_dagster.checks import (
        FreshnessCheck,
        HorizonCheck,
        LogDepthCheck,
        ObjectsCheck,
        QuarantineCheck,
        SchemaCheck,
        SmallPartsCheck,
        TableChecks,
        build_table_checks,
    )
    from icedb_dagster.component import IceDBResourceComponent, IceDBTableComponent
    from icedb_dagster.compute.emr import EmrServerlessSpark, EmrSpark
    from icedb_dagster.compute.spark_places import ConnectSpark, LocalSpark, SparkPlace, StandaloneSpark
    from icedb_dagster.io.io_manager import IceDBIOManager
    from icedb_dagster.locking.table_lock import ensure_pool, icedb_pool
    from icedb_dagster.maintenance import TableExport, TimeToLive, build_run_retention, build_table_definitions
    from icedb_dagster.metadata.spark_progress import spark_progress
    from icedb_dagster.resource import IceDBResource
    from icedb_dagster.sensors import (
        CommitsSensor,
        FailedRun,
        MaintenanceSensor,
        build_run_failure_sensor,
        share_sensors,
    )
    from icedb_dagster.specs import build_observation, observable_table, table_spec
    from icedb_dagster.sql_assets import sql_asset

__all__ = [
    "CommitsSensor",
    "ConnectSpark",
    "EmrServerlessSpark",
    "EmrSpark",
    "FailedRun",
    "FreshnessCheck",
    "HorizonCheck",
    "IceDBIOManager",
    "IceDBResource",
    "IceDBResourceComponent",
    "IceDBTableComponent",
    "LocalSpark",
    "LogDepthCheck",
    "MaintenanceSensor",
    "ObjectsCheck",
    "QuarantineCheck",
    "SchemaCheck",
    "SmallPartsCheck",
    "SparkPlace",
    "StandaloneSpark",
    "TableChecks",
    "TableExport",
    "TimeToLive",
    "build_observation",
    "build_run_failure_sensor",
    "build_run_retention",
    "build_table_checks",
    "build_table_definitions",
    "ensure_pool",
    "icedb_pool",
    "observable_table",
    "share_sensors",
    "spark_progress",
    "sql_asset",
    "table_spec",
]

# The modules that define the public names.
_HOMES = {
    "icedb_dagster.checks": (
        "FreshnessCheck",
        "HorizonCheck",
        "LogDepthCheck",
        "ObjectsCheck",
        "QuarantineCheck",
        "SchemaCheck",
        "SmallPartsCheck",
        "TableChecks",
        "build_table_checks",
    ),
    "icedb_dagster.component": ("IceDBResourceComponent", "IceDBTableComponent"),
    "icedb_dagster.compute.emr": ("EmrServerlessSpark", "EmrSpark"),
    "icedb_dagster.io.io_manager": ("IceDBIOManager",),
    "icedb_dagster.locking.table_lock": ("ensure_pool", "icedb_pool"),
    "icedb_dagster.maintenance": ("TableExport", "TimeToLive", "build_run_retention", "build_table_definitions"),
    "icedb_dagster.metadata.spark_progress": ("spark_progress",),
    "icedb_dagster.resource": ("IceDBResource",),
    "icedb_dagster.sensors": (
        "CommitsSensor",
        "FailedRun",
        "MaintenanceSensor",
        "build_run_failure_sensor",
        "share_sensors",
    ),
    "icedb_dagster.compute.spark_places": ("ConnectSpark", "LocalSpark", "SparkPlace", "StandaloneSpark"),
    "icedb_dagster.specs": ("build_observation", "observable_table", "table_spec"),
    "icedb_dagster.sql_assets": ("sql_asset",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker has all names, and must report unknown ones

    def __getattr__(name: str) -> object:
        """Import a public name on first access."""
        if name not in _HOME:
            raise AttributeError(f"module 'icedb_dagster' has no attribute {name!r}")
        value: object = getattr(import_module(_HOME[name]), name)
        globals()[name] = value  # later accesses do not call this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
