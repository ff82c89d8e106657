"""A real daemon, killed again and again: a table that a program fills stays small, each commit is told once."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

dg = pytest.importorskip("dagster")

# ruff: noqa: E402 - without the extra there is nothing to import
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._core.storage.tags import RUN_KEY_TAG

import icedb
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG
from tests.support.dagster.dagster_platform import quick, until
from tests.support.dagster.sensor_code import ROOT, TABLE
from tests.support.dagster.sensor_worlds import told_commits
from tests.support.waiting import wait_until

pytestmark = pytest.mark.dagster

CODE = Path(__file__).parents[1] / "support" / "dagster" / "sensor_code.py"
WORKSPACE = f"load_from: [{{python_file: {{relative_path: {CODE}, location_name: tested}}}}]\n"
KEY = dg.AssetKey(TABLE)
SERVICES: tuple[stack.ServiceName, ...] = ("postgres", "daemon")
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass
class Story:
    """A stack whose daemon evaluates the sensors, and the table that they are about."""

    project: Path
    instance: dg.DagsterInstance
    table: icedb.Table

    @contextmanager
    def filled(self) -> Iterator[None]:
        """A program of its own fills the table meanwhile."""
        program = [
            sys.executable,
            "-m",
            "tests.support.dagster.sensor_code",
            self.table.uri,
            str(self.stop),
            str(self.written),
        ]
        process = subprocess.Popen(program, cwd=CODE.parents[2])
        try:
            yield
        finally:
            self.stop.touch()
            assert process.wait() == 0

    @property
    def stop(self) -> Path:
        return self.project / "stop"

    @property
    def written(self) -> Path:
        return self.project / "written"

    def commits(self) -> list[int]:
        """The times of all commits, as the program wrote them down."""
        return [int(line.split()[0]) for line in self.written.read_text().splitlines()]

    def told(self) -> list[int]:
        """The times of the commits that Dagster was told of, in the order in which it was."""
        return [told["icedb/commit_time_ms"] for told in told_commits(self.instance, KEY)]

    def runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs())

    def what_became_of_runs(self) -> str:
        told = []
        for record in self.instance.get_run_records():
            run = record.dagster_run
            told.append(f"{run.job_name} {run.run_id}: {run.status.value}, created {record.create_timestamp}")
            events = [e.dagster_event for e in self.instance.all_logs(run.run_id) if e.dagster_event]
            told += [f"    {event.event_type_value}: {event.message}" for event in events]
        return "\n".join(told)

    def sensors_have_begun(self) -> bool:
        found = [state.instigator_data for state in self.instance.all_instigator_state()]
        cursors = [data.cursor for data in found if isinstance(data, SensorInstigatorData)]
        return len(cursors) == 2 and all(cursors)

    def ticks(self) -> dict[str, list[int]]:
        """The numbers of the last ticks of each sensor, the newest first."""
        states = self.instance.all_instigator_state()
        found = {s.instigator_origin_id: (s.instigator_origin_id, s.selector_id) for s in states}
        return {key: [int(t.tick_id) for t in self.instance.get_ticks(*ids, limit=3)] for key, ids in found.items()}

    def newest_tick(self) -> int:
        return max((tick for ticks in self.ticks().values() for tick in ticks), default=0)

    def is_merged(self) -> bool:
        """The table has fewer parts than it had commits a moment before."""
        commits = len(self.commits())
        return len(self.table.snapshot().parts) < commits

    def daemon(self) -> int | None:
        """The pid of the daemon while it runs."""
        [row] = [row for row in stack.status(self.project) if row.name == "daemon"]
        return row.pid if row.state == "running" else None

    def kill_daemon_around_a_tick(self, after_s: float) -> None:
        """Right when one has begun, or a moment later; and start it again."""
        seen = self.newest_tick()
        until(lambda: self.newest_tick() > seen, "tick", every_seconds=0.05)
        time.sleep(after_s)
        pid = self.daemon()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.daemon() is None, "end of the daemon")
        stack.up(self.project, services=SERVICES)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "workspace.yaml").write_text(WORKSPACE)
    config = yaml.safe_load(PACKAGED_CONFIG.read_text())
    quick(config)
    # A run that the daemon was about to start when it was killed is under way until then; that is nobody's fault here.
    config["run_monitoring"]["start_timeout_seconds"] = 60
    (project / "dagster.yaml").write_text(yaml.safe_dump(config))
    table = icedb.Table.create(tmp_path / "lake" / TABLE, partition_by=["d"])
    kept = dict(os.environ)
    os.environ.pop("ICEDB_POSTGRES_URL", None)
    os.environ |= {ROOT: str(tmp_path / "lake"), "FRESHNESS_DAEMON_INTERVAL_SECONDS": "2"}
    try:
        started = stack.up(project, services=SERVICES)
        os.environ.update(stack.environment(started))
        with dg.DagsterInstance.get() as instance:
            instance.optimize_for_webserver(statement_timeout=60_000, pool_recycle=3600, max_overflow=20)
            yield Story(project, instance, table)
    finally:
        stack.down(project)
        os.environ.clear()
        os.environ.update(kept)


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow(seconds=240))])
def test_a_daemon_that_is_killed_repeats_no_run_and_no_event(story: Story, kills: int) -> None:
    chance = random.Random(kills)
    until(story.sensors_have_begun, "first tick of each sensor")
    with story.filled():
        until(story.told, "event")
        for kill in range(kills):  # the first before a sensor can have asked for a run, which may take long to start
            after_s = chance.choice([0, chance.uniform(0, 0.3), chance.uniform(0, 3)]) if kill else 0
            story.kill_daemon_around_a_tick(after_s)
        # Both jobs' runs may have been killed so: then their time runs out, and the sensor waits before it asks again.
        try:
            until(story.is_merged, "merge that a sensor asked for", seconds_max=600)
        except AssertionError as error:
            error.add_note(story.what_became_of_runs())
            raise
    until(lambda: len(story.told()) >= len(story.commits()), "event of each commit")
    until(lambda: {run.status.value for run in story.runs()} <= ENDED, "end of all runs")
    seen = story.newest_tick()
    until(lambda: all(min(ticks) > seen for ticks in story.ticks().values()), "three more ticks of each sensor")
    assert story.told() == story.commits(), "each once, and in order"
    runs = story.runs()
    assert max(Counter(run.tags[RUN_KEY_TAG] for run in runs).values()) == 1
    assert all("icedb/reason" in run.tags for run in runs)
    assert len(story.table.snapshot().parts) < len(story.commits())
    rows = story.table.query("SELECT n FROM t ORDER BY n").fetchall()
    assert rows == [(n,) for n in range(len(story.commits()))]
    assert story.table.verify(deep=True).ok
    # Dagster's own freshness policies look at events, so they work for a table that others fill.
    records = story.instance.get_freshness_state_records([KEY])
    assert records[KEY].freshness_state.value == "PASS"
