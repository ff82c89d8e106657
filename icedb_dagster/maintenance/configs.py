"""The run config of each kind of maintenance: what the launchpad shows, with the values that schedules use."""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import dagster as dg
from pydantic import Field

from icedb.operations.retention.cleanup import DELETES_MAX
from icedb.operations.retention.merge_log import LINES_MAX, LOG_FILES_MIN
from icedb.operations.retention.orphans import ORPHANS_MAX
from icedb.operations.rewrite.merge import PART_BYTES_MAX, TieredMerge

__all__ = [
    "CleanupConfig",
    "DeleteConfig",
    "MergeConfig",
    "MergeLogConfig",
    "OrphansConfig",
    "RestoreConfig",
    "RewriteConfig",
    "TtlConfig",
    "VerifyConfig",
]

#: The table's own time, of the options that are times.
OF_THE_TABLE = -1


class _Changing(dg.Config):
    """Of all that changes a table."""

    dry_run: bool = Field(default=False, description="Change nothing, and report what would be done.")


class MergeConfig(_Changing):
    """How much is merged, and into what."""

    part_bytes_max: int = Field(default=PART_BYTES_MAX, description="Parts below this size are merged.")
    hot_ms: int = Field(
        default=TieredMerge().hot_ms,
        description="How long after its last rows a partition is hot; -1: merge all that is small.",
    )
    hot_parts: int = Field(default=TieredMerge().hot_parts, description="Small parts that a hot partition may gather.")
    seconds_max: int = Field(
        default=60, description="How long the run may hold the table's pool; the next run goes on with what is left."
    )


class MergeLogConfig(_Changing):
    """How long the new log file may be, and when it is worth it."""

    lines_max: int = Field(default=LINES_MAX, description="Lines of the new log file.")
    files_min: int = Field(default=LOG_FILES_MIN, description="With fewer log files, nothing is done.")


class TtlConfig(_Changing):
    """What time it is, for the time to live."""

    keep_days: int = Field(default=0, description="0: what the definition of the time to live says.")
    reference_date: str = Field(default="", description="YYYY-MM-DD, as if today were that day (UTC); empty: now.")


class CleanupConfig(_Changing):
    """How old what is deleted must be."""

    grace_ms: int = Field(
        default=OF_THE_TABLE, description="Only what was superseded longer ago; -1: the table's grace period."
    )
    allow_short_grace: bool = Field(
        default=False, description="Nothing else uses the table now: any grace period will do."
    )
    deletes_max: int = Field(default=DELETES_MAX, description="Log files and parts of one run.")


class OrphansConfig(_Changing):
    """How old an orphan must be."""

    min_age_ms: int = Field(default=OF_THE_TABLE, description="Only parts that are older; -1: the table's, a day.")
    limit: int = Field(default=ORPHANS_MAX, description="Parts of one run.")


class RewriteConfig(_Changing):
    """Which partition becomes the answer of which query."""

    partition: str = Field(description="The path of the partition: d=2026-11-21.")
    query: str = Field(description="One SELECT over `_rows`, the rows of that partition.")
    new_columns: bool = Field(default=False, description="The answer may bring columns that the table does not have.")


class DeleteConfig(_Changing):
    """Whose rows go."""

    where: str = Field(description="A DuckDB condition over the table's columns: user_id = 7.")
    passes_max: int = Field(
        default=3,
        description="It is repeated, up to so many times, until no row is found: others may insert meanwhile.",
    )


class VerifyConfig(dg.Config):
    """How much is read. Nothing is ever changed."""

    deep: bool = Field(default=False, description="Fetch every part, decode all rows and compare digests.")


class RestoreConfig(_Changing):
    """Back to when."""

    as_of: str = Field(description="A time with its zone (2026-11-21T10:00:00Z), or unix milliseconds.")
    allow_empty: bool = Field(default=False, description="Restore also to a time at which the table had no rows.")
