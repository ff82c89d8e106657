"""The document of a tenant, from a file or a control plane: keys, buckets, limits.

A file may refer to any table, and to environment variables and files of the machine for secrets. A control plane may
not. Relative paths are relative to the configuration file. No request is sent to a store: the first request of a client
shows whether a table exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from icedb.errors import InvalidOption
from icedb.format.keys import has_unsafe_segment, stored_path
from icedb.services.http.documents import (
    ConfigContext,
    SecretDocument,
    StrictDocument,
    canonical_uri,
    check_positive,
    check_unique,
    decode_document,
    read_secret,
)
from icedb.services.proxy.config.tenants import AHEAD_MS_MAX, AccessKey, Scope, Tenant, TenantLimits, VirtualBucket
from icedb.services.proxy.s3.address import has_time_suffix
from icedb.util.clock import SystemClock
from icedb.util.times import parse_as_of

__all__ = ["KEY_ID", "DocumentSource", "parse_tenant"]

#: The syntax of an access key's id.
KEY_ID = re.compile(r"[A-Za-z0-9_-]{3,128}")
# An attacker who sees one signed request can test guesses of the secret offline, so short secrets are weak. Those of S3
# have 40 characters. Spaces and non-ASCII characters are not allowed: the files of clients could change them.
_SECRET = re.compile(r"[!-~]{8,256}")
_TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_BUCKET_NAME = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """The origin of tenant documents, which decides what they may refer to."""

    #: The name in messages.
    name: str
    #: Locations of the tables that it may name. None: no restriction.
    tables: tuple[str, ...] | None = None
    #: None for a control plane: no access to files and variables, and the list of buckets is named `buckets`.
    context: ConfigContext | None = None


class _TenantDocument(StrictDocument):
    name: str
    keys: list[dict[str, Any]]
    requests: int | None = None
    bytes_per_second: int | None = None
    buckets: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _FileTenantDocument(_TenantDocument, rename={"buckets": "bucket"}):
    # Repeated, because `rename` applies only to a class's own fields.
    buckets: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _KeyDocument(StrictDocument):
    id: str
    secret: str


class _FileKeyDocument(SecretDocument, kw_only=True):
    id: str


class _BucketDocument(StrictDocument):
    name: str
    table: str
    partitions: list[str] | None = None
    as_of: Any = None
    time_travel: bool | None = None
    earliest: Any = None
    exclude_columns: list[str] | None = None


def parse_tenant(document: object, source: DocumentSource, *, number: int | None = None) -> Tenant:
    """Return the tenant that a document describes. Raises InvalidOption.

    `number` is its number among several, for messages about a document without a valid name.
    """
    name = document.get("name") if isinstance(document, dict) else None
    label = f" '{name}'" if isinstance(name, str) and _TENANT_NAME.fullmatch(name) else f" {number}" if number else ""
    place = f"{source.name}: tenant{label}"
    fields = decode_document(document, _TenantDocument if source.context is None else _FileTenantDocument, place)
    if not _TENANT_NAME.fullmatch(fields.name):
        raise InvalidOption(f"{place}: the name is invalid. Use 1 to 100 letters, digits, '.', '_' or '-'.")
    keys = tuple(_key(d, source, f"{place}, key {n}") for n, d in enumerate(fields.keys, 1))
    if not keys:
        raise InvalidOption(f"{place}: it has no keys. Add one, or remove the tenant.")
    check_unique((k.id for k in keys), "access keys have the id", place)
    buckets = [_bucket(d, source, place, number=n) for n, d in enumerate(fields.buckets, 1)]
    check_unique((b.name for b in buckets), "buckets have the name", place)
    limits = TenantLimits(fields.requests, fields.bytes_per_second)
    check_positive({"requests": limits.requests, "bytes_per_second": limits.bytes_per_second}, place)
    return Tenant(fields.name, keys, MappingProxyType({b.name: b for b in buckets}), limits)


def _key(document: object, source: DocumentSource, place: str) -> AccessKey:
    if source.context is None:
        of_service = decode_document(document, _KeyDocument, place)
        key_id, secret = of_service.id, of_service.secret
    else:
        of_file = decode_document(document, _FileKeyDocument, place)
        key_id, secret = of_file.id, read_secret(of_file, source.context, place)
    if not KEY_ID.fullmatch(key_id):  # not in the message: it may be the secret
        raise InvalidOption(f"{place}: the id is invalid. Use 3 to 128 letters, digits, '_' or '-'.")
    if not _SECRET.fullmatch(secret):
        raise InvalidOption(
            f"{place}, '{key_id}': the secret is invalid. Use 8 to 256 ASCII characters without spaces, for example "
            "40 random characters. An attacker who sees one signed request can find a short secret by trial."
        )
    return AccessKey(key_id, secret)


def _bucket(document: object, source: DocumentSource, tenant: str, *, number: int) -> VirtualBucket:
    name = document.get("name") if isinstance(document, dict) else None
    place = f"{tenant}, bucket {repr(name[:80]) if isinstance(name, str) else number}"
    fields = decode_document(document, _BucketDocument, place)
    if not _BUCKET_NAME.fullmatch(fields.name):
        raise InvalidOption(
            f"{place}: the name is invalid. Use 3 to 63 of a-z, 0-9, '.' and '-', a letter or digit at either end, "
            "no '..', and no IP address."
        )
    if has_time_suffix(fields.name):
        raise InvalidOption(
            f"{place}: the end of the name is a time, which selects another bucket as of a time. Use another name."
        )
    excluded = tuple(fields.exclude_columns or ())
    check_unique(excluded, "exclude_columns name", place)
    return VirtualBucket(fields.name, _table(fields.table, source, place), _scope(fields, place), excluded)


def _table(text: str, source: DocumentSource, place: str) -> str:
    uri = canonical_uri(text, "table", place, source.context)
    if source.tables is not None and not any(uri == t or uri.startswith(f"{t}/") for t in source.tables):
        raise InvalidOption(
            f"{place}: the table '{uri[:200]}' is not below one of tables of [control_plane]. Add its location."
        )
    return uri


def _scope(fields: _BucketDocument, place: str) -> Scope:
    if fields.partitions == []:
        raise InvalidOption(f"{place}: partitions is empty. Add one, or remove partitions to show the whole table.")
    as_of_ms, earliest_ms = _time_ms(fields.as_of, "as_of", place), _time_ms(fields.earliest, "earliest", place)
    if as_of_ms is not None and (fields.time_travel or earliest_ms is not None):
        raise InvalidOption(
            f"{place}: with as_of, the bucket shows only one time. Remove time_travel and earliest, or as_of."
        )
    if fields.time_travel is False and earliest_ms is not None:
        raise InvalidOption(f"{place}: earliest has no effect without time_travel. Remove one of them.")
    return Scope(
        partitions=tuple(_partition(p, place) for p in fields.partitions or ()),
        as_of_ms=as_of_ms,
        time_travel=as_of_ms is None and fields.time_travel is not False,
        earliest_ms=earliest_ms,
    )


def _partition(text: str, place: str) -> str:
    """Return a partition, or a prefix of several, as the library writes its path."""
    steps = text.removesuffix("/").split("/")
    names = [name for name, equals, _ in (s.partition("=") for s in steps) if name and equals]
    if has_unsafe_segment(steps) or len(names) != len(steps) or len(set(names)) != len(names):
        raise InvalidOption(
            f"{place}: '{text[:200]}' is not a partition. Write column=value, with a slash between several columns, "
            "each column once: d=2026-11-21/u=42."
        )
    return stored_path("/".join(steps))


def _time_ms(value: object, name: str, place: str) -> int | None:
    """Return unix milliseconds of a text, a number of milliseconds, or a TOML time."""
    if value is None:
        return None
    try:
        milliseconds = parse_as_of(str(value)[:200], table=place, name=name)
    except OverflowError:  # the UTC offset moves it out of the calendar
        raise InvalidOption(f"{place}: {name} is out of the range of times. Write an earlier time.") from None
    if milliseconds > SystemClock().now_ms() + AHEAD_MS_MAX:
        raise InvalidOption(f"{place}: {name} is in the future. Write an earlier time.")
    return milliseconds
