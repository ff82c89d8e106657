"""`python -m examples.materialized_view`: a view that inserts feed, that is merged, and refreshed after a deletion."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from examples.materialized_view.program import best_products, create, create_view, take_back
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import agree

START = datetime(2026, 11, 1, tzinfo=UTC)
PRODUCTS = ("bread", "butter", "cheese", "olives", "tea")
DAY = "2026-11-02"
ROWS: list[dict[str, Any]] = [
    {
        "sale_id": n,
        "ts": START + timedelta(minutes=n),
        "product": PRODUCTS[n * n % 11 % 5],
        "cents": 150 + n * 37 % (300 + 200 * (n * n % 11 % 5)),
    }
    for n in range(3 * 24 * 60)
]
BATCHES = [ROWS[n : n + 360] for n in range(0, len(ROWS), 360)]


def story(stage: Stage) -> None:
    """Insert sales, create a view, insert more sales, and delete some."""
    sales = create(stage.uri("sales"))
    for number, batch in enumerate(BATCHES[:2]):
        sales.insert(batch, txn=("till", number))
    view = create_view(sales)
    for number, batch in enumerate(BATCHES[2:], 2):
        sales.insert(batch, txn=("till", number))
        sales.insert(
            batch, txn=("till", number)
        )  # the till got no response and retries: neither table has the rows twice

    stage.show(f"Products of {DAY}, from the view", best_products(view, DAY))
    _check(best_products(view, DAY).fetchall(), PRODUCTS)

    stored = view.snapshot().rows or 0
    view.merge()
    kept = view.snapshot().rows or 0
    stage.say(f"{sales.snapshot().rows:,} sales; the view has {kept} rows, and had {stored} before its merge.")
    products = {row["product"] for row in ROWS}
    agree("rows of the view", kept, 3 * len(products), source="days and products")
    _check(best_products(view, DAY).fetchall(), PRODUCTS)

    take_back(sales, "tea")
    _check(best_products(view, DAY).fetchall(), [product for product in PRODUCTS if product != "tea"])
    stage.say("After the sales of tea were deleted, the view was refreshed in one commit.")


def _check(actual: list[tuple[object, ...]], products: tuple[str, ...] | list[str]) -> None:
    sold: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for row in ROWS:
        if f"{row['ts']:%Y-%m-%d}" == DAY and row["product"] in products:
            sold[row["product"]] += 1
            cents[row["product"]] += row["cents"]
    agree("sales by product", {row[0]: row[1] for row in actual}, dict(sold), source="the batches")
    agree("revenue by product", {row[0]: row[2] for row in actual}, {p: n / 100 for p, n in cents.items()},
          source="the batches")  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_alone(story))
