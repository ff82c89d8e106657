"""Tenants, their keys, and their virtual buckets.

The name of a virtual bucket belongs to one tenant: two tenants may have a bucket `events` with different tables. A
bucket shows the live parts of one table, or those of some partitions, latest or as of a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icedb.format.keys import decode_partition
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = [
    "AHEAD_MS_MAX",
    "AccessKey",
    "TenantDirectory",
    "KeyOwner",
    "Scope",
    "Tenant",
    "TenantLimits",
    "VirtualBucket",
    "secret_of",
]

#: Tolerance for clocks that are ahead, of clients that request their current time and of operators that configure it.
AHEAD_MS_MAX = 60_000

_UNKNOWN_KEY_SECRET = secrets.token_hex(20)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key pair of a tenant for the proxy. It is unrelated to the credentials of the store."""

    id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a table that a bucket shows."""

    #: Partition columns with values, as paths write them (`u=42`, `d=2026-11-21/u=42`). A part is shown if it has all
    #: values of one entry. Without entries, all parts are shown. A part of an older partitioning, whose path lacks such
    #: a column, is not shown.
    partitions: tuple[str, ...] = ()
    #: Time of the snapshot in unix milliseconds. None: the latest snapshot.
    as_of_ms: int | None = None
    #: True if the tenant may request a time with a bucket name such as `events@2026-11-21T00:00:00Z`.
    time_travel: bool = True
    #: The earliest time, in unix milliseconds, that the tenant may request. None: no limit.
    earliest_ms: int | None = None

    def shows(self, partition: str) -> bool:
        """Return whether the bucket shows the parts of a partition, given by its path."""
        if not self.partitions:
            return True
        values = decode_partition(partition)
        return any(decode_partition(p).items() <= values.items() for p in self.partitions)


@dataclass(frozen=True, slots=True)
class VirtualBucket:
    """A named view of a table, or of some of its partitions."""

    name: str
    #: The table's address: `s3://bucket/prefix` or a folder.
    table: str
    scope: Scope = Scope()
    #: Columns that the Iceberg catalog leaves out, for example because Iceberg lacks their type. Parts contain them.
    exclude_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of a tenant. None means no limit."""

    #: Concurrent requests, including responses that are still being sent. Further requests get SlowDown.
    requests: int | None = None
    #: Bytes of objects per second over all requests. Responses beyond it are delayed.
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its keys and buckets."""

    name: str
    keys: tuple[AccessKey, ...]
    #: By name.
    buckets: Mapping[str, VirtualBucket]
    limits: TenantLimits = TenantLimits()

    def bucket(self, name: str) -> VirtualBucket:
        """Return a bucket. Raises S3Error (NoSuchBucket), also if another tenant has a bucket of that name."""
        bucket = self.buckets.get(name)
        if bucket is None:
            raise S3Error("NoSuchBucket")
        return bucket


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The owner of an access key, with the key."""

    tenant: Tenant
    key: AccessKey


def secret_of(owner: KeyOwner | None) -> str:
    """Return the secret of a key; for an unknown key a random one, so that its rejection takes as long as another."""
    return _UNKNOWN_KEY_SECRET if owner is None else owner.key.secret


class TenantDirectory(Protocol):
    """A lookup of tenants by their access keys."""

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """Return the owner of a key, or None. Raises S3Error (ServiceUnavailable) if the lookup fails."""
        ...
