"""The dashboard: one picture, as a file and on the asset's page."""

import base64

import dagster as dg

from icedb_dagster import IceDBResource
from icedb_dagster.metadata.markdown import picture
from web_analytics.defs.events import VIEW
from web_analytics.figures import read_figures
from web_analytics.picture import draw, in_words
from web_analytics.settings import REPORTS


@dg.asset(deps=["daily_metrics", "sessions", VIEW], kinds={"matplotlib"}, group_name="web")
def dashboard(icedb: IceDBResource) -> dg.MaterializeResult[None]:
    """All tenants at a glance: figures of the last four weeks, and lines of all days."""
    snapshots = [icedb.table(key).snapshot() for key in ("daily_metrics", "sessions", VIEW)]
    figures = read_figures(*snapshots)
    png, words = draw(figures), in_words(figures)
    path = REPORTS / "dashboard.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)
    return dg.MaterializeResult(
        metadata={
            "dashboard": dg.MetadataValue.md(picture(words, base64.b64encode(png).decode())),
            "in words": words,
            "file": dg.MetadataValue.path(str(path)),
            **{name: round(value, 4) for name, value in figures.totals.items()},
        }
    )
