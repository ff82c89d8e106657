"""The parts that a query opens: pruned by `where`, and by the conditions of the query on `t`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb import Dedup, Part, Table
from icedb.errors import InvalidOption, InvalidQuery, UnknownColumn
from icedb.reader import snapshot
from icedb.reader.part_pruning import prune_parts
from icedb.reader.predicate_pushdown import pushed_down_predicate
from icedb.sql.column_stats import TEXT_MAX, bounds_of, encode_statistics
from icedb.sql.connections import connect_sandbox
from icedb.sql.predicates import check_predicate
from tests.support.object_stores.stores import Place

LONG = "ж" * 70


@pytest.fixture(scope="module")
def events() -> Table:
    """Thirty parts of five rows. Some have a long text, nulls or NaN."""
    table = Table.create(
        "memory://pruning/events", partition_by=["ts // 100 AS h", "kind"], sort_by=["ts", "name", "f"]
    )
    for k in range(30):
        rows = [
            {"ts": k * 10 + n, "name": f"n{k:02}{LONG if k == 7 else ''}", "f": float(k), "v": n, "kind": "ab"[k % 2]}
            for n in range(5)
        ]
        table.insert(rows)
    return table


PLAIN = [
    ("ts = 42", 1),
    ("42 = ts", 1),
    ("ts > 250", 5),
    ("NOT ts <= 250", 5),
    ("ts <> 5", 30),
    ("ts IN (5, 42, 55)", 1),
    ("ts BETWEEN 20 AND 31", 2),
    ("ts NOT BETWEEN 20 AND 500", 2),
    ("ts < 20.5", 3),
    ("ts::DOUBLE > 285.5", 1),
    ("name = 'n08'", 1),
    ("name LIKE 'n1%'", 10),
    ("name NOT LIKE 'n%'", 0),
    ("starts_with(name, 'n07')", 1),
    (f"name = 'n07{LONG}'", 1),
    (f"name = 'n07{LONG}x'", 1),
    ("name IS NULL", 0),
    ("name IS NOT NULL", 30),
    ("f = 'nan'::DOUBLE", 0),
    ("f IS NOT DISTINCT FROM 3", 1),
    ("kind = 'a'", 15),
    ("kind = 'a' AND ts > 250", 2),
    ("h = 1", 10),
    ("h = 1 OR ts > 280", 12),
    ("h % 2 = 0 AND kind = 'b' AND v = 1", 10),
    ("v = 1", 30),
    ("ts = 1 AND 1 = 2", 0),
    ("ts IS NULL OR ts IS NOT DISTINCT FROM NULL", 0),
    ("T.TS = 42 AND t.h = 0", 1),
    ("name COLLATE NOCASE = 'n08'", 30),
    ("ts = NULL", 0),
]


@pytest.fixture(scope="module")
def all_rows(events: Table) -> Any:
    return events.query("SELECT * FROM t").to_arrow_table()


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("where", "parts"), PLAIN)
def test_a_predicate_prunes_parts_by_the_log(events: Table, all_rows: Any, where: str, parts: int) -> None:
    current = events.snapshot()
    assert len(current.files(where)) == parts
    if parts <= 2:
        with connect_sandbox() as con:
            con.register("t", all_rows)
            expected = con.execute(f"SELECT * FROM t WHERE {where} ORDER BY ts").fetchall()
        assert current.query("SELECT * FROM t ORDER BY ts", where=where).fetchall() == expected


def test_a_duckdb_expression_is_a_predicate(events: Table) -> None:
    where = (duckdb.ColumnExpression("ts") > 280) & (duckdb.ColumnExpression("kind") == duckdb.ConstantExpression("b"))
    current = events.snapshot()
    assert len(current.files(where)) == 1
    assert current.query("SELECT count(*) FROM t", where=where).fetchall() == [(5,)]


@pytest.mark.sampled(days=3)
def test_an_invalid_predicate_is_rejected(events: Table) -> None:
    current = events.snapshot()
    for where, error in (
        ("ts", InvalidOption),
        ("ts <", InvalidOption),
        ("nope = 1", UnknownColumn),
        ("true; DROP TABLE t", InvalidOption),
        ("ts = (SELECT 1)", InvalidOption),
        ("random() < 1", InvalidOption),
        ("", InvalidOption),
    ):
        with pytest.raises(error, match="memory://pruning/events"):
            current.files(where)
        with pytest.raises(error):
            current.query("FROM t", where=where)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_predicate_beyond_the_maximum_depth_is_rejected(events: Table) -> None:
    current, refused = events.snapshot(), []
    for depth in range(243, 249):
        for number in ("1e3", "CAST(1e3 AS DOUBLE)"):  # each needs one level more when its SQL is parsed again
            try:
                assert current.files(f"{'abs(' * depth}{number}{')' * depth} < ts") == []
            except InvalidOption as error:
                refused.append("it is nested too deep" in str(error))
    assert 0 < len(refused) < 12
    assert all(refused)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_current_time_is_evaluated_once(memory: Place) -> None:
    table = Table.create(memory.uri, sort_by=["moment"])
    for year in (2020, 2100):
        table.insert([{"moment": datetime(year, 1, 1, tzinfo=UTC)}])
    current = table.snapshot()
    for now in ("now()", "current_timestamp", "today()", "current_date", "(now() - INTERVAL 1 DAY)"):
        assert len(current.files(f"moment < {now}")) == len(current.files(f"moment > {now}")) == 1
        assert current.query("SELECT year(moment) FROM t", where=f"moment < {now}").fetchall() == [(2020,)]
    sql = check_predicate("moment < now() OR moment > now()", table.schema(), {}, table="lake", at_once=True).sql
    assert len(set(sql.split("'")[1::2])) == 1


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_with_missing_or_invalid_statistics_are_kept(memory: Place) -> None:
    table = Table.create(memory.uri, sort_by=["n", "s"])
    table.insert([{"n": 1, "s": "a"}])
    current = table.snapshot()
    [part] = current.parts

    def kept(stats: bytes | None, where: str = "n = 7", **others: Any) -> int:
        encoded = msgspec.UNSET if stats is None else msgspec.Raw(stats)
        return len(replace(current, parts=(replace(part, stats=encoded, **others),)).files(where))

    assert kept(b'{"n":[1,2,0]}') == kept(b'{"n":[null,null,1]}') == 0
    for stats in (
        None, b"{}", b"[]", b'{"n":3}', b'{"n":["1","2",0]}', b'{"n":[1,2]}', b'{"n":[1,2,0.5]}', b'{"n":[2,1,0]}',
        b'{"n":[true,true,0]}', b'{"n":[1e0,2,0]}', b'{"n":[1,null,0]}', b'{"n":[null,null,0]}', b'{"n":[1,2,-1]}',
        b'{"n":[1,99999999999999999999999,0]}', b'{"N":[1,2,0]}', b'{"n":[1,2,99999999999999999999]}', b'{"n"', b"",
    ):  # fmt: skip
        assert kept(stats) == 1, stats
    assert kept(b'{"n":[null,null,1]}', rows=None) == 1, "without a row count, some rows may not be null"
    assert kept(b'{"s":["a","b",0]}', "s = 'c'") == 0
    assert kept(b'{"s":["a","b",0]}', "s = 'c'", tombstoned_ms=9) == 1, "its column may have been of another type"
    assert kept(b'{"n":[1,2,0]}', tombstoned_ms=9) == 0, "the order of numbers does not depend on their width"


def test_a_later_column_is_null_in_older_parts(memory: Place) -> None:
    table = Table.create(memory.uri)
    table.insert([{"n": 1}])
    table.insert([{"n": 3, "late": 6}])
    table.alter(sort_by=["n", "late"])
    table.insert([{"n": 2, "late": 5}])
    assert table.query("SELECT n FROM t", where="late IS NULL").fetchall() == [(1,)]
    assert table.query("SELECT n FROM t", where="late IS DISTINCT FROM 6 AND n < 2").fetchall() == [(1,)]
    assert table.query("SELECT n FROM t", where="late = 5").fetchall() == [(2,)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_row_with_an_explicit_partition_matches_by_its_values(memory: Place) -> None:
    table = Table.create(memory.uri, partition_by=["day", "n % 10 AS k"])
    table.insert([{"day": "mon", "n": 1}, {"day": "tue", "n": 2, "_partition": "day=mon/k=1"}, {"day": "wed", "n": 3}])
    current = table.snapshot()
    assert current.query("SELECT n FROM t", where="day = 'tue'").fetchall() == [(2,)]
    assert current.query("SELECT n FROM t", where="day = 'tue' AND k = 1").fetchall() == [(2,)]
    assert current.query("SELECT n FROM t", where="n = 2").fetchall() == [(2,)]
    assert [p.partition for p in current.files("day = 'wed'")] == ["day=wed/k=3"], "by the statistics of such a column"
    assert current.partitions("day = 'mon'") == ["day=mon/k=1"]
    assert [p.partition for p in current.in_partitions("day = 'tue'")] == []


def test_partition_inputs_with_any_name_have_statistics(memory: Place) -> None:
    table = Table.create(memory.uri, partition_by=['"a"""', '"""b"', "S.c AS sc", "upper(d) AS e"])
    table.insert([{'a"': 1, '"b': 2, "a": 3, "b": 4, "s": {"c": 5}, "c": 6, "d": "x"}])
    [part] = table.snapshot().parts
    assert not isinstance(part.stats, msgspec.UnsetType)
    assert msgspec.json.decode(part.stats) == {'a"': [1, 1, 0], '"b': [2, 2, 0]}


def test_parts_of_an_older_partitioning_are_pruned_by_their_columns(memory: Place) -> None:
    table = Table.create(memory.uri, sort_by=["n"])
    for n in (1, 12, 23):
        table.insert([{"n": n}])
    table.alter(partition_by=["n // 10 AS tens"])
    table.insert([{"n": 24}])
    current = table.snapshot()
    assert len(current.files("tens = 2")) == 4
    assert len(current.files("tens = 2 AND n < 20")) == 2
    assert current.query("SELECT n FROM t ORDER BY n", where="tens = 2").fetchall() == [(23,), (24,)]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_predicate_over_final_is_applied_after_merging(memory: Place) -> None:
    table = Table.create(memory.uri, partition_by=["n % 2 AS odd"], sort_by=["n", "v"], merging=Dedup(by=("n",)))
    table.insert([{"n": 1, "v": 1}])
    table.insert([{"n": 1, "v": 2}, {"n": 4, "v": 2}])
    current = table.snapshot()
    [(kept,)] = current.query("SELECT v FROM final WHERE n = 1").fetchall()
    other = 3 - kept
    assert current.query("SELECT n FROM t", where=f"v = {other} AND n = 1").fetchall() == [(1,)]
    assert current.query("SELECT n FROM final", where=f"v = {other} AND n = 1").fetchall() == []
    assert current.query("SELECT n, v FROM final", where="n = 4").fetchall() == [(4, 2)]
    assert current.query("SELECT n, v FROM final", where="odd = 0").fetchall() == [(4, 2)]
    keys = current._prune(check_predicate("n = 4 AND v = 9", current.schema, {}, table="t"), merged=True)
    assert [p.partition for p in keys] == ["odd=0"]


def test_long_texts_have_short_bounds(memory: Place) -> None:
    texts = {
        "x" * 100: ("x" * TEXT_MAX, "x" * (TEXT_MAX - 1) + "y"),
        "x" * TEXT_MAX: ("x" * TEXT_MAX, "x" * TEXT_MAX),
        "a" * (TEXT_MAX - 1) + "\ud7ff!": ("a" * (TEXT_MAX - 1) + "\ud7ff", "a" * (TEXT_MAX - 1) + "\ue000"),
        "ab" + chr(0x10FFFF) * 90: ("ab" + chr(0x10FFFF) * (TEXT_MAX - 2), "ac"),
        chr(0x10FFFF) * 90: None,
    }
    for text, expected in texts.items():
        [[bounds]] = bounds_of([encode_statistics({"s": "VARCHAR"}, [text, text, "1"], 1)], {"s": "VARCHAR"})
        assert (bounds and bounds[:2]) == expected
        assert bounds is None or (bounds[0] <= text <= bounds[1])  # type: ignore[operator]
    both = encode_statistics({"s": "VARCHAR"}, ["a", "z" * 99, "2"], 2)
    assert bounds_of([both], {"s": "VARCHAR"}) == [[("a", "z" * (TEXT_MAX - 1) + "{", 0)]]


# ------------------------------------------------------------------------------------------ conditions of a query

PUSHED_DOWN = partial(pushed_down_predicate, table="t", columns=frozenset({"ts", "h", "v", "kind"}))


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("SELECT * FROM t WHERE ts = 42", 1),
        ("FROM t WHERE ts = 42", 1),
        ("SELECT count(*) FROM T AS x WHERE x.ts > 250 AND x.v = random()", 5),
        ("SELECT h, count(*) FROM t WHERE ts > 250 GROUP BY h HAVING count(*) > 1 ORDER BY 1 LIMIT 3", 5),
        ("WITH c AS (SELECT * FROM t WHERE ts < 20) SELECT * FROM c WHERE v = 1", 2),
        ("SELECT * FROM t WHERE ts = 42 UNION ALL SELECT * FROM t WHERE ts = 142", 2),
        ("SELECT * FROM t JOIN range(5) r(i) ON i = v WHERE ts < 20", 2),
        ("SELECT * FROM range(5) r(i), t WHERE t.ts < 20 AND i = t.v", 2),
        ("SELECT * FROM t LEFT JOIN range(3) r(i) ON i = v WHERE ts < 20", 2),
        ("SELECT * FROM t SEMI JOIN range(3) r(i) ON i = v WHERE ts < 20", 2),
        ("SELECT * FROM t a JOIN t b USING (ts) WHERE a.ts = 42 AND b.ts = 42", 1),
        ("SELECT (SELECT max(ts) FROM t WHERE ts < 20) AS m FROM t WHERE ts = 42", 3),
        ("SELECT *, row_number() OVER () FROM t WHERE ts = 42 QUALIFY row_number() OVER () = 1", 1),
    ],
)
def test_the_conditions_of_a_query_prune_parts(events: Table, sql: str, parts: int) -> None:
    current = events.snapshot()
    assert len(current._prune_by_query(sql, current.parts)) == parts
    if "random" not in sql:
        check_same_result(events, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT * FROM final WHERE ts = 1",
        "SELECT * FROM t WHERE ts = 1 UNION FROM t",
        "SELECT * FROM range(3) r(i) LEFT JOIN t ON i = v WHERE ts = 1",
        "SELECT * FROM t FULL JOIN t b USING (v) WHERE t.ts = 1",
        "SELECT * FROM t RIGHT JOIN range(3) r(i) ON i = v WHERE ts = 1",
        "SELECT * FROM t TABLESAMPLE 10% WHERE ts = 1",
        "SELECT * FROM t WHERE ts = 1 USING SAMPLE 3",
        "SELECT * FROM t POSITIONAL JOIN range(3) r WHERE ts = 1",
        "SELECT * FROM t AS x(a, ts) WHERE ts = 1",
        "SELECT v AS ts FROM t WHERE ts = 1",
        "SELECT * FROM main.t WHERE ts = 1",
        "WITH t AS (SELECT 1 AS ts) SELECT * FROM t WHERE ts = 1",
        "SELECT * FROM query_table('t') WHERE ts = 1",
        "SELECT * FROM t WHERE ts = (SELECT 1)",
        "SELECT * FROM t WHERE ts < random()",
        "SELECT * FROM t WHERE ts < epoch(now())",
        "SELECT 1 WHERE 1 IN (SELECT v FROM t WHERE v = ts + outside)",
        "SELECT * FROM (PIVOT t ON kind USING sum(v)) WHERE ts = 1",
        "DESCRIBE SELECT * FROM t WHERE ts = 1",
        "SELECT * FROM t WHERE ts = ?",
        "SELECT * FROM t, t b WHERE ts = 1",
        "SELECT * FROM t ts WHERE ts = 1",
        "SELECT * FROM t WHERE ts =",
        "SELECT 1; SELECT * FROM t WHERE ts = 1",
        "where",
        "SELECT * FROM range(5) r(ts) JOIN t USING (ts) WHERE ts = 1",
        "SELECT * FROM t WHERE COLUMNS('ts') = 1",
        "SELECT * FROM t ASOF JOIN range(3) r(i) ON ts >= i WHERE ts = 1",
        "SUMMARIZE SELECT * FROM t WHERE ts = 1",
    ],
)
def test_conditions_that_may_not_apply_to_the_table_prune_nothing(sql: str) -> None:
    assert PUSHED_DOWN(sql) is None


@st.composite
def queries(draw: Any) -> str:
    conditions = st.sampled_from(
        (
            "{t}ts < 40", "{t}ts IN (5, 42)", "{t}h = 1", "{t}v = 1", "{t}kind = 'a'", "{t}name >= 'n28'",
            "NOT {t}ts > 20", "{t}ts > 280 OR {t}ts < 10", "random() >= 0", "i = 1", "{t}f > i",
            "EXISTS (SELECT 1 FROM t z WHERE z.ts = {t}ts + 1)", "{t}ts = (SELECT max(ts) FROM t WHERE h = 1)",
            "{t}name IS NULL", "w = 1", "{t}h IS NOT NULL",
        )
    )  # fmt: skip
    where = " AND ".join(draw(st.lists(conditions, min_size=1, max_size=3)))
    qualified = draw(st.booleans())
    source = draw(
        st.sampled_from(
            (
                "t, (VALUES (1), (2)) r(i)",
                "t JOIN (VALUES (1), (2)) r(i) ON r.i = t.v",
                "t LEFT JOIN (VALUES (1)) r(i) ON r.i = t.v",
                "(VALUES (1)) r(i) LEFT JOIN t ON r.i = t.v",
                "t FULL JOIN (VALUES (7)) r(i) ON r.i = t.v",
                "t RIGHT JOIN (VALUES (1), (9)) r(i) ON r.i = t.v",
                "t ANTI JOIN (VALUES (1)) r(i) ON r.i = t.v",
                "(SELECT * FROM t WHERE ts < 100) t, (VALUES (1)) r(i)",
                "(VALUES (1, 3)) r(i, ts) JOIN t USING (ts)",
            )
        )
    )
    select = draw(st.sampled_from(("count(*), min(t.ts), max(t.ts)", "t.ts, t.kind", "t.ts AS w", "t.v AS h, t.ts")))
    return f"SELECT {select} FROM {source} WHERE {where.format(t='t.' if qualified else '')} ORDER BY ALL"


def check_same_result(table: Table, sql: str) -> None:
    """Compare the results with and without pruning by the conditions of the query."""

    def result() -> Any:
        try:
            return sorted(map(repr, table.query(sql).fetchall()))  # a join has no order
        except (duckdb.Error, InvalidQuery) as error:
            return type(error)

    pruned = result()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_PARTS_MIN", 10**9)
        assert pruned == result(), sql


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=10)
@given(sql=queries())
def test_a_pruned_query_has_the_result_over_all_parts(sql: str, events: Table) -> None:
    check_same_result(events, sql)


@pytest.mark.slow(seconds=60)
@settings(max_examples=150)
@given(sql=queries())
def test_a_pruned_query_has_the_result_over_all_parts_in_many_examples(sql: str, events: Table) -> None:
    check_same_result(events, sql)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_pruned_parts_are_not_fetched(s3: Place) -> None:
    table = Table.create(s3.uri, sort_by=["n"], storage_options=s3.storage_options)
    for n in range(3):
        table.insert([{"n": n}])
    current = table.snapshot()
    table.handle.store.delete([p.key for p in current.parts if p not in current.files("n = 1")])
    assert current.query("SELECT n FROM t", where="n = 1").fetchall() == [(1,)]


def _part(key: str, stats: Any, rows: int | None = 10) -> Part:
    raw = msgspec.UNSET if stats is None else msgspec.Raw(msgspec.json.encode(stats))
    return Part(key, key, "", bytes=1, rows=rows, created_ms=0, stats=raw)


def test_only_a_part_that_certainly_has_no_matching_row_is_pruned_whatever_its_statistics() -> None:
    parts = [
        _part("low", {"n": [1, 5, 0]}),
        _part("high", {"n": [10, 20, 3]}),
        _part("nulls", {"n": [None, None, 10]}),
        _part("uncounted", {"n": [None, None, 10]}, rows=None),
        _part("silent", None),
        _part("other", {"m": [1, 2, 0]}),
        _part("strange", {"n": ["a", "b", 0]}),
        _part("broken", {"n": 5}),
    ]

    def kept(condition: str) -> set[str]:
        predicate = check_predicate(condition, {"n": "BIGINT"}, {}, table="t")
        return {p.key for p in prune_parts(parts, predicate.tree, {"n": "BIGINT"}, {})}

    always = {"uncounted", "silent", "other", "strange", "broken"}
    assert kept("n > 7") == always | {"high"}
    assert kept("n < 7") == always | {"low"}
    assert kept("n IS NULL") == always | {"high", "nulls"}
    assert kept("n IS NOT NULL") == always | {"low", "high"}
    assert kept("n > 1000") == always
