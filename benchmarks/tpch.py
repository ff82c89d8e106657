"""TPC-H on tables of ours, beside views of the very same Parquet files: 22 queries as they are, each answer compared.

Two layouts: lineitem and orders as ten batches left them, sorted by date, and all tables merged to one part each.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import duckdb

from benchmarks.rounds import Case, Result, Work
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
    "Layout",
    "Ratios",
    "cases",
    "check_answer",
    "connected",
    "make_layouts",
    "ratios",
]

#: Those for which the extension knows the answers.
SCALES = (0.01, 0.1, 1.0)
GOAL = 1.05

BARE = "bare files"
# A look at the log with each query, or one look for all of them.
ATTACHED, SNAPSHOT = "attached table", "snapshot"

BATCHES = 10
# Answers are printed with that many digits, or fewer.
TOLERANCE = 1e-2

_TABLES = ("lineitem", "orders", "customer", "part", "partsupp", "supplier", "nation", "region")
_DATES = {"lineitem": ("l_orderkey", "l_shipdate"), "orders": ("o_orderkey", "o_orderdate")}
_UNSYNCED = {"fsync": "false"}

_Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Tables in a folder, and a connection for each way to know them. A question is SQL and its answer."""

    name: str
    parts: int
    connections: dict[str, duckdb.DuckDBPyConnection]
    questions: dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Ratios:
    """Times of tables beside those of their bare files.

    `seconds` has both, medians of the bare files first, by query. Of all queries, `rounds` has the ratio of each round,
    and `processor` that of the medians of what the process computed.
    """

    layout: str
    way: str
    parts: int
    seconds: dict[int, tuple[float, float]]
    rounds: list[float]
    processor: float

    @property
    def queries(self) -> dict[int, float]:
        """Of the medians."""
        return {number: ours / bare for number, (bare, ours) in self.seconds.items()}

    @property
    def total(self) -> float:
        """Of the sums of the medians."""
        return sum(ours for _, ours in self.seconds.values()) / sum(bare for bare, _ in self.seconds.values())

    @property
    def geometric_mean(self) -> float:
        """Of the queries, each as heavy as the others."""
        return math.exp(sum(map(math.log, self.queries.values())) / len(self.queries))

    @property
    def median(self) -> float:
        """Of the queries."""
        return median(self.queries.values())


@contextmanager
def make_layouts(folder: Path, scale: float) -> Iterator[list[Layout]]:
    """Make the rows, and the tables below a folder, which is empty; the connections are closed with the block."""
    batches, merged = folder / "batches", folder / "merged"
    with connected() as con:
        con.execute(f"LOAD {quote_text(str(_extension()))}")
        con.execute(f"CALL dbgen(sf = {scale})")
        for name in _TABLES:
            _fill(con, name, batches)
        questions = con.execute(
            "SELECT query_nr, query, answer FROM tpch_queries() JOIN tpch_answers() USING (query_nr) "
            "WHERE abs(scale_factor / ? - 1) < 1e-6 ORDER BY query_nr",
            [scale],
        ).fetchall()
    shutil.copytree(batches, merged, copy_function=os.link)  # nothing of a table is ever changed in its place
    for name in _TABLES:
        Table.open(merged / name, storage_options=_UNSYNCED).merge()
    by_number = {number: (query, answer) for number, query, answer in questions}
    with ExitStack() as stack:
        yield [
            _layout(name, path, {way: stack.enter_context(connected()) for way in _GIVE}, by_number)
            for name, path in ((f"{BATCHES} batches", batches), ("merged", merged))
        ]


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """To a database in memory that knows nothing yet."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        yield con


def _extension() -> Path:
    """The file in its wheel, which is nothing but that file."""
    wheel = find_spec("duckdb_extension_tpch")
    if wheel is None or not wheel.submodule_search_locations:
        raise SystemExit(f"TPC-H is needed: pip install duckdb-extension-tpch=={duckdb.__version__}")
    return Path(wheel.submodule_search_locations[0], "extensions", f"v{duckdb.__version__}", "tpch.duckdb_extension")


def _fill(con: duckdb.DuckDBPyConnection, name: str, folder: Path) -> None:
    key, date = _DATES.get(name, ("", ""))
    table = Table.create(folder / name, sort_by=[date] if date else [], storage_options=_UNSYNCED)
    for number in range(BATCHES) if key else [0]:
        # Keys of orders come in runs of eight, and then 24 are left out.
        chosen = f"WHERE ({key} // 32) % {BATCHES} = {number}" if key else ""
        table.insert(con.sql(f"SELECT * FROM {name} {chosen}"))


def _layout(
    name: str,
    folder: Path,
    connections: dict[str, duckdb.DuckDBPyConnection],
    questions: dict[int, tuple[str, str]],
) -> Layout:
    parts = 0
    for table in _TABLES:
        snapshot = Table.open(folder / table, storage_options=_UNSYNCED).snapshot()
        parts += len(snapshot.parts)
        for way, con in connections.items():
            _GIVE[way](con, snapshot, table)
    return Layout(name, parts, connections, questions)


def _give_bare(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    paths = ", ".join(quote_text(p.path) for p in snapshot.parts)
    con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{paths}])")


def _give_snapshot(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    rows = relation(snapshot.handle, snapshot.parts, snapshot.schema, snapshot.partition_schema)
    con.execute(f"CREATE VIEW {name} AS {rows}")


def _give_attached(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    attach(con, snapshot.table, name)


_GIVE = {BARE: _give_bare, SNAPSHOT: _give_snapshot, ATTACHED: _give_attached}


def cases(layouts: Sequence[Layout]) -> list[Case]:
    """Each query of each layout, on the bare files and on the tables in turn."""
    return [
        Case(_group(layout, number), way, partial(_asked, con, number, sql, answer))
        for layout in layouts
        for number, (sql, answer) in layout.questions.items()
        for way, con in layout.connections.items()
    ]


@contextmanager
def _asked(con: duckdb.DuckDBPyConnection, number: int, sql: str, answer: str) -> Iterator[Work]:
    """The query was asked once before it is timed, so whoever comes first does not warm the files for the other."""
    check_answer(con.execute(sql).fetchall(), answer, number)

    def work() -> Callable[[], None]:
        con.execute(sql).fetchall()
        return lambda: None

    yield work


def check_answer(rows: Sequence[tuple[object, ...]], answer: str, number: int) -> None:
    """Raise AssertionError unless the rows are those of an answer as text: a header, then rows, `|` between values.

    Numbers may differ by rounding, and rows that the query does not tell apart may be in any order.
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


def ratios(layouts: Sequence[Layout], results: Sequence[Result]) -> list[Ratios]:
    """What the cases took, by layout and way."""
    of = {(r.case.group, r.case.name): r for r in results}

    def of_way(layout: Layout, way: str) -> Ratios:
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


def _group(layout: Layout, number: int) -> str:
    return f"{layout.name}, query {number}"
