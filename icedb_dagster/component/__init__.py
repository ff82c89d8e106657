"""Dagster components in YAML: a table, and the resources that open tables. docs/component.md describes them."""

from icedb_dagster.component.resources import IceDBResourceComponent
from icedb_dagster.component.table import IceDBTableComponent

__all__ = ["IceDBResourceComponent", "IceDBTableComponent"]
