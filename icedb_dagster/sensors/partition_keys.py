"""The asset partition of a part's rows, from the part's path."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import dagster as dg

from icedb.storage.parts import Part
from icedb_dagster.io.options import has_partition_expr, partition_columns

__all__ = ["PartitionKeys"]


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The partition column that distinguishes an asset's partitions, case-folded, and the asset's partition keys."""

    column: str
    keys: Collection[str]

    @classmethod
    def of(
        cls,
        repository: dg.RepositoryDefinition | None,
        instance: dg.DagsterInstance,
        key: dg.AssetKey,
        *,
        table: str,
    ) -> Self | None:
        """Return the keys of an asset in the code location; None for an asset without partitions, or with several
        dimensions.

        Raises InvalidOption for an invalid `partition_expr`.
        """
        if repository is None or not (graph := repository.asset_graph).has(key):
            return None
        partitions, metadata = graph.get(key).partitions_def, graph.get(key).metadata
        if partitions is None or isinstance(partitions, dg.MultiPartitionsDefinition):
            return None
        if not has_partition_expr(metadata):
            return None
        (column,) = partition_columns(metadata, partitions, table=table).values()
        keys = partitions.get_partition_keys(dynamic_partitions_store=instance)
        return cls(column.casefold(), frozenset(keys))

    def of_part(self, part: Part) -> str | None:
        """Return the partition key of a part's rows; None if its path does not contain one."""
        values = {name.casefold(): value for name, value in part.values.items()}
        value = values.get(self.column)
        return value if value in self.keys else None
