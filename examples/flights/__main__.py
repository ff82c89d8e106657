"""`make demo`: a year of flights in, an answer out.

Starts a Postgres, runs the Spark ingestion and the delay statistics as Dagster assets on it, then the maintenance
as Dagster jobs, and checks every number against counts made from the raw file by other means. The last line is
`demo: ok`; when any number does not add up it is missing, and the exit status is 1.
"""

from __future__ import annotations

import csv
import logging
import os
import sys
from collections.abc import Mapping

import dagster as dg

import icedb
from examples.flights import checks
from examples.flights.definitions import FLIGHTS, PROJECT, STATISTICS, defs, lake
from examples.flights.expected import count_raw
from examples.flights.recovery import fail_dead_runs, process_tags
from examples.flights.report import ProgressHandler, Report
from icedb_dagster import stack
from spark_jobs.ingest_flights import packaged_file, raw_flights

# January and February of 2013 are older than 306 days on the first of January 2014.
TTL = {"keep_days": 306, "reference_date": "2014-01-01"}
FIRST_MONTH_KEPT = 3
# Nothing else uses the demo's table, so cleanup need not wait for readers.
CLEANUP = {"grace_ms": 0, "allow_short_grace": True}
POSTGRES: tuple[stack.ServiceName, ...] = ("postgres",)
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def main() -> int:
    """Run the demo; its exit status."""
    report = Report()
    report.say("[bold]start Dagster's Postgres[/bold]")
    started = stack.up(PROJECT, services=POSTGRES, progress=lambda line: report.say(f"  {line}"))
    try:
        os.environ.update(stack.environment(started))
        jobs = logging.getLogger("spark_jobs")
        jobs.setLevel(logging.INFO)
        jobs.addHandler(ProgressHandler(report))
        with dg.DagsterInstance.get() as instance:
            for run_id in fail_dead_runs(instance):
                report.say(f"  run {run_id[:8]} of a demo that was killed is marked as failed, its lock is free")
            run(instance, report)
    except checks.NumbersDisagree as error:
        report.console.print(f"[red]{error}[/red]")
        return 1
    finally:
        stack.release(started)
    report.console.print("demo: ok")
    return 0


def run(instance: dg.DagsterInstance, report: Report) -> None:
    """All steps, each checked against the raw file."""
    with report.step("count the raw file"), raw_flights() as path:
        expected = count_raw(path)

    with report.step("ingest with Spark", lambda: lake.table(FLIGHTS)):
        report.say("  starting Spark (the Dagster asset 'flights')")
        materialize(instance, FLIGHTS)
    table = lake.table(FLIGHTS)
    checks.ingested(table, expected)

    with report.step("delay statistics"):
        materialize(instance, STATISTICS)
    checks.statistics(lake.table(STATISTICS), expected)

    with report.step("merge", lambda: table):
        maintain(instance, "flights_merge_oldest", {})
    checks.merged(table, expected)

    before_drop_ms = table.snapshot().as_of_ms
    with report.step("TTL drop", lambda: table):
        maintain(instance, "flights_ttl", TTL)
    checks.dropped(table, expected, first_month=FIRST_MONTH_KEPT)

    with report.step("time travel"):
        then, now = checks.travelled(table, before_drop_ms, expected, first_month=FIRST_MONTH_KEPT)
        report.say(f"  January and February: {then:,} flights as of before the drop, {now:,} now")

    with report.step("cleanup", lambda: table):
        maintain(instance, "flights_cleanup", CLEANUP)
    checks.cleaned(table, before_drop_ms, expected, first_month=FIRST_MONTH_KEPT)

    ranks = busiest(table)
    checks.busiest([(code, count) for code, _, count, _ in ranks], expected, first_month=FIRST_MONTH_KEPT)
    report.summary(ranks)


def materialize(instance: dg.DagsterInstance, key: dg.AssetKey) -> None:
    """Materialize one asset, as a Dagster run."""
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=instance, asset_selection=[key], run_config=QUIET, tags=process_tags())


def maintain(instance: dg.DagsterInstance, job: str, config: Mapping[str, object]) -> None:
    """Run one maintenance job, which holds the table's pool."""
    run_config = {**QUIET, "ops": {f"{job}_work": {"config": dict(config)}}}
    defs.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config, tags=process_tags())


def busiest(table: icedb.Table) -> list[tuple[str, str, int, float]]:
    """The ten carriers with most flights: code, name, flights, mean departure delay (minutes)."""
    with packaged_file("airlines.csv").open(newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    ranks = table.query(
        "SELECT carrier, count(*) AS n, avg(dep_delay) FROM t GROUP BY carrier ORDER BY n DESC, carrier LIMIT 10"
    ).fetchall()
    return [(code, names[code], flights, delay) for code, flights, delay in ranks]


if __name__ == "__main__":
    sys.exit(main())
