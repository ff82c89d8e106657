"""The base class of scenes, which add actors, circumstances and invariants to a run."""

from __future__ import annotations

from collections.abc import Mapping

from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.request_faults import Trouble
from icedb.testing.simulation.world.setting import Setting
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["USUAL", "Scene"]

#: Operations that every scene mixes with its own.
USUAL = ("append", "append", "column", "txn", "overwrite", "drop", "delete", "upsert", "merge", "merge", "merge log",
         "restore", "cleanup", "cleanup", "sweep", "read", "read as of", "follow")  # fmt: skip


class Scene:
    """The additions to one run. Each run has an instance of its own.

    `enter` is called before the first operation, and `leave` after the last. `crowd` names the operations that run; one
    that is named twice runs twice as often. `operations` are those that the scene itself defines.
    """

    setting = Setting()
    crowd: tuple[str, ...] = USUAL
    #: Pauses between crowds; empty for the usual ones.
    pauses_ms: tuple[int, ...] = ()
    #: The faults that strike; empty for the usual ones.
    troubles: tuple[Trouble, ...] = ()
    #: Whether runs begin with a table that has rows; None for most of them.
    begins: bool | None = None

    def __init__(self) -> None:
        self.operations: Mapping[str, Operation] = {}

    def enter(self, world: SimulatedWorld) -> None:
        """Prepare the world."""

    def leave(self, world: SimulatedWorld) -> None:
        """End the work of the scene, and check its invariants. Raises Violation."""
