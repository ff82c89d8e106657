"""Wrong clocks: programs of this library must publish and delete nothing, but programs of v3 cannot notice.

A log file of v3 from a clock far ahead counts at once, but its parts are in no snapshot before its time. Until then
it is neither replaced nor forgotten. A program of v3 may still see a part of it that was dropped.
"""

from __future__ import annotations

from icedb.errors import CorruptLog
from icedb.format.records import LogFile
from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.scenes.v3_writers import put_v3_batch
from icedb.testing.simulation.world.operation_run import BASE_SCHEMA, OperationRun
from icedb.testing.simulation.world.operations import OPERATIONS, Operation
from icedb.testing.simulation.world.recovery import maintain
from icedb.testing.simulation.world.setting import LATE_MS, PARTITIONS, TIMING
from icedb.testing.simulation.world.truth import Landing, Violation
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["Clocks"]

#: All far over a second: stores have times in whole seconds, so a smaller skew is not noticed.
_OFF_MS = (20_000, 100_000, 10_000_000, -20_000, -10_000_000)
_AHEAD_MS = (5_000, 30_000, 120_000)
#: Without `follow`: a consumer of changes puts nothing, so it cannot notice that its clock is wrong (docs/safety.md).
_WITH_WRONG_CLOCK = tuple(name for name in OPERATIONS if name != "follow")


class Clocks(Scene):
    """See the module's docstring."""

    crowd = (*USUAL, "wrong clock", "wrong clock", "wrong clock", "v3 ahead")

    def __init__(self) -> None:
        super().__init__()
        self._wrong: set[str] = set()
        self._ahead_ms = 0
        self.operations = {
            "wrong clock": Operation("wrong clock", self._run_with_wrong_clock, refuses=False),
            "v3 ahead": Operation("v3 ahead", self._append_ahead, refuses=False),
        }

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        world.watchers.append(self._check_landing)
        self._world = world

    def leave(self, world: SimulatedWorld) -> None:
        """Maintain the table while log files are ahead. Recovery maintains it again after their time."""
        maintain(world)
        world.let_pass_until(max(world.clock.now_ms(), self._ahead_ms + LATE_MS))

    def _run_with_wrong_clock(self, task: OperationRun) -> None:
        """Run any operation of this library in a new process with a wrong clock."""
        world, act = task.world, task.act
        act.process.busy -= 1
        act.process = world.process(skew_ms=world.rng.choice(_OFF_MS))
        act.process.busy += 1
        act.process.retired = True
        self._wrong.add(act.process.name)
        try:
            OPERATIONS[task.choose(_WITH_WRONG_CLOCK)].run(task)
        except CorruptLog:  # for a sweep with a clock far ahead, the parts of the first commit are old orphans
            if any(landing.added for landing in world.truth.landings.values()):
                raise

    def _append_ahead(self, task: OperationRun) -> None:
        ahead_ms = task.world.rng.choice(_AHEAD_MS)
        put_v3_batch(task, task.new_rows(task.choose(PARTITIONS)), BASE_SCHEMA, ahead_ms=ahead_ms)

    def _check_landing(self, file: LogFile, landing: Landing) -> None:
        world = self._world
        if file.t_ms > world.clock.now_ms() + 2 * TIMING.max_skew_ms:
            self._ahead_ms = max(self._ahead_ms, file.t_ms)
            world.checker.seen_by_v3 |= {m.key for m in file.markers}
        keys = world.location.keys
        if early := [t.key for t in file.tombstones if keys.parse_log_file(t.key).t_ms > file.t_ms]:
            raise Violation(f"'{landing.key}' replaces {early}, whose times are later")
        if world.truth.process_of(landing.key) in self._wrong and (landing.added or landing.removed or file.tombstones):
            raise Violation(f"'{landing.key}' is from a process with a wrong clock, and changes the table")
