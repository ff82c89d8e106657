"""A backfill whose runs are concurrent, fail, are killed and are executed again from failure: the table is exact."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")

from icedb_dagster import IceDBResource
from tests.support.dagster.dagster_code import ROWS
from tests.support.dagster.dagster_platform import Platform, quick, running, until

pytestmark = pytest.mark.dagster

PARTITIONS, PARALLEL = 20, 4
BACKFILL = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
__typename ... on LaunchBackfillSuccess { backfillId launchedRunIds } ... on PythonError { message } } }"""
AGAIN = """mutation($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
__typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


def four_at_a_time(config: dict[str, Any]) -> None:
    quick(config)
    config["concurrency"]["runs"] = {"max_concurrent_runs": PARALLEL}


@pytest.mark.slow(seconds=250)
@pytest.mark.timeout(3600)
def test_a_failed_backfill_that_is_re_executed_is_exact(tmp_path: Path) -> None:
    days = [str(date(2024, 1, 1) + timedelta(days=n)) for n in range(PARTITIONS)]
    fails_first = days[1::3]
    lake = IceDBResource(root=str(tmp_path / "lake"))
    with running(
        tmp_path / "project", (), lake=lake, change=four_at_a_time, days=days, fails_first=fails_first
    ) as platform:
        # Killed when its append is committed, and Dagster does not know: to be executed again, and not to be doubled.
        platform.arm("appended", "after-log")
        repository = {"repositoryLocationName": "tested", "repositoryName": "__repository__"}
        selector = {"partitionSetName": "daily_partition_set", "repositorySelector": repository}
        answer = platform.ask(
            BACKFILL, params={"selector": selector, "partitionNames": days, "forceSynchronousSubmission": True}
        )
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        backfill = answer["backfillId"]
        os.kill(platform.reached("appended", "after-log"), signal.SIGKILL)

        again: dict[str, str] = {}  # a failed run, and its re-execution: both may fail

        def ended() -> bool:
            tagged = platform.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
            runs = {run.run_id for run in tagged} | set(again.values())
            ends = dict(zip(runs, platform.statuses([*runs]), strict=True))
            for run, end in ends.items():
                if end == "FAILURE" and run not in again:
                    again[run] = _execute_again(platform, run)
            return set(again.values()) <= runs and {"SUCCESS", "FAILURE"}.issuperset(ends.values())

        until(ended, "end of the backfill", seconds_max=3000)
        assert len(again) == len(fails_first) + 1
        last = set(again.values()) - again.keys()
        assert set(platform.statuses([*last])) == {"SUCCESS"}
        expected = Counter((n * ROWS + row, day) for n, day in enumerate(days) for row in range(ROWS))
        for name in ("appended", "overwritten"):
            platform.rows[name] = expected
            platform.audit(name, live_parts=PARTITIONS)


def _execute_again(platform: Platform, run: str) -> str:
    """Re-execute a run as the UI does, and return the id of the new run."""
    answer = platform.ask(AGAIN, params={"parentRunId": run, "strategy": "FROM_FAILURE"})
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])
