"""Writers that commit the submissions of many senders in groups, some of them with row ids.

An acknowledged submission is in the table completely and once. A failed one is not in the table, unless the error says
that the outcome is unknown; then it is in the table completely or not at all. Senders of rows with ids retry, with any
writer and with several at a time, until one acknowledges. Each of their rows is in the table once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from icedb.buffering.committing import Committer
from icedb.buffering.ids import Ids
from icedb.buffering.submissions import Submission
from icedb.errors import CommitStateUnknown, InvalidBatch
from icedb.format.records import Marker
from icedb.testing.simulation.scenes.scene import Scene
from icedb.testing.simulation.world.operation_run import OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import read_rows
from icedb.testing.simulation.world.process import Process
from icedb.testing.simulation.world.recovery import run_healthy
from icedb.testing.simulation.world.setting import PARTITIONS
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.table_handle import Handle

__all__ = ["GroupCommits"]

_WAITS_MAX = 4
_WINDOW_MS = 1_000_000


@dataclass(slots=True)
class _Request:
    """Rows that a sender submits together. `is_bad`: they are invalid. `is_uncertain`: the outcome is unknown."""

    rows: list[int]
    partition: str
    is_bad: bool
    is_failed: bool = False
    is_uncertain: bool = False

    @property
    def payload(self) -> list[dict[str, object]]:
        return [{"id": row, "partition": self.partition, "bad": self.is_bad} for row in self.rows]


class GroupCommits(Scene):
    """See the module's docstring."""

    # Without operations that remove rows, which would remove their ids too.
    crowd = ("append", "column", "txn", "merge", "merge", "merge log", "alter", "cleanup", "cleanup", "sweep",
             "read", "follow", "group", "group", "group", *["group with ids"] * 3)  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.operations = {
            "group": Operation("group", self._group, refuses=False),
            "group with ids": Operation("group with ids", self._group_with_ids, refuses=False),
        }
        #: Requests without ids, each submitted once.
        self._once: list[_Request] = []
        #: Requests with ids, which are submitted until a writer acknowledges them.
        self._waiting: list[_Request] = []

    def leave(self, world: SimulatedWorld) -> None:
        """Commit the waiting requests, and check that no failed or partial submission is in the table."""

        def serve(handle: Handle) -> None:
            process = next(p for p in world.processes if p.handle is handle)
            with closing(_PlainIds(handle, "id", window_ms=_WINDOW_MS, ids_max=10_000)) as ids:
                self._commit(world, process, list(self._waiting), ids)

        run_healthy(world, "group with ids", serve)
        if self._waiting:
            raise Violation(f"without faults, a writer did not commit {self._waiting}")
        rows = world.truth.fates.keys()
        for request in self._once:
            present = [row in rows for row in request.rows]
            if any(present) != all(present):
                raise Violation(f"a submission is in the table in part: {request}")
            if any(present) and (request.is_bad or (request.is_failed and not request.is_uncertain)):
                raise Violation(f"a submission failed, and its rows are in the table: {request}")

    def _new(self, task: OperationRun) -> _Request:
        rng = task.world.rng
        return _Request(task.world.new_rows(rng.randint(1, 2)), task.choose(PARTITIONS), is_bad=rng.random() < 0.1)

    def _group(self, task: OperationRun) -> None:
        for _ in range(task.world.rng.randint(1, 2)):
            requests = [self._new(task) for _ in range(task.world.rng.randint(1, 4))]
            self._once += requests
            self._commit(task.world, task.act.process, requests, None)

    def _group_with_ids(self, task: OperationRun) -> None:
        rng = task.world.rng
        with closing(_PlainIds(task.handle, "id", window_ms=_WINDOW_MS, ids_max=10_000)) as ids:
            for _ in range(rng.randint(1, 3)):
                self._waiting += [self._new(task) for _ in range(rng.randint(0, 2))]
                chosen = [r for r in self._waiting if rng.random() < 0.7]
                self._commit(task.world, task.act.process, chosen, ids)

    def _commit(self, world: SimulatedWorld, process: Process, requests: Sequence[_Request], ids: Ids | None) -> None:
        committer = Committer(
            process.handle,
            on_conflict="raise",
            memory_bytes=None,
            ids=ids,
            retry_max_ms=3_600_000,
            give_up=_Patience(process),
        )
        submissions = [Submission(r.payload, len(r.rows), 1) for r in requests]
        committer.commit(submissions)
        for request, submission in zip(requests, submissions, strict=True):
            error = submission.answer.exception()
            if error is None:
                self._acknowledge(world, request)
                continue
            request.is_failed = True
            request.is_uncertain = isinstance(error, CommitStateUnknown)
            if isinstance(error, InvalidBatch) and not request.is_bad:
                raise Violation(f"a submission was rejected because of another one: {request}")
            if request.is_bad and request in self._waiting:
                self._waiting.remove(request)

    def _acknowledge(self, world: SimulatedWorld, request: _Request) -> None:
        if request.is_bad or (lost := [row for row in request.rows if row not in world.truth.fates]):
            raise Violation(f"a submission was acknowledged and is not in the table: {request}, {lost}")
        if request in self._waiting:
            self._waiting.remove(request)


class _Patience(threading.Event):
    """An event that waits by the world's clock, and gives up after some waits."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._waited = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._waited += 1
        if self._waited <= _WAITS_MAX:
            self._process.sleep(int(100 * (timeout or 0)))
        return self._waited > _WAITS_MAX


class _PlainIds(Ids):
    """Ids that are read from plain parts."""

    def _read(self, markers: Sequence[Marker]) -> None:
        rows = [(row,) for row in read_rows(self._handle, [m.key for m in markers])]
        if rows:
            values = ", ".join(f"('{row}')" for (row,) in rows)
            digests = f"SELECT DISTINCT md5_number(id) FROM (VALUES {values}) AS plain(id)"
            self._add(digests, [m.created_ms for m in markers])
        self._seen.update((m.key, m.created_ms) for m in markers)
