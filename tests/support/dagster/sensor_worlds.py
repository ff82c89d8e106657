"""Tables on a simulated clock and a simulated sensor daemon.

As Dagster's daemon, it stores the events of a result one by one, drops run requests whose key a run has, creates the
other runs, and then stores the cursor. It can be killed after any of these steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.events import AssetObservationData, StepMaterializationData
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.utils import make_new_run_id

import icedb
from icedb.testing import ClockedStore, FaultyStore, ManualClock, create_table
from icedb.transaction.open_table import open_handle
from icedb.util.clock import SystemClock
from icedb_dagster import IceDBResource

#: Events have real times and report earlier commits, so simulated times are in the past.
DAYS_AGO_MS = 3 * 24 * 3_600_000


class SensorWorld:
    """Tables in memory by name, their clock, and every request of the sensors."""

    def __init__(self) -> None:
        self.clock = ManualClock(SystemClock().now_ms() - DAYS_AGO_MS)
        self.stores: dict[str, ClockedStore] = {}
        #: Around the store of each table that a sensor has opened, the newest last.
        self.opened: list[FaultyStore] = []

    def create(self, name: str, **options: Any) -> icedb.Table:
        """Create a table. Its requests are not counted."""
        return create_table(self._store(name), self.clock, **options)

    def open(self, name: str, *, skew_ms: int = 0) -> icedb.Table:
        """Open the table as a sensor does."""
        store = FaultyStore(self._store(name))
        self.opened.append(store)
        return icedb.Table(open_handle(store, clock=self.clock.skewed(skew_ms) if skew_ms else self.clock))

    def _store(self, name: str) -> ClockedStore:
        return self.stores.setdefault(name, ClockedStore(self.clock, prefix=name))

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Count the kinds of requests within the block."""
        before = {id(store): len(store.requests) for store in self.opened}
        made: list[str] = []
        yield made
        for store in self.opened:
            made += [r.kind for r in store.requests[before.get(id(store), 0) :]]


#: Dagster constructs the resource for each tick, so it looks up its tables here.
WORLDS: dict[str, SensorWorld] = {}


class SimulatedLake(IceDBResource):
    """The tables of a `SensorWorld`."""

    def table(self, key: Any) -> icedb.Table:
        return WORLDS[self.root].open("/".join(dg.AssetKey.from_coercible(key).path))


@dataclass
class Daemon:
    """Evaluates one sensor, and applies the results as Dagster's daemon does."""

    instance: dg.DagsterInstance
    sensor: dg.SensorDefinition
    lake: IceDBResource
    resource_key: str = "icedb"
    definitions: dg.Definitions | None = None
    #: The code location of the sensor; None as in a test without one.
    location: str | None = None
    cursor: str | None = None
    #: The message of the last tick, and the keys of all runs that it created, in order.
    skip_message: str = ""
    created: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    #: Called with each run that is created.
    launched: Callable[[dg.DagsterRun], None] = lambda run: None
    #: Whose time events have; None: the real one.
    clock: ManualClock | None = None
    #: The remaining steps of a tick that died after it had reserved its runs.
    _left: list[Callable[[], None]] = field(default_factory=list)

    def begin(self) -> Self:
        """Evaluate the first tick, which starts the cursor."""
        self.tick()
        return self

    def evaluate(self) -> dg.SensorResult:
        """Return the sensor's result for a tick with the stored cursor. Stores nothing."""
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.definitions,
            resources={self.resource_key: self.lake},
            sensor_name=self.sensor.name,
            repository_name=SINGLETON_REPOSITORY_NAME,
        ) as context:
            if self.location is not None:
                context._code_location_origin = RegisteredCodeLocationOrigin(self.location)
            answer = self.sensor(context)
        if isinstance(answer, dg.SkipReason):
            return dg.SensorResult(skip_reason=answer, cursor=self.cursor)
        assert isinstance(answer, dg.SensorResult)
        return answer

    def tick(self, *, dies_after: int | None = None, reserved: bool = False) -> dg.SensorResult | None:
        """Evaluate the sensor and apply the result, or die after this number of events and runs.

        `reserved`: it dies after it has reserved its runs, so the next tick does the rest.
        """
        if self._left:
            while self._left:
                self._left.pop(0)()
            return None
        answer = self.evaluate()
        self.skip_message = answer.skip_reason.skip_message or "" if answer.skip_reason else ""
        events = [partial(self._report, event) for event in answer.asset_events]
        runs = [partial(self._request, request) for request in answer.run_requests or ()]
        steps = [*events, *runs, partial(self._store, answer)]
        done = len(steps) if dies_after is None else min(dies_after, len(steps) - 1)
        for step in steps[:done]:
            step()
        if reserved and runs and done >= len(events):
            self._left = steps[done:]
        return answer

    def _store(self, answer: dg.SensorResult) -> None:
        self.cursor = answer.cursor or self.cursor

    def _report(self, event: Any) -> None:
        report_event(self.instance, event, None if self.clock is None else self.clock.now_ms())

    def _request(self, request: dg.RunRequest) -> None:
        assert request.run_key
        matching_runs = self.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: request.run_key}))
        if any(run.tags.get(SENSOR_NAME_TAG) == self.sensor.name for run in matching_runs):
            self.dropped.append(request.run_key)
            return
        tags = {**request.tags, RUN_KEY_TAG: request.run_key, SENSOR_NAME_TAG: self.sensor.name}
        job, queued = str(request.job_name), dg.DagsterRunStatus.QUEUED
        run = add_run(self.instance, job, queued, run_config=request.run_config, **tags)
        self.created.append(request.run_key)
        self.launched(run)


def report_event(
    instance: dg.DagsterInstance, event: dg.AssetMaterialization | dg.AssetObservation, at_ms: int | None = None
) -> None:
    """Store an event that belongs to no run; `at_ms`: with another time than the real one (unix milliseconds)."""
    if at_ms is None:
        instance.report_runless_asset_event(event)
        return
    made = isinstance(event, dg.AssetMaterialization)
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION if made else dg.DagsterEventType.ASSET_OBSERVATION
    data = StepMaterializationData(event) if made else AssetObservationData(event)
    dagster_event = dg.DagsterEvent(event_type_value=kind.value, job_name=RUNLESS_JOB_NAME, event_specific_data=data)
    instance.report_dagster_event(dagster_event, run_id=RUNLESS_RUN_ID, timestamp=at_ms / 1000)


def add_run(
    instance: dg.DagsterInstance,
    job: str,
    status: dg.DagsterRunStatus,
    *,
    location: str = "tested",
    run_config: Mapping[str, Any] | None = None,
    **tags: str,
) -> dg.DagsterRun:
    """Add a run of a job of a code location, as a user might launch it."""
    of_code = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), SINGLETON_REPOSITORY_NAME)
    return instance.add_run(
        dg.DagsterRun(
            job_name=job,
            run_id=make_new_run_id(),
            status=status,
            tags=tags,
            run_config=run_config,
            remote_job_origin=RemoteJobOrigin(of_code, job),  # queued runs must have one
        )
    )


def end_run(instance: dg.DagsterInstance, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> None:
    """Set the status of a run."""
    kinds = {
        dg.DagsterRunStatus.STARTED: dg.DagsterEventType.RUN_START,
        dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
        dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
    }
    event = dg.DagsterEvent(event_type_value=kinds[status].value, job_name=run.job_name)
    instance.report_dagster_event(event, run.run_id)


def reported_commits(instance: dg.DagsterInstance, key: Any, *, kind: str = "materialization") -> list[dict[str, Any]]:
    """Return the plain metadata of an asset's events, in the order in which they were stored."""
    asset = dg.AssetKey.from_coercible(key)
    fetch = instance.fetch_materializations if kind == "materialization" else instance.fetch_observations
    records = fetch(asset, limit=10_000, ascending=True).records
    events: Sequence[Any] = [
        r.asset_materialization if kind == "materialization" else r.event_log_entry.asset_observation for r in records
    ]
    return [{"partition": e.partition, **{n: v.value for n, v in e.metadata.items()}} for e in events]
