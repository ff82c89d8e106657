"""A limit of the partitions of a batch: rows beyond it are rejected before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from icedb import Table
from icedb.errors import TooManyPartitions
from tests.support.object_stores.stores import Place

ROWS = [{"tenant": n, "day": f"2026-11-0{n % 3 + 1}"} for n in range(6)]


def stored(table: Table) -> list[str]:
    return sorted(item.key for item in table.handle.store.list(""))


def created(place: Place, *partition_by: str) -> Table:
    return Table.create(place.uri, partition_by=partition_by, storage_options=place.storage_options)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("write", ["insert", "overwrite"])
def test_rows_in_too_many_partitions_are_rejected(write: str, place: Place) -> None:
    table = created(place, "tenant")
    table.insert([{"tenant": 7, "day": "2026-11-04"}])
    before = stored(table)
    with pytest.raises(TooManyPartitions, match="lie in 6 partitions, and 5 are allowed"):
        getattr(table, write)(ROWS, partitions_max=5)
    with pytest.raises(TooManyPartitions):
        getattr(table, write)(ROWS, partitions_max=5, dry_run=True)
    assert stored(table) == before
    assert getattr(table, write)(ROWS, partitions_max=6).rows == 6


def test_partitions_of_views_count_too(local: Place) -> None:
    table = created(local, "day")
    query = "SELECT tenant, count(*) AS n FROM _rows GROUP BY ALL"
    view = table.create_view("by_tenant", query, partition_by=["tenant"])
    before = stored(table), stored(view)
    with pytest.raises(TooManyPartitions, match="6 partitions, and 5"):
        table.insert(ROWS, partitions_max=5)
    assert (stored(table), stored(view)) == before


@pytest.mark.parametrize("value", [0, -1, True, "3", 1.5])
def test_an_invalid_limit_is_rejected(value: Any, local: Place) -> None:
    table = created(local, "day")
    with pytest.raises(ValueError, match="partitions_max"):
        table.insert(ROWS, partitions_max=value)
