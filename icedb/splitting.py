"""Partitions of a batch that are too large for one part become several, of nearly the same number of rows."""

from __future__ import annotations

from itertools import pairwise

from icedb.engine import quote_text
from icedb.staging import Range, Stage

__all__ = ["split_ranges"]

# How well so many neighbouring rows compress says enough of all.
SAMPLE_ROWS = 16_384


def split_ranges(stage: Stage, part_bytes: int) -> list[Range]:
    """The ranges of a stage, split where a part would be larger than about `part_bytes`.

    How many bytes a row takes is measured once, by encoding rows of the longest range.
    """
    longest = max(stage.ranges, key=lambda r: r.rows, default=None)
    if longest is None or longest.rows <= SAMPLE_ROWS:
        return list(stage.ranges)
    rows_max = max(SAMPLE_ROWS, int(part_bytes / _bytes_per_row(stage, longest)))
    return [piece for r in stage.ranges for piece in _split(stage, r, rows_max)]


def _bytes_per_row(stage: Stage, piece: Range) -> float:
    path = stage.folder / "sample.parquet"
    middle = piece.first + (piece.rows - SAMPLE_ROWS) // 2
    where = f"WHERE rowid BETWEEN {middle} AND {middle + SAMPLE_ROWS - 1}"
    query = f"SELECT * FROM staged {where}"
    stage.con.execute(
        f"COPY ({query}) TO {quote_text(str(path))} (FORMAT parquet, COMPRESSION {stage.context.spec.compression})"
    )
    size = path.stat().st_size
    path.unlink()
    return size / SAMPLE_ROWS


def _split(stage: Stage, whole: Range, rows_max: int) -> list[Range]:
    count = -(-whole.rows // rows_max)
    if count == 1:
        return [whole]
    cuts = [whole.first + whole.rows * n // count for n in range(count + 1)]
    return [stage.piece(whole, first, after - 1) for first, after in pairwise(cuts)]
