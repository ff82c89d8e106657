"""Check of the processes of `icedb-dagster up`. Heartbeats show the end of a daemon only two minutes later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem
from icedb_dagster.dev.stack.stack_status import ServiceStatus

__all__ = ["judge_services"]


def judge_services(rows: Sequence[ServiceStatus]) -> list[DoctorFinding]:
    """Judge the services of a project's folder. Where none was started there is no finding."""
    check = "services"
    ended = [
        replace(
            problem(check, f"{row.name} has ended without `down`", f"see its log, {row.log}, then: icedb-dagster up"),
            since=row.ended,
        )
        for row in rows
        if row.state == "ended"
    ]
    running = [row.name for row in rows if row.state == "running"]
    return ended or ([ok(check, f"running: {', '.join(running)}")] if running else [])
