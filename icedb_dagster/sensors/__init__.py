"""A table's sensors: one asks for the maintenance that is due, one tells Dagster of the commits that others made."""

from icedb_dagster.sensors.commits import commits_sensor
from icedb_dagster.sensors.maintenance import maintenance_sensor
from icedb_dagster.sensors.sensor_settings import CommitsSensor, MaintenanceSensor

__all__ = ["CommitsSensor", "MaintenanceSensor", "commits_sensor", "maintenance_sensor"]
