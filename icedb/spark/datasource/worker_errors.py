"""Short errors from Spark's Python workers: the message of an IceDB error without the traceback of the worker.

A Python worker of Spark reports an error with its whole traceback, unless an environment variable prevents it. The
session's `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets that variable for all workers. This module sets
it for errors of IceDB only, in the worker that reports the error. That worker ends right after, so no other error is
affected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from icedb.errors import IceDBError

__all__ = ["hide_worker_traceback"]


@contextmanager
def hide_worker_traceback() -> Iterator[None]:
    """Hide the traceback of IceDB errors in Spark's Python workers, as context or decorator. Elsewhere do nothing."""
    try:
        yield
    except IceDBError:
        if _is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_worker() -> bool:
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and str(program.name).startswith("pyspark.")
