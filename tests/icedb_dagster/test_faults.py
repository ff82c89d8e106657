"""Runs of one table never overlap, and faults of runs, daemon and Postgres damage neither table nor lock.

The table is exact after each fault, and the slot of its pool becomes free without a manual step. One test checks that
this takes less than a minute with the shipped intervals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

dg = pytest.importorskip("dagster")

from icedb_dagster import IceDBResource, icedb_pool
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.graphql import location_errors
from tests.support.dagster.dagster_jobs import maintain
from tests.support.dagster.dagster_platform import CODE, FORCED_CANCEL, MERGE, Platform, running, shipped, until
from tests.support.object_stores.stores import BUCKET
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dagster, pytest.mark.s3]

#: Each table has a run that is stopped at a moment of its merge.
MOMENTS = {
    "killed_writing": "first-part",
    "killed_claimed": "after-claim",
    "paused": "before-claim",
    "canceled": "before-claim",
}
MORE = ("unrecorded", "outlived", "interrupted", "waited", "cut_off", "twins", "lost", "orphaned")
QUEUED = ("asked", "other", "busy", "another")


@pytest.fixture(scope="module")
def shared_platform(tmp_path_factory: pytest.TempPathFactory, storage_options: dict[str, str]) -> Iterator[Platform]:
    project = tmp_path_factory.mktemp("faults") / "project"
    root = f"s3://{BUCKET}/{project.parent.name}-{os.getpid()}"
    lake = IceDBResource(root=root, storage_options={name: dg.EnvVar(name) for name in storage_options})
    by_hand = ["asked", "alone"]
    with running(project, (*MOMENTS, *MORE, *QUEUED), lake=lake, environ=storage_options, by_hand=by_hand) as started:
        yield started


@pytest.fixture
def platform(shared_platform: Platform) -> Iterator[Platform]:
    yield shared_platform
    shared_platform.cancel_unfinished()


@pytest.mark.sampled(days=3)
def test_the_pools_of_all_loaded_tables_exist_before_the_first_run(platform: Platform) -> None:
    for table in (*QUEUED, "alone"):
        info = platform.pool(table)
        assert (info.slot_count, info.limit, info.using_default_limit) == (1, 1, False)


def runs_of_one_table_never_overlap_however_they_were_started_and_those_of_another_do(platform: Platform) -> None:
    runs = _begin(platform, {"asked": 2, "other": 1})
    job = f"asked_{MERGE}"
    commands = [
        [sys.executable, "-m", "dagster", "job", "execute", "-f", str(CODE), "-j", job],
        [sys.executable, "-m", "tests.support.dagster.dagster_code", "asked"],  # materialize() on the instance
    ]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]

    def waiting() -> bool:
        assert [other.poll() for other in others] == [None, None]
        by_command = platform.instance.get_runs(dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.STARTED]))
        by_asset = [step for step in platform.pool("asked").pending_steps if step.assigned_timestamp is None]
        return len(by_command) == 3 and len(by_asset) == 1

    try:
        until(waiting, "two more runs that wait")
        assert platform.holders("asked")[0] in runs["asked"]
    finally:
        _check_that_they_take_turns(platform, runs, more={"asked": 2})
        ended = [other.wait() for other in others]
    assert ended == [0, 0]


@pytest.mark.slow(seconds=40)
def test_many_queued_runs_of_one_table_never_overlap(platform: Platform) -> None:
    _check_that_they_take_turns(platform, _begin(platform, {"busy": 8, "another": 2}), more={})


def _begin(platform: Platform, counts: dict[str, int]) -> dict[str, list[str]]:
    """Launch so many runs of each table, whose pools are fresh; the first of each stops in the middle of its work."""
    platform.fill(*counts)
    for table in counts:  # `up` has made sure of the pools
        platform.instance.event_log_storage.delete_concurrency_limit(icedb_pool(table))
        platform.arm(table, "before-claim")
    runs = {table: [platform.merge(table) for _ in range(count)] for table, count in counts.items()}
    platform.started(*(run for of_table in runs.values() for run in of_table))
    for table in runs:
        platform.reached(table, "before-claim")  # all at once
    for table in runs:
        assert len(platform.holders(table)) == platform.pool(table).slot_count == 1
        assert platform.spans(table) == []
    return runs


def _check_that_they_take_turns(platform: Platform, runs: dict[str, list[str]], more: dict[str, int]) -> None:
    """Release all runs. `more`: the number of runs of a table that were started otherwise."""
    for table in runs:
        platform.open(table, "before-claim")
    for table, of_table in runs.items():
        assert platform.ended(*of_table) == ["SUCCESS"] * len(of_table), platform.why(of_table[0])
        count = len(of_table) + more.get(table, 0)
        until(lambda table=table, count=count: len(platform.spans(table)) == count, f"{count} runs of {table}")
        assert all(one.ended < next_.began for one, next_ in pairwise(platform.spans(table)))
        until(lambda table=table: platform.holders(table) == [], f"free slot of {table}")
        assert platform.pool(table).pending_steps == []
    platform.audit(*runs, live_parts=1)


@pytest.fixture(scope="module")
def aftermath(shared_platform: Platform) -> dict[str, dict[str, str]]:
    """Kill runs of several tables at once, and return how each ended, and the live parts after the next merge."""
    shared_platform.fill(*MOMENTS)
    for table, moment in MOMENTS.items():
        shared_platform.arm(table, moment)
    runs = {table: shared_platform.merge(table) for table in MOMENTS}
    pids = {table: shared_platform.reached(table, moment) for table, moment in MOMENTS.items()}
    assert {table: shared_platform.holders(table) for table in MOMENTS} == {table: [run] for table, run in runs.items()}

    for table in ("killed_writing", "killed_claimed"):
        os.kill(pids[table], signal.SIGKILL)
    os.kill(pids["paused"], signal.SIGSTOP)
    assert shared_platform.ask(FORCED_CANCEL, run=runs["canceled"])["__typename"] == "TerminateRunSuccess"
    # Run monitoring does this with a run whose worker it considers dead. The worker gets no signal.
    given_up = shared_platform.instance.get_run_by_id(runs["paused"])
    assert given_up is not None
    shared_platform.instance.report_run_failed(given_up, "its worker does not answer")

    ends = shared_platform.ended(*runs.values())
    rival = shared_platform.merge("paused")
    for table in MOMENTS:
        until(lambda table=table: runs[table] not in shared_platform.holders(table), f"free slot of {table}")
        if table != "paused":
            assert maintain(shared_platform.instance, shared_platform.lake, table, MERGE).success
    assert shared_platform.ended(rival) == ["SUCCESS"], shared_platform.why(rival)
    live = {table: shared_platform.live_parts(table) for table in MOMENTS}
    shared_platform.open("paused", MOMENTS["paused"])
    os.kill(pids["paused"], signal.SIGCONT)
    wait_until(lambda: not _runs(pids["paused"]), "end of the worker that was paused")
    return {table: {"end": end, "live": live[table]} for table, end in zip(MOMENTS, ends, strict=True)}


@pytest.mark.sampled(days=6)
@pytest.mark.parametrize("table", ["killed_writing", "killed_claimed"])
def test_the_run_of_a_killed_worker_fails(platform: Platform, aftermath: dict[str, dict[str, str]], table: str) -> None:
    assert aftermath[table]["end"] == "FAILURE"
    platform.audit(table, live_parts=1)
    assert platform.holders(table) == []


def test_the_late_merge_of_a_paused_worker_is_empty(platform: Platform, aftermath: dict[str, dict[str, str]]) -> None:
    assert aftermath["paused"]["end"] == "FAILURE"
    late, rival = platform.spans("paused")
    assert late.began < rival.began < rival.ended < late.ended
    assert (late.dropped_groups, rival.dropped_groups) == (1, 0)  # it continued, and lost its only group
    assert platform.live_parts("paused") == aftermath["paused"]["live"]
    platform.audit("paused", live_parts=1)
    assert platform.holders("paused") == []


def test_a_forced_cancel_frees_the_table(platform: Platform, aftermath: dict[str, dict[str, str]]) -> None:
    assert aftermath["canceled"]["end"] == "CANCELED"
    assert platform.live_parts("canceled") == aftermath["canceled"]["live"]
    platform.audit("canceled", live_parts=1)
    assert platform.holders("canceled") == []


def runs_outlive_a_killed_daemon_and_its_successor(platform: Platform) -> None:
    tables = ("outlived", "interrupted")
    runs, _ = platform.stop_merges(*tables)
    os.kill(platform.pid("daemon"), signal.SIGKILL)
    platform.open("outlived", "before-claim")
    assert platform.ended(runs[0]) == ["SUCCESS"], platform.why(runs[0])
    platform.up()
    platform.open("interrupted", "before-claim")
    assert platform.ended(runs[1]) == ["SUCCESS"], platform.why(runs[1])
    _check_free_and_exact(platform, *tables)


def two_daemons_on_one_database_leave_the_table_exact(platform: Platform) -> None:
    platform.fill("twins")
    with _second_daemon(platform):
        runs = [platform.merge("twins") for _ in range(2)]
        assert "SUCCESS" in platform.ended(*runs)
    _check_free_and_exact(platform, "twins")


def a_worker_outlives_its_code_server_and_the_run_of_a_dead_one_fails(platform: Platform) -> None:
    tables = ("lost", "orphaned")
    runs, (lost, orphaned) = platform.stop_merges(*tables)
    [code_server] = {_parent(lost), _parent(orphaned)}
    os.kill(code_server, signal.SIGKILL)
    os.kill(lost, signal.SIGKILL)
    behind = platform.enqueue_again(runs[0])
    assert platform.ended(runs[0]) == ["FAILURE"]
    assert f"The worker is gone: its process {lost} has ended" in platform.why(runs[0])
    assert platform.statuses(runs[1:]) == ["STARTED"]
    platform.open("orphaned", "before-claim")
    assert platform.ended(runs[1]) == ["SUCCESS"], platform.why(runs[1])
    # The stack starts another code server, and the queue launches the run again until that one answers.
    assert platform.ended(behind) == ["SUCCESS"], platform.why(behind)
    assert platform.times_queued(behind) > 1
    assert "tested answers again" in platform.log("code")
    until(lambda: location_errors(platform.port) == (), "recovery of the web server")
    _check_free_and_exact(platform, *tables)


def a_merge_comes_to_its_end_whether_postgres_is_back_before_or_after_its_commit(platform: Platform) -> None:
    tables = ("waited", "cut_off")
    runs, pids = platform.stop_merges(*tables)
    stack.down(platform.project, services=("postgres",))
    platform.open("cut_off", "before-claim")
    until(lambda: platform.live_parts("cut_off").count("\n") == 0, "commit of the run that has no Postgres")
    platform.up()
    platform.open("waited", "before-claim")
    assert platform.ended(runs[0]) == ["SUCCESS"], platform.why(runs[0])
    wait_until(lambda: not _runs(pids[1]), "end of the worker that had no Postgres")
    _check_free_and_exact(platform, *tables)


def a_run_whose_end_its_code_server_could_not_record_fails(platform: Platform) -> None:
    [run], [worker] = platform.stop_merges("unrecorded")
    stack.down(platform.project, services=("postgres",))
    os.kill(worker, signal.SIGKILL)
    error = "_check_for_orphaned_runs"
    wait_until(lambda: error in platform.log("code"), "error of the code server that observes workers")
    platform.up()
    assert platform.ended(run) == ["FAILURE"]
    assert f"The worker is gone: its process {worker} has ended" in platform.why(run)
    _check_free_and_exact(platform, "unrecorded")


EVENTS = (
    a_run_whose_end_its_code_server_could_not_record_fails,
    runs_of_one_table_never_overlap_however_they_were_started_and_those_of_another_do,
    runs_outlive_a_killed_daemon_and_its_successor,
    two_daemons_on_one_database_leave_the_table_exact,
    a_worker_outlives_its_code_server_and_the_run_of_a_dead_one_fails,
    a_merge_comes_to_its_end_whether_postgres_is_back_before_or_after_its_commit,
)


@pytest.mark.sampled(cases=1, days=6)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_platform_faults_leave_table_and_lock_sound(platform: Platform, event: Callable[[Platform], None]) -> None:
    event(platform)


@contextmanager
def _second_daemon(platform: Platform) -> Iterator[None]:
    """Run a second daemon, as on another machine."""
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(platform.project / "workspace.yaml")]
    kind = "QUEUED_RUN_COORDINATOR"
    first = platform.instance.get_daemon_heartbeats()[kind].daemon_id
    with (platform.project / "second.log").open("w") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, cwd=platform.project, start_new_session=True)
    try:
        heartbeats = platform.instance.get_daemon_heartbeats
        until(lambda: heartbeats()[kind].daemon_id != first, "work of the second daemon")
        yield
    finally:
        daemon.send_signal(signal.SIGINT)
        daemon.wait()


def _runs(pid: int) -> bool:
    """Return whether a process runs. A killed worker is a zombie until its code server looks."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _check_free_and_exact(platform: Platform, *tables: str) -> None:
    for table in tables:
        until(lambda table=table: platform.holders(table) == [], f"free slot of {table}")
        assert maintain(platform.instance, platform.lake, table, MERGE).success
        assert platform.pool(table).pending_steps == platform.holders(table) == []
    platform.audit(*tables, live_parts=1)


@pytest.mark.alone
@pytest.mark.slow(seconds=240)
def test_a_slot_is_free_within_a_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = IceDBResource(root=str(tmp_path / "lake"))
    tables = ("killed", "frozen")
    with running(tmp_path / "project", tables, lake=lake, change=shipped) as platform:
        platform.fill(*tables)
        for table in tables:
            platform.arm(table, "before-claim")
        runs = {table: platform.merge(table) for table in tables}
        behind = platform.merge("killed")
        pids = {table: platform.reached(table, "before-claim") for table in tables}
        assert platform.statuses([behind]) == ["QUEUED"]  # one run of a pool is dequeued at a time
        began = time.monotonic()
        os.kill(pids["killed"], signal.SIGKILL)
        until(lambda: runs["killed"] not in platform.holders("killed"), "free slot")
        took = {"killed": time.monotonic() - began}
        assert platform.ended(behind) == ["SUCCESS"]

        os.kill(pids["frozen"], signal.SIGSTOP)
        platform.ask(FORCED_CANCEL, run=runs["frozen"])  # takes a minute: the code server waits for the worker
        began = time.monotonic()
        assert platform.statuses([runs["frozen"]]) == ["CANCELED"]
        until(lambda: platform.holders("frozen") == [], "free slot")
        took["frozen"] = time.monotonic() - began
        with capsys.disabled():
            print(f"\nseconds until the slot was free: {took}")  # noqa: T201
        assert max(took.values()) < 60
        assert maintain(platform.instance, lake, "frozen", MERGE).success
        live = platform.live_parts("frozen")
        platform.open("frozen", "before-claim")
        os.kill(pids["frozen"], signal.SIGCONT)
        wait_until(lambda: not _runs(pids["frozen"]), "end of the worker that was frozen")
        assert platform.live_parts("frozen") == live
        platform.audit(*tables, live_parts=1)
