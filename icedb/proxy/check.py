"""Whether a configuration holds: each virtual bucket that it names is looked at, as a tenant would see it.

Nothing is served. It needs no more than the library: to see a file through before it is rolled out takes no server.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icedb.errors import IceDBError
from icedb.format.records import total_rows
from icedb.proxy.config import load_config
from icedb.proxy.tenants import VirtualBucket
from icedb.snapshot import Snapshot
from icedb.table import Table

__all__ = ["CheckedBucket", "check_config"]


@dataclass(frozen=True, slots=True)
class CheckedBucket:
    """What a tenant sees in a bucket, or why nothing."""

    tenant: str
    bucket: str
    #: The table's address.
    table: str
    parts: int | None = None
    #: None, too, when a program that does not count them wrote a part.
    rows: int | None = None
    error: str | None = None


def check_config(path: Path) -> list[CheckedBucket]:
    """Open every table that the file names, in its order. Raises InvalidOption when the file itself is wrong.

    Tenants of a control plane are not asked for.
    """
    config = load_config(path)
    tables: dict[str, Table] = {}
    checked = []
    for tenant in config.tenants:
        for bucket in tenant.buckets.values():
            try:
                if bucket.table not in tables:
                    tables[bucket.table] = Table.open(bucket.table, storage_options=config.storage_options or None)
                checked.append(_checked(tenant.name, bucket, tables[bucket.table].snapshot(bucket.scope.as_of_ms)))
            except (IceDBError, OSError) as error:
                checked.append(
                    CheckedBucket(tenant.name, bucket.name, bucket.table, error=" ".join(str(error).split()))
                )
    return checked


def _checked(tenant: str, bucket: VirtualBucket, snapshot: Snapshot) -> CheckedBucket:
    parts = [p for p in snapshot.parts if bucket.scope.shows(p.partition)]
    return CheckedBucket(tenant, bucket.name, bucket.table, len(parts), total_rows(parts))
