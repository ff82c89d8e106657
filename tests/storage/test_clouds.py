"""Tables in the emulators of Azure and Google Cloud. tests/storage/test_store.py has the requests of all stores."""

from __future__ import annotations

import base64

import duckdb
import polars as pl
import pytest

import icedb
from icedb.engines import arrow, polars
from icedb.engines.duckdb.attached_tables import attach
from icedb.errors import AccessDenied, BucketNotFound
from tests.support.object_stores.stores import Place


def test_a_table_works_in_a_cloud(cloud: Place) -> None:
    events = icedb.Table.create(cloud.uri, partition_by=["day"], sort_by=["n"], storage_options=cloud.storage_options)
    for n in range(6):
        events.insert([{"day": f"2026-11-2{n % 2}", "n": n}])
    before = events.snapshot()
    assert events.insert([{"day": "2026-11-20", "n": 6}], txn=("job", 1)).rows == 1
    assert events.insert([{"day": "2026-11-20", "n": 6}], txn=("job", 1)).rows == 0
    assert events.merge().merged_parts == 7
    copies = events.handle.part_paths.copies
    assert list(copies.rglob("*.parquet")) == [], "a merge fetches its parts, and keeps no copies"
    assert events.query("SELECT day, sum(n) FROM t GROUP BY day ORDER BY day").fetchall() == [
        ("2026-11-20", 12),
        ("2026-11-21", 9),
    ]
    assert before.query("SELECT count(*) FROM t").fetchall() == [(6,)]
    assert events.delete("n = 0").deleted_rows == 1
    events.drop_partitions("day = '2026-11-21'")
    events.merge_log()
    again = icedb.Table.open(cloud.uri, storage_options=cloud.storage_options)
    assert again.verify().ok
    assert again.verify(deep=True).ok
    assert again.snapshot().to_arrow().sort_by("n")["n"].to_pylist() == [2, 4, 6]
    assert again.query("SELECT sum(n) FROM t WHERE n > 2").fetchall() == [(10,)]
    again.restore(before.as_of_ms)
    assert again.query("SELECT sum(n) FROM t").fetchall() == [(15,)]


def test_engines_read_copies(cloud: Place) -> None:
    events = icedb.Table.create(cloud.uri, partition_by=["city"], storage_options=cloud.storage_options)
    for city in ("New York", "50%", "Zürich", "a/b", "+"):
        events.insert([{"city": city, "n": n} for n in range(10)])
    assert sum(arrow.dataset(events.snapshot()).to_table()["n"].to_pylist()) == 225
    assert polars.scan(events.snapshot()).filter(pl.col("city") == "50%").collect()["n"].sum() == 45
    with duckdb.connect() as connection:
        attach(connection, events, "events")
        assert connection.sql("SELECT sum(n) FROM events WHERE city = 'a/b'").fetchall() == [(45,)]


@pytest.mark.azure
def test_errors_name_the_remedy_and_no_secret(azure: Place, azure_options: dict[str, str]) -> None:
    key = base64.b64encode(b"a key that is never in any text.").decode()
    with pytest.raises(AccessDenied, match="Check the account, its key or the signature") as caught:
        icedb.Table.create(azure.uri, storage_options={**azure_options, "AZURE_STORAGE_ACCOUNT_KEY": key})
    assert key not in str(caught.value)


def test_a_missing_container_or_bucket_is_named(cloud: Place) -> None:
    scheme = cloud.uri.partition("://")[0]
    with pytest.raises(BucketNotFound, match=r"the (container|bucket) 'no-such-place' does not exist"):
        icedb.Table.create(f"{scheme}://no-such-place/events", storage_options=cloud.storage_options)
