"""Inputs whose rows were dropped after they had been materialized, by a TTL for example.

A run that read them as empty would overwrite its own partitions with what remains. So the input is rejected.
"""

from collections.abc import Iterable

import dagster as dg

from icedb import Snapshot
from icedb.errors import InvalidOption
from icedb_dagster.metadata.table_metadata import PARTITION_ROWS
from icedb_dagster.partitioning.partitions import Selection
from icedb_dagster.partitioning.parts_by_key import parts_by_key

__all__ = ["check_not_dropped"]

# The newest materializations that are read. Dagster's server may have to load each one.
_EVENTS_MAX = 1000
_NAMED_MAX = 3


def check_not_dropped(instance: dg.DagsterInstance, key: dg.AssetKey, selection: Selection, snapshot: Snapshot) -> None:
    """Raise InvalidOption if a selected partition of the asset has no rows, and its last materialization had some."""
    empty = [name for name, parts in parts_by_key(snapshot, selection).items() if not parts]
    materialized = _row_counts(instance, key, empty) if empty else {}
    dropped = [name for name in empty if materialized.get(name)]
    if not dropped:
        return
    named = ", ".join(dropped[:_NAMED_MAX]) + (", ..." if len(dropped) > _NAMED_MAX else "")
    raise InvalidOption(
        f"{snapshot.table}: {len(dropped)} of the partitions to read have no rows any more ({named}). The last "
        f"materialization of '{dropped[0]}' had {materialized[dropped[0]]:,}: they were dropped, by a TTL for example, "
        "or deleted. Materialize them again, or leave them out of this run. To read them as empty, set "
        "metadata={'on_dropped': 'empty'} in the AssetIn."
    )


def _row_counts(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Iterable[str]) -> dict[str, int]:
    """Return the rows of the last materialization of each partition that recorded them."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[*partitions])
    counts: dict[str, int] = {}
    for record in instance.fetch_materializations(wanted, limit=_EVENTS_MAX).records:  # the newest first
        event = record.asset_materialization
        if event is None or event.partition is None or event.partition in counts:
            continue
        rows = event.metadata.get(PARTITION_ROWS)
        counts[event.partition] = rows.value or 0 if isinstance(rows, dg.IntMetadataValue) else 0
    return counts
