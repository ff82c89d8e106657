"""Checks of an instance's Postgres: version, latency, a row that is written, the revision of Dagster's tables."""

from __future__ import annotations

import dagster as dg

from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.dev.stack.database import ServerInfo, query_server_info, redacted, without_password

__all__ = ["examine_database", "judge_schema", "judge_server", "query_server"]

# The oldest supported major version.
VERSION_MIN = 14
# A run sends some hundred queries.
LATENCY_MS_MAX = 50
_ROW = "icedb-dagster doctor"


def query_server(instance: dg.DagsterInstance) -> ServerInfo | str:
    """Query the server of an instance on Postgres. Return its error if that fails."""
    return query_server_info(_url(instance))


def examine_database(instance: dg.DagsterInstance, server: ServerInfo | str, clock: Clock) -> list[DoctorFinding]:
    """Judge the server, write a row, and compare the revision of Dagster's tables. The instance must be on Postgres."""
    url = _url(instance)
    storages = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
    revisions = {version for storage in storages if storage and (version := storage.alembic_version()) is not None}
    finding = judge_server(server, address=redacted(url))
    if finding.status == "problem":
        return [finding]
    return [finding, judge_schema(revisions), _write_row(instance, url, clock)]


def _url(instance: dg.DagsterInstance) -> str:
    return str(getattr(instance.event_log_storage, "postgres_url", ""))


def _write_row(instance: dg.DagsterInstance, url: str, clock: Clock) -> DoctorFinding:
    """Write a row as Dagster's daemon does. A server with a full disk still answers queries."""
    check, row = "write a row", {_ROW: str(clock.now_ms())}
    try:
        instance.run_storage.set_cursor_values(row)
        written = instance.run_storage.get_cursor_values({_ROW}) == row
    except Exception as error:  # noqa: BLE001 - of the driver, or of Dagster
        reason = without_password(str(getattr(error, "orig", None) or error), url=url).splitlines()[0]
        return problem(check, reason, "free space on the server's disk, or give its user the rights of the tables")
    if not written:
        return problem(check, "the row that was written is not read back", "connect to the primary server")
    return ok(check, "a row of the doctor's own was written and read")


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
