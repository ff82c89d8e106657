"""Rows in a local Arrow file that tasks read in this process and in others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

__all__ = ["ArrowFile"]


@dataclass(frozen=True, slots=True)
class ArrowFile:
    """Rows in a file of this machine, or in memory after they were sent to another process.

    In this process the file is mapped into memory, so its rows do not count towards a memory limit. Rows are sent
    compressed, and are decompressed in the process that received them.
    """

    rows: Path | bytes

    @classmethod
    def write(cls, path: Path, reader: pa.RecordBatchReader) -> ArrowFile:
        """Write a stream of rows to a new file. Raises OSError and the errors of the stream."""
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
        return cls(path)

    def table(self) -> pa.Table:
        """Return the rows."""
        source = pa.BufferReader(self.rows) if isinstance(self.rows, bytes) else pa.memory_map(str(self.rows))
        return pa.ipc.open_file(source).read_all()

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowFile, (self.rows if isinstance(self.rows, bytes) else self._compressed(),)

    def _compressed(self) -> bytes:
        sink = pa.BufferOutputStream()
        rows = self.table()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)
        return bytes(sink.getvalue())
