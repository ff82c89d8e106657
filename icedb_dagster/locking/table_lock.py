"""A table's lock: a Dagster concurrency pool of limit 1, kept in Postgres.

The lock keeps two runs from doing the same maintenance; what keeps the table right when the lock does not hold
(a paused worker whose slot was freed, a second deployment) is the claim in the store. Dagster treats a pool that
nobody configured as unlimited, so the limit is made sure of before each use, in a step of its own, which also does the
waiting. And on Postgres it gives one slot to several runs that ask within the same milliseconds (it looks for a free
slot and takes it in two transactions), where the last one's name stays: so the step that works looks whether it really
has the slot. docs/lock.md tells when a slot is freed, and what was tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import dagster as dg

from icedb.errors import PoolNotExclusive

__all__ = ["POOL_TAG", "await_pool", "check_pool_held", "ensure_pool", "icedb_pool", "table_pools"]

Context = dg.AssetExecutionContext | dg.OpExecutionContext

# On each run that will hold a pool, with the pool's name: dagster.yaml lets one of them at a time out of the queue, so
# that those that would only wait do not take the places of runs of other tables.
POOL_TAG = "icedb/pool"
# A project may have pools of other kinds.
_POOL_PREFIX = "icedb/"
# How often a run that waits looks whether the pool is free.
ASK_S = 1
# Dagster lets a run ask for the slot while another has it only if both asked at the same moment. Between its look and
# its taking are two statements, so half a second later it is clear whose the slot is.
SETTLE_S = 0.5
# Each means that the slot was free and two runs asked for it within milliseconds, again.
LOST_SLOTS_MAX = 20


def icedb_pool(table: dg.AssetKey | Sequence[str] | str) -> str:
    """The name of a table's pool. `table` is the asset key of the table, in any form that Dagster takes."""
    return _POOL_PREFIX + "/".join(dg.AssetKey.from_coercible(table).path)


def table_pools(pools: Iterable[str]) -> tuple[str, ...]:
    """Those of some pools that are locks of tables, each once, by name."""
    return tuple(sorted({pool for pool in pools if pool.startswith(_POOL_PREFIX)}))


def ensure_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """Give a pool the limit 1, unless it has it. Raises PoolNotExclusive where the instance has no pools."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        raise PoolNotExclusive(
            f"the pool '{pool}' cannot hold: this Dagster instance ({type(storage).__name__}) has no concurrency "
            "pools. Run on an instance with Postgres: icedb-dagster up, or a dagster.yaml with postgres storage."
        )
    from sqlalchemy.exc import IntegrityError  # slow to load, and not needed to define jobs

    if _has_limit_one(instance, pool):
        return
    try:
        storage.set_concurrency_slots(pool, 1)
    except IntegrityError:
        # Dagster looks and then inserts, so of two runs that are the first at the same moment one fails.
        if not _has_limit_one(instance, pool):
            raise


def _has_limit_one(instance: dg.DagsterInstance, pool: str) -> bool:
    info = instance.event_log_storage.get_concurrency_info(pool)
    return info.slot_count == 1 and not info.using_default_limit


def await_pool(context: Context, pool: str) -> None:
    """Make sure of a pool, and wait until no other run has it or asks for it: in the step before the one that holds it.

    That step could wait by itself, but Dagster's in-process executor never sleeps meanwhile: each run that waits would
    take a whole core. Of several that wait, any may be next; the run queue is where priorities count. Raises
    PoolNotExclusive where the instance has no pools.
    """
    ensure_pool(context.instance, pool)
    told = ""
    while others := _other_runs(context, pool):
        if others[0] != told:
            told = others[0]
            context.log.info("waiting for the pool %s, which run %s has", pool, told)
        time.sleep(ASK_S)


def _other_runs(context: Context, pool: str) -> list[str]:
    """Who has the slot of a pool, and who has asked Dagster for it."""
    info = context.instance.event_log_storage.get_concurrency_info(pool)
    runs = [slot.run_id for slot in info.claimed_slots] + [step.run_id for step in info.pending_steps]
    return [run for run in runs if run != context.run.run_id]


def check_pool_held(context: Context, pool: str) -> None:
    """Go on only if this run, and no other, has the pool's only slot.

    Raises RetryRequested when another run has it after all (then the step queues up again), and PoolNotExclusive when
    the pool does not hold anybody.
    """
    storage = context.instance.event_log_storage
    info = storage.get_concurrency_info(pool)
    if any(step.assigned_timestamp is not None and step.run_id != context.run.run_id for step in info.pending_steps):
        time.sleep(SETTLE_S)
        info = storage.get_concurrency_info(pool)
    holders = sorted({slot.run_id for slot in info.claimed_slots})
    if info.slot_count != 1 or not holders:
        raise PoolNotExclusive(
            f"the pool '{pool}' does not hold this run to be the only one: it has {info.slot_count} slots, taken by "
            f"{holders or 'nobody'}. Set 'concurrency: pools: granularity: op' in dagster.yaml and the pool's limit to "
            "1 (Deployment > Concurrency in the UI), then run again."
        )
    if holders != [context.run.run_id]:
        context.log.info("the pool %s went to another run (%s) at the same moment", pool, ", ".join(holders))
        raise dg.RetryRequested(max_retries=LOST_SLOTS_MAX, seconds_to_wait=1)
