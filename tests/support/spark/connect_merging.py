"""Maintenance by Spark over Connect, in a process of its own: `connect_merging.py <address> <table> <folder>`.

Below the folder are the files to import, in `files`. Storage options come from the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icedb import Table
from icedb.errors import InvalidQuery, SparkJobFailed
from icedb.spark import SparkEngine
from tests.support.programs.sabotage import Saboteur


def main(address: str, uri: str, folder: Path) -> None:
    spark = SparkSession.builder.remote(address).getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    engine = SparkEngine(spark)
    table = Table.open(uri)
    rows = table.snapshot().rows

    def whole() -> None:
        assert Table.open(uri).snapshot().rows == rows

    for name in ("died", "failed"):
        (folder / name).mkdir()
    with pytest.raises(SparkJobFailed, match=r"^[^\n]*died"):
        table.merge(engine=Saboteur(engine, "killed", folder / "died", times=99))
    with pytest.raises(SparkJobFailed, match=r"^[^\n]*nobody knows why"):
        table.delete("k = 1", engine=Saboteur(engine, "unknown error", folder / "failed", times=99))
    whole()
    assert table.merge(engine=engine).new_parts == 3
    whole()
    with pytest.raises(InvalidQuery, match="not so"):
        table.rewrite_partition("p=0", "SELECT error('not so') FROM _rows", engine=engine)
    assert table.delete("s = '0-0'", engine=engine).deleted_rows == 1
    assert table.rewrite_partition("p=0", "SELECT k, upper(s) AS s FROM _rows", engine=engine).new_parts == 1
    assert table.import_files(folder / "files", storage_options={}, engine=engine).rows == 2
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
