"""A warning about a Spark job that published far more parts (data files) than its rows need."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.counts import size_text

__all__ = ["parts_needed", "warn_of_small_parts"]

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
# A merge (compaction) skips parts from this size on.
PART_BYTES = 128 * MIB
# Opening a part costs a reader about as much as reading this number of bytes. Spark's own scan assumes the same.
OPEN_COST_BYTES = 4 * MIB
# Fewer parts are one small merge.
PARTS_MIN = 100
# Parts for each part that is needed. A few tasks that each write all partitions stay below it.
RATIO_MIN = 4


def parts_needed(parts: Iterable[Part]) -> int:
    """Return the number of parts after a merge of these: in each partition, one for each 128 MiB. Pure."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for part in parts:
        sizes[part.partition] += part.bytes
    return sum(max(1, ceil(size / PART_BYTES)) for size in sizes.values())


def warn_of_small_parts(handle: Handle, parts: Sequence[Part]) -> None:
    """Log a warning about the parts of a job if opening them costs more than reading them, and a shuffle avoids it.

    That is so for at least 100 parts with a mean size below 4 MiB, of which a merge would leave at most a quarter.
    """
    needed, mean = parts_needed(parts), sum(p.bytes for p in parts) / max(1, len(parts))
    if len(parts) < PARTS_MIN or len(parts) < RATIO_MIN * needed or mean >= OPEN_COST_BYTES:
        return
    # The partitions of an insert query's result are unknown before it runs, so there is no shuffle by them.
    query = "in fewer tasks: frame.coalesce(n)"
    shuffle = f"with icedb.spark.write(frame, '{handle.table}', distribution='partition')"
    logger.warning(
        "%s: the job wrote %s parts (data files) with a mean size of %s, and %s would be enough: each task writes a "
        "part for each partition that it has rows of. Write %s. Merge the existing parts with Table.merge.",
        handle.table,
        f"{len(parts):,}",
        size_text(mean),
        f"{needed:,}",
        query if handle.spec.insert_query else shuffle,
    )
