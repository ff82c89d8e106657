"""A row belongs to exactly one partition, at every time and in every process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption, InvalidPartitionExpression, InvalidURI
from icedb.storage.obstore_store import open_store
from icedb.testing import ClockedStore, ManualClock, create_table
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created

ROWS: list[dict[str, Any]] = [{"a": [1, 2, 3], "s": "x,y", "i": 1}, {"a": [], "s": "", "i": 2}]


@pytest.mark.parametrize(
    "expression",
    ["unnest(a) AS x", "generate_subscripts(a, 1) AS x", "regexp_split_to_table(s, ',') AS x", "unnest([1, 2]) AS x"],
)
def test_an_expression_with_several_values_for_a_row_is_rejected(expression: str, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", partition_by=[expression])
    with pytest.raises(InvalidPartitionExpression, match="one"):
        table.insert(ROWS)
    assert table.snapshot().parts == ()
    assert open_store(table.handle.location).list(table.handle.keys.data_prefix) == []


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "expression",
    ["current_date AS d", "CURRENT_TIMESTAMP AS d", "localtimestamp AS d", "age(ts) AS d", "now() AS d",
     "random() AS d", "array_shuffle([a, b]) AS d", "current_user AS d", "getvariable('x') AS d", "uuid() AS d"],
)  # fmt: skip
def test_an_expression_that_depends_on_time_or_chance_is_rejected(expression: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidPartitionExpression, match="different values for one row"):
        Table.create(tmp_path / "t", partition_by=[expression])
    assert not (tmp_path / "t").exists()


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("folder", ["a=777", "x=777", "A=1/X=2", "env=prod/d=1999"])
def test_a_folder_above_the_table_that_looks_like_a_partition_changes_nothing(folder: str, place: Place) -> None:
    table = created(place.below(f"{folder}/t"), partition_by=["a", "b AS x"])
    table.insert([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    assert table.query("SELECT a, b, x FROM t ORDER BY a").fetchall() == [(1, 2, 2), (3, 4, 4)]
    assert table.query("SELECT a FROM t WHERE x = 2").fetchall() == [(1,)]
    assert table.query("SELECT * FROM t").columns == ["a", "b", "x"]
    plain = created(place.below(f"{folder}/plain"))
    plain.insert([{"n": 1}])
    assert plain.query("FROM t").columns == ["n"]


@pytest.mark.long
def test_a_later_column_cannot_take_a_partition_columns_name_unless_it_has_its_values(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", partition_by=["a AS d"])
    table.insert([{"a": 1}])
    with pytest.raises(InvalidBatch, match="Leave it out"):
        table.insert([{"a": 2, "D": 99}])
    table.insert(table.snapshot().to_arrow())
    assert table.query("SELECT a, d FROM t").fetchall() == [(1, 1), (1, 1)]
    assert table.snapshot().schema == {"a": "BIGINT"}
    plain = Table.create(tmp_path / "plain", partition_by=["day"])
    plain.insert([{"day": "x"}])
    plain.insert(plain.snapshot().to_arrow())
    assert plain.query("SELECT day FROM t").fetchall() == [("x",), ("x",)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", ["rowid", "RowId", "select", "order", 'a"b', "a b", "t", "staged", "filename"])
@pytest.mark.parametrize("values", [[7, 3], ["x", "1 AND 5"]])
def test_a_column_may_have_any_name(name: str, values: list[Any], tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", partition_by=["k AS p"], sort_by=[name])
    for _ in range(2):
        table.insert([{name: value, "k": n} for n, value in enumerate(values)])
    assert table.merge().new_parts == 2
    read = table.snapshot().to_arrow(columns=[name]).column(0).to_pylist()
    assert sorted(read) == sorted(values * 2)


@pytest.mark.parametrize("name", ["__icedb_x", "__ICEDB_file", "a\0b"])
def test_a_reserved_column_name_is_rejected(name: str, clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    with pytest.raises(InvalidBatch):
        table.insert([{name: 1}])


@pytest.mark.parametrize("as_of", ["2020-01-01", True, 1.5, float("nan")])
def test_a_time_of_the_wrong_kind_is_rejected(as_of: Any, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")
    with pytest.raises(InvalidOption, match="as_of"):
        table.snapshot(as_of=as_of)


def test_a_secret_in_an_address_is_rejected_without_quoting_it() -> None:
    with pytest.raises(InvalidURI) as uri:
        Table.create("s3://AKID:S3CRET@bucket/t")
    with pytest.raises(InvalidOption) as endpoint:
        Table.create("s3://bucket/t", storage_options={"AWS_ENDPOINT_URL": "http://user:S3CRET@127.0.0.1:1"})
    assert "S3CRET" not in str(uri.value) + str(endpoint.value)
