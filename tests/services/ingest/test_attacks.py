"""Hostile and malformed requests are rejected, and the events of other clients are committed."""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icedb import Table
from icedb.services.ingest.events.event_decoder import write_key
from icedb.services.ingest.events.rejections import RequestRejected
from tests.support.ingest.ingest_process import (
    ARROW,
    JSON,
    KEY,
    LINES,
    IngestClient,
    IngestProcess,
    arrow_stream,
    service_config,
)
from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.process

BODY_MAX = 200_000
LIMITS = f"""
body_bytes_max = {BODY_MAX}
held_bytes_max = {2 * BODY_MAX}
events_max = 1000
receive_timeout = "10m"
"""
HEAD = "POST /v1/tables/events/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEAD += f"Authorization: Bearer {KEY}\r\n"


@pytest.fixture(scope="module")
def service(lake: Path) -> Iterator[IngestProcess]:
    with IngestProcess(service_config(str(lake), server=LIMITS, events="columns_max = 50")) as service:
        yield service
        assert service.alive()
        assert "Traceback" not in service.errors(), service.errors()


@pytest.fixture
def client(service: IngestProcess, lake: Path) -> Iterator[IngestClient]:
    """A client, with a check that another client's event is committed after each attack."""
    with IngestClient(service.endpoint) as client:
        yield client
    with IngestClient(service.endpoint) as neighbour:
        reply = neighbour.send("events", {"n": 1})
        assert (reply.status, reply.json["accepted"]) == (200, 1)


def raw(service: IngestProcess, *pieces: bytes, end: bool = False) -> bytes:
    """Send raw bytes and return the response until the connection is closed."""
    with closing(connected(service)) as connection:
        for piece in pieces:
            connection.sendall(piece)
        if end:
            connection.shutdown(socket.SHUT_WR)
        rows = b""
        try:
            while piece := connection.recv(65536):
                rows += piece
        except ConnectionResetError:
            pass
        return rows


def connected(service: IngestProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS_MAX)


# ------------------------------------------------------------------------------------------------ too much


def test_bodies_that_are_too_large(service: IngestProcess, client: IngestClient) -> None:
    large = b'{"a": "' + b"x" * BODY_MAX + b'"}'
    reply = client.send("events", large)
    assert (reply.status, reply.json["error"]) == (413, "too_large")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (large[:9000] for _ in range(30))) + b"0\r\n\r\n"
    assert b" 413 " in raw(service, HEAD.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks)
    # The service does not wait for the announced body.
    assert b" 413 " in raw(service, HEAD.encode() + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bombs(client: IngestClient, encoding: str) -> None:
    zeros = b'{"a": "' + b"0" * 50_000_000 + b'"}'
    bomb = gzip.compress(zeros) if encoding == "gzip" else pa.compress(zeros, "zstd", asbytes=True)
    assert len(bomb) < BODY_MAX
    assert client.send("events", bomb, headers={"content-encoding": encoding}).status == 413


def test_a_body_of_countless_gzip_members(client: IngestClient) -> None:
    """The remaining bytes are copied for each member, so the number of members is limited."""
    nothing = gzip.compress(b"", mtime=0)
    headers = {"content-encoding": "gzip"}
    reply = client.send("events", gzip.compress(b"{}") + nothing * 5000, headers=headers)
    assert (reply.status, "more than 1000 gzip members" in reply.json["message"]) == (400, True)
    assert client.send("events", gzip.compress(b"{}") + nothing * 900, headers=headers).status == 200


def test_only_the_key_of_an_unauthenticated_body_is_decoded() -> None:
    assert write_key(b'{"batch": [[[[]]], {"writeKey": "no"}], "writeKey": "yes"}') == "yes"
    for body in (b"[]", b"{}", b'{"writeKey": 5}', b'{"writeKey": null}'):
        assert write_key(body) is None
    for body in (b"{", b'{"writeKey": "\xff"}', b'{"a": ' + b"[" * 100_000):
        with pytest.raises(RequestRejected) as refusal:
            write_key(body)
        assert refusal.value.status == 400


def test_an_id_under_another_spelling_of_its_column(client: IngestClient) -> None:
    """In a table without columns, the first spelling would become the column, and all other ids would not fit."""
    reply = client.send("events", {"ID": "x"})
    assert (reply.status, "Write 'id'" in reply.json["message"]) == (400, True)
    assert client.send("events", arrow_stream(pa.table({"Id": ["x"]})), kind=ARROW).status == 400
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["id", "id"])
    assert client.send("events", arrow_stream(twice), kind=ARROW).status == 400


def test_too_many_events_and_names(client: IngestClient) -> None:
    assert client.send("events", [{}] * 1001).status == 413
    assert client.send("events", b"{}\n" * 1001, kind=LINES).status == 413
    assert client.send("events", arrow_stream(pa.table({"n": range(1001)})), kind=ARROW).status == 413
    assert client.call("batch", {"batch": [{"type": "page", "userId": "u"}] * 1001}).status == 413
    for reply in (
        client.send("events", [{f"a{n}": 1} for n in range(51)]),
        client.send("events", arrow_stream(pa.table({f"a{n}": [1] for n in range(51)})), kind=ARROW),
        client.send("events", {"n" * 201: 1}),
    ):
        assert reply.status == 400
        assert len(reply.body) < 500


def test_an_endless_body_does_not_block_others(service: IngestProcess, client: IngestClient) -> None:
    """The body takes the memory of its tenant until its timeout or the end of its connection."""
    events = b"[" + b",".join([b'{"n": 1}'] * 100) + b"]"
    with closing(connected(service)) as slow:
        slow.sendall(HEAD.encode() + b"Content-Length: %d\r\n\r\n" % BODY_MAX + b"[" * (BODY_MAX - 10))
        service.wait_for_metric("icedb_ingest_held_bytes", BODY_MAX - 10)
        reply = client.send("events", events)
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert client.ask("GET", "/-/health").status == 200
    service.wait_for_metric("icedb_ingest_held_bytes", 0)
    assert client.send("events", events).status == 200


@pytest.mark.sampled(days=3)
def test_a_body_that_is_not_sent_whole_in_time_ends_its_connection(tmp_path: Path) -> None:
    limits = LIMITS.replace("10m", "1s")
    with (
        IngestProcess(service_config(str(tmp_path), server=limits)) as service,
        closing(connected(service)) as slow,
    ):
        slow.sendall(HEAD.encode() + b"Content-Length: 1000\r\n\r\n[")
        assert slow.recv(1000) == b""  # closed, without a response
        service.wait_for_metric("icedb_ingest_held_bytes", 0)


def test_unauthenticated_clients_cannot_fill_the_memory(service: IngestProcess, client: IngestClient) -> None:
    """If the key is in the body, the tenant is unknown until the body was received."""
    head = b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % BODY_MAX
    body = json.dumps({"writeKey": KEY, "batch": [], "context": {"text": "x" * 20_000}}).encode()
    with closing(connected(service)) as slow:
        slow.sendall(head + b"[" * (BODY_MAX - 10))
        service.wait_for_metric("icedb_ingest_held_bytes", BODY_MAX - 10)
        assert client.ask("POST", "/v1/batch", body).status == 503
        assert client.call("batch", json.loads(body)).status == 200  # authenticated clients have room


def test_too_large_or_ambiguous_heads_are_rejected(service: IngestProcess, client: IngestClient) -> None:
    head = HEAD.encode()
    for more, status in (
        (b"X: " + b"x" * 40_000 + b"\r\n\r\n", (b" 400 ", b" 431 ")),
        (b"Authorization: Bearer other\r\nContent-Length: 2\r\n\r\n{}", (b" 400 ",)),
        (b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", (b" 400 ",)),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", (b" 400 ",)),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", (b" 400 ",)),
        (b"Content-Length: -2\r\n\r\n{}", (b" 400 ",)),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", (b" 400 ",)),
        (b"Bad Header: 1\r\nContent-Length: 2\r\n\r\n{}", (b" 400 ",)),
    ):
        answer = raw(service, head + more, end=True)
        assert any(s in answer for s in status), (more[:50], answer)
        assert b" 200 " not in answer


# ------------------------------------------------------------------------------------------------ what is none


NO_EVENTS = [
    b"", b"nothing", b"{", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": -1e999}', b'{"a": 01}',
    b'{"a": "\xff\xfe"}', b"\xff\xfe{\x00}\x00", b'{"a": "\\ud800"}', b'{"a": 1}{"b": 2}', b"null", b'"text"',
    b"[[]]", b"[" * 100_000, b'{"a":' * 30_000 + b"1" + b"}" * 30_000, b'{"n": ' + b"9" * 40 + b"}",
    b'{"\\u0000": 1}', b'{"": 1}', b'{"a": "' + b"\x00" * 5 + b'"}',
]  # fmt: skip


@pytest.mark.sampled(days=3)
def test_invalid_events_are_rejected(client: IngestClient) -> None:
    for kind, body in product((JSON, LINES), NO_EVENTS):
        reply = client.send("events", body, kind=kind)
        if body == b"" and kind == LINES:
            assert (reply.status, reply.json["accepted"]) == (200, 0)
            continue
        assert (reply.status, reply.json["error"]) == (400, "bad_request"), (body[:50], reply.body)
        assert len(reply.body) < 600


def test_lines_are_named_by_their_number(client: IngestClient) -> None:
    assert "line 3 is not valid JSON" in client.send("events", b'{"n": 1}\n\n{"n": }\n', kind=LINES).json["message"]
    assert "line 2 is not UTF-8" in client.send("events", b'{"n": 1}\n"\xff"', kind=LINES).json["message"]
    assert "line 2 is not an object" in client.send("events", b'{"n": 1}\n2', kind=LINES).json["message"]


def test_the_last_value_of_a_repeated_name_wins(client: IngestClient, lake: Path) -> None:
    assert client.send("events", b'{"id": "first", "n": 1, "id": "last"}').status == 200
    rows = Table.open(lake / "events").query("SELECT id FROM t WHERE id IN ('first', 'last')").fetchall()
    assert rows == [("last",)]


@pytest.mark.parametrize(
    "kind",
    ["", "text/html", "application/json; charset=latin-1", "application/xml", "multipart/form-data", "json", ";" * 99],
)
def test_unsupported_media_types_are_rejected(client: IngestClient, kind: str) -> None:
    assert client.send("events", b"{}", kind=kind).status == 415


def test_invalid_or_inflated_arrow_is_rejected(client: IngestClient) -> None:
    sound = arrow_stream(pa.table({"id": ["arrow"], "kind": ["a"]}))
    text = pa.array(["x" * 50_000])
    many = pa.array([0] * 1000, pa.int32())
    lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
    wrong: list[bytes] = [
        b"",
        b"nothing",
        sound[: len(sound) // 2],
        struct.pack("<II", 0xFFFFFFFF, 2**31 - 1) + sound,
        arrow_stream(pa.table({"a": ["x" * 100_000]}), lz4),
        arrow_stream(pa.table({"a": pa.DictionaryArray.from_arrays(many, text)})),
        arrow_stream(pa.table({"a": pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), text)})),
        arrow_stream(pa.table({"a": pa.array(["x" * 100] * 3, pa.string_view())})),
        arrow_stream(pa.table({"a": pa.array([[None] * 3] * 3)})),
    ]
    for body in wrong:
        reply = client.send("events", body, kind=ARROW)
        assert reply.status in (400, 413), (body[:40], reply.body)
        assert len(reply.body) < 600


@pytest.mark.parametrize("rows", [-7, 2**40, -(2**62)])
def test_arrow_with_a_wrong_number_of_rows_is_rejected(client: IngestClient, rows: int) -> None:
    """Nulls take no bytes, and a negative number of rows would hide the rows of another batch."""
    body = arrow_stream(pa.table({"a": pa.nulls(7)})).replace(struct.pack("<q", 7), struct.pack("<q", rows))
    assert client.send("events", body, kind=ARROW).status == (400 if rows < 0 else 413)


@pytest.mark.sampled(days=3)
def test_arrow_with_any_byte_changed(client: IngestClient) -> None:
    """Buffers with invalid offsets must not be followed: each request is accepted or rejected."""
    sound = arrow_stream(pa.table({"kind": ["one", "two", None], "list": [[1], [2, 3], None]}))
    chance = random.Random(7)
    for _ in range(150):
        torn = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        assert client.send("shared", bytes(torn), kind=ARROW).status in (200, 400, 413)


# ------------------------------------------------------------------------------------------------ who and where


ADDRESSES = [
    "/v1/tables/../events", "/v1/tables/../../etc/events", "/v1/tables/%2e%2e/events",
    "/v1/tables/..%2f..%2fx/events", "/v1/tables//events", "/v1/tables/events%00/events", "/v1/tables/events/",
    "/v1/tables/events%0d%0aX-Evil:1/events", "/v1/tables/_log/events", "/v1/webhooks/%0d%0aX-Evil:1",
    "/v1/tables/EVENTS/events", "//v1/tables/events/events", "/",
]  # fmt: skip


def test_other_addresses_lead_nowhere(client: IngestClient, lake: Path) -> None:
    before = sorted(str(p.relative_to(lake.parent)) for p in lake.parent.glob("*"))
    for path in ADDRESSES:
        reply = client.ask("POST", path, b"{}", {"authorization": f"Bearer {KEY}", "content-type": JSON})
        assert reply.status in (401, 403, 404), path
        assert "x-evil" not in reply.headers
    assert sorted(str(p.relative_to(lake.parent)) for p in lake.parent.glob("*")) == before


NO_KEYS = [
    "", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"bearer{KEY}", f"Digest {KEY}", "Basic",
    "Basic !!!", "Basic Og==", "Basic " + "A" * 5000, "Bearer \xff\xfe", f"Bearer {KEY.upper()}", f"{KEY}",
    "Bearer " + "x" * 20_000,
]  # fmt: skip


def test_invalid_keys_are_rejected(client: IngestClient) -> None:
    for authorization in NO_KEYS:
        headers = {"authorization": authorization, "content-type": JSON}
        reply = client.ask("POST", "/v1/tables/events/events", b"{}", headers)
        assert (reply.status, reply.json["message"]) == (401, "The key is missing or unknown."), authorization


def test_other_methods(client: IngestClient) -> None:
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"):
        reply = client.ask(method, "/v1/tables/events/events", headers={"authorization": f"Bearer {KEY}"})
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.sampled(days=3)
def test_a_request_of_a_disconnected_client_is_atomic(service: IngestProcess, client: IngestClient, lake: Path) -> None:
    body = json.dumps([{"id": "gone-1"}, {"id": "gone-2"}]).encode()
    head = HEAD.encode() + b"Content-Length: %d\r\n\r\n" % len(body)
    for sent in (head + body, head + body[:10], head[:50]):
        with closing(connected(service)) as connection:
            connection.sendall(sent)
    assert client.send("events", [{"id": "gone-1"}, {"id": "gone-2"}]).status == 200
    rows: list[Any] = (
        Table.open(lake / "events").query("SELECT id FROM t WHERE id LIKE 'gone-%' ORDER BY id").fetchall()
    )
    assert rows == [("gone-1",), ("gone-2",)]
