"""The Dagster component for a table in YAML. docs/component.md describes its attributes."""

from icedb_dagster.component.table import IceDBTableComponent

__all__ = ["IceDBTableComponent"]
