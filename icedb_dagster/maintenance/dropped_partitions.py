"""Events that name the partitions which a TTL dropped.

Dagster's open-source storage cannot delete the events of single partitions. So a dropped partition remains
materialized in the UI, and its newest event is an observation that says since when it has no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

import icedb
from icedb.storage.parts import Part
from icedb_dagster.metadata import markdown
from icedb_dagster.metadata.data_versions import DATA_VERSION_TAG, recorded_data_version
from icedb_dagster.sensors.partition_keys import PartitionKeys

__all__ = ["dropped_table", "observed_as_dropped"]

# A first TTL of an old table may drop thousands of partitions.
_ROWS_MAX = 500
_EVENTS_MAX = 500


def dropped_table(parts: Iterable[Part]) -> dg.MetadataValue:
    """Return the dropped partitions with their rows and bytes as a table."""
    figures: dict[str, list[int]] = {}
    for part in parts:
        of_partition = figures.setdefault(part.partition, [0, 0, 0])
        for n, value in enumerate((1, part.rows or 0, part.bytes)):
            of_partition[n] += value
    lines = [[name, *(f"{value:,}" for value in values)] for name, values in sorted(figures.items())]
    more = f"\n\nand {len(lines) - _ROWS_MAX:,} more" if len(lines) > _ROWS_MAX else ""
    return dg.MetadataValue.md(markdown.table(["partition", "parts", "rows", "bytes"], lines[:_ROWS_MAX]) + more)


def observed_as_dropped(
    context: dg.OpExecutionContext, key: dg.AssetKey, snapshot: icedb.Snapshot, parts: Sequence[Part]
) -> Iterator[dg.AssetObservation]:
    """Yield an observation of each asset partition that has lost all of its rows.

    There is none for an asset of another code location, without partitions, or with several dimensions, and none for
    a partition whose key differs from the value in the path. Each observation keeps the partition's data version, so
    nothing downstream becomes out of date.
    """
    try:
        repository = context.repository_def
    except Exception:  # noqa: BLE001  Dagster's internal CheckError: the job was executed without a repository
        return
    keys = PartitionKeys.of(repository, context.instance, key, table=snapshot.table)
    if keys is None:
        return
    rows: dict[str, int] = {}
    for part in parts:
        if (name := keys.of_part(part)) is not None:
            rows[name] = rows.get(name, 0) + (part.rows or 0)
    live = {keys.of_part(part) for part in snapshot.parts}
    for name in sorted(rows.keys() - live)[:_EVENTS_MAX]:
        version = recorded_data_version(context.instance, key, partition=name)
        yield dg.AssetObservation(
            key,
            partition=name,
            description=f"The partition was dropped, with {rows[name]:,} rows. It remains listed as materialized.",
            metadata={"icedb/dropped_rows": dg.MetadataValue.int(rows[name])},
            tags={} if version is None else {DATA_VERSION_TAG: version},
        )
