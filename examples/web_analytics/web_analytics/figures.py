"""The figures of the dashboard, read from the tables: `read_figures`. This module does not draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from icedb import Snapshot

__all__ = ["Figures", "Series", "read_figures"]

#: Four weeks: each weekday occurs equally often, and the events are kept longer.
RECENT_DAYS = 28
PAGES = 8
ORIGINS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """A tenant's figures by day."""

    tenant: str
    days: tuple[date, ...]
    sessions: tuple[int, ...]
    revenue: tuple[float, ...]
    bounce_rate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the dashboard. Money is in euros, rates are fractions of one.

    `series` covers all days, everything else `first` to `last`. `hours`: views by weekday (Monday first) and hour.
    `pages`: the most viewed pages, with the views of each tenant. `origins`: the sources of sessions, with their
    counts.
    """

    first: date
    last: date
    totals: dict[str, float]
    series: tuple[Series, ...]
    hours: tuple[tuple[int, ...], ...]
    pages: tuple[tuple[str, dict[str, int]], ...]
    origins: tuple[tuple[str, int], ...]


def read_figures(metrics: Snapshot, sessions: Snapshot, page_views: Snapshot) -> Figures:
    """Read the tables at these snapshots, which must have at least one day."""
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
    # A visitor on several days counts once, so daily numbers cannot be added up.
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
    by_hour = {
        (weekday, hour): int(views)
        for weekday, hour, views in page_views.query(
            f"SELECT isodow(hour), hour(hour), sum(views) FROM final WHERE {recent} GROUP BY ALL"
        ).fetchall()
    }
    return tuple(tuple(by_hour.get((weekday, hour), 0) for hour in range(24)) for weekday in range(1, 8))


def _pages(page_views: Snapshot, recent: str) -> tuple[tuple[str, dict[str, int]], ...]:
    views: dict[str, dict[str, int]] = {}
    for page, tenant, count in page_views.query(
        f"SELECT page, tenant, sum(views) FROM final WHERE {recent} GROUP BY ALL ORDER BY ALL"
    ).fetchall():
        views.setdefault(page, {})[tenant] = int(count)
    most = sorted(views.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return tuple(most[:PAGES])
