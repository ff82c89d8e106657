"""Programs of IceDB v3 that append to the same table and read it.

They use no epochs, claims, log tombstones and line counts. They add columns without a claim, but no conflicting types,
which would make the table unreadable as documented. This module encodes and reads their bytes without the code under
test.
"""

from __future__ import annotations

import json

from icedb.format.records import LogFile
from icedb.operations.commits.publish import publish_append
from icedb.testing.simulation.scenes.scene import USUAL, Scene
from icedb.testing.simulation.world.operation_run import BASE_SCHEMA, OperationRun
from icedb.testing.simulation.world.operations import Operation
from icedb.testing.simulation.world.plain_parts import body_of
from icedb.testing.simulation.world.setting import PARTITIONS, TIMING
from icedb.testing.simulation.world.truth import Landing, Violation
from icedb.testing.simulation.world.world import SimulatedWorld

__all__ = ["V3Writers", "live_to_v3", "put_v3_batch"]

#: A host's name may hold an underscore, or end like the name of an exclusive commit.
_HOSTS = ("v3host", "my_host", "v3.e2", "m_.e9")
#: Including a path that is not Hive style.
_V3_PARTITIONS = (*PARTITIONS, "2026/11")
_COLUMNS = ("v0", "v1", "v2")


class V3Writers(Scene):
    """See the module's docstring."""

    crowd = (*USUAL, "v3 append", "v3 append", "v3 append", "same column")

    def __init__(self) -> None:
        super().__init__()
        self.operations = {
            "v3 append": Operation("v3 append", _append, refuses=False),
            "same column": Operation("same column", _same_column),
        }

    def enter(self, world: SimulatedWorld) -> None:
        """See Scene."""
        world.watchers.append(lambda file, landing: _check_v3_readers(world, file, landing))


def _append(task: OperationRun) -> None:
    rows = task.new_rows(*dict.fromkeys((task.choose(_V3_PARTITIONS), task.choose(_V3_PARTITIONS))))
    columns = {task.choose(_COLUMNS): "INTEGER"} if task.world.rng.random() < 0.4 else {}
    key = put_v3_batch(task, rows, {**BASE_SCHEMA, **columns})
    if key is not None and key not in task.world.truth.landings:
        raise Violation(f"the store confirmed '{key}', which does not exist")


def _same_column(task: OperationRun) -> None:
    """Append with a column that a program of v3 may add at the same time."""
    rows = task.new_rows(task.choose(PARTITIONS))
    written = task.write(rows, {**BASE_SCHEMA, task.choose(_COLUMNS): "INTEGER"})
    task.must_have_added(publish_append(task.handle, written), rows)


def put_v3_batch(
    task: OperationRun, rows: dict[str, list[int]], schema: dict[str, str], *, ahead_ms: int = 0
) -> str | None:
    """Put parts and a log file as v3 does. Return its key, or None if the program slept too long and gave up.

    `ahead_ms`: how far the program's clock is ahead.
    """
    store, clock, world = task.act.process.store, task.handle.clock, task.world
    began_ms = clock.now_ms()
    markers = []
    for partition, numbers in rows.items():
        key, body = f"table/_data/{partition}/{clock.new_id()}.parquet", body_of(numbers, schema)
        store.overwrite(key, body)
        markers.append({"p": key, "b": len(body)})
    if clock.now_ms() - began_ms > TIMING.part_timeout_ms:
        return None  # such a pause is not supported in a program that does not check the age of its parts
    t_ms = clock.now_ms() + ahead_ms
    header = {"v": world.rng.choice((1, "1")), "t": t_ms, "sch": 1, "f": 2}
    lines = [header, schema, *({**m, "t": t_ms} for m in markers)]
    # The number of the actor distinguishes two log files of one millisecond, as host names do.
    key = f"table/_log/{t_ms}_{task.act.name.rpartition('#')[2]}-{world.rng.choice(_HOSTS)}.jsonl"
    store.overwrite(key, "\n".join(map(json.dumps, lines)).encode())
    return key


def live_to_v3(world: SimulatedWorld) -> set[str]:
    """Return the parts that are live to a program of v3, by the last marker in the order of the log files' keys."""
    last = {}
    for key in sorted(k for k in world.store.keys(world.location.keys.log_prefix) if k not in world.truth.returned):
        lines = world.store.objects[key].body.decode().split("\n")
        for line in lines[json.loads(lines[0]).get("f", len(lines)) :]:
            marker = json.loads(line)
            last[marker["p"]] = marker.get("tmb")
    return {key for key, tombstoned_ms in last.items() if tombstoned_ms is None}


def _check_v3_readers(world: SimulatedWorld, file: LogFile, landing: Landing) -> None:
    if wrong := live_to_v3(world) ^ world.truth.live:
        raise Violation(f"after '{landing.key}' landed, a program of v3 sees or lacks {sorted(wrong)}")
