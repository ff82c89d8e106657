"""The run config of each maintenance job: the fields that the launchpad shows, with the values that schedules use."""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import dagster as dg
from pydantic import Field

from icedb.operations.health.table_health import Thresholds
from icedb.operations.retention.cleanup import DELETES_MAX
from icedb.operations.retention.merge_log import LINES_MAX, LOG_FILES_MIN
from icedb.operations.retention.orphans import ORPHANS_MAX
from icedb.operations.rewrite.merge import PART_BYTES_MAX, TieredMerge

__all__ = [
    "TABLE_DEFAULT",
    "CleanupConfig",
    "DeleteConfig",
    "ExportConfig",
    "MaintainConfig",
    "MergeConfig",
    "MergeLogConfig",
    "OrphansConfig",
    "RestoreConfig",
    "RewriteConfig",
    "TtlConfig",
    "VerifyConfig",
]

#: Means the table's own setting, in options that are times.
TABLE_DEFAULT = -1


class _Changing(dg.Config):
    """Base of the configs of jobs that change a table."""

    dry_run: bool = Field(default=False, description="Change nothing. Report what would be done.")


class _Merging(_Changing):
    """Base of the configs of jobs that merge parts."""

    part_bytes_max: int = Field(default=PART_BYTES_MAX, description="Parts below this size in bytes are merged.")
    hot_parts: int = Field(default=TieredMerge().hot_parts, description="Small parts that a hot partition may have.")


class MergeConfig(_Merging):
    """Limits of a merge (compaction)."""

    hot_ms: int = Field(
        default=TieredMerge().hot_ms,
        description="Milliseconds after its last rows for which a partition is hot; -1: merge all small parts.",
    )
    seconds_max: int = Field(
        default=60, description="Seconds that the run may hold the table's pool. The next run continues."
    )


class MergeLogConfig(_Changing):
    """Limits of a merge of log files."""

    lines_max: int = Field(default=LINES_MAX, description="Maximum lines of the new log file.")
    files_min: int = Field(default=LOG_FILES_MIN, description="Minimum number of log files to merge.")


class MaintainConfig(_Merging):
    """The kinds of maintenance to do in one run, and the thresholds for what is due."""

    kinds: list[str] = Field(
        default=[],
        description="Of merge_newest, merge_oldest, merge_log and cleanup; empty: those that are due now.",
    )
    hot_ms: int = Field(
        default=Thresholds().hot_ms, description="Milliseconds after its last rows for which a partition is hot."
    )


class TtlConfig(_Changing):
    """The reference date and the time to live."""

    keep_days: int = Field(default=0, description="Days to keep; 0: as the table's time to live defines.")
    reference_date: str = Field(default="", description="Reference date, YYYY-MM-DD (UTC); empty: now.")


class CleanupConfig(_Changing):
    """Limits of a cleanup (VACUUM)."""

    grace_ms: int = Field(
        default=TABLE_DEFAULT,
        description="Minimum milliseconds since an object was superseded; -1: the table's grace period.",
    )
    allow_short_grace: bool = Field(
        default=False, description="Allow a short grace period. Use it only if no other program uses the table."
    )
    deletes_max: int = Field(default=DELETES_MAX, description="Maximum log files and parts that one run deletes.")


class ExportConfig(_Changing):
    """An export takes its settings from the definition of the table."""


class OrphansConfig(_Changing):
    """Limits of the deletion of orphans: parts of crashed writes."""

    min_age_ms: int = Field(
        default=TABLE_DEFAULT, description="Minimum age of a part in milliseconds; -1: the table's setting, a day."
    )
    limit: int = Field(default=ORPHANS_MAX, description="Maximum parts that one run deletes.")


class RewriteConfig(_Changing):
    """The partition to rewrite, and the query whose result replaces its rows."""

    partition: str = Field(description="The path of the partition, such as d=2026-11-21.")
    query: str = Field(description="One SELECT over `_rows`, the rows of that partition.")
    new_columns: bool = Field(default=False, description="Allow columns that the table does not have.")


class DeleteConfig(_Changing):
    """The rows to delete."""

    where: str = Field(description="A DuckDB condition over the table's columns, such as user_id = 7.")
    passes_max: int = Field(
        default=3,
        description="Maximum passes. Passes repeat until none finds a row, because writers may insert meanwhile.",
    )


class VerifyConfig(dg.Config):
    """The depth of a verification. It never changes anything."""

    deep: bool = Field(default=False, description="Read every part, decode all rows and compare digests.")


class RestoreConfig(_Changing):
    """The time to restore the table to."""

    as_of: str = Field(description="ISO 8601 time with a zone (2026-11-21T10:00:00Z), or unix milliseconds.")
    allow_empty: bool = Field(default=False, description="Allow a time at which the table had no rows.")
