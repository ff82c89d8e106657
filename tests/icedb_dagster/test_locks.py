"""A table's pool on a real instance: it exists before its first use, and one run at a time holds it."""

import json
import threading
from collections.abc import Mapping
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

from dagster._core.storage.event_log.schema import ConcurrencySlotsTable

import icedb
from icedb.errors import InvalidOption, PoolNotExclusive
from icedb_dagster import IceDBResource, ensure_pool, icedb_pool
from icedb_dagster.locking import table_lock
from icedb_dagster.locking.table_lock import check_pool_held
from icedb_dagster.maintenance import definitions
from icedb_dagster.maintenance.verbs import VERBS
from tests.support.dagster.dagster_instance import run_script
from tests.support.dagster.dagster_jobs import TableJobs, dated, maintain
from tests.support.waiting import wait_until

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.dagster_jobs"]

MERGE = "merge_newest"
#: The parts of a table with one partition.
THREE_PARTS = ["2024-01-01"] * 3
#: The method of the table that each exclusive job calls, and the required config.
WORK: Mapping[str, tuple[str, dict[str, Any]]] = {
    "merge_newest": ("merge", {}),
    "merge_oldest": ("merge", {}),
    "merge_log": ("merge_log", {}),
    "cleanup": ("cleanup", {}),
    "maintain": ("cleanup", {"kinds": ["cleanup"]}),
    "orphans": ("delete_orphans", {}),
    "rewrite": ("rewrite_partition", {"partition": "d=2024-01-01", "query": "SELECT * FROM _rows WHERE n < 2"}),
    "delete": ("delete", {"where": "n = 1"}),
    "restore": ("restore", {"as_of": "2100-01-01T00:00:00Z", "dry_run": True}),
    "ttl": ("drop_partitions", {}),
}


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.parametrize(("verb", "limit"), [*((verb, None) for verb in WORK), (MERGE, 5)])
def test_every_exclusive_job_holds_the_only_slot_of_its_pool(
    jobs: TableJobs, monkeypatch: pytest.MonkeyPatch, verb: str, limit: int | None
) -> None:
    assert set(WORK) == {v.name for v in VERBS if v.exclusive} | {"ttl"}
    jobs.dated(*THREE_PARTS)
    storage, pool = jobs.instance.event_log_storage, icedb_pool(jobs.name)
    assert pool not in storage.get_concurrency_keys()
    if limit is not None:
        storage.set_concurrency_slots(pool, limit)
    method, config = WORK[verb]
    during = []
    work = getattr(icedb.Table, method)

    def looking(*args: Any, **options: Any) -> Any:
        during.append(storage.get_concurrency_info(pool))
        try:
            return work(*args, **options)
        finally:
            during.append(storage.get_concurrency_info(pool))

    monkeypatch.setattr(icedb.Table, method, looking)
    if verb == "restore":  # an invalid time; the slot is free again after the error
        with pytest.raises(InvalidOption):
            jobs.run(verb, **config)
    else:
        assert jobs.run(verb, **config).success
    assert len(during) >= 2
    for info in during:
        assert info.slot_count == 1
        assert [slot.step_key for slot in info.claimed_slots] == [f"{jobs.name}_{verb}_work"]
    after = storage.get_concurrency_info(pool)
    assert (after.slot_count, after.claimed_slots, after.pending_steps) == (1, [], [])


@pytest.mark.sampled(days=3)
def test_a_pool_that_many_runs_create_concurrently_has_the_limit_one(instance: dg.DagsterInstance, name: str) -> None:
    runs, errors = 8, []

    def ensure(pool: str, barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            ensure_pool(instance, pool)
        except Exception as error:
            errors.append(error)

    for attempt in range(5):
        pool, barrier = f"{name}/{attempt}", threading.Barrier(runs)
        threads = [threading.Thread(target=ensure, args=(pool, barrier)) for _ in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        info = instance.event_log_storage.get_concurrency_info(pool)
        assert (info.slot_count, info.limit, info.using_default_limit) == (1, 1, False)
    assert errors == []


def test_an_instance_with_pools_of_run_granularity_is_rejected(
    environment: dict[str, str], lake: IceDBResource, name: str, tmp_path: Path
) -> None:
    ours = (Path(environment["DAGSTER_HOME"]) / "dagster.yaml").read_text()
    assert "granularity: op" in ours
    (tmp_path / "dagster.yaml").write_text(ours.replace("granularity: op", "granularity: run"))
    table = dated(lake, name, *THREE_PARTS)
    with (
        dg.DagsterInstance.from_config(str(tmp_path)) as by_run,
        pytest.raises(PoolNotExclusive, match=r"taken by no run.*granularity: op"),
    ):
        maintain(by_run, lake, name, MERGE)
    assert len(table.snapshot().parts) == 3


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("when", ["before the check", "during the check"])
def test_a_slot_assigned_twice_is_waited_for(jobs: TableJobs, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """On Postgres, the second of two concurrent claims overwrites the first, as simulated here."""
    table = jobs.dated(*THREE_PARTS)
    storage, pool = jobs.instance.event_log_storage, icedb_pool(jobs.name)
    rival, step = "the-rival", f"{jobs.name}_{MERGE}_work"
    events: list[str] = []
    frees: list[threading.Timer] = []

    def take() -> None:
        slots = ConcurrencySlotsTable
        with storage.index_connection() as connection:
            taken = slots.update().values(run_id=rival).where(slots.c.concurrency_key == pool)
            assert connection.execute(taken).rowcount == 1

    def free() -> None:
        events.append("the rival is done")
        storage.free_concurrency_slot_for_step(rival, step)

    def check(context: dg.OpExecutionContext, checked: str) -> None:
        if frees:
            check_pool_held(context, checked)
            return
        storage.add_pending_step(pool, rival, step, should_assign=True)
        frees.append(threading.Timer(2, free))
        try:
            with monkeypatch.context() as during:
                if when == "before the check":
                    take()
                else:
                    during.setattr(table_lock, "time", SimpleNamespace(sleep=lambda _: take()))
                check_pool_held(context, checked)
        finally:
            frees[0].start()

    merge = icedb.Table.merge

    def merging(*args: Any, **options: Any) -> Any:
        events.append("merge")
        return merge(*args, **options)

    monkeypatch.setattr(definitions, "check_pool_held", check)
    monkeypatch.setattr(icedb.Table, "merge", merging)
    try:
        assert jobs.run(MERGE).success
    finally:
        for thread in frees:
            thread.join()
    assert events[:2] == ["the rival is done", "merge"]
    assert len(table.snapshot().parts) == 1
    assert storage.get_concurrency_info(pool).claimed_slots == []


def test_a_waiting_run_does_not_poll_dagster_and_logs_the_holder(jobs: TableJobs) -> None:
    """Dagster's in-process executor would use a whole core while it waits."""
    table = jobs.dated(*THREE_PARTS)
    storage, pool = jobs.instance.event_log_storage, icedb_pool(jobs.name)
    ensure_pool(jobs.instance, pool)
    assert storage.claim_concurrency_slot(pool, "the-rival", "work").is_claimed
    waiting = threading.Thread(target=maintain, args=(jobs.instance, jobs.lake, jobs.name, MERGE))
    waiting.start()
    try:
        [run] = wait_until(lambda: jobs.instance.get_runs(dg.RunsFilter(job_name=f"{jobs.name}_{MERGE}")), "run")
        message = f"waiting for the pool {pool}, which run the-rival holds"
        wait_until(lambda: any(e.user_message == message for e in jobs.instance.all_logs(run.run_id)), message)
        assert [step.run_id for step in storage.get_concurrency_info(pool).pending_steps] == ["the-rival"]
        assert len(table.snapshot().parts) == 3
    finally:
        storage.free_concurrency_slots_for_run("the-rival")
        waiting.join()
    assert len(table.snapshot().parts) == 1


@pytest.mark.sampled(days=6)
@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.slow(seconds=30))])
def test_unqueued_runs_of_one_table_never_overlap(
    environment: dict[str, str], instance: dg.DagsterInstance, lake: IceDBResource, tmp_path: Path, count: int
) -> None:
    busy, other = f"busy_{count}", f"other_{count}"  # a new pool for each case
    for table in (busy, other):
        dated(lake, table, *THREE_PARTS)
        assert icedb_pool(table) not in instance.event_log_storage.get_concurrency_keys()
    tables = [busy] * count + [other] * 2
    task = {"root": lake.root, "tables": tables, "verb": MERGE, "hold_s": 0.3, "folder": str(tmp_path)}
    run_script("dagster/maintenance_runs.py", json.dumps(task))
    runs = json.loads((tmp_path / "all.json").read_text())
    assert [run["errors"] for run in runs if not run["success"]] == []
    runs.sort(key=lambda run: (run["table"], run["began"]))
    held = {table: list(of_table) for table, of_table in groupby(runs, key=lambda run: run["table"])}
    assert {table: len(of_table) for table, of_table in held.items()} == {busy: count, other: 2}
    for of_table in held.values():
        assert all(one["ended"] < next_["began"] for one, next_ in pairwise(of_table))
    assert held[other][0]["began"] < held[busy][-1]["ended"]  # it did not wait for the other table's runs
    assert held[busy][0]["began"] < held[other][-1]["ended"]
    for table in (busy, other):
        snapshot = lake.table(table).snapshot()
        assert (len(snapshot.parts), snapshot.rows) == (1, 3)
