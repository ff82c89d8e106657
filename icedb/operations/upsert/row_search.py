"""The search for the rows that an upsert or update changes: their parts, their numbers, and their new values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from icedb.operations.rewrite.part_search import PartSearch
from icedb.operations.upsert.arrow_file import ArrowFile
from icedb.reader.scan_sql import FILE_COLUMN, ROW_COLUMN, relation, visible_partitions
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.sql.partition_expressions import partition_types
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle

__all__ = ["RowSearch", "TableColumns"]

_FILES = pa.schema([("file", pa.string()), ("part", pa.int32())])


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table's rows, with their types."""

    #: The columns in parts.
    schema: Mapping[str, str]
    #: All partition columns, and those that a query sees.
    partitions: Mapping[str, str]
    visible: Mapping[str, str]
    #: The columns that a row has of its own: those in parts, and those that only paths have.
    stored: Mapping[str, str]

    @classmethod
    def of(cls, handle: Handle, schema: Mapping[str, str]) -> TableColumns:
        """Return the columns of a table with this schema. Raises InvalidPartitionExpression."""
        partitions = partition_types(handle.expressions, schema, table=handle.table) if schema else {}
        visible = visible_partitions(schema, partitions)
        of_paths = {e.name: visible[e.name] for e in handle.expressions if e.path_only and e.name in visible}
        return cls(schema, partitions, visible, {**schema, **of_paths})


@dataclass(frozen=True, slots=True)
class RowSearch(PartSearch[bytes]):
    """Finds the rows of parts for which a condition holds.

    A result is an Arrow stream with the columns `part` (its place in the item), `row` (its number in the part) and
    those of `selected`: name -> SQL over the stored row `t` and the row `i` of the batch. `condition` follows `FROM
    ... AS t`: it may join the batch, which is called `incoming`.
    """

    columns: TableColumns
    condition: str
    selected: Mapping[str, str]
    #: The batch; None if the condition does not use it.
    incoming: ArrowFile | None
    #: See PartSearch.
    wrong_sql: str

    def prepare(self, con: duckdb.DuckDBPyConnection) -> None:
        """See PartSearch."""
        if self.incoming is not None:
            con.register("incoming", self.incoming.table())

    def search(self, handle: Handle, con: duckdb.DuckDBPyConnection, parts: Sequence[Part]) -> bytes:
        """See PartSearch."""
        files = pa.table([handle.part_paths.readable(parts), range(len(parts))], schema=_FILES)
        con.register("files", files)
        rows = relation(handle, parts, self.columns.schema, self.columns.partitions, with_row=True)
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
