"""Upserts beside deltalake's merge and DuckLake's MERGE INTO: the same rows in the same files, and the same batch.

Half of the rows of a batch are in the table, the others are new. The keys are in the order of the files (clustered), or
in a random order (scattered), so that each file can have each key. Opening the table is included. Each result is
checked. In a folder, and over a network.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, WriterProperties

from benchmarks.harness.connections import connected, load_extension
from benchmarks.harness.figures import OURS, Check, Finding, Plan, Step, Way, ratio_to
from benchmarks.harness.rounds import Case, Footprint, Work, run_rounds
from benchmarks.harness.slow_store import SlowStore, s3_server, slow
from benchmarks.writes.peers import DELTALAKE, DUCKLAKE, UNSYNCED, WRITERS, ZSTD_LEVEL, Layout, TablePlace, connected_to
from benchmarks.writes.table_copies import TableCopies
from icedb import Table
from icedb.sql.connections import quote_text

__all__ = ["GOAL", "measure"]

#: The rows of the table, in `DAYS` partitions of `APPENDS` files each.
ROWS, ROWS_FULL = 2_000_000, 10_000_000
DAYS, APPENDS = 30, 10
#: The rows of a batch for each `ROWS_FULL` rows of the table.
BATCHES = (1_000, 100_000, 1_000_000)
NETWORK_ROWS, NETWORK_DAYS, NETWORK_APPENDS = 300_000, 6, 5
GOAL = 1.0

_WHY = (
    "by profile, a third of the processor time finds the rows in the key columns of all files that can have them, a "
    "third rewrites files, and a third types, sorts and encodes the batch. deltalake does not sort what it writes"
)

#: Returns all rows of the table, to check them.
Rows = Callable[[], pa.Table]
#: A context around the upsert of a batch into a table.
Upsert = Callable[[TablePlace, pa.Table], AbstractContextManager[Callable[[], Rows]]]

_LAYOUT = Layout("CAST(ts AS DATE)", "day", ("id",), pl.col("ts").dt.date())
_COLUMNS = "id, ts, user_id, event, amount, page"


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """Measure the rows about upserts."""
    if not plan.wants("upsert"):
        return []
    return [*_local(plan, folder / "local", on_step), *_network(plan, folder / "s3", on_step)]


# ------------------------------------------------------------------------------------------ the ways


@contextmanager
def _icedb(place: TablePlace, batch: pa.Table, *, fsync: bool = True) -> Iterator[Callable[[], Rows]]:
    def upsert() -> Rows:
        table = Table.open(place.uri, storage_options=dict(place.options) or {"fsync": str(fsync).lower()})
        table.upsert(batch, on=["id"])
        return lambda: table.query(f"SELECT {_COLUMNS} FROM t").to_arrow()

    yield upsert


@contextmanager
def _deltalake(place: TablePlace, batch: pa.Table) -> Iterator[Callable[[], Rows]]:
    more = {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"} if place.options else {}
    with connected() as con:
        con.register("rows", batch)
        rows = con.sql(_LAYOUT.query()).to_arrow_table()

    def upsert() -> Rows:
        table = DeltaTable(place.uri, storage_options=dict(place.options) | more)
        merge = table.merge(
            rows,
            predicate="t.id = s.id",
            source_alias="s",
            target_alias="t",
            writer_properties=WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL),
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return lambda: _read(place, table.file_uris())

    yield upsert


def _read(place: TablePlace, paths: Sequence[str]) -> pa.Table:
    files = f"[{', '.join(map(quote_text, paths))}]"
    with connected_to(place) as con:
        return con.sql(f"SELECT {_COLUMNS} FROM read_parquet({files}, hive_partitioning = false)").to_arrow_table()


@contextmanager
def _ducklake(place: TablePlace, batch: pa.Table) -> Iterator[Callable[[], Rows]]:
    with connected_to(place) as con:
        load_extension(con, "ducklake")
        con.register("rows", batch)

        def upsert() -> Rows:
            con.execute(f"ATTACH {quote_text(f'ducklake:{place.beside}/catalog.ducklake')} AS lake")
            con.execute(
                f"MERGE INTO lake.t USING ({_LAYOUT.query()}) AS s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"
            )
            return lambda: con.execute(f"SELECT {_COLUMNS} FROM lake.t").to_arrow_table()

        yield upsert


#: The writer of each way's table, and its upsert.
WAYS: Mapping[str, tuple[str, Upsert]] = {
    OURS: (UNSYNCED, _icedb),
    UNSYNCED: (UNSYNCED, partial(_icedb, fsync=False)),
    DELTALAKE: (DELTALAKE, _deltalake),
    DUCKLAKE: (DUCKLAKE, _ducklake),
}


# ------------------------------------------------------------------------------------------ rows


def _key(clustered: bool) -> str:
    return "i" if clustered else "(hash(i, 6) >> 1)::BIGINT"


def _rows(where: str, *, of: int, days: int, clustered: bool, amount: str = "(hash(i, 4) % 10000) / 100.0") -> pa.Table:
    """Return the rows with the numbers `i` for which a condition is true, of a table of `of` rows and as many more."""
    with connected() as con:
        return con.sql(
            f"SELECT {_key(clustered)} AS id, "
            f"TIMESTAMP '2026-10-01' + to_milliseconds((i % {of} * {days * 86_400_000} // {of})::BIGINT) AS ts, "
            "(hash(i, 2) % 400000)::BIGINT AS user_id, "
            "['view', 'click', 'buy', 'login', 'error'][1 + (hash(i, 3) % 5)::INT] AS event, "
            f"CAST({amount} AS DOUBLE) AS amount, 'https://example.com/' || (hash(i, 5) % 1000) AS page "
            f"FROM range({2 * of}) r(i) WHERE {where}"
        ).to_arrow_table()


# ------------------------------------------------------------------------------------------ in turns


@dataclass(slots=True)
class _Upserts:
    """Upserts of one batch. Each way has a new copy of its table in each round."""

    folder: Path
    rows: int
    days: int
    appends: int
    clustered: bool
    #: The delaying proxy, and the address of the S3 server. None: tables are in a folder.
    store: tuple[SlowStore, str] | None = None
    #: Requests by way and kind.
    requests: dict[str, float] = field(default_factory=dict)
    _copies: TableCopies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = TableCopies(self.folder, self._write, self.store)

    def measured(self, group: str, batch_rows: int, names: Sequence[str], plan: Plan, on_step: Step) -> list[Way]:
        """Measure the seconds of each way in each round."""
        batch, checked = self._batch(max(2, batch_rows)), set[str]()
        cases = [Case(group, name, partial(self._ready, name, batch, checked)) for name in names]
        results = run_rounds(cases, plan.rounds_beside(), on_step=on_step, only_reads=True)
        return [Way(r.case.name, r.seconds) for r in results]

    def _batch(self, rows: int) -> pa.Table:
        """Return rows of which one half has keys of the table, spread over it, and other values."""
        half = rows // 2
        step = max(1, self.rows // half)
        stored = f"i < {self.rows} AND i % {step} = 0 AND i // {step} < {half}"
        new = f"i BETWEEN {self.rows} AND {self.rows + half - 1}"
        return _rows(f"({stored}) OR ({new})", of=self.rows, days=self.days, clustered=self.clustered, amount="-1")

    @contextmanager
    def _ready(self, name: str, batch: pa.Table, checked: set[str]) -> Iterator[Work]:
        """Yield the upsert of a way into its table."""
        writer, way = WAYS[name]
        with self._copies.table(writer) as (place, _), way(place, batch) as upsert:

            def work() -> Callable[[], Footprint | None]:
                rows = upsert()
                return partial(self._look, name, rows, batch, checked)

            if self.store is not None:
                self.store[0].reset()
            os.sync()  # pending writes of other ways must not slow this one
            yield work

    def _write(self, writer: str, place: TablePlace) -> None:
        with WRITERS[writer](place, _LAYOUT) as append:
            for n in range(self.appends):
                where = f"i < {self.rows} AND i % {self.appends} = {n}"
                append(_rows(where, of=self.rows, days=self.days, clustered=self.clustered))

    def _look(self, name: str, rows: Rows, batch: pa.Table, checked: set[str]) -> None:
        """Check the rows of the table in the round that warms up."""
        if name in checked:
            return
        checked.add(name)
        if self.store is not None:
            counts = self.store[0].counts
            self.requests.update({f"{name}: {kind}": number for kind, number in sorted(counts.items())})
        expected = _rows(f"i < {self.rows}", of=self.rows, days=self.days, clustered=self.clustered)
        total = f"count(*), sum(hash({_COLUMNS})::HUGEINT)"
        with connected() as con:
            con.register("before", expected)
            con.register("batch", batch)
            con.register("stored", rows())
            after = f"SELECT {_COLUMNS} FROM batch UNION ALL SELECT {_COLUMNS} FROM before ANTI JOIN batch USING (id)"
            result = con.sql(f"SELECT {total} FROM stored").fetchone()
            if result != con.sql(f"SELECT {total} FROM ({after})").fetchone():
                raise AssertionError(f"{name} has other rows after the upsert: {result}")


def _checks(ways: Sequence[Way]) -> list[Check]:
    """Check our way with syncs against deltalake; where it misses the goal, also ours without syncs."""
    of = {way.name: way for way in ways}
    checks: list[Check] = []
    for name, remark in ((OURS, ""), (UNSYNCED, ", no fsync on either side")):
        if name in of:
            ratio, spread = ratio_to(of[name], of[DELTALAKE])
            checks.append(Check(f"at most {GOAL} of deltalake{remark}", ratio, GOAL, why=_WHY, spread=spread))
            if checks[-1].met:
                break
    return checks


def _local(plan: Plan, folder: Path, on_step: Step) -> Iterator[Finding]:
    rows = plan.size(ROWS, ROWS_FULL)
    for clustered in (True, False):
        kind = "clustered" if clustered else "scattered"
        upserts = _Upserts(folder / kind, rows, DAYS, APPENDS, clustered)
        for of_full in BATCHES:
            size = max(2, of_full * rows // ROWS_FULL)
            ways = upserts.measured(f"upsert {size:,}, {kind}", size, list(WAYS), plan, on_step)
            yield Finding(
                "upsert",
                f"upsert {size:,} rows (half new) into {rows:,} rows in {DAYS * APPENDS} parts, keys {kind}, local",
                "s",
                ways,
                _checks(ways),
                notes=[
                    "Opening the table is within the time, loading DuckLake's extension is not. DuckLake writes files "
                    "with the positions of deleted rows; the others rewrite the files. deltalake does not sort them.",
                    f"icedb syncs each part and its folder to the disk before it commits; the others do not. "
                    f"'{UNSYNCED}' leaves that out.",
                ],
                short=f"upsert {size:,}, {kind}",
            )
        shutil.rmtree(folder / kind)


def _network(plan: Plan, folder: Path, on_step: Step) -> Iterator[Finding]:
    rows = plan.size(NETWORK_ROWS)
    with ExitStack() as stack:
        on_step("upsert: starting the S3 server")
        endpoint = stack.enter_context(s3_server(folder.with_name(f"{folder.name}-server")))
        store = (stack.enter_context(slow(endpoint, plan.latency_ms)), endpoint)
        upserts = _Upserts(folder, rows, NETWORK_DAYS, NETWORK_APPENDS, True, store)
        size = max(2, rows // 100)
        ways = upserts.measured("upsert-s3", size, [OURS, DELTALAKE], plan, on_step)
    yield Finding(
        "upsert",
        f"upsert {size:,} rows (half new) into {rows:,} rows in {NETWORK_DAYS * NETWORK_APPENDS} parts, S3 with "
        f"{plan.latency_ms:g} ms per request",
        "s",
        ways,
        _checks(ways),
        upserts.requests,
        short="upsert, S3",
    )
