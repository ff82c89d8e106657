"""A table's figures beside what they should stay below, for those who draw them."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.maintenance.condition import Condition, Thresholds

__all__ = ["Gauge", "gauges"]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure and its threshold. Maintenance is recommended from half of that on."""

    name: str
    value: int
    limit: int
    #: `B` for bytes; empty: a number of things.
    unit: str = ""

    @property
    def level(self) -> int:
        """0: fine; 1: maintenance is due soon, or now; 2: too much."""
        return (self.value >= self.limit // 2) + (self.value >= self.limit)


def gauges(condition: Condition, thresholds: Thresholds) -> tuple[Gauge, ...]:
    """All figures that have a threshold."""
    hot = [p.small_parts for p in condition.partitions if p.hot and not p.at_rest]
    cold = [p.small_parts for p in condition.partitions if not p.hot and not p.at_rest]
    return (
        Gauge("hot partition: small parts", max(hot, default=0), thresholds.hot_parts),
        Gauge("cold partition: small parts", max(cold, default=0), thresholds.cold_parts),
        # Those that a merge cannot make fewer are as they should be.
        Gauge("log files to read", condition.log_files if condition.small_log_files else 0, thresholds.log_files),
        Gauge("expired bytes", condition.expired_bytes, thresholds.expired_bytes, "B"),
        Gauge(
            "expired objects",
            condition.expired_parts + condition.expired_log_files,
            thresholds.expired_objects,
        ),
    )
