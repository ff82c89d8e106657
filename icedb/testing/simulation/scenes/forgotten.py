"""Transactions that the log forgets, and applications that retry them: soon, or after too long a pause.

Each attempt writes rows of its own, so that the model can see which attempt was committed. Of each transaction, at most
one attempt is committed while the log keeps it; after `txn_retention_ms` another one may be. In any case, an old claim
never brings back dead parts. A claim that no cleanup deleted in time is kept, with the parts that it names.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial

from icedb.format.records import LogFile
from icedb.operations.commits.publish import publish_append
from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.world.operation_run import BASE_SCHEMA, OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import write_rows
from icedb.testing.simulation.world.recovery import run_healthy
from icedb.testing.simulation.world.setting import PARTITIONS, TIMING, Setting
from icedb.testing.simulation.world.truth import Landing, Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.table_handle import Handle

__all__ = ["Forgotten"]

#: Nearly the minimum, so that cleanup is often too late to delete a claim while the log keeps its transaction.
RETENTION_MS = TIMING.grace_ms + 500
_APPLICATIONS = ("pauses", "retries")


class Forgotten(Scene):
    """See the module's docstring."""

    setting = Setting(timing=replace(TIMING, txn_retention_ms=RETENTION_MS), keeps_claims=True)
    # Without the usual `txn`, whose attempts have the same rows, so that a second commit would seem to be an error.
    crowd = (*(name for name in USUAL if name != "txn"), "late txn", "late txn", "late txn", "late txn")
    pauses_ms = (0, 300, TIMING.grace_ms, RETENTION_MS + 300)

    def __init__(self) -> None:
        super().__init__()
        self.operations = {"late txn": Operation("late txn", self._try, refuses=False)}
        self._next: dict[str, int] = defaultdict(int)
        #: Row -> the transaction of the attempt with this row, and the begin of the attempt.
        self._of_row: dict[int, tuple[str, int, int]] = {}
        #: Application -> the sequence and time of each commit.
        self._committed: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        self._fates = world.truth.fates
        world.watchers.append(self._check_landing)

    def leave(self, world: SimulatedWorld) -> None:
        """Continue each application, so that its earlier claims can be deleted."""
        for application in list(self._next):
            run_healthy(world, "late txn", partial(self._go_on, world, application))

    def _try(self, task: OperationRun) -> None:
        """Try the next transaction of an application, or an earlier one again."""
        application = task.choose(_APPLICATIONS)
        sequence = max(0, self._next[application] - task.world.rng.choice((0, 0, 1, 1, 2, 3)))
        rows = task.new_rows(task.choose(PARTITIONS))
        began_ms = task.world.clock.now_ms()
        self._of_row |= {row: (application, sequence, began_ms) for of in rows.values() for row in of}
        commit = publish_append(task.handle, task.write(rows, BASE_SCHEMA), txn=(application, sequence))
        self._must_be_committed(application, sequence)
        if not commit.repeated:
            task.must_have_landed(commit)
        self._next[application] = max(self._next[application], sequence + 1)

    def _go_on(self, world: SimulatedWorld, application: str, handle: Handle) -> None:
        sequence = self._next[application] + 1
        rows = {PARTITIONS[0]: world.new_rows(1)}
        self._of_row |= {row: (application, sequence, world.clock.now_ms()) for row in rows[PARTITIONS[0]]}
        publish_append(handle, write_rows(handle, rows, BASE_SCHEMA), txn=(application, sequence))
        self._must_be_committed(application, sequence)

    def _must_be_committed(self, application: str, sequence: int) -> None:
        if not any(committed >= sequence for committed, _ in self._committed[application]):
            raise Violation(f"transaction {application} {sequence} was reported as committed and was not")

    def _check_landing(self, file: LogFile, landing: Landing) -> None:
        # A row that a restore brings back has had an earlier life.
        first = [row for row in landing.added if len(self._fates[row]) == 1]
        transactions = {self._of_row[row] for row in first if row in self._of_row}
        for application, sequence, began_ms in transactions:
            # A later sequence counts if it was committed before the attempt began, because they are committed in order.
            before = [
                t_ms
                for committed, t_ms in self._committed[application]
                if committed == sequence or (committed > sequence and t_ms < began_ms - TIMING.max_skew_ms)
            ]
            if before and file.t_ms - max(before) < RETENTION_MS - 2 * TIMING.max_skew_ms:
                raise Violation(
                    f"'{landing.key}' commits transaction {application} {sequence} again, "
                    f"{file.t_ms - max(before)} ms later"
                )
            self._committed[application].append((sequence, file.t_ms))
