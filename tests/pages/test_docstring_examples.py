"""The reference of `icedb.Table`: each method has an example that runs, and a table of all its parameters."""

from __future__ import annotations

import doctest
import inspect
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icedb
from icedb import Table
from icedb.format.codec import encode
from icedb.format.records import LogFile
from icedb.format.timing import DAY_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, create_table

METHODS = {name: method for name, method in inspect.getmembers(Table, callable) if not name.startswith("_")}
ROW = {"ts": datetime(2026, 11, 21), "user": 7, "event": "open"}
#: Method -> what exists before its example, besides a table with `ROW`.
BEFORE = {
    "alter": "table.insert([row | {'email': 'a@b.example'}])",
    "changes": "cursor, process = table.changes().cursor, lambda rows: None",
    "create_from_files": "archive()",
    "drop_view": "daily()",
    "exists": "icedb.Table.create('s3://lake/events')",
    "export_parquet": "table = icedb.Table.create('s3://lake/events'); table.insert([row])",
    "health": "several(9)",
    "history": "several(1); table.merge()",
    "import_files": "archive()",
    "merge": "several(11)",
    "open": "icedb.Table.create('s3://lake/events')",
    "overwrite": "frame = pa.Table.from_pylist([row])",
    "pins": "table.pin('audit-2026')",
    "refresh_view": "daily()",
    "repair_types": "mistyped()",
    "repair_spec": "icedb.Table.create('s3://lake/events').insert([row]); path('s3://lake/events/_table.json').unlink()",
    "unpin": "table.pin('audit-2026')",
    "upsert": "ts = row['ts']",
    "views": "daily()",
}


@pytest.fixture
def names(clock: ManualClock, tmp_path: Path) -> dict[str, Any]:
    """The names that an example may use. The table has existed for two days of November 2026."""
    clock.set(int(datetime(2026, 11, 20, tzinfo=UTC).timestamp() * 1000))
    store = ClockedStore(clock)
    table = create_table(store, clock, partition_by=["ts::DATE AS d"], sort_by=["user", "ts"])
    clock.advance(DAY_MS)
    table.insert([ROW])
    clock.advance(DAY_MS)

    def several(commits: int) -> None:
        for _ in range(commits):
            table.insert([ROW])

    def daily() -> Table:
        return table.create_view("daily", "SELECT user, count(*) AS n FROM _rows GROUP BY ALL")

    def mistyped() -> None:
        """Append a log file as a program that does not check the schema."""
        log_file = LogFile(clock.now_ms(), {"user": "VARCHAR"}, ())
        store.create(store.location.keys.log_file(clock.now_ms(), merged=False, writer="foreign"), encode(log_file))

    def path(uri: str) -> Path:
        return Path(uri)

    def archive() -> None:
        folder = tmp_path / "archive" / "events" / "d=2026-11-21"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([ROW]), folder / "one.parquet")

    return {
        "icedb": icedb, "pa": pa, "datetime": datetime, "timedelta": timedelta, "UTC": UTC, "row": ROW, "table": table,
        "several": several, "daily": daily, "path": path, "archive": archive, "mistyped": mistyped,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_the_example_of_a_method_runs(name: str, names: dict[str, Any], clock: ManualClock, tmp_path: Path) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(METHODS[name]) or "")
    assert any(f".{name}(" in example.source for example in examples)
    exec(in_folder(BEFORE.get(name, ""), tmp_path), names)
    clock.advance(MINUTE_MS)
    for example in examples:
        source = in_folder(example.source, tmp_path)
        if example.want:
            assert repr(eval(source, names)) == example.want.strip()
        else:
            exec(source, names)


def in_folder(code: str, folder: Path) -> str:
    """Replace buckets by folders."""
    return code.replace("s3://", f"{folder}/")


@pytest.mark.parametrize("name", METHODS)
def test_the_parameters_of_a_method_are_documented(name: str) -> None:
    """In any order: each one has its row in the table of parameters."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", f"{inspect.getdoc(METHODS[name])}\n", re.MULTILINE)
    documented = re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []
    assert sorted(documented) == sorted(inspect.signature(METHODS[name]).parameters.keys() - {"self"})


def test_all_setups_belong_to_methods() -> None:
    assert BEFORE.keys() <= METHODS.keys()
