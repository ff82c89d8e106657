"""IceDB: an open table format for event data. Parquet parts, an append-only JSONL log, DuckDB.

`Table` is the front door, `Snapshot` what a reader holds, `icedb.errors` everything that can go wrong.
"""

from icedb.commit import Commit
from icedb.errors import IceDBError
from icedb.handle import Part
from icedb.maintenance.cleanup import CleanupReport
from icedb.maintenance.drop import DropReport
from icedb.maintenance.merge import MergeReport
from icedb.options import Timing
from icedb.snapshot import Snapshot
from icedb.table import Table

__all__ = [
    "CleanupReport",
    "Commit",
    "DropReport",
    "IceDBError",
    "MergeReport",
    "Part",
    "Snapshot",
    "Table",
    "Timing",
]

__version__ = "0.1.0"
