"""The process of the service: shutdown, behaviour without a store, and several processes on one table."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from tests.support.ingest.ingest_process import KEY, OTHER_KEY, IngestClient, IngestProcess, IngestReply
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.object_stores.stores import Place, S3Server
from tests.support.waiting import SECONDS_MAX, wait_until


def config(
    uri: str, *, server: str = "", table: str = "", options: dict[str, str] | None = None, key: str = KEY
) -> str:
    store_options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in (options or {}).items())
    return f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
{server}
[storage_options]
{store_options}
[[table]]
name = "events"
uri = "{uri}"
create = true
id_column = "id"
{table}
[[tenant]]
name = "acme"
tables = ["events"]
[[tenant.keys]]
secret = "{key}"
"""


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def send(service: IngestProcess, *ids: str) -> IngestReply:
    with IngestClient(service.endpoint) as client:
        return client.send("events", [{"id": i} for i in ids])


def ready(service: IngestProcess) -> Any:
    with IngestClient(service.admin) as admin:
        reply = admin.ask("GET", "/ready")
        return reply.status, reply.json.get("reasons")


@pytest.mark.process
def test_pending_rows_are_acknowledged_before_the_exit(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    table = 'delay_max = "10m"\nbytes_max = 1000\npending_bytes_max = 1000'
    with IngestProcess(config(str(tmp_path / "events"), table=table)) as service:
        first: Future[IngestReply] = executor.submit(send, service, "x" * 950)
        service.wait_for_metric('icedb_ingest_pending_rows{table="events"}', 1)
        full = send(service, "y" * 600)
        assert (full.status, full.json["error"]) == (503, "unavailable")
        assert int(full.headers["retry-after"]) >= 1
        assert ready(service) == (503, ["table 'events' has too many pending rows"])
        service.signal(signal.SIGTERM)
        assert first.result(SECONDS_MAX).json["accepted"] == 1
        assert service.wait() == 0
    assert Table.open(tmp_path / "events").snapshot().rows == 1


class StoreGate:
    """Delays or fails writes to a store."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.broken = False
        self.waiting = 0

    def __call__(self, request: HttpRequest) -> None:
        if self.broken:
            raise ConnectionError
        if request.kind == "PUT" and not self.open.is_set():
            self.waiting += 1
            self.open.wait(SECONDS_MAX)


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[tuple[StoreGate, dict[str, str]]]:
    proxy, gate = CountingProxy(s3_server.endpoint), StoreGate()
    proxy.before = gate
    with proxy.running():
        yield gate, {**s3_server.storage_options, "AWS_ENDPOINT_URL": proxy.endpoint}
        gate.broken = True
        gate.open.set()


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_without_the_store_no_request_is_acknowledged(
    s3: Place, gate: tuple[StoreGate, dict[str, str]], executor: ThreadPoolExecutor
) -> None:
    store, options = gate
    server = 'commit_timeout = "1s"\nstop_timeout = "1s"'
    with IngestProcess(config(s3.uri, server=server, table='delay_max = "10ms"', options=options)) as service:
        wait_until(lambda: send(service, "before").status == 200, "the service is ready")
        store.open.clear()
        slow = send(service, "slow-1", "slow-2")
        assert (slow.status, slow.headers["retry-after"]) == (503, "5")
        store.open.set()
        # With the same ids, so rows are committed once.
        wait_until(lambda: send(service, "slow-1", "slow-2").status == 200, "the retry is acknowledged")
        store.broken = True
        assert send(service, "away").status == 503
        wait_until(lambda: ready(service) == (503, ["table 'events' cannot be reached"]), "it is not ready")
        assert s3.uri not in service.access_text()
        store.broken = False
        wait_until(lambda: send(service, "away").status == 200, "the store is reachable again")
        assert ready(service) == (200, None)
        store.open.clear()
        never = executor.submit(send, service, "never")
        service.wait_for_metric('icedb_ingest_pending_rows{table="events"}', 1)
        service.signal(signal.SIGTERM)
        assert service.wait() == 0  # the exit has a time limit
        with pytest.raises((http.client.HTTPException, OSError)):
            raise_for(never.result(SECONDS_MAX))
    rows = Table.open(s3.uri, storage_options=s3.storage_options).query("SELECT id FROM t ORDER BY id").fetchall()
    assert [i for (i,) in rows if i != "never"] == ["away", "before", "slow-1", "slow-2"]


def raise_for(reply: IngestReply) -> None:
    """Raise an error for a response that is not 2xx."""
    if reply.status != 200:
        raise http.client.HTTPException(reply.status)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_second_signal_ends_it_at_once(
    s3: Place, gate: tuple[StoreGate, dict[str, str]], executor: ThreadPoolExecutor
) -> None:
    store, options = gate
    with IngestProcess(config(s3.uri, table='delay_max = "10ms"', options=options)) as service:
        store.open.clear()
        never = executor.submit(send, service, "never")
        wait_until(lambda: store.waiting > 0, "the put waits")
        service.signal(signal.SIGTERM)
        wait_until(lambda: ready(service)[0] == 503, "it is stopping")
        assert ready(service) == (503, ["the service is stopping"])
        service.signal(signal.SIGTERM)
        assert service.wait() == -signal.SIGTERM
        with pytest.raises((http.client.HTTPException, OSError)):
            never.result(SECONDS_MAX)


@pytest.mark.sampled(days=3)
@pytest.mark.process
def test_two_services_commit_an_id_once_and_reload_their_keys(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    text = config(str(tmp_path / "events"), table='delay_max = "10ms"')
    (tmp_path / "ingest.toml").write_text(text)
    with IngestProcess(text) as one, IngestProcess(tmp_path / "ingest.toml") as two:
        replies = [executor.submit(send, s, f"id-{n}", f"id-{n + 1}") for n in range(4) for s in (one, two)]
        accepted = sum(r.result(SECONDS_MAX).json["accepted"] for r in replies)
        assert accepted == 5
        (tmp_path / "ingest.toml").write_text(text.replace(KEY, ""))  # an invalid file
        two.signal(signal.SIGHUP)
        wait_until(lambda: "the tenants are unchanged" in two.errors(), "the invalid file is reported")
        assert send(two, "still").status == 200
        (tmp_path / "ingest.toml").write_text(text.replace(KEY, OTHER_KEY))
        two.signal(signal.SIGHUP)
        wait_until(lambda: send(two, "new").status == 401, "the old key is rejected")
        with IngestClient(two.endpoint, key=OTHER_KEY) as client:
            assert client.send("events", {"id": "new"}).status == 200
        assert KEY not in two.errors()
    ids = Table.open(tmp_path / "events").query("SELECT id FROM t ORDER BY id").fetchall()
    assert [i for (i,) in ids] == [*(f"id-{n}" for n in range(5)), "new", "still"]
