"""TPC-H on our tables, beside views of the same Parquet files: 22 unchanged queries, with a check of each result.

Two layouts: lineitem and orders in ten batches, sorted by date; and all tables merged to one part each.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import duckdb

from benchmarks.harness.connections import connected, load_extension
from benchmarks.harness.rounds import Case, Result, Work
from icedb import Table
from icedb.engines.duckdb.attached_tables import attach
from icedb.reader.scan_sql import relation
from icedb.reader.snapshot import Snapshot
from icedb.sql.connections import quote_text

__all__ = [
    "ATTACHED",
    "BARE",
    "GOAL",
    "SCALES",
    "TpchTables",
    "Ratios",
    "cases",
    "check_answer",
    "make_layouts",
    "ratios",
]

#: The scale factors for which the extension has results.
SCALES = (0.01, 0.1, 1.0)
GOAL = 1.05

BARE = "bare files"
# A refresh with each query, or one for all queries.
ATTACHED, SNAPSHOT = "attached table", "snapshot"

BATCHES = 10
# The results of the extension have that many digits, or fewer.
TOLERANCE = 1e-2

_TABLES = ("lineitem", "orders", "customer", "part", "partsupp", "supplier", "nation", "region")
_DATES = {"lineitem": ("l_orderkey", "l_shipdate"), "orders": ("o_orderkey", "o_orderdate")}
_UNSYNCED = {"fsync": "false"}

_Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TpchTables:
    """Tables in a folder, a connection for each way to read them, and the queries with their results."""

    name: str
    parts: int
    connections: dict[str, duckdb.DuckDBPyConnection]
    questions: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Ratios:
    """Times of tables beside those of their bare files.

    `seconds` has the medians of the bare files and of the tables, by query. `rounds` has the ratio of all queries in
    each round, `processor` the ratio of the median processor times.
    """

    layout: str
    way: str
    parts: int
    seconds: dict[int, tuple[float, float]]
    rounds: list[float]
    processor: float

    @property
    def queries(self) -> dict[int, float]:
        """The ratio of the medians of each query."""
        return {number: ours / bare for number, (bare, ours) in self.seconds.items()}

    @property
    def total(self) -> float:
        """The ratio of the sums of the medians."""
        return sum(ours for _, ours in self.seconds.values()) / sum(bare for bare, _ in self.seconds.values())

    @property
    def geometric_mean(self) -> float:
        """The geometric mean of the queries' ratios."""
        return math.exp(sum(map(math.log, self.queries.values())) / len(self.queries))

    @property
    def median(self) -> float:
        """The greatest ratio of a query."""
        return median(self.queries.values())


@contextmanager
def make_layouts(folder: Path, scale: float) -> Iterator[list[TpchTables]]:
    """Create the rows and the tables in an empty folder. The connections are closed after the block."""
    batches, merged = folder / "batches", folder / "merged"
    with connected() as con:
        load_extension(con, "tpch")
        con.execute(f"CALL dbgen(sf = {scale})")
        for name in _TABLES:
            _fill(con, name, batches)
        questions = con.execute(
            "SELECT query_nr, query, answer FROM tpch_queries() JOIN tpch_answers() USING (query_nr) "
            "WHERE abs(scale_factor / ? - 1) < 1e-6 ORDER BY query_nr",
            [scale],
        ).fetchall()
    shutil.copytree(batches, merged, copy_function=os.link)  # files are never changed in place
    for name in _TABLES:
        Table.open(merged / name, storage_options=_UNSYNCED).merge()
    by_number = {number: (query, answer) for number, query, answer in questions}
    with ExitStack() as stack:
        yield [
            _layout(name, path, {way: stack.enter_context(connected()) for way in _GIVE}, by_number)
            for name, path in ((f"{BATCHES} batches", batches), ("merged", merged))
        ]


def _fill(con: duckdb.DuckDBPyConnection, name: str, folder: Path) -> None:
    key, date = _DATES.get(name, ("", ""))
    table = Table.create(folder / name, sort_by=[date] if date else [], storage_options=_UNSYNCED)
    for number in range(BATCHES) if key else [0]:
        # Keys of orders are in runs of eight, with gaps of 24.
        chosen = f"WHERE ({key} // 32) % {BATCHES} = {number}" if key else ""
        table.insert(con.sql(f"SELECT * FROM {name} {chosen}"))


def _layout(
    name: str,
    folder: Path,
    connections: dict[str, duckdb.DuckDBPyConnection],
    questions: dict[int, tuple[str, str]],
) -> TpchTables:
    parts = 0
    for table in _TABLES:
        snapshot = Table.open(folder / table, storage_options=_UNSYNCED).snapshot()
        parts += len(snapshot.parts)
        for way, con in connections.items():
            _GIVE[way](con, snapshot, table)
    return TpchTables(name, parts, connections, questions)


def _give_bare(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    paths = ", ".join(quote_text(p.path) for p in snapshot.parts)
    con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{paths}])")


def _give_snapshot(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    rows = relation(snapshot.handle, snapshot.parts, snapshot.schema, snapshot.partition_schema)
    con.execute(f"CREATE VIEW {name} AS {rows}")


def _give_attached(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    attach(con, snapshot.table, name)


_GIVE = {BARE: _give_bare, SNAPSHOT: _give_snapshot, ATTACHED: _give_attached}


def cases(layouts: Sequence[TpchTables]) -> list[Case]:
    """Return a case for each query, layout and way, so that bare files and tables take turns."""
    return [
        Case(_group(layout, number), way, partial(_warmed, con, number, sql, answer))
        for layout in layouts
        for number, (sql, answer) in layout.questions.items()
        for way, con in layout.connections.items()
    ]


@contextmanager
def _warmed(con: duckdb.DuckDBPyConnection, number: int, sql: str, answer: str) -> Iterator[Work]:
    """Run the query once before it is timed, so that the first way does not warm the files for the other."""
    check_answer(con.execute(sql).fetchall(), answer, number)

    def work() -> Callable[[], None]:
        con.execute(sql).fetchall()
        return lambda: None

    yield work


def check_answer(rows: Sequence[tuple[object, ...]], answer: str, number: int) -> None:
    """Raise AssertionError unless the rows equal the text of a result: a header, then rows with `|` between values.

    Numbers may differ by rounding, and rows that the query does not order may be in any order.
    """
    expected = sorted((tuple(line.split("|")) for line in answer.splitlines()[1:]), key=_rough)
    actual = sorted((tuple("" if v is None else str(v) for v in row) for row in rows), key=_rough)
    if len(actual) != len(expected):
        raise AssertionError(f"query {number} has {len(actual)} rows instead of {len(expected)}")
    for ours, theirs in zip(actual, expected, strict=True):
        if not _same(ours, theirs):
            raise AssertionError(f"query {number} has the row {ours} instead of {theirs}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rough(row: _Row) -> list[str]:
    return [text if (value := _number(text)) is None else f"{value:.0f}" for text in row]


def _same(ours: _Row, theirs: _Row) -> bool:
    if len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        a, b = _number(one), _number(other)
        if one != other and (a is None or b is None or not math.isclose(a, b, rel_tol=1e-9, abs_tol=TOLERANCE)):
            return False
    return True


def ratios(layouts: Sequence[TpchTables], results: Sequence[Result]) -> list[Ratios]:
    """Return the ratios by layout and way."""
    of = {(r.case.group, r.case.name): r for r in results}

    def of_way(layout: TpchTables, way: str) -> Ratios:
        bare, ours = ([of[_group(layout, n), w] for n in layout.questions] for w in (BARE, way))
        sums = [[sum(s) for s in zip(*(r.seconds for r in results), strict=True)] for results in (bare, ours)]
        return Ratios(
            layout.name,
            way,
            layout.parts,
            {n: (b.median_seconds, o.median_seconds) for n, b, o in zip(layout.questions, bare, ours, strict=True)},
            [of_round / beside for beside, of_round in zip(*sums, strict=True)],
            _processor(ours) / _processor(bare),
        )

    return [of_way(layout, way) for layout in layouts for way in layout.connections if way != BARE]


def _processor(results: Sequence[Result]) -> float:
    return sum(median(r.processor_seconds) for r in results)


def _group(layout: TpchTables, number: int) -> str:
    return f"{layout.name}, query {number}"
