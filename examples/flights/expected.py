"""The expected numbers of the demo, counted from the raw file with Python's `csv` module alone.

Spark, DuckDB and IceDB are not used, so agreement with their numbers is no accident.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FlightCounts", "count_raw"]


@dataclass(frozen=True, slots=True)
class FlightCounts:
    """Counts of the raw file. Months are numbers, days are (month, day)."""

    rows: int
    departures_missing: int
    by_month: Counter[int]
    by_day: Counter[tuple[int, int]]
    by_carrier_and_month: Counter[tuple[str, int]]

    def rows_from(self, month: int) -> int:
        """Return the rows from this month on."""
        return sum(n for m, n in self.by_month.items() if m >= month)

    def days_from(self, month: int) -> int:
        """Return the days with flights from this month on."""
        return sum(1 for m, _ in self.by_day if m >= month)

    def busiest_from(self, month: int, count: int) -> list[tuple[str, int]]:
        """Return the carriers with most flights from this month on; equal ranks are sorted by name."""
        flights: Counter[str] = Counter()
        for (carrier, of_month), n in self.by_carrier_and_month.items():
            if of_month >= month:
                flights[carrier] += n
        return sorted(flights.items(), key=lambda item: (-item[1], item[0]))[:count]


def count_raw(path: Path) -> FlightCounts:
    """Count the raw CSV, in which `NA` is null."""
    rows = missing = 0
    months: Counter[int] = Counter()
    days: Counter[tuple[int, int]] = Counter()
    carriers: Counter[tuple[str, int]] = Counter()
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            month, day = int(row["month"]), int(row["day"])
            rows += 1
            missing += row["dep_time"] == "NA"
            months[month] += 1
            days[month, day] += 1
            carriers[row["carrier"], month] += 1
    return FlightCounts(rows, missing, months, days, carriers)
