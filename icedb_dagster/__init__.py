"""IceDB in Dagster: tables as assets, maintenance as jobs, sensors and checks, a lock, places for Spark programs."""

from __future__ import annotations

try:
    import dagster as _dagster  # noqa: F401
except ImportError as _error:
    if _error.name != "dagster":
        raise  # it is there, and something else is wrong with it
    raise ImportError(
        "icedb_dagster needs Dagster, which the plain installation leaves out. "
        "Install it with: pip install 'icedb-dagster[dagster]' (and [spark] for Spark assets)."
    ) from None

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
from icedb_dagster.component import IceDBTable
from icedb_dagster.emr import EmrServerlessSpark, EmrSpark
from icedb_dagster.io_manager import IceDBIOManager
from icedb_dagster.locks import ensure_pool, icedb_pool
from icedb_dagster.maintenance import TimeToLive, build_table_definitions
from icedb_dagster.progress import spark_progress
from icedb_dagster.resource import IceDBResource
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor
from icedb_dagster.spark import ConnectSpark, LocalSpark, SparkPlace, StandaloneSpark
from icedb_dagster.specs import build_observation, observable_table, table_spec

__all__ = [
    "CommitsSensor",
    "ConnectSpark",
    "EmrServerlessSpark",
    "EmrSpark",
    "FreshnessCheck",
    "HorizonCheck",
    "IceDBIOManager",
    "IceDBResource",
    "IceDBTable",
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
    "TimeToLive",
    "build_observation",
    "build_table_checks",
    "build_table_definitions",
    "ensure_pool",
    "icedb_pool",
    "observable_table",
    "spark_progress",
    "table_spec",
]
