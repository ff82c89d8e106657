"""Spark's Python daemon with the packages loaded that its workers import, for the shared session.

The daemon forks a worker for each task and each plan that finds no idle one, and that worker imports pyarrow, pandas,
DuckDB and this project, which takes longer than most of the work. Run as
`python -m tests.support.spark.spark_python -m pyspark.daemon <module>`.
"""

from __future__ import annotations

import gc
import runpy
import sys
from importlib import import_module
from pathlib import Path

LOADED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "icedb.spark.datasource.source",
    "icedb.spark.spark_tasks",
)


def write_program(path: Path) -> Path:
    """Write a program that can be the value of PYSPARK_PYTHON.

    It is this Python for everything but the daemon: Spark gives the process of a stream's source ten seconds to start.
    """
    path.write_text(f'''#!/bin/sh
case "$1$2" in
-mpyspark.daemon) exec "{sys.executable}" -m {__name__} "$@" ;;
*) exec "{sys.executable}" "$@" ;;
esac
''')
    path.chmod(0o700)
    return path


if __name__ == "__main__":
    for name in LOADED:
        import_module(name)
    gc.freeze()  # Spark collects garbage after each task, which otherwise costs more than a small task
    sys.argv = sys.argv[2:]
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
