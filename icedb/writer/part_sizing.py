"""Splitting of large partitions of a batch into several parts with nearly the same number of rows."""

from __future__ import annotations

from itertools import pairwise

from icedb.writer.staged_batch import PartitionRange, StagedBatch

__all__ = ["split_ranges"]

# The number of adjacent rows by whose compression the size of a part is estimated.
SAMPLE_ROWS = 16_384


def split_ranges(stage: StagedBatch, part_bytes: int) -> list[PartitionRange]:
    """Return the ranges of a staged batch, split where a part would be larger than about `part_bytes`.

    The size of a row is measured once, by encoding rows of the longest range. Raises DuckDB's errors.
    """
    longest = max(stage.ranges, key=lambda r: r.rows, default=None)
    if longest is None or _is_small(stage, longest, part_bytes):
        return list(stage.ranges)
    rows_max = max(1, int(part_bytes / _bytes_per_row(stage, longest)))
    return [piece for r in stage.ranges for piece in _split(r, rows_max)]


def _is_small(stage: StagedBatch, piece: PartitionRange, part_bytes: int) -> bool:
    """Return whether the range fits by its size in Arrow, which is an upper bound of its size in Parquet."""
    return stage.bytes is not None and stage.bytes * piece.rows <= part_bytes * stage.rows


def _bytes_per_row(stage: StagedBatch, piece: PartitionRange) -> float:
    rows = min(SAMPLE_ROWS, stage.spec.row_group_rows, piece.rows)
    sample = PartitionRange(piece.first + (piece.rows - rows) // 2, rows, piece.partition)
    path = None if stage.is_encodable else stage.folder / "sample.parquet"
    part = stage.encode(stage.read(sample.first, rows), sample, stage.settings(), path)
    if path is not None:
        path.unlink()
    return part.file.bytes / rows


def _split(whole: PartitionRange, rows_max: int) -> list[PartitionRange]:
    count = -(-whole.rows // rows_max)
    cuts = [whole.rows * n // count for n in range(count + 1)]
    return [PartitionRange(whole.first + first, after - first, whole.partition) for first, after in pairwise(cuts)]
