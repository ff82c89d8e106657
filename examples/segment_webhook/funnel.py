"""A funnel: how many people took each step, from the product view to the order."""

from __future__ import annotations

from collections.abc import Sequence

import icedb

__all__ = ["STEPS", "funnel"]

STEPS = ("Product Viewed", "Product Added", "Checkout Started", "Order Completed")


def funnel(calls: icedb.Table, day: str, *, within: str = "1 hour", steps: Sequence[str] = STEPS) -> icedb.QueryResult:
    """Return, for each step, the people who took it after the previous one, `within` a time of their first step.

    Columns: `step`, `people`, `of_all` and `of_the_step_before` in percent. A step counts once for a person: the first
    occurrence after the previous step.
    """
    quoted = [step.replace("'", "''") for step in steps]
    # step_1: when each person first took step 1; step_2: when they first took step 2 after that; and so on.
    step_tables = [
        f"""
        step_1 AS (
            SELECT user_id, min(timestamp) AS begun, begun AS reached
            FROM t WHERE event = '{quoted[0]}' GROUP BY user_id
        )"""
    ]
    step_tables += [
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
        WITH {", ".join(step_tables)}, counts AS ({" UNION ALL ".join(counts)})
        SELECT step, people, 100 * people / first(people) OVER all_steps AS of_all,
               100 * people / lag(people) OVER all_steps AS of_the_step_before
        FROM counts WINDOW all_steps AS (ORDER BY n) ORDER BY n
        """,
        where=f"day = '{day}'",
    )
