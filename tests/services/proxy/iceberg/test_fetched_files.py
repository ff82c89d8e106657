"""The data files that engines fetch through the catalog: predicates on partitions and on statistics skip the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from icedb import Table
from tests.support.proxy.iceberg_catalogs import READERS, load
from tests.support.proxy.proxy_clients import Access
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

PARTS, ROWS = 24, 3
CONFIG = """
[server]
listen = "127.0.0.1:0"

[iceberg]
enabled = true

[[tenant]]
name = "acme"
keys = [{{ id = "ACMEKEY1", secret = "acme-secret" }}]
bucket = [{{ name = "events", table = "{table}" }}]
"""
#: A predicate, and the number of data files with rows for which it is true.
PREDICATES: dict[str, tuple[str | None, int]] = {
    "all": (None, PARTS),
    "partition": ("p = 3", 2),
    "text": ("s = 'text 05'", 2),
    "times": ("ts >= '2026-11-05T00:00:00' AND ts < '2026-11-09T00:00:00'", 4),
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A table with a part for each of 24 days: two in each partition, and two with each text."""
    uri = str(tmp_path_factory.mktemp("lake") / "events")
    table = Table.create(uri, partition_by=["n % 12 AS p"], sort_by=["s", "ts"])
    for days in (range(PARTS // 2), range(PARTS // 2, PARTS)):
        times = [(n, datetime(2026, 11, 1 + n, hour)) for n in days for hour in range(ROWS)]
        table.insert([{"n": n, "s": f"text {n // 2:02}", "ts": ts} for n, ts in times])
    with ProxyProcess(CONFIG.format(table=uri)) as proxy:
        yield proxy


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_fetches_only_the_files_with_rows_of_a_predicate(
    proxy: ProxyProcess, reader: str, predicate: str
) -> None:
    where, files = PREDICATES[predicate]
    access = Access(proxy.endpoint, "ACMEKEY1", "acme-secret")
    seen = len(proxy.access_log())

    def paths() -> list[str]:
        return [line["path"] for line in proxy.access_log()[seen:]]

    assert READERS[reader](access, "events", None, where).num_rows == files * ROWS
    load(access, "missing")  # logged after the reader's requests
    wait_until(lambda: any(path.endswith("/missing") for path in paths()), "the requests are logged")
    assert len({path for path in paths() if path.endswith(".parquet")}) == files
