"""Postgres, web server and daemon, a code location with gates, and tables with known rows.

Requests to the web server are GraphQL, as from the UI. The daemon starts runs as processes. `fill` records every row
that it inserts, and `audit` checks that each is stored once.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import yaml
from dagster._core.events import DagsterEvent

from icedb.testing import check_sound
from icedb_dagster import IceDBResource, icedb_pool
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG
from tests.support.dagster.dagster_code import SETTINGS
from tests.support.processes import free_port
from tests.support.waiting import wait_until

CODE = Path(__file__).with_name("dagster_code.py")
WORKSPACE = f"load_from: [{{python_file: {{relative_path: {CODE}, location_name: tested}}}}]\n"
#: The name of the job that merges a table, after the name of the table.
MERGE = "merge_oldest"
PARTS = 3
#: The statuses of runs that have ended.
ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
NO_LOGS = "dagster._core.storage.noop_compute_log_manager"

LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
__typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
... on RunConfigValidationInvalid { errors { message } } } }"""
FORCED_CANCEL = """mutation($run: String!) { terminateRun(runId: $run,
terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename ... on PythonError { message } } }"""


#: Queries of the tables of runs and of events.
RUNS = "{ runsOrError(limit: 1) { __typename ... on Runs { results { runId } } } }"
ASSETS = "{ assetsOrError(limit: 1) { __typename ... on AssetConnection { nodes { id } } } }"


def post(port: int, query: str, **variables: Any) -> Any:
    """Send a GraphQL request to the web server at a port, and return the response."""
    body = json.dumps({"query": query, "variables": variables})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/graphql", body=body, headers={"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def ask(port: int, query: str, **variables: Any) -> Any:
    """Send a GraphQL request to the web server at a port, and return its only value."""
    answer = post(port, query, **variables)
    assert "errors" not in answer, answer
    [value] = answer["data"].values()
    assert "message" not in value, value
    return value


def launch_run(port: int, location: str, job: str, assets: Sequence[str] = (), **tags: str) -> str:
    """Launch a run of a job, or of some of its assets, as the UI does, and return its id."""
    selector = {"repositoryLocationName": location, "repositoryName": "__repository__", "jobName": job}
    selection = {"assetSelection": [{"path": [asset]} for asset in assets]} if assets else {}
    metadata = {"tags": [{"key": key, "value": value} for key, value in tags.items()]}
    params = {"mode": "default", "runConfigData": {}, "executionMetadata": metadata}
    answer = ask(port, LAUNCH, params={"selector": selector | selection, **params})
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def quick(config: dict[str, Any]) -> None:
    """Set intervals to a second, for tests that do not depend on the shipped ones."""
    config["run_coordinator"]["config"] |= {"dequeue_interval_seconds": 1}
    config["run_monitoring"] |= {"poll_interval_seconds": 1, "free_slots_after_run_end_seconds": 1}
    config["run_launcher"]["config"] = {"lost_after_seconds": 10}
    # The queue lets all runs of a table out at once, so that it is the pool that keeps them apart.
    config["concurrency"]["runs"] = {"max_concurrent_runs": 12}
    # Each run would start four processes that copy what it prints, and runs of this process would share what it prints.
    config["compute_logs"] = {"module": NO_LOGS, "class": "NoOpComputeLogManager"}


def shipped(config: dict[str, Any]) -> None:
    """Keep the configuration of `icedb-dagster up`."""


#: Wait for a condition of the instance: each look at it is a new connection to Postgres.
until = partial(wait_until, every_seconds=0.5)


@dataclass(frozen=True)
class Span:
    """The first and the last moment of a run's merges, and its conflicts with other commits."""

    began: float
    ended: float
    dropped_groups: int


@dataclass
class Platform:
    """A running stack, an instance on it, and the tables that its code location maintains."""

    project: Path
    lake: IceDBResource
    instance: dg.DagsterInstance
    port: int
    rows: dict[str, Counter[tuple[int, str]]] = field(default_factory=dict)

    def fill(self, *tables: str, days: Sequence[str] = ("2024-01-01",)) -> None:
        """Create tables with several parts for each day, of distinct rows."""
        for name in tables:
            table = self.lake.table_or_create(name, partition_by=["d"], sort_by=["id"])
            for batch in range(PARTS):
                rows = [(batch * 1000 + n, day) for day in days for n in range(10)]
                table.insert(pa.table({"id": [n for n, _ in rows], "d": [day for _, day in rows]}))
                self.rows.setdefault(name, Counter()).update(rows)

    def audit(self, *tables: str, live_parts: int | None = None) -> None:
        """Check that each inserted row is stored once, and that no object is missing or damaged."""
        for name in tables:
            table = self.lake.table(name)
            assert Counter(table.query("SELECT id, d FROM t").fetchall()) == self.rows[name], name
            report = table.verify(deep=True)
            assert report.ok, (name, report)
            check_sound(table.handle.store)
            if live_parts is not None:
                assert len(table.snapshot().parts) == live_parts, name

    def live_parts(self, table: str) -> str:
        """Return the keys of a table's live parts, a line for each."""
        return "\n".join(sorted(part.key for part in self.lake.table(table).snapshot().parts))

    def spans(self, table: str) -> list[Span]:
        """Return the time spans of the completed merges of a table, in order."""
        recorded = [json.loads(file.read_text()) for file in (self.gates / "spans" / table).glob("*.json")]
        recorded.sort(key=lambda merge: (merge["run"], merge["began"]))
        runs = [list(of_run) for _, of_run in groupby(recorded, key=lambda merge: merge["run"])]
        spans = [Span(r[0]["began"], r[-1]["ended"], sum(merge["dropped_groups"] for merge in r)) for r in runs]
        return sorted(spans, key=lambda span: span.began)

    @property
    def gates(self) -> Path:
        return self.project / "gates"

    def arm(self, table: str, moment: str) -> None:
        """Stop the next program that reaches that moment."""
        (self.gates / f"{table}.{moment}").touch()

    def reached(self, table: str, moment: str) -> int:
        """Wait until a program is stopped there, and return its pid."""
        name = f"{table}.{moment}.*"
        matches = wait_until(lambda: list(self.gates.glob(name)), f"run of {table} at {moment}")
        return int(matches[0].name.rpartition(".")[2])

    def open(self, table: str, moment: str) -> None:
        """Release the stopped program, or remove an unused gate."""
        for gate in self.gates.glob(f"{table}.{moment}*"):
            gate.unlink()

    def stop_merges(self, *tables: str, moment: str = "before-claim") -> tuple[list[str], list[int]]:
        """Fill tables and stop a merge of each at a moment. Returns the runs and the pids."""
        self.fill(*tables)
        for table in tables:
            self.arm(table, moment)
        runs = [self.merge(table) for table in tables]
        return runs, [self.reached(table, moment) for table in tables]

    def pid(self, service: stack.ServiceName) -> int:
        [matches] = [row.pid for row in stack.status(self.project) if row.name == service]
        assert matches is not None
        return matches

    def log(self, service: stack.ServiceName) -> str:
        """Return what a service has written."""
        return (self.project / ".icedb-dagster" / "logs" / f"{service}.log").read_text()

    def up(self) -> None:
        """Start the services that have ended.

        The web server has connections to a Postgres that was stopped. The first query with each of them fails, as a
        user sees it. So this also queries the tables of runs and of events until both answer.
        """
        stack.up(self.project)
        for query in (RUNS, ASSETS):
            until(lambda query=query: "PythonError" not in json.dumps(post(self.port, query)), "answer to a query")

    def ask(self, query: str, **variables: Any) -> Any:
        """Send a GraphQL request to the web server, and return the answer."""
        return ask(self.port, query, **variables)

    def launch(self, job: str, **tags: str) -> str:
        """Launch a run as the UI does, and return its id."""
        return launch_run(self.port, "tested", job, **tags)

    def merge(self, table: str) -> str:
        """Launch a merge of a table."""
        return self.launch(f"{table}_{MERGE}")

    def statuses(self, runs: Sequence[str]) -> list[str]:
        """Return the status of each run, in order."""
        matches = {run.run_id: run for run in self.instance.get_runs(dg.RunsFilter(run_ids=list(runs)))}
        return [matches[run].status.value for run in runs]

    def enqueue_again(self, run: str) -> str:
        """Put a run like an earlier one into the queue, which needs no code server, and return its id."""
        earlier = self.instance.get_run_by_id(run)
        assert earlier is not None
        queued = earlier._replace(run_id=str(uuid.uuid4()), status=dg.DagsterRunStatus.QUEUED)
        self.instance.add_run(queued)
        self.instance.report_dagster_event(DagsterEvent.job_enqueue(queued), run_id=queued.run_id)
        return queued.run_id

    def times_queued(self, run: str) -> int:
        """Return how often a run was put into the queue."""
        of_type = dg.DagsterEventType.PIPELINE_ENQUEUED
        return len(self.instance.get_records_for_run(run, of_type=of_type).records)

    def started(self, *runs: str) -> None:
        """Wait until each has a worker that works or waits for its pool."""

        def all_started() -> bool:
            statuses = self.statuses(runs)
            assert not ENDED.intersection(statuses), f"a run has ended: {statuses}"
            return set(statuses) == {"STARTED"}

        until(all_started, "start of all runs")

    def ended(self, *runs: str) -> list[str]:
        """Wait until runs have ended, and return their statuses."""
        until(lambda: ENDED.issuperset(self.statuses(runs)), "end of all runs")
        return self.statuses(runs)

    def cancel_unfinished(self) -> None:
        """Cancel the runs that a failed test has left, which would take the places of the next test's runs."""
        unfinished = [run for run in self.instance.get_runs() if run.status.value not in ENDED]
        for run in unfinished:
            self.instance.report_run_canceled(run)
        for gate in self.gates.glob("*.*") if unfinished else ():
            gate.unlink(missing_ok=True)  # the worker goes on, and ends

    def pool(self, table: str) -> Any:
        """Return the holders of a table's pool, and the steps that wait for it."""
        return self.instance.event_log_storage.get_concurrency_info(icedb_pool(table))

    def holders(self, table: str) -> list[str]:
        return [slot.run_id for slot in self.pool(table).claimed_slots]

    def why(self, run: str) -> str:
        """Return the errors of a run, for a message."""
        events = [e.dagster_event for e in self.instance.all_logs(run) if e.dagster_event]
        return "\n".join(f"{e.event_type_value}: {e.message} {e.event_specific_data}" for e in events)[-4000:]


@contextmanager
def running(
    project: Path,
    tables: Sequence[str],
    *,
    lake: IceDBResource,
    environ: Mapping[str, str] | None = None,
    change: Callable[[dict[str, Any]], None] = quick,
    services: Sequence[stack.ServiceName] = stack.SERVICES,
    by_hand: Sequence[str] = (),
    days: Sequence[str] = (),
    fails_first: Sequence[str] = (),
) -> Iterator[Platform]:
    """Start a platform in a folder, with this process on its instance, and stop it at the end.

    `environ` has the storage options of the lake: a resource wants them to come from there.
    """
    (project / "gates").mkdir(parents=True)
    (project / "workspace.yaml").write_text(WORKSPACE)
    config = yaml.safe_load(PACKAGED_CONFIG.read_text())
    change(config)
    (project / "dagster.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "root": lake.root,
        "storage_options": list(lake.storage_options),
        "folder": str(project / "gates"),
        "tables": list(tables),
        "by_hand": list(by_hand),
        "days": list(days),
        "fails_first": list(fails_first),
    }
    saved = dict(os.environ)
    os.environ.pop("ICEDB_POSTGRES_URL", None)
    os.environ |= {**(environ or {}), SETTINGS: json.dumps(settings)}
    try:
        # A port of its own: of two modules that start at the same moment, both would find the usual one free.
        started = stack.up(project, services=services, port=free_port() if "webserver" in services else None)
        assert started.warnings == (), started.warnings
        os.environ.update(stack.environment(started))
        port = int((started.webserver_url or ":0").rpartition(":")[2])
        with dg.DagsterInstance.get() as instance:
            yield Platform(project, lake, instance, port)
    finally:
        for stopped in (project / "gates").glob("*.*.*"):  # they could not be ended otherwise
            _signal(int(stopped.name.rpartition(".")[2]), signal.SIGCONT)
        stack.down(project)
        os.environ.clear()
        os.environ.update(saved)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
