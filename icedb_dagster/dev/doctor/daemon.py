"""Dagster's daemon: does each kind of it work, and is there only one?

Every daemon process writes a heartbeat for each of its kinds every half minute, over that of any other process. Dagster
itself believes one for half an hour. Two daemons on one database are nowhere to be seen but in these rows: kinds that
were written last by different processes, or rows that change hands between two looks. A daemon that has just been
replaced looks the same for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import dagster as dg

from icedb.util.clock import Clock
from icedb_dagster.dev.doctor.finding import Finding, ok, problem, warning

__all__ = ["Heartbeat", "judge_daemon", "read_heartbeats", "watch_heartbeats"]

INTERVAL_S = 30
# A kind that is busy skips some; a daemon of which no kind has written for so long is gone.
AGE_S_MAX = 4 * INTERVAL_S
# From one heartbeat of a process to its next, and a little: what two looks that far apart both show has one owner.
WATCH_S = INTERVAL_S + 5


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last one of a kind of daemon: who wrote it, when, and what went wrong lately."""

    kind: str
    daemon: str
    age_s: float
    errors: tuple[str, ...] = ()


def read_heartbeats(instance: dg.DagsterInstance, clock: Clock) -> tuple[Heartbeat, ...]:
    """The last heartbeats of all kinds."""
    now_s = clock.now_ms() / 1000
    beats = instance.get_daemon_heartbeats().values()
    return tuple(
        Heartbeat(b.daemon_type, b.daemon_id or "", now_s - b.timestamp, tuple(e.message for e in b.errors or ()))
        for b in beats
    )


def watch_heartbeats(
    read: Callable[[], tuple[Heartbeat, ...]], *, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> list[tuple[Heartbeat, ...]]:
    """Look once, and with `seconds` again every few seconds for so long."""
    looks = [read()]
    for _ in range(round(seconds / 5)):
        sleep(5)
        looks.append(read())
    return looks


def judge_daemon(required: Collection[str], looks: Sequence[Collection[Heartbeat]]) -> list[Finding]:
    """`required`: the kinds that this instance needs. `looks`: the heartbeats, each time that they were read."""
    check = "daemon"
    start = "start the daemon: icedb-dagster up, or dagster-daemon run; its log says why it ended"
    last = {beat.kind: beat for beat in looks[-1]}
    fresh = {kind: beat for kind, beat in last.items() if beat.age_s <= AGE_S_MAX}
    if not last.keys() & set(required):
        return [problem(check, "no daemon has ever run on this instance: nothing that is queued starts", start)]
    if not fresh:
        age_s = min(beat.age_s for beat in last.values())
        return [problem(check, f"no daemon runs: the last heartbeat is {age_s:.0f} s old", start)]
    findings = [*_late(required, fresh), *_failing(fresh), *_several(looks)]
    return findings or [ok(check, f"one daemon, and all of its {len(required)} kinds work")]


def _late(required: Collection[str], fresh: Collection[str]) -> list[Finding]:
    late = sorted(set(required) - set(fresh))
    found = f"no heartbeat for over {AGE_S_MAX} s of: {', '.join(late)}"
    remedy = "if that stays so, restart the daemon: it runs with other settings than this instance's, or hangs"
    return [warning("daemon", found, remedy)] if late else []


def _failing(fresh: dict[str, Heartbeat]) -> list[Finding]:
    return [
        problem("daemon", f"{kind}: {_first_line(beat.errors[0])}", "see the daemon's log: icedb-dagster logs daemon")
        for kind, beat in sorted(fresh.items())
        if beat.errors
    ]


def _several(looks: Sequence[Collection[Heartbeat]]) -> list[Finding]:
    # Those that were written within one interval: a daemon of before a restart is not in them.
    daemons = {beat.daemon for look in looks for beat in look if beat.age_s <= INTERVAL_S + 1}
    if len(daemons) < 2:
        return []
    found = f"{len(daemons)} daemons write heartbeats: schedules and queued runs may be started twice"
    remedy = "stop all but one (`dagster dev`, `dg dev` and icedb-dagster up each start one), then look again"
    return [problem("daemon", found, remedy)]


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "an error without a message")
