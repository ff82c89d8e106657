"""The memory of a Python worker stays bounded for any number of rows."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

pytest.importorskip("pyspark")

from benchmarks.harness.events import PARTITION_BY, SORT_BY, Events, make_events
from benchmarks.harness.rounds import peak_worker_bytes
from icedb import Table
from tests.support.spark.spark_clusters import Driver, environment

pytestmark = pytest.mark.spark

MIB = 1024 * 1024
# Python, pyarrow, pyspark and DuckDB with nothing to do, the batches of Spark on their way in, and row groups on their
# way out.
OWN_BYTES = 320 * MIB


def peak_of_one_task(events: Events, spark_home: Path, tmp_path: Path, **options: str) -> int:
    """Write all events in one task, check that all are written, and return the peak memory."""
    place = {"path": str(tmp_path / "table"), "fsync": "false"}
    table = Table.create(place["path"], partition_by=[PARTITION_BY], sort_by=SORT_BY)
    with (
        Driver({"spark.master": "local[1]"}, tmp_path / "driver", environment(spark_home)) as driver,
        peak_worker_bytes(driver.pid) as peak,
    ):
        driver.ask("load", place=place, files=str(events.folder), **options)
    [(rows, days)] = table.query("SELECT count(*), count(DISTINCT day) FROM t").fetchall()
    assert (rows, days) == (events.rows, 30)
    assert peak[0] > 0
    return peak[0]


@pytest.mark.slow(seconds=40)
def test_a_task_spills_beyond_its_memory_limit(spark_home: Path, tmp_path: Path) -> None:
    events = make_events(tmp_path, 1_000_000)
    peak = peak_of_one_task(events, spark_home, tmp_path, memory_bytes=str(64 * MIB))
    assert peak <= 64 * MIB + OWN_BYTES


@pytest.mark.slow(seconds=200)
@pytest.mark.timeout(900)
def test_ten_million_events_in_one_task_take_less_than_a_gigabyte(spark_home: Path, tmp_path: Path) -> None:
    assert peak_of_one_task(make_events(tmp_path, 10_000_000), spark_home, tmp_path) <= 1024 * MIB


@pytest.mark.slow(seconds=90)
def test_a_task_of_an_upsert_holds_the_batch_twice_beside_its_memory_limit(spark_home: Path, tmp_path: Path) -> None:
    """The batch is compressed where it was received, and decompressed for DuckDB. Half as much is left for results."""
    place = {"path": str(tmp_path / "table"), "fsync": "false"}
    table = Table.create(place["path"], sort_by=["n"])
    rows, last = 8_000_000, 12_000_000
    table.insert(duckdb.sql(f"SELECT range AS n, 'old' AS label FROM range({rows})"))
    batch = duckdb.sql(f"SELECT range AS n, concat('é', range) AS label FROM range({rows // 2}, {last})")
    with (
        Driver({"spark.master": "local[1]"}, tmp_path / "driver", environment(spark_home)) as driver,
        peak_worker_bytes(driver.pid) as peak,
    ):
        changed = driver.ask("upsert", place=place, first=rows // 2, last=last, memory_bytes=256 * MIB)
    assert changed == [last - rows, rows // 2]
    assert 0 < peak[0] <= 256 * MIB + OWN_BYTES + 2.5 * batch.to_arrow_table().nbytes
