"""The command that does a recommended kind of maintenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icedb.operations.health.table_health import Due, TableHealth, Thresholds
from icedb.operations.rewrite.merge import PART_BYTES_MAX

__all__ = ["DueCommand", "due_commands"]

#: The name of each kind of maintenance, and the words of the command that does it.
_VERBS: Mapping[Due, tuple[str, tuple[str, ...]]] = {
    "merge_newest": ("merge, newest first", ("merge", "--order", "newest")),
    "merge_oldest": ("merge, oldest first", ("merge", "--order", "oldest")),
    "merge_log": ("merge of log files", ("merge-log",)),
    "cleanup": ("cleanup", ("cleanup",)),
}


@dataclass(frozen=True, slots=True)
class DueCommand:
    """A recommendation with its name and its command, which a user can copy to a shell."""

    name: str
    reason: str
    command: str


def due_commands(
    health: TableHealth, thresholds: Thresholds, *, uri: str, connection: Sequence[str] = ()
) -> list[DueCommand]:
    """Return the recommendations, the most urgent first. The commands contain `uri` and the flags in `connection`."""
    commands = []
    for recommended in health.recommendations:
        name, words = _VERBS[recommended.due]
        command = shlex.join(["icedb", *words, uri, *connection, *_flags(recommended.due, thresholds)])
        commands.append(DueCommand(name, recommended.reason, command))
    return commands


def _flags(due: Due, thresholds: Thresholds) -> list[str]:
    """Return the flags with which a merge takes the parts that the thresholds count as small."""
    if due not in ("merge_newest", "merge_oldest") or thresholds.part_bytes_max == PART_BYTES_MAX:
        return []
    return ["--part-bytes-max", str(thresholds.part_bytes_max)]
