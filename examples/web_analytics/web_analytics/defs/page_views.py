"""The refresh of the materialized view: after a deletion, and after events were dropped."""

import dagster as dg

from icedb_dagster import IceDBResource, icedb_pool
from web_analytics.defs.events import VIEW


@dg.op(pool=icedb_pool(VIEW))
def page_views_refresh_work(icedb: IceDBResource) -> None:
    """Refresh the view in one commit, from all current events. No events should arrive meanwhile."""
    icedb.table("events").refresh_view(VIEW)


@dg.job(executor_def=dg.in_process_executor)
def page_views_refresh() -> None:
    """Refreshes the view of the events. Holds the view's pool."""
    page_views_refresh_work()
