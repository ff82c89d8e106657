"""Settings of a table's sensors. Creating them accesses neither store nor instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Thresholds
from icedb.util.arguments import checks_arguments

__all__ = ["SENSOR_TAG", "CommitsSensor", "Events", "MaintenanceSensor", "SensorKind"]

SensorKind = Literal["maintenance", "commits"]
#: The tag of a table's sensor that has its kind.
SENSOR_TAG = "icedb/sensor"

#: The kind of event that reports a commit.
Events = Literal["materialization", "observation"]


@checks_arguments
@dataclass(frozen=True, slots=True)
class MaintenanceSensor:
    """Settings of the sensor that starts maintenance jobs.

    Args:
        thresholds: Limits for the table's figures. Runs are requested from half of each limit on.
        interval_s: Minimum seconds between two ticks.
        running: Whether the sensor is started from the beginning.

    Raises:
        InvalidOption: `interval_s` is below 1.

    Example:
        build_table_definitions("events", maintenance_sensor=MaintenanceSensor(running=True))
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    interval_s: int = 30
    running: bool = False

    def __post_init__(self) -> None:
        _check_whole("interval_s", self.interval_s, least=1)


@checks_arguments
@dataclass(frozen=True, slots=True)
class CommitsSensor:
    """Settings of the sensor that reports commits made outside Dagster.

    Sustained throughput is at most `events_max / interval_s` commits per second.

    Args:
        events: The event of a commit: `materialization` or `observation`.
        interval_s: Minimum seconds between two ticks.
        running: Whether the sensor is started from the beginning.
        from_beginning: Whether the first tick reports all earlier commits that the log still has individually. A tick
            with an unreadable cursor is a first one. Commits that Dagster has events for are never reported again.
        settle_s: Age in seconds from which a commit is reported, so that a Dagster step that made it can record it
            first; at most half of the table's grace period.
        events_max: Maximum commits of one tick, each with one event per partition. The next tick continues.

    Raises:
        InvalidOption: A number is too small.

    Example:
        build_table_definitions("events", commits_sensor=CommitsSensor(events="observation"))
    """

    events: Events = "materialization"
    interval_s: int = 30
    running: bool = False
    from_beginning: bool = False
    settle_s: int = 30
    events_max: int = 100

    def __post_init__(self) -> None:
        _check_whole("interval_s", self.interval_s, least=1)
        _check_whole("settle_s", self.settle_s, least=0)
        _check_whole("events_max", self.events_max, least=1)


def _check_whole(name: str, value: int, *, least: int) -> None:
    if value < least:
        raise InvalidOption(f"the sensor's {name} is {value!r}; give a whole number of at least {least}.")
