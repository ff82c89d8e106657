"""The schedules and sensors in a project's code, loaded in this process or described by a code server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.remote_representation.external import RemoteRepository, RemoteSchedule, RemoteSensor

__all__ = ["Automation", "automations_of", "automations_of_server"]


@dataclass(frozen=True, slots=True)
class Automation:
    """A schedule or a sensor. Dagster stores its state by location, repository and name."""

    kind: Literal["schedule", "sensor"]
    location: str
    repository: str
    name: str
    #: Whether the code starts it.
    by_default: bool
    #: Of a schedule: cron expressions, and their time zone (None: UTC).
    crons: tuple[str, ...] = ()
    timezone: str | None = None
    #: Of a sensor: seconds between two ticks.
    interval_s: float = 0


def automations_of(location: str, repositories: Iterable[dg.RepositoryDefinition]) -> Iterator[Automation]:
    """Yield the schedules and sensors of definitions that are loaded in this process."""
    for repository in repositories:
        for schedule in repository.schedule_defs:
            yield _schedule(location, repository.name, schedule)
        for sensor in repository.sensor_defs:
            yield _sensor(location, repository.name, sensor, sensor.minimum_interval_seconds)


def automations_of_server(location: str, repository: RemoteRepository) -> Iterator[Automation]:
    """Yield the schedules and sensors that a code server describes."""
    for schedule in repository.get_schedules():
        yield _schedule(location, repository.name, schedule)
    for sensor in repository.get_sensors():
        yield _sensor(location, repository.name, sensor, sensor.min_interval_seconds)


def _schedule(location: str, repository: str, schedule: dg.ScheduleDefinition | RemoteSchedule) -> Automation:
    crons = schedule.cron_schedule
    return Automation(
        "schedule",
        location,
        repository,
        schedule.name,
        by_default=schedule.default_status is dg.DefaultScheduleStatus.RUNNING,
        crons=(crons,) if isinstance(crons, str) else tuple(crons),
        timezone=schedule.execution_timezone,
    )


def _sensor(
    location: str, repository: str, sensor: dg.SensorDefinition | RemoteSensor, interval_s: float | None
) -> Automation:
    by_default = sensor.default_status is dg.DefaultSensorStatus.RUNNING
    return Automation("sensor", location, repository, sensor.name, by_default, interval_s=interval_s or 0)
