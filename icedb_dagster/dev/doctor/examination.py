"""All checks in reading order: the platform first, then each place with tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import dagster as dg

from icedb.errors import IceDBError
from icedb.format.timing import Timing
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from icedb.util.clock import Clock, SystemClock
from icedb_dagster.dev.doctor.automation import judge_automations, read_automations
from icedb_dagster.dev.doctor.daemon import judge_daemon, read_heartbeats, watch_heartbeats
from icedb_dagster.dev.doctor.database import examine_database, query_server
from icedb_dagster.dev.doctor.disk import examine_disks
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.dev.doctor.instance_settings import InstanceSettings, judge_settings, read_settings
from icedb_dagster.dev.doctor.locks import judge_holders, judge_limits, read_holders, table_pools_of
from icedb_dagster.dev.doctor.maintenance_runs import judge_maintenance, read_failed_jobs, read_late_runs
from icedb_dagster.dev.doctor.runs import judge_backlog, judge_runs, read_backlog, read_started
from icedb_dagster.dev.doctor.services import judge_services
from icedb_dagster.dev.doctor.store import examine_store
from icedb_dagster.dev.doctor.versions import judge_versions, read_versions
from icedb_dagster.dev.project.workspace import LoadedCode, load_code, project_environment, reason_of, use_instance
from icedb_dagster.dev.stack.layout import open_layout
from icedb_dagster.dev.stack.lifecycle import status
from icedb_dagster.locking.lock_pools import read_limits
from icedb_dagster.resource import IceDBResource

__all__ = ["examine"]


def examine(
    project_dir: str | Path = ".",
    *,
    tables: Sequence[str] = (),
    watch_s: float = 0,
    clock: Clock | None = None,
    timing: Timing | None = None,
) -> list[DoctorFinding]:
    """Run all checks.

    `tables` are addresses; without them, the roots in the project's code are checked. `watch_s` is how long to watch
    the daemon's heartbeats. Raises StackError if the project's folder does not exist.
    """
    clock, timing = clock or SystemClock(), timing or Timing()
    project = open_layout(project_dir).project
    with project_environment(project), ExitStack() as opened:
        findings = [judge_versions(read_versions()), *_caught("services", lambda: judge_services(status(project)))]
        instance: dg.DagsterInstance | None = None
        try:
            used = opened.enter_context(use_instance(project))
        except IceDBError as error:
            remedy = "icedb-dagster up, or set DAGSTER_HOME and the variables that its dagster.yaml names"
            findings.append(problem("instance", _with_notes(error), remedy))
            # A full disk may be the reason.
            findings.append(examine_disks(os.environ.get("DAGSTER_HOME") or str(open_layout(project).root), None))
        else:
            instance = used.instance
            findings.append(ok("instance", used.found_by))
        code, code_findings = _examine_code(project)
        findings += code_findings
        if instance is not None:
            findings += _examine_instance(instance, code, watch_s=watch_s, clock=clock)
        findings += _examine_places(tables, code.lakes, clock=clock, timing=timing)
    return findings


def _examine_code(project: Path) -> tuple[LoadedCode, list[DoctorFinding]]:
    if not open_layout(project).workspace.is_file():
        remedy = "run this in the project's folder, or pass --project-dir"
        return LoadedCode(), [problem("definitions", f"{open_layout(project).workspace} is missing", remedy)]
    code = load_code(project)
    if code.problems:
        remedy = "correct the code; dagster definitions validate shows the whole error"
        return code, [problem("definitions", reason, remedy) for reason in code.problems]
    return code, [ok("definitions", f"loaded; tables that have a pool: {len(code.pools)}")]


def _examine_instance(
    instance: dg.DagsterInstance, code: LoadedCode, *, watch_s: float, clock: Clock
) -> list[DoctorFinding]:
    settings = read_settings(instance)
    parts: dict[str, Callable[[], list[DoctorFinding]]] = {"settings": lambda: judge_settings(settings)}
    server = cache(lambda: query_server(instance))  # once, and its errors are those of a part
    if settings.on_postgres:
        parts["postgres"] = lambda: examine_database(instance, server(), clock)
    parts["disk"] = lambda: [examine_disks(instance.root_directory, server() if settings.on_postgres else None)]
    if settings.has_pools:
        parts["pools"] = lambda: _examine_pools(instance, code, settings, clock)
    parts["runs"] = lambda: judge_runs(read_started(instance))
    parts["backlog"] = lambda: [judge_backlog(read_backlog(instance, clock), clock)]
    parts["maintenance"] = lambda: judge_maintenance(
        read_failed_jobs(instance, clock), read_late_runs(instance, clock), clock
    )
    parts["automation"] = lambda: judge_automations(read_automations(instance, code.automations, clock), clock)
    parts["daemon"] = lambda: judge_daemon(
        instance.get_required_daemon_types(),
        watch_heartbeats(lambda: read_heartbeats(instance, clock), seconds=watch_s),
    )
    return [finding for check, part in parts.items() for finding in _caught(check, part)]


def _examine_pools(
    instance: dg.DagsterInstance, code: LoadedCode, settings: InstanceSettings, clock: Clock
) -> list[DoctorFinding]:
    holders = read_holders(instance, sorted({*code.pools, *table_pools_of(instance)}), clock)
    frees = settings.monitoring and settings.free_slots_s is not None
    stale = judge_holders(holders, slot_free_s=settings.slot_free_s if frees else None)
    return [judge_limits(read_limits(instance, code.pools)), *stale]


def _caught(check: str, part: Callable[[], list[DoctorFinding]]) -> list[DoctorFinding]:
    """Run a part of the checks. An error becomes a finding, and the other parts run nevertheless."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001 - from the driver, or from any storage class, also a user's
        return [problem(check, reason_of(error), "correct the error, then run the doctor again")]


def _examine_places(
    tables: Sequence[str], lakes: Sequence[IceDBResource], *, clock: Clock, timing: Timing
) -> list[DoctorFinding]:
    """Check the named tables, with the options of the resource that contains them; else all resources."""
    if not tables and not lakes:
        state = "the code has no IceDBResource, or several code locations"
        return [warning("places", state, "name a table: icedb-dagster doctor --table URI")]
    findings = []
    for uri in tables or [lake.root for lake in lakes]:
        lake = next((lake for lake in lakes if f"{uri}/".startswith(f"{lake.root.rstrip('/')}/")), None)
        try:
            store = open_store(parse_location(uri, **(lake.access() if lake else {})))
        except IceDBError as error:
            findings.append(problem("address", str(error), "correct the address", about=uri))
            continue
        findings += examine_store(store, clock=clock, timing=timing, table=bool(tables))
    return findings


def _with_notes(error: Exception) -> str:
    return " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
