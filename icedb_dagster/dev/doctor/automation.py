"""Checks of schedules and sensors: those that are off, whose last tick failed, and whose tick is late.

Dagster stores the state of a schedule or sensor by the name of its code location. If the doctor loads the code under
another name, the state of the deployment is not that of this code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from icedb.util.clock import Clock
from icedb.util.durations import duration_text
from icedb_dagster.dagster_internals import internal
from icedb_dagster.dev.doctor.finding import DoctorFinding, named, ok, problem, warning
from icedb_dagster.dev.project.automations import Automation
from icedb_dagster.dev.project.workspace import first_cause

__all__ = ["AutomationState", "FailedTick", "judge_automations", "read_automations"]

# A tick may read the log of a large table, and the daemon evaluates a few ticks at a time.
LATE_S = 600
# Ticks of a sensor with the default interval in that time.
_TICKS = 20
# Older ticks may be deleted, by the retention of the instance.
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class FailedTick:
    """The last tick, which failed. `good_s` is the time of the last recorded tick without an error, or None."""

    error: str
    at_s: float
    good_s: float | None


@dataclass(frozen=True, slots=True)
class AutomationState:
    """The state of a schedule or sensor in an instance. Times are in unix seconds."""

    automation: Automation
    is_on: bool
    #: The code location for which the instance has one of this name that is on, if it has no state for this location.
    on_for: str = ""
    #: The time of a tick that is late; None: none is.
    due_s: float | None = None
    #: The last tick, if it failed.
    failed: FailedTick | None = None


def read_automations(
    instance: dg.DagsterInstance, automations: Collection[Automation], clock: Clock
) -> list[AutomationState]:
    """Return the states of a project's schedules and sensors."""
    states: dict[tuple[str, ...], Any] = {}
    on_for: dict[tuple[str, str], str] = {}
    for state in instance.all_instigator_state():
        kind, repository = state.instigator_type.value.lower(), state.origin.repository_origin
        location = repository.code_location_origin.location_name
        states[kind, location, repository.repository_name, state.name] = state
        if state.status.value == "RUNNING":
            on_for[kind, state.name] = location
    now_s = clock.now_ms() / 1000
    read: list[AutomationState] = []
    for it in automations:
        stored = states.get((it.kind, it.location, it.repository, it.name))
        if stored is None:
            read.append(AutomationState(it, it.by_default, on_for.get((it.kind, it.name), "")))
        elif stored.status.value == "RUNNING" or (stored.status.value != "STOPPED" and it.by_default):
            read.append(_state_with_ticks(instance, it, stored, now_s))
        else:  # stopped, or once started by the code, which no longer does
            read.append(AutomationState(it, is_on=False))
    return read


def _state_with_ticks(
    instance: dg.DagsterInstance, automation: Automation, state: Any, now_s: float
) -> AutomationState:
    def ended(limit: int) -> list[Any]:
        ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=limit)
        return [tick for tick in ticks if tick.status.value != "STARTED"]

    last = next(iter(ended(2)), None)  # the newest one may be in progress
    data = state.instigator_data
    started_s = getattr(data, "start_timestamp", None) or getattr(data, "last_sensor_start_timestamp", None)
    begun_s = max(started_s or 0, 0 if last is None else last.timestamp)
    due_s = _due_s(automation, begun_s, now_s) if begun_s else None
    failed = None
    if last is not None and last.status.value == "FAILURE":
        good_s = next((tick.timestamp for tick in ended(_TICKS) if tick.status.value != "FAILURE"), None)
        failed = FailedTick(first_cause(last.error), last.timestamp, good_s)
    return AutomationState(automation, is_on=True, due_s=due_s, failed=failed)


def _due_s(automation: Automation, begun_s: float, now_s: float) -> float | None:
    """Return the time of a tick that is late. `begun_s` is the time of the last tick, or of the start."""
    if automation.kind == "sensor":
        due_s = begun_s + automation.interval_s
        return due_s if due_s < now_s - LATE_S else None
    before = internal("reverse_cron_string_iterator")
    due_s = max(next(before(now_s - LATE_S, cron, automation.timezone)).timestamp() for cron in automation.crons)
    return due_s if due_s > max(begun_s, now_s - _DAY_S) else None


def judge_automations(states: Sequence[AutomationState], clock: Clock) -> list[DoctorFinding]:
    """Judge the states of all schedules and sensors."""
    now_s = clock.now_ms() / 1000
    findings = _judge_off([state for state in states if not state.is_on], of=len(states))
    if late := {state.automation.name: state.due_s for state in states if state.due_s is not None}:
        first_s = min(late.values())
        observed = f"ticks are late, the first for {duration_text(1000 * (now_s - first_s))}: {named(list(late))}"
        remedy = "see the log of the daemon, and the ticks under Automation in the UI"
        findings.append(problem("ticks", observed, remedy, since_s=first_s))
    findings += [_judge_failed(state.automation, state.failed, now_s) for state in states if state.failed is not None]
    on = sum(state.is_on for state in states)
    return findings or [ok("automation", f"schedules and sensors that are on: {on}" if on else "the code has none")]


def _judge_off(off: Sequence[AutomationState], *, of: int) -> list[DoctorFinding]:
    check, findings = "automation", []
    if stopped := [it.automation.name for it in off if it.automation.by_default]:
        observed = f"stopped, although the code starts them: {named(stopped)}"
        findings.append(problem(check, observed, "start them under Automation in the UI"))
    if moved := [it for it in off if it.on_for and not it.automation.by_default]:
        names = named([it.automation.name for it in moved])
        observed = f"on for code location {moved[0].on_for}, but not for {moved[0].automation.location}: {names}"
        remedy = "give both workspace.yaml the same location_name, or start them for this code location"
        findings.append(warning(check, observed, remedy))
    if never := [it.automation.name for it in off if not it.automation.by_default and not it.on_for]:
        observed = f"{len(never)} of {of} are off: {named(never)}"
        remedy = "start those that you need under Automation in the UI, or build them with running=True"
        findings.append(warning(check, observed, remedy))
    return findings


def _judge_failed(automation: Automation, failed: FailedTick, now_s: float) -> DoctorFinding:
    """Judge a failed tick. A sensor ticks again soon, a schedule perhaps in a month."""
    if failed.good_s is None:
        lasting, before = True, "no recorded tick is without an error"
    else:
        good_s = now_s - failed.good_s
        lasting = automation.kind == "schedule" or good_s > LATE_S + automation.interval_s
        before = f"the last one without an error was {duration_text(1000 * good_s)} ago"
    observed = f"{automation.kind} {automation.name}: its last tick failed: {failed.error}; {before}"
    remedy = "correct the error; the whole text is under Automation in the UI"
    return (problem if lasting else warning)("ticks", observed, remedy, since_s=failed.at_s)
