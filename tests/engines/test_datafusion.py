"""Snapshots as tables of DataFusion: the rows and types of a query, and unchanged names."""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from datafusion import SessionContext

from icedb import Table
from icedb.engines.datafusion import register
from icedb.errors import InvalidOption, MissingExtra
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created
from tests.support.tables.reader_tables import by_hour, every_type, forget, rows_by, widened


@pytest.fixture
def ctx() -> SessionContext:
    return SessionContext()


def ask(ctx: SessionContext, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in ctx.sql(sql).to_arrow_table().to_pylist()]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_table_has_the_rows_and_types_of_a_query(place: Place, ctx: SessionContext) -> None:
    snapshot = every_type(place).snapshot()
    register(ctx, "events", snapshot)
    read, expected = ctx.sql("SELECT * FROM events").to_arrow_table(), snapshot.to_arrow()
    id_ = expected.schema.get_field_index("id")
    assert read.schema == expected.schema.set(id_, pa.field("id", pa.binary(16)))
    texts = [{**row, "id": row["id"] and row["id"].hex()} for row in rows_by("n", read)]
    assert texts == [{**row, "id": row["id"] and row["id"].replace("-", "")} for row in rows_by("n", expected)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_filters_of_all_kinds_have_the_rows_of_a_query(local: Place, ctx: SessionContext) -> None:
    snapshot = every_type(local).snapshot()
    register(ctx, "t", snapshot)
    [(raw,)] = snapshot.query("SELECT id FROM t WHERE n = 0").fetchall()
    filters = [
        "day = DATE '2026-11-21'", "day IS NULL", "day IN (DATE '2026-11-21', DATE '2026-11-23') AND n > 0", "late",
        "NOT late AND parity = 0", "odd LIKE 'a/b 1%'", "json = '{\"a\": 1}'",
        "price = 1.25 AND small BETWEEN 1 AND 2", "wall = TIMESTAMP '2026-11-21 01:02:03.000004'",
        "instant >= '2026-11-21T00:00:00Z'", "yes IS NOT TRUE", "text = 'é3' OR later = 'column'", "nested['a'] = 2",
    ]  # fmt: skip
    for condition in filters:
        read = sorted(n for (n,) in ask(ctx, f"SELECT n FROM t WHERE {condition}"))
        assert read == sorted(n for (n,) in snapshot.query(f"SELECT n FROM t WHERE {condition}").fetchall()), condition
        assert len(read) < 5 or condition.startswith("instant")
    assert ask(ctx, f"SELECT n FROM t WHERE id = X'{raw.hex}'") == [(0,)]
    joined = "SELECT count(*), sum(a.n) FROM t a JOIN t b ON a.n = b.n WHERE a.late"
    assert ask(ctx, joined) == [(3, 14)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_filters_on_partition_columns_skip_parts(shared_place: Place, ctx: SessionContext) -> None:
    table = created(shared_place, partition_by=["n // 10 AS tens", 'nullif(n % 2, 1) AS "Even"'])
    table.insert([{"n": n} for n in range(30)])
    snapshot = table.snapshot()
    register(ctx, "whole", snapshot)
    assert forget(snapshot, 'tens = 1 AND "Even" IS NULL') == 5
    assert ask(ctx, 'SELECT count(*), min(n) FROM whole WHERE tens = 1 AND "Even" IS NULL') == [(5, 11)]
    with pytest.raises(Exception, match=r"(?s)ArrowError|FileNotFoundError|[Nn]o such file|Path does not exist|404"):
        ask(ctx, "SELECT count(n), max(n) FROM whole WHERE n >= 0")
    register(ctx, "part", snapshot, 'tens = 1 AND "Even" IS NULL')
    assert ask(ctx, "SELECT count(n) FROM part WHERE n > 12") == [(4,)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_table_at_a_time_of_changes_and_with_other_types(shared_place: Place, ctx: SessionContext) -> None:
    table, before = by_hour(shared_place)
    other = widened(shared_place.below("w")).snapshot()
    for snapshot in (table.snapshot(before.as_of_ms), table.snapshot(), table.changes(), other):
        register(ctx, "t", snapshot)  # replaces the one before
        read = ctx.sql("SELECT * FROM t").to_arrow_table()
        assert rows_by("n", read) == rows_by("n", snapshot.to_arrow())


def test_names_keep_their_case_and_characters(local: Place, ctx: SessionContext) -> None:
    table = Table.create(local.uri)
    table.insert(duckdb.connect().sql('SELECT 1 AS "userId", 2 AS "we""ird a.b"'))
    for name in ("events", "Events", "a.b c", 'q"x'):
        register(ctx, name, table.snapshot())
    assert ask(ctx, 'SELECT "userId", "we""ird a.b" FROM events') == [(1, 2)]
    assert ask(ctx, 'SELECT count(*) FROM "Events", "a.b c", "q""x" WHERE "Events"."userId" = 1') == [(1,)]


def test_a_failed_registration_keeps_the_table_of_before(local: Place, ctx: SessionContext) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    register(ctx, "t", table.snapshot())
    table.alter(partition_by=["n % 2 AS parity"])
    with pytest.raises(InvalidOption, match="was written before the table was partitioned"):
        register(ctx, "t", table.snapshot())
    assert ask(ctx, "SELECT n FROM t") == [(1,)]
    with pytest.raises(InvalidOption, match="ctx must be a SessionContext, not a Table"):
        register(table, "t", table.snapshot())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="'' cannot be a table's name"):
        register(ctx, "", table.snapshot())


def test_without_datafusion_its_extra_is_named(
    local: Place, ctx: SessionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(local.uri)
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[datafusion\]'"):
        register(ctx, "t", table.snapshot())
