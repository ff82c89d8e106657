"""Segment's libraries and webhooks write into a table if only their URL is changed."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.services.ingest.events.segment import SEGMENT_SCHEMA
from tests.support.ingest.ingest_process import (
    KEY,
    OTHER_KEY,
    SECRET,
    IngestClient,
    IngestProcess,
    IngestReply,
    service_config,
)

pytestmark = pytest.mark.process

MOMENT = "2026-11-21T10:00:00.123Z"


@pytest.fixture(scope="module")
def service(lake: Path) -> Iterator[IngestProcess]:
    with IngestProcess(service_config(str(lake))) as service:
        yield service


def stored(lake: Path, columns: str, where: str) -> list[tuple[Any, ...]]:
    return Table.open(lake / "calls").query(f"SELECT {columns} FROM t WHERE {where} ORDER BY message_id").fetchall()


def webhook(client: IngestClient, document: Any, *, secret: str = SECRET, tenant: str = "acme") -> IngestReply:
    body = json.dumps(document).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()
    headers = {"content-type": "application/json", "x-signature": signature}
    return client.ask("POST", f"/v1/webhooks/{tenant}", body, headers)


@pytest.mark.parametrize("packed", [False, True])
def test_its_own_library_sends_every_kind_of_call(service: IngestProcess, lake: Path, packed: bool) -> None:
    from segment.analytics.client import Client as SegmentClient  # large, and each worker imports this module

    errors: list[object] = []
    library = SegmentClient(
        KEY,
        host=service.endpoint,
        gzip=packed,
        max_retries=0,
        on_error=lambda e, _: errors.append(e),
        upload_interval=0.05,
    )
    user = f"library-{packed}"
    library.identify(user, {"plan": "team"})
    library.track(user, "Order Completed", {"total": 30, "items": [{"sku": "a"}]})
    library.page(user, "Docs", "Home", {"path": "/"})
    library.screen(user, "Docs", "Main", {"size": 5})
    library.group(user, "group-1", {"name": "Acme"})
    library.alias("visitor-1", user)
    library.shutdown()
    assert errors == []
    columns = "type, event, name, properties, traits, group_id, previous_id"
    rows = {kind: row for kind, *row in stored(lake, columns, f"user_id = '{user}'")}
    assert rows["track"][0] == "Order Completed"
    assert json.loads(rows["track"][2]) == {"total": 30, "items": [{"sku": "a"}]}
    assert json.loads(rows["identify"][3]) == {"plan": "team"}
    assert (rows["page"][1], rows["screen"][1], rows["group"][4]) == ("Home", "Main", "group-1")
    assert rows["alias"][5] == "visitor-1"
    [(context, in_order)] = stored(
        lake, "context, timestamp <= sent_at AND sent_at <= received_at", f"user_id = '{user}' AND type = 'track'"
    )
    assert json.loads(context)["library"]["name"] == "analytics-python"
    assert in_order


@pytest.mark.sampled(days=3)
def test_each_call_has_a_url_and_is_committed_once(client: IngestClient, lake: Path) -> None:
    for call in ("track", "identify", "page", "screen", "group", "alias"):
        document = {"messageId": f"own-{call}", "userId": 7, "event": "Opened", "timestamp": MOMENT, "previousId": "x"}
        first, again = client.call(call, document), client.call(call, document)
        assert (first.status, first.json["success"], first.json["accepted"]) == (200, True, 1)
        assert (again.json["accepted"], again.json["repeated"]) == (0, 1)
    at = datetime(2026, 11, 21, 10, 0, 0, 123_000, UTC)
    assert stored(lake, "type, user_id, timestamp", "message_id IN ('own-track', 'own-page')") == [
        ("page", "7", at), ("track", "7", at),
    ]  # fmt: skip
    assert Table.open(lake / "calls").schema() == SEGMENT_SCHEMA


def test_a_batch_shares_context_and_the_time_it_was_sent(client: IngestClient, lake: Path) -> None:
    batch = [
        {"type": "track", "messageId": "shared-1", "anonymousId": "a", "event": "One", "context": {"ip": "::1"}},
        {"type": "identify", "messageId": "shared-2", "anonymousId": "a", "traits": {}, "originalTimestamp": MOMENT},
    ]
    reply = client.call("batch", {"batch": batch, "context": {"app": "x", "ip": "?"}, "sentAt": MOMENT})
    assert reply.json["accepted"] == 2
    sent = "sent_at = TIMESTAMPTZ '2026-11-21 10:00:00.123Z'"
    one, two = stored(lake, f"context, timestamp = received_at, {sent}", "message_id LIKE 'shared-_'")
    assert (json.loads(one[0]), json.loads(two[0])) == ({"app": "x", "ip": "::1"}, {"app": "x", "ip": "?"})
    assert (one[1:], two[1:]) == ((True, True), (False, True))


def test_the_key_may_be_in_the_body(client: IngestClient, lake: Path) -> None:
    def send(document: Any) -> IngestReply:
        return client.ask("POST", "/v1/track", json.dumps(document).encode(), {"content-type": "text/plain"})

    call = {"userId": "body", "event": "Sent", "messageId": "body-1"}
    assert send({**call, "writeKey": KEY}).status == 200
    assert [send({**call, "writeKey": key}).status for key in ("nobody-0123456789", 5, None)] == [401, 401, 401]
    assert (send([call]).status, send({**call, "writeKey": OTHER_KEY}).status) == (401, 403)
    assert len(stored(lake, "event", "user_id = 'body'")) == 1


def test_a_webhook_is_signed_or_has_a_key(client: IngestClient, lake: Path) -> None:
    call = {"type": "track", "userId": "hook", "event": "Hooked", "messageId": "hook-1", "version": 1}
    assert webhook(client, call).json["accepted"] == 1
    both = webhook(client, [call, {**call, "messageId": "hook-2"}])
    assert (both.json["accepted"], both.json["repeated"]) == (1, 1)
    refused = [
        webhook(client, call, secret="another-secret-0123"),
        webhook(client, call, tenant="globex"),
        webhook(client, call, tenant="nobody"),
        client.ask("POST", "/v1/webhooks/acme", json.dumps(call).encode()),
    ]
    assert [r.status for r in refused] == [401] * 4
    assert len({r.body for r in refused}) == 1  # a response does not reveal which tenants exist
    keyed = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    body = json.dumps({**call, "messageId": "hook-3"}).encode()
    assert client.ask("POST", "/v1/webhooks/acme", body, keyed).status == 200
    assert client.ask("POST", "/v1/webhooks/globex", body, keyed).status == 403
    assert len(stored(lake, "event", "user_id = 'hook'")) == 3


@pytest.mark.parametrize(
    ("call", "document", "message"),
    [
        ("track", {"userId": "u"}, "the call (track) has no event"),
        ("track", {"event": "e"}, "has neither userId nor anonymousId"),
        ("track", [1], "the call is not an object"),
        ("track", {"userId": "u", "event": "e", "properties": [1]}, "properties is not an object"),
        ("track", {"userId": {"a": 1}, "event": "e"}, "userId is neither text nor a whole number"),
        ("track", {"userId": True, "event": "e"}, "userId is neither"),
        ("page", {"userId": "u", "timestamp": "soon"}, "timestamp is not a time"),
        ("page", {"userId": "u", "timestamp": "9999-12-31T23:59:59-14:00"}, "timestamp is not a time"),
        ("page", {"userId": "u", "sentAt": 5}, "sentAt is not a time"),
        ("batch", {"userId": "u"}, "the body is not a batch"),
        ("batch", {"batch": [{"type": "page", "userId": "u"}, {"type": "buy"}]}, "batch[1]: the type is not supported"),
        ("batch", {"batch": [{"type": [], "userId": "u"}]}, "batch[0]: the type is not supported"),
    ],
)  # fmt: skip
def test_the_invalid_call_is_named(client: IngestClient, call: str, document: Any, message: str) -> None:
    reply = client.call(call, document)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert message in reply.json["message"]


@pytest.mark.sampled(days=3)
def test_a_tenant_without_a_table_for_calls_is_rejected(client: IngestClient) -> None:
    assert client.call("track", {"userId": "u", "event": "e"}, key=OTHER_KEY).status == 403
    assert client.ask("GET", "/v1/track").headers["allow"] == "POST"
