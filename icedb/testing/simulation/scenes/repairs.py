"""Programs of v3 that add a column with several types, so that the table cannot be read until `repair`.

Repairs lose and duplicate no row, with any concurrent operations. When the log has one type for a column again, no
live part has another one, except parts that a restore brought back from an earlier time.
"""

from __future__ import annotations

from icedb.format.records import LogFile
from icedb.operations.commits.publish import publish_append
from icedb.operations.integrity.repair_types import repair
from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.scenes.v3_writers import put_v3_batch
from icedb.testing.simulation.world.operation_run import BASE_SCHEMA, OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import TYPED, type_of, write_rows
from icedb.testing.simulation.world.recovery import run_healthy
from icedb.testing.simulation.world.setting import PARTITIONS, Setting
from icedb.testing.simulation.world.truth import Landing, Violation
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["Repairs"]

#: The last type holds the values of all of them.
_TYPES = ("SMALLINT", "INTEGER", "BIGINT")


class Repairs(Scene):
    """See the module's docstring."""

    setting = Setting(several_types=True)
    crowd = (*(name for name in USUAL if name != "txn"), "typed", *["v3 typed"] * 5, *["repair"] * 7)

    def __init__(self) -> None:
        super().__init__()
        self.operations = {
            "typed": Operation("typed", _typed),
            "v3 typed": Operation("v3 typed", _v3_typed, refuses=False),
            "repair": Operation("repair", _repair),
        }
        self._restored: set[str] = set()

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        world.watchers.append(lambda file, landing: self._check_types(world, file, landing))

    def _check_types(self, world: SimulatedWorld, file: LogFile, landing: Landing) -> None:
        if world.truth.process_of(landing.key) in world.truth.revivers:  # it may bring back what was before a repair
            self._restored |= {m.key for m in file.markers if m.tombstoned_ms is None and m.created_ms == file.t_ms}
        state = world.checker.state()
        if TYPED in state.conflicts or TYPED not in state.schema:
            return
        parts = {key for key in world.truth.live - self._restored if key in world.store.objects}
        types = {key: type_of(world.store.objects[key].body) for key in sorted(parts)}
        if wrong := {key: t for key, t in types.items() if t not in (None, state.schema[TYPED])}:
            raise Violation(f"after '{landing.key}' the column is {state.schema[TYPED]}, and {wrong} hold it otherwise")

    def leave(self, world: SimulatedWorld) -> None:
        """Repair once, which is enough because no program of v3 writes any more."""
        run_healthy(world, "repair", repair)
        if conflicts := world.checker.state().conflicts:
            raise Violation(f"after a repair without faults the columns {sorted(conflicts)} have several types")


def _typed(task: OperationRun) -> None:
    """Append with the column, with a new type or with the type that the process has read."""
    rows = task.new_rows(task.choose(PARTITIONS))
    type_ = task.handle.known_schema.get(TYPED) or task.choose(_TYPES)
    written = write_rows(task.handle, rows, {**BASE_SCHEMA, TYPED: type_})
    task.parts |= {m.key for m in written.markers}
    task.must_have_added(publish_append(task.handle, written), rows)


def _v3_typed(task: OperationRun) -> None:
    put_v3_batch(task, task.new_rows(task.choose(PARTITIONS)), {**BASE_SCHEMA, TYPED: task.choose(_TYPES)})


def _repair(task: OperationRun) -> None:
    task.must_have_landed(repair(task.handle).commit)
