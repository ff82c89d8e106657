"""`python -m examples.simple`: two tenants' events, queried by day and by user, before and after a merge."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import agree
from examples.simple.program import collect, create, tidy, visits_by_day, visits_of

START = datetime(2026, 11, 1, tzinfo=UTC)
BATCHES = [
    [
        {
            "ts": START + timedelta(hours=6 * batch, minutes=n),
            "tenant": ("acme", "globex")[n % 2],
            "user_id": n * n % (30 + batch),
            "event": "buy" if n * (batch + 1) % 13 == 0 else "open",
        }
        for n in range(200 + 37 * batch % 100)
    ]
    for batch in range(12)
]
ROWS = [row for batch in BATCHES for row in batch]


def story(stage: Stage) -> None:
    """Insert, query, merge, query again."""
    table = create(stage.uri("events"))
    for number, batch in enumerate(BATCHES):
        agree("new rows of a batch", collect(table, number, batch), len(batch), source="the batch")
    agree("new rows of a retried batch", collect(table, 3, BATCHES[3]), 0, source="the exactly-once guarantee")

    stage.show("Visits by day", visits_by_day(table))
    by_day = visits_by_day(table).fetchall()
    agree("events", sum(row[3] for row in by_day), len(ROWS), source="the batches")
    agree("purchases", sum(row[4] for row in by_day), sum(r["event"] == "buy" for r in ROWS), source="the batches")

    before = table.snapshot()
    tidy(table)
    after = table.snapshot()
    stage.say(f"A merge replaced {len(before.parts)} parts by {len(after.parts)}, with the same rows.")
    agree("parts after the merge", len(after.parts), 2 * 3, source="two tenants and three days")
    agree("results after the merge", visits_by_day(table).fetchall(), by_day, source="the results before it")

    of_one = visits_of(table, "acme", 24).fetchall()
    mine = sorted((row["ts"], row["event"]) for row in ROWS if (row["tenant"], row["user_id"]) == ("acme", 24))
    agree("events of user 24 of acme", of_one, mine, source="the batches")
    opened = len(after.files("tenant = 'acme' AND user_id = 24"))
    stage.say(f"User 24 of acme has {len(of_one)} events; {opened} of {len(after.parts)} parts may contain them.")
    agree("parts that may contain rows of acme", opened, 3, source="the days")


if __name__ == "__main__":
    sys.exit(run_alone(story))
