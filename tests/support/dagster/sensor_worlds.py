"""Tables on a simulated clock, and Dagster's sensor daemon as far as a sensor can tell, for the tests of sensors.

The daemon here does what Dagster's does with an answer: it stores events one by one, or drops the requests whose key a
run of the instance has and creates the others' runs, and then stores the cursor. It can be killed after any of these.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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

#: Events have real times, and tell of commits that were before: so simulated times are in the past.
DAYS_AGO_MS = 3 * 24 * 3_600_000


class World:
    """Tables in memory by name, the time there, and every request that sensors made."""

    def __init__(self) -> None:
        self.clock = ManualClock(SystemClock().now_ms() - DAYS_AGO_MS)
        self.stores: dict[str, ClockedStore] = {}
        #: Around the store of each table that a sensor has opened, the newest last.
        self.opened: list[FaultyStore] = []

    def create(self, name: str, **options: Any) -> icedb.Table:
        """A new table; what is done with it is not counted."""
        return create_table(self._store(name), self.clock, **options)

    def open(self, name: str) -> icedb.Table:
        """As a sensor does."""
        store = FaultyStore(self._store(name))
        self.opened.append(store)
        return icedb.Table(open_handle(store, clock=self.clock))

    def _store(self, name: str) -> ClockedStore:
        return self.stores.setdefault(name, ClockedStore(self.clock, prefix=name))

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The kinds of the requests that are made meanwhile."""
        before = {id(store): len(store.requests) for store in self.opened}
        made: list[str] = []
        yield made
        for store in self.opened:
            made += [r.kind for r in store.requests[before.get(id(store), 0) :]]


#: A resource is made anew for each tick, and finds its world here.
WORLDS: dict[str, World] = {}


class SimulatedLake(IceDBResource):
    """The tables of a world."""

    def table(self, key: Any) -> icedb.Table:
        return WORLDS[self.root].open("/".join(dg.AssetKey.from_coercible(key).path))


@dataclass
class Daemon:
    """Evaluates one sensor, and does with its answers what Dagster's daemon does."""

    instance: dg.DagsterInstance
    sensor: dg.SensorDefinition
    lake: IceDBResource
    resource_key: str = "icedb"
    definitions: dg.Definitions | None = None
    #: Of the code; None: it is in none, as in a test of somebody's own.
    location: str | None = None
    cursor: str | None = None
    #: The message of the last tick, and the keys of all runs that it created, in order.
    said: str = ""
    created: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    #: Called with each run that is created.
    launched: Callable[[dg.DagsterRun], None] = lambda run: None
    #: Whose time events have; None: the real one.
    clock: ManualClock | None = None
    #: What is left of a tick that died after it had stored what it was to do.
    _left: list[Callable[[], None]] = field(default_factory=list)

    def evaluate(self) -> dg.SensorResult:
        """The sensor's answer to a tick with the stored cursor. Nothing is stored."""
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
        """Evaluate, and do what the answer says; or die after so many events and runs, before the cursor is stored.

        `reserved`: it dies when it had stored the runs that it was to create, so the next tick does the rest.
        """
        if self._left:
            while self._left:
                self._left.pop(0)()
            return None
        answer = self.evaluate()
        self.said = answer.skip_reason.skip_message or "" if answer.skip_reason else ""
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
        run = add_run(self.instance, str(request.job_name), dg.DagsterRunStatus.QUEUED, **tags)
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
    instance: dg.DagsterInstance, job: str, status: dg.DagsterRunStatus, *, location: str = "tested", **tags: str
) -> dg.DagsterRun:
    """A run of a job of a code location, as somebody might have launched it."""
    of_code = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), SINGLETON_REPOSITORY_NAME)
    return instance.add_run(
        dg.DagsterRun(
            job_name=job,
            run_id=make_new_run_id(),
            status=status,
            tags=tags,
            remote_job_origin=RemoteJobOrigin(of_code, job),  # what is in the queue must have one
        )
    )


def end_run(instance: dg.DagsterInstance, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> None:
    """A run becomes what it is to be."""
    kinds = {
        dg.DagsterRunStatus.STARTED: dg.DagsterEventType.RUN_START,
        dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
        dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
    }
    event = dg.DagsterEvent(event_type_value=kinds[status].value, job_name=run.job_name)
    instance.report_dagster_event(event, run.run_id)


def told_commits(instance: dg.DagsterInstance, key: Any, *, kind: str = "materialization") -> list[dict[str, Any]]:
    """The metadata of the events of an asset, plain, in the order in which they were stored."""
    asset = dg.AssetKey.from_coercible(key)
    fetch = instance.fetch_materializations if kind == "materialization" else instance.fetch_observations
    records = fetch(asset, limit=10_000, ascending=True).records
    events: Sequence[Any] = [
        r.asset_materialization if kind == "materialization" else r.event_log_entry.asset_observation for r in records
    ]
    return [{"partition": e.partition, **{n: v.value for n, v in e.metadata.items()}} for e in events]
