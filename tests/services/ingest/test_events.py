"""Events in every supported form are in the table when `icedb ingest` responds."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from icedb import Table
from icedb.util.clock import SystemClock, writer_name
from tests.support.ingest.ingest_process import (
    ARROW,
    KEY,
    LINES,
    OTHER_KEY,
    IngestClient,
    IngestProcess,
    arrow_stream,
    service_config,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def service(lake: Path) -> Iterator[IngestProcess]:
    slow = '[[tenant]]\nname = "slow"\ntables = ["shared"]\nevents_per_second = 1\n'
    slow += '[[tenant.keys]]\nsecret = "slow-key-0123456789"\n'
    with IngestProcess(
        service_config(str(lake), server="body_bytes_max = 100000\nevents_max = 1000", more=slow)
    ) as service:
        yield service


def stored(lake: Path, table: str, columns: str, where: str) -> list[tuple[Any, ...]]:
    return Table.open(lake / table).query(f"SELECT {columns} FROM t WHERE {where} ORDER BY id").fetchall()


def test_an_object_an_array_lines_and_arrow_stream(client: IngestClient, lake: Path) -> None:
    replies = [
        client.send("events", {"id": "form-1", "n": 1}),
        client.send("events", [{"id": "form-2", "n": 2}, {"id": "form-3", "new": "x"}]),
        client.send("events", b'{"id": "form-4", "n": 4}\r\n\n{"id": "form-5", "n": 5}', kind=LINES),
        client.send("events", arrow_stream(pa.table({"id": ["form-6"], "n": [6]})), kind=ARROW),
    ]
    assert [(r.status, r.json["accepted"], r.json["repeated"]) for r in replies] == [
        (200, 1, 0), (200, 2, 0), (200, 2, 0), (200, 1, 0),
    ]  # fmt: skip
    assert all(re.fullmatch(r"[0-9]{13}-[0-9a-f]{16}", r.json["commit"]) for r in replies)
    assert stored(lake, "events", "id, n", "id LIKE 'form-%'") == [
        ("form-1", 1), ("form-2", 2), ("form-3", None), ("form-4", 4), ("form-5", 5), ("form-6", 6),
    ]  # fmt: skip


@pytest.mark.sampled(days=3)
def test_rows_are_committed_before_the_response(client: IngestClient, lake: Path) -> None:
    table = Table.open(lake / "events")
    for n in range(5):
        assert client.send("events", {"id": f"now-{n}"}).status == 200
        assert table.query(f"SELECT count(*) FROM t WHERE id = 'now-{n}'").fetchall() == [(1,)]


def test_a_repeated_id_is_committed_once(client: IngestClient, lake: Path) -> None:
    first = client.send("events", [{"id": "twice-1"}, {"id": "twice-2"}])
    again = client.send("events", [{"id": "twice-2"}, {"id": "twice-3"}, {"id": "twice-3"}])
    assert (first.json["accepted"], again.json["accepted"], again.json["repeated"]) == (2, 1, 2)
    assert len(stored(lake, "events", "id", "id LIKE 'twice-%'")) == 3


def test_values_are_converted_to_the_types_of_the_table(client: IngestClient, lake: Path) -> None:
    event = {
        "id": "value-1", "ts": "2026-11-21T11:00:00.5+01:00", "price": 19.99, "data": "a text",
        "deep": {"b": [1, {"c": 2}]},
    }  # fmt: skip
    assert client.send("events", event).status == 200
    assert client.send("events", {"id": "value-2", "ts": "2026-11-21", "price": 5, "data": {"a": [1]}}).status == 200
    assert stored(lake, "events", "ts, price, data, deep", "id LIKE 'value-%'") == [
        (datetime(2026, 11, 21, 10, 0, 0, 500_000, UTC), Decimal("19.99"), '"a text"', '{"b":[1,{"c":2}]}'),
        (datetime(2026, 11, 21, tzinfo=UTC), Decimal("5.00"), '{"a":[1]}', None),
    ]
    [(received, clock)] = stored(lake, "events", "received_at, now()", "id = 'value-1'")
    assert received <= clock


def test_nested_values_become_columns_with_nested_columns(client: IngestClient, lake: Path) -> None:
    assert client.send("shared", {"id": "n", "spot": {"x": 1, "y": [2]}}).status == 200
    assert stored(lake, "shared", "spot.x, spot.y, tenant", "id = 'acme/n'") == [(1, [2], "acme")]


def test_tenants_share_a_table_and_not_their_ids(client: IngestClient, lake: Path) -> None:
    mine = client.send("shared", [{"id": "same"}, {"id": 7}, {}])
    theirs = client.send("shared", [{"id": "same"}], key=OTHER_KEY)
    theirs_by_arrow = client.send(
        "shared", arrow_stream(pa.table({"id": ["same", "more", "", None]})), kind=ARROW, key=OTHER_KEY
    )
    assert [r.json["accepted"] for r in (mine, theirs, theirs_by_arrow)] == [3, 1, 3]
    assert stored(lake, "shared", "id, tenant", "id IN ('acme/same', 'acme/7', 'globex/same', 'globex/more')") == [
        ("acme/7", "acme"), ("acme/same", "acme"), ("globex/more", "globex"), ("globex/same", "globex"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["tenant", "Tenant", "_partition", "_PARTITION"])
@pytest.mark.parametrize("form", ["json", "arrow"])
def test_columns_of_the_service_cannot_be_forged(client: IngestClient, name: str, form: str) -> None:
    if form == "json":
        reply = client.send("shared", [{"id": "forged"}, {name: "tenant=globex"}])
        assert reply.json["message"].startswith("event 1")
    else:
        reply = client.send("shared", arrow_stream(pa.table({name: ["tenant=globex"]})), kind=ARROW)
    assert (reply.status, reply.json["error"]) == (400, "bad_request")
    assert f"only the service sets the column '{name}'" in reply.json["message"]


def test_compressed_bodies(client: IngestClient, lake: Path) -> None:
    lines = b'{"id": "packed-1"}\n{"id": "packed-2"}'
    packed = {"gzip": gzip.compress(lines), "zstd": pa.compress(lines, "zstd", asbytes=True)}
    for encoding, body in packed.items():
        assert client.send("events", body, kind=LINES, headers={"content-encoding": encoding}).status == 200
    assert len(stored(lake, "events", "id", "id LIKE 'packed-%'")) == 2
    other = client.send("events", lines, kind=LINES, headers={"content-encoding": "br"})
    assert (other.status, other.headers["accept-encoding"]) == (415, "gzip, zstd")
    for encoding in packed:
        torn = client.send("events", packed[encoding][:-4], kind=LINES, headers={"content-encoding": encoding})
        assert torn.status == 400


def test_arrow_dictionaries_are_decoded(client: IngestClient, lake: Path) -> None:
    table = pa.table({"id": ["dictionary-1", "dictionary-2"], "kind": pa.array(["a", "a"]).dictionary_encode()})
    assert client.send("events", arrow_stream(table), kind=ARROW).status == 200
    assert stored(lake, "events", "kind", "id LIKE 'dictionary-%'") == [("a",), ("a",)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"n": 1}, {"n": "one"}], "'n' are not of one type: BIGINT, and VARCHAR in row 1"),
        ([{"id": "bad"}, {"ts": "yesterday"}], "'ts' is TIMESTAMP WITH TIME ZONE, but the value is 'yesterday'"),
        ([{"n": "one"}], "column 'n' is BIGINT in the table and VARCHAR"),
        ([{"id": "bad"}, {"id": [1]}], "row 1 has a "),
        ([{"id": "bad"}, 5], "event 1 is not an object"),
    ],
)  # fmt: skip
def test_an_invalid_event_is_named(client: IngestClient, lake: Path, events: list[Any], message: str) -> None:
    reply = client.send("events", events)
    assert reply.status == 400
    assert message in reply.json["message"]
    assert str(lake) not in reply.json["message"]
    assert stored(lake, "events", "id", "id = 'bad'") == []


def test_a_row_that_has_no_partition_is_refused(client: IngestClient, lake: Path) -> None:
    reply = client.send("shared", [{"id": "day-1", "day": "2026-11-21"}, {"id": "day-2", "day": "never"}])
    assert (reply.status, "cannot be partitioned" in reply.json["message"]) == (400, True)
    assert client.send("shared", [{"id": "day-1", "day": "2026-11-21"}]).json["accepted"] == 1
    assert stored(lake, "shared", "d", "id LIKE 'acme/day-%'") == [(date(2026, 11, 21),)]


@pytest.mark.sampled(days=3)
def test_neighbours_of_a_bad_request_are_committed(service: IngestProcess, lake: Path) -> None:
    """The requests arrive together, so they are in one group commit."""
    replies: dict[int, int] = {}

    def send(n: int) -> None:
        with IngestClient(service.endpoint) as client:
            replies[n] = client.send("events", {"id": f"neighbour-{n}", "n": "bad" if n == 3 else n}).status

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(8)))
    assert replies == {n: 400 if n == 3 else 200 for n in range(8)}
    assert [i for (i,) in stored(lake, "events", "id", "id LIKE 'neighbour-%'")] == [
        f"neighbour-{n}" for n in range(8) if n != 3
    ]


def test_a_rejection_for_the_rate_has_retry_after(service: IngestProcess) -> None:
    with IngestClient(service.endpoint, key="slow-key-0123456789") as client:
        assert client.send("shared", [{"n": n} for n in range(50)]).status == 200  # a debt of 49 seconds
        refused = client.send("shared", {"n": 1})
        assert (refused.status, refused.json["error"]) == (429, "slow_down")
        assert 1 <= int(refused.headers["retry-after"]) <= 49
        assert client.send("shared", {"n": 1}, key=OTHER_KEY).status == 200  # other tenants are not limited


def test_invalid_keys_are_unauthorized_and_valid_ones_accepted(client: IngestClient) -> None:
    old = client.send("events", {"id": "key-1"}, key=f"{KEY}-old")
    assert old.status == 200, "both keys are valid during a rotation"
    wrong = client.send("events", {}, key="nobody-0123456789")
    none = client.ask("POST", "/v1/tables/events/events", b"{}", {"content-type": "application/json"})
    assert (wrong.status, none.status, wrong.json) == (401, 401, none.json)
    assert wrong.headers["www-authenticate"].startswith("Bearer")
    elsewhere, nowhere = client.send("events", {}, key=OTHER_KEY), client.send("nothing", {}, key=OTHER_KEY)
    assert (elsewhere.status, nowhere.status, elsewhere.json) == (403, 403, nowhere.json)


def test_health_and_metrics(service: IngestProcess, client: IngestClient) -> None:
    client.send("events", {"id": "counted", "n": 1})
    client.send("events", {"id": "not-counted"}, key="wrong-key-0123456789")
    assert client.ask("GET", "/-/health").status == client.ask("GET", "/-/ready").status == 200
    assert client.ask("GET", "/metrics").status == 404  # not for clients
    with IngestClient(service.admin) as admin:
        assert admin.ask("GET", "/health").json == admin.ask("GET", "/ready").json == {"status": "ok"}
        families = {f.name: f for f in text_string_to_metric_families(admin.ask("GET", "/metrics").body.decode())}

    def value(name: str, **labels: str) -> float:
        samples = (s for s in families[name].samples if s.name in (name, f"{name}_total"))
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    assert value("icedb_ingest_requests", tenant="acme", endpoint="events", status="200") >= 1
    assert value("icedb_ingest_events", tenant="acme", table="events") >= 1
    assert value("icedb_ingest_refused_requests", tenant="", reason="unauthorized") >= 1
    assert value("icedb_ingest_committed_rows", table="events") >= 1
    assert value("icedb_ingest_commits", table="events") >= 1
    assert value("icedb_ingest_pending_rows", table="events") == 0
    commits = [s for s in families["icedb_ingest_commit_duration_seconds"].samples if s.labels["table"] == "events"]
    [everything, counted] = [s.value for s in commits if s.labels.get("le") == "+Inf" or s.name.endswith("_count")]
    assert everything == counted >= value("icedb_ingest_commits", table="events")
    assert value("icedb_ingest_held_bytes") == 0


@pytest.mark.sampled(days=3)
def test_a_line_for_each_request_without_keys(service: IngestProcess, client: IngestClient) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"user-agent": "a\tb\x1b[31m", "traceparent": f"00-{trace}-{span}-01"}
    reply = client.send("events", [{"id": "line-1"}, {"id": "line-1"}], headers=headers)
    client.send("events", {"id": "line-2"}, key="nobody-0123456789")
    with IngestClient(service.endpoint) as another:
        another.ask("GET", "/-/health")
    lines = {line["request_id"]: line for line in service.access_log()}
    line = lines[reply.headers["x-request-id"]]
    expected = {"tenant": "acme", "table": "events", "status": 200, "events": 1, "repeated": 1}
    assert expected.items() <= line.items()
    assert (line["trace_id"], line["span_id"]) == (trace, span)
    assert line["commit"] == reply.json["commit"]
    assert line["log_file"].startswith(f"_log/{line['commit'].partition('-')[0]}_")  # names the commit for an operator
    host = writer_name(SystemClock()).rsplit("-", 2)[0]
    assert f"_{host}-{service.process.pid}-" in line["log_file"]
    assert host not in str((reply.headers, reply.json))
    assert "\x1b" not in line["user_agent"]
    for secret in (KEY, "nobody-0123456789", "line-1"):
        assert secret not in json.dumps(lines)
