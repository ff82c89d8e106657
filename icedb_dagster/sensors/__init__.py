"""A table's sensors: one starts maintenance that is due, one reports commits made outside Dagster."""

from icedb_dagster.sensors.commits import commits_sensor
from icedb_dagster.sensors.maintenance import maintenance_sensor
from icedb_dagster.sensors.sensor_settings import CommitsSensor, MaintenanceSensor
from icedb_dagster.sensors.shared_sensors import share_sensors

__all__ = ["CommitsSensor", "MaintenanceSensor", "commits_sensor", "maintenance_sensor", "share_sensors"]
