"""IceDB: an open table format for event data. Parquet parts, an append-only JSONL log, DuckDB.

`Table` is the front door, `Snapshot` what a reader holds, `icedb.errors` everything that can go wrong.
"""

from icedb.commit import Commit
from icedb.errors import IceDBError
from icedb.handle import Part
from icedb.maintenance.audit import Problem
from icedb.maintenance.cleanup import CleanupReport
from icedb.maintenance.delete import DeleteReport
from icedb.maintenance.drop import DropReport
from icedb.maintenance.merge import MergeReport
from icedb.maintenance.orphans import SweepReport
from icedb.maintenance.pins import Pin
from icedb.maintenance.restore import RestoreReport
from icedb.maintenance.rewrite import RewriteReport
from icedb.maintenance.verify import VerifyReport
from icedb.options import Timing
from icedb.snapshot import Snapshot
from icedb.table import Table

__all__ = [
    "CleanupReport",
    "Commit",
    "DeleteReport",
    "DropReport",
    "IceDBError",
    "MergeReport",
    "Part",
    "Pin",
    "Problem",
    "RestoreReport",
    "RewriteReport",
    "Snapshot",
    "SweepReport",
    "Table",
    "Timing",
    "VerifyReport",
]

__version__ = "0.1.0"
