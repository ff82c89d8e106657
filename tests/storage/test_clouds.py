"""Tables in the emulators of Azure and Google Cloud. tests/storage/test_store.py has the requests of all stores."""

from __future__ import annotations

import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

import duckdb
import polars as pl
import pytest

import icedb
from icedb.engines import arrow, polars
from icedb.engines.duckdb.attached_tables import attach
from icedb.errors import AccessDenied, BucketNotFound
from icedb.sql.connections import load_httpfs
from icedb.storage import obstore_store
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.object_stores.stores import Place
from tests.support.tables.delta_reading import duckdb_with

#: Partition values with the characters that addresses encode.
CITIES = ("New York", "50%", "Zürich", "a/b", "+")


@pytest.mark.sampled(cases=1)
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


@pytest.mark.sampled(cases=1)
def test_simultaneous_writers_and_merges_lose_no_row(cloud: Place) -> None:
    icedb.Table.create(cloud.uri, schema={"n": "BIGINT"}, storage_options=cloud.storage_options)

    def work(number: int) -> None:
        events = icedb.Table.open(cloud.uri, storage_options=cloud.storage_options)
        for n in range(3):
            events.insert([{"n": 3 * number + n}])
        events.merge()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    events = icedb.Table.open(cloud.uri, storage_options=cloud.storage_options)
    assert events.query("SELECT list(n ORDER BY n) FROM t").fetchall() == [(list(range(18)),)]
    assert events.verify(deep=True).ok


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_a_deletion_whose_response_is_late_is_repeated(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store executes the first request after the repeated one. Google Cloud has no bulk deletion."""
    place: Place = request.getfixturevalue(kind)
    option = {"s3": "AWS_ENDPOINT_URL", "azure": "AZURE_STORAGE_ENDPOINT", "google": "GOOGLE_BASE_URL"}[kind]
    upstream = urlsplit(place.storage_options[option])
    late, deleted = threading.Event(), threading.Event()

    def delay(sent: HttpRequest) -> None:
        if sent.kind in ("DELETE MANY", "DELETE", "OTHER") and not late.is_set():
            late.set()
            assert deleted.wait(60)

    monkeypatch.setattr(obstore_store, "REQUEST_TIMEOUT", timedelta(seconds=3))
    with CountingProxy(f"{upstream.scheme}://{upstream.netloc}").running() as proxy:
        options = {**place.storage_options, option: proxy.endpoint + upstream.path}
        store = open_store(parse_location(place.uri, options))
        keys = [f"{store.location.prefix}/{n}" for n in range(5)]
        for key in keys:
            store.create(key, b"")
        proxy.before = delay
        store.delete(keys, repeat=True)
        deleted.set()
        assert late.is_set()
        assert store.list(f"{store.location.prefix}/") == []


def test_addresses_beside_a_table_have_its_access(cloud: Place) -> None:
    log = f"{cloud.uri}-log"
    events = icedb.Table.create(cloud.uri, log_uri=log, storage_options=cloud.storage_options)
    events.insert([{"n": n} for n in range(10)])
    assert events.export_delta().parts == 1
    events.export_parquet(f"{cloud.uri}-plain")
    imported = f"{cloud.uri}-imported"
    icedb.Table.create_from_files(imported, f"{cloud.uri}-plain", storage_options=cloud.storage_options)
    again = icedb.Table.open(imported, storage_options=cloud.storage_options)
    assert again.query("SELECT sum(n) FROM t").fetchall() == [(45,)]


def test_engines_read_copies(cloud: Place) -> None:
    events = icedb.Table.create(cloud.uri, partition_by=["city"], storage_options=cloud.storage_options)
    for city in CITIES:
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


# ------------------------------------------------------------------------------------------ DuckDB without copies


@pytest.mark.azure
def test_duckdbs_extension_for_azure_requests_ranges(azure: Place, azure_options: dict[str, str]) -> None:
    events = icedb.Table.create(azure.uri, partition_by=["city"], storage_options=azure_options)
    rows = [{"city": city, "n": n, "large": os.urandom(20_000)} for city in CITIES for n in range(10)]
    events.insert(rows)
    endpoint = urlsplit(azure_options["AZURE_STORAGE_ENDPOINT"])
    with CountingProxy(f"http://{endpoint.netloc}").running() as proxy, duckdb_with("azure") as con:
        address = f"{proxy.endpoint}{endpoint.path}"
        snapshot = icedb.Table.open(
            azure.uri, storage_options=azure_options | {"AZURE_STORAGE_ENDPOINT": address}
        ).snapshot()
        proxy.reset()
        assert snapshot.query("SELECT sum(n) FROM t").fetchall() == [(225,)]
        copied = [r.down for r in proxy.requests]
        con.execute(
            "CREATE SECRET (TYPE azure, CONNECTION_STRING 'DefaultEndpointsProtocol=http;AccountName=icedbtests;"
            f"AccountKey={azure_options['AZURE_STORAGE_ACCOUNT_KEY']};BlobEndpoint={address}')"
        )
        proxy.reset()
        paths = [part.path for part in snapshot.files()]
        assert con.execute("SELECT sum(n) FROM read_parquet($1)", [paths]).fetchall() == [(225,)]
        ranges = [r.down for r in proxy.requests]
    # One request for each part with all of its bytes, or several requests with few bytes.
    assert len(copied) == len(CITIES) < len(ranges)
    assert sum(ranges) < 200_000 < 1_000_000 < sum(copied)


@pytest.mark.google
def test_duckdbs_httpfs_reads_parts_in_google_cloud(google: Place, google_options: dict[str, str]) -> None:
    events = icedb.Table.create(google.uri, partition_by=["city"], storage_options=google_options)
    events.insert([{"city": city, "n": n} for city in CITIES for n in range(10)])
    host = urlsplit(google_options["GOOGLE_BASE_URL"]).netloc
    with duckdb.connect() as con:
        load_httpfs(con)
        for keys in ("BEARER_TOKEN 'any'", "KEY_ID 'any', SECRET 'any'"):
            options = f"{keys}, ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path'"
            con.execute(f"CREATE OR REPLACE SECRET of_google (TYPE gcs, {options})")
            paths = [part.path for part in events.snapshot().files()]
            assert con.execute("SELECT sum(n) FROM read_parquet($1)", [paths]).fetchall() == [(225,)]
