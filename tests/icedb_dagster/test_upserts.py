"""Assets that are upserted: the rows, the figures of the materialization, retries, and invalid options."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

from icedb import Table
from icedb.errors import InvalidBatch, InvalidOption, StoreUnavailable
from tests.support.dagster.dagster_instance import AssetRun, returning

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]

FIRST = [{"id": n, "v": 0} for n in range(3)]
CHANGES = [
    {"id": 0, "v": 1, "op": "u", "at": 1},
    {"id": 1, "v": None, "op": "d", "at": 1},
    {"id": 2, "v": 0, "op": "u", "at": 1},
    {"id": 9, "v": 8, "op": "c", "at": 1},
    {"id": 9, "v": 9, "op": "u", "at": 2},
]
UPSERT = {"icedb/mode": "upsert", "icedb/on": "id"}
CDC = {**UPSERT, "icedb/delete_where": "op = 'd'", "icedb/order_by": ["at"]}
FIGURES = ("inserted_rows", "updated_rows", "unchanged_rows", "deleted_rows")


def figures(result: dg.ExecuteInProcessResult, node: str) -> list[Any]:
    metadata = result.asset_materializations_for_node(node)[-1].metadata
    return [metadata[f"icedb/{name}"].value for name in FIGURES]


def test_an_asset_is_upserted_and_reports_what_became_of_its_rows(run: AssetRun) -> None:
    assert figures(run(returning(run.name, FIRST, UPSERT)), run.name) == [3, 0, 0, 0]
    result = run(returning(run.name, pl.DataFrame(CHANGES), CDC))
    assert figures(result, run.name) == [1, 1, 1, 1]
    metadata = result.asset_materializations_for_node(run.name)[0].metadata
    assert (metadata["icedb/mode"].value, metadata["icedb/repeated"].value) == ("upsert", False)
    assert metadata["icedb/rows_written"].value == 2
    assert run.rows() == [(0, 1), (2, 0), (9, 9)]
    assert run.table().history(limit=1)[0].kind == "upsert"


def test_the_mode_can_be_of_one_output(run: AssetRun) -> None:
    def output(rows: Any, of_asset: Any = None, **metadata: Any) -> dg.AssetsDefinition:
        @dg.asset(key=run.name, metadata=of_asset)
        def asset() -> dg.Output[list]:  # type: ignore[type-arg]
            return dg.Output(rows, metadata=metadata)

        return asset

    run(output(FIRST))
    run(output([{"id": 0, "v": 5}], **UPSERT))
    assert run.rows() == [(0, 5), (1, 0), (2, 0)]
    run(output([{"id": 0, "v": 7}, {"id": 5, "v": 7}], {**UPSERT, "icedb/when_matched": "skip"}))
    assert run.rows() == [(0, 5), (1, 0), (2, 0), (5, 7)]
    run(output([{"id": 0, "v": 8}], UPSERT, **{"icedb/mode": "append"}))
    assert run.rows() == [(0, 5), (0, 8), (1, 0), (2, 0), (5, 7)]


def test_a_retried_step_does_not_repeat_its_upsert(run: AssetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run(returning(run.name, FIRST, UPSERT))
    upsert, lost = type(run.table()).upsert, []

    def losing(table: Any, *args: Any, **options: Any) -> Any:
        report = upsert(table, *args, **options)
        if not lost:
            lost.append(report)
            upsert(table, [{"id": 0, "v": 7}], ["id"])  # another writer
            raise StoreUnavailable("the answer was lost")
        return report

    monkeypatch.setattr(type(run.table()), "upsert", losing)
    result = run(returning(run.name, [{"id": 0, "v": 5}], UPSERT, retry_policy=dg.RetryPolicy(max_retries=1)))
    assert result.asset_materializations_for_node(run.name)[0].metadata["icedb/repeated"].value
    assert run.rows()[0] == (0, 7), "the first attempt was committed, and is not repeated"


def test_rows_of_a_partitioned_asset_may_be_in_any_partition(run: AssetRun) -> None:
    metadata = {**UPSERT, "partition_expr": "day"}
    days = dg.StaticPartitionsDefinition(["a", "b"])
    asset = returning(run.name, [{"id": 1, "day": "a", "v": 1}, {"id": 2, "day": "b", "v": 1}], metadata,
                      partitions_def=days)  # fmt: skip
    run(asset, partition_key="a")
    moved = returning(run.name, [{"id": 1, "day": "b", "v": 2}], metadata, partitions_def=days)
    assert figures(run(moved, partition_key="b"), run.name) == [0, 1, 0, 0]
    assert run.rows("id, day, v") == [(1, "b", 2), (2, "b", 1)]


def test_an_output_without_rows_changes_nothing(run: AssetRun) -> None:
    run(returning(run.name, FIRST, UPSERT))
    empty = pa.table({"id": pa.array([], pa.int64())})
    assert figures(run(returning(run.name, empty, UPSERT)), run.name) == [0, 0, 0, 0]
    assert len(run.rows()) == 3


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"icedb/mode": "upsert"}, "no 'icedb/on'"),
        ({"icedb/mode": "upsert", "icedb/on": []}, "no 'icedb/on'"),
        ({"icedb/mode": "upsert", "icedb/on": 7}, "list of texts"),
        ({"icedb/mode": "append", "icedb/on": ["id"]}, "needs the mode 'upsert'"),
        ({"icedb/delete_where": "true"}, "needs the mode 'upsert'"),
        ({**UPSERT, "icedb/when_matched": "replace"}, "'update' or 'skip'"),
        ({**UPSERT, "icedb/delete_where": 1}, "as text"),
        ({**UPSERT, "icedb/on_conflict": "quarantine"}, "'raise' or 'cast'"),
        ({**UPSERT, "icedb/schema_mode": "overwrite"}, "the mode is 'upsert'"),
        ({**UPSERT, "icedb/merging": {"kind": "replacing", "by": ["id"], "version": "v"}}, "cannot be 'upsert'"),
        ({**UPSERT, "icedb/order_bys": ["at"]}, "Did you mean 'icedb/order_by'"),
        ({"upsert_options": {"join_cols": ["id"]}}, "'icedb/mode': 'upsert'"),
    ],
)
def test_invalid_options_are_rejected_before_a_table_is_created(
    run: AssetRun, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        run(returning(run.name, FIRST, metadata))
    assert not Table.exists(run.lake.uri(run.name))


def test_a_key_that_occurs_twice_fails_the_run(run: AssetRun) -> None:
    run(returning(run.name, FIRST, UPSERT))
    with pytest.raises(InvalidBatch, match="2 rows of the batch have the key id = 1"):
        run(returning(run.name, [{"id": 1, "v": 1}, {"id": 1, "v": 2}], UPSERT))
    assert len(run.rows()) == 3
