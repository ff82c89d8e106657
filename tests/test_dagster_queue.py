"""Runs of one table never overlap, however they were started; those of different tables do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

dg = pytest.importorskip("dagster")

# ruff: noqa: E402 - without the extra there is nothing to import
from icedb_dagster import IceDBResource, icedb_pool
from tests.support.dagster_platform import CODE, MERGE, Platform, running, until

pytestmark = pytest.mark.dagster


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("queue")
    lake = IceDBResource(root=str(folder / "lake"))
    tables = ("busy", "other", "busier", "another", "asked")
    with running(folder / "project", tables, lake=lake, by_hand=["asked", "alone"]) as started:
        yield started


def test_the_pools_of_all_that_is_loaded_are_there_before_anything_ran(platform: Platform) -> None:
    for table in ("busy", "other", "busier", "another", "asked", "alone"):
        info = platform.pool(table)
        assert (info.slot_count, info.limit, info.using_default_limit) == (1, 1, False)


@pytest.mark.parametrize(
    ("busy", "other", "queued"), [("busy", "other", 4), pytest.param("busier", "another", 8, marks=pytest.mark.slow)]
)
def test_queued_runs_of_one_table_never_overlap_and_those_of_another_do(
    platform: Platform, busy: str, other: str, queued: int
) -> None:
    platform.fill(busy, other)
    for table in (busy, other):  # `up` has made sure of the pools; here they are fresh
        platform.instance.event_log_storage.delete_concurrency_limit(icedb_pool(table))
        platform.arm(table, "before-claim")
    runs = {table: [platform.merge(table) for _ in range(count)] for table, count in ((busy, queued), (other, 2))}
    platform.started(*runs[busy], *runs[other])
    for table in runs:
        platform.reached(table, "before-claim")  # both at once: each is in the middle of its work
    for table in runs:
        assert len(platform.holders(table)) == platform.pool(table).slot_count == 1
        assert platform.spans(table) == []
        platform.open(table, "before-claim")
    for table, of_table in runs.items():
        assert platform.ended(*of_table) == ["SUCCESS"] * len(of_table), platform.why(of_table[0])
        _check_one_after_the_other(platform, table, len(of_table))
    platform.audit(busy, other, live_parts=1)


def test_the_ui_a_command_and_a_script_with_an_asset_wait_for_each_other(platform: Platform) -> None:
    platform.fill("asked")
    platform.arm("asked", "before-claim")
    by_ui = platform.merge("asked")
    platform.reached("asked", "before-claim")
    job = f"asked_{MERGE}"
    commands = [
        [sys.executable, "-m", "dagster", "job", "execute", "-f", str(CODE), "-j", job],
        [sys.executable, "-m", "tests.support.dagster_code", "asked"],  # materialize() on the instance
    ]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]

    def waiting() -> bool:
        assert [other.poll() for other in others] == [None, None]
        by_command = platform.instance.get_runs(dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.STARTED]))
        by_asset = [step for step in platform.pool("asked").pending_steps if step.assigned_timestamp is None]
        return len(by_command) == 2 and len(by_asset) == 1

    try:
        until(waiting, "two more runs that wait")
        assert platform.holders("asked") == [by_ui]
        assert platform.spans("asked") == []
    finally:
        platform.open("asked", "before-claim")
        ended = [other.wait(120) for other in others]
    assert ended == [0, 0]
    assert platform.ended(by_ui) == ["SUCCESS"]
    _check_one_after_the_other(platform, "asked", 3)
    platform.audit("asked", live_parts=1)


def _check_one_after_the_other(platform: Platform, table: str, runs: int) -> None:
    spans = platform.spans(table)
    assert len(spans) == runs
    assert all(one.ended < next_.began for one, next_ in pairwise(spans))
    assert platform.pool(table).pending_steps == platform.holders(table) == []
