"""The check of a configuration: read each virtual bucket as its tenant would see it. Nothing is served.

The check depends only on the library, so it also runs on machines that have no server installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from icedb.errors import IceDBError
from icedb.format.records import total_rows
from icedb.format.table_spec import spec_at
from icedb.reader.snapshot import Snapshot
from icedb.reader.time_bounds import markers_at
from icedb.services.proxy.config.config_file import load_config
from icedb.services.proxy.config.tenants import VirtualBucket
from icedb.services.proxy.iceberg.bucket_history import BucketHistory, FixedState
from icedb.services.proxy.iceberg.bucket_manifests import ManifestCache
from icedb.services.proxy.iceberg.visible_columns import SeenColumns
from icedb.sql.partition_expressions import partition_expressions
from icedb.table import Table

__all__ = ["CheckedBucket", "check_config"]


@dataclass(frozen=True, slots=True)
class CheckedBucket:
    """The contents of a bucket for its tenant, or the reason why it cannot be read."""

    tenant: str
    bucket: str
    #: The table's address.
    table: str
    parts: int | None = None
    #: Also None if a program that does not count rows wrote a part.
    rows: int | None = None
    error: str | None = None
    #: A valid setting that is probably a mistake.
    warning: str | None = None
    #: The number of columns of the table in the Iceberg catalog. None: no catalog is enabled, or it cannot show them.
    iceberg_columns: int | None = None
    #: The reason why the Iceberg catalog cannot show the table.
    iceberg_error: str | None = None


def check_config(path: Path) -> list[CheckedBucket]:
    """Open every table that the file names, in the order of the file. Raises InvalidOption if the file is invalid.

    Tenants of a control plane are not checked.
    """
    config = load_config(path)
    snapshots: dict[tuple[str, int | None], Snapshot | str] = {}  # or an error; read once each
    checked = []
    for tenant in config.tenants:
        for bucket in tenant.buckets.values():
            name = bucket.table, bucket.scope.as_of_ms
            if name not in snapshots:
                snapshots[name] = _snapshot(*name, config.storage_options)
            snapshot = snapshots[name]
            row = _checked(tenant.name, bucket, snapshot)
            if config.iceberg is not None and not isinstance(snapshot, str):
                row = _with_iceberg(row, bucket, snapshot)
            checked.append(row)
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
    warnings = []
    if snapshot.parts and not parts:
        example = snapshot.parts[-1].partition
        warnings.append(
            f"partitions match no live part of the table. Write them as in paths; the last part is in '{example}'."
        )
    # A table without columns gets them from its first rows.
    if snapshot.columns and (unknown := sorted({*bucket.exclude_columns} - _known_columns(snapshot))):
        warnings.append(
            f"exclude_columns names {', '.join(map(repr, unknown))}, but the table has the columns "
            f"{', '.join(snapshot.columns)}."
        )
    warning = " ".join(warnings) or None
    return CheckedBucket(tenant, bucket.name, bucket.table, len(parts), total_rows(parts), warning=warning)


def _known_columns(snapshot: Snapshot) -> set[str]:
    """Return the columns of all times: a catalog lists earlier states, too."""
    handle = snapshot.handle
    specs = [handle.spec, *(spec_at(handle.spec, earlier.until - 1) for earlier in handle.spec.earlier)]
    partitions = {e.name for spec in specs for e in partition_expressions(spec, table=handle.table)}
    return {*snapshot.columns, *handle.spec.columns, *handle.spec.dropped, *partitions}


def _with_iceberg(row: CheckedBucket, bucket: VirtualBucket, snapshot: Snapshot) -> CheckedBucket:
    handle = snapshot.handle
    try:
        state, at_ms = handle.read(), bucket.scope.as_of_ms
        history = BucketHistory.of(bucket, handle, state, SeenColumns(), snapshots=0, hold_ms=0)
        fixed = None if at_ms is None else FixedState.of(bucket, handle, at_ms, markers_at(handle, state, at_ms))
        fields = len(history.layout(fixed).layout.fields)
        if (listed := history.snapshot(fixed)) is not None:
            ManifestCache(0).list_body(bucket, listed)
    except (IceDBError, OSError) as error:
        return replace(row, iceberg_error=" ".join(str(error).split()))
    return replace(row, iceberg_columns=fields)
