"""A table attached to a DuckDB connection of the caller's own: a view, a macro, and v2's macro of days."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icedb import Table
from icedb.errors import InvalidOption, MissingExtra, TableNotFound, UnknownColumn
from icedb.readers import duckdb_access, duckdb_answers
from icedb.readers.duckdb import attach, detach
from tests.conftest import Place
from tests.rotating_keys import Keys, without_keys

pytest_plugins = ["tests.rotating_keys"]

DAY = date(2026, 11, 21)


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def created(place: Place, **options: Any) -> Table:
    return Table.create(place.uri, storage_options=place.storage_options, **options)


def rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[Any]:
    return con.execute(sql, parameters).fetchall()


def numbers(con: duckdb.DuckDBPyConnection, source: str, parameters: Any = None) -> list[int]:
    return [n for (n,) in rows(con, f"SELECT n FROM {source} ORDER BY n", parameters)]


def files_read(con: duckdb.DuckDBPyConnection, source: str) -> int:
    [(_, plan)] = rows(con, f"EXPLAIN ANALYZE SELECT * FROM {source}")
    return sum(map(int, re.findall(r"Total Files Read: (\d+)", plan)))


def failing(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    with pytest.raises(duckdb.InvalidInputException) as error:
        con.execute(sql).fetchall()
    assert "At:" not in str(error.value), "no traceback of ours"
    return str(error.value)


def by_days(place: Place, count: int = 4) -> Table:
    """A part for each of so many days; the numbers count the days."""
    table = created(place, partition_by=["day", "n % 2 AS parity"], sort_by=["n"])
    table.insert(pa.table({"day": [DAY + timedelta(days=n) for n in range(count)], "n": list(range(count))}))
    return table


# ------------------------------------------------------------------------------------------ what is there now


def test_late_files_merges_drops_and_cleanup_are_seen_by_the_next_query(
    place: Place, con: duckdb.DuckDBPyConnection
) -> None:
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


def test_queries_are_exact_while_merges_and_cleanup_run(shared_place: Place, con: duckdb.DuckDBPyConnection) -> None:
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
        except BaseException as error:  # the test tells of it
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


def test_a_statement_and_a_transaction_see_one_snapshot(
    local: Place, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    with monkeypatch.context() as patch:  # a commit before each look at the log
        read = table.handle.read
        patch.setattr(table.handle, "read", lambda **given: (table.insert([{"n": 1}]), read(**given))[1])
        [(one, two, three)] = rows(
            con, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM events), (SELECT count(*) FROM events())"
        )
    assert one == two == three > 1
    seen = numbers(con, "events")
    con.execute("BEGIN")
    assert numbers(con, "events") == seen
    table.insert([{"n": 2}])
    other = con.cursor()
    assert numbers(con, "events") == numbers(con, "events()") == seen
    assert numbers(other, "events") == [*seen, 2]
    con.execute("COMMIT")
    assert numbers(con, "events") == [*seen, 2]


def test_a_transaction_whose_snapshot_was_forgotten_does_not_get_another(
    local: Place, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_answers, "TRANSACTIONS_MAX", 2)
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


def test_a_quiet_table_costs_one_listing_for_each_query(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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


def test_time_travel_by_every_way_to_say_a_time(place: Place, con: duckdb.DuckDBPyConnection) -> None:
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
    assert numbers(con, "events(as_of := now() + INTERVAL 1 DAY)") == [1, 2]
    assert numbers(con, "events(as_of := DATE '2001-01-01')") == []
    [(difference,)] = rows(con, f"SELECT count(*) FROM events e ANTI JOIN events(as_of := {then_ms}) o USING (n)")
    assert difference == 1


def test_partition_columns_and_predicates_choose_parts_by_the_log_alone(
    place: Place, con: duckdb.DuckDBPyConnection
) -> None:
    by_days(place)
    attach(con, place.uri, "events", storage_options=place.storage_options)
    for source, expected, opened in [
        ("events", [0, 1, 2, 3], 4),
        ("events(day := DATE '2026-11-22')", [1], 1),
        ("events(filter := 'n >= 3 OR parity IS NULL')", [3], 1),
        ("events WHERE parity = 1", [1, 3], 2),
    ]:
        assert (numbers(con, source), files_read(con, source)) == (expected, opened), source


def test_what_may_be_asked_of_partition_columns(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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


def test_values_of_partitions_are_compared_as_sql_does(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = created(local, partition_by=["shop", "upper(shop) AS big", "n / 2 AS half"])
    shops = ["a, b", "it's [x]", None, ""]
    table.insert([{"shop": shop, "n": n} for n, shop in enumerate(shops)])
    attach(con, table, "sales")
    assert [numbers(con, "sales(shop := ?)", [shop]) for shop in shops] == [[0], [1], [0, 1, 2, 3], [3]]
    assert numbers(con, "sales(shop := ?)", [["a, b", None]]) == [0, 2]
    assert numbers(con, "sales(big := ['IT''S [X]'])") == [1]
    assert numbers(con, "sales(half := 0.5)") == numbers(con, "sales(half := '0.5')") == [1]
    assert numbers(con, "sales(half := 1)") == [2]


def test_a_data_column_of_a_partition_s_name_is_seen_and_the_parameter_chooses_the_partition(
    local: Place, con: duckdb.DuckDBPyConnection
) -> None:
    table = created(local, partition_by=["upper(shop) AS shop"])
    table.insert([{"shop": "north", "n": 1}, {"shop": "North", "n": 2}, {"shop": "south", "n": 3}])
    attach(con, table, "sales")
    assert rows(con, "SELECT shop, n FROM sales(shop := 'NORTH') ORDER BY n") == [("north", 1), ("North", 2)]
    assert numbers(con, "sales WHERE shop = 'north'") == numbers(con, "sales(filter := $$shop = 'north'$$)") == [1]


def test_what_a_query_got_wrong_is_told_without_a_traceback(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    by_days(local)
    attach(con, local.uri, "events", date_macro="icedb", date_columns=["day"])
    for source, told in [
        ("events(as_of := 'yesterday')", "as_of is 'yesterday'; write a time with its zone"),
        ("events(as_of := 1763712000)", "as_of is '1763712000'; write a time"),
        ("events(as_of := TIMESTAMP 'infinity')", "as_of is TIMESTAMP 'infinity'; give a time of this table's"),
        ("events(filter := 'm = 1')", "UnknownColumn: .* names 'm'"),
        ("events(filter := '1; DROP TABLE x')", "InvalidOption: .*the predicate"),
        ("events(filter := 'n IN (SELECT 1)')", "holds a subquery"),
        ("events(parity := 'odd')", r"the predicate .* does not fit the partition columns .*'odd'"),
        ("icedb(start_month := 2)", "start_month or start_day is given without start_year"),
        ("icedb(end_year := 2026, end_month := 13)", "the end 2026-13-1 is no day"),
    ]:
        message = failing(con, f"SELECT n FROM {source}")
        assert re.search(told, message, re.DOTALL), message
        assert local.uri in message
    with pytest.raises(duckdb.BinderException, match="as_off"):
        con.execute("FROM events(as_off := 3)")


def test_a_time_before_the_horizon_says_so(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    then_ms = table.snapshot().as_of_ms
    table.overwrite([{"n": 2}])
    table.cleanup(grace_ms=0, allow_short_grace=True)
    attach(con, table, "events")
    assert "SnapshotExpired: " in failing(con, f"SELECT count(*) FROM events(as_of := {then_ms})")
    assert numbers(con, "events") == [2]


def test_a_filter_means_what_where_means_in_the_time_zone_of_the_connection(
    local: Place, con: duckdb.DuckDBPyConnection
) -> None:
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


def test_new_columns_are_in_the_macro_at_once_and_in_the_view_at_the_query_after(
    place: Place, con: duckdb.DuckDBPyConnection
) -> None:
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


def test_a_view_of_the_caller_s_own_is_not_replaced(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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


def test_parts_of_an_older_partitioning_have_right_rows(place: Place, con: duckdb.DuckDBPyConnection) -> None:
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


def test_what_an_older_part_s_rows_compute_is_computed_in_utc_or_not_at_all(
    local: Place, con: duckdb.DuckDBPyConnection
) -> None:
    table = created(local)
    table.insert([{"happened": datetime(2026, 11, 20, 20, tzinfo=UTC), "n": 1}])
    table.alter(partition_by=["strftime(happened, '%Y-%m-%d') AS d"])
    attach(con, table, "events")
    con.execute("SET TimeZone = 'Asia/Tokyo'")
    assert "SET TimeZone = 'UTC'" in failing(con, "FROM events")
    con.execute("SET TimeZone = 'UTC'")
    assert rows(con, "SELECT d FROM events") == [("2026-11-20",)]


def test_a_view_is_refreshed_by_hand_where_it_is_temporary(local: Place, tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------ the macro of v2


@pytest.mark.parametrize(
    ("partition_by", "chosen"),
    [
        (["strftime(day, '%Y') AS y", "strftime(day, '%m') AS m", "strftime(day, '%d') AS d"], None),
        (["year(day) AS year", "month(day) AS month", "day(day) AS tag"], ["year", "month", "tag"]),
        (["day AS on_day"], None),
        (["strftime(day, '%Y-%m-%d') AS d"], None),
        (["date_trunc('day', day::TIMESTAMP) AS since"], ["since"]),
    ],
)
def test_a_range_of_days_as_programs_of_v2_ask_for_it(
    local: Place, con: duckdb.DuckDBPyConnection, partition_by: list[str], chosen: list[str] | None
) -> None:
    table = created(local, partition_by=partition_by)
    days = [date(2022, 12, 31), date(2023, 1, 1), date(2023, 2, 10), date(2023, 8, 1), date(2023, 8, 2)]
    table.insert(pa.table({"day": days, "n": range(5)}))
    attach(con, table, "events", date_macro="icedb", date_columns=chosen)
    for given, expected in [
        ("start_year:=2023, start_month:=2, start_day:=1, end_year:=2023, end_month:=8, end_day:=1", [2, 3]),
        ("start_year:=2023, end_year:=2023, end_month:=8", [1, 2, 3]),
        ("end_year:=2023", [0, 1]),
        ("end_year:=2023, filter := 'n > 0'", [1]),
        ("", [0, 1, 2, 3, 4]),
    ]:
        assert numbers(con, f"icedb({given})") == expected, given
        assert files_read(con, f"icedb({given})") == (len(expected) if "filter" not in given else 2), given


def test_columns_that_are_no_date_are_refused(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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


# ------------------------------------------------------------------------------------------ names, connections


def test_names_are_replaced_when_they_are_ours_and_refused_when_not(
    local: Place, con: duckdb.DuckDBPyConnection
) -> None:
    one, two = created(local), created(local.below("two"))
    one.insert([{"n": 1}])
    two.insert([{"n": 2}])
    attach(con, one, "Events", date_macro=None)
    attach(con, two, "events")
    assert numbers(con, "events") == numbers(con, "events()") == [2]
    name = 'it\'s "mine"; drop'
    attach(con, one, name)
    quoted = '"' + name.replace('"', '""') + '"'
    assert numbers(con, f"{quoted}()") == numbers(con, quoted) == [1]
    con.execute("CREATE TABLE own (n INT); CREATE VIEW seen AS SELECT 1; CREATE MACRO made() AS TABLE SELECT 1 AS n")
    for taken, kind in [("own", "table"), ("SEEN", "view"), ("made", "table macro"), ("range", "table function")]:
        with pytest.raises(InvalidOption, match=f"{taken}: there is a {kind} of this name"):
            attach(con, one, taken)
    with pytest.raises(InvalidOption, match="cannot be the name of both"):
        attach(con, one, "a", date_macro="A")
    with pytest.raises(InvalidOption, match="'' cannot be the name"):
        attach(con, one, "")
    detach(con, "events")
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM events")
    with pytest.raises(InvalidOption, match="events: no table is attached"):
        detach(con, "events")
    assert numbers(con, quoted) == [1]


def test_a_date_macro_of_another_table_is_not_taken_away(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "one", date_macro="icedb")
    with pytest.raises(InvalidOption, match="icedb: the table attached as 'one' has a macro of this name"):
        attach(con, table, "two", date_macro="icedb")
    attach(con, table, "one").detach()
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM icedb()")
    attached = attach(con, table, "two", date_macro="icedb")
    with pytest.raises(UnknownColumn):
        attach(con, table, "two", date_macro="icedb", date_columns=["m"])
    assert numbers(con, "icedb()") == numbers(con, "two") == [*range(4)], "as it was"
    attach(con, table, "two")
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM icedb()")
    with pytest.raises(InvalidOption, match="it was detached or replaced"):
        attached.refresh()


def test_odd_columns_and_parameters(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = created(local, partition_by=['"as_of" % 2 AS "we ""ird"', '"as_of"', "n % 2 AS filename"])
    table.insert(pa.table({"as_of": [1, 2], "n": [1, 2], 'a "b"': ["x", "y"], "select": [True, False]}))
    attach(con, table, "odd")
    assert rows(con, 'SELECT "as_of", "a ""b""", "select", "we ""ird", filename FROM odd ORDER BY n') == [
        (1, "x", True, 1, 1),
        (2, "y", False, 0, 0),
    ]
    assert numbers(con, 'odd("we ""ird" := 1, filename := 1)') == [1]
    assert numbers(con, "odd(filter := '\"as_of\" = 2')") == [2]


def test_cursors_and_threads_share_what_is_attached(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "events")
    found: list[object] = []

    def ask(cursor: duckdb.DuckDBPyConnection) -> None:
        try:
            found.extend(numbers(cursor, "events(parity := 1)") for _ in range(10))
        except duckdb.Error as error:
            found.append(error)

    threads = [threading.Thread(target=ask, args=(con.cursor(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 3]] * 40


def test_an_attached_table_does_not_keep_its_connection_alive(local: Place, tmp_path: Path) -> None:
    table = by_days(local)
    con = duckdb.connect(tmp_path / "own.db")
    gone = weakref.ref(con)
    attached = attach(con, table, "events")
    del con
    gc.collect()
    assert gone() is None
    with pytest.raises(InvalidOption, match="the connection it was attached to is gone"):
        attached.refresh()
    attached.detach()
    closed = duckdb.connect()
    attached = attach(closed, table, "events")
    closed.close()
    attached.detach()


def test_what_is_not_there_is_told_when_it_is_attached(
    local: Place, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TableNotFound):
        attach(con, local.uri, "events")
    table = created(local)
    with pytest.raises(InvalidOption, match="the table is open already"):
        attach(con, table, "events", storage_options={"fsync": "false"})
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[duckdb\]'"):
        attach(con, table, "events")


# ------------------------------------------------------------------------------------------ secrets


@pytest.mark.s3
def test_each_table_has_a_secret_of_its_own_which_goes_with_it(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
    keys.expires_in = timedelta(hours=1)
    one, two = created(s3), s3.below("two")
    one.insert([{"n": 1}])
    other = Table.create(two.uri, storage_options=without_keys(s3), credential_provider=keys)
    other.insert([{"n": 2}])
    attach(con, s3.uri, "one", storage_options=s3.storage_options)
    attach(con, two.uri, "two", storage_options=without_keys(s3), credential_provider=keys)
    assert numbers(con, "(FROM one UNION ALL FROM two)") == [1, 2]
    [(text,)] = rows(con, "SELECT string_agg(sql) FROM duckdb_views() WHERE NOT internal")
    assert keys.now["secret_access_key"] not in text
    scopes = "SELECT scope[1] FROM duckdb_secrets() ORDER BY 1"
    assert rows(con, scopes) == [(s3.uri,), (two.uri,)]
    detach(con, "two")
    assert rows(con, scopes) == [(s3.uri,)]
    assert numbers(con, "one") == [1]


@pytest.mark.s3
def test_keys_that_are_new_before_the_old_ones_end_are_used_by_all_queries(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_access, "LOOK_SECONDS", 0.05)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attached = attach(con, s3.uri, "events", storage_options=without_keys(s3), credential_provider=keys)
    key_id = "SELECT regexp_extract(secret_string, 'key_id=([^;]*)', 1) FROM duckdb_secrets()"
    for _ in range(2):
        keys.rotate()
        for _ in range(200):
            if rows(con, key_id) == [(keys.now["access_key_id"],)]:
                break
            threading.Event().wait(0.02)
        assert numbers(con, "events") == [1]
        assert con.sql("SELECT n FROM events()").fetchall() == [(1,)]
    attached.detach()
    asked = len(keys.given)
    threading.Event().wait(0.2)
    assert len(keys.given) <= asked + 1, "nobody looks on"


@pytest.mark.s3
def test_keys_that_ended_unseen_fail_one_statement_and_are_renewed_by_it(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    for n in (1, 2):  # one part alone would be opened when a statement is bound
        table.insert([{"n": n}])
    attach(con, table, "events")
    keys.rotate()
    assert sorted(con.sql("SELECT n FROM events").fetchall()) == [(1,), (2,)], "a lazy relation is bound twice"
    keys.rotate()
    with pytest.raises(duckdb.HTTPException) as error:
        con.execute("SELECT n FROM events").fetchall()
    assert keys.now["secret_access_key"] not in str(error.value)
    assert numbers(con, "events") == [1, 2]


@pytest.mark.s3
def test_pruning_saves_requests(s3: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = created(s3, partition_by=["n % 8 AS bucket"])
    table.insert([{"n": n} for n in range(16)])
    attach(con, s3.uri, "events", storage_options=s3.storage_options)

    def requests(source: str) -> int:
        [(_, plan)] = rows(con, f"EXPLAIN ANALYZE SELECT sum(n) FROM {source}")
        return sum(int(n) for n in re.findall(r"#(?:HEAD|GET): (\d+)", plan))

    everything, one = requests("events"), requests("events(bucket := 3)")
    assert 0 < one * 8 <= everything
    assert requests("events WHERE bucket = 3") == one


@pytest.mark.s3
def test_a_store_that_refuses_is_told_when_the_query_is_bound(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
    keys.expires_in = timedelta(hours=1)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    keys.rotate()  # as nobody told that this key would end
    message = failing(con, "SELECT n FROM events")
    assert "AccessDenied: " in message
    assert keys.now["secret_access_key"] not in message


AFTER_THE_END = {
    "an open transaction sees what was replaced": """
cur.begin(); cur.execute("FROM rr").fetchall(); attached = attach(con, table, "rr"); told(cur)
""",
    "a detachment is rolled back": """
con.begin(); detach(con, "rr"); con.rollback(); told(con)
""",
    "a cursor outlives the connection": """
del con; gc.collect(); told(cur)
""",
    "a cursor attaches and is gone": """
detach(con, "rr"); attach(con.cursor(), table, "rr"); gc.collect(); told(con)
""",
    "many ask while it is replaced": """
def ask():
    mine = con.cursor()
    for _ in range(40):
        try:
            assert mine.execute("SELECT count(*) FROM rr").fetchall() == [(3,)]
        except duckdb.Error:
            pass
threads = [threading.Thread(target=ask) for _ in range(3)]
for t in threads: t.start()
for _ in range(20): attach(con, table, "rr")
for t in threads: t.join()
""",
}


@pytest.mark.parametrize("story", AFTER_THE_END)
def test_what_is_asked_after_its_end_is_an_error_and_not_the_end_of_the_process(local: Place, story: str) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": n} for n in range(3)])
    code = f"""
import gc, threading, duckdb
from icedb import Table
from icedb.readers.duckdb import attach, detach

table = Table.open({local.uri!r})
con = duckdb.connect()
cur = con.cursor()
attach(con, table, "rr")

def told(who):
    try:
        found = who.execute("FROM rr").fetchall()
    except duckdb.Error as error:
        assert "detached or replaced" in str(error), error
    else:
        assert len(found) == 3

{AFTER_THE_END[story]}
print("alive")
"""
    for _ in range(2):  # what was freed may still be there
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
