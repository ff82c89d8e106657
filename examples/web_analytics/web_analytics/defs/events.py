"""The raw events: each day's files, each row once, with rows that do not fit in the quarantine."""

import dagster as dg

from icedb import Aggregating, Table
from icedb_dagster import IceDBResource
from web_analytics.settings import INBOX, PARTITIONS, TENANTS

DAY = "strftime(ts, '%Y-%m-%d')"
SCHEMA = {
    "event_id": "VARCHAR",
    "ts": "TIMESTAMP WITH TIME ZONE",
    "tenant": "VARCHAR",
    "user_id": "BIGINT",
    "country": "VARCHAR",
    "device": "VARCHAR",
    "referrer": "VARCHAR",
    "kind": "VARCHAR",
    "page": "VARCHAR",
    "target": "VARCHAR",
    "cents": "BIGINT",
}
REQUIRED = ["event_id", "ts", "tenant", "user_id", "kind"]

#: Page views by hour. Every insert into the events adds to it.
VIEW = "page_views"
VIEW_QUERY = f"""
    SELECT tenant, {DAY} AS day, date_trunc('hour', ts) AS hour, page,
           count(*) FILTER (kind = 'page_view') AS views, count(*) FILTER (kind = 'click') AS clicks
    FROM _rows WHERE page IS NOT NULL GROUP BY ALL
"""


@dg.asset(
    partitions_def=PARTITIONS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    kinds={"icedb", "parquet", "json"},
    group_name="web",
    # A preview shows personal data, and remains in Dagster's history after a deletion.
    metadata={"partition_expr": "day", "partition_by": ["tenant", "day"], "icedb/preview_rows": 0},
)
def events(context: dg.AssetExecutionContext, icedb: IceDBResource) -> None:
    """Events that arrived on a day, of all tenants, including late ones.

    A day's files are one transaction: to run a day again adds nothing, in any run. So the asset waits for all files: a
    file that arrived after its day was ingested would never be read. Views are fed in the same call, so rows are added,
    not replaced. Raises dagster.Failure before anything is added if a file of a day is missing.
    """
    files = {day: files_of(day) for day in context.partition_keys}
    table = open_events(icedb)
    rows = quarantined = repeated = 0
    for day, paths in files.items():
        commit = table.insert(paths, txn=(f"inbox/{day}", 1), on_conflict="quarantine")
        rows += commit.rows
        quarantined += commit.quarantined_rows
        repeated += commit.repeated
        context.log.info("%s: %d rows, %d quarantined", day, commit.rows, commit.quarantined_rows)
    context.add_output_metadata({"rows added": rows, "rows quarantined": quarantined, "repeated days": repeated})


def files_of(day: str) -> list[str]:
    """Return the files that arrived on a day, one of each tenant. Raises dagster.Failure if one is missing."""
    files = [INBOX / tenant / f"{day}.jsonl" for tenant in TENANTS]
    if missing := [str(file.relative_to(INBOX)) for file in files if not file.is_file()]:
        raise dg.Failure(
            f"{INBOX}: {', '.join(missing)} of {day} is missing, and nothing was added. If a file arrives late, "
            "run the day again. If it never will, create an empty one. To generate events: "
            "python -m web_analytics.generate"
        )
    return [str(file) for file in files]


def open_events(lake: IceDBResource) -> Table:
    """Open the table of events with its view, and create them if they are missing."""
    table = lake.table_or_create(
        "events",
        partition_by=["tenant", f"{DAY} AS day"],
        sort_by=["user_id", "ts"],
        schema=SCHEMA,
        required=REQUIRED,
        schema_policy="declared",
    )
    if VIEW not in table.views():
        table.create_view(
            VIEW,
            VIEW_QUERY,
            partition_by=["tenant", "day"],
            sort_by=["hour", "page"],
            merging=Aggregating(by=("tenant", "day", "hour", "page"), sum=("views", "clicks")),
        )
    return table
