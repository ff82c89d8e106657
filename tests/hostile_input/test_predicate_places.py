"""Wherever a predicate may be given, the same rule refuses what is no condition: `icedb.sql.predicates`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icedb import Table
from icedb.errors import InvalidOption, InvalidPartitionExpression
from tests.support.object_stores.stores import Place

PLACES: dict[str, Callable[[Table, str], object]] = {
    "query": lambda t, where: t.query("SELECT * FROM t", where=where).fetchall(),
    "snapshot query": lambda t, where: t.snapshot().query("SELECT * FROM t", where=where).fetchall(),
    "changes": lambda t, where: t.changes().query("SELECT * FROM t", where=where).fetchall(),
    "export": lambda t, where: t.export_parquet(f"{t.uri}_export", where=where),
    "delete": lambda t, where: t.delete(where),
    "delete, dry run": lambda t, where: t.delete(where, dry_run=True),
    "drop": lambda t, where: t.drop_partitions(where),
    "overwrite": lambda t, where: t.overwrite([{"n": 1, "d": "a"}], partitions=where),
    "overwrite, dry run": lambda t, where: t.overwrite([{"n": 1, "d": "a"}], partitions=where, dry_run=True),
}


@pytest.mark.parametrize("where", ["42", "2026-11-21", "d AND 7", "NOT 0", "NULL"])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_condition_is_refused(local: Place, place: str, where: str) -> None:
    table = Table.create(local.uri, partition_by=["d"])
    table.insert([{"n": 1, "d": "a"}, {"n": 2, "d": "b"}])
    with pytest.raises((InvalidOption, InvalidPartitionExpression), match=r"neither true nor false|does not fit"):
        PLACES[place](table, where)
    assert table.snapshot().rows == 2


@pytest.mark.parametrize("where", ["42", "2026-11-21", "d AND 7", "NOT 0", "NULL"])
def test_the_where_of_a_dagster_input_is_one_too(local: Place, where: str) -> None:
    pytest.importorskip("dagster")
    from icedb_dagster.io.inputs import Rows

    table = Table.create(local.uri, partition_by=["d"])
    table.insert([{"n": 1, "d": "a"}])
    with pytest.raises(InvalidOption, match=r"neither true nor false|does not fit"):
        Rows.of(table.snapshot(), None, {"where": where})
