"""Check that a platform is set up correctly, and name the remedies.

Each check is a small function that judges values and returns a `Finding`. The values are collected separately, so each
judgement can be tested without the real system. `examine` runs all checks.
"""

from icedb_dagster.dev.doctor.examination import examine
from icedb_dagster.dev.doctor.finding import DoctorFinding, Status

__all__ = ["DoctorFinding", "Status", "examine"]
