"""Whether a configuration holds: each virtual bucket that it names is looked at, as a tenant would see it.

Nothing is served. It needs no more than the library: to see a file through before it is rolled out takes no server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from icedb.errors import IceDBError
from icedb.format.records import total_rows
from icedb.reader.snapshot import Snapshot
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.tenants import VirtualBucket
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
    #: What is allowed, and is hardly what was meant.
    warning: str | None = None


def check_config(path: Path) -> list[CheckedBucket]:
    """Open every table that the file names, in its order. Raises InvalidOption when the file itself is wrong.

    Tenants of a control plane are not asked for.
    """
    config = load_config(path)
    snapshots: dict[tuple[str, int | None], Snapshot | str] = {}  # or why there is none; asked once
    checked = []
    for tenant in config.tenants:
        for bucket in tenant.buckets.values():
            name = bucket.table, bucket.scope.as_of_ms
            if name not in snapshots:
                snapshots[name] = _snapshot(*name, config.storage_options)
            checked.append(_checked(tenant.name, bucket, snapshots[name]))
    return checked


def _snapshot(address: str, as_of_ms: int | None, storage_options: Mapping[str, str]) -> Snapshot | str:
    try:
        return Table.open(address, storage_options=storage_options or None).snapshot(as_of_ms)
    except (IceDBError, OSError) as error:
        return " ".join(str(error).split())


def _checked(tenant: str, bucket: VirtualBucket, snapshot: Snapshot | str) -> CheckedBucket:
    if isinstance(snapshot, str):
        return CheckedBucket(tenant, bucket.name, bucket.table, error=snapshot)
    parts = [p for p in snapshot.parts if bucket.scope.shows(p.partition)]
    warning = None
    if snapshot.parts and not parts:
        example = snapshot.parts[-1].partition
        warning = f"partitions are of no live part of the table; its last lies in '{example}'. Spell them as paths do."
    return CheckedBucket(tenant, bucket.name, bucket.table, len(parts), total_rows(parts), warning=warning)
