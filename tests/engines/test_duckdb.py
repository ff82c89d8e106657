"""A table attached to a DuckDB connection of the caller: the results of its view, its macro and its date macro."""

from __future__ import annotations

import re
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from icedb.engines.duckdb import table_queries
from icedb.engines.duckdb.attached_tables import attach
from icedb.errors import InvalidOption, UnknownColumn
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import by_days, created, failing, files_read, numbers, rows

pytest_plugins = ["tests.support.tables.attached_tables"]

# ------------------------------------------------------------------------------------------ the newest commits


@pytest.mark.long
def test_the_next_query_reads_the_newest_commits(place: Place, con: DuckDBPyConnection) -> None:
    table = created(place, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 1}, {"n": 2}])
    attached = attach(con, place.uri, "events", storage_options=place.storage_options)
    assert repr(attached) == f"Attached('events', '{table.uri}')"
    assert rows(con, "SELECT n, parity FROM events ORDER BY n") == [(1, 1), (2, 0)]
    table.insert([{"n": 3}])
    assert numbers(con, "events") == numbers(con, "events()") == [1, 2, 3]
    assert con.sql("SELECT sum(n) FROM events").fetchall() == [(6,)]
    assert table.merge().merged_parts == 2
    assert numbers(con, "events") == [1, 2, 3]
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert numbers(con, "events") == [1, 2, 3]
    table.drop_partitions(["parity=1"])
    assert numbers(con, "events") == numbers(con, "events()") == [2]
    table.drop_partitions("true")
    assert numbers(con, "events") == numbers(con, "events(parity := 1)") == []


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_queries_are_exact_while_merges_and_cleanup_run(shared_place: Place, con: DuckDBPyConnection) -> None:
    table = created(shared_place, partition_by=["n % 2 AS parity"])
    table.insert([{"n": n} for n in range(4)])
    attach(con, shared_place.uri, "events", storage_options=shared_place.storage_options)
    stop, failures = threading.Event(), list[BaseException]()

    def maintain() -> None:
        try:
            while not stop.is_set():
                table.overwrite([{"n": n} for n in range(4)])
                table.insert([{"n": n} for n in range(4, 8)])
                table.merge()
                table.drop_partitions("true")
                table.insert([{"n": n} for n in range(4)])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    whole = ([], [0, 1, 2, 3], [*range(8)])
    try:
        for source in ["events", "events()"] * 6:
            assert numbers(con, source) in whole
        both = "SELECT (SELECT list(n ORDER BY n) FROM events), (SELECT list(n ORDER BY n) FROM events())"
        for _ in range(4):
            [(first, second)] = rows(con, both)
            assert first == second
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_a_transaction_has_one_snapshot(local: Place, con: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    with monkeypatch.context() as patch:  # a commit before each read of the log
        read = table.handle.log.read
        patch.setattr(table.handle.log, "read", lambda **options: (table.insert([{"n": 1}]), read(**options))[1])
        [(one, two, three)] = rows(
            con, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM events), (SELECT count(*) FROM events())"
        )
    assert one == two == three > 1
    before = numbers(con, "events")
    con.execute("BEGIN")
    assert numbers(con, "events") == before
    table.insert([{"n": 2}])
    other = con.cursor()
    assert numbers(con, "events") == numbers(con, "events()") == before
    assert numbers(other, "events") == [*before, 2]
    con.execute("COMMIT")
    assert numbers(con, "events") == [*before, 2]


def test_an_evicted_snapshot_raises_an_error(
    local: Place, con: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_queries, "TRANSACTIONS_MAX", 2)
    table = created(local)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    con.execute("BEGIN")
    assert numbers(con, "events") == [1]
    other = con.cursor()
    for _ in range(3):
        assert numbers(other, "events") == [1]
    assert "SnapshotExpired: " in failing(con, "FROM events")
    con.execute("ROLLBACK")
    assert numbers(con, "events") == [1]


def test_a_query_of_a_quiet_table_makes_one_listing(local: Place, con: DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "events")
    calls = list[str]()
    store = table.handle.store

    class Counting:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(store, name)

    table.handle.log._store = Counting()  # type: ignore[assignment]
    for source in ["events", "events(parity := 1)", "events x JOIN events y USING (n, day, parity)"]:
        calls.clear()
        con.execute(f"SELECT n FROM {source}").fetchall()
        assert calls.count("list") == 1
        assert not {"get", "head"} & set(calls)


# ------------------------------------------------------------------------------------------ time travel, arguments


@pytest.mark.sampled(days=3)
def test_as_of_accepts_every_form_of_a_time(place: Place, con: DuckDBPyConnection) -> None:
    table = created(place)
    table.insert([{"n": 1}])
    then_ms = table.snapshot().as_of_ms
    while table.snapshot().as_of_ms <= then_ms:
        continue
    table.insert([{"n": 2}])
    then = datetime.fromtimestamp(then_ms / 1000, UTC)
    attach(con, place.uri, "events", storage_options=place.storage_options)
    con.execute("SET TimeZone = 'Asia/Tokyo'")
    in_utc, iso = f"{then:%Y-%m-%d %H:%M:%S.%f}", then.isoformat()
    times = [str(then_ms), f"TIMESTAMP '{in_utc}'", f"TIMESTAMPTZ '{iso}'", f"'{iso}'", f"make_timestamp_ms({then_ms})"]
    for as_of in times:
        assert numbers(con, f"events(as_of := {as_of})") == [1], as_of
    assert numbers(con, "events(as_of := ?)", [then]) == [1]
    for as_of, message in [("now() + INTERVAL 1 DAY", "in the future"), ("DATE '2001-01-01'", "table's creation")]:
        with pytest.raises(duckdb.Error, match=message):
            numbers(con, f"events(as_of := {as_of})")
    [(difference,)] = rows(con, f"SELECT count(*) FROM events e ANTI JOIN events(as_of := {then_ms}) o USING (n)")
    assert difference == 1


@pytest.mark.sampled(days=3)
def test_partition_columns_and_predicates_prune_parts_by_the_log(place: Place, con: DuckDBPyConnection) -> None:
    by_days(place)
    attach(con, place.uri, "events", storage_options=place.storage_options)
    for source, expected, opened in [
        ("events", [0, 1, 2, 3], 4),
        ("events(day := DATE '2026-11-22')", [1], 1),
        ("events(filter := 'n >= 3 OR parity IS NULL')", [3], 1),
        ("events WHERE parity = 1", [1, 3], 2),
    ]:
        assert (numbers(con, source), files_read(con, source)) == (expected, opened), source


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parameters_of_partition_columns_take_values_lists_and_nulls(local: Place, con: DuckDBPyConnection) -> None:
    by_days(local)
    attach(con, local.uri, "events")
    for source, expected, opened in [
        ("events(day := '2026-11-22', parity := 0)", [], 0),
        ("events(parity := [1, NULL])", [1, 3], 2),
        ("events(day := ['2026-11-21', '2026-11-23'], filter := 'n > 0')", [2], 1),
        ("events(day := []::DATE[])", [], 0),
        ("events(parity := [NULL])", [], 0),
        ("events(parity := NULL, filter := NULL)", [0, 1, 2, 3], 4),
        ("events(filter := 'parity = 1 AND n % 3 = 0')", [3], 2),
    ]:
        assert (numbers(con, source), files_read(con, source)) == (expected, opened), source
    assert numbers(con, "events(parity := ?, filter := ?)", [1, "n < 2"]) == [1]
    assert numbers(con, "events(filter := $$n < date_part('year', now()) - 2000$$)") == [*range(4)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_partition_values_are_compared_as_in_sql(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local, partition_by=["shop", "upper(shop) AS big", "n / 2 AS half"])
    shops = ["a, b", "it's [x]", None, ""]
    table.insert([{"shop": shop, "n": n} for n, shop in enumerate(shops)])
    attach(con, table, "sales")
    assert [numbers(con, "sales(shop := ?)", [shop]) for shop in shops] == [[0], [1], [0, 1, 2, 3], [3]]
    assert numbers(con, "sales(shop := ?)", [["a, b", None]]) == [0, 2]
    assert numbers(con, "sales(big := ['IT''S [X]'])") == [1]
    assert numbers(con, "sales(half := 0.5)") == numbers(con, "sales(half := '0.5')") == [1]
    assert numbers(con, "sales(half := 1)") == [2]


def test_a_data_column_hides_a_partition_column_but_not_its_parameter(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local, partition_by=["upper(shop) AS shop"])
    table.insert([{"shop": "north", "n": 1}, {"shop": "North", "n": 2}, {"shop": "south", "n": 3}])
    attach(con, table, "sales")
    assert rows(con, "SELECT shop, n FROM sales(shop := 'NORTH') ORDER BY n") == [("north", 1), ("North", 2)]
    assert numbers(con, "sales WHERE shop = 'north'") == numbers(con, "sales(filter := $$shop = 'north'$$)") == [1]


@pytest.mark.long
def test_errors_of_a_query_name_the_table_and_have_no_traceback(local: Place, con: DuckDBPyConnection) -> None:
    by_days(local)
    attach(con, local.uri, "events", date_macro="icedb", date_columns=["day"])
    for source, message in [
        ("events(as_of := 'yesterday')", "as_of is 'yesterday'; write a time with its zone"),
        ("events(as_of := 1763712000)", "as_of is '1763712000'; write a time"),
        ("events(as_of := TIMESTAMP 'infinity')", "as_of is TIMESTAMP 'infinity'; pass a time of this table's"),
        ("events(filter := 'm = 1')", "UnknownColumn: .* names 'm'"),
        ("events(filter := '1; DROP TABLE x')", "InvalidOption: .*the predicate"),
        ("events(filter := 'n IN (SELECT 1)')", "holds a subquery"),
        ("events(parity := 'odd')", r"the predicate .* does not fit the partition columns .*'odd'"),
        ("icedb(start_month := 2)", "start_month or start_day is given without start_year"),
        ("icedb(end_year := 2026, end_month := 13)", "the end 2026-13-1 is not a valid day"),
    ]:
        error = failing(con, f"SELECT n FROM {source}")
        assert re.search(message, error, re.DOTALL), error
        assert local.uri in error
    with pytest.raises(duckdb.BinderException, match="as_off"):
        con.execute("FROM events(as_off := 3)")


def test_a_time_before_the_horizon_raises_snapshot_expired(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    then_ms = table.snapshot().as_of_ms
    table.overwrite([{"n": 2}])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    attach(con, table, "events")
    assert "SnapshotExpired: " in failing(con, f"SELECT count(*) FROM events(as_of := {then_ms})")
    assert numbers(con, "events") == [2]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_filter_uses_the_time_zone_of_the_connection_as_where_does(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local, sort_by=["happened"])
    for n, at in enumerate(["2026-11-20T20:00:00+00:00", "2026-11-21T20:00:00+00:00"]):
        table.insert([{"happened": datetime.fromisoformat(at), "n": n}])
    attach(con, table, "events")
    for zone in ("UTC", "Asia/Tokyo"):
        con.execute(f"SET TimeZone = '{zone}'")
        for predicate in (
            "happened >= '2026-11-21 00:00:00'",
            "happened::DATE = '2026-11-21'",
            "happened < now() AND n = 1",
        ):
            wanted = numbers(con, f"events WHERE {predicate}")
            assert numbers(con, f"events(filter := $${predicate}$$)") == wanted, (zone, predicate)


# ------------------------------------------------------------------------------------------ tables that change


@pytest.mark.sampled(days=3)
def test_the_macro_has_a_new_column_at_once_and_the_view_later(place: Place, con: DuckDBPyConnection) -> None:
    table = created(place)
    attach(con, place.uri, "events", storage_options=place.storage_options)
    assert rows(con, "SELECT count(*) FROM events") == [(0,)]
    table.insert([{"n": 1}])
    assert rows(con, "SELECT * FROM events()") == [(1,)]
    con.execute("BEGIN")
    assert rows(con, "SELECT count(*) FROM events") == rows(con, "SELECT count(*) FROM events") == [(1,)]
    con.execute("COMMIT")
    assert rows(con, "SELECT * FROM events") == [(1,)]
    table.insert([{"n": 2, "new": "x"}])
    assert rows(con, "SELECT * FROM events() ORDER BY n") == [(1, None), (2, "x")]
    assert numbers(con, "events") == [1, 2]
    assert rows(con.cursor(), "SELECT * FROM events ORDER BY n") == [(1, None), (2, "x")]


@pytest.mark.long
def test_a_view_of_the_caller_is_not_replaced(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    attached = attach(con, table, "events")
    con.execute("ALTER VIEW events RENAME TO renamed; CREATE VIEW events AS SELECT 'mine' AS n")
    table.insert([{"n": 2, "new": "x"}])
    assert numbers(con, "renamed") == [1, 2]
    assert numbers(con, "events") == ["mine"]
    with pytest.raises(InvalidOption, match="events: there is a view of this name"):
        attached.refresh()
    attached.detach()
    assert numbers(con, "events") == ["mine"]


@pytest.mark.long
def test_parts_of_an_older_partitioning_have_the_new_partition_columns(place: Place, con: DuckDBPyConnection) -> None:
    table = created(place)
    table.insert([{"n": n, "shop": "x"} for n in range(4)])
    attach(con, place.uri, "events", storage_options=place.storage_options)
    assert rows(con, "SELECT * FROM events WHERE n = 3") == [(3, "x")]
    table.alter(partition_by=["n % 2 AS parity", "n AS n"])
    table.insert([{"n": n, "shop": "y"} for n in (4, 5)])
    everything = [(n, "x" if n < 4 else "y", n % 2) for n in range(6)]
    assert rows(con, "SELECT n, shop, parity FROM events() ORDER BY n") == everything
    assert numbers(con, "events") == [*range(6)]
    assert rows(con, "SELECT n, shop, parity FROM events ORDER BY n") == everything
    for source in ("events(parity := 1)", "events WHERE parity = 1", "events(filter := 'parity = 1')"):
        assert numbers(con, source) == [1, 3, 5], source
    assert numbers(con, "events(n := [3, 4])") == [3, 4]
    table.alter(partition_by=["shop"])
    assert "Run the query again" in failing(con, "SELECT count(*) FROM events")
    assert numbers(con, "events") == [*range(6)]
    assert numbers(con, "events(shop := 'y')") == [4, 5]


def test_partition_columns_of_older_parts_need_the_time_zone_utc(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local)
    table.insert([{"happened": datetime(2026, 11, 20, 20, tzinfo=UTC), "n": 1}])
    table.alter(partition_by=["strftime(happened, '%Y-%m-%d') AS d"])
    attach(con, table, "events")
    con.execute("SET TimeZone = 'Asia/Tokyo'")
    assert "SET TimeZone = 'UTC'" in failing(con, "FROM events")
    con.execute("SET TimeZone = 'UTC'")
    assert rows(con, "SELECT d FROM events") == [("2026-11-20",)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_temporary_view_is_refreshed_by_a_call(local: Place, tmp_path: Path) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    with duckdb.connect(tmp_path / "own.db") as con:
        con.execute("CREATE TABLE mine AS SELECT 1 AS n")
        attached = attach(con, table, "events")
        table.insert([{"n": 2, "new": "x"}])
        assert rows(con, "SELECT * FROM events ORDER BY n") == [(1,), (2,)]
        assert rows(con, "SELECT new FROM events() WHERE n = 2") == [("x",)]
        attached.refresh()
        assert rows(con, "SELECT * FROM events ORDER BY n") == [(1, None), (2, "x")]
        with pytest.raises(duckdb.CatalogException):
            con.cursor().execute("FROM events")
        cursor = con.cursor()
        attach(cursor, table, "events")
        assert numbers(cursor, "events JOIN mine USING (n)") == [1]
        assert numbers(con, "events") == [1, 2]
    with duckdb.connect(tmp_path / "own.db", read_only=True) as again:
        assert rows(again, "SELECT view_name FROM duckdb_views() WHERE NOT internal") == []
        attach(again, table, "events")
        assert numbers(again, "events") == [1, 2]


# ------------------------------------------------------------------------------------------ the date macro of v2


@pytest.mark.long
@pytest.mark.parametrize(
    ("partition_by", "date_columns"),
    [
        (["strftime(day, '%Y') AS y", "strftime(day, '%m') AS m", "strftime(day, '%d') AS d"], None),
        (["year(day) AS year", "month(day) AS month", "day(day) AS tag"], ["year", "month", "tag"]),
        (["day AS on_day"], None),
        (["strftime(day, '%Y-%m-%d') AS d"], None),
        (["date_trunc('day', day::TIMESTAMP) AS since"], ["since"]),
    ],
)
def test_the_date_macro_selects_a_range_of_days(
    local: Place, con: DuckDBPyConnection, partition_by: list[str], date_columns: list[str] | None
) -> None:
    table = created(local, partition_by=partition_by)
    days = [date(2022, 12, 31), date(2023, 1, 1), date(2023, 2, 10), date(2023, 8, 1), date(2023, 8, 2)]
    table.insert(pa.table({"day": days, "n": range(5)}))
    attach(con, table, "events", date_macro="icedb", date_columns=date_columns)
    for arguments, expected in [
        ("start_year:=2023, start_month:=2, start_day:=1, end_year:=2023, end_month:=8, end_day:=1", [2, 3]),
        ("start_year:=2023, end_year:=2023, end_month:=8", [1, 2, 3]),
        ("end_year:=2023", [0, 1]),
        ("end_year:=2023, filter := 'n > 0'", [1]),
        ("", [0, 1, 2, 3, 4]),
    ]:
        assert numbers(con, f"icedb({arguments})") == expected, arguments
        assert files_read(con, f"icedb({arguments})") == (len(expected) if "filter" not in arguments else 2), arguments


@pytest.mark.long
def test_date_columns_that_form_no_date_are_rejected(local: Place, con: DuckDBPyConnection) -> None:
    by_days(local)
    with pytest.raises(InvalidOption, match=r"a range of dates needs .*day DATE, parity BIGINT"):
        attach(con, local.uri, "events", date_macro="icedb", date_columns=["parity"])
    with pytest.raises(UnknownColumn, match=r"date_columns names 'd', and the partition columns are \['day', 'parity'"):
        attach(con, local.uri, "events", date_macro="icedb", date_columns=["d"])
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM events")
    assert rows(con, "SELECT count(*) FROM duckdb_functions() WHERE function_name LIKE '\\_\\_icedb%' ESCAPE '\\'") == [
        (0,)
    ]
