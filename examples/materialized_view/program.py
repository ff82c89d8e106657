"""A materialized view: sales by day and product, up to date after each insert, without reading all sales."""

from __future__ import annotations

import icedb

__all__ = ["best_products", "create", "create_view", "take_back"]


def create(uri: str) -> icedb.Table:
    """Create the table of sales: `sale_id`, `ts`, `product`, `cents`."""
    return icedb.Table.create(uri, partition_by=["strftime(ts, '%Y-%m-%d') AS day"], sort_by=["product", "ts"])


def create_view(sales: icedb.Table) -> icedb.Table:
    """Create the view, a table next to it. It starts with the existing sales."""
    return sales.create_view(
        "by_product",
        # The query sees one batch, never the whole table. Keep values that can be added up: sum and count,
        # not an average.
        """
        SELECT strftime(ts, '%Y-%m-%d') AS day, product,
               count(*) AS sales, sum(cents)::BIGINT AS cents, max(cents) AS dearest
        FROM _rows GROUP BY ALL
        """,
        partition_by=["day"],
        sort_by=["product"],
        # Merges rows of one key from different batches into one row.
        merging=icedb.Aggregating(by=("day", "product"), sum=("sales", "cents"), max=("dearest",)),
    )


def best_products(view: icedb.Table, day: str) -> icedb.QueryResult:
    """Return a day's products. `final` is exact at any time; `t` may have several rows of a product."""
    return view.query(
        """
        SELECT product, sales, cents / 100 AS revenue, cents / sales / 100 AS mean, dearest / 100 AS dearest
        FROM final ORDER BY cents DESC, product
        """,
        where=f"day = '{day}'",
    )


def take_back(sales: icedb.Table, product: str) -> None:
    """Delete a product's sales. Only inserts feed a view, so it is refreshed after any other change."""
    sales.delete(f"product = '{product}'")
    sales.refresh_view("by_product")
