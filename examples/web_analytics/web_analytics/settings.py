"""The places of the project's files, and its days. Environment variables replace the defaults.

`WEB_ANALYTICS_DATA`: the folder of inbox and dashboard. `LAKE_ROOT`: the root of the tables, a folder or a bucket.
`WEB_ANALYTICS_DAYS`: the number of days.
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
