"""What is asked of objects: whether one is there, and its bytes, whole or in part.

Conditions and ranges are those of RFC 9110, as far as S3 has them.
"""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from icedb.services.proxy.catalog.bucket_view import VirtualObject
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import ObjectRange, S3Response, http_date
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.storage.obstore_store import ObjectStore, presign

__all__ = ["get_object"]

# Numbers of 64 bits among them: some clients write the largest for "to the end".
_RANGE = re.compile(r"bytes=(?P<first>\d{0,30})-(?P<last>\d{0,30})", re.ASCII)
PART_NUMBER_MAX = 10_000


def get_object(
    found: VirtualObject, store: ObjectStore, request: S3Request, *, redirect_for: timedelta | None = None
) -> S3Response:
    """GetObject and HeadObject. Raises S3Error: PreconditionFailed, InvalidRange, InvalidPartNumber, InvalidRequest.

    With `redirect_for`, the answer to a GET is where the store itself gives the object, valid for so long; a store that
    has no such addresses is read for the client.
    """
    about = (
        ("etag", found.etag),
        ("last-modified", http_date(found.modified_ms)),
        ("accept-ranges", "bytes"),
    )
    if _not_modified(found, request):
        return S3Response(304, about)
    bounds = _bounds(found, request)
    start, stop = bounds or (0, found.bytes)
    if redirect_for is not None and request.method == "GET" and request.parameter("partNumber") is None:
        address = presign(store, found.stored_key, expires=redirect_for)
        if address is not None:
            return S3Response(307, (("location", address), ("cache-control", "no-store")))
    headers = (
        *about,
        ("content-type", "application/vnd.apache.parquet"),
        ("content-length", str(stop - start)),
        *((("content-range", f"bytes {start}-{stop - 1}/{found.bytes}"),) if bounds else ()),
    )
    content = ObjectRange(store, found.stored_key, start, stop) if request.method == "GET" and start < stop else None
    return S3Response(206 if bounds else 200, headers, content=content)


def _not_modified(found: VirtualObject, request: S3Request) -> bool:
    """Whether the client has it. Raises S3Error (PreconditionFailed) when it is not what the client wants."""
    match, none_match = request.header("if-match"), request.header("if-none-match")
    if match is not None:
        if not _names(match, found.etag):
            raise S3Error("PreconditionFailed")
    elif (since := _seconds(request.header("if-unmodified-since"))) is not None and found.modified_ms // 1000 > since:
        raise S3Error("PreconditionFailed")
    if none_match is not None:
        return _names(none_match, found.etag)
    modified = _seconds(request.header("if-modified-since"))
    return modified is not None and found.modified_ms // 1000 <= modified


def _names(condition: str, etag: str) -> bool:
    """Whether a list of ETags has one. Quotes may be missing, as S3 allows."""
    given = {c.strip().removeprefix("W/").strip('"') for c in condition.split(",")}
    return "*" in given or etag.strip('"') in given


def _seconds(date: str | None) -> float | None:
    """Unix seconds. A date that is none counts as not given (RFC 9110, 13.1.3)."""
    if date is None:
        return None
    try:
        moment = parsedate_to_datetime(date)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def _bounds(found: VirtualObject, request: S3Request) -> tuple[int, int] | None:
    """First byte and the one after the last; None: the whole object, as no part was asked for."""
    part, asked = request.parameter("partNumber"), request.header("range")
    if part is not None:
        return _part_bounds(found, part, asked)
    if asked is None or not _still_current(found, request):
        return None
    ranged = _RANGE.fullmatch(asked.strip())
    if ranged is None or ranged["first"] == ranged["last"] == "":
        return None  # several ranges, or none that can be read: the whole object is a right answer
    if ranged["first"] == "":
        start, stop = max(0, found.bytes - int(ranged["last"])), found.bytes
    else:
        start = int(ranged["first"])
        stop = found.bytes if ranged["last"] == "" else min(int(ranged["last"]) + 1, found.bytes)
        if ranged["last"] != "" and int(ranged["last"]) < start:
            return None
    if start >= stop:
        raise S3Error("InvalidRange", headers=(("content-range", f"bytes */{found.bytes}"),))
    return start, stop


def _part_bounds(found: VirtualObject, part: str, asked: str | None) -> tuple[int, int] | None:
    """An object is one part, the first."""
    if asked is not None:
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter.")
    if not (part.isascii() and part.isdigit() and len(part) <= 5 and 1 <= int(part) <= PART_NUMBER_MAX):
        raise S3Error("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive.")
    if int(part) > 1:
        raise S3Error("InvalidPartNumber")
    return (0, found.bytes) if found.bytes else None


def _still_current(found: VirtualObject, request: S3Request) -> bool:
    """Whether a range is wanted: of another version than the client has parts of, the whole is."""
    condition = request.header("if-range")
    if condition is None:
        return True
    date = _seconds(condition)
    return _names(condition, found.etag) if date is None else found.modified_ms // 1000 <= date
