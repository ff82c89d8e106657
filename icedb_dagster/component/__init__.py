"""A table in YAML: docs/component.md has its attributes."""

from icedb_dagster.component.table import IceDBTable

__all__ = ["IceDBTable"]
