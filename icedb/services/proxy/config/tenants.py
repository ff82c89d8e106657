"""Who may see what: tenants, their keys, and the virtual buckets that they see.

A virtual bucket is a name of one tenant alone: two tenants may both have an `events`, of different tables. It shows the
live parts of one table, or those of some partitions, now or as of a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icedb.format.keys import decode_partition
from icedb.services.proxy.s3.s3_errors import S3Error

__all__ = ["AccessKey", "TenantDirectory", "KeyOwner", "Scope", "Tenant", "TenantLimits", "VirtualBucket"]


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key pair that the proxy gave a tenant. It has nothing to do with those of the store behind."""

    id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a table is shown. Equal scopes show the same."""

    #: Each says partition columns and their values, as the path spells them (`u=42`, `d=2026-11-21/u=42`); a part is
    #: shown when all values of one of them are its own. Without any, all parts are. A part whose path lacks such a
    #: column, of an older partitioning, is not shown.
    partitions: tuple[str, ...] = ()
    #: Unix milliseconds: always the snapshot of this time. None: the latest.
    as_of_ms: int | None = None
    #: Whether the tenant may ask for a time, by a bucket's name such as `events@2026-11-21T00:00:00Z`.
    time_travel: bool = True
    #: Unix milliseconds: times before are not shown. None: all that the table can still tell.
    earliest_ms: int | None = None

    def shows(self, partition: str) -> bool:
        """Whether the parts of a partition, by its path, are shown."""
        if not self.partitions:
            return True
        values = decode_partition(partition)
        return any(decode_partition(p).items() <= values.items() for p in self.partitions)


@dataclass(frozen=True, slots=True)
class VirtualBucket:
    """A table, or a part of it, under a name."""

    name: str
    #: The table's address: `s3://bucket/prefix` or a folder.
    table: str
    scope: Scope = Scope()


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use of a proxy. None: no limit."""

    #: Requests at a time, answers that are still being read among them; more are told SlowDown.
    requests: int | None = None
    #: Bytes of objects per second, over all its requests; more wait.
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody with keys, and what they see."""

    name: str
    keys: tuple[AccessKey, ...]
    #: By name.
    buckets: Mapping[str, VirtualBucket]
    limits: TenantLimits = TenantLimits()

    def bucket(self, name: str) -> VirtualBucket:
        """Raises S3Error: NoSuchBucket, whether others have a bucket of that name or nobody has."""
        found = self.buckets.get(name)
        if found is None:
            raise S3Error("NoSuchBucket")
        return found


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """What a directory knows of an access key."""

    tenant: Tenant
    key: AccessKey


class TenantDirectory(Protocol):
    """Where tenants are found by their keys."""

    async def find(self, access_key_id: str) -> KeyOwner | None:
        """The owner of a key, now; None: nobody. Raises S3Error (ServiceUnavailable) when that cannot be told."""
        ...
