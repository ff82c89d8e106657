"""A table's figures beside what they should stay below, for those who draw them."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.operations.health.table_health import TableHealth, Thresholds

__all__ = ["Gauge", "gauges", "level"]


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
        """How far it is, as `level` tells."""
        return level(self.value, self.limit)


def level(figure: int, limit: int) -> int:
    """0: fine; 1: from half the threshold on, where maintenance is recommended; 2: from the threshold on."""
    return (figure >= limit // 2) + (figure >= limit)


def gauges(health: TableHealth, thresholds: Thresholds) -> tuple[Gauge, ...]:
    """All figures that have a threshold."""
    hot = [p.small_parts for p in health.partitions if p.hot and not p.at_rest]
    cold = [p.small_parts for p in health.partitions if not p.hot and not p.at_rest]
    return (
        Gauge("hot partition: small parts", max(hot, default=0), thresholds.hot_parts),
        Gauge("cold partition: small parts", max(cold, default=0), thresholds.cold_parts),
        # Those that a merge cannot make fewer are as they should be.
        Gauge("log files to read", health.log_files if health.small_log_files else 0, thresholds.log_files),
        Gauge("expired bytes", health.expired_bytes, thresholds.expired_bytes, "B"),
        Gauge(
            "expired objects",
            health.expired_parts + health.expired_log_files,
            thresholds.expired_objects,
        ),
    )
