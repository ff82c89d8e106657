"""The proxy and the ingest service as processes, with tables in the emulators of Azure and Google Cloud."""

from __future__ import annotations

import json

import pytest

import icedb
from tests.support.ingest.ingest_process import KEY, IngestClient, IngestProcess
from tests.support.object_stores.stores import Place
from tests.support.proxy.proxy_clients import Access, duckdb_connection
from tests.support.proxy.proxy_process import ProxyProcess

SECRET = "acme-secret-0123456789"
CONFIG = """
[server]
listen = "127.0.0.1:0"
"""
TENANT = """
[[tenant]]
name = "acme"
"""


def _with_options(config: str, place: Place) -> tuple[str, dict[str, str]]:
    """Add a place's storage options, those that are secret by variables. Return the variables as well."""
    options = place.storage_options or {}
    names = "".join(f'{name} = "LAKE_{name}"\n' for name in options)
    return f"{config}\n[storage_options_env]\n{names}", {f"LAKE_{name}": value for name, value in options.items()}


@pytest.mark.sampled(cases=1)
@pytest.mark.process
def test_the_proxy_shows_a_table_in_a_cloud(cloud: Place) -> None:
    events = icedb.Table.create(cloud.uri, partition_by=["d"], storage_options=cloud.storage_options)
    for n in range(4):
        events.insert([{"d": f"2026-11-2{n % 2}", "n": n}])
    # There is no address to redirect to, so the proxy sends the bytes.
    config = f'{CONFIG}redirect = true\n{TENANT}keys = [{{ id = "ACMEKEY1", secret = "{SECRET}" }}]\n'
    config += f'[[tenant.bucket]]\nname = "events"\ntable = "{cloud.uri}"\n'
    config, variables = _with_options(config, cloud)
    with ProxyProcess(config, variables) as proxy:
        access = Access(proxy.endpoint, "ACMEKEY1", SECRET)
        with duckdb_connection(access) as con:
            rows = con.sql("SELECT day(d), sum(n) FROM read_parquet('s3://events/**/*.parquet') GROUP BY d ORDER BY d")
            assert rows.fetchall() == [(20, 2), (21, 4)]
        assert all(value not in proxy.errors() + proxy.access_text() for value in variables.values() if len(value) > 40)


@pytest.mark.sampled(cases=1)
@pytest.mark.process
def test_the_ingest_service_writes_to_a_table_in_a_cloud(cloud: Place) -> None:
    config = f'{CONFIG}[[table]]\nname = "events"\nuri = "{cloud.uri}"\ncreate = true\n'
    config += f'schema = {{ id = "BIGINT" }}\n{TENANT}keys = [{{ secret = "{KEY}" }}]\ntables = ["events"]\n'
    config, variables = _with_options(config, cloud)
    with IngestProcess(config, variables) as service, IngestClient(service.endpoint) as client:
        reply = client.send("events", [{"id": n} for n in range(3)])
        assert reply.status == 200, json.dumps(reply.json)
    events = icedb.Table.open(cloud.uri, storage_options=cloud.storage_options)
    assert events.query("SELECT id FROM t ORDER BY id").fetchall() == [(0,), (1,), (2,)]
