"""The operation names of commits, also after their log files were merged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb import Dedup, Table
from icedb.format.codec import decode, encode
from icedb.format.commit_draft import CommitDraft, draft
from icedb.format.keys import Keys
from icedb.format.operation_names import carried_operations, decode_operation, decode_operations
from icedb.format.records import LogFile, Marker
from icedb.format.replay import COLUMNS_MIN, TableState
from icedb.format.table_spec import TableSpec
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.open_table import create_handle
from tests.support.site.page_reader import read_as_the_page_says

KEYS = Keys("")


@pytest.fixture
def table(clocked: ClockedStore, clock: ManualClock) -> Table:
    spec = TableSpec(partition_by=("k",), sort_by=("n",), merging=Dedup(("k", "n")))
    made = Table(create_handle(clocked, spec, clock=clock))
    made.insert([{"k": 0, "n": 1}, {"k": 1, "n": 1}])
    clock.advance(MINUTE_MS)
    made.insert([{"k": 0, "n": 1}])
    clock.advance(MINUTE_MS)
    return made


def first_ms(table: Table) -> int:
    return table.history()[-1].at_ms


def import_file(table: Table, folder: Path) -> None:
    (folder / "k=5").mkdir()
    pq.write_table(pa.table({"k": [5], "n": [1]}), folder / "k=5" / "rows.parquet")
    table.import_files(folder)


def conflicting(table: Table) -> None:
    """Append a column with another type, as a program of v3."""
    handle = table.handle
    at_ms = handle.clock.now_ms()
    key = handle.keys.log_file(at_ms, merged=False, writer="v3-host")
    handle.store.create(key, encode(LogFile(at_ms, {"n": "INTEGER"})))


#: Operations, each with the name that older versions derive.
VERBS: dict[str, tuple[Callable[[Table, Path], object], str]] = {
    "insert": (lambda t, _: t.insert([{"k": 2, "n": 1}]), "insert"),
    "insert with a column": (lambda t, _: t.insert([{"k": 2, "n": 1, "x": 1}]), "insert"),
    "insert exactly once": (lambda t, _: t.insert([{"k": 2, "n": 1}], txn=("app", 1)), "insert"),
    "import": (import_file, "insert"),
    "overwrite": (lambda t, _: t.overwrite([{"k": 0, "n": 3}], partitions=["k=0"]), "overwrite"),
    "merge": (lambda t, _: t.merge(), "delete"),
    "delete": (lambda t, _: t.delete("k = 0"), "drop"),
    "rewrite": (lambda t, _: t.rewrite_partition("k=0", "SELECT * FROM _rows LIMIT 1"), "delete"),
    "drop": (lambda t, _: t.drop_partitions(["k=0"]), "drop"),
    "restore": (lambda t, _: t.restore(first_ms(t)), "drop"),
    "repair": (lambda t, _: (conflicting(t), t.repair_types({"n": "BIGINT"})), "log"),
    "alter": (lambda t, _: t.alter(row_group_rows=10_000), "alter"),
    "merge_log": (lambda t, _: t.merge_log(), "log"),
}


class _MergeAll:
    """A merge of all log files, in any tier."""

    outputs: tuple[str, ...] = ()
    oldest_part_ms: int | None = None
    reads_everything = False

    def __init__(self) -> None:
        self.unused: list[str] = []

    def build(self, state: TableState, t_ms: int) -> CommitDraft:
        return draft(state, t_ms=t_ms, replaces=[*state.effective], operation="merge_log")


def merge_all(table: Table, store: ClockedStore) -> LogFile:
    """Replace all log files by one, and delete the others, as a log merge and a cleanup do."""
    commit = commit_exclusive(table.handle, _MergeAll())
    store.delete([key for key in table.handle.read().log_tombstones if key in store.objects])
    return table.handle.read(fresh=True).files[commit.key or ""].file


def edit_header(store: ClockedStore, key: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the header of a stored log file, as if another version had written it."""
    stored = store.objects[key]
    first, *rest = stored.body.decode().split("\n")
    header = json.loads(first)
    edit(header)
    store.objects[key] = replace(stored, body="\n".join([json.dumps(header), *rest]).encode())


def without_names(store: ClockedStore) -> None:
    """Remove the operation names from the log, as if an older version had written it."""
    for key in store.objects:
        if key.startswith(store.location.keys.log_prefix):
            edit_header(store, key, lambda header: [header.pop(name, None) for name in ("op", "ops")])


@pytest.mark.parametrize("name", VERBS)
def test_a_commit_has_the_name_of_its_verb_and_in_an_old_log_the_derived_one(
    table: Table, clocked: ClockedStore, clock: ManualClock, tmp_path: Path, name: str
) -> None:
    do, guess = VERBS[name]
    do(table, tmp_path)
    newest = table.history(limit=1)[0]
    assert (newest.kind, newest.kind_recorded) == (name.split()[0], True)
    assert table.health().last_operation == newest.kind
    clock.advance(MINUTE_MS)
    merge_all(table, clocked)
    later = {c.at_ms: c for c in open_table(clocked, clock).history()}
    if newest.added_parts or newest.removed_parts:
        assert later[newest.at_ms].kind == name.split()[0], "after its own log file is gone"
        assert later[newest.at_ms].log_file is None
    else:
        assert newest.at_ms not in later
    without_names(clocked)
    old = {c.at_ms: c for c in open_table(clocked, clock).history()}
    assert not any(c.kind_recorded for c in old.values())
    assert (old[newest.at_ms].kind if newest.at_ms in old else guess) == guess


def test_cleanup_keeps_the_names_of_remembered_commits(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    merged_ms = table.merge().commit.created_ms
    clock.advance(MINUTE_MS)
    table.drop_partitions(["k=1"])
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        table.cleanup()
    kinds = {c.at_ms: (c.kind, c.exact) for c in table.history()}
    assert kinds[merged_ms or 0] == ("merge", False), "the guess without its inputs would be a rewrite"
    assert "drop" not in {kind for kind, _ in kinds.values()}
    assert {kind for kind, _ in kinds.values()} == {"merge", "cleanup"}
    files = [
        decode(stored.body, key, clocked.location.keys) for key, stored in clocked.objects.items() if "_log/" in key
    ]
    assert all(set(f.operations) <= {merged_ms} for f in files if f.operation == "cleanup"), "nothing else is carried"


def test_a_reader_made_from_the_page_has_the_names(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    for do in (table.merge, lambda: table.drop_partitions(["k=1"]), table.merge_log, lambda: table.insert([{"k": 3}])):
        clock.advance(MINUTE_MS)
        do()
    merge_all(table, clocked)
    clock.advance(MINUTE_MS)
    table.delete("k = 3")
    objects = {key: stored.body for key, stored in clocked.objects.items()}
    reading = read_as_the_page_says(objects, f"{clocked.location.prefix}/")
    counting = [c for c in table.history() if c.log_file not in reading.ignored]  # ignored ones are only still stored
    recorded = {c.at_ms: {c.kind} for c in counting if c.kind_recorded}
    assert {"merge", "drop", "delete"} <= {kind for kinds in recorded.values() for kind in kinds}
    assert {t: names for t, names in reading.operations.items() if t in recorded} == recorded


def test_a_refresh_of_a_view_has_its_own_operation_name(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock, partition_by=["k"])
    table.insert([{"k": 1, "n": 1}])
    view = table.create_view("sums", "SELECT k, sum(n)::BIGINT AS n FROM _rows GROUP BY ALL")
    clock.advance(MINUTE_MS)
    table.refresh_view("sums")
    assert [c.kind for c in view.history()] == ["refresh", "refresh"]


HOSTILE = [
    "\x1b[31mdrop", "<script>", "Merge", "", "a" * 33, "a" * 5_000_000, "merge\n", "d\u0440op", 1, None, ["merge"], {},
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_counts_as_absent(name: object) -> None:
    at_ms = 1_795_263_600_000
    header = {"v": 1, "t": at_ms, "sch": 1, "f": 2, "n": 2, "op": name, "ops": {str(name): [at_ms - 1]}}
    body = f"{json.dumps(header)}\n{{}}".encode()
    file = decode(body, KEYS.log_file(at_ms, merged=False, writer="w"), KEYS)
    assert (file.operation, file.operations) == ("", {})


@pytest.mark.parametrize(
    "ops", ["[]", "1", '"merge"', '{"merge":1}', '{"merge":["1"]}', '{"merge":[-1]}', '{"merge":[1e9]}']
)
def test_remembered_operations_of_another_type_count_as_absent(ops: str) -> None:
    header = f'{{"v":1,"t":1795263600000,"sch":1,"f":2,"n":2,"ops":{ops}}}'
    file = decode(f"{header}\n{{}}".encode(), KEYS.log_file(1_795_263_600_000, merged=False, writer="w"), KEYS)
    assert file.operations == {}


def test_an_unknown_name_of_a_later_version_is_carried(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    table.delete("k = 1")
    commit = table.history(limit=1)[0]
    edit_header(clocked, commit.log_file or "", lambda header: header.update(op="expire"))
    again = open_table(clocked, clock)
    assert (again.history(limit=1)[0].kind, again.history(limit=1)[0].kind_recorded) == ("drop", False)
    clock.advance(MINUTE_MS)
    assert merge_all(again, clocked).operations == {commit.at_ms: "expire"}


def test_two_operations_of_one_time_have_no_name() -> None:
    def file(operation: str, **more: object) -> LogFile:
        return LogFile(9, {}, operation=operation, **more)  # type: ignore[arg-type]

    assert carried_operations([file("merge"), file("insert")]) == {}
    assert carried_operations([file("merge"), file("")]) == {}
    assert carried_operations([file("insert")]) == {}
    assert carried_operations([file("merge", operations={5: "drop", 6: "insert"})]) == {5: "drop", 9: "merge"}
    assert (decode_operation(b'"merge"'), decode_operations(b'{"merge":[5,6]}')) == ("merge", {5: "merge", 6: "merge"})  # type: ignore[arg-type]


def test_an_append_at_the_time_of_a_merge_has_no_name(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    merged_ms = table.merge().commit.created_ms or 0
    markers = (Marker(table.handle.keys.part("k=9", "ff" * 16), 10, merged_ms, rows=1),)
    key = table.handle.keys.log_file(merged_ms, merged=False, writer="web-1-0123456789ab")
    clocked.create(key, encode(LogFile(merged_ms, {}, markers, operation="insert")))
    assert {c.kind for c in table.history(since=merged_ms)} == {"merge", "insert"}
    clock.advance(MINUTE_MS)
    merge_all(table, clocked)
    kinds = {c.at_ms: c.kind for c in open_table(clocked, clock).history()}
    assert kinds[merged_ms] == "overwrite", "one commit of both"


@pytest.mark.long
def test_the_names_of_a_large_table_are_kept(table: Table, clocked: ClockedStore, clock: ManualClock) -> None:
    at_ms = clock.now_ms()
    keys = [table.handle.keys.part(f"k={n % 7}", f"{n:032x}") for n in range(COLUMNS_MIN)]
    imported = LogFile(
        at_ms, {}, tuple(Marker(key, 10, at_ms, rows=2) for key in keys), operation="import", operations={7: "drop"}
    )
    clocked.create(table.handle.keys.log_file(at_ms, merged=False, writer="web-1-0123456789ab"), encode(imported))
    clock.advance(MINUTE_MS)
    dropped_ms = table.drop_partitions(["k=3"]).commit.created_ms
    clock.advance(MINUTE_MS)
    assert merge_all(table, clocked).operations == {at_ms: "import", dropped_ms: "drop"}, "no part has the time 7"
