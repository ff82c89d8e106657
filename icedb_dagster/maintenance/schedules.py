"""The schedules of a table's jobs. A tick starts no run if a dry run of the job has nothing to do."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
from dataclasses import dataclass
from typing import Any

import dagster as dg

from icedb.errors import TableNotFound
from icedb_dagster.maintenance.verbs import MaintenanceTask, MaintenanceVerb
from icedb_dagster.sensors.open_tables import open_tables

__all__ = ["IdleCheck", "build_schedule"]


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """The check whether a verb has nothing to do on a table. `resource_key` is that of the `IceDBResource`."""

    key: dg.AssetKey
    resource_key: str
    verb: MaintenanceVerb[Any]

    def tick(self, context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Return the request of a run, or the reason to skip it. Raises the errors of a dry run of the verb."""
        lake = getattr(context.resources, self.resource_key)
        try:
            with open_tables.use(lake, self.key) as table:
                report = self.verb.work(MaintenanceTask(table, self.verb.config(dry_run=True), None))
                if not report.idle:
                    return dg.RunRequest()
                return dg.SkipReason(f"{self.verb.name} of {table.uri} has nothing to do")
        except TableNotFound as error:
            return dg.SkipReason(f"the table does not exist yet. {error}")


def build_schedule(job: Any, cron: str, *, running: bool, idle: IdleCheck | None) -> dg.ScheduleDefinition:
    """Return the schedule of a job, or of an unresolved asset job. `idle`: skip a tick without work."""
    skipping: dict[str, Any] = {}
    if idle is not None:
        skipping = {
            "execution_fn": lambda context, **_: idle.tick(context),
            "required_resource_keys": {idle.resource_key},
        }
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=f"Starts {job.name}{' if it has anything to do' if idle is not None else ''}. "
        f"{'Running by default.' if running else 'Stopped by default.'}",
        **skipping,
    )
