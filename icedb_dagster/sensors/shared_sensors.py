"""Two sensors for all tables of a code location, in place of two sensors for each table.

For each tick of a sensor, Dagster's daemon calls the code server, which connects to Postgres, and stores the tick. For
hundreds of quiet tables, this is nearly all of the work, and the daemon evaluates sensors one after the other. A shared
sensor checks many tables in one tick, in threads, and a quiet table ever more rarely.

A check is a call of the table's own sensor, with its own cursor. It has no side effects, so a check whose result is not
used is repeated by a later tick. The shared cursor has the cursors of all tables, so Dagster stores them with the tick,
after the run requests or events of the same tick. What the table's sensor relies on therefore holds.

An error of one table does not hold up the others. The next tick raises it before it checks any table, so that it shows
as a failed tick, and no result is lost.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic
from typing import cast, get_args

import dagster as dg
import msgspec

from icedb.errors import InvalidOption, StoreUnavailable
from icedb_dagster.sensors.cursor_text import CURSOR_ERRORS, pack, unpack
from icedb_dagster.sensors.sensor_settings import SENSOR_TAG, SensorKind
from icedb_dagster.sensors.tick_schedule import TickSchedule

__all__ = ["share_sensors"]

QUIET_INTERVAL_S = 300
THREADS = 8
#: Dagster waits a minute for a sensor's result. Tables that are not checked by then are checked by the next tick.
TICK_S_MAX = 40
#: Dagster stores events one by one. The next tick reports the others.
EVENTS_MAX = 1_000
_REASONS_MAX = 20


def share_sensors(definitions: dg.Definitions, *, quiet_interval_s: int = QUIET_INTERVAL_S) -> dg.Definitions:
    """Return the definitions with one sensor of each kind for all tables, in place of the tables' own sensors.

    `icedb_maintenance_sensor` and `icedb_commits_sensor` do what the sensors of `build_table_definitions` and of the
    component do, with the settings of each table. For tens of tables and more, they save most of the processor time of
    the daemon and the code server. A table that has not changed is checked again after twice the time, up to
    `quiet_interval_s`: so long may pass until the sensor sees the first change of a quiet table.

    The cursors of the tables' own sensors are not taken over. A commits sensor with `from_beginning` reports the
    commits since their last tick; commits that have an event are not reported again.

    Args:
        definitions: The definitions of a code location.
        quiet_interval_s: Maximum seconds between two checks of a table without changes. A table's own `interval_s`
            applies if it is longer.

    Raises:
        InvalidOption: `quiet_interval_s` is below 1, or sensors of one kind are running by default for some tables
            only.

    Example:
        tables = [build_table_definitions(name, running=True) for name in ("clicks", "orders")]
        defs = share_sensors(dg.Definitions.merge(*tables))
    """
    if quiet_interval_s < 1:
        raise InvalidOption(f"quiet_interval_s is {quiet_interval_s!r}; give a whole number of at least 1.")
    sensors = list(definitions.sensors or ())
    shared = [
        _shared_sensor(kind, own, quiet_interval_s)
        for kind in get_args(SensorKind)
        if (own := [sensor for sensor in sensors if sensor.tags.get(SENSOR_TAG) == kind])
    ]
    others = [sensor for sensor in sensors if sensor.tags.get(SENSOR_TAG) not in get_args(SensorKind)]
    return dg.Definitions(
        assets=definitions.assets,
        schedules=definitions.schedules,
        sensors=[*others, *shared],
        jobs=definitions.jobs,
        resources=definitions.resources,
        executor=definitions.executor,
        loggers=definitions.loggers,
        asset_checks=definitions.asset_checks,
        metadata=definitions.metadata,
        component_tree=definitions.component_tree,
    )


def _shared_sensor(kind: SensorKind, own: Sequence[dg.SensorDefinition], quiet_interval_s: int) -> dg.SensorDefinition:
    statuses = {sensor.default_status for sensor in own}
    if len(statuses) > 1:
        stopped = next(s.name for s in own if s.default_status != dg.DefaultSensorStatus.RUNNING)
        raise InvalidOption(
            f"some tables' {kind} sensors are running by default and others, as {stopped}, are not. One sensor for all "
            "of them is switched on or off: give all tables the same `running`."
        )
    intervals = {sensor.name: sensor.minimum_interval_seconds or 1 for sensor in own}
    checks = _TableChecks(
        {sensor.name: sensor for sensor in own}, TickSchedule(intervals, quiet_interval_s=quiet_interval_s)
    )
    jobs = {job.name: job for sensor in own if sensor.has_jobs for job in sensor.jobs}

    def tick(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:
        return checks.tick(context)

    return dg.SensorDefinition(
        name=f"icedb_{kind}_sensor",
        evaluation_fn=tick,
        jobs=list(jobs.values()) or None,
        minimum_interval_seconds=min(intervals.values()),
        description=f"Does what the {kind} sensors of {len(own):,} tables do.",
        default_status=statuses.pop(),
        required_resource_keys=set().union(*(sensor.required_resource_keys for sensor in own)),
        tags={SENSOR_TAG: "shared"},
    )


class _TableChecks:
    """The checks of the tables of one shared sensor, in the process of the code server."""

    def __init__(self, sensors: Mapping[str, dg.SensorDefinition], schedule: TickSchedule) -> None:
        self._sensors = sensors
        self._schedule = schedule
        #: Errors that the next tick raises.
        self._errors: list[Exception] = []
        #: Checks of an earlier tick that have not ended, by table.
        self._running: dict[str, Future[dg.SensorResult]] = {}
        # A user may evaluate the sensor in the UI while the daemon does.
        self._lock = threading.Lock()

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Check the tables that are due, and return all their requests and events."""
        with self._lock:
            errors, self._errors = self._errors, []
            if errors:
                raise errors[0] if len(errors) == 1 else ExceptionGroup("tables cannot be checked", errors)
            cursors = _decode(context)
            return self._collect(context, cursors, self._answers(context, cursors))

    def _answers(
        self, context: dg.SensorEvaluationContext, cursors: Mapping[str, str]
    ) -> Iterator[tuple[str, dg.SensorResult | Exception]]:
        """Yield the names and results of the checks that end in time."""
        # The context creates them at their first use, which is not safe in several threads.
        _ = context.instance, context.resources, context.log
        self._running = {name: future for name, future in self._running.items() if not future.done()}
        due = [name for name in self._schedule.due(monotonic()) if name not in self._running]
        executor = ThreadPoolExecutor(THREADS, thread_name_prefix="icedb-table-checks")
        begun = {name: executor.submit(self._check, context, name, cursors.get(name)) for name in due}
        wait([*begun.values(), *self._running.values()], timeout=TICK_S_MAX)
        executor.shutdown(wait=False, cancel_futures=True)
        for name in [name for name, future in self._running.items() if not future.done()]:
            yield name, StoreUnavailable(f"{name}: the check of its table takes more than {TICK_S_MAX} s")
        for name, future in begun.items():
            if future.cancelled():
                continue
            if not future.done():
                self._running[name] = future
            elif (error := future.exception()) is None:
                yield name, future.result()
            elif isinstance(error, Exception):
                yield name, error
            else:
                raise error

    def _check(self, context: dg.SensorEvaluationContext, name: str, cursor: str | None) -> dg.SensorResult:
        """Evaluate the table's own sensor with its own cursor."""
        of_table = copy.copy(context)
        of_table.update_cursor(cursor)
        return cast("dg.SensorResult", self._sensors[name](of_table))

    def _collect(
        self,
        context: dg.SensorEvaluationContext,
        cursors: Mapping[str, str],
        answers: Iterator[tuple[str, dg.SensorResult | Exception]],
    ) -> dg.SensorResult:
        cursors = {name: cursor for name, cursor in cursors.items() if name in self._sensors}
        requests: list[dg.RunRequest] = []
        events: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation] = []
        changes: list[str] = []
        checked = 0
        for name, answer in answers:
            checked += 1
            if isinstance(answer, Exception):
                context.log.error("%s", answer)
                self._errors.append(answer)
                self._schedule.checked(name, f"{type(answer).__name__}: {answer}", monotonic())
                continue
            if events and len(events) + len(answer.asset_events) > EVENTS_MAX:
                continue  # the table stays due
            requests += answer.run_requests or ()
            events += answer.asset_events
            if answer.cursor is not None:
                cursors[name] = answer.cursor
            reason = (answer.skip_reason and answer.skip_reason.skip_message) or ""
            active = answer.run_requests or answer.asset_events
            if self._schedule.checked(name, None if active else reason, monotonic()) and reason:
                changes.append(f"{name}: {reason}")
        more = f"; and {len(changes) - _REASONS_MAX:,} more" if len(changes) > _REASONS_MAX else ""
        text = "; ".join(changes[:_REASONS_MAX]) or "none has changed"
        return dg.SensorResult(
            run_requests=requests,
            asset_events=events,
            skip_reason=None if requests else f"checked {checked:,} of {len(self._sensors):,} tables. {text}{more}",
            cursor=pack(msgspec.json.encode(cursors)),
        )


def _decode(context: dg.SensorEvaluationContext) -> dict[str, str]:
    """Return the cursors of the tables by the names of their sensors."""
    if not context.cursor:
        return {}
    try:
        return msgspec.json.decode(unpack(context.cursor), type=dict[str, str])
    except (msgspec.MsgspecError, *CURSOR_ERRORS):
        context.log.warning("the cursor %r cannot be read; a new one begins", context.cursor[:80])
        return {}
