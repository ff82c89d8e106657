"""The data source on every shape of Spark: local threads, separate executors, a standalone master, Spark Connect.

The rows go between the executors and a real S3 server over HTTP, without Hadoop's S3 client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from icedb import Table
from tests.support.object_stores.counting_proxy import CountingProxy
from tests.support.spark.spark_clusters import (
    TWO_EXECUTORS,
    Driver,
    RemoteError,
    connect_server,
    environment,
    standalone,
)
from tests.support.spark.spark_tables import content, log_keys

ROW = "n, label, third"
#: The short run has one of the two that are servers, each every other day.
pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.sampled(cases=1)]


@dataclass(frozen=True)
class Cluster:
    """A session on a cluster, and the number of Java processes that run its tasks."""

    driver: Driver
    executors: int


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("local[2,4]", marks=pytest.mark.slow(seconds=10)),
        pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.slow(seconds=15)),
        "standalone",
        "connect",
    ],
)
def cluster(
    request: pytest.FixtureRequest, spark_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield a session of each kind of cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    env = environment(spark_home)
    if request.param == "connect":
        with connect_server(folder, env) as remote, Driver({"spark.remote": remote}, folder / "driver", env) as driver:
            yield Cluster(driver, 1)
    elif request.param == "standalone":
        memory = {"spark.executor.memory": "512m"}
        with (
            standalone(folder, env) as master,
            Driver({"spark.master": master, **TWO_EXECUTORS, **memory}, folder / "driver", env) as driver,
        ):
            yield Cluster(driver, 2)
    else:
        executors = 1 if request.param.startswith("local[") else 2
        with Driver({"spark.master": request.param, **TWO_EXECUTORS}, folder / "driver", env) as driver:
            yield Cluster(driver, executors)


@pytest.fixture
def table(s3: Any) -> Table:
    """Return a partitioned, sorted table in the S3 server's bucket."""
    return Table.create(s3.uri, partition_by=["n % 3 AS third"], sort_by=["n"], storage_options=s3.storage_options)


@pytest.fixture
def place(s3: Any) -> dict[str, str]:
    """Return the options with which Spark opens the table."""
    return {"path": s3.uri, **s3.storage_options}


def expected(numbers: Iterator[int] | range) -> list[tuple[int, str, int]]:
    return [(n, f"é{n}", n % 3) for n in numbers]


def tuples(answer: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Turn lists into tuples, which JSON does not have."""
    return [tuple(row) for row in answer]


@pytest.mark.sampled(days=6)
def test_tasks_run_in_the_expected_number_of_executors(cluster: Cluster) -> None:
    executors = cluster.driver.ask("executors")
    assert len(executors) == 4
    assert len({pid for _, pid in executors}) == cluster.executors


@pytest.mark.sampled(cases=1, days=6)
def test_each_job_is_one_commit_of_exactly_its_rows(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    cluster.driver.ask("append", place=place, first=0, last=1000)
    assert (content(table, ROW), len(log_keys(table))) == (expected(range(1000)), 1)
    cluster.driver.ask("append", place=place, first=1000, last=1500, tasks=2)
    assert (content(table, ROW), len(log_keys(table))) == (expected(range(1500)), 2)
    assert table.verify().problems == ()

    cluster.driver.ask("overwrite", place=place, first=10, last=20, tasks=2, overwrite="table")
    assert (content(table, ROW), len(log_keys(table))) == (expected(range(10, 20)), 3)
    assert table.verify().problems == ()


@pytest.mark.slow(seconds=15)
def test_written_rows_are_read_by_time_and_by_partition(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    assert cluster.driver.ask("write", place=place, first=0, last=300, distribution="partition") == 300
    then_ms = table.snapshot().as_of_ms
    assert cluster.driver.ask("write", place=place, first=300, last=310) == 10
    assert len(log_keys(table)) == 2

    now, some = expected(range(310)), [row for row in expected(range(310)) if row[2] == 1]
    assert tuples(cluster.driver.ask("read", place=place)) == tuples(cluster.driver.ask("read_table", place=place))
    assert tuples(cluster.driver.ask("read", place=place)) == now
    assert tuples(cluster.driver.ask("read_table", place=place, as_of=then_ms)) == expected(range(300))
    assert tuples(cluster.driver.ask("read", place=place, where="third = 1")) == some


@pytest.mark.slow(seconds=15)
def test_tasks_merge_and_this_process_sees_one_commit(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    for first in (0, 100, 200):
        cluster.driver.ask("append", place=place, first=first, last=first + 100, tasks=2)
    before = table.snapshot()
    assert len(before.parts) == 18
    assert cluster.driver.ask("merge", place=place) == 18
    assert len(table.snapshot().parts) == 3
    assert (content(table, ROW), len(log_keys(table))) == (expected(range(300)), 4)
    assert before.query("SELECT count(*) FROM t").fetchall() == [(300,)]
    assert table.verify(deep=True).problems == ()


@pytest.mark.slow(seconds=15)
def test_tasks_upsert_and_this_process_sees_one_commit(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    table.insert([{"n": n, "label": f"é{n}" if n < 200 else "old"} for n in range(300)])
    assert cluster.driver.ask("upsert", place=place, first=100, last=400, txn=["users", 1]) == [100, 100]
    assert cluster.driver.ask("upsert", place=place, first=0, last=1, txn=["users", 1]) == [0, 0]
    assert (content(table, ROW), len(log_keys(table))) == (expected(range(400)), 2)
    assert table.verify(deep=True).problems == ()


@pytest.mark.sampled(cases=1, days=6)
def test_a_job_sends_few_requests_beside_its_parts(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    cluster.driver.ask("append", place=place, first=0, last=9, tasks=1)
    with CountingProxy(place["AWS_ENDPOINT_URL"]).running() as proxy:
        cluster.driver.ask("append", place={**place, "AWS_ENDPOINT_URL": proxy.endpoint}, first=9, last=109, tasks=4)
        requests = Counter((r.kind, next(s for s in r.path.split("/") if s.startswith("_"))) for r in proxy.requests)
    assert requests == {
        ("GET", "_table.json"): 2,  # when the job begins, and when it is committed
        ("LIST", "_log"): 3,  # and a check for views created meanwhile
        ("GET", "_log"): 3,
        ("PUT", "_claims"): 1,  # may this store be written?
        ("PUT", "_data"): 12,  # four tasks with rows of three partitions
        ("HEAD", "_data"): 1,  # the store's clock
        ("PUT", "_log"): 1,
    }


@pytest.mark.sampled(days=6)
def test_a_failed_job_has_its_reason_in_the_first_line(cluster: Cluster, table: Table, place: dict[str, str]) -> None:
    with pytest.raises(RemoteError) as missing:
        cluster.driver.ask("append", place={**place, "path": place["path"] + "-not"}, first=0, last=1)
    with pytest.raises(RemoteError) as unknown:
        cluster.driver.ask("append", place=place, first=0, last=1, colour="red")
    assert "TableNotFound" in missing.value.text.splitlines()[0]
    assert "colour" in unknown.value.text.splitlines()[0]
    assert place["AWS_SECRET_ACCESS_KEY"] not in missing.value.text + unknown.value.text
    assert len(log_keys(table)) == 0
