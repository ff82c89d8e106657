"""The superseded objects that the grace period still protects, and when cleanup (VACUUM) may delete the first."""

from __future__ import annotations

from dataclasses import dataclass

from icedb.transaction.pin_objects import is_needed, pins_in_force
from icedb.transaction.table_handle import Handle

__all__ = ["SupersededObjects", "superseded_objects"]


@dataclass(frozen=True, slots=True)
class SupersededObjects:
    """Superseded parts (data files) and log files that no pin needs. From `deletable_ms` on cleanup may delete one."""

    parts: int
    bytes: int
    log_files: int
    deletable_ms: int


def superseded_objects(handle: Handle, *, grace_ms: int | None = None) -> SupersededObjects | None:
    """Return the superseded objects, or None if there are none. `grace_ms`: that of the cleanup; None: the table's.

    Cleanup counts the grace period from the tombstone, and from the store's time of the log file that has it.
    """
    state = handle.read(everything=True)
    grace = handle.timing.grace_ms if grace_ms is None else grace_ms
    pins = pins_in_force(handle, cutoff_ms=handle.clock.now_ms() - grace)
    parts = [m for m in state.dead if not is_needed(m, pins)]
    dead = [(m.tombstoned_ms or 0, state.parts_named[m.key]) for m in parts]
    logs = [(t, state.logs_named[key]) for key, t in state.log_tombstones.items() if key in state.listed_ms]
    since = [max(t, min(named.tombstoned_by_ms, default=t)) for t, named in (*dead, *logs)]
    if not since:
        return None
    return SupersededObjects(len(parts), sum(m.bytes for m in parts), len(logs), min(since) + grace)
