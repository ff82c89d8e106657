"""The facts about parts that manifests list, by column: objects of a hundred thousand parts take longer to make than
their entries to encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icedb.format.records import Stats
from icedb.reader.lazy_parts import LiveParts
from icedb.sql.column_stats import DecodedBounds, decoded_bounds
from icedb.storage.parts import Part

__all__ = ["DataFiles", "uncounted"]


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Parts, by column. Times are unix milliseconds."""

    keys: Sequence[str]
    #: The addresses by which readers open them.
    paths: Sequence[str]
    created_ms: Sequence[int]
    bytes: Sequence[int]
    rows: Sequence[int]
    stats: Sequence[Stats]
    superseded: Sequence[bool]

    @classmethod
    def of(cls, parts: Sequence[Part], rows: Mapping[str, int]) -> DataFiles:
        """Return the facts about parts. `rows` has the row counts that the log does not have, by key."""
        if not isinstance(parts, LiveParts):
            return cls(
                [p.key for p in parts],
                [p.path for p in parts],
                [p.created_ms for p in parts],
                [p.bytes for p in parts],
                [rows[p.key] if p.rows is None else p.rows for p in parts],
                [p.stats for p in parts],
                [p.tombstoned_ms is not None for p in parts],
            )
        markers = parts.markers
        keys: list[str] = markers.key_texts().to_pylist()
        counts = zip(keys, markers.values_of("rows"), strict=True)
        stats = markers.column("stats", pa.binary()).to_pylist()
        return cls(
            keys,
            parts.paths(keys),
            list(markers.values_of("created_ms")),
            list(markers.values_of("bytes")),
            [rows[key] if count is None else count for key, count in counts],
            [msgspec.UNSET if one is None else msgspec.Raw(one) for one in stats],
            [t is not None for t in markers.values_of("tombstoned_ms")],
        )

    def bounds(self, columns: Mapping[str, str]) -> dict[str, list[DecodedBounds | None]]:
        """Return the bounds of those columns that have any, for each part. `columns` have DuckDB types.

        A superseded part has no bounds that are texts. Its column may have had another type, in which texts have
        another order. The log does not tell, because a repair of the type replaces the log files that recorded it. So
        the manifests of an earlier snapshot have fewer bounds if they are made after a merge. A document of an export
        does not change thereby: it refers to the manifests that were made first.
        """
        by_part = decoded_bounds(self.stats, columns)
        of_columns: dict[str, list[DecodedBounds | None]] = {}
        for column, values in zip(columns, zip(*by_part, strict=True), strict=bool(by_part)):
            of_parts = (
                [
                    one and (None if dead and _is_text(one) else one)
                    for one, dead in zip(values, self.superseded, strict=True)
                ]
                if any(self.superseded)
                else values
            )
            if any(of_parts):
                of_columns[column] = list(of_parts)
        return of_columns


def uncounted(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts whose rows the log does not count."""
    if not isinstance(parts, LiveParts):
        return [p for p in parts if p.rows is None]
    is_unknown = parts.markers.column("rows", pa.int64()).is_null()
    return parts.chosen(pc.indices_nonzero(is_unknown).to_pylist())


def _is_text(of_part: DecodedBounds) -> bool:
    return isinstance(of_part[0], str) or isinstance(of_part[1], str)
