"""Predicates against brute force: a part with a row for which a predicate is true is never pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icedb.reader.bounds_evaluator import bounds_condition
from icedb.reader.part_pruning import prune_parts
from icedb.sql.column_stats import encode_statistics, figures_sql
from icedb.sql.connections import connect_sandbox
from icedb.sql.predicates import check_predicate
from icedb.storage.parts import Part

LONG = "ж" * 70
ZEROS = "0000000-0000-0000-0000-000000000000"
#: Column -> its type, and values of it as SQL.
POOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "i": ("BIGINT", ("-9223372036854775808", "-3", "0", "1", "2", "3", "9007199254740993", "9223372036854775807")),
    "u": ("UBIGINT", ("0", "1", "9007199254740993", "18446744073709551615")),
    "y": ("TINYINT", ("-128", "-1", "0", "1", "127")),
    "f": ("DOUBLE", (
        "'-infinity'", "-1.5", "'-0.0'", "0.0", "0.1", "1e300", "9007199254740992", "'infinity'", "'nan'",
    )),
    "g": ("FLOAT", ("-1.5", "0.1", "0.3", "16777216", "'nan'")),
    "s": ("VARCHAR", (
        "''", "'a'", "'A'", "'ab'", "'a%b'", "'b'", "'é'", "chr(55295)", "chr(57344)", "chr(1114111)", "'10'",
        "'9'", f"'{LONG}'", f"'{LONG}x'", f"'{'ж' * 63}я'", "repeat(chr(1114111), 70)", "'2026-01-01'",
    )),
    "d": ("DATE", ("'0044-03-15 (BC)'", "'1969-12-31'", "'2026-01-01'", "'2026-01-02'", "'10000-01-01'", "'infinity'")),
    "m": ("TIMESTAMP", (
        "'-infinity'", "'2026-01-01'", "'2026-01-01 23:59:59.999999'", "'2026-02-01'", "'12026-01-01'",
    )),
    "z": ("TIMESTAMPTZ", ("'1969-12-31 23:00:00+00'", "'2026-01-01 00:00:00+00'", "'2026-01-01 12:00:00+14'")),
    "b": ("BOOLEAN", ("true", "false")),
    "x": ("UUID", (f"'0{ZEROS}'", f"'8{ZEROS}'", f"'f{ZEROS.replace('0', 'f')}'")),
    "n": ("TIME", ("'00:00:00'", "'12:30:00.5'", "'24:00:00'")),
}  # fmt: skip
COLUMNS = {name: type_ for name, (type_, _) in POOLS.items()}
PATHS = {"p": "BIGINT", "q": "VARCHAR"}
PARTS = 6
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
#: Expressions over a column, and what they may be compared with.
SHAPES = (
    ("{c}::DATE", "dmz", ("DATE '2026-01-01'", "'2026-01-02'", "TIMESTAMP '2026-01-01 12:00:00'")),
    ("date_trunc('month', {c})", "dmz", ("DATE '2026-01-01'", "'2026-02-01'")),
    ("date_trunc('decade', {c})", "dm", ("DATE '2020-01-01'",)),
    ("{c}::DOUBLE", "iuyfg", ("0.1", "9007199254740992", "1")),
    ("{c}::FLOAT", "iuyfg", ("0.1", "16777217", "1")),
    ("{c}::BIGINT", "iyfg", ("0", "2", "9007199254740993")),
    ("{c}::VARCHAR", "iuyfgdmb", ("'1'", "'2026-01-01'", "'9'")),
    ("TRY_CAST({c} AS TINYINT)", "iuyfgs", ("0", "1", "127")),
    ("lower({c})", "s", ("'a'", "'ab'")),
    ("{c} COLLATE NOCASE", "s", ("'A'", "'b'")),
    ("abs({c})", "ify", ("1", "3")),
    ("-{c}", "yfg", ("1", "0.1")),
    ("length({c})", "s", ("1", "70")),
    ("coalesce({c}, 1)", "iuyfg", ("1", "2")),
    ("{c}", "iuyfg", (
        "1", "0.1", "2.5", "300", "1e3", "9007199254740992.0", "-1::HUGEINT", "p", "NULL", "0.1::FLOAT",
        "1.5::DECIMAL(4, 2)", "18446744073709551616",
    )),
    ("{c}", "s", ("q", "'a' || 'b'", "'A' COLLATE NOCASE", "NULL", "9", "DATE '2026-01-01'", "chr(97)")),
    ("{c}", "dmz", (
        "DATE '2026-01-01'", "TIMESTAMP '2026-01-01 12:00:00'", "TIMESTAMPTZ '2026-01-01 00:00:00+00'",
        "'2026-01-01'::VARCHAR", "NULL", "TIMESTAMP_NS '2026-01-01 00:00:00.000000001'",
    )),
    ("{c}", "b", ("true", "'t'", "1", "NULL", "p")),
)  # fmt: skip


@st.composite
def comparisons(draw: Any) -> str:
    if draw(st.booleans()):
        name = draw(st.sampled_from([*POOLS]))
        left, right = name, draw(st.sampled_from(POOLS[name][1]))
    else:
        shape, names, constants = draw(st.sampled_from(SHAPES))
        left, right = shape.format(c=draw(st.sampled_from(names))), draw(st.sampled_from(constants))
    if draw(st.booleans()):
        left, right = right, left
    return f"({left}) {draw(st.sampled_from(OPERATORS))} ({right})"


@st.composite
def others(draw: Any) -> str:
    name = draw(st.sampled_from([*POOLS]))
    values = draw(st.lists(st.sampled_from((*POOLS[name][1], "NULL")), min_size=1, max_size=3))
    two = [draw(st.sampled_from(POOLS[name][1])) for _ in range(2)]
    prefix = draw(st.sampled_from(("", "a", "ab", "a%b", "é", "a_", "%b", LONG, LONG + "x", chr(0xD7FF), "a\\")))
    no = draw(st.sampled_from(("", "NOT ")))
    number = draw(st.sampled_from("iuyfg"))
    conditions = (
        f"{name} IS {no}NULL", f"{name} {no}IN ({', '.join(values)})",
        f"{name} {no}BETWEEN {two[0]} AND {two[1]}", f"{number} {no}IN (1, 2.5, 9007199254740993)",
        f"{number} {no}IN (9007199254740993, 1e0)", f"{number} {no}BETWEEN 0.1 AND 9007199254740992",
        f"{name} {no}IN ({', '.join([*POOLS[name][1]] * 6)})", f"s {no}LIKE '{prefix}%'",
        f"s {no}LIKE '{prefix}'", f"s {no}ILIKE '{prefix}%'", f"{no}starts_with(s, '{prefix}')",
        f"{no}(s ^@ '{prefix}')", f"{no}contains(s, '{prefix}')", f"s {no}LIKE 'a$%%' ESCAPE '$'",
        f"{no}b", "b IS TRUE", "b IS NOT FALSE", "b IS NOT TRUE", "(b) = (i > 1)", "i = y", "f < g",
        "i = p", "s > q", "NULL::BOOLEAN", "true", "1 = 2", f"p {no}IN (1, NULL)", "q = 'a'", "p > i",
        "q IS NULL", "p::VARCHAR || q = '1a'", f"CASE WHEN p = 1 THEN {name} IS NULL ELSE q = 'b' END",
        f"coalesce({name} IS NULL, false)", "t.i = 3", "T.P = 1", "I > 2 and Q < 'b'", "(i = 1) IS NULL",
        "list_contains([1, 2], p)", "list_filter([p], k -> k > 1) = [2]", "i + p = 3",
        "TRY_CAST(q AS INT) IS NULL",
    )  # fmt: skip
    return str(draw(st.sampled_from(conditions)))


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = st.lists(inner, min_size=2, max_size=3)
    return (
        some.map(lambda t: f"({' AND '.join(t)})")
        | some.map(lambda t: f"({' OR '.join(t)})")
        | inner.map(lambda t: f"(NOT {t})")
    )


PREDICATES = st.recursive(comparisons() | others().map(lambda t: f"({t})"), joined, max_leaves=5)


@st.composite
def rows_of_parts(draw: Any) -> list[tuple[str, str, list[list[str]]]]:
    """Draw the path values and the rows of some parts. A part has few values, so that its bounds are narrow."""
    parts = []
    for _ in range(PARTS):
        few = {
            c: draw(st.lists(st.sampled_from((*pool, "NULL")), min_size=1, max_size=2))
            for c, (_, pool) in POOLS.items()
        }
        rows = [[draw(st.sampled_from(few[c])) for c in POOLS] for _ in range(draw(st.integers(1, 3)))]
        parts.append((draw(st.sampled_from(("1", "2", "NULL"))), draw(st.sampled_from(("'a'", "'b'", "NULL"))), rows))
    return parts


class BoundedParts:
    """Parts with the statistics of the log, and their rows in a table."""

    def __init__(self, parts: list[tuple[str, str, list[list[str]]]]) -> None:
        self.con = connect_sandbox()
        columns = ", ".join(f"{c} {t}" for c, t in {**COLUMNS, **PATHS, "part": "INTEGER"}.items())
        self.con.execute(f"CREATE TABLE t ({columns})")
        values = [f"({', '.join([*row, p, q, str(n)])})" for n, (p, q, rows) in enumerate(parts) for row in rows]
        self.con.execute(f"INSERT INTO t VALUES {', '.join(values)}")
        self.parts = [self._part(n) for n in range(len(parts))]

    def _part(self, n: int) -> Part:
        [(rows, figures, p, q)] = self.con.execute(
            f"SELECT count(*), {figures_sql(COLUMNS)}, any_value(p), any_value(q) FROM t WHERE part = {n}"
        ).fetchall()
        null = "__HIVE_DEFAULT_PARTITION__"
        return Part(
            key=str(n),
            path=str(n),
            partition=f"p={null if p is None else p}/q={null if q is None else q}",
            bytes=1,
            rows=rows,
            created_ms=1,
            stats=encode_statistics(COLUMNS, figures, rows),
        )

    def kept(self, predicate: str) -> set[int]:
        checked = check_predicate(predicate, COLUMNS, PATHS, table="lake")
        return {int(p.key) for p in prune_parts(self.parts, checked.tree, COLUMNS, PATHS)}

    def holding(self, predicate: str) -> set[int] | None:
        """Return the parts with a matching row, or None if the query fails."""
        try:
            return {n for (n,) in self.con.execute(f"SELECT DISTINCT part FROM t WHERE ({predicate})").fetchall()}
        except duckdb.Error:
            return None


def check_against_brute_force(parts: list[tuple[str, str, list[list[str]]]], predicates: list[str]) -> None:
    bounded = BoundedParts(parts)
    with bounded.con:
        for predicate in predicates:
            holding = bounded.holding(predicate)
            if holding is not None:
                assert holding <= bounded.kept(predicate), predicate


@pytest.mark.sampled(days=3)
@pytest.mark.long
@settings(max_examples=8)
@given(rows_of_parts(), st.lists(PREDICATES, min_size=5, max_size=5))
def test_no_part_with_a_matching_row_is_pruned(parts: Any, predicates: list[str]) -> None:
    check_against_brute_force(parts, predicates)


@pytest.mark.slow(seconds=60)
@settings(max_examples=60)
@given(rows_of_parts(), st.lists(PREDICATES, min_size=8, max_size=8))
def test_no_part_with_a_matching_row_is_pruned_in_many_examples(parts: Any, predicates: list[str]) -> None:
    check_against_brute_force(parts, predicates)


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("column", [*POOLS])
def test_each_value_of_each_type_is_found_by_each_comparison(column: str) -> None:
    pool = (*POOLS[column][1], "NULL")
    nulls = dict.fromkeys(POOLS, "NULL")
    parts = [("1", "'a'", [[*{**nulls, column: value}.values()]]) for value in pool]
    check_against_brute_force(parts, [f"{column} {o} {v}" for o in OPERATORS for v in pool])


@pytest.mark.long
def test_conditions_that_bounds_cannot_decide_are_omitted() -> None:
    def condition(predicate: str) -> str:
        checked = check_predicate(predicate, COLUMNS, PATHS, table="lake")
        with connect_sandbox() as con:
            return bounds_condition(con, checked.tree, COLUMNS, PATHS).sql

    numbers = ", ".join(map(str, range(100)))
    for undecided in ("lower(s) = 'a'", "abs(i) = 1 AND length(s) = 2", f"NOT (abs(i) = 1 AND i NOT IN ({numbers}))"):
        assert condition(undecided) == condition(f"i = 1 OR ({undecided})") == "true"
        assert condition(f"i = 1 AND ({undecided})").count("has_bounds") == 1
    assert condition(f"i NOT IN ({numbers})") == "true"


# ------------------------------------------------------------------------------------------ many parts


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_hundred_thousand_parts_are_pruned_in_one_query() -> None:
    def many() -> Iterator[Part]:
        for n in range(100_000):
            stats = msgspec.Raw(b'{"i":[%d,%d,0],"s":["a%d","b",1]}' % (n, n + 5, n))
            yield Part(str(n), str(n), f"p={n % 1000}/q=a", 1, 5, 1, None, stats)

    parts = list(many())
    tree = check_predicate("p = 7 OR i > 99995", COLUMNS, PATHS, table="lake").tree
    assert len(prune_parts(parts, tree, COLUMNS, PATHS)) == 100 + 9
