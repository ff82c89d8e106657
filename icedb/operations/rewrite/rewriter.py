"""The rewriter: DuckDB reads, sorts and writes parts as one part, for merges, deletions and rewrites.

The new parts are invisible until a commit names them, and are deleted after a failure. All rewrites of a process share
one memory limit, and spill to disk beyond it. While some are written, the parts of the next are fetched and the results
of the last are put. Any engine can do the work (`icedb.operations.rewrite.engine`). Operations take a
`Rewriter` as an argument.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icedb.errors import InvalidOption, InvariantViolated
from icedb.format.records import Marker, Stats, total_rows
from icedb.operations.rewrite.arrow_merge import UnsortedParts, merge_at_once, merge_sorted, open_inputs
from icedb.operations.rewrite.engine import LOCAL_ENGINE, DistributedTask, Engine, ResourceLimits
from icedb.operations.rewrite.prefetch import Fetched, concurrent_fetches, fetch_parts
from icedb.operations.rewrite.query_rewrite import RewriteQuery, write_query_output
from icedb.reader.scan_sql import (
    ROW_COLUMN,
    read_as,
    read_parquet,
    scan,
    translate_read_error,
    visible_partitions,
)
from icedb.sql.column_stats import statistics_columns
from icedb.sql.connection_pool import reader
from icedb.sql.connections import (
    MEMORY_BYTES_MIN,
    RESERVED,
    connect_sandbox,
    disk_full,
    is_disk_full,
    memory_bytes_default,
    quote_name,
    renew_access,
)
from icedb.sql.partition_expressions import partition_types
from icedb.sql.types import describe
from icedb.storage.obstore_store import ObjectNotFound
from icedb.storage.parts import Part
from icedb.transaction.table_handle import Handle
from icedb.util.progress import Advance, LogPace, progress
from icedb.util.temporary_files import temporary_folder
from icedb.writer.encoding.parquet_encoder import MERGE_LEVEL, EncodedFile, ParquetSettings
from icedb.writer.encoding.parquet_file import EncodedPart, encode_tables, write_query
from icedb.writer.encoding.part_stats import encode_bounds
from icedb.writer.part_writer import CONCURRENT_PUTS, StoredPart, discard, put_part

__all__ = ["NewPart", "Rewrite", "Rewriter", "Rewriting", "rewrite_all", "rewrite_parts"]

logger = logging.getLogger(__name__)

# The memory for sorting rows of some kilobytes, even with spilling. With less memory, fewer rewrites run at a time.
MEMORY_BYTES_PER_REWRITE = 1024 * 1024 * 1024
# The bytes of parts that are fetched ahead of their turn, or wait to be put, besides the parts that are being written.
# Each of the two needs this much disk space.
AHEAD_BYTES = 512 * 1024 * 1024
# The share of the memory for files that are being put, as a divisor.
PUTTING_SHARE = 4
# With this many rewrites per thread, all threads are busy with whole rewrites. Sharing a small rewrite costs more.
REWRITES_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Parts of one partition that become one part, without the rows for which `drop_where` is true.

    `drop_where` is a checked predicate over `t` (see `icedb.sql.predicates`). None keeps all rows. `drop_rows` has the
    numbers of the rows to drop of a single part instead, from 0, as int64 in native byte order. With `query` the part
    has the query's result instead.
    """

    partition: str
    inputs: tuple[Part, ...]
    drop_where: str | None = None
    drop_rows: bytes = b""
    query: RewriteQuery | None = None

    @property
    def bytes(self) -> int:
        """The size of the inputs in bytes."""
        return sum(p.bytes for p in self.inputs)

    @property
    def rows(self) -> int | None:
        """The number of rows in the inputs, or None if the log does not have one of their counts."""
        return total_rows(self.inputs)

    @property
    def dropped(self) -> npt.NDArray[np.int64]:
        """The numbers in `drop_rows`."""
        return np.frombuffer(self.drop_rows, np.int64)


#: Rewrites parts of a table with this schema. Returns the new parts' markers in order, None where no row is left.
Rewriter = Callable[[Handle, Sequence[Rewrite], Mapping[str, str]], list[Marker | None]]


@dataclass(frozen=True, slots=True)
class NewPart:
    """The result of a rewrite: the part's columns, and its marker unless no row is left."""

    columns: Mapping[str, str]
    marker: Marker | None


@dataclass(frozen=True, slots=True)
class Rewriting(DistributedTask[Rewrite, NewPart]):
    """Writes new parts for a table with this schema. A dry run puts nothing."""

    schema: Mapping[str, str]
    dry_run: bool = False

    name = "rewriting parts"

    def bytes_of(self, item: Rewrite) -> int:
        """See DistributedTask."""
        return item.bytes

    def partition_of(self, item: Rewrite) -> str | None:
        """See DistributedTask."""
        return None if self.dry_run else item.partition

    def part_of(self, result: NewPart) -> Marker | None:
        """See DistributedTask."""
        return result.marker

    def do(self, handle: Handle, items: Sequence[Rewrite], limits: ResourceLimits) -> list[NewPart]:
        """Write each new part, a few at a time. Raises as `rewrite_all`."""
        started_ms = handle.clock.now_ms()
        memory_bytes = _check_memory(handle, limits.memory_bytes)
        keys = [handle.keys.part(r.partition, handle.clock.new_id()) for r in items]
        try:
            with (
                temporary_folder("rewrite", below=limits.folder) as folder,
                _engines(handle, items, memory_bytes, limits.threads, folder) as engines,
                _pools(engines.at_a_time, memory_bytes, items) as pools,
                progress(self.name, sum(r.bytes for r in items), "bytes") as advance,
            ):
                rewrites = list(zip(items, keys, strict=True))
                return self._write(handle, engines, pools, rewrites, folder / "inputs", advance)
        except BaseException as error:
            if not self.dry_run:
                discard(handle.store, keys)
            if isinstance(error, duckdb.OutOfMemoryException):
                if is_disk_full(error):
                    raise disk_full(handle.table) from None
                raise _too_little(handle, memory_bytes, str(error).splitlines()[0]) from None
            if isinstance(error, duckdb.Error | ObjectNotFound):
                inputs = [p for r in items for p in r.inputs]
                raise translate_read_error(handle, inputs, error, as_of_ms=started_ms) from None
            raise

    def _write(
        self,
        handle: Handle,
        engines: _Engines,
        pools: _Pools,
        rewrites: Sequence[tuple[Rewrite, str]],
        folder: Path,
        advance: Advance,
    ) -> list[NewPart]:
        """Write the new parts under their keys. The first failure stops all."""
        written: list[NewPart] = []

        pace = LogPace()

        def finish(rewrite: Rewrite, writing: Future[_WrittenFile]) -> None:
            written.append(writing.result().new_part())
            if pace.logs(is_last=len(written) == len(rewrites)):
                logger.info(
                    "%s: rewrite %d of %d is written: %d parts, %d bytes of '%s'",
                    handle.table, len(written), len(rewrites), len(rewrite.inputs), rewrite.bytes, rewrite.partition,
                )  # fmt: skip
            advance(rewrite.bytes)

        begun: deque[tuple[Rewrite, Future[_WrittenFile]]] = deque()
        ahead_bytes = 0
        for number, (rewrite, key) in enumerate(rewrites):
            while len(begun) > engines.at_a_time and ahead_bytes + rewrite.bytes > AHEAD_BYTES:
                ahead_bytes -= begun[0][0].bytes
                finish(*begun.popleft())
            fetched = fetch_parts(handle, rewrite.inputs, folder / str(number), pools.fetching)
            begun.append((rewrite, pools.writing.submit(_rewrite, handle, engines, pools, self, rewrite, fetched, key)))
            ahead_bytes += rewrite.bytes
        while begun:
            finish(*begun.popleft())
        return written


def rewrite_parts(
    handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str], *, engine: Engine = LOCAL_ENGINE
) -> list[Marker | None]:
    """Return the markers of `rewrite_all`."""
    return [new.marker for new in rewrite_all(handle, rewrites, schema, engine=engine)]


def rewrite_all(
    handle: Handle,
    rewrites: Sequence[Rewrite],
    schema: Mapping[str, str],
    *,
    dry_run: bool = False,
    engine: Engine = LOCAL_ENGINE,
) -> list[NewPart]:
    """Write each new part, and delete all of them on failure. A dry run puts nothing.

    All rewrites share the engine's memory (by default half of the machine's or container's). Raises InvalidOption if
    it is not enough, MissingPart, SnapshotExpired, InvariantViolated, and the errors of `write_query_output`, DuckDB,
    the store and the engine.
    """
    return engine.run(handle, Rewriting(dict(schema), dry_run), rewrites)


@dataclass(frozen=True, slots=True)
class _Pools:
    """The thread pools of the pipeline. Each one passes its results to the next."""

    fetching: ThreadPoolExecutor
    writing: ThreadPoolExecutor
    putting: ThreadPoolExecutor


@contextmanager
def _pools(at_a_time: int, memory_bytes: int, rewrites: Sequence[Rewrite]) -> Iterator[_Pools]:
    """Yield the pools. At the end of the block, wait for running work and cancel the rest."""
    # A put to a bucket holds the whole file in memory.
    puts = memory_bytes // PUTTING_SHARE // max(1, *(r.bytes for r in rewrites))
    putting = max(at_a_time, min(CONCURRENT_PUTS, puts))
    pools = [ThreadPoolExecutor(threads) for threads in (concurrent_fetches(memory_bytes), at_a_time, putting)]
    try:
        yield _Pools(*pools)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Engines:
    """The connections that the rewrites of a call share. New parts are written to `folder`."""

    reader: duckdb.DuckDBPyConnection
    sandbox: duckdb.DuckDBPyConnection | None
    folder: Path
    at_a_time: int
    #: The memory of one rewrite.
    memory_bytes: int


@contextmanager
def _engines(
    handle: Handle, rewrites: Sequence[Rewrite], memory_bytes: int, threads: int | None, folder: Path
) -> Iterator[_Engines]:
    """Yield the connections. Without a query the reader has all the memory, and otherwise each has half of it."""
    asking = any(r.query is not None for r in rewrites)
    share = memory_bytes // 2 if asking else memory_bytes
    at_a_time = max(1, min(threads or max(2, os.cpu_count() or 2), share // MEMORY_BYTES_PER_REWRITE))
    if _many_and_small(rewrites, at_a_time, threads):
        threads = 1
    size = sum(r.bytes for r in rewrites)
    with reader(
        handle.location, read_bytes=size, memory_bytes=share, folder=folder, threads=threads, lossless=True
    ) as parts:
        if not asking:
            yield _Engines(parts, None, folder, at_a_time, share // at_a_time)
            return
        sandbox_folder = folder / "sandbox"  # not where the reader spills
        sandbox_folder.mkdir()
        with connect_sandbox(sandbox_folder, memory_bytes=share, threads=threads) as sandbox:
            yield _Engines(parts, sandbox, sandbox_folder, at_a_time, share // at_a_time)


def _many_and_small(rewrites: Sequence[Rewrite], at_a_time: int, threads: int | None) -> bool:
    """Whether whole rewrites keep all threads busy. A large one at the end would keep a single thread busy."""
    if not 1 < (threads or os.cpu_count() or 1) <= at_a_time:
        return False
    return max(r.bytes for r in rewrites) * at_a_time * REWRITES_PER_THREAD <= sum(r.bytes for r in rewrites)


def _check_memory(handle: Handle, memory_bytes: int | None) -> int:
    if memory_bytes is None:
        return memory_bytes_default()
    if memory_bytes < MEMORY_BYTES_MIN:
        raise _too_little(handle, memory_bytes, f"at least {MEMORY_BYTES_MIN} are needed")
    return memory_bytes


def _too_little(handle: Handle, memory_bytes: int, reason: str) -> InvalidOption:
    return InvalidOption(
        f"{handle.table}: memory_bytes {memory_bytes} is too little to rewrite parts ({reason}). Give more, or "
        f"alter the table to fewer row_group_rows (it has {handle.spec.row_group_rows})."
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """The rows of some parts as `t`: the new part's columns, their names in `t`, and the SQL."""

    columns: Mapping[str, str]
    names: Mapping[str, str]
    sql: str


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """A written rewrite, and the put of its file, which is None if no row is left."""

    columns: Mapping[str, str]
    key: str
    rows: int = 0
    stats: Stats = msgspec.UNSET
    put: Future[StoredPart] | None = None

    def new_part(self) -> NewPart:
        """Wait for the put, and return the new part. Raises the errors of the put."""
        if self.put is None:
            return NewPart(self.columns, None)
        stored = self.put.result()
        return NewPart(
            self.columns, Marker(self.key, stored.bytes, 0, rows=self.rows, stats=self.stats, digest=stored.digest)
        )


def _rewrite(
    handle: Handle, engines: _Engines, pools: _Pools, work: Rewriting, rewrite: Rewrite, fetched: Fetched, key: str
) -> _WrittenFile:
    path = engines.folder / key.rsplit("/", 1)[1]
    with fetched.here() as inputs:
        columns, part = _write_rows(handle, engines, replace(rewrite, inputs=inputs), work.schema, path)
    if part is None:
        return _WrittenFile(columns, key)
    with engines.reader.cursor() as con:
        [stats] = encode_bounds(con, [part.bounds])
    put = (
        pools.putting.submit(_measure, part.file)
        if work.dry_run
        else pools.putting.submit(put_part, handle.store, key, part.file)
    )
    return _WrittenFile(columns, key, part.file.rows, stats, put)


def _measure(file: EncodedFile) -> StoredPart:
    return StoredPart(file.bytes, file.digest)


def _write_rows(
    handle: Handle, engines: _Engines, rewrite: Rewrite, schema: Mapping[str, str], path: Path
) -> tuple[Mapping[str, str], EncodedPart | None]:
    """Return the columns of the new part, and its file unless no row is left."""
    with engines.reader.cursor() as con:  # the rewrites of a call may take longer than the credentials are valid
        renew_access(con, handle.location)
    if rewrite.query is not None and engines.sandbox is not None:
        answer = write_query_output(
            handle, rewrite.query, rewrite.inputs, schema, path, reader=engines.reader, sandbox=engines.sandbox
        )
        return answer.columns, answer.part
    if rewrite.drop_where is None:
        try:
            merged = _merge_in_arrow(handle, engines, rewrite, schema, path)
        except (UnsortedParts, pa.ArrowException, FileNotFoundError):
            merged = None  # DuckDB's error names the problem of a missing or damaged part
            path.unlink(missing_ok=True)
        if merged is not None:
            return merged
    return _copy_rows(handle, engines.reader, rewrite, schema, path)


def _merge_in_arrow(
    handle: Handle, engines: _Engines, rewrite: Rewrite, schema: Mapping[str, str], path: Path
) -> tuple[Mapping[str, str], EncodedPart | None] | None:
    """Merge parts of local files without DuckDB; None if their types or the memory do not permit it."""
    paths = handle.part_paths.original(rewrite.inputs)
    if not all(map(os.path.isfile, paths)):
        return None
    with (
        engines.reader.cursor() as con,
        open_inputs(paths, schema, handle.spec.sort_by, dropped=handle.spec.dropped) as inputs,
    ):
        if inputs is None:
            return None
        columns = {column: schema[column] for column in inputs.schema.names}
        _check_rows(handle, rewrite, inputs.rows, rewrite.rows)
        rows = inputs.rows - len(rewrite.dropped)
        if not rows:
            return columns, None
        if inputs.fit(engines.memory_bytes):
            tables: Iterable[pa.Table] = [merge_at_once(con, inputs, dropped=rewrite.dropped)]
        elif not rewrite.drop_rows and inputs.can_stream(engines.memory_bytes):
            tables = merge_sorted(con, inputs, engines.memory_bytes)
        else:
            return None
        statistics = statistics_columns(handle.spec.sort_by, columns, handle.expressions)
        settings = ParquetSettings(handle.table, handle.spec, MERGE_LEVEL)
        part = encode_tables(tables, settings, statistics, rows=rows, path=path)
        _check_rows(handle, rewrite, part.file.rows, rows)
    return columns, part


def _copy_rows(
    handle: Handle, reader: duckdb.DuckDBPyConnection, rewrite: Rewrite, schema: Mapping[str, str], path: Path
) -> tuple[Mapping[str, str], EncodedPart | None]:
    """Write the rows that stay to a file, with DuckDB."""
    with reader.cursor() as con:
        source = _source(handle, con, rewrite, schema)
        expected = _rows_to_keep(handle, con, rewrite, source)
        if expected == 0:
            return source.columns, None
        select = ", ".join(f"{source.names[c]} AS {quote_name(c)}" for c in source.columns)
        where = "" if rewrite.drop_where is None else f" WHERE (\n{rewrite.drop_where}\n) IS NOT TRUE"
        if rewrite.drop_rows:
            con.register("dropped", pa.table({"number": rewrite.dropped}))
            where = f" WHERE {ROW_COLUMN} NOT IN (SELECT number FROM dropped)"
        order = ", ".join(quote_name(c) for c in handle.spec.sort_by if c in source.columns)
        query = f"SELECT {select} FROM {source.sql}{where}{' ORDER BY ' + order if order else ''}"
        statistics = statistics_columns(handle.spec.sort_by, source.columns, handle.expressions)
        settings = ParquetSettings(handle.table, handle.spec, MERGE_LEVEL)
        part = write_query(con, query, source.columns, settings, statistics, rows=expected or 0, path=path)
    _check_rows(handle, rewrite, part.file.rows, expected)
    return source.columns, part if part.file.rows else None


def _source(handle: Handle, con: duckdb.DuckDBPyConnection, rewrite: Rewrite, schema: Mapping[str, str]) -> _Source:
    """Return the rows. Only a predicate also needs the table's other columns, as null, and the partition."""
    partitions: Mapping[str, str] = {}
    rows = f"SELECT * FROM {read_parquet(handle, rewrite.inputs)}"
    present = {c: t for c, t in describe(con, rows).items() if c not in handle.spec.dropped}
    if rewrite.drop_where is not None:
        types = partition_types(handle.expressions, schema, table=handle.table)
        partitions = visible_partitions(schema, types)
        rows = scan(handle, rewrite.inputs, schema, types)
        present = {c: t for c, t in present.items() if c not in partitions}
    elif rewrite.drop_rows:
        rows = read_as(handle, rewrite.inputs, present, files=False, rows=True)
    # Cast to the table's types: union_by_name alone would take what the parts happen to have. A column that only the
    # parts have (a program of v3 may write one) is kept as it is, and no predicate can name it.
    names = {c: quote_name(c) for c in schema if c in present}
    names |= {c: f"{RESERVED}{n}" for n, c in enumerate(present) if c not in schema}
    columns = {c: schema.get(c, present[c]) for c in names}
    select = [f"CAST({quote_name(c)} AS {columns[c]}) AS {name}" for c, name in names.items()]
    if rewrite.drop_where is not None:
        select += [f"CAST(NULL AS {t}) AS {quote_name(c)}" for c, t in schema.items() if c not in present]
        select += map(quote_name, partitions)
    select += [ROW_COLUMN] if rewrite.drop_rows else []
    return _Source(columns, names, f"(SELECT {', '.join(select)} FROM ({rows})) AS t")


def _rows_to_keep(handle: Handle, con: duckdb.DuckDBPyConnection, rewrite: Rewrite, source: _Source) -> int | None:
    """Return the number of rows that the new part must have; None if an input has no row count."""
    if rewrite.drop_where is None:
        return None if rewrite.rows is None else rewrite.rows - len(rewrite.dropped)
    counts = f"SELECT count(*), count(*) FILTER (WHERE (\n{rewrite.drop_where}\n)) FROM {source.sql}"
    [(rows, dropped)] = con.execute(counts).fetchall()
    _check_rows(handle, rewrite, int(rows), rewrite.rows)
    return int(rows) - int(dropped)


def _check_rows(handle: Handle, rewrite: Rewrite, rows: int, expected: int | None) -> None:
    if expected not in (None, rows):
        raise InvariantViolated(
            f"{handle.table}: rewriting {len(rewrite.inputs)} parts of '{rewrite.partition}' gave {rows} rows instead "
            f"of {expected}. Nothing was published. Please report this error."
        )
