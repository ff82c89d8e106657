"""Decoding of events from JSON, JSON lines or Arrow to rows. A rejection names the invalid event.

JSON is decoded strictly: UTF-8, no NaN, no Infinity. If a name occurs twice in an object, the last value wins.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from icedb.services.ingest.events.arrow_events import decode_arrow_stream
from icedb.services.ingest.events.rejections import RequestRejected

__all__ = ["MEDIA_TYPES", "decode_json", "media_type", "decode_events", "write_key"]

_JSON = "application/json"
_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_ARROW = "application/vnd.apache.arrow.stream"
#: Media types of events.
MEDIA_TYPES = (_JSON, *_LINES, _ARROW)

_decoder = msgspec.json.Decoder()


class _Keyed(msgspec.Struct):
    writeKey: str | None = None  # noqa: N815  the name in Segment's API


_key_decoder = msgspec.json.Decoder(_Keyed)


def media_type(content_type: str) -> str:
    """Return the media type of a `Content-Type` in lower case. Raises RequestRejected (415) unless it is UTF-8."""
    kind, *parameters = (piece.strip().lower() for piece in content_type.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise RequestRejected(415, "The charset is not utf-8. Send UTF-8.")
    return kind


def decode_events(body: bytes, kind: str, *, events_max: int) -> list[dict[str, Any]] | pa.Table:
    """Decode the events of a body to dicts or an Arrow table. Raises RequestRejected (400, 413, 415)."""
    if kind == _ARROW:
        return decode_arrow_stream(body, events_max=events_max)
    if kind in _LINES:
        rows = _lines(body)
        place = "line"
    elif kind == _JSON:
        document = decode_json(body)
        rows = document if isinstance(document, list) else [document]
        place = "event"
    else:
        raise RequestRejected(415, f"The Content-Type is not supported. Send one of {', '.join(MEDIA_TYPES)}.")
    if len(rows) > events_max:
        raise RequestRejected(413, f"The request has {len(rows)} events; the limit is {events_max}. Send fewer.")
    for number, row in enumerate(rows):
        if type(row) is not dict:
            at = number + 1 if place == "line" else number
            raise RequestRejected(
                400, f"{place} {at} is not an object. Send {{...}} for one event, [{{...}}, ...] for several."
            )
    return rows


def decode_json(body: bytes) -> Any:
    """Decode a JSON body. Raises RequestRejected (400)."""
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError as error:
        raise RequestRejected(400, f"The body is not UTF-8 (byte {error.start}).") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestRejected(400, f"The body is not valid JSON: {_why(error)}.") from None


def write_key(body: bytes) -> str | None:
    """Return the key in a call of Segment's libraries, or None. Raises RequestRejected (400) for invalid JSON.

    Nothing else of the body is decoded, because the client is not authenticated yet.
    """
    try:
        return _key_decoder.decode(body).writeKey
    except UnicodeDecodeError:
        raise RequestRejected(400, "The body is not UTF-8.") from None
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestRejected(400, f"The body is not valid JSON: {_why(error)}.") from None


def _lines(body: bytes) -> list[Any]:
    rows = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(_decoder.decode(line))
            except UnicodeDecodeError:
                raise RequestRejected(400, f"line {number} is not UTF-8.") from None
            except (msgspec.DecodeError, RecursionError) as error:
                raise RequestRejected(400, f"line {number} is not valid JSON: {_why(error)}.") from None
    return rows


def _why(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
