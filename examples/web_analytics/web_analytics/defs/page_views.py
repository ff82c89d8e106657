"""The materialized view of the events is made anew: after a deletion, and after events were dropped."""

import dagster as dg

from icedb_dagster import IceDBResource, icedb_pool
from web_analytics.defs.events import VIEW


@dg.op(pool=icedb_pool(VIEW))
def page_views_refresh_work(icedb: IceDBResource) -> None:
    """In one commit, of all events that there are. Nothing should arrive meanwhile."""
    icedb.table("events").refresh_view(VIEW)


@dg.job(executor_def=dg.in_process_executor)
def page_views_refresh() -> None:
    """Makes the view of the events anew. Holds the view's pool."""
    page_views_refresh_work()
