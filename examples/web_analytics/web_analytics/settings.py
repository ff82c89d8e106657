"""Where the project's files are, and which days it is about. The environment says otherwise where that is needed.

`WEB_ANALYTICS_DATA`: the folder of inbox and dashboard. `LAKE_ROOT`: where the tables are, a bucket perhaps.
`WEB_ANALYTICS_DAYS`: how many days there are.
"""

import os
from datetime import date, timedelta
from pathlib import Path

import dagster as dg

__all__ = ["DAYS", "INBOX", "LAKE", "PARTITIONS", "REPORTS", "TENANTS"]

DATA = Path(os.environ.get("WEB_ANALYTICS_DATA") or Path(__file__).parents[1] / "data")
#: Events arrive here: `<tenant>/<day of arrival>.jsonl`.
INBOX = DATA / "inbox"
#: The tables.
LAKE = os.environ.get("LAKE_ROOT") or str(DATA / "lake")
#: The dashboard, as a file.
REPORTS = DATA / "reports"

TENANTS = ("aurora-fashion", "bramble-garden", "cobalt-coffee")

#: The days of the generated events. A project of your own has no end: leave `end_date` out.
FIRST_DAY = date(2026, 9, 1)
DAYS = tuple(FIRST_DAY + timedelta(days=n) for n in range(int(os.environ.get("WEB_ANALYTICS_DAYS") or 45)))
PARTITIONS = dg.DailyPartitionsDefinition(str(DAYS[0]), end_date=str(DAYS[-1] + timedelta(days=1)))
