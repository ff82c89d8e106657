"""Repeated merges of a table, every few seconds, until a stop event is set.

They can run concurrently with any number of writers and other merges. A claim decides between two merges of the same
parts, and the loser leaves nothing. An idle table costs one listing a round. If the store does not answer, or other
commits always come first, the loop waits longer and longer and continues. Errors that an operator must fix end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from icedb.errors import IceDBError, InvalidOption, OutcomeUnknownError, RetryableError
from icedb.operations.rewrite.merge import PART_BYTES_MAX, MergeReport, Order, merge
from icedb.sql.connections import MIB
from icedb.transaction.table_handle import Handle

__all__ = ["watch"]

# Some seconds of work, so that a stop takes effect soon, and one order does not wait long for the other.
INPUT_PARTS_MAX = 2_000
INPUT_BYTES_MAX = 1024 * MIB
WAIT_MS_MAX = 60_000

#: Called after each merge that changed something.
OnMerge = Callable[[Order, MergeReport], None]
#: Called before each wait, with its reason and its length in milliseconds.
OnWait = Callable[[IceDBError, int], None]


def watch(
    handle: Handle,
    *,
    stop: Event,
    orders: Sequence[Order] = ("newest",),
    every_ms: int = 5_000,
    part_bytes_max: int = PART_BYTES_MAX,
    on_merge: OnMerge,
    on_wait: OnWait,
) -> None:
    """Merge repeatedly until `stop` is set. A merge in progress is finished.

    Several `orders` take turns. If there is more to merge than one merge takes, the next one follows at once, and
    otherwise after `every_ms`. Raises the errors of `Table.merge`, except RetryableError, after which it waits and
    retries. It also continues after OutcomeUnknownError, because the next merge reads the log.
    """
    if every_ms < 1 or not orders:
        raise InvalidOption(
            f"{handle.table}: every_ms is {every_ms} and orders are {orders!r}; give at least 1 ms and one order."
        )
    wait_ms = every_ms
    while not stop.is_set():
        try:
            more = _round(handle, orders, stop, part_bytes_max, on_merge)
        except (RetryableError, OutcomeUnknownError) as error:
            on_wait(error, wait_ms)
            stop.wait(wait_ms / 1000)
            wait_ms = max(every_ms, min(2 * wait_ms, WAIT_MS_MAX))
            continue
        wait_ms = every_ms
        if not more:
            stop.wait(every_ms / 1000)


def _round(handle: Handle, orders: Sequence[Order], stop: Event, part_bytes_max: int, on_merge: OnMerge) -> bool:
    """Merge once for each order, while there is something to merge. Returns whether there is more."""
    for order in orders:
        if stop.is_set():
            return False
        report = merge(
            handle,
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
