"""The Spark session that the tests of one process share: a master, two workers and two executors on 127.0.0.1.

Starting them costs as much as dozens of small jobs. A test therefore restores each session setting that it changes,
names its views and tables for itself, and never stops the session.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from icedb.spark.java import prepare_environment
from tests.support.spark.spark_clusters import SESSION, TWO_EXECUTORS, make_spark_home
from tests.support.spark.spark_python import write_program

CONFIG = SESSION | TWO_EXECUTORS | {"spark.master": "local-cluster[2,1,1024]", "spark.app.name": "icedb-tests"}

#: How a test takes the shared session, or a fixture that takes it.
_TAKES_SESSION = re.compile(
    r'\b(spark: (Any|SparkSession)|scene: SparkScene|driver: SharedDriver)\b|usefixtures\("spark"\)'
)
_FOLDERS = ("spark", "spark_jobs")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all files about Spark that take the shared session to one worker: there is one session for a run then."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "the shared session" if _takes_session(config.rootpath / file) else file

    return Scheduling(config, log)


@cache
def _takes_session(file: Path) -> bool:
    return file.parent.name in _FOLDERS and bool(_TAKES_SESSION.search(file.read_text()))


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the SPARK_HOME of all tests of a process, because the first session's Java process keeps it."""
    return make_spark_home(tmp_path_factory.mktemp("spark-home"))


@pytest.fixture(scope="session")
def shared_session(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, str]]]:
    """Return the process's Spark session, and the environment variables with which its Java finds this Python."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with _variables({"SPARK_HOME": str(spark_home)}):
        prepare_environment()
        python = str(write_program(folder / "python"))
        os.environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
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
def spark(request: pytest.FixtureRequest, shared_session: tuple[Any, dict[str, str]]) -> Iterator[Any]:
    """Return a Spark session whose executors are separate processes."""
    if request.path.parent.name in _FOLDERS:
        assert _takes_session(request.path), f"{request.path.name} would start another session: see _TAKES_SESSION"
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
