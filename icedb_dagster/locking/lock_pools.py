"""Limits of the pools that are table locks, for the deploy command `icedb-dagster pools`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from icedb_dagster.locking.table_lock import ensure_pool

__all__ = ["PoolLimit", "ensure_pools", "read_limits"]


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """A pool and its limit. `limit` is None if none is set; `by_default` means it is the instance's default limit."""

    pool: str
    limit: int | None
    by_default: bool = False

    @property
    def is_lock(self) -> bool:
        """True if the pool admits one run at a time, independent of the instance's default limit."""
        return self.limit == 1 and not self.by_default


def read_limits(instance: dg.DagsterInstance, pools: Sequence[str]) -> list[PoolLimit]:
    """Return the current limits of pools."""
    infos = instance.event_log_storage.get_concurrency_infos(pools)
    return [PoolLimit(pool, infos[pool].limit, by_default=infos[pool].using_default_limit) for pool in pools]


def ensure_pools(instance: dg.DagsterInstance, pools: Sequence[str], *, dry_run: bool = False) -> list[PoolLimit]:
    """Set the limit 1 on each pool, and return the earlier limits. Raises PoolNotExclusive without pools."""
    before = read_limits(instance, pools)
    if not dry_run:
        for pool in pools:
            ensure_pool(instance, pool)
    return before
