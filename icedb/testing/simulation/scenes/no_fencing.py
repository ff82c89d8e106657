"""A store that overwrites, with `fencing="none"`: one process at a time maintains the table, and any number append.

All invariants hold, with two restrictions. An append with a new column is an exclusive commit, so only the maintainer
may make it. And no put may land after its client has given up, because the store rejects neither of two log files of
one epoch.
"""

from __future__ import annotations

from icedb.testing.simulation.scenes.scene import Scene
from icedb.testing.simulation.world.operation_run import OperationRun
from icedb.testing.simulation.world.operations import OPERATIONS, Operation
from icedb.testing.simulation.world.process import Act
from icedb.testing.simulation.world.request_faults import Trouble
from icedb.testing.simulation.world.setting import Setting

__all__ = ["NoFencing"]

_MAINTENANCE = ("column", "overwrite", "drop", "delete", "upsert", "rewrite", "merge", "merge", "merge log", "alter",
                "restore", "cleanup", "cleanup", "sweep", "pin", "unpin")  # fmt: skip


class NoFencing(Scene):
    """See the module's docstring."""

    setting = Setting(fencing="none", overwrites=True)
    crowd = ("append", "append", "append", "read", "read", "read as of", "follow", *["maintain"] * 8)
    troubles = tuple(t for t in Trouble if t is not Trouble.DELAY)
    #: The first append adds the columns.
    begins = True

    def __init__(self) -> None:
        super().__init__()
        self.operations = {"maintain": Operation("maintain", self._maintain, refuses=False)}
        self._maintainer: Act | None = None

    def _is_free(self) -> bool:
        """Return whether no process maintains the table, because the last one has ended or crashed."""
        return self._maintainer is None or self._maintainer.finished or self._maintainer.process.dead

    def _maintain(self, task: OperationRun) -> None:
        for _ in range(task.world.rng.randint(1, 3)):
            task.handle.store.head(task.handle.keys.spec)  # a turn, so that others are in flight
            if not self._is_free() and self._maintainer is not task.act:
                return
            self._maintainer = task.act
            OPERATIONS[task.choose(_MAINTENANCE)].run(task)
