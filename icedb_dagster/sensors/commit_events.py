"""What Dagster is told of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from icedb.format.records import Marker, total_rows
from icedb.transaction.table_handle import Handle
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
# As Dagster names it: what tells downstream assets that there is something new.
_DATA_VERSION_TAG = "dagster/data_version"


@dataclass(frozen=True, slots=True)
class _Share:
    """The rows of a commit that are of one partition of the asset; None: of none, or the asset has none."""

    commit: NewCommit
    markers: Sequence[Marker]
    partition: str | None
    #: How many of them the commit has.
    of: int


def commit_events(
    key: dg.AssetKey,
    batch: CommitBatch,
    told: RecordedCommits,
    keys: PartitionKeys | None,
    handle: Handle,
    *,
    kind: Events,
) -> list[Event]:
    """The events of a batch, but for those that Dagster knows. The last has the figures of the table, too."""
    new = [
        share
        for share in _shares(batch, keys, handle)
        if not told.has(share.commit.created_ms, share.commit.parts, share.partition)
    ]
    events = []
    for number, share in enumerate(new, start=1):
        last = number == len(new)
        events.append(
            _KINDS[kind](
                asset_key=key,
                partition=share.partition,
                metadata={**_metadata(share, handle), **(table_metadata(batch.table) if last else {})},
                tags={_DATA_VERSION_TAG: batch.table.id} if last else None,
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
        for partition, markers in sorted(by_key.items(), key=lambda found: (found[0] is None, found[0])):
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


def gap_event(key: dg.AssetKey, after_ms: int, reason: str) -> dg.AssetObservation:
    """That the commits after a time (unix milliseconds) are not known one by one, and why."""
    return dg.AssetObservation(
        asset_key=key,
        description=f"Some commits to this table are not told. {reason}",
        metadata={GAP_AFTER: dg.MetadataValue.int(after_ms)},
    )
