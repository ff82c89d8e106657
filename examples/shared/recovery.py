"""Recovery from killed runs of an example, which look started and hold the tables' locks.

An example runs its jobs in its own process, so no other process can report to Dagster that they died. A tag of each run
identifies its process. The next start marks runs of dead processes as failed, and frees their slots.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

__all__ = ["fail_dead_runs", "process_tags"]

_TAG = "icedb/example-process"


def process_tags() -> dict[str, str]:
    """Return the tags for runs of this process."""
    return {_TAG: _identity(os.getpid())}


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark unfinished runs of dead processes as failed, and free their slots. Return the ids of those runs."""
    unfinished = instance.get_runs(
        dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.NOT_STARTED]
        )
    )
    dead = [run for run in unfinished if _TAG in run.tags and not _is_alive(run.tags[_TAG])]
    for run in dead:
        instance.report_run_failed(run, "the process that ran this was killed")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def _identity(pid: int) -> str:
    """Return pid and start time, because pids are reused. Without /proc, return the pid alone."""
    stat = Path(f"/proc/{pid}/stat")
    started = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else "0"
    return f"{pid}:{started}"


def _is_alive(identity: str) -> bool:
    pid = int(identity.partition(":")[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _identity(pid) == identity
