"""Tables for Spark, and a proxy between Spark and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from icedb import Table
from tests.support.object_stores.counting_proxy import CountingProxy
from tests.support.object_stores.stores import Place
from tests.support.spark.spark_tables import Create, creating

if TYPE_CHECKING:
    from tests.support.spark.spark_clusters import SharedDriver
    from tests.support.spark.spark_scene import SparkScene


@pytest.fixture
def create(local: Place) -> Create:
    """Return a function that creates a table in a folder."""
    return creating(local)


@pytest.fixture
def create_shared(shared_place: Place) -> Create:
    """Return a function that creates a table in a folder or, as another parameter, in the S3 server's bucket."""
    return creating(shared_place)


@pytest.fixture
def proxy(s3_server: Any) -> Iterator[CountingProxy]:
    with CountingProxy(s3_server.endpoint).running() as running:
        yield running


@pytest.fixture
def table(s3: Any) -> Table:
    """Return a table with its columns and one row, opened without the proxy."""
    made = Table.create(s3.uri, partition_by=["n % 3 AS third"], sort_by=["n"], storage_options=s3.storage_options)
    made.insert([{"n": -3, "label": "first"}])
    return made


@pytest.fixture
def place(s3: Any, proxy: CountingProxy) -> dict[str, str]:
    """Return the options with which Spark opens the table through the proxy."""
    return {"path": s3.uri, **s3.storage_options, "AWS_ENDPOINT_URL": proxy.endpoint}


@pytest.fixture
def driver(spark: Any) -> SharedDriver:
    """Return a session in which each task may fail once."""
    from tests.support.spark.spark_clusters import SharedDriver

    return SharedDriver(spark)


@pytest.fixture
def scene(driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy) -> SparkScene:
    from tests.support.spark.spark_scene import SparkScene

    return SparkScene(driver, table, place, proxy)
