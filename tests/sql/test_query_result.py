"""The result of a query: rows, frames, a printed table, and errors that name a deleted part."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from icedb import Table
from icedb.errors import InvalidOption, MissingExtra, MissingPart, SnapshotExpired
from icedb.sql.query_result import QueryResult
from tests.support.object_stores.stores import Place

ROWS = [{"n": n, "text": f"é{n}"} for n in range(3)]


@pytest.fixture
def table(local: Place) -> Table:
    made = Table.create(local.uri, sort_by=["n"])
    made.insert(ROWS)
    return made


@pytest.fixture
def result(table: Table) -> QueryResult:
    return table.query("SELECT * FROM t ORDER BY n")


def test_rows_are_fetched_as_tuples_all_at_once_or_one_by_one(result: QueryResult) -> None:
    assert (result.columns, result.types) == (["n", "text"], ["BIGINT", "VARCHAR"])
    assert result.fetchone() == (0, "é0")
    assert result.fetchmany(1) == [(1, "é1")]
    assert result.fetchall() == [(2, "é2")]
    assert list(result.relation.limit(2).fetchall()) == [(0, "é0"), (1, "é1")]


def test_a_result_can_be_iterated(table: Table) -> None:
    assert [n for n, _ in table.query("SELECT * FROM t ORDER BY n")] == [0, 1, 2]


def test_a_result_prints_as_a_table(result: QueryResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert "│ é1" in repr(result)
    assert "varchar" in str(result)
    result.show()
    assert "é2" in capsys.readouterr().out


def test_a_result_converts_to_every_kind_of_frame(result: QueryResult) -> None:
    assert result.to_arrow().to_pylist() == ROWS
    assert result.to_polars().to_dicts() == ROWS
    assert result.to_pandas().to_dict("records") == ROWS
    assert result.to_arrow_table().equals(result.to_arrow())
    assert result.pl().equals(result.to_polars())
    assert result.df().equals(result.to_pandas())
    assert result.to_arrow_reader(2).read_all().to_pylist() == ROWS


def test_a_result_is_an_arrow_stream(table: Table, result: QueryResult, local: Place) -> None:
    assert pa.table(result).to_pylist() == ROWS
    assert pl.DataFrame(result).to_dicts() == ROWS
    assert duckdb.sql("SELECT sum(n) FROM result").fetchall() == [(3,)]
    other = Table.create(local.below("other").uri)
    other.insert(result)
    assert other.query("SELECT * FROM t ORDER BY n").fetchall() == [(r["n"], r["text"]) for r in ROWS]


def test_types_that_arrow_lacks_are_inserted_into_another_table(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert(duckdb.sql("SELECT uuid() AS id, [uuid()] AS ids, '{}'::JSON AS json"))
    other = Table.create(local.below("other").uri)
    other.insert(table.query("FROM t"))
    assert other.schema() == table.schema()


def test_relation_methods_return_results(result: QueryResult) -> None:
    again = result.filter("n > 0").order("n DESC")
    assert isinstance(again, QueryResult)
    assert again.fetchall() == [(2, "é2"), (1, "é1")]
    assert result.shape == (3, 2)
    with pytest.raises(AttributeError, match="no_such"):
        _ = result.no_such
    assert copy.copy(result).fetchone() == (0, "é0")


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_result_is_read_completely_while_others_use_it(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert(duckdb.sql("SELECT n FROM range(60_000) AS r(n)"))
    table.insert(duckdb.sql("SELECT n FROM range(60_000, 100_000) AS r(n)"))
    for result in (table.query("FROM t"), table.query("FROM t").filter("n >= 0")):
        reader = result.to_arrow_reader(1_000)
        read = reader.read_next_batch().num_rows
        count = 0
        for _ in result:
            count += 1
            if count % 30_000 == 1:
                assert repr(result).count("int64") == 1
                assert len(result.filter("n < 3").fetchall()) == 3
        assert count == 100_000
        assert result.fetchone() is not None
        assert result.to_arrow().num_rows == 100_000
        assert len(result.fetchall()) == 99_999
        assert len(result.fetchall()) == 100_000
        assert read + sum(batch.num_rows for batch in reader) == 100_000


def test_arguments_are_passed_to_duckdb(result: QueryResult) -> None:
    assert result.pl(lazy=True).collect().height == 3
    assert result.df(date_as_object=True).shape == (3, 2)
    assert result.fetchmany(size=2) == [(0, "é0"), (1, "é1")]
    assert {"to_polars", "aggregate"} <= set(dir(result))


@pytest.mark.parametrize("sql", ["", "-- nothing", "SET threads = 1", "SELECT 1; SELECT 2", "COPY t TO '{file}'"])
def test_a_text_that_is_not_one_query_is_rejected_before_it_runs(table: Table, sql: str, tmp_path: Path) -> None:
    file = tmp_path / "copied.csv"
    rows, sql = table.query("FROM t"), sql.format(file=file)
    with pytest.raises(InvalidOption, match="returns no rows, or is not one SELECT"):
        table.query(sql)
    with pytest.raises(InvalidOption, match=r"returns no rows, or is not one SELECT.* over all_rows"):
        rows.query("all_rows", sql)
    assert not file.exists()


def test_a_query_of_a_result_calls_no_function_that_does_more_than_read(result: QueryResult) -> None:
    with pytest.raises(InvalidOption, match=r"calls write_log\(\), which does more than read"):
        result.query("all_rows", "SELECT write_log('written') FROM all_rows")


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "sql",
    ["EXPLAIN FROM t", "EXPLAIN ANALYZE FROM t", "DESCRIBE t", "SUMMARIZE t", "PIVOT t ON n USING count(*)",
     "VALUES (1)"],
)  # fmt: skip
def test_a_statement_that_returns_rows_is_a_query(table: Table, sql: str) -> None:
    assert table.query(sql).fetchall()
    assert list(table.query(sql))
    rows, over_rows = table.query("FROM t"), sql.replace(" t", " all_rows")
    if sql.startswith("EXPLAIN"):
        with pytest.raises(InvalidOption, match="explains a query"):
            rows.query("all_rows", over_rows)
    elif not sql.startswith("PIVOT"):  # DuckDB does not run it over a relation
        assert rows.query("all_rows", over_rows).fetchall()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_column_has_its_type_if_one_part_or_several_are_read(local: Place) -> None:
    """Other programs may leave parts with another type than the table."""
    types = [
        ("2.5::DOUBLE", "BIGINT"),
        ("'7'", "BIGINT"),
        ("7::BIGINT", "INTEGER"),
        ("{'a': 1, 'b': 2}", "STRUCT(a BIGINT)"),
    ]
    for n, (stored, type_) in enumerate(types):
        table = Table.create(local.below(f"stored{n}").uri)
        for _ in range(2):
            table.insert(duckdb.sql(f"SELECT CAST({stored} AS {type_}) AS v"))
        snapshot = table.snapshot()
        for part in snapshot.parts:
            duckdb.sql(f"COPY (SELECT {stored} AS v) TO '{part.path}' (FORMAT parquet)")
        one = replace(snapshot, parts=snapshot.parts[:1]).query("SELECT typeof(v), v FROM t").fetchall()
        assert snapshot.query("SELECT typeof(v), v FROM t").fetchall() == one * 2


@pytest.mark.sampled(days=3)
def test_a_part_that_is_deleted_before_rows_are_read_raises_missing_part(shared_place: Place) -> None:
    table = Table.create(shared_place.uri, storage_options=shared_place.storage_options)
    for _ in range(2):  # with two parts, none is opened before a fetch
        table.insert(ROWS)
    part, _ = table.snapshot().parts
    result = table.query("FROM t")
    table.handle.store.delete([part.key])
    for fetch in (result.fetchall, result.to_arrow, result.to_polars, lambda: repr(result), lambda: pa.table(result)):
        with pytest.raises(MissingPart, match=part.key.rpartition("/")[2]) as caught:
            fetch()
        assert caught.value.__cause__ is None


@pytest.mark.sampled(days=3)
def test_a_part_that_cleanup_deleted_raises_snapshot_expired(shared_place: Place) -> None:
    table = Table.create(shared_place.uri, storage_options=shared_place.storage_options)
    for _ in range(2):
        table.insert(ROWS)
    result = table.query("FROM t")
    table.overwrite(ROWS)
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(SnapshotExpired, match="was cleaned up"):
        result.fetchall()


@pytest.mark.parametrize("package", ["polars", "pandas"])
def test_a_missing_package_names_its_extra(result: QueryResult, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'icedb-dagster\[{package}\]'"):
        getattr(result, f"to_{package}")()
