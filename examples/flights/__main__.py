"""`make demo`: ingest a year of flights, and query the result.

Starts a Postgres, runs the Spark ingestion and the delay statistics as Dagster assets, then the maintenance as Dagster
jobs. Every number is checked against counts made from the raw file by other means. The last line is `demo: ok`. If any
number differs, this line is missing, and the exit status is 1.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence

import dagster as dg
from rich.table import Table as Grid

import icedb
from examples.flights import checks
from examples.flights.definitions import FLIGHTS, PROJECT, STATISTICS, defs, lake
from examples.flights.expected import count_raw
from examples.shared.numbers import NumbersDisagree
from examples.shared.report import ExampleReport
from examples.shared.running import maintain, materialize, on_postgres, show_progress
from spark_jobs.ingest_flights import packaged_file, raw_flights

# January and February of 2013 are older than 306 days on the first of January 2014.
TTL = {"keep_days": 306, "reference_date": "2014-01-01"}
FIRST_MONTH_KEPT = 3
# No other program uses the demo's table, so cleanup need not wait for readers.
CLEANUP = {"grace_ms": 0, "allow_short_grace": True}


def main() -> int:
    """Run the demo, and return its exit status."""
    report = ExampleReport()
    show_progress("spark_jobs", report)
    try:
        with on_postgres(PROJECT, report) as instance:
            run(instance, report)
    except NumbersDisagree as error:
        report.console.print(f"[red]{error}[/red]")
        return 1
    report.console.print("demo: ok")
    return 0


def run(instance: dg.DagsterInstance, report: ExampleReport) -> None:
    """Run all steps, each checked against the raw file."""
    with report.step("count the raw file"), raw_flights() as path:
        expected = count_raw(path)

    with report.step("ingest with Spark", lambda: lake.table(FLIGHTS)):
        report.say("  starting Spark (the Dagster asset 'flights')")
        materialize(instance, defs, FLIGHTS)
    table = lake.table(FLIGHTS)
    checks.ingested(table, expected)

    with report.step("delay statistics"):
        materialize(instance, defs, STATISTICS)
    checks.statistics(lake.table(STATISTICS), expected)

    with report.step("merge", lambda: table):
        maintain(instance, defs, "flights_merge_oldest", {"seconds_max": 600})  # slow machines need more than a minute
    checks.merged(table, expected)

    before_drop_ms = table.snapshot().as_of_ms
    with report.step("TTL drop", lambda: table):
        maintain(instance, defs, "flights_ttl", TTL)
    checks.dropped(table, expected, first_month=FIRST_MONTH_KEPT)

    with report.step("time travel"):
        then, now = checks.travelled(table, before_drop_ms, expected, first_month=FIRST_MONTH_KEPT)
        report.say(f"  January and February: {then:,} flights as of before the drop, {now:,} now")

    with report.step("cleanup", lambda: table):
        maintain(instance, defs, "flights_cleanup", CLEANUP)
    checks.cleaned(table, before_drop_ms, expected, first_month=FIRST_MONTH_KEPT)

    ranks = busiest(table)
    checks.busiest([(code, count) for code, _, count, _ in ranks], expected, first_month=FIRST_MONTH_KEPT)
    report.summary("The flights' table, step by step")
    report.console.print(_ranks(ranks))


def busiest(table: icedb.Table) -> list[tuple[str, str, int, float]]:
    """Return the ten carriers with most flights: code, name, flights, mean departure delay (minutes)."""
    with packaged_file("airlines.csv").open(newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    ranks = table.query(
        "SELECT carrier, count(*) AS n, avg(dep_delay) FROM t GROUP BY carrier ORDER BY n DESC, carrier LIMIT 10"
    ).fetchall()
    return [(code, names[code], flights, delay) for code, flights, delay in ranks]


def _ranks(carriers: Sequence[tuple[str, str, int, float]]) -> Grid:
    """Return the result as the README shows it."""
    grid = Grid(title="The ten busiest carriers, March to December 2013", title_justify="left")
    grid.add_column("carrier", no_wrap=True)
    for heading in ("flights", "mean departure delay"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for code, name, flights, delay in carriers:
        grid.add_row(f"{code}  {name}", f"{flights:,}", f"{delay:.1f} min")
    return grid


if __name__ == "__main__":
    sys.exit(main())
