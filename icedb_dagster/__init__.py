"""IceDB in Dagster: tables as assets, maintenance as jobs, a pool as each table's lock, places for Spark programs."""

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

from icedb_dagster.emr import EmrServerlessSpark, EmrSpark
from icedb_dagster.io_manager import IceDBIOManager
from icedb_dagster.locks import ensure_pool, icedb_pool
from icedb_dagster.maintenance import TimeToLive, build_table_definitions
from icedb_dagster.progress import spark_progress
from icedb_dagster.resource import IceDBResource
from icedb_dagster.spark import ConnectSpark, LocalSpark, SparkPlace, StandaloneSpark
from icedb_dagster.specs import table_spec

__all__ = [
    "ConnectSpark",
    "EmrServerlessSpark",
    "EmrSpark",
    "IceDBIOManager",
    "IceDBResource",
    "LocalSpark",
    "SparkPlace",
    "StandaloneSpark",
    "TimeToLive",
    "build_table_definitions",
    "ensure_pool",
    "icedb_pool",
    "spark_progress",
    "table_spec",
]
