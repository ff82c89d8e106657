"""Where a task may put what does not fit into memory."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["scratch_folder"]


def scratch_folder() -> Path | None:
    """Where Spark has room on this machine, and tidies up after a process that was killed. None: the system's."""
    folders = [Path(f) for f in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if f]
    return next((f for f in folders if f.is_dir() and os.access(f, os.W_OK)), None)
