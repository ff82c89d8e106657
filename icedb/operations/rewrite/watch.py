"""Merge a table every few seconds, until told to stop.

Beside any number of writers and other merges: a claim decides between two that take the same parts, and the loser
writes nothing that stays. A quiet table costs one listing a round. When the store does not answer, or others always
come first, it waits longer and longer and goes on; what somebody must look at ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from icedb.errors import IceDBError, InvalidOption, OutcomeUnknownError, RetryableError
from icedb.operations.rewrite.merge import PART_BYTES_MAX, MergeReport, Order
from icedb.operations.rewrite.merge_loop import MergeableTable
from icedb.sql.connections import MIB

__all__ = ["watch"]

# Some seconds of work: who says stop does not wait long, and a direction not for the other.
INPUT_PARTS_MAX = 2_000
INPUT_BYTES_MAX = 1024 * MIB
WAIT_MS_MAX = 60_000

#: Is told of each merge that did something.
OnMerge = Callable[[Order, MergeReport], None]
#: Is told why it waits, and for how many milliseconds.
OnWait = Callable[[IceDBError, int], None]


def watch(
    table: MergeableTable,
    *,
    stop: Event,
    orders: Sequence[Order] = ("newest",),
    every_ms: int = 5_000,
    part_bytes_max: int = PART_BYTES_MAX,
    on_merge: OnMerge,
    on_wait: OnWait,
) -> None:
    """Merge again and again until `stop` is set; the merge that is under way is finished.

    `orders`: whose parts come first; of several, each gets its turn. While there is more to merge than one merge takes,
    the next follows at once; else after `every_ms`. Raises as `Table.merge`, but for errors that say to try again:
    those are waited out. A commit of which it is not known whether it happened needs no care, for the next merge looks.
    """
    if every_ms < 1 or not orders:
        raise InvalidOption(f"{table.uri}: every_ms is {every_ms} and orders are {orders!r}; give 1 and one at least.")
    wait_ms = every_ms
    while not stop.is_set():
        try:
            more = _round(table, orders, stop, part_bytes_max, on_merge)
        except (RetryableError, OutcomeUnknownError) as error:
            on_wait(error, wait_ms)
            stop.wait(wait_ms / 1000)
            wait_ms = max(every_ms, min(2 * wait_ms, WAIT_MS_MAX))
            continue
        wait_ms = every_ms
        if not more:
            stop.wait(every_ms / 1000)


def _round(table: MergeableTable, orders: Sequence[Order], stop: Event, part_bytes_max: int, on_merge: OnMerge) -> bool:
    """One merge for each order, as long as there is something to merge; whether there is more."""
    for order in orders:
        if stop.is_set():
            return False
        report = table.merge(
            order=order,
            part_bytes_max=part_bytes_max,
            input_parts_max=INPUT_PARTS_MAX,
            input_bytes_max=INPUT_BYTES_MAX,
        )
        if report.merged_parts or report.dropped_groups:
            on_merge(order, report)
        if not report.remaining:  # of either order
            return False
    return True
