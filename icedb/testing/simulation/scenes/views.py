"""A table that is a view of another one: inserts, with and without a transaction, feed both, and refreshes rebuild it.

The world's table is the view, so all invariants of a table hold for it. In addition:

- The view has no row that its source never had.
- A row is in the view once, however often a transaction is retried, also after a refresh.
- After all transactions have completed, a refresh makes the view equal to its source.

As the documentation of views requires, no process inserts during a refresh. No put lands after its client gave up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from icedb.errors import CorruptLog, StaleView
from icedb.format.records import LogFile
from icedb.format.table_spec import TableSpec, ViewSpec, encode_spec
from icedb.operations.retention.cleanup import cleanup
from icedb.operations.rewrite.merge import merge
from icedb.operations.write.insert import insert
from icedb.operations.write.views import refresh_view
from icedb.storage.location import Location
from icedb.testing.simulation.scenes.scene import Scene
from icedb.testing.simulation.world.operation_run import OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import plain_rewriter
from icedb.testing.simulation.world.process import Act, Process
from icedb.testing.simulation.world.recovery import run_healthy
from icedb.testing.simulation.world.request_faults import Trouble
from icedb.testing.simulation.world.setting import PARTITIONS, Setting
from icedb.testing.simulation.world.simulated_store import ProcessStore
from icedb.testing.simulation.world.truth import Landing, Truth, Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.idempotent_append import Txn
from icedb.transaction.table_handle import Handle

__all__ = ["Views"]

_SOURCE = Location("memory", "simulation", "source")
_VIEW = "table"
_SPEC = TableSpec(id="source", views=(ViewSpec(_VIEW, "SELECT * FROM _rows"),), timing=Setting().timing)
_APPLICATIONS = ("feed", "job")


class Views(Scene):
    """See the module's docstring."""

    setting = Setting(sources=("source/",))
    crowd = (
        *["insert"] * 4,
        *["insert txn"] * 6,
        *["refresh"] * 6,
        *("source merge", "source cleanup", "merge", "merge", "merge log", "cleanup", "cleanup", "sweep", "alter"),
        # Without `follow`: for a consumer of changes, a refresh brings all rows again, as every overwrite does.
        *("read", "read", "read as of"),
    )
    troubles = tuple(t for t in Trouble if t is not Trouble.DELAY)
    begins = False

    def __init__(self) -> None:
        super().__init__()
        self.operations = {
            "insert": Operation("insert", self._insert, refuses=False),
            "insert txn": Operation("insert txn", self._insert_txn, refuses=False),
            "refresh": Operation("refresh", self._refresh, refuses=False),
            "source merge": Operation("source merge", self._merge_source, refuses=False),
            "source cleanup": Operation("source cleanup", self._clean_source, refuses=False),
        }
        self._source = Truth(_SOURCE.keys)
        self._handles: dict[str, Handle] = {}
        self._inserting: list[Act] = []
        self._refreshing: list[Act] = []
        self._next = dict.fromkeys(_APPLICATIONS, 0)
        self._batches: dict[Txn, dict[str, list[int]]] = {}

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        self._world = world
        world.store.put(_SOURCE.keys.spec, encode_spec(_SPEC))
        landed, deleted = world.store.landed, world.store.deleted
        world.store.landed = lambda key, body: (
            self._note(key, body) if key.startswith(f"{_SOURCE.prefix}/") else landed(key, body)
        )
        world.store.deleted = lambda key, stored_ms: (
            self._note_deletion(key) if key.startswith(f"{_SOURCE.prefix}/") else deleted(key, stored_ms)
        )
        world.watchers.append(self._check_landing)

    def leave(self, world: SimulatedWorld) -> None:
        """Complete the batch of each application, then check that a refresh makes view and source equal."""
        for application in _APPLICATIONS:
            run_healthy(world, "insert txn", partial(self._complete, application))
        run_healthy(world, "refresh", lambda handle: refresh_view(self._of(self._process(handle)), _VIEW))
        if difference := world.truth.rows() ^ self._source.rows():
            raise Violation(f"after a refresh, view and source differ in {sorted(difference)}")

    # ------------------------------------------------------------------------------------ the source

    def _note(self, key: str, body: bytes) -> None:
        world = self._world
        try:
            if key.startswith(_SOURCE.keys.data_prefix):
                self._source.part_landed(key, body, now_ms=world.clock.now_ms())
            elif key.startswith(_SOURCE.keys.log_prefix):
                self._source.log_landed(key, body, step=world.step, now_ms=world.clock.now_ms())
        except (Violation, CorruptLog) as violation:
            world.violate(f"source: {violation}")

    def _note_deletion(self, key: str) -> None:
        if key in self._source.live:
            self._world.violate(f"source: the object of the live part '{key}' was deleted")

    def _check_landing(self, file: LogFile, landing: Landing) -> None:
        if ghosts := landing.added - self._source.fates.keys():
            raise Violation(f"'{landing.key}' shows rows in the view that its source never had: {sorted(ghosts)}")

    def _process(self, handle: Handle) -> Process:
        return next(p for p in self._world.processes if p.handle is handle)

    def _of(self, process: Process) -> Handle:
        """Return the source, as this process has it open."""
        if process.name not in self._handles:
            clock = process.handle.clock
            handle = Handle.of(ProcessStore(self._world.store, _SOURCE, process), _SPEC, clock=clock)
            process.other_keys = (_SOURCE.keys,)
            self._handles[process.name] = replace(handle, writer=f"{process.name}-{clock.new_id()[:12]}")
        return self._handles[process.name]

    # ------------------------------------------------------------------------------------ operations

    def _put(self, task: OperationRun, rows: dict[str, list[int]], txn: Txn | None) -> bool:
        """Insert, unless a refresh runs. Return whether view and source have the rows."""
        if any(_is_alive(act) for act in self._refreshing):
            task.handle.read()
            return False
        self._inserting.append(task.act)
        try:
            insert(self._of(task.act.process), rows, txn=txn)
        except StaleView:
            self._must_have(self._source, rows, "the source")
            return False
        finally:
            self._inserting.remove(task.act)
        self._must_have(self._source, rows, "the source")
        self._must_have(self._world.truth, rows, "the view")
        return True

    def _must_have(self, truth: Truth, rows: dict[str, list[int]], where: str) -> None:
        if missing := [row for of in rows.values() for row in of if row not in truth.fates]:
            raise Violation(f"rows {missing} were inserted, and {where} lacks them")

    def _insert(self, task: OperationRun) -> None:
        self._put(task, task.new_rows(task.choose(PARTITIONS)), None)

    def _insert_txn(self, task: OperationRun) -> None:
        application = task.choose(_APPLICATIONS)
        txn = application, self._next[application]
        rows = self._batches.setdefault(txn, task.new_rows(task.choose(PARTITIONS)))
        if self._put(task, rows, txn):
            self._next[application] = max(self._next[application], txn[1] + 1)

    def _complete(self, application: str, handle: Handle) -> None:
        """Insert the batch that was not reported as committed, and one more, so that earlier claims can be deleted."""
        for _ in range(2):
            txn = application, self._next[application]
            rows = self._batches.setdefault(txn, {PARTITIONS[0]: self._world.new_rows(1)})
            insert(self._of(self._process(handle)), rows, txn=txn)
            self._must_have(self._source, rows, "the source")
            self._must_have(self._world.truth, rows, "the view")
            self._next[application] += 1

    def _refresh(self, task: OperationRun) -> None:
        if any(_is_alive(act) for act in (*self._inserting, *self._refreshing)):
            task.handle.read()
            return
        self._refreshing.append(task.act)
        try:
            task.must_have_landed(refresh_view(self._of(task.act.process), _VIEW))
        finally:
            self._refreshing.remove(task.act)

    def _merge_source(self, task: OperationRun) -> None:
        merge(self._of(task.act.process), rewriter=plain_rewriter)

    def _clean_source(self, task: OperationRun) -> None:
        cleanup(self._of(task.act.process))


def _is_alive(act: Act) -> bool:
    return not (act.finished or act.process.dead)
