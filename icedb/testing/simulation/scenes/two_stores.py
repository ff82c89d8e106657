"""Log and claims lie in a store of their own, and each of the two stores is away at times.

What belongs to one store never goes to the other, and all promises of one store hold of two.
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
        """Both stores are there again."""
        world.away.clear()


def _outage(task: OperationRun) -> None:
    """One of the stores answers nobody for a while; the other goes on."""
    prefix = task.choose(task.world.roots)
    task.handle.store.head(task.handle.keys.spec)  # a turn, so that others are in flight
    task.world.away[prefix] = task.world.clock.now_ms() + task.world.rng.choice(_AWAY_MS)
