"""`python -m examples.aggregating.v3`: the same requests, merged by the query of a v3 program."""

from __future__ import annotations

import sys

import icedb
from examples.aggregating.__main__ import BATCHES, ROWS
from examples.aggregating.program import slowest_pages
from examples.aggregating.v3_program import open_v3
from examples.shared.alone import Stage, run_alone
from examples.shared.local_s3 import local_s3
from examples.shared.numbers import agree


def story(stage: Stage) -> None:
    """Insert and merge with the v3 API, and read with `icedb.Table`."""
    with local_s3() as s3:
        ice = open_v3("shop/requests", s3.bucket, s3.region, s3.endpoint, s3.access_key, s3.secret_key)
        for batch in BATCHES:
            ice.insert([{name: row[name] for name in row if name != "address"} for row in batch])
        table = icedb.Table.open(f"s3://{s3.bucket}/shop/requests", storage_options=s3.storage_options)
        before, stored = slowest_pages(table).fetchall(), table.snapshot().rows
        while ice.merge()[2] is not None:  # a call merges one partition
            pass
        kept = table.snapshot().rows
        stage.show("Requests by page, from a table that a v3 program created", slowest_pages(table))
        stage.say(f"{stored:,} rows before the merge, {kept} afterwards")
        agree("rows after the merge", kept, len({(row["minute"], row["page"]) for row in ROWS}), source="the requests")
        agree(
            "requests by page after the merge", slowest_pages(table).fetchall(), before, source="the results before it"
        )


if __name__ == "__main__":
    sys.exit(run_alone(story))
