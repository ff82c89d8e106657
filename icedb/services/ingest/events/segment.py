"""Calls of Segment as rows: `track`, `identify`, `page`, `screen`, `group`, `alias`, alone or in a `batch`.

Columns have the names of Segment's warehouses: `userId` becomes `user_id`. Objects (`properties`, `traits`, `context`)
become JSON text, so that the columns of a table do not depend on the contents of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["SEGMENT_CALLS", "SEGMENT_ID", "SEGMENT_SCHEMA", "segment_rows"]

#: Types of calls. Each is also the last segment of its URL path.
SEGMENT_CALLS = ("track", "identify", "page", "screen", "group", "alias")
#: The id column, by which a repeated call is recognized.
SEGMENT_ID = "message_id"

_TIME = "TIMESTAMP WITH TIME ZONE"
#: Columns and types of a table of calls.
SEGMENT_SCHEMA = {
    "type": "VARCHAR",
    "event": "VARCHAR",
    "name": "VARCHAR",
    "user_id": "VARCHAR",
    "anonymous_id": "VARCHAR",
    "group_id": "VARCHAR",
    "previous_id": "VARCHAR",
    SEGMENT_ID: "VARCHAR",
    "timestamp": _TIME,
    "original_timestamp": _TIME,
    "sent_at": _TIME,
    "received_at": _TIME,
    "properties": "VARCHAR",
    "traits": "VARCHAR",
    "context": "VARCHAR",
}
_TEXTS = {
    "event": "event",
    "name": "name",
    "userId": "user_id",
    "anonymousId": "anonymous_id",
    "groupId": "group_id",
    "previousId": "previous_id",
    "messageId": SEGMENT_ID,
}
_TIMES = {"timestamp": "timestamp", "originalTimestamp": "original_timestamp", "sentAt": "sent_at"}
_OBJECTS = {"properties": "properties", "traits": "traits", "context": "context"}

_encode = msgspec.json.Encoder(order="sorted").encode


def segment_rows(document: object, kind: str | None, received: datetime) -> list[dict[str, Any]]:
    """Return the rows of one request. Raises RequestRejected (400), which names the invalid call.

    `kind` is the type of the call in the URL, `batch`, or None if each call has its type (webhooks).
    """
    if kind == "batch":
        if not isinstance(document, dict) or not isinstance(document.get("batch"), list):
            raise RequestRejected(400, 'the body is not a batch. Send {"batch": [{"type": "track", ...}, ...]}.')
        calls, shared = document["batch"], document
        return [_row(call, None, shared, received, f"batch[{n}]") for n, call in enumerate(calls)]
    if kind is None and isinstance(document, list):
        return [_row(call, None, {}, received, f"call {n}") for n, call in enumerate(document)]
    return [_row(document, kind, {}, received, "the call")]


def _row(call: object, kind: str | None, batch: Mapping[str, Any], received: datetime, place: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RequestRejected(400, f"{place} is not an object.")
    kind = kind or call.get("type")
    if kind not in SEGMENT_CALLS:
        raise RequestRejected(400, f"{place}: the type is not supported. Send one of {', '.join(SEGMENT_CALLS)}.")
    if call.get("userId") is None and call.get("anonymousId") is None and kind != "alias":
        raise RequestRejected(400, f"{place} ({kind}) has neither userId nor anonymousId. Send one of them.")
    if kind == "track" and not call.get("event"):
        raise RequestRejected(400, f"{place} (track) has no event. Send the name of the user's action.")
    row: dict[str, Any] = {"type": kind}
    for name, column in _TEXTS.items():
        row[column] = _text(call.get(name), f"{place}: {name}")
    for name, column in _TIMES.items():
        row[column] = _time(call.get(name, batch.get(name)), f"{place}: {name}")
    row["timestamp"] = row["timestamp"] or row["original_timestamp"] or received
    row["received_at"] = received
    shared = batch.get("context")
    for name, column in _OBJECTS.items():
        value = call.get(name)
        if value is not None and not isinstance(value, dict):
            raise RequestRejected(400, f"{place}: {name} is not an object.")
        if name == "context" and isinstance(shared, dict):
            value = {**shared, **(value or {})}
        row[column] = None if value is None else _encode(value).decode()
    return row


def _text(value: object, place: str) -> str | None:
    """Return a text. Some clients send ids as numbers."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RequestRejected(400, f"{place} is neither text nor a whole number.")


def _time(value: object, place: str) -> datetime | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise RequestRejected(400, f"{place} is not a time. Write 2026-11-21T10:00:00.000Z.")
