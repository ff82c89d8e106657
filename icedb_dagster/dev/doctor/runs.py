"""Checks of started runs: each has a worker, as far as the run launcher can find out."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem
from icedb_dagster.launcher import MonitoredRunLauncher

__all__ = ["judge_runs", "read_started"]

# Of a few runs at a time. The launcher queries the code server of each.
RUNS_MAX = 50


def read_started(instance: dg.DagsterInstance) -> dict[str, str]:
    """Return the id of each started run -> why its worker seems to be gone; empty if it works or if that is unknown."""
    runs = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]), limit=RUNS_MAX)
    launcher = instance.run_launcher
    if not isinstance(launcher, MonitoredRunLauncher):
        return {run.run_id: "" for run in runs}
    return {run.run_id: launcher.why_missing(run) for run in runs}


def judge_runs(started: Mapping[str, str]) -> list[DoctorFinding]:
    """Judge started runs: id -> why the worker seems to be gone."""
    remedy = "run monitoring ends it within two minutes. If it stays, terminate it in the UI with force"
    lost = [problem("runs", f"run {run} is started, but {why}", remedy) for run, why in started.items() if why]
    return lost or [ok("runs", f"{len(started)} started, none without its worker" if started else "none is started")]
