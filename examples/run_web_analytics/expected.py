"""The expected contents of the tables, counted from the generated files with Python alone.

Spark, DuckDB and IceDB are not used, so agreement with their numbers is no accident.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Event", "EventCounts", "ExpectedSession", "count_inbox", "metrics_of"]

INACTIVE = timedelta(minutes=30)


class Event(NamedTuple):
    """A row that fits."""

    tenant: str
    user: int
    at: datetime
    event_id: str
    kind: str
    page: str
    cents: int

    @property
    def day(self) -> str:
        """The day in UTC."""
        return f"{self.at:%Y-%m-%d}"


class ExpectedSession(NamedTuple):
    """An expected session. It begins with the event whose id it has."""

    session_id: str
    tenant: str
    user: int
    day: str
    seconds: float
    page_views: int
    clicks: int
    purchases: int
    cents: int
    landing_page: str


@dataclass(frozen=True, slots=True)
class EventCounts:
    """All events that arrived. `misfits` has the user of each row that does not fit."""

    events: tuple[Event, ...]
    misfits: tuple[str, ...]

    def without(self, user: int) -> EventCounts:
        """Return the counts without this user."""
        return EventCounts(
            tuple(event for event in self.events if event.user != user),
            tuple(name for name in self.misfits if name not in (str(user), f"user-{user}")),
        )

    def since(self, day: str) -> EventCounts:
        """Return the events from this day on."""
        return EventCounts(tuple(event for event in self.events if event.day >= day), self.misfits)

    @property
    def by_partition(self) -> Counter[tuple[str, str]]:
        """(tenant, day) -> events."""
        return Counter((event.tenant, event.day) for event in self.events)

    @property
    def page_views(self) -> dict[tuple[str, datetime, str], tuple[int, int]]:
        """(tenant, hour, page) -> views and clicks."""
        views: Counter[tuple[str, datetime, str]] = Counter()
        clicks: Counter[tuple[str, datetime, str]] = Counter()
        for event in self.events:
            key = event.tenant, event.at.replace(minute=0, second=0, microsecond=0), event.page
            views[key] += event.kind == "page_view"
            clicks[key] += event.kind == "click"
        return {key: (views[key], clicks[key]) for key in views}

    def sessions(self) -> list[ExpectedSession]:
        """Return all sessions, sorted by id."""
        of_user: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in self.events:
            of_user[event.tenant, event.user].append(event)
        return sorted(_session(part) for events in of_user.values() for part in _parts(events))

    def busiest_misfit(self) -> int:
        """Return the user with most events, among those with a row that does not fit if there are any."""
        also = {name.removeprefix("user-") for name in self.misfits}
        counts = Counter(event.user for event in self.events)
        counts = Counter({user: n for user, n in counts.items() if str(user) in also}) or counts
        return min(counts, key=lambda user: (-counts[user], user))


def metrics_of(
    sessions: Iterable[ExpectedSession],
) -> dict[tuple[str, str], tuple[int, int, int, float, float, int, int]]:
    """Return (tenant, day) -> visitors, sessions, page views, bounce rate, median of seconds, purchases, cents."""
    of_day: defaultdict[tuple[str, str], list[ExpectedSession]] = defaultdict(list)
    for session in sessions:
        of_day[session.tenant, session.day].append(session)
    return {
        key: (
            len({s.user for s in sessions}),
            len(sessions),
            sum(s.page_views for s in sessions),
            round(sum(s.page_views == 1 for s in sessions) / len(sessions), 9),
            round(statistics.median(s.seconds for s in sessions), 6),
            sum(s.purchases for s in sessions),
            sum(s.cents for s in sessions),
        )
        for key, sessions in of_day.items()
    }


def count_inbox(inbox: Path) -> EventCounts:
    """Read every file of the inbox."""
    events: list[Event] = []
    misfits: list[str] = []
    for path in sorted(inbox.glob("*/*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                event = _event(row)
                if event is None:
                    misfits.append(str(row.get("user_id")))
                else:
                    events.append(event)
    return EventCounts(tuple(events), tuple(misfits))


def _event(row: dict[str, Any]) -> Event | None:
    """Return the event of a row; None for a row that does not fit."""
    if not isinstance(row["user_id"], int) or row.get("kind") is None:
        return None
    try:
        at = datetime.fromisoformat(row["ts"])
    except ValueError:
        return None
    return Event(row["tenant"], row["user_id"], at, row["event_id"], row["kind"], row["page"], row.get("cents") or 0)


def _parts(events: list[Event]) -> Iterator[list[Event]]:
    """Divide a user's events at long gaps."""
    part: list[Event] = []
    for event in sorted(events, key=lambda e: (e.at, e.event_id)):
        if part and event.at - part[-1].at > INACTIVE:
            yield part
            part = []
        part.append(event)
    yield part


def _session(events: list[Event]) -> ExpectedSession:
    first = events[0]
    kinds = Counter(event.kind for event in events)
    return ExpectedSession(
        session_id=first.event_id,
        tenant=first.tenant,
        user=first.user,
        day=first.day,
        seconds=round((events[-1].at - first.at).total_seconds(), 6),
        page_views=kinds["page_view"],
        clicks=kinds["click"],
        purchases=kinds["purchase"],
        cents=sum(event.cents for event in events),
        landing_page=first.page,
    )
