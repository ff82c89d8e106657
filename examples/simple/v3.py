"""`python -m examples.simple.v3`: the same events through the v3 API, then the same table through `icedb.Table`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import icedb
from examples.shared.alone import Stage, run_alone
from examples.shared.local_s3 import local_s3
from examples.shared.numbers import agree
from examples.simple.__main__ import BATCHES, ROWS
from examples.simple.v3_program import open_v3, visits_by_day


def story(stage: Stage) -> None:
    """Insert and merge with the v3 API, and read with both."""
    with local_s3() as s3:
        ice = open_v3("shop/events", s3.bucket, s3.region, s3.endpoint, s3.access_key, s3.secret_key)
        for batch in BATCHES:
            ice.insert([_in_v3(row) for row in batch])
        merges = 0
        while ice.merge()[2] is not None:  # a call merges one partition
            merges += 1
        agree("merged partitions", merges, 2 * 3, source="two tenants and three days")
        by_day = visits_by_day(ice)

        # No conversion: both APIs may use the same table.
        table = icedb.Table.open(f"s3://{s3.bucket}/shop/events", storage_options=s3.storage_options)
        answer = table.query("""
            SELECT tenant, d::VARCHAR AS day, count(DISTINCT user_id) AS visitors, count(*) AS events,
                   count(*) FILTER (event = 'buy') AS purchases
            FROM t GROUP BY ALL ORDER BY ALL
        """)
        stage.show("Visits by day, from a table that a v3 program created", answer)
        agree("events", sum(row[3] for row in by_day), len(ROWS), source="the batches")
        agree("visits by day", answer.fetchall(), by_day, source="the v3 program")


def _in_v3(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert times to unix milliseconds, as v3 takes them."""
    return {**row, "ts": round(row["ts"].timestamp() * 1000)}


if __name__ == "__main__":
    sys.exit(run_alone(story))
