"""Two tenants of one table, one of them hostile: the events of the other are committed in time."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
from icedb.services.ingest.config.config_check import check_config
from tests.support.ingest.ingest_process import (
    ARROW,
    KEY,
    OTHER_KEY,
    IngestClient,
    IngestProcess,
    IngestReply,
    arrow_stream,
)
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

PARTITIONS_MAX, COLUMNS_MAX = 20, 30
HOSTILE, VICTIM = KEY, OTHER_KEY


def config(folder: Path, *, table: str = "", hostile: str = "") -> str:
    return f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
[[table]]
name = "events"
uri = "{folder}/events"
create = true
partition_by = ["kind"]
tenant_column = "tenant"
delay_max = "300ms"
partitions_max = {PARTITIONS_MAX}
columns_max = {COLUMNS_MAX}
{table}
[[tenant]]
name = "acme"
tables = ["events"]
keys = [{{ secret = "{HOSTILE}" }}]
{hostile}
[[tenant]]
name = "globex"
tables = ["events"]
keys = [{{ secret = "{VICTIM}" }}]
"""


@pytest.fixture(scope="module")
def service(lake: Path) -> Iterator[IngestProcess]:
    with IngestProcess(config(lake)) as service:
        with IngestClient(service.endpoint, key=VICTIM) as client:
            assert client.send("events", {"kind": "visit", "n": 0}).status == 200
        yield service
        assert "Traceback" not in service.errors(), service.errors()


def at_once(service: IngestProcess, *requests: Callable[[IngestClient], IngestReply]) -> list[IngestReply]:
    """Send requests at the same moment, so that they wait for one commit."""
    ready = threading.Barrier(len(requests))

    def send(request: Callable[[IngestClient], IngestReply]) -> IngestReply:
        with IngestClient(service.endpoint) as client:
            client.ask("GET", "/-/health")
            ready.wait(60)
            return request(client)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, requests))


def sending(events: Any, key: str, kind: str = "application/json") -> Callable[[IngestClient], IngestReply]:
    return lambda client: client.send("events", events, key=key, kind=kind)


def victim(n: int) -> Callable[[IngestClient], IngestReply]:
    return sending([{"kind": "visit", "n": n}], VICTIM)


def numbers(lake: Path) -> list[int]:
    rows = Table.open(lake / "events").query("SELECT n FROM t WHERE tenant = 'globex' ORDER BY n").fetchall()
    return [n for (n,) in rows]


@pytest.mark.sampled(days=3)
def test_too_many_partitions_are_rejected_and_others_are_committed(service: IngestProcess, lake: Path) -> None:
    many = [{"kind": f"k{n}", "n": n} for n in range(3_000)]
    as_arrow = arrow_stream(pa.table({"kind": [f"k{n}" for n in range(3_000)], "n": range(3_000)}))
    replies = at_once(
        service, sending(many, HOSTILE), victim(1), sending(as_arrow, HOSTILE, ARROW), victim(2), sending(many, HOSTILE)
    )
    assert [r.status for r in replies] == [413, 200, 413, 200, 413]
    for refused in (replies[0], replies[2], replies[4]):
        assert refused.json["error"] == "too_many_partitions"
        assert "in 3000 partitions, and 20 are allowed" in refused.json["message"]
        assert str(lake) not in refused.json["message"]
    table = Table.open(lake / "events")
    assert {p.partition for p in table.snapshot().parts} == {"kind=visit"}
    assert len(list((lake / "events" / "_data").rglob("*.parquet"))) == len(table.snapshot().parts)  # none was written
    assert {1, 2} <= set(numbers(lake))


@pytest.mark.sampled(days=3)
def test_requests_within_partitions_max_never_make_a_commit_beyond_it(tmp_path: Path) -> None:
    """Many requests of few partitions each do not delay the neighbour by all of them."""
    text = config(tmp_path).replace('delay_max = "300ms"', 'delay_max = "10m"')
    each = PARTITIONS_MAX - 1
    flood = [sending([{"kind": f"f{r}-{n}", "n": 0} for n in range(each)], HOSTILE) for r in range(8)]
    with IngestProcess(text) as service, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(at_once, service, *flood, victim(10), victim(11))
        service.wait_for_metric('icedb_ingest_pending_rows{table="events"}', 8 * each + 2)
        service.signal(signal.SIGTERM)  # commits what is pending
        replies = sent.result(SECONDS_MAX)
    assert [r.status for r in replies] == [200] * 10
    table = Table.open(tmp_path / "events")
    of_commits: dict[int, int] = {}
    for part in table.snapshot().parts:
        of_commits[part.created_ms] = of_commits.get(part.created_ms, 0) + 1
    assert max(of_commits.values()) <= PARTITIONS_MAX
    assert len({p.partition for p in table.snapshot().parts if p.partition.startswith("kind=f")}) == 8 * each
    # Both requests of the neighbour are in one commit, and not in the last one.
    own = {r.json["commit"] for r in replies[8:]}
    assert len(own) == 1
    times = sorted(int(r.json["commit"].partition("-")[0]) for r in replies)
    assert int(own.pop().partition("-")[0]) <= times[3]


@pytest.mark.sampled(days=3)
def test_new_columns_end_at_columns_max(service: IngestProcess, lake: Path) -> None:
    """Each request has few names, but concurrent requests together have many."""
    with IngestClient(service.endpoint) as client:
        assert client.send("events", {"kind": "visit", "n": -1}).status == 200
    names = iter(range(1_000))
    requests = [sending({"kind": "visit", **{f"c{next(names)}": 1 for _ in range(5)}}, HOSTILE) for _ in range(12)]
    replies = at_once(service, *requests, victim(20))
    refused = [r for r in replies if r.status != 200]
    assert {(r.status, r.json["error"]) for r in refused} == {(400, "too_many_columns")}
    assert len(refused) >= 6
    assert replies[-1].status == 200
    columns = Table.open(lake / "events").schema()
    assert len(columns) <= COLUMNS_MAX
    assert len(columns) + 5 > COLUMNS_MAX
    with IngestClient(service.endpoint) as client:
        refusal = client.send("events", {f"d{n}": 1 for n in range(5)}).json  # rejected before anything is written
        assert f"The table has {len(columns)} of the 30 columns" in refusal["message"]
        refusal = client.send("events", arrow_stream(pa.table({f"d{n}": [1] for n in range(5)})), kind=ARROW).json
        assert refusal["error"] == "too_many_columns"
        assert client.send("events", {f"d{n}": None for n in range(5)} | {"kind": "visit"}).status == 200
        assert client.send("events", dict.fromkeys(columns, 1) | {"kind": "x"}).status == 400  # the tenant's column
        own_columns = [c for c in columns if c not in ("tenant", "kind")]
        assert client.send("events", {"kind": "visit"} | dict.fromkeys(own_columns, 1)).status == 200
        admin = service.metrics()
    assert f'icedb_ingest_table_columns{{table="events"}} {len(columns)}.0' in admin
    assert 'icedb_ingest_refused_requests_total{reason="too_many_columns",tenant="acme"}' in admin
    assert 20 in numbers(lake)


@pytest.mark.sampled(days=3)
def test_a_tenant_without_new_columns(tmp_path: Path) -> None:
    with (
        IngestProcess(config(tmp_path, hostile="new_columns = false")) as service,
        IngestClient(service.endpoint) as client,
    ):
        assert client.send("events", {"kind": "a", "n": 1}, key=VICTIM).status == 200
        refused = client.send("events", [{"kind": "a", "N2": 1}])
        assert (refused.status, refused.json["error"]) == (400, "too_many_columns")
        assert refused.json["message"].startswith("This tenant may not add columns to the table. The new columns are")
        assert client.send("events", {"kind": "a", "n": 2, "m": None}).status == 200
        assert client.send("events", {"kind": "a", "m": 2}, key=VICTIM).status == 200
        assert client.send("events", {"kind": "a", "m": 3}).status == 200  # the column exists now


@pytest.mark.sampled(days=3)
def test_bodies_of_one_tenant_do_not_block_others(tmp_path: Path) -> None:
    """The bodies are never sent whole, and take memory until their timeout."""
    limits = 'receive_timeout = "20s"\nbody_bytes_max = 200_000\nheld_bytes_max = 800_000\n[[table]]'
    text = config(tmp_path).replace("[[table]]", limits, 1)
    head = f"POST /v1/tables/events/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOSTILE}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
    with IngestProcess(text) as service, IngestClient(service.endpoint) as client, ExitStack() as slow:
        for _ in range(2):
            connection = slow.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=30))
            connection.sendall(head.encode() + b"[" * 199_000)
        service.wait_for_metric("icedb_ingest_held_bytes", 398_000)
        large = [{"kind": "a", "text": "x" * 20_000}]
        reply = client.send("events", large)
        assert (reply.status, reply.json["error"]) == (503, "unavailable")
        assert client.send("events", large, key=VICTIM).status == 200


def test_the_check_warns_of_an_open_schema_that_tenants_share(tmp_path: Path) -> None:
    path = tmp_path / "ingest.toml"

    def warnings(text: str) -> tuple[str, ...]:
        path.write_text(text)
        [checked] = check_config(path)
        assert checked.error is None
        return checked.warnings

    [warning] = warnings(config(tmp_path))
    assert "2 tenants write it, and its schema is open" in warning
    declared = 'schema_policy = "declared"\nschema = { kind = "VARCHAR", n = "BIGINT", tenant = "VARCHAR" }'
    assert warnings(config(tmp_path, table=declared)) == ()
    alone = config(tmp_path).rpartition("[[tenant]]")[0]
    assert warnings(alone) == ()
    # If the table exists, its schema policy counts, not that of the file.
    Table.create(tmp_path / "events", partition_by=["kind"], schema={"kind": "VARCHAR", "tenant": "VARCHAR"},
                 schema_policy="declared")  # fmt: skip
    assert warnings(config(tmp_path)) == ()
