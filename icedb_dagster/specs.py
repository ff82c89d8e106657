"""Asset definitions of tables: what the catalog shows of a table before its first event.

An asset that programs outside Dagster fill can be observed. Its data version changes with the rows, so Dagster knows
which downstream assets are out of date.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from icedb_dagster.metadata.data_versions import data_version
from icedb_dagster.metadata.table_metadata import KINDS, table_metadata
from icedb_dagster.resource import IceDBResource

__all__ = ["build_observation", "observable_table", "table_spec"]


def table_spec(
    key: dg.AssetKey | Sequence[str] | str,
    *,
    uri: str | None = None,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    description: str | None = None,
    owners: Sequence[str] | None = None,
    kinds: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dg.AssetSpec:
    """Return the spec of an asset that is a table.

    By itself it describes a table that programs outside Dagster fill, and that Dagster shows, maintains and reads. With
    `dg.AssetOut.from_spec` it describes a table that an asset returns. Then `partition_by` and `sort_by` are those of
    the table that the IO manager creates.

    Args:
        key: The asset key, in any form that Dagster accepts.
        uri: The table's address, shown in the catalog.
        partition_by: Partition expressions, shown in the catalog.
        sort_by: Sort columns, shown in the catalog.
        description: The asset's description.
        owners: E-mail addresses and `team:name`.
        kinds: Kinds in addition to `icedb` and `parquet`.
        tags: The asset's tags.
        metadata: Metadata in addition to `uri`, `partition_by` and `sort_by`.
        **fields: Further arguments of `dg.AssetSpec` (`deps`, `group_name`, `partitions_def`, ...).

    Example:
        spec = table_spec(
            "events", uri="s3://lake/events", partition_by=["day"], owners=["team:data"]
        )
    """
    table = {"dagster/uri": uri, "partition_by": [*partition_by], "sort_by": [*sort_by]}
    return dg.AssetSpec(
        key=key,
        description=description,
        owners=owners,
        kinds={*KINDS, *kinds},
        tags=tags,
        metadata={**{name: value for name, value in table.items() if value}, **(metadata or {})},
        **fields,
    )


def observable_table(
    key: dg.AssetKey | Sequence[str] | str, *, resource_key: str = "icedb", **spec: Any
) -> dg.AssetsDefinition:
    """Return an observable asset for a table that programs outside Dagster fill.

    An observation has a data version, which changes with the rows but not with a merge (compaction), and the table's
    figures as metadata. It costs as much as opening the table. No part is opened.

    Args:
        key: The asset key, in any form that Dagster accepts.
        resource_key: The key of the `IceDBResource`.
        **spec: Further arguments of `table_spec`.

    Raises:
        TableNotFound: By an observation, if the table does not exist.

    Example:
        events = observable_table("events", group_name="raw")
    """
    asset = table_spec(key, **spec)

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        resource: IceDBResource = getattr(context.resources, resource_key)
        table = resource.table(asset.key)
        snapshot = table.snapshot()
        version = data_version(context.instance, asset.key, table, snapshot)
        yield dg.ObserveResult(asset_key=asset.key, data_version=version, metadata=table_metadata(snapshot))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # Dagster warns on each call, for years now
        made = dg.multi_observable_source_asset(
            specs=[asset], name=f"{asset.key.to_python_identifier()}_observe", required_resource_keys={resource_key}
        )
        observed: dg.AssetsDefinition = made(observe)
    return observed


def build_observation(key: dg.AssetKey | Sequence[str] | str, cron: str, *, running: bool = False) -> dg.Definitions:
    """Return the job `<table>_observe_job`, which observes an observable asset, and its schedule.

    Args:
        key: The asset key, in any form that Dagster accepts.
        cron: The cron expression of the schedule.
        running: Whether the schedule is started from the beginning.

    Example:
        defs = build_observation("events", "*/10 * * * *")
    """
    asset = dg.AssetKey.from_coercible(key)
    job = dg.define_asset_job(
        f"{asset.to_python_identifier()}_observe_job",
        selection=dg.AssetSelection.assets(asset),
        description="Observes the table: its data version and its figures.",
        executor_def=dg.in_process_executor,
    )
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    schedule = dg.ScheduleDefinition(name=f"{job.name}_schedule", job=job, cron_schedule=cron, default_status=status)
    return dg.Definitions(jobs=[job], schedules=[schedule])
