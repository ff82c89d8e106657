"""Asset checks of a table. docs/checks.md describes what each check expects."""

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
