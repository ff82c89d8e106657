"""What a task of Spark may use of the machine that it runs on."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["processors", "scratch_folder"]


def scratch_folder() -> Path | None:
    """Where Spark has room on this machine, and tidies up after a process that was killed. None: the system's."""
    folders = [Path(f) for f in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if f]
    return next((f for f in folders if f.is_dir() and os.access(f, os.W_OK)), None)


def processors() -> int:
    """How many processors Spark reckons with for this task: the others have tasks of their own."""
    from pyspark import TaskContext  # whoever starts a session needs this package before Spark

    task = TaskContext.get()
    return task.cpus() if task is not None else 1
