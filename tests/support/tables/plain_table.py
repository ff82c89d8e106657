"""A table without Parquet, for tests of the protocol: its parts are the simulation's lists of row numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow.parquet as pq

from icedb import Commit, Table
from icedb.operations.commits.publish import publish_append, publish_overwrite
from icedb.operations.rewrite.merge import MergeReport, merge
from icedb.storage.obstore_store import ObjectStore
from icedb.testing import ClockedStore, check_sound, open_table
from icedb.testing.simulation.world.plain_parts import plain_rewriter, rows_of, write_rows
from icedb.transaction.idempotent_append import Txn, is_recorded, repeated
from icedb.util.clock import Clock
from icedb.writer.part_writer import WrittenParts

Rows = Sequence[Mapping[str, int | str]]
_KEYS = 10_000


class PlainTable(Table):
    """A table with rows (k, n) in partitions `k=...`. A batch may bring columns, but a part has k and n only."""

    @classmethod
    def of(cls, store: ObjectStore, clock: Clock) -> PlainTable:
        """Open the table in a store, as one more actor."""
        return cls(open_table(store, clock).handle)

    def insert(self, data: Rows, *, txn: Txn | None = None) -> Commit:  # type: ignore[override]
        if txn is not None and is_recorded(self.handle.read(fresh=True), txn):
            return repeated(self.handle)
        return publish_append(self.handle, self._write(data), txn=txn)

    def overwrite(self, data: Rows, partitions: Sequence[str] | None = None) -> Commit:  # type: ignore[override]
        return publish_overwrite(self.handle, self._write(data), partitions)

    def merge(self) -> MergeReport:  # type: ignore[override]
        return merge(self.handle, rewriter=plain_rewriter)

    def _write(self, data: Rows) -> WrittenParts:
        numbers: dict[str, list[int]] = {}
        for row in data:
            numbers.setdefault(f"k={row['k']}", []).append(int(row["k"]) * _KEYS + int(row["n"]))
        types = {name: "VARCHAR" if isinstance(value, str) else "BIGINT" for row in data for name, value in row.items()}
        return write_rows(self.handle, numbers, types)


def part_rows(body: bytes) -> list[tuple[int, int]]:
    """Return the rows (k, n) of a part, plain or Parquet. k is 0 if the Parquet file has no such column."""
    if body.startswith(b"PAR1"):
        return [(r.get("k", 0), r["n"]) for r in pq.read_table(io.BytesIO(body)).to_pylist()]
    return [divmod(number, _KEYS) for number in rows_of(body)]


def live_numbers(store: ClockedStore) -> list[int]:
    """Check the table, and return each n of the live parts without a query."""
    return sorted(n for m in check_sound(store).live for _, n in part_rows(store.objects[m.key].body))
