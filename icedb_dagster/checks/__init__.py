"""What can be checked of a table, and the asset checks that do it: docs/checks.md has what each expects."""

from icedb_dagster.checks.check_settings import (
    FreshnessCheck,
    HorizonCheck,
    LogDepthCheck,
    ObjectsCheck,
    QuarantineCheck,
    SchemaCheck,
    SmallPartsCheck,
    TableChecks,
)
from icedb_dagster.checks.definitions import build_table_checks

__all__ = [
    "FreshnessCheck",
    "HorizonCheck",
    "LogDepthCheck",
    "ObjectsCheck",
    "QuarantineCheck",
    "SchemaCheck",
    "SmallPartsCheck",
    "TableChecks",
    "build_table_checks",
]
