"""The search for the rows that an upsert or update changes: their parts, their numbers, and their new values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from icedb.operations.rewrite.engine import DistributedTask, ResourceLimits
from icedb.operations.rewrite.prefetch import small_parts_here
from icedb.operations.upsert.arrow_file import ArrowFile
from icedb.reader.scan_sql import FILE_COLUMN, ROW_COLUMN, relation, translated_read_errors
from icedb.sql.connection_pool import reader
from icedb.sql.connections import ROWS_PER_BATCH, memory_bytes_default
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import progress
from icedb.util.temporary_files import temporary_folder

__all__ = ["RowSearch"]

_FILES = pa.schema([("file", pa.string()), ("part", pa.int32())])


@dataclass(frozen=True, slots=True)
class RowSearch(DistributedTask[tuple[Part, ...], bytes]):
    """Finds the rows of parts for which a condition holds.

    A result is an Arrow stream with the columns `part` (its place in the item), `row` (its number in the part) and
    those of `selected`: name -> SQL over the stored row `t` and the row `i` of the batch. `condition` follows `FROM
    ... AS t`: it may join the batch, which is called `incoming`. `types` are those of the partition columns.
    """

    schema: Mapping[str, str]
    types: Mapping[str, str]
    condition: str
    selected: Mapping[str, str]
    #: The batch; None if the condition does not use it.
    incoming: ArrowFile | None
    #: The message if the condition or the values do not fit the rows.
    wrong_sql: str

    name = "searching parts"

    def bytes_of(self, item: tuple[Part, ...]) -> int:
        """See DistributedTask."""
        return sum(p.bytes for p in item)

    def do(self, handle: Handle, items: Sequence[tuple[Part, ...]], limits: ResourceLimits) -> list[bytes]:
        """See DistributedTask. Raises InvalidOption, MissingPart, SnapshotExpired, DuckDB's and the store's errors."""
        started_ms = handle.clock.now_ms()
        memory_bytes = limits.memory_bytes or memory_bytes_default()
        inputs = [p for parts in items for p in parts]
        results = []
        with (
            translated_read_errors(handle, inputs, as_of_ms=started_ms, wrong_sql=self.wrong_sql),
            temporary_folder("find", below=limits.folder) as folder,
            reader(
                handle.location,
                read_bytes=sum(p.bytes for p in inputs),
                memory_bytes=memory_bytes,
                folder=folder,
                threads=limits.threads,
                lossless=True,
            ) as con,
            progress(self.name, len(inputs), "parts") as advance,
        ):
            if self.incoming is not None:
                con.register("incoming", self.incoming.table())
            for number, parts in enumerate(items):
                with small_parts_here(handle, parts, folder / str(number), memory_bytes) as here:
                    results.append(self._search(handle, con, here))
                advance(len(parts))
        return results

    def _search(self, handle: Handle, con: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> bytes:
        files = pa.table([handle.part_paths.readable(parts), range(len(parts))], schema=_FILES)
        con.register("files", files)
        rows = relation(handle, parts, self.schema, self.types, with_row=True)
        selected = "".join(f", {sql} AS {name}" for name, sql in self.selected.items())
        matching = con.execute(
            f"SELECT files.part, matching.* EXCLUDE (file) FROM ("
            f"SELECT {FILE_COLUMN} AS file, {ROW_COLUMN} AS row{selected} FROM ({rows}) AS t {self.condition}"
            f") AS matching JOIN files USING (file)"
        ).to_arrow_reader(ROWS_PER_BATCH)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, matching.schema, options=options) as writer:
            for batch in matching:
                writer.write_batch(batch)
        return bytes(sink.getvalue())
