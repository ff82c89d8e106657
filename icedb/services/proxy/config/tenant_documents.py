"""What a file, or a control plane, says of a tenant: keys, buckets, limits.

A file may refer to this machine: to its environment and files, for secrets, and to any table. A control plane may not.
Relative paths, of tables too, are relative to the file that says them. No request is made: whether a table is there,
its first request tells.
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
from icedb.services.proxy.config.tenants import AccessKey, Scope, Tenant, TenantLimits, VirtualBucket
from icedb.services.proxy.s3.address import has_time_suffix
from icedb.util.clock import SystemClock
from icedb.util.times import parse_as_of

__all__ = ["KEY_ID", "DocumentSource", "parse_tenant"]

#: What an access key's id looks like.
KEY_ID = re.compile(r"[A-Za-z0-9_-]{3,128}")
# Whoever sees one signed request can try secrets at home, as fast as a machine can; what is shorter is found at once.
# S3's own have 40. Neither spaces nor letters beyond ASCII: the files in which clients keep secrets would change them.
_SECRET = re.compile(r"[!-~]{8,256}")
_TENANT_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_BUCKET_NAME = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# The clock of whoever wrote a time may be ahead.
_AHEAD_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where tenants' documents come from, and what they may therefore say."""

    #: As messages call it.
    name: str
    #: The tables that it may name are these or lie below them. None: all.
    tables: tuple[str, ...] | None = None
    #: None: it says nothing of this machine's files and environment, and spells its list of buckets `buckets`.
    context: ConfigContext | None = None


class _TenantDocument(StrictDocument):
    name: str
    keys: list[dict[str, Any]]
    requests: int | None = None
    bytes_per_second: int | None = None
    buckets: list[dict[str, Any]] = msgspec.field(default_factory=list)


class _FileTenantDocument(_TenantDocument, rename={"buckets": "bucket"}):
    # Said again: only a class's own fields are renamed.
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


def parse_tenant(document: object, source: DocumentSource, *, number: int | None = None) -> Tenant:
    """The tenant that a document describes. Raises InvalidOption.

    `number` says which of several it is, should it have no name that can be shown.
    """
    name = document.get("name") if isinstance(document, dict) else None
    shown = f" '{name}'" if isinstance(name, str) and _TENANT_NAME.fullmatch(name) else f" {number}" if number else ""
    place = f"{source.name}: tenant{shown}"
    read = decode_document(document, _TenantDocument if source.context is None else _FileTenantDocument, place)
    if not _TENANT_NAME.fullmatch(read.name):
        raise InvalidOption(f"{place}: its name is to be 1 to 100 letters, digits, '.', '_' or '-'.")
    keys = tuple(_key(d, source, f"{place}, key {n}") for n, d in enumerate(read.keys, 1))
    if not keys:
        raise InvalidOption(f"{place}: it has no keys. Give it one, or take the tenant out.")
    check_unique((k.id for k in keys), "access keys have the id", place)
    buckets = [_bucket(d, source, place, number=n) for n, d in enumerate(read.buckets, 1)]
    check_unique((b.name for b in buckets), "buckets have the name", place)
    limits = TenantLimits(read.requests, read.bytes_per_second)
    check_positive({"requests": limits.requests, "bytes_per_second": limits.bytes_per_second}, place)
    return Tenant(read.name, keys, MappingProxyType({b.name: b for b in buckets}), limits)


def _key(document: object, source: DocumentSource, place: str) -> AccessKey:
    if source.context is None:
        of_service = decode_document(document, _KeyDocument, place)
        key_id, secret = of_service.id, of_service.secret
    else:
        of_file = decode_document(document, _FileKeyDocument, place)
        key_id, secret = of_file.id, read_secret(of_file, source.context, place)
    if not KEY_ID.fullmatch(key_id):  # not shown: perhaps it is the secret
        raise InvalidOption(f"{place}: its id is to be 3 to 128 letters, digits, '_' or '-'.")
    if not _SECRET.fullmatch(secret):
        raise InvalidOption(
            f"{place}, '{key_id}': its secret is to be 8 to 256 characters of ASCII without spaces; 40 at random are "
            "good. A short one is found by trial, from one signed request."
        )
    return AccessKey(key_id, secret)


def _bucket(document: object, source: DocumentSource, tenant: str, *, number: int) -> VirtualBucket:
    name = document.get("name") if isinstance(document, dict) else None
    place = f"{tenant}, bucket {repr(name[:80]) if isinstance(name, str) else number}"
    read = decode_document(document, _BucketDocument, place)
    if not _BUCKET_NAME.fullmatch(read.name):
        raise InvalidOption(
            f"{place}: a bucket's name is to be 3 to 63 of a-z, 0-9, '.' and '-', with a letter or digit at either "
            "end; no '..', and no IP address."
        )
    if has_time_suffix(read.name):
        raise InvalidOption(
            f"{place}: a name with such an end asks for another bucket as of a time. Give it another name."
        )
    return VirtualBucket(read.name, _table(read.table, source, place), _scope(read, place))


def _table(text: str, source: DocumentSource, place: str) -> str:
    uri = canonical_uri(text, "table", place, source.context)
    if source.tables is not None and not any(uri == t or uri.startswith(f"{t}/") for t in source.tables):
        raise InvalidOption(
            f"{place}: the table '{uri[:200]}' is not below one of tables of [control_plane]. Add its place."
        )
    return uri


def _scope(read: _BucketDocument, place: str) -> Scope:
    if read.partitions == []:
        raise InvalidOption(f"{place}: partitions is empty. Name some, or leave it out to show the whole table.")
    as_of_ms, earliest_ms = _time_ms(read.as_of, "as_of", place), _time_ms(read.earliest, "earliest", place)
    if as_of_ms is not None and (read.time_travel or earliest_ms is not None):
        raise InvalidOption(
            f"{place}: with as_of it shows one time alone. Leave out time_travel and earliest, or as_of."
        )
    if read.time_travel is False and earliest_ms is not None:
        raise InvalidOption(f"{place}: without time_travel no time is before earliest. Leave out one of them.")
    return Scope(
        partitions=tuple(_partition(p, place) for p in read.partitions or ()),
        as_of_ms=as_of_ms,
        time_travel=as_of_ms is None and read.time_travel is not False,
        earliest_ms=earliest_ms,
    )


def _partition(text: str, place: str) -> str:
    """A partition, or several by their first columns, as the library spells its path."""
    steps = text.removesuffix("/").split("/")
    names = [name for name, equals, _ in (s.partition("=") for s in steps) if name and equals]
    if has_unsafe_segment(steps) or len(names) != len(steps) or len(set(names)) != len(names):
        raise InvalidOption(
            f"{place}: '{text[:200]}' is no partition. Write column=value, of several columns with a slash between "
            "them, each column once: d=2026-11-21/u=42."
        )
    return stored_path("/".join(steps))


def _time_ms(value: object, name: str, place: str) -> int | None:
    """Unix milliseconds, of a text, of a number of them or of what TOML takes for a time."""
    if value is None:
        return None
    try:
        found = parse_as_of(str(value)[:200], table=place, name=name)
    except OverflowError:  # of a zone that leaves the calendar
        raise InvalidOption(f"{place}: {name} is no time that a calendar has. Write an earlier one.") from None
    if found > SystemClock().now_ms() + _AHEAD_MS_MAX:
        raise InvalidOption(f"{place}: {name} is in the future: nobody knows the table of then. Write an earlier time.")
    return found
