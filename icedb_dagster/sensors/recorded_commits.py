"""Commits that Dagster already has events for: from a step of a run, or from an earlier try of a sensor tick.

The metadata of such an event has the commit's time and its first part, see
`icedb_dagster.metadata.table_metadata.commit_metadata`. A user's own step may record the time alone. A commit to
several partitions of an asset has one event for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from icedb_dagster.metadata.table_metadata import COMMIT_TIME, FIRST_PART

__all__ = ["EVENTS_OF_COMMIT", "GAP_AFTER", "RecordedCommits", "is_gap_recorded", "read_recorded_commits"]

#: The number of the commit's events, if there are several.
EVENTS_OF_COMMIT = "icedb/events_of_commit"
#: The time (unix milliseconds) after which individual commits are unknown.
GAP_AFTER = "icedb/commits_unknown_after_ms"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Event:
    first_part: str | None
    partition: str | None
    #: Whether the event covers the whole commit.
    whole: bool


@dataclass(frozen=True, slots=True)
class RecordedCommits:
    """Commits that have events, by their time (unix milliseconds)."""

    _events: dict[int, list[_Event]] = field(default_factory=dict)

    def add(self, metadata: Mapping[str, Any], partition: str | None) -> None:
        """Add the commit of an event's metadata, if there is one."""
        event = _Event(_value(metadata, FIRST_PART), partition, EVENTS_OF_COMMIT not in metadata)
        times = _value(metadata, COMMIT_TIME)
        for created_ms in times if isinstance(times, list) else [times]:  # a list from a step with several commits
            if isinstance(created_ms, int):
                self._events.setdefault(created_ms, []).append(event)

    def has(self, created_ms: int, parts: Collection[str], partition: str | None) -> bool:
        """Return whether the rows of a commit in a partition have an event. `parts` holds the keys of all its parts."""
        return any(
            (event.whole or event.partition == partition) and (event.first_part is None or event.first_part in parts)
            for event in self._events.get(created_ms, ())
        )


def read_recorded_commits(
    instance: dg.DagsterInstance, key: dg.AssetKey, *, since_ms: int, observations: bool
) -> RecordedCommits:
    """Return the commits in the asset's materializations since a time (unix milliseconds).

    `observations`: read observations, too.
    """
    recorded = RecordedCommits()
    wanted = dg.AssetRecordsFilter(asset_key=key, after_timestamp=since_ms / 1000)
    for record in _all(instance.fetch_materializations, wanted):
        if made := record.asset_materialization:
            recorded.add(made.metadata, made.partition)
    for record in _all(instance.fetch_observations, wanted) if observations else ():
        if observed := record.event_log_entry.asset_observation:
            recorded.add(observed.metadata, observed.partition)
    return recorded


def is_gap_recorded(instance: dg.DagsterInstance, key: dg.AssetKey, *, after_ms: int) -> bool:
    """Return whether one of the last observations records that the commits after a time are unknown."""
    records = instance.fetch_observations(key, limit=_PAGE).records
    observations = [record.event_log_entry.asset_observation for record in records]
    return any(o is not None and _value(o.metadata, GAP_AFTER) == after_ms for o in observations)


def _all(fetch: Callable[..., dg.EventRecordsResult], wanted: dg.AssetRecordsFilter) -> Iterator[dg.EventLogRecord]:
    """Yield all records page by page, the newest first."""
    cursor, more = None, True
    while more:
        page = fetch(wanted, limit=_PAGE, cursor=cursor)
        yield from page.records
        cursor, more = page.cursor, page.has_more


def _value(metadata: Mapping[str, Any], name: str) -> Any:
    value = metadata.get(name)
    return value.value if isinstance(value, dg.MetadataValue) else value
