"""The deploy command for the locks of tables: each pool gets the limit 1 before anybody uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from icedb_dagster.locking.table_lock import ensure_pool

__all__ = ["PoolLimit", "ensure_pools", "read_limits"]


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """A pool and its limit; None: nobody set one. `by_default`: it only has the instance's default limit."""

    pool: str
    limit: int | None
    by_default: bool = False

    @property
    def is_lock(self) -> bool:
        """Whether it lets one run in at a time, whatever the instance's default limit becomes."""
        return self.limit == 1 and not self.by_default


def read_limits(instance: dg.DagsterInstance, pools: Sequence[str]) -> list[PoolLimit]:
    """The limits that pools have now."""
    infos = instance.event_log_storage.get_concurrency_infos(pools)
    return [PoolLimit(pool, infos[pool].limit, by_default=infos[pool].using_default_limit) for pool in pools]


def ensure_pools(instance: dg.DagsterInstance, pools: Sequence[str], *, dry_run: bool = False) -> list[PoolLimit]:
    """Give each pool the limit 1, and return what they had. Raises PoolNotExclusive where there are no pools."""
    before = read_limits(instance, pools)
    if not dry_run:
        for pool in pools:
            ensure_pool(instance, pool)
    return before
