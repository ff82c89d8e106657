"""Checks of Dagster's daemon: each of its kinds works, and only one daemon runs.

Every daemon process writes a heartbeat for each of its kinds every half minute, over that of any other process. Dagster
itself trusts a heartbeat for half an hour. Two daemons on one database can be detected only in these rows: different
processes wrote the kinds last, or the writer of a row changes between two reads. A daemon that was just replaced looks
the same for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import dagster as dg

from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning

__all__ = ["WATCH_S", "Heartbeat", "judge_daemon", "read_heartbeats", "watch_heartbeats"]

INTERVAL_S = 30
# A busy kind skips heartbeats. If no kind has written for this long, the daemon is gone.
AGE_S_MAX = 4 * INTERVAL_S
# A little over the interval: rows with the same writer in two reads this far apart have one owner.
WATCH_S = INTERVAL_S + 5


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a kind of daemon: its process, its age, and recent errors."""

    kind: str
    daemon: str
    age_s: float
    errors: tuple[str, ...] = ()


def read_heartbeats(instance: dg.DagsterInstance, clock: Clock) -> tuple[Heartbeat, ...]:
    """Return the last heartbeats of all kinds."""
    now_s = clock.now_ms() / 1000
    beats = instance.get_daemon_heartbeats().values()
    return tuple(
        Heartbeat(b.daemon_type, b.daemon_id or "", now_s - b.timestamp, tuple(e.message for e in b.errors or ()))
        for b in beats
    )


def watch_heartbeats(
    read: Callable[[], tuple[Heartbeat, ...]], *, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> list[tuple[Heartbeat, ...]]:
    """Read the heartbeats once, and then every few seconds for `seconds`."""
    reads = [read()]
    for _ in range(round(seconds / 5)):
        sleep(5)
        reads.append(read())
    return reads


def judge_daemon(required: Collection[str], reads: Sequence[Collection[Heartbeat]]) -> list[DoctorFinding]:
    """Judge heartbeats. `required` are the kinds that this instance needs, `reads` the heartbeats of each read."""
    check = "daemon"
    start = "start the daemon: icedb-dagster up, or dagster-daemon run; see its log for why it ended"
    last = {beat.kind: beat for beat in reads[-1]}
    fresh = {kind: beat for kind, beat in last.items() if beat.age_s <= AGE_S_MAX}
    if not last.keys() & set(required):
        return [problem(check, "no daemon has ever run on this instance, so queued runs never start", start)]
    if not fresh:
        age_s = min(beat.age_s for beat in last.values())
        return [problem(check, f"no daemon runs: the last heartbeat is {age_s:.0f} s old", start)]
    findings = [*_late(required, fresh), *_failing(fresh), *_several(reads)]
    return findings or [ok(check, f"one daemon, and all of its {len(required)} kinds work")]


def _late(required: Collection[str], fresh: Collection[str]) -> list[DoctorFinding]:
    late = sorted(set(required) - set(fresh))
    state = f"no heartbeat for over {AGE_S_MAX} s of: {', '.join(late)}"
    remedy = "if this persists, restart the daemon: it has other settings than this instance, or hangs"
    return [warning("daemon", state, remedy)] if late else []


def _failing(fresh: dict[str, Heartbeat]) -> list[DoctorFinding]:
    return [
        problem("daemon", f"{kind}: {_first_line(beat.errors[0])}", "see the daemon's log: icedb-dagster logs daemon")
        for kind, beat in sorted(fresh.items())
        if beat.errors
    ]


def _several(reads: Sequence[Collection[Heartbeat]]) -> list[DoctorFinding]:
    # Heartbeats within one interval, which exclude a daemon from before a restart.
    daemons = {beat.daemon for read in reads for beat in read if beat.age_s <= INTERVAL_S + 1}
    if len(daemons) < 2:
        return []
    state = f"{len(daemons)} daemons write heartbeats, so schedules and queued runs may start twice"
    remedy = "stop all but one (`dagster dev`, `dg dev` and icedb-dagster up each start one), then run the doctor again"
    return [problem("daemon", state, remedy)]


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "an error without a message")
