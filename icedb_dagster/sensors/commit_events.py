"""The events that report commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from icedb.format.records import Marker, total_rows
from icedb.transaction.table_handle import Handle
from icedb_dagster.metadata.data_versions import DATA_VERSION_TAG
from icedb_dagster.metadata.table_metadata import commit_metadata, table_metadata
from icedb_dagster.sensors.new_commits import CommitBatch, NewCommit
from icedb_dagster.sensors.partition_keys import PartitionKeys
from icedb_dagster.sensors.recorded_commits import EVENTS_OF_COMMIT, GAP_AFTER, RecordedCommits
from icedb_dagster.sensors.sensor_settings import Events

__all__ = ["Event", "commit_events", "gap_event"]

Event = dg.AssetMaterialization | dg.AssetObservation

_KINDS: Mapping[Events, type[Event]] = {
    "materialization": dg.AssetMaterialization,
    "observation": dg.AssetObservation,
}


@dataclass(frozen=True, slots=True)
class _Share:
    """The rows of a commit in one asset partition; `partition` is None if the rows are in none."""

    commit: NewCommit
    markers: Sequence[Marker]
    partition: str | None
    #: The number of shares of the commit.
    of: int


def commit_events(
    key: dg.AssetKey,
    batch: CommitBatch,
    recorded: RecordedCommits,
    keys: PartitionKeys | None,
    handle: Handle,
    *,
    kind: Events,
) -> list[Event]:
    """Return the events of a batch, without those that Dagster has. The last one has the table's figures, too."""
    new = [
        share
        for share in _shares(batch, keys, handle)
        if not recorded.has(share.commit.created_ms, share.commit.parts, share.partition)
    ]
    events = []
    for number, share in enumerate(new, start=1):
        last = number == len(new)
        events.append(
            _KINDS[kind](
                asset_key=key,
                partition=share.partition,
                metadata={**_metadata(share, handle), **(table_metadata(batch.table) if last else {})},
                tags={DATA_VERSION_TAG: batch.table.id} if last else None,
            )
        )
    return events


def _shares(batch: CommitBatch, keys: PartitionKeys | None, handle: Handle) -> Iterator[_Share]:
    for commit in batch.commits:
        if keys is None:
            yield _Share(commit, commit.markers, None, 1)
            continue
        by_key: dict[str | None, list[Marker]] = {}
        for marker in commit.markers:
            by_key.setdefault(keys.of_part(handle.part(marker)), []).append(marker)
        for partition, markers in sorted(by_key.items(), key=lambda item: (item[0] is None, item[0])):
            yield _Share(commit, markers, partition, len(by_key))


def _metadata(share: _Share, handle: Handle) -> dict[str, dg.MetadataValue]:
    commit, markers, rows = share.commit, share.markers, total_rows(share.markers)
    metadata = {
        **commit_metadata(commit.created_ms, commit.log_file, commit.parts),
        "icedb/commit_parts": dg.MetadataValue.int(len(markers)),
        "icedb/commit_bytes": dg.MetadataValue.int(sum(m.bytes for m in markers)),
        "icedb/commit_partitions": dg.MetadataValue.int(len({handle.partition(m) for m in markers})),
    }
    if rows is not None:
        metadata["icedb/rows_written"] = dg.MetadataValue.int(rows)
    if share.of > 1:
        metadata[EVENTS_OF_COMMIT] = dg.MetadataValue.int(share.of)
    return metadata


def gap_event(key: dg.AssetKey, after_ms: int, reason: str, *, version: str | None) -> dg.AssetObservation:
    """Return the event that commits after a time (unix milliseconds) are not known individually, with the reason.

    `version`: the asset's last data version, which an observation without one would erase.
    """
    return dg.AssetObservation(
        asset_key=key,
        description=f"Some commits to this table are not reported. {reason}",
        metadata={GAP_AFTER: dg.MetadataValue.int(after_ms)},
        tags=None if version is None else {DATA_VERSION_TAG: version},
    )
