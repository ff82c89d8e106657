"""Which commits Dagster knows already: by a step of its own, or by an earlier try of a tick.

An event that tells of a commit says in its metadata when it was made, and what the first of its parts is, see
`icedb_dagster.metadata.table_metadata.commit_metadata`; a step of somebody's own may say the time alone. A commit to
several partitions of an asset is told by as many events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from icedb_dagster.metadata.table_metadata import COMMIT_TIME, FIRST_PART

__all__ = ["EVENTS_OF_COMMIT", "RecordedCommits", "is_gap_recorded", "read_recorded_commits"]

#: How many events of the asset tell of the commit, if they are several.
EVENTS_OF_COMMIT = "icedb/events_of_commit"
#: After which time (unix milliseconds) commits are not known one by one.
GAP_AFTER = "icedb/commits_unknown_after_ms"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Event:
    first_part: str | None
    partition: str | None
    #: Whether it tells of the whole commit.
    whole: bool


@dataclass(frozen=True, slots=True)
class RecordedCommits:
    """Commits that events tell of, by their time (unix milliseconds)."""

    _events: dict[int, list[_Event]] = field(default_factory=dict)

    def add(self, metadata: Mapping[str, Any], partition: str | None) -> None:
        """What the metadata of an event says; nothing, if it is not about a commit."""
        event = _Event(_value(metadata, FIRST_PART), partition, EVENTS_OF_COMMIT not in metadata)
        given = _value(metadata, COMMIT_TIME)
        for created_ms in given if isinstance(given, list) else [given]:  # of a step that made several
            if isinstance(created_ms, int):
                self._events.setdefault(created_ms, []).append(event)

    def has(self, created_ms: int, parts: Collection[str], partition: str | None) -> bool:
        """Whether the rows of a commit that are of a partition are told of. `parts`: the keys of all its parts."""
        return any(
            (event.whole or event.partition == partition) and (event.first_part is None or event.first_part in parts)
            for event in self._events.get(created_ms, ())
        )


def read_recorded_commits(
    instance: dg.DagsterInstance, key: dg.AssetKey, *, since_ms: int, observations: bool
) -> RecordedCommits:
    """The commits that events of an asset since a time (unix milliseconds) tell of.

    `observations`: also those that observations tell of, not only materializations.
    """
    told = RecordedCommits()
    wanted = dg.AssetRecordsFilter(asset_key=key, after_timestamp=since_ms / 1000)
    for record in _all(instance.fetch_materializations, wanted):
        if made := record.asset_materialization:
            told.add(made.metadata, made.partition)
    for record in _all(instance.fetch_observations, wanted) if observations else ():
        if seen := record.event_log_entry.asset_observation:
            told.add(seen.metadata, seen.partition)
    return told


def is_gap_recorded(instance: dg.DagsterInstance, key: dg.AssetKey, *, after_ms: int) -> bool:
    """Whether one of the last observations says that the commits after a time are unknown."""
    records = instance.fetch_observations(key, limit=_PAGE).records
    seen = [record.event_log_entry.asset_observation for record in records]
    return any(o is not None and _value(o.metadata, GAP_AFTER) == after_ms for o in seen)


def _all(fetch: Callable[..., dg.EventRecordsResult], wanted: dg.AssetRecordsFilter) -> Iterator[dg.EventLogRecord]:
    """Page by page, the newest first."""
    cursor, more = None, True
    while more:
        page = fetch(wanted, limit=_PAGE, cursor=cursor)
        yield from page.records
        cursor, more = page.cursor, page.has_more


def _value(metadata: Mapping[str, Any], name: str) -> Any:
    found = metadata.get(name)
    return found.value if isinstance(found, dg.MetadataValue) else found
