"""Sensors: one starts a table's due maintenance, one reports commits made outside Dagster, one reports failed runs."""

from icedb_dagster.sensors.commits import commits_sensor
from icedb_dagster.sensors.maintenance import maintenance_sensor
from icedb_dagster.sensors.run_failures import FailedRun, build_run_failure_sensor
from icedb_dagster.sensors.sensor_settings import CommitsSensor, MaintenanceSensor
from icedb_dagster.sensors.shared_sensors import share_sensors

__all__ = [
    "CommitsSensor",
    "FailedRun",
    "MaintenanceSensor",
    "build_run_failure_sensor",
    "commits_sensor",
    "maintenance_sensor",
    "share_sensors",
]
