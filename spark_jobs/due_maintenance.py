"""Maintenance of a table by the program that writes a stream to it: merges (compaction), log merges, cleanup (VACUUM).

No lock is needed: each of these is an exclusive commit with a claim, so another program may maintain the table, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import icedb
from icedb.errors import IceDBError
from icedb.spark.datasource.options import MEMORY_BYTES

__all__ = ["maintain_due", "maintained"]

# Some seconds of work, so that the program ends soon after a stop request. The next round continues.
INPUT_PARTS_MAX = 2_000
INPUT_BYTES_MAX = 1 << 30


def maintain_due(table: icedb.Table) -> dict[str, int]:
    """Do the maintenance that `Table.health` recommends, in this process, with one pass of each kind.

    A merge of small parts uses `TieredMerge`, so that frequent merges rewrite few bytes, and up to 512 MiB of memory.

    Args:
        table: the table.

    Returns:
        The number of objects by the kind of maintenance: merged parts, merged log files, deleted objects.

    Raises:
        IceDBError: as for `Table.merge`, `Table.merge_log` and `Table.cleanup`.
    """
    done: dict[str, int] = {}
    for recommended in table.health().recommendations:
        match recommended.due:
            case "merge_newest" | "merge_oldest":
                report = table.merge(
                    order="newest" if recommended.due == "merge_newest" else "oldest",
                    tiers=icedb.TieredMerge(),
                    input_parts_max=INPUT_PARTS_MAX,
                    input_bytes_max=INPUT_BYTES_MAX,
                    memory_bytes=MEMORY_BYTES,
                )
                done["parts merged"] = done.get("parts merged", 0) + report.merged_parts
            case "merge_log":
                done["log files merged"] = len(table.merge_log().merged_log_files)
            case "cleanup":
                cleaned = table.cleanup()
                done["objects deleted"] = len(cleaned.deleted_parts) + len(cleaned.deleted_log_files)
    return done


@contextmanager
def maintained(table: icedb.Table, *, every_seconds: float, stop: Event, log: logging.Logger) -> Iterator[None]:
    """Do the maintenance that is due in a thread during the block, and once after it unless `stop` is set.

    An error is logged, and the next round tries again: it must not end the stream.

    Args:
        table: the table.
        every_seconds: the time between two rounds in seconds.
        stop: an event that ends the program.
        log: the logger of the program.
    """
    over = Event()
    own = icedb.Table.open(table.uri, storage_options=table.handle.location.storage_options)

    def once() -> None:
        try:
            done = maintain_due(own)
        except IceDBError as error:
            log.warning("%s: the maintenance failed, and the next round tries again: %s", table.uri, error)
        else:
            if done:
                log.info("%s: %s", table.uri, ", ".join(f"{name}: {count:,}" for name, count in done.items()))

    def repeat() -> None:
        while not over.wait(every_seconds):
            once()

    thread = Thread(target=repeat, name="maintenance")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # a running commit ends first
    if not stop.is_set():
        once()
