"""Resources of the machine that a Spark task may use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["processors", "scratch_folder"]


def scratch_folder() -> Path | None:
    """Return a local folder that Spark cleans up, also after a killed process. None: use the system's folder."""
    folders = [Path(f) for f in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if f]
    return next((f for f in folders if f.is_dir() and os.access(f, os.W_OK)), None)


def processors() -> int:
    """Return the number of processors that Spark assigns to this task."""
    from pyspark import TaskContext  # the package is imported before a session starts

    task = TaskContext.get()
    return task.cpus() if task is not None else 1
