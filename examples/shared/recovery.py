"""Runs of an example that was killed: they still look started, and hold the tables' locks.

An example runs its jobs in its own process, so nobody else can tell Dagster that they died. Each run says in a tag
which process it is in; the next time, those whose process is gone are marked as failed, and their slots are freed.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

__all__ = ["fail_dead_runs", "process_tags"]

_TAG = "icedb/example-process"


def process_tags() -> dict[str, str]:
    """Tags for the runs of this process."""
    return {_TAG: _identity(os.getpid())}


def fail_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark the unfinished runs of processes that are gone as failed, and free their slots; the ids of those runs."""
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
    """Pid and start: a pid alone is used again. Where there is no /proc, the pid has to do."""
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
