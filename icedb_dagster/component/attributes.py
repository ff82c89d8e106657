"""The YAML attributes of a table: the schema of `IceDBTableComponent`.

Values that Python rejects are rejected here with the same message, and the attribute's name.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations of fields as objects.
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, create_model, model_validator

from icedb.operations.health.table_health import Thresholds
from icedb_dagster.checks.check_settings import CHECKS, TableChecks
from icedb_dagster.component.settings_models import Cron, model, model_of
from icedb_dagster.component.templates import Attributes, Choice, Template, Templated, is_template
from icedb_dagster.maintenance.definitions import CRONS, MAX_RUNTIME_S, EngineName, Lock
from icedb_dagster.maintenance.exports import TableExport
from icedb_dagster.maintenance.time_to_live import TimeToLive
from icedb_dagster.sensors import CommitsSensor, MaintenanceSensor

__all__ = ["OF_ASSETS", "OF_QUERIES", "AssetKind", "TableAttributes"]

AssetKind = Literal["none", "external", "observable", "sql"]
#: Attributes of an sql asset.
OF_QUERIES = ("query", "inputs", "io_manager_key", "memory_bytes")


def _check_of(settings: Any) -> Any:
    """Return the type of a check's attribute, and its default."""
    choice: Any = Choice
    text = f"{(inspect.getdoc(settings) or '').partition(chr(10))[0]} null: no such check."
    return Annotated[choice[None, model_of(settings)], Field(description=text)], None


_WITH = "Whether the checks of the table's health also run with each materialization of the asset."

if TYPE_CHECKING:  # a type checker cannot see the fields of generated models
    _Ttl: TypeAlias = dict[str, Any]
    _Export: TypeAlias = dict[str, Any]
    _Thresholds: TypeAlias = dict[str, Any]
    _Maintenance: TypeAlias = dict[str, Any]
    _Commits: TypeAlias = dict[str, Any]
    _Checks: TypeAlias = dict[str, Any]
    _Schedules: TypeAlias = dict[str, Any]
else:
    _Ttl = model_of(TimeToLive)
    _Export = model_of(TableExport)
    _Thresholds = model_of(Thresholds)
    _Maintenance = model_of(MaintenanceSensor, without="thresholds")
    _Commits = model_of(CommitsSensor)
    _Checks = model(
        TableChecks,
        {name: _check_of(settings) for name, settings in CHECKS.items()}
        | {"with_materializations": (Templated[bool], Field(default=False, description=_WITH))},
    )
    _Schedules = create_model(
        "SchedulesAttributes", __base__=Attributes, **dict.fromkeys(CRONS, (Templated[Cron | None], None))
    )


class _Sensors(Attributes):
    """The table's sensors."""

    maintenance: Choice[bool, _Maintenance] = Field(
        default=True, description="Starts the table's jobs when they are due."
    )
    commits: Choice[bool | Literal["materialization", "observation"], _Commits] = Field(
        default=False, description="Reports commits made outside Dagster, as materializations or observations."
    )


#: Attributes of the asset, if it is defined here.
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
    """The attributes of the component `icedb_dagster.IceDBTableComponent`."""

    table: Templated[str | list[str]] = Field(
        description="The asset key: a text with /, or a list. The table is <root>/<key>.",
        examples=["events", "sales/orders"],
    )
    asset: Templated[AssetKind] = Field(
        default="none",
        description="none: the asset is defined in code, or there is none. external: defined here, filled outside "
        "Dagster. observable: as external, and observed: its data version is that of the newest commit. sql: the "
        "IO manager writes the rows of `query`.",
    )
    query: Templated[str | None] = Field(
        default=None,
        description="A SELECT of DuckDB over the inputs: the rows of an sql asset. It may use $partition_key, "
        "$partition_keys, $partition_start and $partition_end.",
        examples=["SELECT day, count(*) AS visits FROM visits GROUP BY day"],
    )
    inputs: Choice[list[str], dict[str, str]] = Field(
        default=[],
        description="Keys of the assets that the query reads, or names in the query with their keys.",
        examples=[["visits"], {"o": "sales/orders"}],
    )
    io_manager_key: Templated[str] = Field(
        default="io_manager", description="The key of the IceDBIOManager that writes an sql asset and loads its inputs."
    )
    memory_bytes: Templated[Annotated[int, Field(ge=1)] | None] = Field(
        default=None, description="The memory of the query before it spills to disk, in bytes; null: half of it."
    )
    observe_cron: Templated[Cron | None] = Field(
        default=None, description="Cron expression: when an observable table is observed."
    )
    description: Templated[str | None] = Field(
        default=None, description="The description of an external or observable asset."
    )
    owners: Templated[list[str]] = Field(default=[], description="E-mail addresses and team:name.")
    group_name: Templated[str | None] = Field(default=None, description="The asset's group.")
    kinds: Templated[list[str]] = Field(
        default=[], description="Kinds in addition to icedb and parquet, shown in the UI."
    )
    tags: Choice[None, dict[str, str | int | float | bool]] = Field(default=None, description="The asset's tags.")
    deps: Templated[list[str]] = Field(default=[], description="Keys of the upstream assets.")
    metadata: Choice[None, dict[str, Any]] = Field(default=None, description="The asset's own metadata.")
    partition_by: Templated[list[str]] = Field(default=[], description="Partition expressions, shown in the UI.")
    sort_by: Templated[list[str]] = Field(default=[], description="Sort columns, shown in the UI.")
    code_version: Templated[str | None] = Field(
        default=None, description="The version of the code that fills the asset."
    )
    partitions_def: Choice[None, dict[str, Any]] = Field(
        default=None,
        description="The asset's partitions, as in other components.",
        examples=[{"type": "daily", "start_date": "2026-01-01"}],
    )
    automation_condition: Template = Field(default=None, description="A template that returns an AutomationCondition.")
    freshness_policy: Template = Field(default=None, description="A template that returns a FreshnessPolicy.")

    ttl: Choice[None, _Ttl] = Field(
        default=None, description="Older partitions are dropped. Also a template that returns a function."
    )
    export_delta: Choice[bool, _Export] = Field(
        default=False, description="Whether a job exports the table as Delta Lake, or the settings of that export."
    )
    export_iceberg: Choice[bool, _Export] = Field(
        default=False, description="Whether a job exports the table as Iceberg, or the settings of that export."
    )
    engine: Templated[EngineName] = Field(default="in_process", description="Where parts are rewritten.")
    lock: Templated[Lock] = Field(default="pool", description="How two maintenance runs exclude each other.")
    max_runtime_s: Templated[int | None] = Field(
        default=MAX_RUNTIME_S, description="Seconds after which run monitoring ends a run; null: no limit."
    )
    schedules: Choice[None, _Schedules] = Field(
        default=None, description="Cron expressions instead of the defaults, by job; null: no schedule of that job."
    )
    thresholds: Choice[None, _Thresholds] = Field(
        default=None, description="Limits of the table's figures, for the maintenance sensor and the checks."
    )
    sensors: Choice[None, _Sensors] = Field(
        default=None, description="The table's sensors; by default the maintenance sensor."
    )
    checks: Choice[Literal["default"] | None, _Checks] = Field(
        default=None, description="Asset checks: default, or settings by check over the defaults; null: none."
    )
    running: Templated[bool] = Field(
        default=False, description="Whether schedules and sensors are started from the beginning."
    )
    resource_key: Templated[str] = Field(default="icedb", description="The key of the IceDBResource.")
    spark_resource_key: Templated[str] = Field(
        default="pyspark", description="The key of the resource with the Spark session."
    )

    @model_validator(mode="after")
    def _check_asset(self) -> Self:
        if is_template(self.asset):
            return self
        misplaced = [name for name in OF_ASSETS if name in self.model_fields_set and getattr(self, name)]
        if self.asset == "none" and misplaced:
            raise ValueError(
                f"{misplaced[0]} applies to an asset that is defined here, but `asset` is none. Set it where the code "
                "defines the asset, or write `asset: external`."
            )
        if self.asset == "sql" and not self.query:
            raise ValueError("`asset: sql` needs a query.")
        if self.asset != "sql" and (misplaced := [name for name in OF_QUERIES if name in self.model_fields_set]):
            raise ValueError(f"{misplaced[0]} needs `asset: sql`.")
        if self.asset != "observable" and self.observe_cron:
            raise ValueError("observe_cron needs `asset: observable`.")
        return self
