"""The maintenance sensor requests due work once, with few requests to the store, also after faults."""

import re
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

import icedb
from icedb import Thresholds
from icedb.format.timing import HOUR_MS, MINUTE_MS
from icedb_dagster import IceDBResource, build_table_definitions
from icedb_dagster.locking.run_kinds import FAILED_TAG
from icedb_dagster.sensors import MaintenanceSensor, run_requests
from tests.support.dagster.sensor_scene import SensorScene, fill, maintenance, requested
from tests.support.dagster.sensor_worlds import Daemon, add_run, end_run

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.dagster.sensor_scene"]

#: Two small parts in a partition are due, and two log files.
LOW = Thresholds(hot_parts=4, cold_parts=4, log_files=4, expired_objects=2)


# ------------------------------------------------------------------------------------------ due work


@pytest.mark.sampled(days=3)
def test_due_work_is_requested_with_its_reason(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW))
    assert requested(daemon.tick()) == []
    assert "begins now" in daemon.skip_message
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_maintain"]
    assert kinds_of(answer) == ["merge_newest", "merge_log"]
    reason = answer.run_requests[0].tags["icedb/reason"]
    assert re.search("'p=a'.*5 small parts.*; .* 5 log files", reason)
    scene.clock.advance(2 * HOUR_MS)
    table.merge()
    table.merge_log()
    fill(table, 1)
    scene.clock.advance(2 * HOUR_MS)
    fill(table, 1)
    scene.clock.advance(2 * HOUR_MS)
    end_all(scene.instance)
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_maintain"]
    assert kinds_of(answer) == ["merge_log", "merge_oldest", "cleanup"]


def kinds_of(answer: dg.SensorResult, number: int = 0) -> list[str]:
    """Return the kinds of maintenance of a requested run of the job that does several."""
    request = answer.run_requests[number]
    return request.run_config["ops"][f"{request.job_name}_work"]["config"]["kinds"]


def test_a_kind_that_failed_has_a_run_of_its_own_afterwards(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]
    assert requested(daemon.tick()) == []
    for kind in ("merge_newest", "merge_log"):
        assert f"{kind} is due, but a run of {scene.name}_maintain is queued or active" in daemon.skip_message
    run = run_of(scene, "maintain")
    scene.instance.add_run_tags(run.run_id, {FAILED_TAG: "merge_log"})
    end_run(scene.instance, run, dg.DagsterRunStatus.FAILURE)
    table.merge()
    fill(table, 5)
    scene.tick(daemon)
    assert daemon.created[-1].split("/")[1] == "merge_newest", "new work after a success, without the failed kind"
    end_run(scene.instance, run_of(scene, "merge_newest"), dg.DagsterRunStatus.SUCCESS)
    table.merge()
    fill(table, 5)
    scene.clock.advance(2 * MINUTE_MS)
    answer = daemon.tick()
    assert requested(answer) == [f"{scene.name}_merge_newest", f"{scene.name}_merge_log"]
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]


def test_each_kind_failed_in_a_run_that_did_not_report_them(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    elsewhere = add_run(scene.instance, f"{scene.name}_maintain", dg.DagsterRunStatus.STARTED, location="elsewhere")
    daemon = Daemon(scene.instance, daemon.sensor, scene.lake, location="tested").begin()
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"], "that of another code location does not count"
    end_run(scene.instance, elsewhere, dg.DagsterRunStatus.FAILURE)
    end_all(scene.instance, dg.DagsterRunStatus.FAILURE)  # its worker died
    scene.tick(daemon)
    scene.clock.advance(MINUTE_MS)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest", f"{scene.name}_merge_log"]
    end_all(scene.instance)
    by_hand = add_run(scene.instance, f"{scene.name}_maintain", dg.DagsterRunStatus.STARTED)  # without kinds
    table.merge()
    fill(table, 5)
    assert requested(daemon.tick()) == []
    end_run(scene.instance, by_hand, dg.DagsterRunStatus.SUCCESS)
    assert requested(daemon.tick()) == [f"{scene.name}_maintain"]


def run_of(scene: SensorScene, kind: str) -> dg.DagsterRun:
    """Return the newest run of a kind's own job."""
    return scene.instance.get_runs(dg.RunsFilter(job_name=f"{scene.name}_{kind}"), limit=1)[0]


def end_all(instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS) -> None:
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        end_run(instance, run, status)


@pytest.mark.sampled(days=3)
def test_the_requested_jobs_leave_nothing_due(instance: Any, lake: IceDBResource, name: str) -> None:
    table = lake.table_or_create(name, partition_by=["p"])
    fill(table, 6)
    defs = dg.Definitions.merge(
        build_table_definitions(name), dg.Definitions(resources={"icedb": lake})
    ).get_repository_def()
    daemon = Daemon(instance, maintenance(name, MaintenanceSensor(LOW)), lake).begin()
    for request in daemon.tick().run_requests:
        job = defs.get_job(request.job_name)
        assert job.execute_in_process(run_config=request.run_config, instance=instance).success
    end_all(instance)
    assert requested(daemon.tick()) == []
    assert daemon.skip_message.startswith("nothing is due. ")
    assert "0 small parts of 1 in 1 partitions, 1 log files" in daemon.skip_message


def test_a_requested_merge_uses_the_part_size_of_the_thresholds(scene: SensorScene) -> None:
    scene.table(5)
    low = Thresholds(hot_parts=4, cold_parts=4, log_files=4, part_bytes_max=123_456)
    daemon = scene.maintenance(MaintenanceSensor(low)).begin()
    hot = daemon.tick().run_requests
    scene.clock.advance(2 * HOUR_MS)  # the partition is cold now
    end_all(scene.instance)
    requested = {str(request.job_name): request.run_config for request in [*hot, *daemon.tick().run_requests]}
    jobs = build_table_definitions(scene.name)
    loaded = dg.Definitions.merge(jobs, dg.Definitions(resources={"icedb": scene.lake})).get_repository_def()
    sizes = {}
    for job, run_config in requested.items():
        config = dg.validate_run_config(loaded.get_job(job), run_config)
        sizes[job] = config["ops"][f"{job}_work"]["config"].get("part_bytes_max")
    assert sizes == {f"{scene.name}_maintain": 123_456, f"{scene.name}_merge_oldest": 123_456}


@pytest.mark.sampled(days=3)
def test_nothing_is_requested_below_half_of_the_thresholds(scene: SensorScene) -> None:
    scene.table(31)
    daemon = scene.maintenance(MaintenanceSensor()).begin()
    assert requested(daemon.tick()) == []
    assert "nothing is due" in daemon.skip_message
    assert "31 small parts of 31 in 1 partitions, 31 log files" in daemon.skip_message
    fill(scene.open(scene.name), 1)
    assert kinds_of(daemon.tick()) == ["merge_newest", "merge_log"]


def test_due_work_without_a_job_is_only_reported(scene: SensorScene) -> None:
    scene.table(5)
    jobs = {job.name: job for job in build_table_definitions(scene.name).jobs or ()}
    daemon = scene.maintenance(MaintenanceSensor(LOW), merge_log=jobs[f"{scene.name}_merge_log"]).begin()
    assert requested(daemon.tick()) == [f"{scene.name}_merge_log"]
    assert requested(daemon.tick()) == []
    assert "merge_newest is due, but has no job" in daemon.skip_message


def test_a_tick_on_a_quiet_table_is_one_list_request(scene: SensorScene) -> None:
    table = scene.table(5)
    daemons = [scene.maintenance(), scene.commits()]
    for daemon in daemons * 2:
        daemon.tick()
        scene.clock.advance(MINUTE_MS)
    assert len(scene.opened) == 1, "both sensors share the open table"
    for daemon in daemons * 3:
        with scene.counted() as requests:
            daemon.tick()
        assert requests == ["list"], daemon.sensor.name
        scene.clock.advance(MINUTE_MS)
    fill(table, 3)
    scene.clock.advance(MINUTE_MS)
    with scene.counted() as requests:
        daemons[1].tick()
    assert sorted(requests) == ["get"] * 3 + ["list"], "a new log file is read once"
    assert len(scene.reported()) == 3


# ------------------------------------------------------------------------------------------ each run once


def test_no_run_is_requested_while_one_is_queued_or_active(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance().begin()
    add_run(scene.instance, "another_merge_newest", dg.DagsterRunStatus.STARTED)
    for status in ("QUEUED", "STARTING", "STARTED", "CANCELING"):
        run = add_run(
            scene.instance, f"{scene.name}_merge_newest", dg.DagsterRunStatus[status]
        )  # launched by a user or a schedule
        assert requested(daemon.tick()) == [], status
        assert "is queued or active" in daemon.skip_message
        end_run(scene.instance, run, dg.DagsterRunStatus.SUCCESS)
        assert requested(daemon.evaluate()) == [f"{scene.name}_merge_newest"]


def test_runs_of_another_code_location_are_ignored(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon, job = (
        Daemon(scene.instance, maintenance(scene.name), scene.lake, location="tested"),
        f"{scene.name}_merge_newest",
    )
    daemon.tick()
    other = add_run(scene.instance, job, dg.DagsterRunStatus.STARTED, location="elsewhere")
    assert requested(daemon.tick()) == [job]
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.skip_message, "the sensor's own run counts"
    end_all(scene.instance)
    table.merge()
    end_run(scene.instance, other, dg.DagsterRunStatus.FAILURE)
    fill(table, 5)
    assert requested(daemon.tick()) == [job], "the sensor's own run succeeded"
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    scene.instance.add_run(
        dg.DagsterRun(job_name=job, run_id=f"{scene.name}-in-a-process", status=dg.DagsterRunStatus.STARTED)
    )
    assert requested(daemon.tick()) == []
    assert "is queued or active" in daemon.skip_message, "a run of unknown origin counts"


def test_a_tick_that_is_evaluated_again_requests_the_same_runs(scene: SensorScene) -> None:
    table = scene.table(5)
    failed = add_run(scene.instance, f"{scene.name}_merge_log", dg.DagsterRunStatus.STARTED)
    end_run(scene.instance, failed, dg.DagsterRunStatus.FAILURE)
    scene.clock.advance(2 * HOUR_MS)  # the partition is cold now
    fill(table, 5, p="b")
    daemon = scene.maintenance(MaintenanceSensor(LOW)).begin()
    first = [r.run_key for r in daemon.evaluate().run_requests]
    assert [key.split("/")[1] for key in first] == ["merge_newest+merge_oldest", "merge_log"]
    scene.clock.advance(MINUTE_MS)
    assert [r.run_key for r in daemon.evaluate().run_requests] == first
    daemon.tick(dies_after=1)
    assert daemon.created == first[:1]
    daemon.tick()  # the first is queued, so only the second is requested
    assert (daemon.created, daemon.dropped) == (first, [])


def test_after_a_lost_cursor_the_same_key_is_dropped(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    daemon.tick(dies_after=1)
    [first] = daemon.created
    end_all(scene.instance)
    table.merge()
    fill(table, 5)
    daemon.tick()
    assert (daemon.created, daemon.dropped) == ([first], [first])
    fill(table, 1)
    daemon.tick()
    assert daemon.created == [first, first[:-1] + "2"]


def test_a_run_that_never_started_does_not_block_the_sensor(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance().begin()
    add_run(scene.instance, f"{scene.name}_merge_newest", dg.DagsterRunStatus.NOT_STARTED)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]


@pytest.mark.sampled(days=3)
def test_unfinished_work_waits_longer_each_time_up_to_an_hour(scene: SensorScene) -> None:
    scene.table(5)
    always_hot = Thresholds(hot_parts=4, log_files=1_000, hot_ms=1_000 * HOUR_MS)
    daemon = scene.maintenance(MaintenanceSensor(always_hot)).begin()
    daemon.tick()
    ends = ["SUCCESS", "FAILURE", "CANCELED"] * 3
    for minutes, status in zip([1, 2, 4, 8, 16, 32, 60, 60], ends, strict=False):
        end_all(scene.instance, dg.DagsterRunStatus[status])
        scene.clock.advance(20 * MINUTE_MS)  # the wait begins when it is seen that the run has ended
        for advance_ms in (0, minutes * MINUTE_MS - 1):
            scene.clock.advance(advance_ms)
            assert requested(daemon.tick()) == []
            assert "the last run did not help" in daemon.skip_message
        scene.clock.advance(1)
        assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"], minutes
    assert len(set(daemon.created)) == 9


@pytest.mark.sampled(days=3)
def test_new_work_is_requested_immediately_after_a_successful_run(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    for _ in range(3):
        assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]
        table.merge()
        end_all(scene.instance)
        assert requested(daemon.tick()) == []
        fill(table, 3)


def test_new_work_waits_after_a_failed_run(scene: SensorScene) -> None:
    table = scene.table(5)
    daemon = scene.maintenance().begin()
    daemon.tick()
    end_all(scene.instance, dg.DagsterRunStatus.FAILURE)
    for _ in range(2):
        fill(table, 1)
        assert requested(daemon.tick()) == []
    scene.clock.advance(MINUTE_MS)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"]
    end_all(scene.instance)
    fill(table, 1)
    assert requested(daemon.tick()) == [f"{scene.name}_merge_newest"], "a request follows at once"


def test_a_new_cursor_requests_runs_with_new_keys(scene: SensorScene) -> None:
    scene.table(5)
    daemon = scene.maintenance()
    for _ in range(3):
        daemon.tick()
        daemon.tick()
        end_all(scene.instance)
        daemon.cursor = None
        scene.clock.advance(1)
    assert len(set(daemon.created)) == 3
    assert daemon.dropped == []


def test_a_clock_that_was_set_back_does_not_block_work() -> None:
    due = icedb.Recommendation("cleanup", "why", "basis")
    before = run_requests.RequestedRun(1, "basis", 0, ended_ms=10 * HOUR_MS)
    held, requested = run_requests.next_request(before, due, now_ms=HOUR_MS, failed=lambda: False)
    assert not requested
    assert held.ended_ms == HOUR_MS
    _, requested = run_requests.next_request(held, due, now_ms=HOUR_MS + run_requests.WAIT_MS, failed=lambda: False)
    assert requested
