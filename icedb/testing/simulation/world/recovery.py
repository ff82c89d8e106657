"""Recovery after the faults: maintenance without faults, after which nothing is lost, duplicated or left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from icedb.errors import SnapshotExpired
from icedb.operations.commits.alter import alter
from icedb.operations.commits.publish import publish_append
from icedb.operations.integrity.verify import verify
from icedb.operations.retention.cleanup import cleanup
from icedb.operations.retention.merge_log import merge_log
from icedb.operations.retention.orphans import delete_orphans
from icedb.operations.retention.pins import unpin
from icedb.operations.rewrite.merge import merge
from icedb.testing.simulation.world.operation_run import RejectedOperation, Transactions
from icedb.testing.simulation.world.plain_parts import plain_rewriter, write_rows
from icedb.testing.simulation.world.process import Act
from icedb.testing.simulation.world.setting import PARTITIONS, TIMING
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.pin_objects import read_pins
from icedb.transaction.table_handle import Handle

__all__ = ["run_healthy", "maintain", "recover"]

#: The second cleanup deletes the parts that the first merge tombstoned, and the third the log files that named them.
CLEANUPS = 3


def recover(world: SimulatedWorld, transactions: Transactions, refusals: Sequence[RejectedOperation]) -> None:
    """Maintain the table without faults, and check it after each step. Raises Violation."""
    world.run(patient=True)
    world.deliver_all()
    run_healthy(world, "nothing", lambda _: None)
    # The open epoch may have a claim that names parts. The next exclusive commit decides it.
    run_healthy(world, "alter", _decide_epoch)
    _check_refusals(world, refusals)
    run_healthy(world, "follow", partial(_follow, world))
    for application in transactions.next:
        run_healthy(world, "txn", partial(_next_txn, world, transactions, application))
    world.checker.pins.clear()
    run_healthy(world, "unpin", _unpin_all)
    run_healthy(world, "merge", lambda handle: merge(handle, rewriter=plain_rewriter))
    for _ in range(CLEANUPS):
        world.clock.advance(TIMING.grace_ms + TIMING.commit_timeout_ms)
        run_healthy(world, "cleanup", cleanup)
        run_healthy(world, "merge log", merge_log)
    world.clock.advance(TIMING.min_age_ms + TIMING.max_skew_ms + 1)
    run_healthy(world, "cleanup", cleanup)
    run_healthy(world, "sweep", delete_orphans)
    run_healthy(world, "verify", _verify)
    _check_nothing_left(world)


def maintain(world: SimulatedWorld) -> None:
    """Merge, clean up and merge the log without faults, although some log files may not be replaceable yet."""
    run_healthy(world, "merge", lambda handle: merge(handle, rewriter=plain_rewriter))
    world.clock.advance(TIMING.grace_ms + TIMING.commit_timeout_ms)
    run_healthy(world, "cleanup", cleanup)
    run_healthy(world, "merge log", merge_log)


def run_healthy(world: SimulatedWorld, what: str, action: Callable[[Handle], object]) -> None:
    """Run one operation in a new process without faults, and check the table. Raises Violation."""

    def body(act: Act) -> str:
        action(act.process.handle)
        return "done"

    world.spawn(f"recovery: {what}", world.process(skew_ms=0), body)
    world.run(patient=True)
    world.check(f"after {what}")


def _decide_epoch(handle: Handle) -> None:
    alter(handle, lambda spec: msgspec.structs.replace(spec, row_group_rows=spec.row_group_rows + 1))


def _next_txn(world: SimulatedWorld, transactions: Transactions, application: str, handle: Handle) -> None:
    """Continue an application: with a batch that was never reported as committed, and with a new one."""
    for _ in range(2):
        sequence = transactions.next[application]
        rows = transactions.rows.setdefault((application, sequence), {PARTITIONS[0]: world.new_rows(1)})
        publish_append(handle, write_rows(handle, rows, {"id": "BIGINT"}), txn=(application, sequence))
        if missing := [r for of in rows.values() for r in of if r not in world.truth.fates]:
            raise Violation(f"transaction {application} {sequence} lacks rows {missing}")
        transactions.next[application] = sequence + 1


def _follow(world: SimulatedWorld, handle: Handle) -> None:
    """Read the rest of the changes for each consumer, unless cleanup was faster."""
    for follower in list(world.followers.active):
        with suppress(SnapshotExpired):
            world.followers.follow(world, handle, follower, None)


def _unpin_all(handle: Handle) -> None:
    for pin in read_pins(handle):
        unpin(handle, pin.name)


def _verify(handle: Handle) -> None:
    report = verify(handle)
    if not report.ok:
        raise Violation(f"verify reports problems of a consistent table: {report}")


def _check_refusals(world: SimulatedWorld, refusals: Sequence[RejectedOperation]) -> None:
    """Check that nothing of a rejected operation was published, even if others completed work later."""
    truth, keys = world.truth, world.location.keys
    for refusal in refusals:
        if named := refusal.parts & (truth.live | truth.dead):
            raise Violation(f"{refusal.actor} raised {refusal.error}, and its parts were published: {sorted(named)}")
        for landing in truth.landings.values():
            if (
                truth.process_of(landing.key) == refusal.writer
                and landing.step > refusal.since_step
                and keys.parse_log_file(landing.key).t_ms
                >= refusal.since_ms  # otherwise it is an earlier put that was delivered late
                and not landing.void
            ):
                raise Violation(f"{refusal.actor} raised {refusal.error}, and '{landing.key}' was published")


def _check_nothing_left(world: SimulatedWorld) -> None:
    """Check that storage is bounded: live parts, few log files, the probe, and claims of open transactions."""
    keys = world.location.keys
    parts = set(world.store.keys(keys.data_prefix))
    claims = [k for k in world.store.keys(keys.claims_prefix) if k != keys.probe]
    if world.setting.keeps_claims:
        of_txns = {k: world.store.objects[k].body.decode() for k in claims if keys.is_txn_claim(k)}
        claims = [k for k in claims if k not in of_txns]
        parts = {part for part in parts if not any(part in body for body in of_txns.values())}
    if extra := parts - world.truth.live:
        raise Violation(f"unneeded objects were left: {sorted(extra)}")
    # The last cleanup's own claim is younger than the grace period, and the claim after each live epoch is kept.
    after_live = {n + 1 for n in world.checker.state().live_epochs}
    kept = {keys.epoch_claim(n) for n in {world.truth.epoch, world.truth.epoch + 1} | after_live}
    if old := [k for k in claims if k not in kept]:
        raise Violation(f"unneeded claims were left: {old}")
    if len(logs := world.store.keys(keys.log_prefix)) > LOG_FILES_MAX:
        raise Violation(f"too many log files were left: {logs}")


LOG_FILES_MAX = 6
