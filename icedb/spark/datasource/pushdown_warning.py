"""A warning about Spark's filter push-down for Python data sources, which is off by default.

With `spark.sql.python.filterPushdown.enabled=true`, Spark 4.3 keeps one planned reader for each loaded frame. A filter
that a source accepts for one query then applies to every later query of that frame. So `icedb` accepts none.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTING", "warn_if_enabled", "warn_in_worker"]

SETTING = "spark.sql.python.filterPushdown.enabled"
# Spark offers filters in a worker of this module. Without its daemon, Spark starts the worker as the main module.
_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def warn_if_enabled(spark: SparkSession) -> None:
    """Warn once in this process if the session has the setting."""
    if str(spark.conf.get(SETTING, "false")).lower() == "true":
        _warn()


def warn_in_worker() -> None:
    """Warn once in this process if Spark started it to offer filters; the text goes to the driver's log."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _WORKER in sys.modules or getattr(main, "name", "") == _WORKER:
        _warn()


@cache
def _warn() -> None:
    warnings.warn(
        f"{SETTING} is true. Spark 4.3 reuses a filter that a Python data source accepted for later queries of the "
        "same frame, and those return too few rows. 'icedb' accepts no filters from Spark, so its answers are right. "
        "Unset it to protect other sources; use the option 'where' to skip partitions.",
        RuntimeWarning,
        stacklevel=3,
    )
