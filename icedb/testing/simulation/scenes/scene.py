"""The base of scenes: what a history plays beyond the usual, and what must hold then."""

from __future__ import annotations

from collections.abc import Mapping

from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.request_faults import Trouble
from icedb.testing.simulation.world.setting import Setting
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["USUAL", "Scene"]

#: Operations that every scene mixes with its own.
USUAL = (
    "append",
    "append",
    "column",
    "txn",
    "overwrite",
    "drop",
    "delete",
    "merge",
    "merge",
    "merge log",
    "restore",
    "cleanup",
    "cleanup",
    "sweep",
    "read",
    "read as of",
    "follow",
)


class Scene:
    """One for each history, which it may remember.

    `enter` is called before the first operation, `leave` after the last.

    `crowd` names the operations that run, one that is named twice twice as often. `operations` are those of the scene
    itself.
    """

    setting = Setting()
    crowd: tuple[str, ...] = USUAL
    #: Times that pass between crowds; empty: the usual ones.
    pauses_ms: tuple[int, ...] = ()
    #: The faults that strike; empty: the usual ones.
    troubles: tuple[Trouble, ...] = ()
    #: Whether histories begin with a table that has rows; None: most of them.
    begins: bool | None = None

    def __init__(self) -> None:
        self.operations: Mapping[str, Operation] = {}

    def enter(self, world: SimulatedWorld) -> None:
        """Prepare the world."""

    def leave(self, world: SimulatedWorld) -> None:
        """Check the promises of the scene, and let what it began end. Raises Violation."""
