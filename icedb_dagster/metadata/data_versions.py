"""The data version of a table in Dagster: it changes with the rows, and not with their layout.

A merge (compaction) or a cleanup (VACUUM) leaves the rows as they are, so assets downstream are not out of date. Each
event about a table that has a data version also has the snapshot that it describes. If the log shows that only
maintenance has followed, the version remains. Otherwise it is the id of the current snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

import icedb
from icedb.errors import IceDBError
from icedb.reader.history import CommitKind
from icedb_dagster.metadata.table_metadata import SNAPSHOT_ID, SNAPSHOT_TIME

__all__ = ["DATA_VERSION_TAG", "data_version", "recorded_data_version"]

#: Dagster's own tag: downstream assets are out of date if it changes.
DATA_VERSION_TAG = "dagster/data_version"

# Operations after which a table has the same rows.
_KEEPS_ROWS: frozenset[CommitKind] = frozenset({"merge", "merge_log", "cleanup", "alter", "log", "void"})


@dataclass(frozen=True, slots=True)
class _Recorded:
    version: str
    #: The snapshot of the event. None if the event has none.
    snapshot_id: str | None
    as_of_ms: int | None


def data_version(
    instance: dg.DagsterInstance, key: dg.AssetKey, table: icedb.Table, snapshot: icedb.Snapshot
) -> dg.DataVersion:
    """Return the data version of a table's newest snapshot, for an event of its asset.

    Raises the errors of `icedb.Table.history`.
    """
    recorded = _latest(instance, key)
    if recorded is not None and _has_same_rows(recorded, table, snapshot):
        return dg.DataVersion(recorded.version)
    return dg.DataVersion(snapshot.id)


def recorded_data_version(
    instance: dg.DagsterInstance, key: dg.AssetKey, *, partition: str | None = None
) -> str | None:
    """Return the data version of the last event of an asset, or of one of its partitions, if it has one."""
    recorded = _latest(instance, key, partition)
    return None if recorded is None else recorded.version


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None) -> _Recorded | None:
    """Return the data version of the last materialization or observation, if it has one."""
    wanted = key if partition is None else dg.AssetRecordsFilter(key, asset_partitions=[partition])
    records = [
        *instance.fetch_materializations(wanted, limit=1).records,
        *instance.fetch_observations(wanted, limit=1).records,
    ]
    for record in sorted(records, key=lambda record: record.storage_id, reverse=True):
        entry = record.event_log_entry
        event = entry.asset_materialization or entry.asset_observation
        if event is not None and event.tags and DATA_VERSION_TAG in event.tags:
            snapshot_id, time = event.metadata.get(SNAPSHOT_ID), event.metadata.get(SNAPSHOT_TIME)
            return _Recorded(
                event.tags[DATA_VERSION_TAG],
                snapshot_id.value if isinstance(snapshot_id, dg.TextMetadataValue) else None,
                round(time.value * 1000) if isinstance(time, dg.TimestampMetadataValue) else None,
            )
    return None


def _has_same_rows(recorded: _Recorded, table: icedb.Table, snapshot: icedb.Snapshot) -> bool:
    """Whether only maintenance that keeps the rows has followed the recorded snapshot."""
    if recorded.snapshot_id == snapshot.id:
        return True
    if recorded.as_of_ms is None:
        return False
    try:
        # A commit with an earlier time may have arrived later. Then the snapshot of that time has other parts now.
        then = table.snapshot(recorded.as_of_ms)
    except IceDBError:
        return False
    since = table.history(since=recorded.as_of_ms + 1)
    return then.id == recorded.snapshot_id and all(commit.kind in _KEEPS_ROWS for commit in since)
