"""`python -m examples.aggregating`: requests become one row for each minute and page, by both ways of merging."""

from __future__ import annotations

import sys
from typing import Any

from examples.aggregating.program import create_built_in, create_with_query, slowest_pages
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import agree

PAGES = ("/", "/cart", "/help", "/search")
ROWS: list[dict[str, Any]] = [
    {
        "day": "2026-11-21",
        "minute": n // 200,
        "page": PAGES[n % 11 % 4],
        "ms": 5 + n * 7919 % (90 * (1 + n % 11 % 4)),
        "address": f"10.0.{n % 7}.{n % 250}",
    }
    for n in range(6000)
]
BATCHES = [[{**row, "slowest": row["ms"]} for row in ROWS[n::10]] for n in range(10)]


def story(stage: Stage) -> None:
    """Insert the same batches into both tables, and compare results before and after their merges."""
    built_in, own = create_built_in(stage.uri("requests")), create_with_query(stage.uri("requests_with_address"))
    for batch in BATCHES:
        built_in.insert([{name: row[name] for name in row if name != "address"} for row in batch])
        own.insert([{**row, "views": 1} for row in batch])
    before = slowest_pages(built_in).fetchall()
    stage.show("Requests by page", slowest_pages(built_in))
    expected = []
    for page in PAGES:
        times = [row["ms"] for row in ROWS if row["page"] == page]
        expected.append((page, len(times), sum(times) / len(times), max(times)))
    agree("requests by page", sorted(before), expected, source="the requests")

    for table in (built_in, own):
        stored = table.snapshot().rows or 0
        table.merge()
        kept = table.snapshot().rows or 0
        stage.say(f"{table.uri.rpartition('/')[2]}: {stored:,} rows before its merge, {kept} afterwards")
        agree("rows after the merge", kept, len({(row["minute"], row["page"]) for row in ROWS}), source="the requests")
        agree(
            "requests by page after the merge", slowest_pages(table).fetchall(), before, source="the results before it"
        )

    [(slowest, address)] = own.query("SELECT slowest, address FROM t WHERE page = '/' AND minute = 3").fetchall()
    mine = [row for row in ROWS if (row["page"], row["minute"]) == ("/", 3)]
    expected_slowest = max((row["ms"], row["address"]) for row in mine)
    agree(
        "the slowest request of a minute, and its address", (slowest, address), expected_slowest, source="the requests"
    )


if __name__ == "__main__":
    sys.exit(run_alone(story))
