"""A stream, Spark jobs and Python write one table concurrently with its maintenance, and every row is counted.

ICEDB_MIXED_LOAD_SECONDS sets the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from icedb import Table
from icedb.errors import RetryableError
from icedb.reader.snapshot import Snapshot
from tests.support.processes import json_lines
from tests.support.programs.maintenance_loop import ACTS, TIMING, Days, arguments
from tests.support.spark.spark_clusters import Driver, environment

pytestmark = [pytest.mark.spark, pytest.mark.s3]

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "maintenance_loop.py"
SECONDS = float(os.environ.get("ICEDB_MIXED_LOAD_SECONDS", "25"))
# A machine that does much else runs on until everything has happened.
PATIENCE_SECONDS = 240
DAY_SECONDS = 5
DAYS_KEPT = 3
PAUSE_SECONDS = 0.2
LOOK_SECONDS = 2
# The least number of batches of the stream, and of Spark jobs.
BATCHES = 3
#: Rows of a batch on each of its two days: the day of its writing, and the one before.
ROWS = {"stream": 20, "spark": 100, "python": 10}

#: The rows of a batch on one day, which are written together: (writer, batch, day).
Pieces = set[tuple[str, int, int]]


def batch_rows(writer: str, batch: int, day: int) -> list[dict[str, Any]]:
    rows = ROWS[writer]
    return [{"writer": writer, "batch": batch, "i": i, "day": day - i % 2, "total": rows} for i in range(2 * rows)]


def pieces(writer: str, days: list[int]) -> Pieces:
    """Return the pieces of a writer with batches on these days."""
    return {(writer, batch, day - back) for batch, day in enumerate(days) for back in (0, 1)}


def check_pieces(snapshot: Snapshot) -> Pieces:
    """Return the pieces in a snapshot. Each piece must be complete and unique."""
    pieces_read = snapshot.query(
        "SELECT writer, batch, day, count(*), count(DISTINCT i), max(total) FROM t GROUP BY ALL"
    ).fetchall()
    wrong = [row for row in pieces_read if not row[3] == row[4] == row[5]]
    assert not wrong, f"not complete and unique (rows, distinct rows, expected rows): {wrong}"
    return {(writer, batch, day) for writer, batch, day, *_ in pieces_read}


class LocalWrites:
    """The writes of this process: its own batches, and files for the stream."""

    def __init__(self, table: Table, files: Path, days: Days) -> None:
        self.table, self.files, self.days = table, files, days
        self.written: dict[str, list[int]] = {"stream": [], "python": []}

    def arrive(self) -> None:
        """Write a file for the stream."""
        number, day = len(self.written["stream"]), self.days.today
        unfinished = self.files / f".{number:05}"
        unfinished.write_text("\n".join(map(json.dumps, batch_rows("stream", number, day))))
        unfinished.rename(self.files / f"{number:05}.json")
        self.written["stream"].append(day)

    def insert(self) -> None:
        number, day = len(self.written["python"]), self.days.today
        try:
            self.table.insert(batch_rows("python", number, day))
        except RetryableError:
            return  # no row of it is stored, now or later
        self.written["python"].append(day)

    def _all_wrote(self, pieces: set[tuple[str, int]]) -> bool:
        batches = [number for number, _ in self.table.handle.read().txn.values()]  # of the stream
        return max(batches, default=0) >= BATCHES - 1 and sum(writer == "spark" for writer, _ in pieces) >= BATCHES

    def go_on(self, journal: Path, seconds: float) -> int:
        """Write for this time, and until every program has finished some work. Returns the number of snapshots read."""
        began, looks, pieces = time.monotonic(), 0, set[tuple[str, int]]()
        while (elapsed := time.monotonic() - began) < seconds or (
            elapsed < PATIENCE_SECONDS and not (all(done(journal)[act] for act in ACTS) and self._all_wrote(pieces))
        ):
            self.arrive()
            self.insert()
            if elapsed >= looks * LOOK_SECONDS:
                pieces |= {(writer, batch) for writer, batch, _ in check_pieces(self.table.snapshot())}
                looks += 1
            time.sleep(PAUSE_SECONDS)
        return looks


@contextmanager
def maintained(uri: str, days: Days, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Maintain the table in another process until the file `stop` exists."""
    command = [sys.executable, str(PROGRAM), arguments(uri, days, folder / "journal", folder / "stop")]
    with (folder / "maintenance.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield
        assert process.wait(240) == 0, (folder / "maintenance.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def done(journal: Path) -> Counter[str]:
    """Return the totals of the maintenance so far."""
    total: Counter[str] = Counter()
    for line in json_lines(journal):
        if "act" not in line:
            total.update(line)
    return total


@pytest.mark.slow(seconds=70)
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_concurrent_writes_of_stream_jobs_and_python_are_complete(s3: Any, spark_home: Path, tmp_path: Path) -> None:
    options = s3.storage_options
    Table.create(s3.uri, partition_by=["day"], sort_by=["writer", "batch"], storage_options=options, timing=TIMING)
    table = Table.open(s3.uri, storage_options=options)
    files, journal, stop = tmp_path / "files", tmp_path / "journal", tmp_path / "stop"
    files.mkdir()
    with Driver({"spark.master": "local[2]"}, tmp_path / "driver", environment(spark_home)) as driver:
        driver.ask("executors")  # Spark has started
        days = Days(time.time(), DAY_SECONDS, DAYS_KEPT)
        load = LocalWrites(table, files, days)
        load.insert()  # the table has its columns
        with maintained(s3.uri, days, tmp_path, os.environ | s3.storage_options):
            driver.tell(
                "stream_and_append", place={"path": s3.uri, **s3.storage_options}, files=str(files),
                checkpoint=str(tmp_path / "checkpoint"), stop=str(stop), started=days.started, day_seconds=days.seconds,
                rows=ROWS["spark"],
            )  # fmt: skip
            looks = load.go_on(journal, SECONDS)
            stop.touch()
            totals = driver.answer()

    oldest = max(line["oldest"] for line in json_lines(journal) if "act" in line)
    last = table.drop_partitions(f"day < {oldest}")  # rows of an old day that were written after the last drop
    snapshot, maintenance = table.snapshot(), done(journal)
    written = pieces("spark", totals["days"]).union(*(pieces(w, load.written[w]) for w in load.written))
    assert check_pieces(snapshot) == {piece for piece in written if piece[2] >= oldest}
    if not any(name.startswith("dropped_rows:") for name in maintenance):  # else one may have been done unheard
        dropped = maintenance["dropped_rows"] + (last.rows or 0)
        assert dropped + (snapshot.rows or 0) == sum(ROWS[writer] for writer, *_ in written)
    assert all(maintenance[act] for act in ACTS)
    assert table.verify(deep=True).problems == ()
    sys.stdout.write(
        f"\n{len(load.written['stream'])} files in {totals['batches']} batches, {len(totals['days'])} Spark jobs, "
        f"{len(load.written['python'])} inserts: {sum(ROWS[w] for w, *_ in written)} rows, {snapshot.rows} of them "
        f"left; {len(snapshot.parts)} parts, epoch {snapshot.epoch}, {looks} snapshots read, {dict(maintenance)}\n"
    )
