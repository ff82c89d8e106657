"""Merges of many small parts beside other programs that compact the same rows, and the memory of a merge with a limit.

In a folder, and over a network. Each way compacts its own files of many appends. Opening the table or the connection is
included. Each result is checked to have every row.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
from benchmarks.writes.inserting import make_rows
from benchmarks.writes.peers import DUCKDB, DUCKLAKE, UNSYNCED, WRITERS, Layout, TablePlace, connected_to
from benchmarks.writes.table_copies import TableCopies
from icedb import Table
from icedb.sql.connections import MEMORY_BYTES_MIN, quote_text
from icedb.writer.encoding.parquet_encoder import MERGE_LEVEL

__all__ = ["DELTALAKE", "DUCKDB_AT_ONCE", "GOAL", "measure"]

#: One COPY with PARTITION_BY for all partitions, or one COPY for each.
DUCKDB_AT_ONCE = "plain DuckDB, one statement"
#: Its compaction does not sort.
DELTALAKE = "deltalake, unsorted"
#: Its compaction does not sort.
DUCKLAKE_UNSORTED = "DuckLake, unsorted"

ROWS, APPENDS = 1_000_000, 20
DAYS = 30
# Over a network, plain DuckDB takes a second for each ten files, so there are fewer.
NETWORK_APPENDS, NETWORK_APPENDED, NETWORK_DAYS, NETWORK_DAYS_FULL = 5, 30_000, 6, 30
GOAL = 0.9
MEMORY_BYTES = MEMORY_BYTES_MIN
# The rows of the table that is merged with limited memory. In memory they take twice the limit, or twelve times.
MEMORY_ROWS, MEMORY_ROWS_FULL = 3_200_000, 19_200_000
_MIB = 1024 * 1024

_LAYOUT = Layout("CAST(ts AS DATE)", "day", ("event", "ts"), pl.col("ts").dt.date())

_WHY = (
    "by profile, two fifths of the processor time read and order the rows of sorted parts, three tenths encode the "
    "merged ones, and the rest opens the files, computes statistics, and reads and writes the log"
)
_WHY_MEMORY = (
    "a merge of sorted parts holds a batch and some pages of each part, and a row group of the new one. Arrow's "
    "allocator retains what is freed"
)

#: The place of the rows after the merge.
Files = Callable[[], Sequence[str]]
Merge = Callable[[TablePlace], AbstractContextManager[Callable[[], Files]]]


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """Measure the rows about merges."""
    if not plan.wants("merge"):
        return []
    return [_local(plan, folder / "local", on_step), _network(plan, folder / "s3", on_step),
            _memory(plan, folder / "memory", on_step)]  # fmt: skip


# ------------------------------------------------------------------------------------------ the ways


@contextmanager
def _icedb(place: TablePlace, *, fsync: bool = True) -> Iterator[Callable[[], Files]]:
    def merge() -> Files:
        table = Table.open(place.uri, storage_options=dict(place.options) or {"fsync": str(fsync).lower()})
        table.merge()
        return lambda: [part.path for part in table.snapshot().parts]

    yield merge


@contextmanager
def _duckdb(place: TablePlace, *, at_once: bool = False) -> Iterator[Callable[[], Files]]:
    out = f"{place.uri}-merged"
    if not place.options:
        Path(out).mkdir()
    with connected_to(place) as con:
        days = [day for (day,) in con.sql(f"SELECT DISTINCT day FROM read_parquet('{place.parquet}')").fetchall()]
    order, options = ", ".join(_LAYOUT.sort_by), f"FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {MERGE_LEVEL}"

    def merge() -> Files:
        with connected_to(place) as con:
            if at_once:
                query = f"SELECT * FROM read_parquet('{place.parquet}') ORDER BY day, {order}"
                con.execute(f"COPY ({query}) TO '{out}' ({options}, PARTITION_BY (day))")
            else:
                for day in days:
                    rows = f"read_parquet('{place.uri}/day={day}/*.parquet', hive_partitioning = false)"
                    con.execute(f"COPY (SELECT * FROM {rows} ORDER BY {order}) TO '{out}/{day}.parquet' ({options})")
        return lambda: [f"{out}/**/*.parquet"]

    yield merge
    shutil.rmtree(out, ignore_errors=True)


@contextmanager
def _deltalake(place: TablePlace) -> Iterator[Callable[[], Files]]:
    more = {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"} if place.options else {}

    def merge() -> Files:
        table = DeltaTable(place.uri, storage_options=dict(place.options) | more)
        table.optimize.compact(writer_properties=WriterProperties(compression="ZSTD", compression_level=MERGE_LEVEL))
        return lambda: table.file_uris()

    yield merge


@contextmanager
def _ducklake(place: TablePlace) -> Iterator[Callable[[], Files]]:
    with connected_to(place) as con:
        load_extension(con, "ducklake")

        def merge() -> Files:
            con.execute(f"ATTACH {quote_text(f'ducklake:{place.beside}/catalog.ducklake')} AS lake")
            con.execute(f"CALL lake.set_option('parquet_compression_level', '{MERGE_LEVEL}')")
            con.execute("CALL ducklake_merge_adjacent_files('lake')").fetchall()
            result = con.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
            con.execute("DETACH lake")
            return lambda: [path for (path,) in result]

        yield merge


#: The writer of each way's input, and its merge.
WAYS: Mapping[str, tuple[str, Merge]] = {
    OURS: (UNSYNCED, _icedb),
    UNSYNCED: (UNSYNCED, partial(_icedb, fsync=False)),
    DUCKDB: (DUCKDB, _duckdb),
    DUCKDB_AT_ONCE: (DUCKDB, partial(_duckdb, at_once=True)),
    DELTALAKE: ("deltalake, sorted", _deltalake),
    DUCKLAKE_UNSORTED: (DUCKLAKE, _ducklake),
}


# ------------------------------------------------------------------------------------------ in turns


@dataclass(slots=True)
class _MergeRounds:
    """Merges of the same rows. Each way has a new copy of its table in each round."""

    folder: Path
    rows: pa.Table
    appends: int
    days: int
    #: The delaying proxy, and the address of the S3 server. None: tables are in a folder.
    store: tuple[SlowStore, str] | None = None
    #: The number of files after the merge, by way.
    files: dict[str, int] = field(default_factory=dict)
    #: Requests by way and kind.
    requests: dict[str, float] = field(default_factory=dict)
    _copies: TableCopies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = TableCopies(self.folder, self._write, self.store)

    def measured(self, group: str, names: Sequence[str], plan: Plan, on_step: Step) -> list[Way]:
        """Measure the seconds of each way in each round. Ways that do not sort have fewer rounds."""
        few = dict.fromkeys((DELTALAKE, DUCKLAKE_UNSORTED), plan.rounds_beside())
        cases = [Case(group, name, partial(self.ready, name), rounds_max=few.get(name)) for name in names]
        results = run_rounds(cases, plan.rounds, on_step=on_step, only_reads=True)
        return [Way(r.case.name, r.seconds) for r in results]

    @contextmanager
    def ready(self, name: str) -> Iterator[Work]:
        """Yield the merge of a way whose table has all its small files."""
        writer, way = WAYS[name]
        with self._copies.table(writer) as (place, direct), way(place) as merge:

            def work() -> Callable[[], Footprint | None]:
                files = merge()
                return partial(self._look, name, direct, files)

            if self.store is not None:
                self.store[0].reset()
            os.sync()  # pending writes of other ways must not slow this one
            yield work

    def _write(self, writer: str, place: TablePlace) -> None:
        size = -(-self.rows.num_rows // self.appends)
        with WRITERS[writer](place, _LAYOUT) as append:
            for n in range(self.appends):
                append(self.rows.slice(n * size, size))

    def _look(self, name: str, direct: TablePlace, files: Files) -> None:
        if name in self.files:
            return
        if self.store is not None:
            counts = self.store[0].counts
            self.requests.update({f"{name}: {kind}": number for kind, number in sorted(counts.items())})
        total = "count(*), sum(hash(ts, user_id, event, amount, page)::HUGEINT)"
        with connected_to(direct) as con:
            con.register("expected", self.rows)
            paths = f"[{', '.join(map(quote_text, files()))}]"
            stored = f"read_parquet({paths}, filename = true, hive_partitioning = false)"
            result = con.sql(f"SELECT {total} FROM {stored}").fetchone()
            if result != con.sql(f"SELECT {total} FROM expected").fetchone():
                raise AssertionError(f"{name} has other rows after the merge: {result}")
            [(self.files[name],)] = con.sql(f"SELECT count(DISTINCT filename) FROM {stored}").fetchall()

    def title(self) -> str:
        """Return the note on the input."""
        files = self.appends * self.days
        return f"merge {files:,} parts of {self.rows.num_rows:,} rows (5 columns, sorted, zstd) into {self.days}"

    def remark(self) -> str:
        """Return the note on the number of files of each way."""
        left = "; ".join(f"{name} {files}" for name, files in self.files.items())
        return f"Checked in the round that warms up: every row is there. Files after the merge: {left}."


def _checks(ways: Sequence[Way]) -> list[Check]:
    """Check our way with syncs against the faster way of plain DuckDB, and against deltalake.

    Where it misses the goal, also report ours without syncs.
    """
    of = {way.name: way for way in ways}
    best = min((of[n] for n in (DUCKDB, DUCKDB_AT_ONCE) if n in of), key=lambda way: way.median)
    checks: list[Check] = []
    for rival, label in ((best, f"plain DuckDB, sorted ({best.name})"), (of[DELTALAKE], DELTALAKE)):
        for name, remark in ((OURS, ""), (UNSYNCED, ", no fsync on either side")):
            if name in of:
                ratio, spread = ratio_to(of[name], rival)
                check = Check(f"at most {GOAL} of {label}{remark}", ratio, GOAL, why=_WHY, spread=spread)
                checks.append(check)
                if check.met:
                    break
    return checks


def _local(plan: Plan, folder: Path, on_step: Step) -> Finding:
    turns = _MergeRounds(folder, make_rows(plan.size(ROWS)), APPENDS, DAYS)
    ways = turns.measured("merge", list(WAYS), plan, on_step)
    return Finding(
        "merge",
        f"{turns.title()}, local",
        "s",
        ways,
        _checks(ways),
        notes=[
            f"Opening the table is within the time, loading DuckLake's extension is not. All write zstd at level "
            f"{MERGE_LEVEL}. deltalake and DuckLake put rows one after another and do not sort them; plain DuckDB "
            "has no commits, so readers see some rows twice or not at all meanwhile.",
            f"icedb syncs each part and its folder to the disk before it commits; the others do not. '{UNSYNCED}' "
            "leaves that out.",
            turns.remark(),
        ],
        short="merge, local",
    )


def _network(plan: Plan, folder: Path, on_step: Step) -> Finding:
    with ExitStack() as stack:
        on_step("merge-s3: starting the S3 server")
        endpoint = stack.enter_context(s3_server(folder.with_name(f"{folder.name}-server")))
        store = (stack.enter_context(slow(endpoint, plan.latency_ms)), endpoint)
        days = plan.size(NETWORK_DAYS, NETWORK_DAYS_FULL)
        with connected() as con:
            con.register("rows", make_rows(plan.size(ROWS)))
            first = f"ts < DATE '2026-10-01' + {days} LIMIT {NETWORK_APPENDS * plan.size(NETWORK_APPENDED)}"
            some = con.sql(f"SELECT * FROM rows WHERE {first}").to_arrow_table()
        turns = _MergeRounds(folder, some, NETWORK_APPENDS, days, store)
        ways = turns.measured("merge-s3", [OURS, DUCKDB, DELTALAKE], plan, on_step)
    return Finding(
        "merge",
        f"{turns.title()}, S3 with {plan.latency_ms:g} ms per request",
        "s",
        ways,
        _checks(ways),
        turns.requests,
        notes=[
            "icedb prefetches each part with one request, many at a time. DuckDB sends several requests for each file.",
            turns.remark(),
        ],
        short="merge, S3",
    )


# ------------------------------------------------------------------------------------------ memory


def _memory(plan: Plan, folder: Path, on_step: Step) -> Finding:
    on_step("merge: memory")
    rows, appends = plan.size(MEMORY_ROWS, MEMORY_ROWS_FULL), 8
    table = Table.create(str(folder), sort_by=["n"], storage_options={"fsync": "false"})
    with connected() as con:
        for n in range(appends):
            values = f"hash(i + {n * rows}) AS n, repeat(md5((i + {n})::VARCHAR), 5) AS s"
            table.insert(con.sql(f"SELECT {values} FROM range({max(1, rows // appends)}) r(i)").to_arrow_table())
    command = [sys.executable, "-m", "benchmarks.writes.merge_memory", str(folder), str(MEMORY_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    shutil.rmtree(folder)
    grown = int(done.stdout) / _MIB
    return Finding(
        "merge",
        f"merge {appends} parts of {rows * 168 // appends // _MIB:,} MiB (as rows in memory) with "
        f"memory_bytes = {MEMORY_BYTES // _MIB} MiB",
        "MiB",
        [Way(OURS, [grown])],
        [Check("at most memory_bytes more than the process had before", grown, MEMORY_BYTES / _MIB, why=_WHY_MEMORY)],
        notes=["The peak resident memory of a new process, less its memory before the merge."],
        short="merge, memory",
    )
