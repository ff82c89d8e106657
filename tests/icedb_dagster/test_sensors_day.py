"""A simulated day of bursts: the table stays small, and no work or commit is repeated.

Writers, runs and the daemon share a simulated clock. Dagster evaluates the sensors every half minute. The runs of a
table wait for each other, and sometimes fail. The daemon dies between ticks, and starts again with its stored state.
"""

import heapq
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

from icedb import Thresholds
from icedb.format.timing import DAY_MS, HOUR_MS, MINUTE_MS
from icedb.testing import check_sound
from icedb_dagster import build_table_definitions
from icedb_dagster.metadata.table_metadata import commit_metadata
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor, commits_sensor, maintenance_sensor, run_requests
from icedb_dagster.sensors.open_tables import open_tables
from tests.support.dagster.sensor_worlds import (
    WORLDS,
    Daemon,
    SensorWorld,
    SimulatedLake,
    add_run,
    end_run,
    report_event,
    reported_commits,
)

pytestmark = pytest.mark.dagster

logger = logging.getLogger(__name__)

SECOND_MS = 1_000
TICK_MS = 30 * SECOND_MS
KEY = dg.AssetKey("events")
KINDS = ("merge_newest", "merge_oldest", "merge_log", "cleanup")
THRESHOLDS = Thresholds(expired_objects=400, expired_bytes=1_000_000_000)
#: A partition that turned cold may have the small parts of a hot one for this time: two runs, one of which fails.
COOLING_MS = 6 * MINUTE_MS


@dataclass
class DayFigures:
    """The maxima and counts of a day."""

    ticks: int = 0
    hot_parts: int = 0
    cold_parts: int = 0
    log_files: int = 0
    expired_objects: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    #: Runs that did several kinds of maintenance.
    shared_runs: int = 0
    deaths: int = 0
    dropped: int = 0
    commits: int = 0
    bytes_inserted: int = 0
    bytes_merged: int = 0

    def __str__(self) -> str:
        ratio = self.bytes_merged / self.bytes_inserted
        return (
            f"{self.ticks} ticks, {self.deaths} deaths, {self.commits} commits; at most {self.hot_parts} hot and "
            f"{self.cold_parts} cold small parts of a partition, {self.log_files} log files, {self.expired_objects} "
            f"expired objects; runs: {dict(self.runs)}, {self.shared_runs} of several kinds, {self.dropped} dropped; "
            f"bytes merged per byte inserted: {ratio:.1f}"
        )


@dataclass(order=True)
class Happening:
    """Something at a simulated time (unix milliseconds)."""

    at_ms: int
    number: int
    act: Callable[[], None] = field(compare=False)


class Day:
    """One table, its writers, its two sensors, and the runs that these start."""

    def __init__(self, instance: dg.DagsterInstance, world: SensorWorld, lake: SimulatedLake, seed: int) -> None:
        self.instance, self.world, self.clock, self.lake = instance, world, world.clock, lake
        self.random = random.Random(seed)
        self.figures = DayFigures()
        self.agenda: list[Happening] = []
        self.numbers = itertools.count()
        self.rows: Counter[tuple[int, str]] = Counter()
        #: Time and log file of each commit of rows, in order; commits of a slow clock; commits that a step reported.
        self.commits: list[tuple[int, str]] = []
        self.late: set[tuple[int, str]] = set()
        #: The work for which each run was requested, and the work of successful runs.
        self.bases: dict[str, list[tuple[str, str]]] = {}
        self.worked: set[tuple[str, str]] = set()
        #: How often each kind of maintenance has failed since its last success.
        self.failures: Counter[str] = Counter()
        self.under_way: list[dg.DagsterRun] = []
        self.queue: list[dg.DagsterRun] = []
        self.cooled: dict[str, int] = {}
        day = self.clock.now_ms() // DAY_MS * DAY_MS
        self.clock.set(day + 12 * HOUR_MS)
        world.create("events", partition_by=["d"], sort_by=["id"])
        #: The maintainer and each writer have their own handle. The clock of one writer is behind.
        self.maintainer = world.open("events")
        self.writers = [world.open("events") for _ in range(3)]
        self.writers.append(world.open("events", skew_ms=-40 * SECOND_MS))
        jobs = jobs_of_table()
        self.maintenance = Daemon(
            instance,
            maintenance_sensor(
                KEY, MaintenanceSensor(THRESHOLDS), jobs=jobs, maintain=jobs.pop("maintain"), resource_key="icedb"
            ),
            lake,
            launched=self.launched,
            clock=self.clock,
        )
        self.telling = Daemon(
            instance, commits_sensor(KEY, CommitsSensor(), resource_key="icedb"), lake, clock=self.clock
        )

    def after(self, ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, Happening(self.clock.now_ms() + ms, next(self.numbers), act))

    def live(self, until_ms: int) -> None:
        while self.agenda and self.agenda[0].at_ms <= until_ms:
            happening = heapq.heappop(self.agenda)
            self.clock.set(max(self.clock.now_ms(), happening.at_ms))
            happening.act()
        self.clock.set(until_ms)

    def day(self, ago: int = 0) -> str:
        return (datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC) - timedelta(days=ago)).strftime("%Y-%m-%d")

    def insert(self) -> None:
        """Insert a batch, mostly of today, sometimes with rows of earlier days."""
        chance = self.random.random()
        days = {self.day()} if chance < 0.8 else {self.day(n) for n in range(self.random.randint(1, 4))}
        if chance > 0.97:
            days = {self.day(self.random.randint(1, 5))}
        begin = sum(self.rows.values())
        batch = [(begin + n, d) for n in range(self.random.randint(2, 6)) for d in sorted(days)]
        writer = self.random.choice(self.writers)
        commit = writer.insert(pa.table({"id": [n for n, _ in batch], "d": [d for _, d in batch]}))
        self.rows.update(batch)
        reported = commit.created_ms, commit.key
        self.commits.append(reported)
        if writer is self.writers[-1]:
            self.late.add(reported)
        elif chance < 0.1:  # it was a step of Dagster's
            event = dg.AssetMaterialization(KEY, metadata=commit_metadata(*reported, [p.key for p in commit.parts]))
            self.after(
                self.random.randint(1, 20) * SECOND_MS, lambda: report_event(self.instance, event, self.clock.now_ms())
            )
        self.figures.commits += 1
        self.figures.bytes_inserted += commit.bytes

    def burst(self, *, minutes: int, every_s: tuple[int, int]) -> None:
        at_ms = 0
        while at_ms < minutes * MINUTE_MS:
            self.after(at_ms, self.insert)
            at_ms += self.random.randint(every_s[0] * 1000, every_s[1] * 1000)

    def launched(self, run: dg.DagsterRun) -> None:
        active = {kind for r in [*self.queue, *self.under_way] for kind in kinds_of(r)}
        assert active.isdisjoint(kinds_of(run)), f"two runs of {run.job_name} at once"
        self.figures.runs.update(kinds_of(run))
        self.figures.shared_runs += len(kinds_of(run)) > 1
        self.queue.append(run)
        self.after(self.random.randint(5, 15) * SECOND_MS, self.dequeue)

    def dequeue(self) -> None:
        """Start one run of a table at a time, the most urgent first, as the queue and the pool do."""
        if self.under_way or not self.queue:
            return
        run = min(self.queue, key=lambda r: r.job_name == "events_merge_oldest")
        self.queue.remove(run)
        self.under_way.append(run)
        end_run(self.instance, run, dg.DagsterRunStatus.STARTED)
        fails = self.random.random() < 0.1
        lasts_ms = self.random.randint(2, 10 if fails else 25) * SECOND_MS
        self.after(lasts_ms, lambda: self.end(run, fails=fails))

    def end(self, run: dg.DagsterRun, *, fails: bool) -> None:
        for kind in kinds_of(run):
            self.failures[kind] = self.failures[kind] + 1 if fails else 0
        if not fails:
            for kind in kinds_of(run):
                self.work(kind)
            self.worked.update(self.bases.get(run.run_id, ()))
        end_run(self.instance, run, dg.DagsterRunStatus.FAILURE if fails else dg.DagsterRunStatus.SUCCESS)
        self.under_way.remove(run)
        self.dequeue()

    def work(self, kind: str) -> None:
        table = self.maintainer
        if kind == "merge_log":
            table.merge_log()
        elif kind == "cleanup":
            table.cleanup()
        else:
            report = table.merge(order="newest" if kind == "merge_newest" else "oldest")
            self.figures.bytes_merged += report.merged_bytes

    def by_hand(self) -> None:
        kind = self.random.choice(KINDS)
        if not any(kind in kinds_of(r) for r in [*self.queue, *self.under_way]):
            self.launched(add_run(self.instance, f"events_{kind}", dg.DagsterRunStatus.QUEUED))

    def tick(self) -> None:
        for daemon in self.random.sample([self.maintenance, self.telling], 2):
            dies = self.random.random() < 0.03
            if dies:
                self.figures.deaths += 1
            before = len(daemon.created)
            answer = daemon.tick(
                dies_after=self.random.randint(0, 3) if dies else None, reserved=self.random.random() < 0.5
            )
            if answer is not None and daemon is self.maintenance:
                self.check_work(daemon.created[before:], answer)
            if dies and self.random.random() < 0.5:  # and the code server with it
                open_tables.forget(self.lake, KEY)
        self.figures.ticks += 1
        self.check_table()

    def check_work(self, created: list[str], answer: dg.SensorResult) -> None:
        """Check that no earlier run has done the work of a new run."""
        cursor = run_requests.decode(str(answer.cursor))
        assert cursor is not None
        for request in answer.run_requests or ():
            if request.run_key in created:
                run = next(r for r in self.queue if r.tags.get("dagster/run_key") == request.run_key)
                self.bases[run.run_id] = [(kind, cursor.requests[kind].basis) for kind in kinds_of(run)]
                for work in self.bases[run.run_id]:
                    assert work not in self.worked, f"{work} has run"

    def check_table(self) -> None:
        health, now_ms = self.maintainer.health(THRESHOLDS), self.clock.now_ms()
        figures = self.figures
        for p in health.partitions:
            if p.hot:
                self.cooled.pop(p.path, None)
                # Half of the threshold is time for one failure, not for two.
                assert p.small_parts < THRESHOLDS.hot_parts or self.failures["merge_newest"] > 1, (now_ms, p, figures)
                figures.hot_parts = max(figures.hot_parts, p.small_parts)
            elif now_ms - self.cooled.setdefault(p.path, now_ms) > COOLING_MS:
                assert p.small_parts < THRESHOLDS.cold_parts, (now_ms, p, figures)
                figures.cold_parts = max(figures.cold_parts, p.small_parts)
        assert health.log_files < THRESHOLDS.log_files or self.failures["merge_log"] > 1, figures
        figures.log_files = max(figures.log_files, health.log_files)
        expired = health.expired_parts + health.expired_log_files
        assert expired < THRESHOLDS.expired_objects, figures
        figures.expired_objects = max(figures.expired_objects, expired)

    def check_end(self) -> None:
        """Check that every row is stored, and that every commit and run was reported or requested once."""
        self.figures.dropped = len(self.maintenance.dropped)
        assert len(set(self.maintenance.created)) == len(self.maintenance.created)
        reported = [
            (t["icedb/commit_time_ms"], t.get("icedb/log_file"), "icedb/commit_parts" in t)
            for t in reported_commits(self.instance, KEY)
        ]
        of_time = Counter(created_ms for created_ms, _ in self.commits)
        assert Counter(created_ms for created_ms, _, _ in reported) == of_time
        named = [(t_ms, key) for t_ms, key, _ in reported if key is not None]
        assert set(named) <= set(self.commits)
        late_ms = {t_ms for t_ms, _ in self.late}
        by_sensor = [t_ms for t_ms, _, ours in reported if ours and t_ms not in late_ms]
        assert by_sensor == sorted(by_sensor)
        rows = self.maintainer.query("SELECT id, d FROM t").fetchall()
        assert Counter(rows) == self.rows
        report = self.maintainer.verify(deep=True)
        assert report.ok, report
        check_sound(self.world.stores["events"])


def jobs_of_table() -> dict[Any, dg.JobDefinition]:
    jobs = {job.name: job for job in build_table_definitions("events").jobs or ()}
    return {kind: jobs[f"events_{kind}"] for kind in (*KINDS, "maintain")}


def kinds_of(run: dg.DagsterRun) -> list[str]:
    """Return the kinds of maintenance that a run does."""
    if run.job_name != "events_maintain":
        return [run.job_name.removeprefix("events_")]
    return run.run_config["ops"]["events_maintain_work"]["config"]["kinds"]


@pytest.fixture
def day(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Day]]:
    root = "memory://day"
    with dg.DagsterInstance.ephemeral() as instance:
        WORLDS[root] = SensorWorld()
        yield lambda seed: Day(instance, WORLDS[root], SimulatedLake(root=root), seed)
        open_tables.forget(SimulatedLake(root=root), KEY)
        del WORLDS[root]


def simulate(day: Day, *, hours: int, bursts: dict[float, tuple[int, tuple[int, int]]]) -> DayFigures:
    """`bursts`: after how many hours, for how many minutes, and how many seconds there are between two commits."""
    begin_ms = day.clock.now_ms()
    for at_h, (minutes, every_s) in bursts.items():
        day.after(int(at_h * HOUR_MS), lambda m=minutes, s=every_s: day.burst(minutes=m, every_s=s))
    for _ in range(hours // 4):
        day.after(day.random.randint(0, hours * HOUR_MS), day.by_hand)
    for _ in range(hours * HOUR_MS // TICK_MS):
        day.live(day.clock.now_ms() // TICK_MS * TICK_MS + TICK_MS)
        day.tick()
    assert day.clock.now_ms() - begin_ms == hours * HOUR_MS
    day.agenda.clear()
    for _ in range(4):  # the rest of a restart, and commits that were too young
        day.live(day.clock.now_ms() + TICK_MS)
        day.telling.tick()
    day.check_end()
    return day.figures


@pytest.mark.sampled(days=3)
def test_an_evening_of_bursts_leaves_a_small_table_and_repeats_nothing(day: Callable[[int], Day]) -> None:
    bursts = {0.1: (20, (7, 13)), 2.5: (8, (10, 20)), 4.2: (5, (15, 40))}
    figures = simulate(day(1), hours=5, bursts=bursts)
    logger.info("%s", figures)
    assert figures.commits > 120
    assert figures.hot_parts >= THRESHOLDS.hot_parts // 2
    assert figures.runs["merge_newest"]
    assert figures.runs["merge_oldest"]
    assert figures.runs["cleanup"]
    assert figures.shared_runs
    assert figures.deaths


@pytest.mark.slow(seconds=100)
def test_a_day_of_bursts_leaves_a_small_table_and_repeats_nothing(day: Callable[[int], Day]) -> None:
    chance = random.Random(1)
    bursts = {
        chance.uniform(0, 22): (chance.randint(5, 60), chance.choice([(7, 13), (10, 30), (20, 60)])) for _ in range(8)
    }
    bursts[11.8] = (30, (7, 13))  # over midnight
    figures = simulate(day(1), hours=24, bursts=bursts)
    logger.info("%s", figures)
    assert figures.ticks == 2_880
    assert figures.hot_parts >= THRESHOLDS.hot_parts // 2
    assert set(figures.runs) == set(KINDS)
