"""How many people went how far: from seeing a product to the order, one step after the other."""

from __future__ import annotations

from collections.abc import Sequence

import icedb

__all__ = ["STEPS", "funnel"]

STEPS = ("Product Viewed", "Product Added", "Checkout Started", "Order Completed")


def funnel(calls: icedb.Table, day: str, *, within: str = "1 hour", steps: Sequence[str] = STEPS) -> icedb.QueryResult:
    """Of each step, the people who took it after the one before it, `within` a time of their first step.

    Columns: `step`, `people`, `of_all` and `of_the_step_before` in per cent. A step counts once for a person: the first
    after the step before, so each is looked for among what came later.
    """
    quoted = [step.replace("'", "''") for step in steps]
    # step_1: when each person first did the first; step_2: when they first did the second after that; and so on.
    found = [
        f"""
        step_1 AS (
            SELECT user_id, min(timestamp) AS begun, begun AS reached
            FROM t WHERE event = '{quoted[0]}' GROUP BY user_id
        )"""
    ]
    found += [
        f"""
        step_{n} AS (
            SELECT user_id, any_value(begun) AS begun, min(timestamp) AS reached
            FROM step_{n - 1} AS before JOIN t USING (user_id)
            WHERE event = '{step}' AND timestamp > before.reached AND timestamp <= before.begun + INTERVAL '{within}'
            GROUP BY user_id
        )"""
        for n, step in enumerate(quoted[1:], 2)
    ]
    counts = [
        f"SELECT {n} AS n, '{step}' AS step, count(*) AS people FROM step_{n}" for n, step in enumerate(quoted, 1)
    ]
    return calls.query(
        f"""
        WITH {", ".join(found)}, counts AS ({" UNION ALL ".join(counts)})
        SELECT step, people, 100 * people / first(people) OVER all_steps AS of_all,
               100 * people / lag(people) OVER all_steps AS of_the_step_before
        FROM counts WINDOW all_steps AS (ORDER BY n) ORDER BY n
        """,
        where=f"day = '{day}'",
    )
