"""What the demo must find, counted from the raw file with Python's `csv` module and nothing else.

Spark, DuckDB and IceDB have no part in it: when their numbers agree with these, they did not agree by accident.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Expected", "count_raw"]


@dataclass(frozen=True, slots=True)
class Expected:
    """Counts of the raw file. Months are numbers, days are (month, day)."""

    rows: int
    departures_missing: int
    by_month: Counter[int]
    by_day: Counter[tuple[int, int]]
    by_carrier_and_month: Counter[tuple[str, int]]

    def rows_from(self, month: int) -> int:
        """Rows of this month and later ones."""
        return sum(n for m, n in self.by_month.items() if m >= month)

    def days_from(self, month: int) -> int:
        """Days with flights in this month and later ones."""
        return sum(1 for m, _ in self.by_day if m >= month)

    def busiest_from(self, month: int, count: int) -> list[tuple[str, int]]:
        """The carriers with most flights from this month on, most first; carriers of equal rank by name."""
        flights: Counter[str] = Counter()
        for (carrier, of_month), n in self.by_carrier_and_month.items():
            if of_month >= month:
                flights[carrier] += n
        return sorted(flights.items(), key=lambda item: (-item[1], item[0]))[:count]


def count_raw(path: Path) -> Expected:
    """Count the raw CSV; `NA` means null."""
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
    return Expected(rows, missing, months, days, carriers)
