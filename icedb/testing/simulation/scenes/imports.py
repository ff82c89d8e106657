"""Files of other programs next to the table, which several processes import at the same time while new ones appear.

Each file is in the table once or not at all, and none is deleted or changed. A file that no import has taken is taken
by the next one, which otherwise raises an error because it cannot know whether the file was imported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from icedb.errors import InvalidOption
from icedb.operations.importing.copy_files import CopyTask
from icedb.operations.importing.import_files import ImportReport, import_files
from icedb.operations.importing.inspect_files import ExamineTask, FooterTask
from icedb.operations.importing.parquet_footer import FileContent, Footer
from icedb.operations.rewrite.engine import DistributedTask, Item, ResourceLimits, Result
from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.world.operation_run import OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import rows_of
from icedb.testing.simulation.world.recovery import run_healthy
from icedb.testing.simulation.world.setting import Setting
from icedb.testing.simulation.world.truth import Violation
from icedb.testing.simulation.world.world import SimulatedWorld
from icedb.transaction.table_handle import Handle

__all__ = ["Imports"]

_FOLDER = "files/"
_ADDRESS = "memory://simulation/files"


class Imports(Scene):
    """See the module's docstring."""

    setting = Setting(sources=(_FOLDER,))
    crowd = (*USUAL, "import", "import", "import", "new file", "new file")

    def __init__(self) -> None:
        super().__init__()
        self.operations = {
            # A rejected import imports nothing itself, but another one may have imported the same files.
            "import": Operation("import", self._import, refuses=False),
            "new file": Operation("new file", self._new_file, changes=False),
        }
        self._bodies: dict[str, bytes] = {}

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        for _ in range(3):
            self._put_file(world)

    def leave(self, world: SimulatedWorld) -> None:
        """Import the remaining files, and check that no file was changed."""
        run_healthy(world, "import", lambda handle: self._import_rest(world, handle))
        for key, body in self._bodies.items():
            if key not in world.store.objects or world.store.objects[key].body != body:
                raise Violation(f"'{key}' was changed by an import")

    def _put_file(self, world: SimulatedWorld) -> None:
        key = f"{_FOLDER}{len(self._bodies)}.parquet"
        self._bodies[key] = json.dumps(world.new_rows(world.rng.randint(1, 3))).encode()
        world.store.put(key, self._bodies[key])

    def _new_file(self, task: OperationRun) -> None:
        task.handle.store.head(task.handle.keys.spec)  # a turn, so that others are in flight
        self._put_file(task.world)

    def _import(self, task: OperationRun) -> None:
        before = set(self._bodies)
        report = import_files(task.handle, _ADDRESS, engine=_PlainEngine())
        task.must_have_landed(report.commit)
        self._must_be_there(task.world, report, before)

    def _must_be_there(self, world: SimulatedWorld, report: ImportReport, keys: set[str]) -> None:
        """Check that the files from before the import were imported, by it or by another one. Raises Violation."""
        if lost := [key for key in sorted(keys) if not set(rows_of(self._bodies[key])) <= world.truth.fates.keys()]:
            raise Violation(f"an import succeeded without {lost}: {[str(s) for s in report.skipped]}")

    def _import_rest(self, world: SimulatedWorld, handle: Handle) -> None:
        with suppress(InvalidOption):  # files older than the horizon, about which the log has no information
            self._must_be_there(world, import_files(handle, _ADDRESS, engine=_PlainEngine()), set(self._bodies))


class _PlainEngine:
    """An engine that reads plain files instead of Parquet, sequentially, and copies them as the library does."""

    def run(self, handle: Handle, work: DistributedTask[Item, Result], items: Sequence[Item]) -> list[Result]:
        """See Engine."""
        results: list[object] = []
        match work:
            case FooterTask():
                bodies = [handle.store.get(file.key).body for file in items]  # type: ignore[attr-defined]
                results += [Footer(len(rows_of(body)), {"id": "BIGINT"}, frozenset()) for body in bodies]
            case ExamineTask():
                results += [FileContent(msgspec.UNSET, ((),), None) for _ in items]
            case CopyTask():
                results += work.do(handle, items, ResourceLimits()) if items else []  # type: ignore[arg-type]
        return results  # type: ignore[return-value]
