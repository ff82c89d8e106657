"""Clocks that are hours off: in programs of ours, which must publish and delete nothing, and of v3, which cannot know.

A log file of v3 from a clock far ahead counts at once. Its parts are in no snapshot of an earlier time. While its time
has not come it is neither replaced nor forgotten, and a program of v3 may go on to see a part of it that was dropped.
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

#: A store tells times in whole seconds, so less than that goes unnoticed.
_OFF_MS = (20_000, 100_000, 10_000_000, -20_000, -10_000_000)
_AHEAD_MS = (5_000, 30_000, 120_000)
#: Not `follow`: a consumer of changes puts nothing, so it cannot learn that its clock is wrong (docs/safety.md).
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
        """The table is maintained while log files are ahead, and again when their time has come."""
        maintain(world)
        world.let_pass_until(max(world.clock.now_ms(), self._ahead_ms + LATE_MS))

    def _run_with_wrong_clock(self, task: OperationRun) -> None:
        """Any operation of ours, in a program of its own."""
        world, act = task.world, task.act
        act.process.busy -= 1
        act.process = world.process(skew_ms=world.rng.choice(_OFF_MS))
        act.process.busy += 1
        act.process.retired = True
        self._wrong.add(act.process.name)
        try:
            OPERATIONS[task.choose(_WITH_WRONG_CLOCK)].run(task)
        except CorruptLog:  # to a sweep whose clock is far ahead, the parts of the first commit are old orphans
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
            raise Violation(f"'{landing.key}' replaces {early}, whose time has not come")
        if world.truth.process_of(landing.key) in self._wrong and (landing.added or landing.removed or file.tombstones):
            raise Violation(f"'{landing.key}' is of a program whose clock is wrong, and changes the table")
