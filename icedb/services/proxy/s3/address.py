"""Which bucket and key a request is about, and as of when.

A bucket is named by the first step of the path, or by the host when that lies below a domain of the proxy. A time may
follow its name: `events@2026-11-21T00:00:00Z`, or, where a name must be good for a host or for a client that checks it,
`events--20261121t000000z` or `events--1795219200000` (unix milliseconds).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from icedb.errors import InvalidOption
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.util.times import parse_as_of

__all__ = ["Address", "parse_address", "has_time_suffix"]

_PLAIN_TIME = re.compile(r"(?P<name>.+)--(?P<time>\d{8}[tT]\d{6}[zZ]|\d{13})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """What a request is about. Without a bucket: the service itself; without a key: the bucket."""

    #: Without the time.
    bucket: str = ""
    key: str = ""
    #: Unix milliseconds, when the name of the bucket says a time.
    as_of_ms: int | None = None
    #: The bucket's name as the client wrote it.
    name: str = ""


def has_time_suffix(name: str) -> bool:
    """Whether a bucket's name would be taken for another's with a time."""
    return "@" in name or _PLAIN_TIME.fullmatch(name) is not None


def parse_address(request: S3Request, domains: Sequence[str]) -> Address:
    """Raises S3Error: InvalidURI for what is no path, InvalidArgument for a time that is none, NoSuchBucket."""
    if not request.path.startswith("/"):
        raise S3Error("InvalidURI")
    path = request.decoded_path[1:]
    bucket = _bucket_of_host(request.header("host") or "", domains)
    key = path
    if not bucket:
        bucket, _, key = path.partition("/")
        if not bucket and key:
            raise S3Error("InvalidURI")
    name, as_of_ms = _split_time(bucket)
    if bucket and not name:
        raise S3Error("NoSuchBucket")  # a time alone is not the service itself
    return Address(name, key, as_of_ms, bucket)


def _bucket_of_host(host: str, domains: Sequence[str]) -> str:
    name = re.sub(r":\d*$", "", host).lower().rstrip(".")
    return next((name.removesuffix(f".{d}") for d in domains if name.endswith(f".{d}")), "")


def _split_time(bucket: str) -> tuple[str, int | None]:
    name, at, time = bucket.partition("@")
    if not at:
        found = _PLAIN_TIME.fullmatch(bucket)
        if found is None:
            return bucket, None
        name, time = found["name"], found["time"].upper()
    try:
        return name, parse_as_of(time, table=name)
    except (InvalidOption, OverflowError):
        raise S3Error(
            "InvalidArgument", "The time after the bucket's name is none: write events@2026-11-21T00:00:00Z."
        ) from None
