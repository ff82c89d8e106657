"""A daemon that is killed repeatedly keeps an external table small and reports each commit once."""

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

from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._core.storage.tags import RUN_KEY_TAG

import icedb
from icedb_dagster.dev import stack
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG
from tests.support.dagster.dagster_platform import ENDED, quick, until
from tests.support.dagster.sensor_code import ROOT, TABLE
from tests.support.dagster.sensor_worlds import reported_commits
from tests.support.waiting import wait_until

pytestmark = pytest.mark.dagster

CODE = Path(__file__).parents[1] / "support" / "dagster" / "sensor_code.py"
WORKSPACE = f"load_from: [{{python_file: {{relative_path: {CODE}, location_name: tested}}}}]\n"
KEY = dg.AssetKey(TABLE)
SERVICES: tuple[stack.ServiceName, ...] = ("postgres", "daemon")


@dataclass
class SensorStack:
    """A stack whose daemon evaluates the sensors, and the table that they are about."""

    project: Path
    instance: dg.DagsterInstance
    table: icedb.Table

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Fill the table by another program during the block."""
        arguments = (self.table.uri, str(self.stop), str(self.written))
        program = [sys.executable, "-m", "tests.support.dagster.sensor_code", *arguments]
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
        """Return the times of all commits, as the program recorded them."""
        return [int(line.split()[0]) for line in self.written.read_text().splitlines()]

    def reported(self) -> list[int]:
        """Return the times of the reported commits, in the order of the reports."""
        return [event["icedb/commit_time_ms"] for event in reported_commits(self.instance, KEY)]

    def runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs())

    def what_became_of_runs(self) -> str:
        lines = []
        for record in self.instance.get_run_records():
            run = record.dagster_run
            lines.append(f"{run.job_name} {run.run_id}: {run.status.value}, created {record.create_timestamp}")
            events = [e.dagster_event for e in self.instance.all_logs(run.run_id) if e.dagster_event]
            lines += [f"    {event.event_type_value}: {event.message}" for event in events]
        return "\n".join(lines)

    def sensors_have_begun(self) -> bool:
        states = [state.instigator_data for state in self.instance.all_instigator_state()]
        cursors = [data.cursor for data in states if isinstance(data, SensorInstigatorData)]
        return len(cursors) == 2 and all(cursors)

    def ticks(self) -> dict[str, list[int]]:
        """Return the numbers of the last ticks of each sensor, the newest first."""
        states = self.instance.all_instigator_state()
        origins = {s.instigator_origin_id: (s.instigator_origin_id, s.selector_id) for s in states}
        return {key: [int(t.tick_id) for t in self.instance.get_ticks(*ids, limit=3)] for key, ids in origins.items()}

    def newest_tick(self) -> int:
        return max((tick for ticks in self.ticks().values() for tick in ticks), default=0)

    def is_merged(self) -> bool:
        """Return whether the table has fewer parts than commits."""
        commits = len(self.commits())
        return len(self.table.snapshot().parts) < commits

    def daemon(self) -> int | None:
        """Run the daemon during the block, and return its pid."""
        [row] = [row for row in stack.status(self.project) if row.name == "daemon"]
        return row.pid if row.state == "running" else None

    def kill_daemon_around_a_tick(self, after_s: float) -> None:
        """Right when one has begun, or a moment later; and start it again."""
        last_tick = self.newest_tick()
        until(lambda: self.newest_tick() > last_tick, "tick", every_seconds=0.05)
        time.sleep(after_s)
        pid = self.daemon()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.daemon() is None, "end of the daemon")
        stack.up(self.project, services=SERVICES)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[SensorStack]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "workspace.yaml").write_text(WORKSPACE)
    config = yaml.safe_load(PACKAGED_CONFIG.read_text())
    quick(config)
    # A run that the daemon was about to start when it was killed counts as active until this time.
    config["run_monitoring"]["start_timeout_seconds"] = 60
    (project / "dagster.yaml").write_text(yaml.safe_dump(config))
    table = icedb.Table.create(tmp_path / "lake" / TABLE, partition_by=["d"])
    saved = dict(os.environ)
    os.environ.pop("ICEDB_POSTGRES_URL", None)
    os.environ |= {ROOT: str(tmp_path / "lake"), "FRESHNESS_DAEMON_INTERVAL_SECONDS": "2"}
    try:
        started = stack.up(project, services=SERVICES)
        os.environ.update(stack.environment(started))
        with dg.DagsterInstance.get() as instance:
            instance.optimize_for_webserver(statement_timeout=60_000, pool_recycle=3600, max_overflow=20)
            yield SensorStack(project, instance, table)
    finally:
        stack.down(project)
        os.environ.clear()
        os.environ.update(saved)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow(seconds=160))])
def test_a_killed_daemon_repeats_no_run_and_no_event(story: SensorStack, kills: int) -> None:
    chance = random.Random(kills)
    until(story.sensors_have_begun, "first tick of each sensor")
    with story.filled():
        until(story.reported, "event")
        for kill in range(kills):  # the first kill is before a sensor can request a run, whose start may take long
            after_s = chance.choice([0, chance.uniform(0, 0.3), chance.uniform(0, 3)]) if kill else 0
            story.kill_daemon_around_a_tick(after_s)
        # The runs of both jobs may have been killed. Then they time out, and the sensor waits before its next request.
        try:
            until(story.is_merged, "merge that a sensor asked for", seconds_max=600)
        except AssertionError as error:
            error.add_note(story.what_became_of_runs())
            raise
    until(lambda: len(story.reported()) >= len(story.commits()), "event of each commit")
    until(lambda: {run.status.value for run in story.runs()} <= ENDED, "end of all runs")
    last_tick = story.newest_tick()
    until(lambda: all(min(ticks) > last_tick for ticks in story.ticks().values()), "three more ticks of each sensor")
    assert story.reported() == story.commits(), "each commit once, in order"
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
