"""What can be said of a table in YAML: the schema of `IceDBTable`'s attributes.

What Python refuses is refused here with the same words, and the attribute's name.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations of fields as objects.
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, create_model, model_validator

from icedb.operations.health.table_health import Thresholds
from icedb_dagster.checks.check_settings import CHECKS, TableChecks
from icedb_dagster.component.settings_models import Cron, model, model_of
from icedb_dagster.component.templates import Attributes, Choice, Template, Templated, is_template
from icedb_dagster.maintenance.definitions import CRONS, EngineName, Lock
from icedb_dagster.maintenance.time_to_live import TimeToLive
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor

__all__ = ["OF_ASSETS", "TableAttributes"]


def _check_of(settings: Any) -> Any:
    """The type of the attribute for a check, and its default."""
    choice: Any = Choice
    text = f"{inspect.getdoc(settings)} null: no such check."
    return Annotated[choice[None, model_of(settings)], Field(description=text)], None


if TYPE_CHECKING:  # more cannot be known of models that are made of settings
    _Ttl: TypeAlias = dict[str, Any]
    _Thresholds: TypeAlias = dict[str, Any]
    _Maintenance: TypeAlias = dict[str, Any]
    _Commits: TypeAlias = dict[str, Any]
    _Checks: TypeAlias = dict[str, Any]
    _Schedules: TypeAlias = dict[str, Any]
else:
    _Ttl = model_of(TimeToLive)
    _Thresholds = model_of(Thresholds)
    _Maintenance = model_of(MaintenanceSensor, without="thresholds")
    _Commits = model_of(CommitsSensor)
    _Checks = model(TableChecks, {name: _check_of(settings) for name, settings in CHECKS.items()})
    _Schedules = create_model(
        "SchedulesAttributes", __base__=Attributes, **dict.fromkeys(CRONS, (Templated[Cron | None], None))
    )


class _Sensors(Attributes):
    """Which sensors the table has."""

    maintenance: Choice[bool, _Maintenance] = Field(
        default=False, description="Starts the table's jobs when they are due."
    )
    commits: Choice[bool | Literal["materialization", "observation"], _Commits] = Field(
        default=False, description="Tells Dagster of commits that others made, as materializations or observations."
    )


#: Attributes of the asset itself, if it is defined here.
OF_ASSETS = (
    "description",
    "owners",
    "group_name",
    "kinds",
    "tags",
    "deps",
    "metadata",
    "partition_by",
    "sort_by",
    "code_version",
    "partitions_def",
    "automation_condition",
    "freshness_policy",
)


class TableAttributes(Attributes):
    """The attributes of the component `icedb_dagster.IceDBTable`."""

    table: Templated[str | list[str]] = Field(
        description="The key of the table's asset: a text with /, or a list. The table is <root>/<key>.",
        examples=["events", "sales/orders"],
    )
    asset: Templated[Literal["none", "external", "observable"]] = Field(
        default="none",
        description="none: an asset of the code, or no asset. external: defined here, filled by others. observable: "
        "the same, and observed: its data version is that of the newest commit.",
    )
    observe_cron: Templated[Cron | None] = Field(default=None, description="When an observable table is observed.")
    description: Templated[str | None] = Field(default=None, description="Of an external or observable asset.")
    owners: Templated[list[str]] = Field(default=[], description="E-mail addresses and team:name.")
    group_name: Templated[str | None] = Field(default=None, description="The asset's group.")
    kinds: Templated[list[str]] = Field(default=[], description="Beside icedb and parquet; the UI shows them.")
    tags: Choice[None, dict[str, str | int | float | bool]] = Field(default=None, description="The asset's tags.")
    deps: Templated[list[str]] = Field(default=[], description="Keys of the assets that it is made of.")
    metadata: Choice[None, dict[str, Any]] = Field(default=None, description="The asset's own metadata.")
    partition_by: Templated[list[str]] = Field(default=[], description="For the UI: how the table is partitioned.")
    sort_by: Templated[list[str]] = Field(default=[], description="For the UI: how its parts are sorted.")
    code_version: Templated[str | None] = Field(default=None, description="The version of what fills the asset.")
    partitions_def: Choice[None, dict[str, Any]] = Field(
        default=None,
        description="The asset's partitions, as in other components.",
        examples=[{"type": "daily", "start_date": "2026-01-01"}],
    )
    automation_condition: Template = Field(default=None, description="A template that gives an AutomationCondition.")
    freshness_policy: Template = Field(default=None, description="A template that gives a FreshnessPolicy.")

    ttl: Choice[None, _Ttl] = Field(
        default=None, description="Partitions that are older are dropped; or a template that gives a function."
    )
    engine: Templated[EngineName] = Field(default="in_process", description="Who rewrites parts.")
    lock: Templated[Lock] = Field(default="pool", description="What keeps two runs of maintenance apart.")
    schedules: Choice[None, _Schedules] = Field(
        default=None, description="Cron expressions instead of the usual ones, by job; null: no schedule of that job."
    )
    thresholds: Choice[None, _Thresholds] = Field(
        default=None, description="What the table should stay below: for the maintenance sensor and the checks."
    )
    sensors: Choice[None, _Sensors] = Field(default=None, description="Sensors; none unless they are named.")
    checks: Choice[Literal["default"] | None, _Checks] = Field(
        default=None, description="Asset checks: default, or over the default ones each by its name; null: none."
    )
    running: Templated[bool] = Field(
        default=False, description="Whether schedules and sensors are switched on from the beginning."
    )
    resource_key: Templated[str] = Field(default="icedb", description="The key of the IceDBResource.")
    spark_resource_key: Templated[str] = Field(default="pyspark", description="Of what has the Spark session.")

    @model_validator(mode="after")
    def _check_asset(self) -> Self:
        if is_template(self.asset):
            return self
        strangers = [name for name in OF_ASSETS if name in self.model_fields_set and getattr(self, name)]
        if self.asset == "none" and strangers:
            raise ValueError(
                f"{strangers[0]} is of an asset that is defined here, and `asset` is none: say it where the code "
                "defines the asset, or write `asset: external`."
            )
        if self.asset != "observable" and self.observe_cron:
            raise ValueError("observe_cron is for `asset: observable`.")
        return self
