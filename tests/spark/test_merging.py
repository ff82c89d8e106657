"""Spark as the engine of merges, deletions, rewrites and imports, with the results of a local run.

The session (see conftest) has two executors that are processes of their own; Spark Connect is another program's.
"""

from __future__ import annotations

import copy
import logging
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import icedb
import icedb.errors
from icedb import Aggregating, Dedup, Table
from icedb.errors import (
    AccessDenied,
    CommitTimedOut,
    IceDBError,
    InvalidOption,
    InvalidQuery,
    MissingPart,
    SchemaConflict,
    SnapshotExpired,
    SparkJobFailed,
    StoreUnavailable,
)
from icedb.operations.rewrite.delete import SearchTask
from icedb.operations.rewrite.engine import LOCAL_ENGINE, DistributedTask, Engine, Item, Result
from icedb.operations.rewrite.rewriter import Rewrite, Rewriting
from icedb.operations.write.spark_errors import explained
from icedb.spark import SparkEngine
from icedb.spark.spark_engine import assign_items
from icedb.spark.spark_tasks import Assignment, TaskTable, _jobs, run_tasks
from icedb.sql.connections import MEMORY_BYTES_MIN
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.testing import Crash, Fault, FaultyStore
from icedb.transaction.open_table import open_handle
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.stores import Place
from tests.support.processes import run_python
from tests.support.programs.sabotage import Saboteur, attempts
from tests.support.spark.spark_clusters import connect_server, environment
from tests.support.spark.spark_tables import content, log_keys, part_keys

#: The columns of `fill`.
ROW = "k, s"
CONNECT_PROGRAM = Path(__file__).parents[1] / "support" / "spark" / "connect_merging.py"

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type")]


@pytest.fixture(scope="module")
def engine(spark: SparkSession) -> SparkEngine:
    return SparkEngine(spark)


def fill(table: Table, batches: int = 3, rows: int = 20) -> Table:
    """Insert rows (k, s) as several small parts in each of three partitions, with repeated keys."""
    for batch in range(batches):
        table.insert([{"k": (k * 7) % rows, "s": f"{batch}-{k}"} for k in range(rows)])
    return table


def create(place: Place, **spec: Any) -> Table:
    layout = {"partition_by": ["k % 3 AS p"], "sort_by": ["k", "s"]} | spec
    return Table.create(place.uri, storage_options=place.storage_options, **layout)


def twins(place: Place, **spec: Any) -> tuple[Table, Table]:
    """Return two tables with the same rows: one for Spark, one for a local run."""
    return fill(create(place.below("spark"), **spec)), fill(create(place.below("here"), **spec))


def contents(table: Table) -> list[tuple[Any, ...]]:
    """Return the partition, the statistics in the log, and the ordered rows of each live part."""
    handle = table.handle
    markers = {m.key: m for m in handle.read(fresh=True).live}
    return sorted(
        (
            part.partition,
            part.rows,
            bytes(markers[part.key].stats),
            str(pq.read_table(pa.BufferReader(handle.store.get(part.key).body)).to_pylist()),
        )
        for part in table.snapshot().parts
    )


def check_sound(table: Table, *, orphans: int | None = 0) -> None:
    """Check that the table has no problem, and this number of orphans."""
    report = table.verify(deep=True)
    assert report.problems == ()
    assert orphans in (None, len(part_keys(table) - set(table.handle.read(fresh=True).parts)))


# ------------------------------------------------------------------------------------------ the same as in process


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="plain"),
        pytest.param({"merging": Dedup(by=("k",))}, id="dedup"),
        pytest.param({"merge_query": "SELECT k, max(s) AS s FROM source_files GROUP BY k"}, id="query"),
    ],
)
def test_a_merge_equals_a_local_one(spec: dict[str, Any], shared_place: Place, engine: SparkEngine) -> None:
    table, twin = twins(shared_place, **spec)
    before = log_keys(table)
    report, expected = table.merge(engine=engine), twin.merge()
    assert len(log_keys(table) - before) == 1
    assert (report.merged_parts, report.new_parts, report.rows) == (
        expected.merged_parts, expected.new_parts, expected.rows,
    ) == (9, 3, report.rows)  # fmt: skip
    assert contents(table) == contents(twin)
    check_sound(table)


@pytest.mark.sampled(days=3)
def test_aggregates_are_the_same(local: Place, engine: SparkEngine) -> None:
    aggregating = Aggregating(by=("k",), sum=("n",))
    tables = [create(local.below(name), sort_by=["k"], merging=aggregating) for name in ("spark", "here")]
    for table in tables:
        for _ in range(3):
            table.insert([{"k": k % 5, "n": k} for k in range(20)])
    tables[0].merge(engine=engine)
    tables[1].merge()
    assert contents(tables[0]) == contents(tables[1])
    check_sound(tables[0])


@pytest.mark.sampled(cases=1, days=3)
def test_a_deletion_equals_a_local_one(shared_place: Place, engine: SparkEngine) -> None:
    table, twin = twins(shared_place)
    planned = table.delete("k < 7 AND s LIKE '1-%'", dry_run=True, engine=engine)
    assert contents(table) == contents(twin)
    before = log_keys(table)
    report, expected = (t.delete("k < 7 AND s LIKE '1-%'", engine=e) for t, e in ((table, engine), (twin, None)))
    assert len(log_keys(table) - before) == 1
    assert (report.deleted_rows, report.rewritten_parts) == (expected.deleted_rows, expected.rewritten_parts)
    assert planned.matching_rows == report.deleted_rows == 7
    assert contents(table) == contents(twin)
    check_sound(table)


@pytest.mark.sampled(cases=1, days=3)
def test_a_rewrite_of_a_partition_equals_a_local_one(shared_place: Place, engine: SparkEngine) -> None:
    table, twin = twins(shared_place)
    query = "SELECT k, upper(s) AS s, k * 2 AS twice FROM _rows WHERE k > 5"
    planned = table.rewrite_partition("p=1", query, new_columns=True, dry_run=True, engine=engine)
    assert contents(table) == contents(twin)
    report = table.rewrite_partition("p=1", query, new_columns=True, engine=engine)
    twin.rewrite_partition("p=1", query, new_columns=True)
    assert planned.rows == report.rows
    assert table.schema() == twin.schema()
    assert contents(table) == contents(twin)
    check_sound(table)


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("where", ["elsewhere", "beside"])
def test_an_import_equals_a_local_one(where: str, shared_place: Place, local: Place, engine: SparkEngine) -> None:
    """Tasks fetch and put files of another store. The store copies files of the table's own bucket."""
    source = local.below("files") if where == "elsewhere" else shared_place.below("files")
    writer = Table.create(source.uri, storage_options=source.storage_options, partition_by=["k % 3 AS p"])
    for n in range(4):
        writer.insert([{"k": k, "s": f"{n}"} for k in range(n, n + 9)])
    plain = Path(local.uri).parent / "plain"
    for part in writer.snapshot().parts:
        path = plain / part.partition / part.key.rsplit("/", 1)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(writer.handle.store.get(part.key).body)
    address, options = str(plain), None
    if where == "beside" and shared_place.kind == "s3":
        for path in plain.rglob("*.parquet"):
            key = f"{writer.handle.location.prefix}-plain/{path.relative_to(plain)}"
            writer.handle.store.create(key, path)
        address, options = f"{source.uri}-plain", source.storage_options
    table, twin = create(shared_place.below("spark")), create(shared_place.below("here"))
    planned = table.import_files(address, storage_options=options, dry_run=True, engine=engine)
    report = table.import_files(address, storage_options=options, verify=True, engine=engine)
    expected = twin.import_files(address, storage_options=options, verify=True)
    assert (planned.rows, report.rows, len(report.copied)) == (36, 36, 12)
    assert (report.partitions, report.columns) == (expected.partitions, expected.columns)
    assert contents(table) == contents(twin)
    again = table.import_files(address, storage_options=options, engine=engine)
    assert (again.commit.committed, len(again.skipped)) == (False, 12)
    check_sound(table)


def test_a_table_is_created_by_an_import(local: Place, engine: SparkEngine) -> None:
    source = Path(local.uri).parent / "files"
    for d in ("2026-01-01", "2026-01-02"):
        (source / f"d={d}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [2, 1]}), source / f"d={d}" / "a.parquet")
    assert Table.create_from_files(local.uri, source, engine=engine).rows == 4
    assert len(content(Table.open(local.uri), "d, n")) == 4


@pytest.mark.sampled(days=3)
def test_a_log_in_a_store_of_its_own(local: Place, s3: Place, engine: SparkEngine) -> None:
    table = fill(
        Table.create(
            s3.uri, storage_options=s3.storage_options, partition_by=["k % 3 AS p"], log_uri=local.below("log").uri
        )
    )
    before = content(table, ROW)
    assert table.merge(engine=engine).new_parts == 3
    assert content(table, ROW) == before
    check_sound(table)


@pytest.mark.sampled(days=3)
def test_parts_without_a_column_and_a_spec_of_another_time(local: Place, engine: SparkEngine) -> None:
    """Schema and partitioning changed since the first parts. The tasks use the spec of the plan."""
    table = fill(create(local), batches=2)
    table.insert([{"k": k, "s": None, "more": k / 2} for k in range(6)])
    table.alter(sort_by=["s"])
    table.insert([{"k": k, "s": "z", "more": None} for k in range(6)])
    before = content(table, "k, s, more")
    assert table.merge(engine=engine).new_parts == 3
    assert content(table, "k, s, more") == before
    for part in table.snapshot().parts:
        stored = pq.read_table(part.path)["s"].to_pylist()
        assert stored == sorted(stored, key=lambda s: (s is None, s))


@pytest.mark.sampled(days=3)
def test_many_items_share_few_tasks(local: Place, spark: SparkSession) -> None:
    table = create(local, partition_by=["k % 7 AS p"])
    before = content(fill(table, rows=30), ROW)
    assert table.merge(engine=SparkEngine(spark, tasks_max=2)).new_parts == 7
    assert content(table, ROW) == before
    check_sound(table)


# ------------------------------------------------------------------------------------------ which task does what


def parts_of(*sizes: int) -> list[Rewrite]:
    part = icedb.Part("k", "p", "", 0, 1, 0)
    return [Rewrite("", (replace(part, key=str(n), bytes=size),)) for n, size in enumerate(sizes)]


def test_each_item_has_a_task_and_the_largest_is_first() -> None:
    assert assign_items(Rewriting({}), parts_of(5, 900, 30), tasks_max=1_000) == [[1], [2], [0]]


def test_items_are_balanced_by_bytes_over_few_tasks() -> None:
    shares = assign_items(Rewriting({}), parts_of(10, 9, 8, 2, 1), tasks_max=2)
    assert sorted(map(sorted, shares)) == [[0, 3, 4], [1, 2]]
    assert sorted(position for share in shares for position in share) == [0, 1, 2, 3, 4]


def test_large_items_have_their_own_tasks() -> None:
    many = [replace(r, inputs=tuple(replace(p, bytes=2**30) for p in r.inputs)) for r in parts_of(*range(16))]
    assert len(assign_items(_ByTheDozen(), many, tasks_max=1_000)) == 16
    assert len(assign_items(_ByTheDozen(), parts_of(*range(30)), tasks_max=1_000)) == 3


@pytest.mark.sampled(days=3)
def test_work_that_puts_parts_must_report_them(local: Place, engine: SparkEngine) -> None:
    """Otherwise all parts of its tasks would be deleted as unused."""
    table = fill(create(local))
    before = content(table, ROW)
    with pytest.raises(NotImplementedError, match="must implement part_of"):
        table.merge(engine=_Forgetful(engine))
    assert content(table, ROW) == before


@dataclass(frozen=True)
class _Forgetful:
    engine: SparkEngine

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        assert isinstance(work, Rewriting)
        return self.engine.run(handle, _Silent(work.schema, work.dry_run), items)  # type: ignore[arg-type]


class _Silent(Rewriting):
    part_of = DistributedTask.part_of


class _ByTheDozen(Rewriting):
    items_per_task = 12

    def __init__(self) -> None:
        super().__init__({})


def test_common_objects_of_items_are_pickled_once() -> None:
    predicate = f"k IN ({', '.join(map(str, range(100_000)))})"
    pieces = [[replace(r, drop_where=predicate)] for r in parts_of(*range(1_000))]
    [(tasks, pickled)] = _jobs(pieces)
    assert tasks == 1_000
    assert len(pickled) < 2 * len(predicate)
    assert pickle.loads(pickled) == pieces


def test_items_beyond_the_limit_of_a_job_become_several_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icedb.spark.spark_tasks.JOB_BYTES_MAX", 2_000)
    pieces = [[r] for r in parts_of(*range(100))]
    jobs = list(_jobs(pieces))
    assert len(jobs) > 1
    assert [share for _, job in jobs for share in pickle.loads(job)] == pieces
    assert [tasks for tasks, _ in jobs] == [len(pickle.loads(job)) for _, job in jobs]


# ------------------------------------------------------------------------------------------ exactly once


def test_unseen_parts_are_not_committed(local: Place, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executors have another folder at the table's path."""
    table = fill(create(local))
    before, logged, parts = content(table, ROW), log_keys(table), part_keys(table)

    def elsewhere(*args: Any) -> Any:
        answers = run_tasks(*args)
        table.handle.store.delete([new.marker.key for [new] in answers if new.marker is not None])
        return answers

    monkeypatch.setattr("icedb.spark.spark_engine.run_tasks", elsewhere)
    with pytest.raises(InvalidOption, match="one folder that all machines share"):
        table.merge(engine=engine)
    assert (content(table, ROW), log_keys(table), part_keys(table)) == (before, logged, parts)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("ConnectionRefusedError: [Errno 111] Connection refused", "a Spark task failed"),
        ("ValueError: it was cancelled because of x", "a Spark task failed"),
        ("_duckdb.OutOfMemoryException: Out of Memory Error: failed to allocate", "ran out of memory"),
    ],
)
def test_an_error_of_a_task_is_not_read_as_the_end_of_the_session(raised: str, message: str) -> None:
    text = f"Job aborted due to stage failure\nTraceback (most recent call last):\n  File x\n{raised}\n"
    assert message in str(explained(RuntimeError(text), table="lake"))


@pytest.mark.sampled(days=3)
def test_a_predicate_that_fails_for_a_row_is_not_retried(local: Place, engine: SparkEngine) -> None:
    table = fill(create(local))
    with pytest.raises(InvalidOption, match="TRY_CAST"):
        table.delete("CAST(s AS INTEGER) = 1", engine=engine)


@pytest.mark.sampled(cases=1, days=3)
def test_a_task_with_a_lost_response_is_retried(shared_place: Place, engine: SparkEngine, tmp_path: Path) -> None:
    table = fill(create(shared_place))
    before = content(table, ROW)
    assert table.merge(engine=Saboteur(engine, "answer lost", tmp_path)).new_parts == 3
    assert attempts(tmp_path) == 4
    assert content(table, ROW) == before
    check_sound(table, orphans=0)


@pytest.mark.sampled(days=3)
def test_a_dead_task_is_retried_and_its_parts_are_deleted(local: Place, engine: SparkEngine, tmp_path: Path) -> None:
    table = fill(create(local))
    before, logged = content(table, ROW), log_keys(table)
    assert table.merge(engine=Saboteur(engine, "killed", tmp_path)).new_parts == 3
    assert len(log_keys(table) - logged) == 1
    assert content(table, ROW) == before
    check_sound(table, orphans=0)  # the parts of the first attempt have its mark


@pytest.mark.sampled(cases=1, days=3)
def test_a_task_that_always_dies_commits_nothing(shared_place: Place, engine: SparkEngine, tmp_path: Path) -> None:
    table = fill(create(shared_place))
    before, logged, parts = content(table, ROW), log_keys(table), part_keys(table)
    saboteur = Saboteur(engine, "dies after the others", tmp_path, others=2)
    with pytest.raises(SparkJobFailed) as caught:
        table.merge(engine=saboteur)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{table.uri}: a Spark task died")
    assert caught.value.__context__ is not None  # Spark's whole text
    assert (log_keys(table), part_keys(table), content(table, ROW)) == (logged, parts, before)
    check_sound(table)


def test_an_unexpected_error_is_reported_in_the_first_line(local: Place, engine: SparkEngine, tmp_path: Path) -> None:
    table = fill(create(local))
    with pytest.raises(SparkJobFailed, match="ZeroDivisionError: nobody knows why") as caught:
        table.delete("k = 1", engine=Saboteur(engine, "unknown error", tmp_path, times=99))
    assert str(caught.value).splitlines()[0].startswith(table.uri)


@pytest.mark.sampled(days=3)
def test_a_permanent_error_is_not_retried(local: Place, engine: SparkEngine, tmp_path: Path) -> None:
    """Two of three groups are written before the third one fails."""
    query = "SELECT k, CAST(s AS VARCHAR) AS s FROM source_files WHERE CASE WHEN k = 4 THEN error('no four') ELSE 1 END"
    table = fill(create(local, merge_query=query))
    parts, logged = part_keys(table), log_keys(table)
    with pytest.raises(InvalidQuery, match="no four"):
        table.merge(engine=Saboteur(engine, "killed", tmp_path, times=0))
    assert attempts(tmp_path) == 3
    assert (part_keys(table), log_keys(table)) == (parts, logged)


@pytest.mark.sampled(days=3)
def test_fields_of_an_error_survive_the_return_from_a_task(local: Place, engine: SparkEngine) -> None:
    table = fill(create(local))
    with pytest.raises(SchemaConflict) as caught:
        table.rewrite_partition("p=0", "SELECT 'x' AS k, s FROM _rows", engine=engine)
    assert caught.value.column == "k"
    table.handle.store.delete([table.snapshot().parts[0].key])
    with pytest.raises(MissingPart, match=table.snapshot().parts[0].key):
        table.merge(engine=engine)


@dataclass
class ConcurrentEngine:
    """An engine that calls a function after its work."""

    engine: Engine
    act: Callable[[], object]

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        results = self.engine.run(handle, work, items)
        self.act()
        return results


@pytest.mark.sampled(cases=1, days=3)
def test_parts_of_groups_lost_to_another_commit_are_deleted(shared_place: Place, engine: SparkEngine) -> None:
    table = fill(create(shared_place))
    before = content(table, ROW)
    other = Table.open(shared_place.uri, storage_options=shared_place.storage_options)
    act = ConcurrentEngine(engine, lambda: other.rewrite_partition("p=1", "SELECT * EXCLUDE (p) FROM _rows"))
    report = table.merge(engine=act)
    assert (report.dropped_groups, report.new_parts) == (1, 2)
    assert content(table, ROW) == before
    check_sound(table, orphans=0)


@pytest.mark.sampled(days=3)
def test_a_rewrite_of_a_changed_partition_is_repeated(local: Place, engine: SparkEngine) -> None:
    table = fill(create(local))
    changes: Iterator[Callable[[], object]] = iter([lambda: Table.open(local.uri).merge(), lambda: None])
    act = ConcurrentEngine(engine, lambda: next(changes)())
    table.rewrite_partition("p=1", "SELECT k, upper(s) || '!' AS s FROM _rows", engine=act)
    assert all(s.endswith("!") == (k % 3 == 1) for k, s in content(table, ROW))
    check_sound(table, orphans=0)


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("when", ["before the claim", "after the claim", "after the log file"])
def test_a_driver_that_dies_leaves_orphans_or_the_whole_commit(when: str, local: Place, engine: SparkEngine) -> None:
    table = fill(create(local))
    before = content(table, ROW)
    store = FaultyStore(table.handle.store)
    driver = Table(open_handle(store))
    driver.handle.check_writable()
    fault = Fault.CRASH_BEFORE if when == "before the claim" else Fault.CRASH_AFTER
    store.inject(fault, kind="create", key="_log/" if when == "after the log file" else "_claims/epoch")
    with pytest.raises(Crash):
        driver.merge(engine=engine)
    if when == "before the claim":
        check_sound(table, orphans=3)
    assert content(table, ROW) == before
    table.merge(engine=engine)
    assert content(table, ROW) == before
    assert len(table.snapshot().parts) == 3
    check_sound(table, orphans=3 if when == "before the claim" else 0)


@pytest.mark.sampled(days=3)
def test_expired_parts_are_not_published(local: Place, engine: SparkEngine) -> None:
    """The age of new parts counts from before the first task, by the driver's clock."""
    table = fill(create(local))

    class Sleeping:
        ahead_ms = 0

        def now_ms(self) -> int:
            return clock.now_ms() + self.ahead_ms

        def new_id(self) -> str:
            return clock.new_id()

    clock, sleeping = table.handle.clock, Sleeping()
    table = Table(replace(table.handle, clock=sleeping))

    def sleep() -> None:
        sleeping.ahead_ms = table.handle.timing.part_timeout_ms + 1_000

    parts = part_keys(table)
    with pytest.raises(CommitTimedOut):
        table.merge(engine=ConcurrentEngine(engine, sleep))
    assert {p.key for p in Table.open(local.uri).snapshot().parts} == parts


# ------------------------------------------------------------------------------------------ rejections and messages


def test_a_table_in_memory_is_rejected(memory: Place, local: Place, engine: SparkEngine) -> None:
    table = fill(create(memory))
    with pytest.raises(InvalidOption, match="the memory of this process"):
        table.merge(engine=engine)
    files = open_store(parse_location(f"{memory.uri}-files"))
    files.create(f"{files.location.prefix}/a.parquet", table.handle.store.get(table.snapshot().parts[0].key).body)
    with pytest.raises(InvalidOption, match="the memory of this process"):
        create(local, partition_by=[]).import_files(files.location.uri, engine=engine)


@pytest.mark.parametrize("options", [{"memory_bytes": 1}, {"tasks_max": 0}, {"memory_bytes": "much"}])
def test_options_of_the_engine_are_validated_immediately(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        SparkEngine(None, **options)  # type: ignore[arg-type]


def test_memory_bytes_and_an_engine_exclude_each_other(local: Place) -> None:
    with pytest.raises(InvalidOption, match="memory_bytes"):
        create(local).merge(memory_bytes=2**30, engine=LOCAL_ENGINE)


@pytest.mark.sampled(days=3)
def test_no_text_contains_secrets(s3: Place, engine: SparkEngine, spark: SparkSession, tmp_path: Path) -> None:
    table = fill(create(s3))
    assert s3.storage_options
    secret = s3.storage_options["AWS_SECRET_ACCESS_KEY"]
    with pytest.raises(SparkJobFailed) as caught:
        table.merge(engine=Saboteur(engine, "killed", tmp_path, times=99))
    assignment = Assignment(TaskTable.of(table.handle, "m"), SearchTask("true", {}, {}), 2**28)
    for text in (str(caught.value), repr(caught.value), str(caught.value.__context__), repr(assignment), repr(engine)):
        assert secret not in text


def rewrite_elsewhere(table: Table, spark: SparkSession, **changes: Any) -> None:
    """Rewrite one partition in tasks with another location."""
    task_table = TaskTable.of(table.handle, "m")
    assignment = Assignment(
        replace(task_table, location=replace(task_table.location, **changes)),
        Rewriting(table.schema()),
        MEMORY_BYTES_MIN,
    )
    run_tasks(spark, assignment, [[Rewrite("p=0", tuple(p for p in table.snapshot().parts if p.partition == "p=0"))]])


@pytest.mark.sampled(days=3)
def test_denied_access_is_reported(s3: Place, spark: SparkSession) -> None:
    table = fill(create(s3))
    credentials = table.handle.location.explicit_credentials
    assert credentials
    with pytest.raises(AccessDenied, match="access was refused") as caught:
        rewrite_elsewhere(table, spark, explicit_credentials=replace(credentials, secret_access_key="w" * 40))
    assert str(caught.value).splitlines()[0].startswith(s3.uri)
    assert "w" * 40 not in str(caught.value)


@pytest.mark.sampled(days=3)
def test_an_unreachable_store_is_reported_after_retries(s3: Place, spark: SparkSession) -> None:
    table = fill(create(s3))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # never listens
        with pytest.raises(StoreUnavailable, match=r"^s3://.*did not serve the request.*Check the endpoint"):
            rewrite_elsewhere(table, spark, endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")


# ------------------------------------------------------------------------------------------ Spark's errors in our words

ONE_OF_EACH: list[IceDBError] = [
    SchemaConflict("t: no", column="c", types=("A", "B"), log_files=("x", "y")),
    SnapshotExpired("t: no", horizon_ms=7),
    icedb.errors.CorruptLog("t: no", key="k"),
    *(
        getattr(icedb.errors, name)(f"{name}: no")
        for name in icedb.errors.__all__
        if name not in ("SchemaConflict", "SnapshotExpired", "CorruptLog")
    ),
]


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_every_error_can_be_pickled_with_its_fields(error: IceDBError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), again.args, vars(again)) == (type(error), str(error), error.args, vars(error))


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_an_icedb_error_is_parsed_from_a_traceback(error: IceDBError) -> None:
    trace = (
        "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted: "
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        f'  File "x.py", line 1, in f\n    raise x\nicedb.errors.{type(error).__name__}: {error}\nsecond line\n\n'
        "\tat org.apache.spark.x(X.scala:1)\n"
    )
    translated = explained(RuntimeError(trace), table="t")
    assert type(translated) is type(error)
    assert str(translated) == f"{error}\nsecond line"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[SPARK_JOB_CANCELLED] Job 8 cancelled as part of cancellation of all jobs", "cancelled"),
        ("(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled.", "cancelled"),
        ("Job aborted: ... java.lang.OutOfMemoryError: Java heap space", "ran out of memory"),
        ("Traceback (most recent call last):\n  File\nMemoryError", "ran out of memory"),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", "died"),
        ("ModuleNotFoundError: No module named 'icedb'", "lack the Python package 'icedb'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "another Python"),
        ("Traceback (most recent call last):\n  File\nValueError: bad\n SQLSTATE: 38000", "ValueError: bad"),
        (
            "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n[PYTHON_EXCEPTION] "
            "An exception was thrown from the Python worker: ValueError: bad\n SQLSTATE: 38000",
            "a Spark task failed (ValueError: bad)",
        ),
        ("An error occurred while calling o1.x.\n: java.lang.Foo: a\n\tat b", "java.lang.Foo: a"),
        ("[UNRESOLVED_COLUMN] no `x`\nmore", "[UNRESOLVED_COLUMN] no `x`"),
        ("", "without a message"),
    ],
)
def test_the_outcome_of_a_job_is_one_line(text: str, message: str) -> None:
    translated = explained(RuntimeError(text), table="s3://lake/t")
    assert type(translated) is SparkJobFailed
    assert str(translated).startswith("s3://lake/t: ")
    assert message in str(translated)
    assert len(str(translated).splitlines()) == 1


def test_icedb_errors_are_not_translated() -> None:
    error = StoreUnavailable("t: no")
    assert explained(error, table="t") is error


# ------------------------------------------------------------------------------------------ Spark Connect


@pytest.mark.slow(seconds=40)
def test_all_operations_work_over_spark_connect(s3: Place, spark_home: Path, tmp_path: Path) -> None:
    """In other processes, because this one has a classic session."""
    table = fill(create(s3))
    source = tmp_path / "files" / "p=1"
    source.mkdir(parents=True)
    pq.write_table(pa.table({"k": [1, 4], "s": ["x", "y"]}), source / "a.parquet")
    env = environment(spark_home)
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server", env) as address:
        run_python(CONNECT_PROGRAM, address, table.uri, tmp_path, env=env | (s3.storage_options or {}), cwd=tmp_path)
    assert len(table.snapshot().parts) == 4
    assert ("x",) in content(table, "s")
    check_sound(table, orphans=None)  # of a job that failed, a task may put its part when all are deleted


@pytest.mark.sampled(days=3)
def test_progress_is_logged(local: Place, engine: SparkEngine, caplog: pytest.LogCaptureFixture) -> None:
    table = fill(create(local))
    with caplog.at_level(logging.INFO, logger="icedb.spark"):
        table.merge(engine=engine)
    assert [r.getMessage() for r in caplog.records if r.name.startswith("icedb.spark")] == [
        f"{table.uri}: rewriting parts, items: 3, Spark tasks: 3",
        f"{table.uri}: rewriting parts, all 3 items are done",
    ]
