"""The component `IceDBTableComponent`: a table's asset, maintenance, sensors and checks, declared in YAML.

It is a thin layer that calls `build_table_definitions`, `table_spec` and `observable_table`, so Python can declare the
same definitions. It accesses neither store nor instance.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

import dagster as dg
from pydantic import BaseModel

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Thresholds
from icedb_dagster.checks import TableChecks
from icedb_dagster.component.attributes import AssetKind, TableAttributes
from icedb_dagster.component.resolution import resolved
from icedb_dagster.component.scaffolder import TableScaffolder
from icedb_dagster.maintenance.definitions import CRONS, MAX_RUNTIME_S, EngineName, Lock, build_table_definitions
from icedb_dagster.maintenance.exports import TableExport
from icedb_dagster.maintenance.time_to_live import Expiry, TimeToLive
from icedb_dagster.resource import folders_of
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor
from icedb_dagster.specs import build_observation, observable_table, table_spec
from icedb_dagster.sql_assets import sql_asset

__all__ = ["IceDBTableComponent"]


@dg.scaffold_with(TableScaffolder)
@dataclass(frozen=True, kw_only=True)
class IceDBTableComponent(dg.Component, dg.Resolvable):
    """An IceDB table: its asset, maintenance jobs, schedules, sensors and checks.

    The table is `<root>/<key>` of the `IceDBResource` under `resource_key`, which the project defines. With only
    `table` set, it has the jobs of `build_table_definitions` with their sensor and default schedules, stopped.

    Example:
        type: icedb_dagster.IceDBTableComponent
        attributes: {table: events, ttl: {partition_column: day, keep_days: 90}}
    """

    table: dg.AssetKey
    asset: AssetKind = "none"
    #: Arguments of `table_spec`, if the asset is defined here.
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: Arguments of `sql_asset`, if `asset` is sql: `query`, `inputs`, `io_manager_key` and `memory_bytes`.
    sql: Mapping[str, Any] = field(default_factory=dict)
    observe_cron: str | None = None
    ttl: TimeToLive | Expiry | None = None
    export_delta: TableExport | None = None
    export_iceberg: TableExport | None = None
    engine: EngineName = "in_process"
    lock: Lock = "pool"
    max_runtime_s: int | None = MAX_RUNTIME_S
    #: Cron expressions instead of the defaults, by job; None: no schedule.
    schedules: Mapping[str, str | None] = field(default_factory=dict)
    #: Replaces the thresholds of the maintenance sensor and the checks.
    thresholds: Thresholds | None = None
    maintenance_sensor: MaintenanceSensor | None = field(default_factory=MaintenanceSensor)
    commits_sensor: CommitsSensor | None = None
    checks: TableChecks | None = None
    #: Whether schedules and sensors are started from the beginning.
    running: bool = False
    resource_key: str = "icedb"
    spark_resource_key: str = "pyspark"

    def __post_init__(self) -> None:
        folders_of(self.table)
        if unknown := sorted(self.schedules.keys() - CRONS.keys()):
            raise InvalidOption(
                f"the table {self.table}: schedules has {unknown[0]!r}, which is not a job. Jobs are "
                f"{', '.join(CRONS)}."
            )
        if self.asset not in get_args(AssetKind):
            raise InvalidOption(
                f"the table {self.table}: asset is {self.asset!r}; give {', '.join(get_args(AssetKind))}."
            )
        for job in ("ttl", "checks", "export_delta", "export_iceberg"):
            if self.schedules.get(job) is not None and getattr(self, job) is None:
                raise InvalidOption(
                    f"the table {self.table.to_user_string()}: schedules has {job}, but the table has no such job. "
                    f"Configure it in the attribute {job}, or remove the schedule."
                )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the YAML attributes."""
        return TableAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description for `dg list components` and the UI."""
        return dg.ComponentTypeSpec(
            tags=["icedb", "lakehouse"], produces=["asset", "asset_check", "job", "schedule", "sensor"]
        )

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        """Return the component that the attributes describe.

        Raises:
            InvalidOption: An attribute is invalid. The errors that Dagster raises for templates are raised, too.
        """
        return cls(**resolved(context, model))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return all Dagster definitions of the table.

        Raises:
            InvalidOption: The settings are invalid.
        """
        return dg.Definitions.merge(self._asset(), self._maintenance())

    def _maintenance(self) -> dg.Definitions:
        maintenance, commits, checks = self.maintenance_sensor, self.commits_sensor, self.checks
        if self.thresholds is not None:
            maintenance = maintenance and replace(maintenance, thresholds=self.thresholds)
            checks = checks and replace(checks, thresholds=self.thresholds)
        crons: dict[str, Any] = {f"{job}_cron": cron for job, cron in self.schedules.items()}
        return build_table_definitions(
            self.table,
            ttl=self.ttl,
            export_delta=self.export_delta,
            export_iceberg=self.export_iceberg,
            engine=self.engine,
            lock=self.lock,
            max_runtime_s=self.max_runtime_s,
            running=self.running,
            maintenance_sensor=maintenance,
            commits_sensor=commits,
            checks=checks,
            resource_key=self.resource_key,
            spark_resource_key=self.spark_resource_key,
            **crons,
        )

    def _asset(self) -> dg.Definitions:
        if self.asset == "none":
            return dg.Definitions()
        if self.asset == "external":
            return dg.Definitions(assets=[table_spec(self.table, **self.spec)])
        if self.asset == "sql":
            return dg.Definitions(assets=[self._sql_asset()])
        observed = observable_table(self.table, resource_key=self.resource_key, **self.spec)
        if self.observe_cron is None:
            return dg.Definitions(assets=[observed])
        return dg.Definitions.merge(
            dg.Definitions(assets=[observed]), build_observation(self.table, self.observe_cron, running=self.running)
        )

    def _sql_asset(self) -> dg.AssetsDefinition:
        spec = dict(self.spec)
        # Settings of the IO manager, by which it creates the table.
        of_table = {name: spec.pop(name) for name in ("partition_by", "sort_by") if name in spec}
        metadata = {**of_table, **spec.pop("metadata", {})}
        return sql_asset(self.table, **self.sql, metadata=metadata, **spec)
