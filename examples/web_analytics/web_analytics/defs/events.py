"""The events as they come: the files of a day, each row once, what does not fit set aside."""

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

#: How often each page was looked at, hour by hour: every insert into the events adds to it.
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
    # A preview shows rows of people, and stays in Dagster's history when their data is deleted.
    metadata={"partition_expr": "day", "partition_by": ["tenant", "day"], "icedb/preview_rows": 0},
)
def events(context: dg.AssetExecutionContext, icedb: IceDBResource) -> None:
    """What arrived on a day, of all tenants, late events among it.

    A day's files are one transaction: to run a day again adds nothing, in whatever run. So it waits for all of them: a
    file that came after its day would never be read. Views are fed in the same call, so rows are added and not
    replaced. Raises dagster.Failure, before anything is added, when a file of a day is not there.
    """
    files = {day: files_of(day) for day in context.partition_keys}
    table = open_events(icedb)
    rows = quarantined = repeated = 0
    for day, paths in files.items():
        commit = table.insert(paths, txn=(f"inbox/{day}", 1), on_conflict="quarantine")
        rows += commit.rows
        quarantined += commit.quarantined_rows
        repeated += commit.repeated
        context.log.info("%s: %d rows, %d set aside", day, commit.rows, commit.quarantined_rows)
    context.add_output_metadata({"rows added": rows, "rows set aside": quarantined, "days that were there": repeated})


def files_of(day: str) -> list[str]:
    """The files that arrived on a day, one of each tenant. Raises dagster.Failure when one is missing."""
    files = [INBOX / tenant / f"{day}.jsonl" for tenant in TENANTS]
    if missing := [str(file.relative_to(INBOX)) for file in files if not file.is_file()]:
        raise dg.Failure(
            f"{INBOX}: of {day} there is no {', '.join(missing)} yet, and nothing was added. When a file comes late, "
            "run the day again then; when it never will, put an empty one there. To generate events: "
            "python -m web_analytics.generate"
        )
    return [str(file) for file in files]


def open_events(lake: IceDBResource) -> Table:
    """The table of the events with its view, made when they are missing."""
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
