"""The measurements of a table with their thresholds, for displays."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.operations.health.table_health import PartitionHealth, TableHealth, Thresholds

__all__ = ["Gauge", "crowded_partitions", "gauges", "level", "parts_threshold"]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A measurement and its threshold. Maintenance is recommended from half of the threshold on."""

    name: str
    value: int
    limit: int
    #: `B` for bytes, or empty for a count.
    unit: str = ""

    @property
    def level(self) -> int:
        """The severity of the value; see `level`."""
        return level(self.value, self.limit)


def level(figure: int, limit: int) -> int:
    """Return 0 below half the threshold, 1 from there on (maintenance is recommended), and 2 from the threshold on."""
    return (figure >= limit // 2) + (figure >= limit)


def gauges(health: TableHealth, thresholds: Thresholds) -> tuple[Gauge, ...]:
    """Return all measurements that have a threshold."""
    hot = [p.small_parts for p in health.partitions if p.hot and not p.at_rest]
    cold = [p.small_parts for p in health.partitions if not p.hot and not p.at_rest]
    return (
        Gauge("hot partition: small parts", max(hot, default=0), thresholds.hot_parts),
        Gauge("cold partition: small parts", max(cold, default=0), thresholds.cold_parts),
        # Log files that a merge cannot reduce do not count.
        Gauge("log files to read", health.log_files if health.small_log_files else 0, thresholds.log_files),
        Gauge("expired bytes", health.expired_bytes, thresholds.expired_bytes, "B"),
        Gauge(
            "expired objects",
            health.expired_parts + health.expired_log_files,
            thresholds.expired_objects,
        ),
    )


def parts_threshold(partition: PartitionHealth, thresholds: Thresholds) -> int:
    """Return the threshold for the small parts of a partition."""
    return thresholds.hot_parts if partition.hot else thresholds.cold_parts


def crowded_partitions(health: TableHealth, thresholds: Thresholds) -> list[PartitionHealth]:
    """Return the partitions with small parts, those nearest to their threshold first."""
    return sorted(
        (p for p in health.partitions if p.small_parts),
        key=lambda p: (-p.small_parts / parts_threshold(p, thresholds), -p.small_parts, p.path),
    )
