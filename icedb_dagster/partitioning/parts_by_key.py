"""The parts of each partition of an asset, by one query over the table's partitions."""

from collections.abc import Sequence

from icedb import Snapshot
from icedb.sql.predicates import matching_each
from icedb.storage.parts import Part
from icedb_dagster.partitioning.partitions import Selection

__all__ = ["parts_by_key"]


def parts_by_key(snapshot: Snapshot, selection: Selection) -> dict[str, Sequence[Part]]:
    """Return the live parts of each selected partition, by its key, as `Snapshot.in_partitions` lists them.

    Raises as `Selection.predicate`, and InvalidPartitionExpression.
    """
    if not snapshot.parts:
        return {key: [] for key in selection.keys}
    of_all: dict[str, list[Part]] = {}
    older: list[Part] = []
    for part in snapshot.in_partitions(selection.predicate(snapshot.partition_schema)):  # this checks the predicate
        (older if snapshot.is_older(part) else of_all.setdefault(part.partition, [])).append(part)
    conditions = [selection.only(key).predicate(snapshot.partition_schema) for key in selection.keys]
    paths = matching_each([*of_all], conditions, snapshot.partition_schema)
    return {
        key: [*older, *(part for path in of_key for part in of_all[path])]
        for key, of_key in zip(selection.keys, paths, strict=True)
    }
