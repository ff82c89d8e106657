"""The definition of an asset that is a table: what the catalog shows of it before anything has happened.

An asset that others fill may be observed: its data version is that of the newest snapshot, so Dagster knows what
downstream is out of date.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

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
    """A table as an asset. By itself: one that others fill, and that Dagster shows, maintains and reads.

    With `dg.AssetOut.from_spec`: one that an asset returns; then `partition_by` and `sort_by` are those of the table
    that the IO manager creates. `uri`: where it is, for those who look it up. `kinds`: beside `icedb` and `parquet`.
    `owners`: e-mail addresses and `team:name`. `fields`: all else that `dg.AssetSpec` takes (`deps`, `group_name`,
    `partitions_def`, ...).
    """
    told = {"dagster/uri": uri, "partition_by": [*partition_by], "sort_by": [*sort_by]}
    return dg.AssetSpec(
        key=key,
        description=description,
        owners=owners,
        kinds={*KINDS, *kinds},
        tags=tags,
        metadata={**{name: value for name, value in told.items() if value}, **(metadata or {})},
        **fields,
    )


def observable_table(
    key: dg.AssetKey | Sequence[str] | str, *, resource_key: str = "icedb", **spec: Any
) -> dg.AssetsDefinition:
    """A table that others fill, as an asset that can be observed. `spec`: as for `table_spec`.

    An observation has the snapshot's id as its data version, and the table's figures as metadata. It costs what opening
    the table costs; no part is opened. Where there is no table, it fails with TableNotFound.
    """
    asset = table_spec(key, **spec)

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        resource: IceDBResource = getattr(context.resources, resource_key)
        snapshot = resource.table(asset.key).snapshot()
        version = dg.DataVersion(snapshot.id)
        yield dg.ObserveResult(asset_key=asset.key, data_version=version, metadata=table_metadata(snapshot))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of Dagster, on each call: it has been there for years
        made = dg.multi_observable_source_asset(
            specs=[asset], name=f"{asset.key.to_python_identifier()}_observe", required_resource_keys={resource_key}
        )
        observed: dg.AssetsDefinition = made(observe)
    return observed


def build_observation(key: dg.AssetKey | Sequence[str] | str, cron: str, *, running: bool = False) -> dg.Definitions:
    """A job `<table>_observe_job` that observes an observable asset, and its schedule, stopped unless `running`."""
    asset = dg.AssetKey.from_coercible(key)
    job = dg.define_asset_job(
        f"{asset.to_python_identifier()}_observe_job",
        selection=dg.AssetSelection.assets(asset),
        description="Observes the table: its data version, and figures.",
        executor_def=dg.in_process_executor,
    )
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    schedule = dg.ScheduleDefinition(name=f"{job.name}_schedule", job=job, cron_schedule=cron, default_status=status)
    return dg.Definitions(jobs=[job], schedules=[schedule])
