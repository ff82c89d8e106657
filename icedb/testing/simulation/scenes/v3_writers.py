"""Programs of IceDB v3 append beside ours, and read.

They know nothing of epochs, claims, log tombstones and counted lines. They bring columns without a claim, but no
second type: that makes a table unreadable, by the page. Their bytes are made here, and their reading is done here, both
without the code under test.
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
#: Not only Hive style.
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
        raise Violation(f"the store confirmed '{key}', which is not there")


def _same_column(task: OperationRun) -> None:
    """A program of ours brings a column that a program of v3 may be bringing."""
    rows = task.new_rows(task.choose(PARTITIONS))
    written = task.write(rows, {**BASE_SCHEMA, task.choose(_COLUMNS): "INTEGER"})
    task.must_have_added(publish_append(task.handle, written), rows)


def put_v3_batch(
    task: OperationRun, rows: dict[str, list[int]], schema: dict[str, str], *, ahead_ms: int = 0
) -> str | None:
    """Put parts and a log file as v3 does; its key, or None if the program was asleep for too long and gave up.

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
        return None  # not promised: such a pause, in a program that does not look at the age of its parts
    t_ms = clock.now_ms() + ahead_ms
    header = {"v": world.rng.choice((1, "1")), "t": t_ms, "sch": 1, "f": 2}
    lines = [header, schema, *({**m, "t": t_ms} for m in markers)]
    # The program's own number keeps two of one millisecond apart, as hosts' names do.
    key = f"table/_log/{t_ms}_{task.act.name.rpartition('#')[2]}-{world.rng.choice(_HOSTS)}.jsonl"
    store.overwrite(key, "\n".join(map(json.dumps, lines)).encode())
    return key


def live_to_v3(world: SimulatedWorld) -> set[str]:
    """The parts that a program of v3 takes for live: the last marker decides, in the order of the log files' keys."""
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
