"""Checks of table locks: each pool has its limit, and no ended run holds a slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import DoctorFinding, named, ok, problem, warning
from icedb_dagster.locking.lock_pools import PoolLimit
from icedb_dagster.locking.table_lock import table_pools

__all__ = ["Holder", "judge_holders", "judge_limits", "read_holders", "table_pools_of"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A run that holds a pool's slot. `status` None: the run was deleted. `ended_s` None: it has not ended."""

    pool: str
    run_id: str
    status: str | None
    ended_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """True if the run no longer works, as far as Dagster knows."""
        return self.status is None or self.ended_s is not None


def table_pools_of(instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Return the table locks in the instance, from this code or from earlier runs; none if it has no pools."""
    if not instance.event_log_storage.supports_global_concurrency_limits:
        return ()
    return table_pools(instance.event_log_storage.get_concurrency_keys())


def read_holders(instance: dg.DagsterInstance, pools: Sequence[str], clock: Clock) -> list[Holder]:
    """Return the runs that hold slots of these pools."""
    infos = instance.event_log_storage.get_concurrency_infos(list(pools))
    held = [(pool, slot.run_id) for pool in pools for slot in infos[pool].claimed_slots]
    if not held:
        return []
    records = instance.get_run_records(dg.RunsFilter(run_ids=[run_id for _, run_id in held]))
    runs = {record.dagster_run.run_id: record for record in records}
    now_s = clock.now_ms() / 1000
    holders = []
    for pool, run_id in held:
        record = runs.get(run_id)
        if record is None:
            holders.append(Holder(pool, run_id, None))
            continue
        run = record.dagster_run
        ended_s = now_s - (record.end_time or record.update_timestamp.timestamp()) if run.is_finished else None
        holders.append(Holder(pool, run_id, run.status.value, ended_s))
    return holders


def judge_limits(limits: Sequence[PoolLimit]) -> DoctorFinding:
    """Judge the limits of all table pools."""
    check = "pools"
    bad = [limit for limit in limits if not limit.is_lock]
    if not limits:
        return ok(check, "no table has jobs that need a lock")
    if not bad:
        return ok(check, f"{len(limits)} with limit 1")
    state = f"{len(bad)} of {len(limits)} are not locks: {named([f'{b.pool} ({_limit(b)})' for b in bad])}"
    if all(limit.limit is None or limit.by_default for limit in bad):
        # The first run of each sets the limit before it needs the lock.
        return warning(check, state, "after each deployment: icedb-dagster pools")
    return problem(check, state, "icedb-dagster pools")


def _limit(limit: PoolLimit) -> str:
    if limit.limit is None:
        return "no limit"
    return f"{'default ' if limit.by_default else ''}limit {limit.limit}"


def judge_holders(holders: Sequence[Holder], *, slot_free_s: float | None) -> list[DoctorFinding]:
    """Judge slot holders. `slot_free_s` is when the daemon frees an ended run's slot; None: never."""
    findings = []
    for holder in holders:
        if not holder.is_stale:
            continue
        remedy = f"Deployment > Concurrency > {holder.pool} in the UI: free the slots of run {holder.run_id}"
        if holder.status is None or holder.ended_s is None:
            state = f"{holder.pool} is held by run {holder.run_id}, which was deleted"
            findings.append(problem("slots", state, remedy))
            continue
        state = f"{holder.pool} is held by run {holder.run_id}, {holder.status} {holder.ended_s:.0f} s ago"
        if slot_free_s is not None and holder.ended_s <= slot_free_s:
            findings.append(warning("slots", state, f"the daemon frees it within {slot_free_s:.0f} s of its end"))
        else:
            findings.append(problem("slots", state, remedy))
    working = len(holders) - len(findings)
    return findings or [ok("slots", f"{working} held, all by active runs" if working else "none is held")]
