"""A table with a changed partitioning: all rows have the new columns, regardless of their paths."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from icedb import Table
from icedb.errors import InvalidOption, InvalidPartitionExpression

JANUARY = [{"ts": datetime(2026, 1, 1) + timedelta(days=n), "user": n % 3} for n in range(6)]
FEBRUARY = [{"ts": datetime(2026, 2, 1) + timedelta(days=n), "user": n % 3} for n in range(4)]
DAY = "strftime(ts, '%Y-%m-%d') AS day"
MONTH = "strftime(ts, '%Y-%m') AS month"


@pytest.fixture
def table(place: Any) -> Table:
    """January by day, then February by month and by an expression over another column."""
    table = Table.create(place.uri, partition_by=[DAY], sort_by=["ts"], storage_options=place.storage_options)
    table.insert(JANUARY)
    table.alter(partition_by=[MONTH, "user % 2 AS odd"])
    table.insert(FEBRUARY)
    return table


@pytest.mark.sampled(days=3)
def test_rows_of_the_old_partitioning_have_the_new_columns(table: Table) -> None:
    rows = table.query("SELECT month, odd, count(*) FROM t GROUP BY ALL ORDER BY ALL").fetchall()
    assert rows == [("2026-01", 0, 4), ("2026-01", 1, 2), ("2026-02", 0, 3), ("2026-02", 1, 1)]
    assert table.query("SELECT * FROM t").columns == ["ts", "user", "month", "odd"]
    assert "day=2026-01-06" in table.snapshot().partitions()
    assert table.snapshot().partition_schema == {"month": "VARCHAR", "odd": "BIGINT"}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("where", "rows"), [("month = '2026-01'", 6), ("odd = 1", 3), ("month IS NULL", 0)])
def test_a_predicate_over_the_new_columns_selects_old_rows(table: Table, where: str, rows: int) -> None:
    assert table.query("SELECT count(*) FROM t", where=where).fetchone() == (rows,)
    assert table.snapshot().to_arrow(where=where).num_rows == rows


@pytest.mark.sampled(days=3)
def test_a_predicate_does_not_drop_partitions_without_its_columns(table: Table) -> None:
    assert table.drop_partitions("month IS NULL OR month < '2026-02'").parts == ()
    assert table.drop_partitions("month = '2026-02'").rows == 4
    assert table.drop_partitions(["day=2026-01-01"]).rows == 1
    assert table.query("SELECT count(*), min(month) FROM t").fetchone() == (5, "2026-01")


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_maintenance_keeps_the_rows_of_both_partitionings(table: Table) -> None:
    expected = table.query("SELECT * FROM t ORDER BY ALL").fetchall()
    table.insert(JANUARY[:1])
    table.insert(FEBRUARY[:1])
    table.merge()
    table.merge_log()
    assert table.query("SELECT DISTINCT * FROM t ORDER BY ALL").fetchall() == expected
    report = table.delete("month = '2026-01' AND user = 0")
    assert report.deleted_rows == 3
    left = [row for row in expected if not (row[2] == "2026-01" and row[1] == 0)]
    assert table.query("SELECT DISTINCT * FROM t ORDER BY ALL").fetchall() == left


@pytest.mark.sampled(days=3)
def test_an_earlier_partitioning_can_be_restored(table: Table) -> None:
    table.alter(partition_by=[DAY])
    days = table.query("SELECT DISTINCT day FROM t ORDER BY day").fetchall()
    assert days == sorted({(str(row["ts"])[:10],) for row in [*JANUARY, *FEBRUARY]})
    assert table.query("SELECT count(*) FROM t", where="day = '2026-01-03'").fetchone() == (1,)


def test_a_partition_name_keeps_its_expression(table: Table) -> None:
    before = table.spec
    for partition_by in (["user AS day"], ["user % 3 AS odd"], ["strftime(ts, '%d') AS DAY"]):
        with pytest.raises(InvalidPartitionExpression, match="another name"):
            table.alter(partition_by=partition_by)
    location = table.handle.location
    assert Table.open(table.uri, storage_options=location.storage_options).spec.revision == 0 == before.revision - 1


@pytest.mark.long
def test_an_overwrite_of_partitions_rejects_parts_of_an_older_partitioning(table: Table) -> None:
    new = [{"ts": JANUARY[0]["ts"], "user": 0}]
    for partitions in ("month = '2026-01' AND odd = 0", ["month=2026-01/odd=0"]):
        with pytest.raises(InvalidOption, match="before the table was partitioned"):
            table.overwrite(new, partitions=partitions)
    assert table.query("SELECT count(*) FROM t").fetchone() == (10,)
    table.overwrite(table.query("SELECT ts, user FROM t").to_arrow_table())  # all of it, in the new partitioning
    assert table.overwrite(new, partitions="month = '2026-01' AND odd = 0").rows == 1
    assert table.query("SELECT count(*) FROM t").fetchone() == (10 - 4 + 1,)


@pytest.mark.sampled(days=3)
def test_a_drop_reports_the_parts_that_it_could_not_decide(table: Table) -> None:
    report = table.drop_partitions("month < '2026-03'", dry_run=True)
    assert (report.rows, len(report.older_parts)) == (4, 6)
    assert len(table.drop_partitions("month < '2026-03'").older_parts) == 6
