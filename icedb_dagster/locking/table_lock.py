"""A table's lock: a Dagster concurrency pool of limit 1, stored in Postgres.

The lock keeps two runs from doing the same maintenance. The claim in the store keeps the table right if the lock fails:
a paused worker whose slot was freed, or a second deployment. Dagster treats an unconfigured pool as unlimited. So a
separate step sets the limit before each use, and waits for the pool.

On Postgres, Dagster gives one slot to several runs that request it within the same milliseconds, because it finds and
takes a free slot in two transactions. The slot then has the name of the last run. So the step that does the work checks
that its run holds the slot. docs/concepts/concurrency.md describes when a slot is freed, and what was tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import dagster as dg

from icedb.errors import PoolNotExclusive

__all__ = [
    "POOL_TAG",
    "TABLE_TAG",
    "VERB_TAG",
    "await_pool",
    "check_pool_held",
    "ensure_pool",
    "icedb_pool",
    "table_of",
    "table_pools",
]

Context = dg.AssetExecutionContext | dg.OpExecutionContext

# A tag with the pool's name on each run that will hold a pool. dagster.yaml dequeues one such run at a time, so that
# runs that would only wait do not take the places of runs of other tables.
POOL_TAG = "icedb/pool"
#: The tags of a maintenance run: the table's name in names of jobs, and the verb.
TABLE_TAG, VERB_TAG = "icedb/table", "icedb/verb"
# Distinguishes table locks from other pools of a project.
_POOL_PREFIX = "icedb/"
# The interval at which a waiting run polls the pool.
POLL_S = 1
# Two runs can have a slot assigned only if both requested it at the same moment. Dagster finds and takes a slot in two
# statements, so half a second later the owner is settled.
SETTLE_S = 0.5
# Each loss means that two runs again requested a free slot within milliseconds.
LOST_SLOTS_MAX = 20


def icedb_pool(table: dg.AssetKey | Sequence[str] | str) -> str:
    """Return the name of a table's pool.

    Args:
        table: The asset key of the table, in any form that Dagster accepts.

    Example:
        icedb_pool("sales/orders")  # icedb/sales/orders
    """
    return _POOL_PREFIX + "/".join(dg.AssetKey.from_coercible(table).path)


def table_of(tags: Mapping[str, str]) -> str | None:
    """Return the asset key of the table that a run maintains, with slashes, from the run's tags; None without a table.

    The name of its pool has it. Without a pool, it follows from the identifier of the key, in which a name with two
    underscores cannot be distinguished from two names.
    """
    pool, identifier = tags.get(POOL_TAG), tags.get(TABLE_TAG)
    if pool is not None:
        return pool.removeprefix(_POOL_PREFIX)
    return None if identifier is None else identifier.replace("__", "/")


def table_pools(pools: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the pools that are table locks, sorted and without duplicates."""
    return tuple(sorted({pool for pool in pools if pool.startswith(_POOL_PREFIX)}))


def ensure_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """Set the limit of a pool to 1, unless it is 1.

    Args:
        instance: The Dagster instance.
        pool: The pool's name, as `icedb_pool` returns it.

    Raises:
        PoolNotExclusive: The instance has no pools.

    Example:
        ensure_pool(dg.DagsterInstance.get(), icedb_pool("events"))
    """
    storage = instance.event_log_storage
    if not _has_pools(instance):
        raise PoolNotExclusive(
            f"the pool '{pool}' cannot be a lock: this Dagster instance ({type(storage).__name__}) has no concurrency "
            "pools. Run on an instance with Postgres: icedb-dagster up, or a dagster.yaml with postgres storage."
        )
    from sqlalchemy.exc import IntegrityError  # slow to import, and not needed to define jobs

    if _has_limit_one(instance, pool):
        return
    try:
        storage.set_concurrency_slots(pool, 1)
    except IntegrityError:
        # Dagster selects and then inserts, so one of two concurrent first runs fails.
        if not _has_limit_one(instance, pool):
            raise


def _has_pools(instance: dg.DagsterInstance) -> bool:
    return instance.event_log_storage.supports_global_concurrency_limits


def _has_limit_one(instance: dg.DagsterInstance, pool: str) -> bool:
    info = instance.event_log_storage.get_concurrency_info(pool)
    return info.slot_count == 1 and not info.using_default_limit


def await_pool(context: Context, pool: str) -> None:
    """Ensure the limit of a pool, and wait until no other run holds or requests it.

    This runs in the step before the one that holds the pool. That step could wait itself, but Dagster's in-process
    executor does not sleep while it waits, so each waiting run would use a whole core. Among waiting runs the order is
    not defined. Priorities apply in the run queue. On an instance without pools, this logs a warning and returns: the
    claims in the store then keep the table right.
    """
    if not _has_pools(context.instance):
        context.log.warning(
            "this Dagster instance has no concurrency pools (%s), so '%s' is no lock. Two runs for this table may do "
            "the same work, and the work of one is discarded. For exclusive runs use an instance with Postgres.",
            type(context.instance.event_log_storage).__name__,
            pool,
        )
        return
    ensure_pool(context.instance, pool)
    holder = ""
    while others := _other_runs(context, pool):
        if others[0] != holder:
            holder = others[0]
            context.log.info("waiting for the pool %s, which run %s holds", pool, holder)
        time.sleep(POLL_S)


def _other_runs(context: Context, pool: str) -> list[str]:
    """Return the ids of other runs that hold a pool's slot, then of those that request it."""
    info = context.instance.event_log_storage.get_concurrency_info(pool)
    runs = [slot.run_id for slot in info.claimed_slots] + [step.run_id for step in info.pending_steps]
    return [run for run in runs if run != context.run.run_id]


def check_pool_held(context: Context, pool: str) -> None:
    """Check that this run alone holds the pool's only slot.

    Raises RetryRequested if another run holds it after all; the step then queues up again. Raises PoolNotExclusive if
    the pool does not admit runs one at a time. An instance without pools passes; see `await_pool`.
    """
    if not _has_pools(context.instance):
        return
    storage = context.instance.event_log_storage
    info = storage.get_concurrency_info(pool)
    if any(step.assigned_timestamp is not None and step.run_id != context.run.run_id for step in info.pending_steps):
        time.sleep(SETTLE_S)
        info = storage.get_concurrency_info(pool)
    holders = sorted({slot.run_id for slot in info.claimed_slots})
    if info.slot_count != 1 or not holders:
        raise PoolNotExclusive(
            f"the pool '{pool}' does not admit this run alone: it has {info.slot_count} slots, taken by "
            f"{holders or 'no run'}. Set 'concurrency: pools: granularity: op' in dagster.yaml and the pool's limit to "
            "1 (Deployment > Concurrency in the UI), then run again."
        )
    if holders != [context.run.run_id]:
        context.log.info("the pool %s went to another run (%s) at the same moment", pool, ", ".join(holders))
        raise dg.RetryRequested(max_retries=LOST_SLOTS_MAX, seconds_to_wait=1)
