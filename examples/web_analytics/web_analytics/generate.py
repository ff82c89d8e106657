"""Events of three shops as their web sites would send them, reproducible by seed.

    python -m web_analytics.generate

A visit is one person who views pages, clicks, sometimes buys, sometimes takes a long break and returns. Phones that
were offline deliver a visit on the next day. A few rows are broken. No network is needed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["SHOPS", "Shop", "generate"]

Event = dict[str, Any]

# The percentage of visits from offline phones, and the number of broken rows in ten thousand.
LATE_PERCENT = 1.5
BROKEN_PER_10_000 = 12
LUNCH_PERCENT = 4.0


@dataclass(frozen=True, slots=True)
class Shop:
    """A tenant. `visits`: on an average day; `week`: the factor of each day, from Monday on; `growth`: per month.

    `hours`: the activity in each hour of the day (UTC). `campaign`: a day number, and the factor of its visits.
    """

    tenant: str
    first_user: int
    users: int
    visits: int
    growth: float
    week: Sequence[float]
    hours: Sequence[float]
    countries: Mapping[str, int]
    products: Sequence[tuple[str, int]]
    bounce: float
    buys: float
    campaign: tuple[int, float]


_EVENING = [2, 1, 1, 1, 1, 2, 4, 6, 7, 7, 8, 9, 10, 10, 9, 9, 10, 12, 15, 18, 19, 16, 10, 5]
_DAYLIGHT = [1, 0, 0, 0, 1, 3, 6, 10, 13, 15, 15, 14, 13, 13, 12, 11, 10, 9, 8, 6, 5, 3, 2, 1]
_OFFICE = [0, 0, 0, 0, 0, 2, 9, 16, 18, 14, 10, 8, 9, 14, 11, 7, 4, 2, 2, 2, 1, 1, 0, 0]

SHOPS = (
    Shop(
        "aurora-fashion", 1_000_000, 9000, 700, 0.16, (0.9, 0.88, 0.92, 0.97, 1.02, 1.1, 1.21), _EVENING,
        {"DE": 40, "FR": 22, "NL": 12, "AT": 10, "IT": 9, "PL": 7},
        (("coat", 12900), ("sneakers", 8900), ("dress", 6900), ("jeans", 5900), ("scarf", 2500), ("socks", 900)),
        0.36, 0.055, (24, 1.9),
    ),
    Shop(
        "bramble-garden", 2_000_000, 2500, 170, -0.12, (0.7, 0.72, 0.76, 0.84, 1.05, 1.5, 1.43), _DAYLIGHT,
        {"GB": 64, "IE": 20, "DE": 9, "DK": 7},
        (("rose", 1900), ("shears", 3400), ("mower", 24900), ("seeds", 350), ("gloves", 1200)),
        0.44, 0.04, (11, 2.2),
    ),
    Shop(
        "cobalt-coffee", 3_000_000, 450, 42, 0.3, (1.3, 1.28, 1.22, 1.2, 1.05, 0.5, 0.45), _OFFICE,
        {"SE": 48, "NO": 26, "DK": 16, "FI": 10},
        (("espresso", 1450), ("filter", 1250), ("grinder", 18900), ("cups", 2200)),
        0.3, 0.085, (33, 1.7),
    ),
)  # fmt: skip

_REFERRERS = {"": 34, "search": 31, "social": 15, "newsletter": 11, "partner": 9}
_DEVICES = {"mobile": 58, "desktop": 35, "tablet": 7}
_CLICKS = ("menu", "picture", "size", "review", "share")


def generate(folder: str | Path, days: Sequence[date], *, seed: int = 7, scale: float = 1.0) -> int:
    """Write `<folder>/<tenant>/<day>.jsonl` for each day, and return the number of lines.

    `scale` multiplies the number of visits. Events that would arrive after the last day are omitted.
    """
    lines = 0
    for shop in SHOPS:
        path = Path(folder, shop.tenant)
        path.mkdir(parents=True, exist_ok=True)
        for day, events in _arrivals(shop, days, seed, scale):
            with (path / f"{day}.jsonl").open("w", encoding="utf-8") as file:
                for event in events:
                    file.write(json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n")
            lines += len(events)
    return lines


def _arrivals(shop: Shop, days: Sequence[date], seed: int, scale: float) -> Iterator[tuple[date, list[Event]]]:
    """Yield the events by day of arrival: their own day, or the next one."""
    tomorrow: list[Event] = []
    for number, day in enumerate(days):
        # One generator for each day, so that a day does not depend on the number of days.
        random = Random(f"{seed}/{shop.tenant}/{day}")
        today, end = tomorrow, f"{day + timedelta(days=1)}"
        tomorrow = []
        for visit in _visits(shop, day, number, random, scale):
            late = random.random() * 100 < LATE_PERCENT
            for event in visit:
                (tomorrow if late or event["ts"] >= end else today).append(event)
        today.sort(key=lambda event: (event["ts"], event["event_id"]))
        yield day, [_perhaps_broken(event, random) for event in today]


def _visits(shop: Shop, day: date, number: int, random: Random, scale: float) -> Iterator[list[Event]]:
    whole = shop.visits * scale * shop.week[day.weekday()] * (1 + shop.growth) ** (number / 30)
    if number == shop.campaign[0]:
        whole *= shop.campaign[1]
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    for _ in range(max(1, round(whole * random.uniform(0.93, 1.07)))):
        hour = _one_of(dict(enumerate(shop.hours)), random)
        start = midnight + timedelta(hours=hour, milliseconds=random.randrange(3_600_000))
        yield list(_visit(shop, start, random))


def _visit(shop: Shop, start: datetime, random: Random) -> Iterator[Event]:
    """Yield the events of one person, with or without a break of over half an hour."""
    # Some users visit often: the square makes low numbers likelier.
    user = shop.first_user + int(shop.users * random.random() ** 2)
    person = Random(user)
    always = {
        "tenant": shop.tenant,
        "user_id": user,
        "country": _one_of(shop.countries, person),
        "device": _one_of(_DEVICES, person),
        "referrer": _one_of(_REFERRERS, random) or None,
    }
    now, product, price = start, *_product(shop, random)
    for page in _pages(shop, product, random):
        yield _event(always, now, "page_view", page, random)
        for _ in range(_geometric(0.45, random)):
            now += timedelta(milliseconds=random.randrange(400, 9_000))
            yield _event(always, now, "click", page, random, target=random.choice(_CLICKS))
        if page == "/thanks":
            yield _event(always, now, "purchase", page, random, cents=price * (1 + _geometric(0.2, random)))
        now += timedelta(milliseconds=int(1000 * min(1200, random.lognormvariate(3.4, 0.9))))
        if random.random() * 100 < LUNCH_PERCENT:
            now += timedelta(minutes=random.randrange(35, 90))


def _pages(shop: Shop, product: str, random: Random) -> Iterable[str]:
    landing = random.choices(("/", f"/products/{product}", "/blog"), weights=(5, 4, 1))[0]
    if random.random() < shop.bounce:
        return [landing]
    looked_at = [landing]
    for _ in range(1 + _geometric(0.7, random)):
        other = random.choice(("/", "/search", "/about", "/blog", *[None] * 5))
        looked_at.append(other or f"/products/{_product(shop, random)[0]}")
    if random.random() < shop.buys / (1 - shop.bounce):
        return [*looked_at, f"/products/{product}", "/cart", "/checkout", "/thanks"]
    return looked_at


def _product(shop: Shop, random: Random) -> tuple[str, int]:
    """The second is wanted half as often as the first, the third a third."""
    return random.choices(shop.products, weights=[1 / (n + 1) for n in range(len(shop.products))])[0]


def _event(always: Event, at: datetime, kind: str, page: str, random: Random, **more: object) -> Event:
    timestamp = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
    return {"event_id": f"{random.getrandbits(64):016x}", "ts": timestamp, **always, "kind": kind, "page": page, **more}


def _perhaps_broken(event: Event, random: Random) -> Event:
    """Mostly the event as it is; else as a program sends it that has a mistake."""
    if random.random() * 10_000 >= BROKEN_PER_10_000:
        return event
    return random.choice(
        (
            {**event, "ts": "n/a"},
            {**event, "user_id": f"user-{event['user_id']}"},
            {name: value for name, value in event.items() if name != "kind"},
        )
    )


def _one_of(weights: Mapping[Any, float], random: Random) -> Any:
    return random.choices([*weights], weights=[*weights.values()])[0]


def _geometric(more: float, random: Random) -> int:
    """Return a random number of consecutive successes of this probability."""
    return int(math.log(1 - random.random()) / math.log(more))


if __name__ == "__main__":
    from web_analytics.settings import DAYS, INBOX

    print(f"{generate(INBOX, DAYS):,} lines in {INBOX}")
