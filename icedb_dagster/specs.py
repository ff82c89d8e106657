"""The definition of an asset that is a table: what the catalog shows of it before anything has happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from icedb_dagster.metadata import KINDS

__all__ = ["table_spec"]


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
