"""Upserts on plain parts: one new row replaces all rows with its key, which is its remainder divided by three."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from icedb.format.records import Marker
from icedb.operations.rewrite.rewriter import Rewrite
from icedb.operations.upsert.row_changes import Searched
from icedb.storage.parts import Part
from icedb.testing.simulation.world.plain_parts import put_rows, read_rows
from icedb.transaction.table_handle import Handle
from icedb.writer.part_writer import WrittenParts, discard

__all__ = ["PlainChangedRows", "key_of"]


def key_of(row: int) -> int:
    """Return the key of a row."""
    return row % 3


@dataclass(slots=True)
class PlainChangedRows:
    """Replace `icedb.operations.upsert.matched_rows.MatchedRows`.

    `put` puts the new row. With `skip`, the row is only inserted if no row has its key.
    """

    handle: Handle
    row: int
    skip: bool
    put: Callable[[], WrittenParts]
    #: The key of a part -> the places of its rows with the key.
    found: dict[str, list[int]] = field(default_factory=dict)

    def restart(self, schema: Mapping[str, str]) -> None:
        """See ChangedRows."""
        self.found.clear()

    def search(self, parts: Sequence[Part]) -> Searched:
        """See ChangedRows."""
        rows = 0
        for part in parts:
            stored = read_rows(self.handle, [part.key])
            places = [n for n, row in enumerate(stored) if key_of(row) == key_of(self.row) and row != self.row]
            if places:
                self.found[part.key] = places
            rows += len(places)
        return Searched(len(parts), rows)

    def forget(self, keys: Collection[str]) -> int:
        """See ChangedRows."""
        return sum(len(self.found.pop(key, ())) for key in keys)

    def changing(self) -> Mapping[str, bytes]:
        """See ChangedRows."""
        return {} if self.skip else {key: np.asarray(n, np.int64).tobytes() for key, n in sorted(self.found.items())}

    def counts(self) -> Mapping[str, int]:
        """See ChangedRows."""
        return {"matching_rows": sum(map(len, self.found.values()))}

    def write(self, *, dry_run: bool) -> WrittenParts:
        """See ChangedRows."""
        return WrittenParts({}, (), self.handle.clock.now_ms()) if self.skip and self.found else self.put()

    def rewrite(self, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
        """See ChangedRows."""
        keys = [self.handle.keys.part(r.partition, self.handle.clock.new_id()) for r in rewrites]
        try:
            return [self._rewrite(key, rewrite) for key, rewrite in zip(keys, rewrites, strict=True)]
        except BaseException:
            discard(self.handle.store, keys)
            raise

    def _rewrite(self, key: str, rewrite: Rewrite) -> Marker | None:
        rows = read_rows(self.handle, [p.key for p in rewrite.inputs])
        kept = [row for place, row in enumerate(rows) if place not in rewrite.dropped]
        return put_rows(self.handle, key, kept) if kept else None
