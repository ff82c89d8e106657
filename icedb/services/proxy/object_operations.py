"""Operations on objects: GetObject and HeadObject, with the conditions and ranges of RFC 9110 that S3 supports."""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from icedb.services.proxy.catalog.bucket_view import VirtualObject
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import ObjectRange, S3Response, http_date
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.storage.obstore_store import ObjectStore, presign

__all__ = ["get_bytes", "get_object"]

# Some clients write the largest 64-bit number for "to the end".
_RANGE = re.compile(r"bytes=(?P<first>\d{0,30})-(?P<last>\d{0,30})", re.ASCII)
PART_NUMBER_MAX = 10_000


def get_object(
    object_: VirtualObject, store: ObjectStore, request: S3Request, *, redirect_for: timedelta | None = None
) -> S3Response:
    """Respond to GetObject and HeadObject. Raises S3Error.

    GET requests are redirected to a presigned URL of the store that is valid for `redirect_for` (None: never). If the
    store has no presigned URLs, the proxy reads the object.
    """
    if _not_modified(object_, request):
        return S3Response(304, _validators(object_))
    bounds = _bounds(object_, request)
    start, stop = bounds or (0, object_.bytes)
    if redirect_for is not None and request.method == "GET" and request.parameter("partNumber") is None:
        address = presign(store, object_.stored_key, expires=redirect_for)
        if address is not None:
            return S3Response(307, (("location", address), ("cache-control", "no-store")))
    headers = _headers(object_, bounds, "application/vnd.apache.parquet")
    content = ObjectRange(store, object_.stored_key, start, stop) if request.method == "GET" and start < stop else None
    return S3Response(206 if bounds else 200, headers, content=content)


def get_bytes(object_: VirtualObject, body: bytes, content_type: str, request: S3Request) -> S3Response:
    """Respond to GetObject and HeadObject of an object whose content is in memory. Raises S3Error."""
    if _not_modified(object_, request):
        return S3Response(304, _validators(object_))
    bounds = _bounds(object_, request)
    start, stop = bounds or (0, object_.bytes)
    return S3Response(206 if bounds else 200, _headers(object_, bounds, content_type), body[start:stop])


def _validators(object_: VirtualObject) -> tuple[tuple[str, str], ...]:
    return ("etag", object_.etag), ("last-modified", http_date(object_.modified_ms)), ("accept-ranges", "bytes")


def _headers(object_: VirtualObject, bounds: tuple[int, int] | None, content_type: str) -> tuple[tuple[str, str], ...]:
    start, stop = bounds or (0, object_.bytes)
    return (
        *_validators(object_),
        ("content-type", content_type),
        ("content-length", str(stop - start)),
        *((("content-range", f"bytes {start}-{stop - 1}/{object_.bytes}"),) if bounds else ()),
    )


def _not_modified(object_: VirtualObject, request: S3Request) -> bool:
    """Return whether the client has the object. Raises S3Error (PreconditionFailed) if a precondition fails."""
    match, none_match = request.header("if-match"), request.header("if-none-match")
    if match is not None:
        if not _names(match, object_.etag):
            raise S3Error("PreconditionFailed")
    elif (since := _seconds(request.header("if-unmodified-since"))) is not None and object_.modified_ms // 1000 > since:
        raise S3Error("PreconditionFailed")
    if none_match is not None:
        return _names(none_match, object_.etag)
    modified = _seconds(request.header("if-modified-since"))
    return modified is not None and object_.modified_ms // 1000 <= modified


def _names(condition: str, etag: str) -> bool:
    """Return whether a list of ETags has one. As in S3, quotes may be missing."""
    etags = {c.strip().removeprefix("W/").strip('"') for c in condition.split(",")}
    return "*" in etags or etag.strip('"') in etags


def _seconds(date: str | None) -> float | None:
    """Return unix seconds. An invalid date counts as absent (RFC 9110, 13.1.3)."""
    if date is None:
        return None
    try:
        moment = parsedate_to_datetime(date)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def _bounds(object_: VirtualObject, request: S3Request) -> tuple[int, int] | None:
    """Return the first byte and the byte after the last, or None for the whole object."""
    part, range_ = request.parameter("partNumber"), request.header("range")
    if part is not None:
        return _part_bounds(object_, part, range_)
    if range_ is None or not _range_applies(object_, request):
        return None
    ranged = _RANGE.fullmatch(range_.strip())
    if ranged is None or ranged["first"] == ranged["last"] == "":
        return None  # several ranges, or invalid: the whole object is a valid response
    if ranged["first"] == "":
        start, stop = max(0, object_.bytes - int(ranged["last"])), object_.bytes
    else:
        start = int(ranged["first"])
        stop = object_.bytes if ranged["last"] == "" else min(int(ranged["last"]) + 1, object_.bytes)
        if ranged["last"] != "" and int(ranged["last"]) < start:
            return None
    if start >= stop:
        raise S3Error("InvalidRange", headers=(("content-range", f"bytes */{object_.bytes}"),))
    return start, stop


def _part_bounds(object_: VirtualObject, part: str, range_: str | None) -> tuple[int, int] | None:
    """Return the bounds of a part by number. Each object has one part."""
    if range_ is not None:
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter.")
    if not (part.isascii() and part.isdigit() and len(part) <= 5 and 1 <= int(part) <= PART_NUMBER_MAX):
        raise S3Error("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive.")
    if int(part) > 1:
        raise S3Error("InvalidPartNumber")
    return (0, object_.bytes) if object_.bytes else None


def _range_applies(object_: VirtualObject, request: S3Request) -> bool:
    """Return whether If-Range holds. Otherwise the client needs the whole object."""
    condition = request.header("if-range")
    if condition is None:
        return True
    date = _seconds(condition)
    return _names(condition, object_.etag) if date is None else object_.modified_ms // 1000 <= date
