"""What can be said of a table's sensors. Making one touches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Thresholds
from icedb.util.arguments import checks_arguments

__all__ = ["CommitsSensor", "MaintenanceSensor"]

#: What a commit becomes in Dagster.
Events = Literal["materialization", "observation"]


@checks_arguments
@dataclass(frozen=True, slots=True)
class MaintenanceSensor:
    """When maintenance is asked for. Raises InvalidOption.

    `thresholds`: what the table should stay below; runs are asked for from half of each on. `interval_s`: seconds
    between two looks, at least. `running`: switched on from the beginning, not only when somebody does it.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    interval_s: int = 30
    running: bool = False

    def __post_init__(self) -> None:
        _check_whole("interval_s", self.interval_s, least=1)


@checks_arguments
@dataclass(frozen=True, slots=True)
class CommitsSensor:
    """What becomes of commits that others made. Raises InvalidOption.

    `events`: what a commit is told as. `interval_s` and `running` are as for `MaintenanceSensor`. `from_beginning`:
    the first look tells all commits whose rows the log still knows one by one; otherwise none that were before it. A
    look with a cursor that cannot be read is a first one; what Dagster knows is not told again. `settle_s`: a commit is
    told when it is so many seconds old, so that a step of Dagster's that made it has told it first; at most half of the
    table's grace period. `events_max`: commits of one look, each with an event for each of its partitions; the next
    look goes on. So `events_max / interval_s` commits a second can be told for long.
    """

    events: Events = "materialization"
    interval_s: int = 30
    running: bool = False
    from_beginning: bool = False
    settle_s: int = 30
    events_max: int = 100

    def __post_init__(self) -> None:
        _check_whole("interval_s", self.interval_s, least=1)
        _check_whole("settle_s", self.settle_s, least=0)
        _check_whole("events_max", self.events_max, least=1)


def _check_whole(name: str, value: int, *, least: int) -> None:
    if value < least:
        raise InvalidOption(f"the sensor's {name} is {value!r}; give a whole number, {least} at least.")
