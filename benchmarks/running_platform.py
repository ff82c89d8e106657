"""Measure a running platform: its processor time, memory and runs, the growth of Postgres, and the lag of its sensors.

    python -m benchmarks.running_platform [--tables 50 --written 5 --every 10 --minutes 120]

`icedb-dagster up` runs in an empty folder, with shared sensors of all tables. This process commits to some of the
tables at a fixed interval. The processor time of a service includes that of its children which have ended. Memory is
the proportional set size of a service and its children. The figures are for the time after the first five minutes of
the platform, in which its tables are read for the first time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from benchmarks.harness.figures import percentile
from benchmarks.harness.processes import free_ports
from benchmarks.harness.words import number
from icedb import Table
from icedb.util.clock import SystemClock
from icedb_dagster.dev.stack import SERVICES, Stack, down, status, up
from icedb_dagster.dev.stack.home import open_instance
from icedb_dagster.metadata.table_metadata import COMMIT_TIME

if TYPE_CHECKING:
    import dagster as dg

__all__ = ["measure"]

CODE = """\
import os
import dagster as dg
from icedb_dagster import CommitsSensor, IceDBResource, build_table_definitions, share_sensors

tables = [
    build_table_definitions(f"events_{n}", running=True, commits_sensor=CommitsSensor(events="observation"))
    for n in range(int(os.environ["TABLES"]))
]
resources = {"icedb": IceDBResource(root=os.environ["ROOT"])}
defs = share_sensors(dg.Definitions.merge(*tables, dg.Definitions(resources=resources)))
"""
WORKSPACE = "load_from:\n  - python_file:\n      relative_path: event_tables.py\n"
WARM_UP_SECONDS = 300
PROGRESS_SECONDS = 600
COMMIT_ROWS = 1_000
PAGE = 1_000
DAY_SECONDS = 86_400


@dataclass(slots=True)
class _Usage:
    """The use of resources by a service and its children. `seconds` is processor time."""

    seconds: float = 0.0
    bytes_max: int = 0


@dataclass(slots=True)
class _Meter:
    """Samples the processes of a stack."""

    stack: Stack
    services: dict[str, _Usage] = field(default_factory=dict)

    def sample(self) -> None:
        for service in status(self.stack.project_dir):
            if service.pid is None:
                raise RuntimeError(f"the service {service.name} has ended: see {service.log}")
            usage = self.services.setdefault(service.name, _Usage())
            seconds, size = _tree_usage(service.pid)
            # A child's time is missing between its end and the end of the wait of its parent.
            usage.seconds = max(usage.seconds, seconds)
            usage.bytes_max = max(usage.bytes_max, size)


def _tree_usage(pid: int) -> tuple[float, int]:
    """Return the processor seconds and the bytes of a process and its children, also of children that have ended."""
    root = psutil.Process(pid)
    seconds, size = 0.0, 0
    for process in [root, *root.children(recursive=True)]:
        try:
            seconds += sum(process.cpu_times()[:4])
            size += process.memory_full_info().pss
        except psutil.Error:  # it ended
            continue
    return seconds, size


def measure(
    folder: Path,
    *,
    tables: int,
    written: int,
    every: float,
    minutes: float,
    warm_up: float,
    show: Callable[[str], None],
) -> None:
    """Run a platform in an empty folder, and show each figure. Times are in seconds, except `minutes`."""
    root = folder / "tables"
    made = [Table.create(str(root / f"events_{n}"), partition_by=["day"], sort_by=["n"]) for n in range(tables)]
    project = folder / "project"
    project.mkdir()
    (project / "event_tables.py").write_text(CODE)
    (project / "workspace.yaml").write_text(WORKSPACE)
    environ = os.environ | {"TABLES": str(tables), "ROOT": str(root)}
    (port,) = free_ports(1)
    stack = up(project, port=port, progress=show, environ=environ)
    try:
        if stack.warnings:
            raise RuntimeError("; ".join(stack.warnings))
        with open_instance(stack.dagster_home, stack.postgres_url) as instance:
            for _ in _rounds(made[:written], every, warm_up):
                pass
            _measure_stack(stack, instance, made, written=written, every=every, seconds=60 * minutes, show=show)
    finally:
        down(project, services=SERVICES, progress=show)


def _measure_stack(
    stack: Stack,
    instance: dg.DagsterInstance,
    tables: Sequence[Table],
    *,
    written: int,
    every: float,
    seconds: float,
    show: Callable[[str], None],
) -> None:
    meter = _Meter(stack)
    meter.sample()
    before = {name: usage.seconds for name, usage in meter.services.items()}
    database, files, began = _database_bytes(stack), _folder_bytes(stack.project_dir), SystemClock().now_ms() / 1000
    next_progress = PROGRESS_SECONDS
    commits = 0
    for passed in _rounds(tables[:written], every, seconds):
        meter.sample()
        commits += written
        if passed >= next_progress:
            show(f"{passed / 60:.0f} of {seconds / 60:.0f} minutes, {commits:,} commits")
            next_progress += PROGRESS_SECONDS
    elapsed = SystemClock().now_ms() / 1000 - began
    meter.sample()

    show(f"\n{len(tables)} tables, {written} of them with a commit each {every:g} s, {elapsed / 60:.0f} minutes")
    for name, usage in meter.services.items():
        cores = (usage.seconds - before[name]) / elapsed
        show(f"{name}: {cores:.3f} of a core, {usage.bytes_max / 1e6:.0f} MB at most")
    runs = _show_runs(instance, began, show)
    growth = _database_bytes(stack) - database
    show(f"Postgres: {growth / 1e6:.1f} MB more, {growth * DAY_SECONDS / elapsed / 1e6:.0f} MB a day")
    growth = _folder_bytes(stack.project_dir) - files
    show(f"logs and files of runs: {growth * DAY_SECONDS / elapsed / 1e6:.1f} MB a day")
    if written:
        show(f"runs for each written table: {runs * 3600 / elapsed / written:.1f} an hour")
    _show_ticks(instance, began, show)
    _show_lag(instance, tables[:written], began, commits, show)


def _rounds(tables: Sequence[Table], every: float, seconds: float) -> Iterator[float]:
    """Commit to each table at an interval, for some seconds. Yield the seconds since the begin after each round."""
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for table in tables:
            day = time.strftime("%Y-%m-%d", time.gmtime())
            table.insert([{"day": day, "n": n} for n in range(COMMIT_ROWS)])
        yield now - began
        time.sleep(max(0.0, now + every - time.monotonic()))


def _database_bytes(stack: Stack) -> int:
    import sqlalchemy as sa

    engine = sa.create_engine(stack.postgres_url)
    try:
        with engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one())
    finally:
        engine.dispose()


def _folder_bytes(project: Path) -> int:
    """Return the bytes of the stack's files, without those of Postgres, which has files of fixed size."""
    root = project / ".icedb-dagster"
    files = (path for path in root.rglob("*") if "postgres" not in path.relative_to(root).parts)
    return sum(path.stat().st_size for path in files if path.is_file())


def _show_runs(instance: dg.DagsterInstance, since: float, show: Callable[[str], None]) -> int:
    import dagster as dg

    records = instance.get_run_records(dg.RunsFilter(created_after=datetime.fromtimestamp(since, UTC)))
    kinds = Counter(
        (record.dagster_run.job_name.split("_", 2)[2], record.dagster_run.status.value.lower()) for record in records
    )
    text = ", ".join(f"{count} {job} ({state})" for (job, state), count in kinds.most_common())
    show(f"{len(records)} runs: {text or 'none'}")
    return len(records)


def _show_ticks(instance: dg.DagsterInstance, since: float, show: Callable[[str], None]) -> None:
    for state in instance.all_instigator_state():
        if not state.name.endswith("_sensor"):
            continue
        ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
        times = sorted(tick.timestamp for tick in ticks)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if gaps:
            show(f"{state.name}: {_spread(gaps)} between ticks, {dict(Counter(t.status.value for t in ticks))}")


def _show_lag(
    instance: dg.DagsterInstance, tables: Iterable[Table], since: float, commits: int, show: Callable[[str], None]
) -> None:
    import dagster as dg

    lags = []
    for table in tables:
        for recorded_at, metadata in _observations(instance, dg.AssetKey(table.uri.rsplit("/", 1)[1]), since):
            commit_time = metadata.get(COMMIT_TIME)
            if isinstance(commit_time, dg.IntMetadataValue) and (commit_ms := commit_time.value or 0) >= 1000 * since:
                lags.append(recorded_at - commit_ms / 1000)
    if lags:
        show(f"{len(lags):,} events of {commits:,} commits, {_spread(lags)} from a commit to its event")


def _observations(
    instance: dg.DagsterInstance, key: dg.AssetKey, since: float
) -> Iterator[tuple[float, dict[str, dg.MetadataValue]]]:
    import dagster as dg

    cursor, more = None, True
    wanted = dg.AssetRecordsFilter(asset_key=key, after_timestamp=since)
    while more:
        page = instance.fetch_observations(wanted, limit=PAGE, cursor=cursor)
        for record in page.records:
            if record.asset_observation is not None:
                yield record.timestamp, dict(record.asset_observation.metadata)
        cursor, more = page.cursor, page.has_more


def _spread(seconds: Sequence[float]) -> str:
    median, high, highest = (number(percentile(seconds, percent)) for percent in (50, 95, 100))
    return f"median {median} s, 95 % {high} s, at most {highest} s"


def main(
    tables: Annotated[int, typer.Option(help="Tables of the platform.")] = 50,
    written: Annotated[int, typer.Option(help="Tables that get commits.")] = 5,
    every: Annotated[float, typer.Option(help="Seconds between two commits to a table.")] = 10,
    minutes: Annotated[float, typer.Option(help="Time of the measurement.")] = 120,
    warm_up: Annotated[float, typer.Option(help="Seconds before the measurement.")] = WARM_UP_SECONDS,
) -> None:
    """Measure a running platform."""
    with tempfile.TemporaryDirectory() as folder:
        measure(
            Path(folder), tables=tables, written=written, every=every, minutes=minutes, warm_up=warm_up, show=typer.echo
        )


if __name__ == "__main__":
    typer.run(main)
