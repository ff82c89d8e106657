"""The Postgres of an instance: its version, how fast it answers, and whether Dagster's tables are of this Dagster."""

from __future__ import annotations

import dagster as dg

from icedb_dagster.dev.doctor.finding import Finding, ok, problem, warning
from icedb_dagster.dev.stack.database import ServerInfo, query_server_info, redacted

__all__ = ["examine_database", "judge_answer", "judge_schema"]

# The oldest that its makers still mend.
VERSION_MIN = 14
# A run asks some hundred times.
LATENCY_MS_MAX = 50


def examine_database(instance: dg.DagsterInstance) -> list[Finding]:
    """Ask the server, and compare Dagster's tables with this Dagster. The instance must be on Postgres."""
    url = str(getattr(instance.event_log_storage, "postgres_url", ""))
    storages = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
    revisions = {version for storage in storages if storage and (version := storage.alembic_version()) is not None}
    return [judge_answer(query_server_info(url), shown=redacted(url)), judge_schema(revisions)]


def judge_answer(answer: ServerInfo | str, *, shown: str) -> Finding:
    """`shown`: the address without its password."""
    check = "postgres"
    if isinstance(answer, str):
        return problem(check, f"{shown}: {answer}", "start it, or correct the address, the user and the password")
    found = f"{shown}, version {answer.version}, answers in {answer.latency_ms:.1f} ms"
    major = answer.version.partition(".")[0].partition(" ")[0]
    if major.isdecimal() and int(major) < VERSION_MIN:
        return warning(check, found, f"upgrade to Postgres {VERSION_MIN} or later")
    if answer.latency_ms > LATENCY_MS_MAX:
        return warning(check, found, "run daemon and workers closer to it: every step asks it some hundred times")
    return ok(check, found)


def judge_schema(revisions: set[tuple[str | None, str | tuple[str, ...] | None]]) -> Finding:
    """`revisions`: of the storages' tables, each with the one that this Dagster wants."""
    check = "schema"
    behind = sorted((str(has), str(wants)) for has, wants in revisions if has != wants)
    if behind:
        has, wants = behind[0]
        found = f"Dagster's tables are of revision {has}; this Dagster ({dg.__version__}) wants {wants}"
        return problem(check, found, "stop daemon and web server, then: dagster instance migrate")
    return ok(check, f"Dagster's tables are those of Dagster {dg.__version__}")
