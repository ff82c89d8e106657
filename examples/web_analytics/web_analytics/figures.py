"""What the dashboard shows, read from the tables: `read_figures`. It draws nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from icedb import Snapshot

__all__ = ["Figures", "Series", "read_figures"]

#: Four weeks: they have as many of each weekday, and are no more than is kept of the events.
RECENT_DAYS = 28
PAGES = 8
ORIGINS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """A tenant's figures of each day, in the order of the days."""

    tenant: str
    days: tuple[date, ...]
    sessions: tuple[int, ...]
    revenue: tuple[float, ...]
    bounce_rate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """All that the dashboard shows. Money is in euros, rates are parts of one.

    `series` are of all days there are, all else from `first` to `last`. `hours`: views on each weekday (Monday is the
    first) and hour. `pages`: the most viewed ones, with the views of each tenant. `origins`: where sessions came from,
    with their number.
    """

    first: date
    last: date
    totals: dict[str, float]
    series: tuple[Series, ...]
    hours: tuple[tuple[int, ...], ...]
    pages: tuple[tuple[str, dict[str, int]], ...]
    origins: tuple[tuple[str, int], ...]


def read_figures(metrics: Snapshot, sessions: Snapshot, page_views: Snapshot) -> Figures:
    """Read the tables as these snapshots have them. There must be a day at least."""
    [(first, last)] = metrics.query("SELECT min(day), max(day) FROM t").fetchall()
    end = date.fromisoformat(last)
    since = max(date.fromisoformat(first), end - timedelta(days=RECENT_DAYS - 1))
    recent = f"day >= '{since}'"
    return Figures(
        first=since,
        last=end,
        totals=_totals(metrics, sessions, recent),
        series=tuple(_series(metrics)),
        hours=_hours(page_views, recent),
        pages=_pages(page_views, recent),
        origins=tuple(
            sessions.query(
                f"SELECT coalesce(referrer, 'direct'), count(*) AS n FROM t WHERE {recent} "
                f"GROUP BY ALL ORDER BY n DESC, 1 LIMIT {ORIGINS}"
            ).fetchall()
        ),
    )


def _totals(metrics: Snapshot, sessions: Snapshot, recent: str) -> dict[str, float]:
    # A visitor of several days is one visitor, so the days' numbers do not add up to theirs.
    [(visitors,)] = sessions.query(f"SELECT count(DISTINCT user_id) FROM t WHERE {recent}").fetchall()
    [(sessions_, views, bounce, purchases, cents)] = metrics.query(
        "SELECT sum(sessions), sum(page_views), sum(bounce_rate * sessions) / sum(sessions), sum(purchases), "
        f"sum(revenue_cents) FROM t WHERE {recent}"
    ).fetchall()
    return {
        "visitors": visitors,
        "sessions": int(sessions_),
        "page views": int(views),
        "bounce rate": bounce,
        "purchases": int(purchases),
        "revenue": float(cents) / 100,
    }


def _series(metrics: Snapshot) -> Sequence[Series]:
    rows = metrics.query(
        "SELECT tenant, list(day ORDER BY day), list(sessions ORDER BY day), list(revenue_cents / 100 ORDER BY day), "
        "list(bounce_rate ORDER BY day) FROM t GROUP BY tenant ORDER BY sum(sessions) DESC"
    ).fetchall()
    return [
        Series(tenant, tuple(map(date.fromisoformat, days)), tuple(sessions), tuple(revenue), tuple(bounce))
        for tenant, days, sessions, revenue, bounce in rows
    ]


def _hours(page_views: Snapshot, recent: str) -> tuple[tuple[int, ...], ...]:
    found = {
        (weekday, hour): int(views)
        for weekday, hour, views in page_views.query(
            f"SELECT isodow(hour), hour(hour), sum(views) FROM final WHERE {recent} GROUP BY ALL"
        ).fetchall()
    }
    return tuple(tuple(found.get((weekday, hour), 0) for hour in range(24)) for weekday in range(1, 8))


def _pages(page_views: Snapshot, recent: str) -> tuple[tuple[str, dict[str, int]], ...]:
    views: dict[str, dict[str, int]] = {}
    for page, tenant, count in page_views.query(
        f"SELECT page, tenant, sum(views) FROM final WHERE {recent} GROUP BY ALL ORDER BY ALL"
    ).fetchall():
        views.setdefault(page, {})[tenant] = int(count)
    most = sorted(views.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return tuple(most[:PAGES])
