"""IceDB in Dagster: tables as assets, maintenance as jobs, a Postgres-backed pool as the lock of each table."""

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

from icedb_dagster.io_manager import IceDBIOManager
from icedb_dagster.locks import ensure_pool, icedb_pool
from icedb_dagster.maintenance import TimeToLive, build_table_definitions
from icedb_dagster.resource import IceDBResource

__all__ = [
    "IceDBIOManager",
    "IceDBResource",
    "TimeToLive",
    "build_table_definitions",
    "ensure_pool",
    "icedb_pool",
]
