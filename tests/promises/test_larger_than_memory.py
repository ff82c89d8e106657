"""An insert of more rows than memory streams them, sorts on disk, and writes part by part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Table

MIB = 1024 * 1024
FILES, ROWS_PER_FILE, BYTES_PER_ROW = 16, 65_536, 1_024
MEMORY_BYTES = 512 * MIB
#: Python, Arrow and DuckDB's own code and buffers, beside what DuckDB may use for the rows.
OVERHEAD_BYTES = 512 * MIB


def write_files(folder: Path) -> int:
    """Write a gibibyte of rows that do not compress. Return the bytes of the Parquet files."""
    for number in range(FILES):
        ids = pa.array(range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
        noise = pa.py_buffer(os.urandom(ROWS_PER_FILE * BYTES_PER_ROW))
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(BYTES_PER_ROW), ROWS_PER_FILE, [None, noise])
        rows = pa.table({"id": ids, "payload": payload.cast(pa.binary())})
        pq.write_table(rows, folder / f"{number:02}.parquet", compression="none", use_dictionary=False)
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak memory")
@pytest.mark.slow(seconds=60)
def test_a_gibibyte_of_parquet_goes_in_with_half_of_it_in_memory(tmp_path: Path) -> None:
    source, table = tmp_path / "source", tmp_path / "table"
    source.mkdir()
    assert write_files(source) >= 1024 * MIB
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.programs.larger_than_memory",
         str(table), f"{source}/*.parquet", str(MEMORY_BYTES)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1_200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rows"] == FILES * ROWS_PER_FILE
    assert said["peak_bytes"] < MEMORY_BYTES + OVERHEAD_BYTES, f"{said['peak_bytes'] / MIB:.0f} MiB"
    written = Table.open(table)
    assert written.snapshot().bytes >= 1024 * MIB
    sums = "SELECT count(*), sum(id), count(DISTINCT id) FROM {}"
    [actual] = written.query(sums.format("t")).fetchall()
    rows = FILES * ROWS_PER_FILE
    assert actual == (rows, rows * (rows - 1) // 2, rows)
