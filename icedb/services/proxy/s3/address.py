"""The bucket, key and as-of time of a request.

The bucket is the first segment of the path, or the host if it is below a domain of the proxy. A time may follow the
name of the bucket: `events@2026-11-21T00:00:00Z`. In hosts, and for clients that check names, the forms are
`events--20261121t000000z` and `events--1795219200000` (unix milliseconds).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from icedb.errors import InvalidOption
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.s3_errors import S3Error
from icedb.util.times import parse_as_of

__all__ = ["Address", "bucket_of_host", "has_time_suffix", "parse_address", "split_time"]

_PLAIN_TIME = re.compile(r"(?P<name>.+)--(?P<time>\d{8}[tT]\d{6}[zZ]|\d{13})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """The target of a request: the service if there is no bucket, the bucket if there is no key."""

    #: The bucket without the time.
    bucket: str = ""
    key: str = ""
    #: The time after the bucket's name, in unix milliseconds.
    as_of_ms: int | None = None
    #: The bucket's name as the client wrote it.
    name: str = ""


def has_time_suffix(name: str) -> bool:
    """Return whether the end of a name would be parsed as a time."""
    return "@" in name or _PLAIN_TIME.fullmatch(name) is not None


def parse_address(request: S3Request, domains: Sequence[str]) -> Address:
    """Parse the address of a request. Raises S3Error: InvalidURI, InvalidArgument (invalid time), NoSuchBucket."""
    if not request.path.startswith("/"):
        raise S3Error("InvalidURI")
    path = request.decoded_path[1:]
    bucket = bucket_of_host(request.header("host") or "", domains)
    key = path
    if not bucket:
        bucket, _, key = path.partition("/")
        if not bucket and key:
            raise S3Error("InvalidURI")
    name, as_of_ms = split_time(bucket)
    if bucket and not name:
        raise S3Error("NoSuchBucket")  # a time without a bucket
    return Address(name, key, as_of_ms, bucket)


def bucket_of_host(host: str, domains: Sequence[str]) -> str:
    """Return the bucket that a host below one of the domains names, or an empty text."""
    name = re.sub(r":\d*$", "", host).lower().rstrip(".")
    return next((name.removesuffix(f".{d}") for d in domains if name.endswith(f".{d}")), "")


def split_time(bucket: str) -> tuple[str, int | None]:
    """Split the time from the name of a bucket, if it has one. Raises S3Error (InvalidArgument) if it is invalid."""
    name, at, time = bucket.partition("@")
    if not at:
        match = _PLAIN_TIME.fullmatch(bucket)
        if match is None:
            return bucket, None
        name, time = match["name"], match["time"].upper()
    try:
        return name, parse_as_of(time, table=name)
    except (InvalidOption, OverflowError):
        raise S3Error(
            "InvalidArgument", "The time after the bucket's name is invalid. Write events@2026-11-21T00:00:00Z."
        ) from None
