"""Log and claims in a store of their own, with outages of each of the two stores.

No object is put into the wrong store, and all invariants of one store hold for two.
"""

from __future__ import annotations

from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.world.operation_run import OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.setting import TIMING, Setting
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["TwoPlaces"]

_AWAY_MS = (20, 100, 700, TIMING.commit_timeout_ms + 200, TIMING.grace_ms + 300)


class TwoPlaces(Scene):
    """See the module's docstring."""

    setting = Setting(log_root="fast/log")
    crowd = (*USUAL, "rewrite", "alter", "pin", "unpin", "outage", "outage", "outage")

    def __init__(self) -> None:
        super().__init__()
        self.operations = {"outage": Operation("outage", _outage, changes=False)}

    def leave(self, world: SimulatedWorld) -> None:
        """End all outages."""
        world.away.clear()


def _outage(task: OperationRun) -> None:
    """Make one of the stores unavailable for some time."""
    prefix = task.choose(task.world.roots)
    task.handle.store.head(task.handle.keys.spec)  # a turn, so that others are in flight
    task.world.away[prefix] = task.world.clock.now_ms() + task.world.rng.choice(_AWAY_MS)
