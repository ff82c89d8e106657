"""Checks of an instance's Postgres: its version, its latency, and the revision of Dagster's tables."""

from __future__ import annotations

import dagster as dg

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.dev.stack.database import ServerInfo, query_server_info, redacted

__all__ = ["examine_database", "judge_server", "judge_schema"]

# The oldest supported major version.
VERSION_MIN = 14
# A run sends some hundred queries.
LATENCY_MS_MAX = 50


def examine_database(instance: dg.DagsterInstance) -> list[DoctorFinding]:
    """Query the server, and compare the revision of Dagster's tables. The instance must be on Postgres."""
    url = str(getattr(instance.event_log_storage, "postgres_url", ""))
    storages = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
    revisions = {version for storage in storages if storage and (version := storage.alembic_version()) is not None}
    return [judge_server(query_server_info(url), address=redacted(url)), judge_schema(revisions)]


def judge_server(server: ServerInfo | str, *, address: str) -> DoctorFinding:
    """Judge a server. `address` is its address without the password."""
    check = "postgres"
    if isinstance(server, str):
        return problem(check, f"{address}: {server}", "start it, or correct the address, the user and the password")
    state = f"{address}, version {server.version}, latency {server.latency_ms:.1f} ms"
    major = server.version.partition(".")[0].partition(" ")[0]
    if major.isdecimal() and int(major) < VERSION_MIN:
        return warning(check, state, f"upgrade to Postgres {VERSION_MIN} or later")
    if server.latency_ms > LATENCY_MS_MAX:
        return warning(check, state, "run the daemon and workers closer to it: every step sends some hundred queries")
    return ok(check, state)


def judge_schema(revisions: set[tuple[str | None, str | tuple[str, ...] | None]]) -> DoctorFinding:
    """Judge the revisions of the storages' tables, each with the one that this Dagster requires."""
    check = "schema"
    behind = sorted((str(has), str(wants)) for has, wants in revisions if has != wants)
    if behind:
        has, wants = behind[0]
        state = f"Dagster's tables have revision {has}; this Dagster ({dg.__version__}) requires {wants}"
        return problem(check, state, "stop daemon and web server, then: dagster instance migrate")
    return ok(check, f"Dagster's tables have the revision of Dagster {dg.__version__}")
