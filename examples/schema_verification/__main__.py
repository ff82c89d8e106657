"""`python -m examples.schema_verification`: batches that do not fit, and how to handle them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from rich.table import Table as Grid

from examples.schema_verification.program import (
    correct,
    create,
    insert,
    insert_cast,
    problem,
    quarantine,
    quarantined_rows,
)
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import NumbersDisagree, agree
from icedb.errors import IceDBError

GOOD: list[dict[str, Any]] = [{"order_id": n, "due": datetime(2026, 12, 1 + n % 20), "total": n} for n in range(100)]  # noqa: DTZ001
BATCHES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "fits": (GOOD, None),
    "a column is misspelled": ([{"order_id": 100, "totl": 5}], "an undeclared column"),
    "a number arrives as text": ([{"order_id": 100, "total": "12.50"}], "total is DECIMAL(18,2), not VARCHAR"),
    "a time is only a date": ([{"order_id": 100, "due": date(2026, 12, 24)}], "due is TIMESTAMP, not DATE"),
    "a note is a number": ([{"order_id": 101, "note": 7}], "note is VARCHAR, not BIGINT"),
    "the order id is missing": ([{"order_id": None, "total": 1}], "a required value is missing"),
}
MIXED: list[dict[str, Any]] = [
    {"order_id": 200, "total": 20},
    {"order_id": 201, "total": "21,50", "note": "from the old shop"},
    {"order_id": 202, "total": "a lot"},
    {"order_id": None, "total": 23},
]


def story(stage: Stage) -> None:
    """Validate, reject, cast, quarantine, correct."""
    orders = create(stage.uri("orders"))
    grid = Grid(title="Six batches, before they are written", title_justify="left")
    for heading in ("batch", "problem"):
        grid.add_column(heading)
    for name, (batch, expected) in BATCHES.items():
        reason = problem(orders, batch)
        agree(name, reason, expected, source="the declared columns")
        grid.add_row(name, reason or "")
    stage.console.print(grid)
    agree("rows after dry runs", orders.snapshot().rows, 0, source="the dry runs")

    agree("rows of the batch that fits", insert(orders, GOOD), 100, source="the batch")
    for name, (batch, wrong) in BATCHES.items():
        if wrong is not None:
            _expect_rejection(stage, name, partial(insert, orders, batch))
    agree("rows after rejections", orders.snapshot().rows, 100, source="the batch that fits")

    for name in ("a time is only a date", "a note is a number"):
        agree(f"{name}: cast", insert_cast(orders, BATCHES[name][0]), 1, source="the batch")
    _expect_rejection(stage, "cast", partial(insert_cast, orders, BATCHES["a number arrives as text"][0]))

    agree("inserted and quarantined rows", quarantine(orders, MIXED), (1, 3), source="the mixed batch")
    stage.show("Quarantined rows", quarantined_rows(orders))
    agree("corrected rows", correct(orders), 1, source="the mixed batch")
    agree("rows still in quarantine", len(quarantined_rows(orders).fetchall()), 2, source="the mixed batch")
    [(rows, total)] = orders.query("SELECT count(*), sum(total) FROM t").fetchall()
    agree("orders", rows, 100 + 2 + 1 + 1, source="the batches")
    agree("their total", total, sum(range(100)) + Decimal("20") + Decimal("21.50"), source="the batches")


def _expect_rejection(stage: Stage, name: str, attempt: Callable[[], int]) -> None:
    try:
        attempt()
    except IceDBError as error:
        stage.say(f"[dim]{name}:[/dim] {error}")
        return
    raise NumbersDisagree(f"{name}: the batch was accepted instead of rejected")


if __name__ == "__main__":
    sys.exit(run_alone(story))
