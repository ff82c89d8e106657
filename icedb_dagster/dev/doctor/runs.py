"""Checks of runs: each started run has a worker, as far as the run launcher can find out, and the queue moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from icedb.util.clock import Clock
from icedb.util.durations import duration_text
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.launcher import MonitoredRunLauncher

__all__ = ["Backlog", "judge_backlog", "judge_runs", "read_backlog", "read_started"]

# Of a few runs at a time. The launcher queries the code server of each.
RUNS_MAX = 50
# A maintenance run takes a minute, and a backfill queues more runs than can start at once.
WAIT_S_MAX = 900
STUCK_S = 3600


@dataclass(frozen=True, slots=True)
class Backlog:
    """The queued runs. Times are in unix seconds."""

    queued: int = 0
    #: The run that was queued first.
    run_id: str = ""
    queued_s: float = 0
    #: Whether any run has started within the last hour.
    moves: bool = True


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


def read_backlog(instance: dg.DagsterInstance, clock: Clock) -> Backlog:
    """Return the queued runs, and whether runs start."""
    queued = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])
    oldest = next(iter(instance.get_run_records(queued, limit=1, ascending=True)), None)
    if oldest is None:
        return Backlog()
    after = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) - timedelta(seconds=STUCK_S)
    changed = instance.get_run_records(dg.RunsFilter(updated_after=after), limit=RUNS_MAX, order_by="update_timestamp")
    moves = any((record.start_time or 0) > after.timestamp() for record in changed)
    return Backlog(
        instance.get_runs_count(queued), oldest.dagster_run.run_id, oldest.create_timestamp.timestamp(), moves
    )


def judge_backlog(backlog: Backlog, clock: Clock) -> DoctorFinding:
    """Judge the queue. A long queue is no problem while its runs start."""
    check = "backlog"
    if not backlog.queued:
        return ok(check, "no run is queued")
    age_s = clock.now_ms() / 1000 - backlog.queued_s
    state = f"{backlog.queued} runs are queued, run {backlog.run_id} for {duration_text(1000 * age_s)}"
    if age_s <= WAIT_S_MAX:
        return ok(check, state)
    if backlog.moves or age_s <= STUCK_S:
        remedy = "if this persists, raise max_concurrent_runs in dagster.yaml; a table has one run at a time"
        return warning(check, state, remedy, since_s=backlog.queued_s)
    remedy = "see the daemon's log; end the started runs that hang, and free the slots of ended ones"
    return problem(check, f"{state}, and no run started within an hour", remedy, since_s=backlog.queued_s)
