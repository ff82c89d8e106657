"""The Python of the shared session's workers: it loads what they import, and then is what Spark has asked for.

Spark's Python daemons fork a process for each task and each plan that finds no idle one, and that process imports
pyarrow, pandas, DuckDB and this project, which takes longer than most of the work. Run as
`python -m tests.support.spark_python -m <module> <argument>...`.
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
    "icedb.spark.source",
    "icedb.spark.tasks",
)


def write_program(path: Path) -> Path:
    """Write a program that can be the value of PYSPARK_PYTHON."""
    path.write_text(f'''#!/bin/sh
case "$1$2" in
-mpyspark.*) exec "{sys.executable}" -m {__name__} "$@" ;;
*) exec "{sys.executable}" "$@" ;;
esac
''')
    path.chmod(0o700)
    return path


if __name__ == "__main__":
    for name in LOADED:
        import_module(name)
    gc.freeze()  # Spark collects garbage after each task, which otherwise costs more than a small task
    _, _, module, *rest = sys.argv
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
