"""The Spark session that the tests of one process share: a master, two workers and two executors on 127.0.0.1.

Starting them costs as much as dozens of small jobs. A test therefore restores each session setting that it changes,
and names its views and tables for itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icedb.spark.java import prepare_environment
from tests.support.quick_java import QUICK_JAVA

CONFIG = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.app.name": "icedb-tests",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task starts before both executors are registered
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPARK_HOME whose work folder is temporary: by default it is inside the installed package.

    There is one for the whole run, because the Java process that the first session starts keeps it.
    """
    import pyspark

    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@pytest.fixture(scope="session")
def shared_session(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, str]]]:
    """The process's Spark session, and the environment variables that lead its Java to this Python."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with _variables({"SPARK_HOME": str(spark_home)}):
        prepare_environment()
        variables = dict(os.environ)
        builder = SparkSession.builder.config("spark.local.dir", str(folder / "local"))
        for name, value in CONFIG.items():
            builder = builder.config(name, value)
        session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    yield session, variables
    session.stop()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(spark_home / "work", ignore_errors=True)


@pytest.fixture(scope="module")
def spark(shared_session: tuple[Any, dict[str, str]]) -> Iterator[Any]:
    """A Spark session whose executors are separate processes."""
    session, variables = shared_session
    with _variables(variables):
        yield session
        session.catalog.clearCache()


@contextmanager
def _variables(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables; afterwards the environment is as before."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Let Spark offer its filters to Python data sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)
