"""The write amplification of maintenance over a long life of a table, and the growth of its log, counted without rows.

Only the contents of parts are missing. The planners, exclusive commits, cleanup and log files are real, in a store in
memory whose clock is advanced. The jobs run at the times of Dagster's default schedules.

    python -m benchmarks.life --commits 20000
"""

from __future__ import annotations

import json
import random  # noqa: TID251 -- sizes that are the same every time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.harness.figures import OURS, Check, Curve, Finding, Plan, Step, Way
from benchmarks.harness.plots import LEGEND, figure_of, goal_line, save
from icedb.format.records import Marker
from icedb.format.timing import DAY_MS, MINUTE_MS
from icedb.operations.commits.actions import Append
from icedb.operations.retention.merge_log import LOG_FILES_MIN
from icedb.operations.rewrite.merge import Order, TieredMerge, merge
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.transaction.append import append
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.plot_style import SERIES, title, with_grid
from icedb.writer.part_writer import WrittenParts

__all__ = ["LOG_GOAL", "MIXES", "PARTS_GOAL", "Life", "Mix", "Point", "draw", "finding", "live", "measure"]

COMMITS = 20_000
COMMITS_SHORT = 3_000
#: The goals: maximum bytes that maintenance writes for each byte of appends.
PARTS_GOAL = 3.0
LOG_GOAL = 4.0
POINTS = 60

# 2027-01-15 00:00 UTC, a whole number of days.
START_MS = 1_800_000_000_000 // DAY_MS * DAY_MS
SCHEMA = {"ts": "TIMESTAMP", "user_id": "BIGINT", "event": "VARCHAR", "amount": "DOUBLE", "page": "VARCHAR"}
STATS = b'{"event":["add_to_cart","search",0],"ts":["2027-01-15 00:00:00.123","2027-01-15 00:00:29.998",0]}'


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix of commits, each with a part for each of its partitions.

    Each commit has rows of today, in `tenants` partitions. Every `late_every`th also has rows of one of the `late_days`
    days before. Sizes are means: a part has between half and one and a half of them.
    """

    name: str
    every_ms: int
    part_bytes: int
    tenants: int = 1
    of_tenants: int = 1
    late_every: int = 20
    late_days: int = 3
    late_bytes: int = 100_000

    def parts(self, number: int, now_ms: int, chance: random.Random) -> Iterator[tuple[str, int]]:
        """Return the partition and bytes of each part of a commit."""
        day = now_ms // DAY_MS
        for tenant in sorted(chance.sample(range(self.of_tenants), self.tenants)):
            yield self._partition(day, tenant), _about(self.part_bytes, chance)
        if self.late_every and number % self.late_every == self.late_every - 1:
            late = day - chance.randint(1, self.late_days)
            yield self._partition(late, chance.randrange(self.of_tenants)), _about(self.late_bytes, chance)

    def _partition(self, day: int, tenant: int) -> str:
        return f"day={day}" if self.of_tenants == 1 else f"tenant=t{tenant}/day={day}"


def _about(mean: int, chance: random.Random) -> int:
    return mean // 2 + chance.randrange(mean)


#: A commit every half minute for a week, smaller ones more often, and commits of many tenants.
MIXES = (
    Mix("steady", 30_000, 1_000_000),
    Mix("small and often", 10_000, 100_000),
    Mix("many tenants", 30_000, 100_000, tenants=10, of_tenants=50),
)


@dataclass(slots=True)
class Written:
    """The bytes that one kind of work wrote."""

    parts: int = 0
    #: Without claims, which have the same bytes until they are deleted.
    log: int = 0
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The state after some commits. `log_files` and `log_bytes` are those that an opening of the table reads."""

    commits: int
    parts_ratio: float
    log_ratio: float
    log_files: int
    log_bytes: int
    live_parts: int
    most_small_parts: int
    stored_objects: int


@dataclass(slots=True)
class Life:
    """The record of a life: bytes by kind of work, and points in time."""

    mix: Mix
    written: dict[str, Written] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    #: At the end, by partition.
    live_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def parts_ratio(self) -> float:
        """The bytes of parts that maintenance wrote, for each byte of appends."""
        return self._ratio(lambda w: w.parts)

    @property
    def log_ratio(self) -> float:
        """The same ratio for log files."""
        return self._ratio(lambda w: w.log)

    def _ratio(self, of: Callable[[Written], int]) -> float:
        maintenance = sum(of(w) for name, w in self.written.items() if name != "append")
        return maintenance / max(1, of(self.written["append"]))


class _Store(ClockedStore):
    """A store that counts bytes by kind of work. Parts have no objects in it."""

    life: Life
    doing = "append"

    def create(self, key: str, body: bytes | Path) -> None:
        super().create(key, body)
        written = self.life.written.setdefault(self.doing, Written())
        if key.startswith(self.location.keys.log_prefix):
            written.log += len(body)  # type: ignore[arg-type]
        elif key.startswith(self.location.keys.claims_prefix):
            written.claims += len(body)  # type: ignore[arg-type]


class _AgingTable:
    """A table, its jobs, and the clock."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix, self.life, self.chance = mix, Life(mix), random.Random(seed)  # noqa: S311 -- no secret
        self.clock = ManualClock(START_MS)
        self.store = _Store(self.clock)
        self.store.life = self.life
        self.table = create_table(self.store, self.clock, partition_by=["tenant", "day"], sort_by=["event", "ts"])
        self.handle: Handle = self.table.handle
        #: The jobs of each minute, by Dagster's schedules.
        self.jobs: Sequence[tuple[str, Callable[[int], bool], Callable[[], object]]] = (
            ("merge_newest", lambda m: m % 5 == 0, lambda: self._merge("newest")),
            ("merge_oldest", lambda m: m % 15 == 7, lambda: self._merge("oldest")),
            ("merge_log", lambda m: m % 60 == 13, lambda: self.table.merge_log(files_min=LOG_FILES_MIN)),
            ("cleanup", lambda m: m % 360 == 33, self.table.cleanup),
        )

    def run(self, commits: int, on_point: Callable[[Point], None]) -> Life:
        minute = START_MS // MINUTE_MS
        for number in range(commits):
            until_ms = START_MS + number * self.mix.every_ms
            while minute * MINUTE_MS < until_ms:
                self.clock.set(max(self.clock.now_ms(), minute * MINUTE_MS))
                self._maintain(minute)
                minute += 1
            self.clock.set(max(self.clock.now_ms(), until_ms))
            self._append(number)
            if (number + 1) % max(1, commits // POINTS) == 0 or number + 1 == commits:
                self.life.points.append(self._point(number + 1))
                on_point(self.life.points[-1])
        for marker in self.handle.read(fresh=True).live:
            partition = self.handle.partition(marker)
            self.life.live_bytes[partition] = self.life.live_bytes.get(partition, 0) + marker.bytes
        return self.life

    def _append(self, number: int) -> None:
        self.store.doing = "append"
        keys = [
            (self.handle.keys.part(partition, self.clock.new_id()), n_bytes)
            for partition, n_bytes in self.mix.parts(number, self.clock.now_ms(), self.chance)
        ]
        markers = tuple(_marker(key, n_bytes) for key, n_bytes in keys)
        self._put(markers)
        if number:
            append(self.handle, markers, SCHEMA, oldest_part_ms=self.clock.now_ms())
            return
        self.store.create(markers[0].key, b"")  # by its time the clocks are compared, once
        commit_exclusive(self.handle, Append(self.handle, WrittenParts(SCHEMA, markers, self.clock.now_ms())))

    def _put(self, markers: Sequence[Marker]) -> None:
        self.life.written.setdefault(self.store.doing, Written()).parts += sum(m.bytes for m in markers)

    def _maintain(self, minute: int) -> None:
        for name, due, job in self.jobs:
            if due(minute):
                self.store.doing = name
                job()

    def _merge(self, order: Order) -> object:
        return merge(self.handle, order=order, tiers=TieredMerge(), rewriter=self._rewrite)

    def _rewrite(self, _: Handle, rewrites: Sequence[Rewrite], __: Mapping[str, str]) -> list[Marker | None]:
        markers = [_marker(self.handle.keys.part(r.partition, self.clock.new_id()), r.bytes) for r in rewrites]
        self._put(markers)
        return list(markers)

    def _point(self, commits: int) -> Point:
        state = self.handle.read(fresh=True)
        small: dict[str, int] = {}
        for marker in state.live:
            partition = self.handle.partition(marker)
            small[partition] = small.get(partition, 0) + 1
        return Point(
            commits,
            self.life.parts_ratio,
            self.life.log_ratio,
            len(state.effective),
            sum(len(self.store.objects[k].body) for k in state.effective),
            len(state.live),
            max(small.values()),
            len(self.store.objects),
        )


def _marker(key: str, n_bytes: int) -> Marker:
    return Marker(key, n_bytes, 0, rows=n_bytes // 20, stats=msgspec.Raw(STATS), digest=key[-40:-8])


def live(mix: Mix, commits: int, *, seed: int = 1, on_point: Callable[[Point], None] = lambda _: None) -> Life:
    """Run the commits of a mix, with the jobs between them. Every run is equal."""
    return _AgingTable(mix, seed).run(commits, on_point)


# ------------------------------------------------------------------------------------------------ the row of results


def measure(plan: Plan, folder: Path, on_step: Step) -> list[Finding]:
    """Measure the row `life`: the ratios of all mixes, with curves. The long form has 20,000 commits of each."""
    del folder  # nothing is stored
    lives = []
    for mix in MIXES:
        commits = plan.size(COMMITS_SHORT // mix.tenants, COMMITS)
        on_step(f"life, {mix.name}: {commits:,} commits")
        lives.append(live(mix, commits, on_point=lambda p, n=mix.name: on_step(f"life, {n}: commit {p.commits:,}")))  # type: ignore[misc]
    return [finding(lives)]


def finding(lives: Sequence[Life]) -> Finding:
    """Return the finding of some lives."""
    return Finding(
        key="life",
        title="Bytes that maintenance writes again, for each byte that appends write",
        short="written again, a byte of appends",
        unit="bytes per byte",
        ways=[Way(f"{OURS}, {life.mix.name}: {what}", [ratio]) for life in lives for what, ratio in _ratios(life)],
        checks=[
            Check(f"{life.mix.name}, {life.points[-1].commits:,} commits: {what}", ratio, limit, why=WHY[what])
            for life in lives
            for (what, ratio), limit in zip(_ratios(life), (PARTS_GOAL, LOG_GOAL), strict=True)
        ],
        counts={name: value for life in lives for name, value in _counts(life).items()},
        curves=[curve for life in lives for curve in _curves(life)],
        notes=[
            "Counted, not timed: real plans, exclusive commits and log files, in a store in memory; parts have sizes "
            "and no rows. Jobs run as Dagster's schedules start them by default.",
            *(f"{life.mix.name}: {_described(life.mix)}." for life in lives),
        ],
    )


#: The dominating cost if a goal is missed.
WHY = {
    "parts": "each row is written once for each tier between its first part and a full one, and once more when its "
    "partition gets cold; larger batches, or more parts in a hot partition (hot_parts), write less",
    "log": "a log tombstone of each append is carried for a day; fewer cleanups, or larger appends, write less",
}


def _ratios(life: Life) -> list[tuple[str, float]]:
    return [("parts", life.parts_ratio), ("log", life.log_ratio)]


def _counts(life: Life) -> dict[str, float]:
    name, last = life.mix.name, life.points[-1]
    of = life.written
    merges = [w for who, w in of.items() if who in ("merge_newest", "merge_oldest")]
    written = {
        "parts, MB, written by appends": of["append"].parts / 1e6,
        "parts, MB, written by merges": sum(w.parts for w in merges) / 1e6,
        "log, kB, written by appends": of["append"].log / 1e3,
        "log, kB, written by merges": sum(w.log for w in merges) / 1e3,
        "log, kB, written by merges of the log": of.get("merge_log", Written()).log / 1e3,
        "log, kB, written by cleanups": of.get("cleanup", Written()).log / 1e3,
        "claims, kB, deleted at once": sum(w.claims for w in of.values()) / 1e3,
    }
    return {f"{name}: {what}": float(round(value)) for what, value in written.items()} | {
        f"{name}: log files to read, at most": max(p.log_files for p in life.points),
        f"{name}: bytes of log to read, in the end": last.log_bytes,
        f"{name}: live parts, in the end": last.live_parts,
        f"{name}: parts of one partition, at most": max(p.most_small_parts for p in life.points),
    }


def _curves(life: Life) -> list[Curve]:
    x = [p.commits for p in life.points]

    def curve(what: str, y_label: str, lines: Mapping[str, Sequence[float]], limit: float | None = None) -> Curve:
        return Curve(f"{life.mix.name}: {what}", "commits", y_label, x, lines, limit)

    stored = {
        "log files that a reader opens": [p.log_files for p in life.points],
        "parts of the fullest partition": [p.most_small_parts for p in life.points],
    }
    return [
        curve("rows written again", "bytes per byte", {"parts": [p.parts_ratio for p in life.points]}, PARTS_GOAL),
        curve("log written again", "bytes per byte", {"log": [p.log_ratio for p in life.points]}, LOG_GOAL),
        curve("log files and parts", "number", stored),
    ]


def _described(mix: Mix) -> str:
    of = f", in {mix.tenants} of {mix.of_tenants} tenants" if mix.of_tenants > 1 else ""
    return (
        f"a commit every {mix.every_ms / 1000:g} s with parts of {mix.part_bytes:,} bytes{of}, by day; one of "
        f"{mix.late_every} also has a part of {mix.late_bytes:,} bytes for one of the {mix.late_days} days before"
    )


# ------------------------------------------------------------------------------------------------ by itself


def draw(lives: Sequence[Life], folder: Path) -> None:
    """Draw `life-written-again.png`: the rewritten bytes of all lives, and the log files that readers open."""
    parts_most = max(life.points[-1].parts_ratio for life in lives)
    log_most = max(life.points[-1].log_ratio for life in lives)
    figure, panels = figure_of(
        f"Maintenance writes rows {parts_most:.1f} times again at most, and the log {log_most:.1f} times",
        height=3,
        columns=3,
    )
    for panel, head, goal, values in (
        (panels[0], "parts: bytes per inserted byte", PARTS_GOAL, [[p.parts_ratio for p in x.points] for x in lives]),
        (panels[1], "log: bytes per appended byte", LOG_GOAL, [[p.log_ratio for p in x.points] for x in lives]),
        (panels[2], "log files that an opening reads", None, [[p.log_files for p in x.points] for x in lives]),
    ):
        for life, colour, line in zip(lives, SERIES, values, strict=False):
            panel.plot([p.commits for p in life.points], line, color=colour, linewidth=1.4, label=life.mix.name)
        if goal is not None:
            goal_line(panel, goal, "goal")
        panel.set_xlabel("commits")
        panel.set_ylim(bottom=0)
        title(with_grid(panel), head)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", **LEGEND, ncols=len(lives) + 1)
    save(figure, folder / "life-written-again.png")


def main(
    commits: Annotated[int, typer.Option(min=1, help="Commits of each mix.")] = COMMITS_SHORT,
    mix: Annotated[str, typer.Option(help="Run the mixes whose name contains this text.")] = "",
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as JSON.")] = False,
) -> None:
    """Simulate the lives of tables, and print the write amplification."""
    lives = []
    for chosen in (m for m in MIXES if mix in m.name):
        life = live(chosen, commits)
        lives.append(life)
        if not as_json:
            typer.echo(
                f"{chosen.name}: {commits:,} commits; written again per byte: parts {life.parts_ratio:.2f}, "
                f"log {life.log_ratio:.2f}; {max(p.log_files for p in life.points)} log files to read at most"
            )
    if as_json:
        typer.echo(json.dumps([asdict(life) for life in lives], indent=2))
    if plots is not None:
        draw(lives, plots)


if __name__ == "__main__":
    typer.run(main)
