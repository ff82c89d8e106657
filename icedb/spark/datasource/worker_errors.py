"""Errors that a user of Spark can read: the message comes first, not the traceback of a process that he never saw.

A Python worker of Spark reports an error as its whole traceback, unless a variable of its environment says otherwise,
which the session's `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets for all workers. Here it is set for
errors of ours only, in the process that is about to report one: it ends right after, so no other error is affected.
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
    """A context, or decorator, for what Spark's Python workers call; elsewhere it does nothing."""
    try:
        yield
    except IceDBError:
        if _is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_worker() -> bool:
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and str(program.name).startswith("pyspark.")
