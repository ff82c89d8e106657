"""Rewrite a partition: its rows become the answer of a query over them, atomically.

For corrections, deduplication and the filling of new columns. The query sees the partition as one snapshot; what a
plain append adds meanwhile survives beside the answer. When another commit replaces one of the parts meanwhile, the
answer is thrown away and the query asked again, for it speaks of rows that are no longer there.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa

from icedb.commit import Commit, nothing_to_commit
from icedb.engine import connect_reader, memory_bytes_default, quote_name
from icedb.errors import CommitContended, InvalidBatch, InvalidOption
from icedb.exclusive import exclusive
from icedb.expressions import check_select
from icedb.format.names import decode_partition, encode_partition, partition_of
from icedb.format.snapshot import LogState
from icedb.handle import Handle
from icedb.location import parse_location
from icedb.maintenance.operations import Rewritten
from icedb.partitions import partition_types
from icedb.parts import WrittenParts, discard, write_parts
from icedb.rewriting import Rewrite
from icedb.scan import explain, relation, visible_partitions
from icedb.store import ObjectNotFound, open_store

__all__ = ["PartitionWriter", "RewriteReport", "rewrite_partition", "write_answer"]

logger = logging.getLogger(__name__)

# Each lost attempt means that a merge or an overwrite took the partition meanwhile: the table's lock does not hold.
REWRITE_ATTEMPTS_MAX = 5
# Enough for the writer to work on, little beside its memory.
ROWS_PER_BATCH = 100_000


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """What became of a partition. `rows_before` is None when a part does not say how many it has."""

    partition: str
    replaced_parts: int
    new_parts: int
    rows_before: int | None
    rows: int
    bytes_before: int
    bytes: int
    commit: Commit
    dry_run: bool


class PartitionWriter(Protocol):
    """Writes the answer of a query over the inputs of a rewrite as parts; with `dry_run` nowhere, but says which."""

    def __call__(
        self, handle: Handle, rewrite: Rewrite, query: str, schema: Mapping[str, str], /, *, dry_run: bool
    ) -> WrittenParts:
        """Raises FixInput errors for a query that does not fit, and the store's errors."""
        ...


def write_answer(
    handle: Handle, rewrite: Rewrite, query: str, schema: Mapping[str, str], /, *, dry_run: bool
) -> WrittenParts:
    """Stream the answer of a query over `t` into new parts, in two halves of the default memory.

    A dry run writes them into a folder that is removed again, so that everything is checked.
    Raises InvalidOption, MissingPart, SnapshotExpired, and as `write_parts` does.
    """
    started_ms = handle.clock.now_ms()
    memory_bytes = memory_bytes_default() // 2
    folder = Path(tempfile.mkdtemp(prefix="icedb-rewrite-"))
    wrong_sql = f"the query {query.strip()[:200]!r} cannot be answered; write one SELECT over t"
    try:
        with connect_reader(handle.location, memory_bytes=memory_bytes, folder=folder) as con:
            stream = _answer(handle, con, rewrite, query, schema)
            store = open_store(parse_location(folder / "aside")) if dry_run else handle.store
            context = handle.write_context()
            return write_parts(context, stream, store=store, clock=handle.clock, memory_bytes=memory_bytes)
    except (duckdb.Error, ObjectNotFound, InvalidBatch) as error:  # the stream's errors come as InvalidBatch
        raise explain(handle, rewrite.inputs, error, as_of_ms=started_ms, wrong_sql=wrong_sql) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(
    handle: Handle, con: duckdb.DuckDBPyConnection, rewrite: Rewrite, query: str, schema: Mapping[str, str]
) -> pa.RecordBatchReader:
    """The rows of the answer, without the partition columns that are not the table's own data."""
    query = check_select(query, table=handle.table)
    types = partition_types(handle.expressions, schema, table=handle.table)
    con.execute("SET arrow_lossless_conversion = true")  # a UUID stays one on its way
    con.execute(f"CREATE TEMP VIEW t AS {relation(handle, rewrite.inputs, schema, types)}")
    names = [str(name) for name, *_ in con.execute(f"DESCRIBE {query}").fetchall()]
    if len(set(names)) < len(names):
        raise InvalidOption(f"{handle.table}: the query's answer has a column twice: {names}. Name them with AS.")
    computed = {name.casefold() for name in visible_partitions(schema, types)}
    stored = [name for name in names if name.casefold() not in computed]
    if not stored:
        raise InvalidOption(f"{handle.table}: the query's answer has no column to store: {names}.")
    select = ", ".join(map(quote_name, stored))
    return con.execute(f"SELECT {select} FROM (\n{query}\n)").to_arrow_reader(ROWS_PER_BATCH)


def rewrite_partition(
    handle: Handle, partition: str, query: str, *, dry_run: bool = False, writer: PartitionWriter = write_answer
) -> RewriteReport:
    """Put the answer of `query` in the place of a partition's live parts. See `Table.rewrite_partition`."""
    if not dry_run:
        handle.check_writable()
    for attempt in range(REWRITE_ATTEMPTS_MAX):
        state = handle.read(fresh=True)
        rewrite = _rewrite_of(handle, state, partition)
        written = writer(handle, rewrite, query, state.schema, dry_run=dry_run)
        _check_inside(handle, rewrite, written, dry_run=dry_run)
        if dry_run:
            return _report(rewrite, written, nothing_to_commit(handle), dry_run=True)
        # Of an empty answer nothing stays, new columns neither.
        schema = written.schema if written.markers else {}
        operation = Rewritten({rewrite: written.markers}, born_ms=written.born_ms, schema=schema)
        commit = exclusive(handle, operation)
        if operation.kept:
            return _report(rewrite, written, commit, dry_run=False)
        logger.info("%s: '%s' changed, attempt %d to rewrite it is repeated", handle.table, partition, attempt + 1)
    raise CommitContended(
        f"{handle.table}: '{partition}' was merged or replaced by others {REWRITE_ATTEMPTS_MAX} times while it was "
        "rewritten. Nothing was published. Does the table's lock hold? Try again when fewer programs maintain it."
    )


def _rewrite_of(handle: Handle, state: LogState, partition: str) -> Rewrite:
    """The partition's live parts. Its path may be given as it is stored or as a person writes it (`city=New York`)."""
    live = [handle.part(m) for m in state.live]
    given = partition.strip("/")
    for path in (given, encode_partition(decode_partition(given))):
        inputs = tuple(p for p in live if p.partition == path)
        if inputs:
            return Rewrite(path, inputs)
    some = sorted({p.partition for p in live})[:3]
    raise InvalidOption(
        f"{handle.table}: there is no partition '{partition}' with rows (there are {some or 'none'}, for example). "
        "Give the path of one, as snapshot().partitions() lists them."
    )


def _check_inside(handle: Handle, rewrite: Rewrite, written: WrittenParts, *, dry_run: bool) -> None:
    rows = {partition_of(handle.keys.data_prefix, m.key): m.rows or 0 for m in written.markers}
    outside = rows.keys() - {rewrite.partition}
    if outside:
        if not dry_run:
            discard(handle.store, [m.key for m in written.markers])
        raise InvalidBatch(
            f"{handle.table}: {sum(rows[p] for p in outside)} of {written.rows} rows of the answer are outside "
            f"'{rewrite.partition}', for example in '{min(outside)}'. Leave them out, or move them with overwrite."
        )


def _report(rewrite: Rewrite, written: WrittenParts, commit: Commit, *, dry_run: bool) -> RewriteReport:
    return RewriteReport(
        partition=rewrite.partition,
        replaced_parts=len(rewrite.inputs),
        new_parts=len(written.markers),
        rows_before=rewrite.rows,
        rows=written.rows,
        bytes_before=rewrite.bytes,
        bytes=sum(m.bytes for m in written.markers),
        commit=commit,
        dry_run=dry_run,
    )
