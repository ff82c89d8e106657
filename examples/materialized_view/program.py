"""A materialized view: sales of the day by product, right after each insert, without a pass over all sales."""

from __future__ import annotations

import icedb

__all__ = ["best_products", "create", "create_view", "take_back"]


def create(uri: str) -> icedb.Table:
    """The table of single sales: `sale_id`, `ts`, `product`, `cents`."""
    return icedb.Table.create(uri, partition_by=["strftime(ts, '%Y-%m-%d') AS day"], sort_by=["product", "ts"])


def create_view(sales: icedb.Table) -> icedb.Table:
    """The view, a table beside it. It begins with the sales that are there."""
    return sales.create_view(
        "by_product",
        # Over one batch, never the whole table: keep what can be added up. An average cannot; sum and count can.
        """
        SELECT strftime(ts, '%Y-%m-%d') AS day, product,
               count(*) AS sales, sum(cents)::BIGINT AS cents, max(cents) AS dearest
        FROM _rows GROUP BY ALL
        """,
        partition_by=["day"],
        sort_by=["product"],
        # Makes one row of those that different batches brought for one key.
        merging=icedb.Aggregating(by=("day", "product"), sum=("sales", "cents"), max=("dearest",)),
    )


def best_products(view: icedb.Table, day: str) -> icedb.QueryResult:
    """A day's products. `final` is exact whatever was merged so far; `t` may have several rows of a product."""
    return view.query(
        """
        SELECT product, sales, cents / 100 AS revenue, cents / sales / 100 AS mean, dearest / 100 AS dearest
        FROM final ORDER BY cents DESC, product
        """,
        where=f"day = '{day}'",
    )


def take_back(sales: icedb.Table, product: str) -> None:
    """Delete a product's sales. A view is fed by inserts alone, so it is made anew after any other change."""
    sales.delete(f"product = '{product}'")
    sales.refresh_view("by_product")
