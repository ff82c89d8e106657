"""`python -m examples.schema_verification`: batches that do not fit, and what can be done with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from rich.table import Table as Grid

from examples.schema_verification.program import (
    create,
    mend,
    problem,
    set_aside,
    take,
    take_what_converts,
    what_was_set_aside,
)
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import NumbersDisagree, agree
from icedb.errors import IceDBError

GOOD: list[dict[str, Any]] = [{"order_id": n, "due": datetime(2026, 12, 1 + n % 20), "total": n} for n in range(100)]  # noqa: DTZ001
BATCHES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "fits": (GOOD, None),
    "a column is misspelled": ([{"order_id": 100, "totl": 5}], "a column that was not declared"),
    "a number came as text": ([{"order_id": 100, "total": "12.50"}], "total is DECIMAL(18,2), and not VARCHAR"),
    "a time is but a date": ([{"order_id": 100, "due": date(2026, 12, 24)}], "due is TIMESTAMP, and not DATE"),
    "a note is a number": ([{"order_id": 101, "note": 7}], "note is VARCHAR, and not BIGINT"),
    "nobody knows which order": ([{"order_id": None, "total": 1}], "a value that is required is missing"),
}
MIXED: list[dict[str, Any]] = [
    {"order_id": 200, "total": 20},
    {"order_id": 201, "total": "21,50", "note": "from the old shop"},
    {"order_id": 202, "total": "a lot"},
    {"order_id": None, "total": 23},
]


def story(stage: Stage) -> None:
    """Look, refuse, cast, set aside, mend."""
    orders = create(stage.uri("orders"))
    grid = Grid(title="Six batches, before they are written", title_justify="left")
    for heading in ("batch", "what is wrong with it"):
        grid.add_column(heading)
    for name, (batch, expected) in BATCHES.items():
        found = problem(orders, batch)
        agree(name, found, expected, source="the declared columns")
        grid.add_row(name, found or "")
    stage.console.print(grid)
    agree("rows after nothing but looking", orders.snapshot().rows, 0, source="what looking means")

    agree("rows of the one that fits", take(orders, GOOD), 100, source="the batch")
    for name, (batch, wrong) in BATCHES.items():
        if wrong is not None:
            _refused(stage, name, partial(take, orders, batch))
    agree("rows after refusals", orders.snapshot().rows, 100, source="the batch that fits")

    for name in ("a time is but a date", "a note is a number"):
        agree(f"{name}: cast", take_what_converts(orders, BATCHES[name][0]), 1, source="the batch")
    _refused(stage, "cast", partial(take_what_converts, orders, BATCHES["a number came as text"][0]))

    agree("rows that fit, and set aside", set_aside(orders, MIXED), (1, 3), source="the mixed batch")
    stage.show("What was set aside", what_was_set_aside(orders))
    agree("mended rows", mend(orders), 1, source="the mixed batch")
    agree("rows still aside", len(what_was_set_aside(orders).fetchall()), 2, source="the mixed batch")
    [(rows, total)] = orders.query("SELECT count(*), sum(total) FROM t").fetchall()
    agree("orders", rows, 100 + 2 + 1 + 1, source="the batches")
    agree("their total", total, sum(range(100)) + Decimal("20") + Decimal("21.50"), source="the batches")


def _refused(stage: Stage, name: str, insert: Callable[[], int]) -> None:
    try:
        insert()
    except IceDBError as error:
        stage.say(f"[dim]{name}:[/dim] {error}")
        return
    raise NumbersDisagree(f"{name}: it was taken, and should have been refused")


if __name__ == "__main__":
    sys.exit(run_alone(story))
