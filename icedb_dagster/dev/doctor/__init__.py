"""Is the platform set up so that tables stay right and runs get on? And if not: what to change.

Each check is a small function that takes what was found and gives a `Finding`; what it needs is gathered apart from it,
so every judgement can be tried without the thing it judges. `examine` does all of it.
"""

from icedb_dagster.dev.doctor.examination import examine
from icedb_dagster.dev.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
