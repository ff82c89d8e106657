"""Parts become one part: read, sorted and written again by DuckDB, for merges and deletions.

Nothing that is written here is visible: only a commit names it, and what a failure leaves is deleted again. The
operations above take the function as an argument, so that another engine can do the work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.engine import connect_reader, quote_name, quote_text
from icedb.errors import InvariantViolated
from icedb.format.records import Marker
from icedb.handle import Handle, Part
from icedb.parts import copy_statement, discard, put_part
from icedb.scan import explain, read_parquet
from icedb.schema import describe
from icedb.statistics import encode_statistics, figures_sql, statistics_columns
from icedb.store import ObjectNotFound

__all__ = ["Rewrite", "Rewriter", "rewrite_parts"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Parts of one partition that become one part."""

    partition: str
    inputs: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(p.bytes for p in self.inputs)


#: Does some rewrites of a table that has this schema; the new parts' markers, in the same order. None: no row is left.
Rewriter = Callable[[Handle, Sequence[Rewrite], Mapping[str, str]], list[Marker | None]]


def rewrite_parts(handle: Handle, rewrites: Sequence[Rewrite], schema: Mapping[str, str]) -> list[Marker | None]:
    """Write each new part, a few at a time; on failure delete what was written.

    Raises MissingPart, SnapshotExpired, InvariantViolated, DuckDB's and the store's errors.
    """
    started_ms = handle.clock.now_ms()
    keys = [handle.keys.part(r.partition, handle.clock.new_id()) for r in rewrites]
    folder = Path(tempfile.mkdtemp(prefix="icedb-rewrite-"))
    con = connect_reader(handle.location)
    try:
        con.execute("SET preserve_insertion_order = true")
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            writes = [
                pool.submit(_rewrite, handle, con.cursor(), rewrite, key, folder, schema)
                for rewrite, key in zip(rewrites, keys, strict=True)
            ]
            try:
                return [w.result() for w in writes]
            except BaseException as error:
                pool.shutdown(cancel_futures=True)
                discard(handle.store, keys)
                if isinstance(error, duckdb.Error | ObjectNotFound):
                    inputs = [p for r in rewrites for p in r.inputs]
                    raise explain(handle, inputs, error, as_of_ms=started_ms) from None
                raise
    finally:
        con.close()
        shutil.rmtree(folder, ignore_errors=True)


def _rewrite(
    handle: Handle,
    con: duckdb.DuckDBPyConnection,
    rewrite: Rewrite,
    key: str,
    folder: Path,
    schema: Mapping[str, str],
) -> Marker:
    path = folder / key.rsplit("/", 1)[1]
    source = read_parquet(handle, rewrite.inputs)
    present = describe(con, f"SELECT * FROM {source}")
    # Cast to the table's types: union_by_name alone would take what the parts happen to have. A column that only the
    # parts know (a program of v3 may write one) is kept as it is.
    columns = {c: t for c, t in schema.items() if c in present}
    columns |= {c: t for c, t in present.items() if c not in schema}
    select = ", ".join(f"CAST({quote_name(c)} AS {t}) AS {quote_name(c)}" for c, t in columns.items())
    order = ", ".join(quote_name(c) for c in handle.spec.sort_by if c in columns)
    query = f"SELECT {select} FROM {source}{' ORDER BY ' + order if order else ''}"
    rows = int(con.execute(copy_statement(query, path, handle.spec)).fetchall()[0][1])
    counts = [p.rows for p in rewrite.inputs]
    if None not in counts and rows != sum(c or 0 for c in counts):
        raise InvariantViolated(
            f"{handle.table}: merging {len(counts)} parts of '{rewrite.partition}' gave {rows} rows instead of "
            f"{sum(c or 0 for c in counts)}. Nothing was published."
        )
    stats = statistics_columns(handle.spec.sort_by, columns)
    figures = _figures(con, stats, path)
    encoded = encode_statistics(stats, figures, rows)
    stored = put_part(handle.store, key, path)
    return Marker(key, stored.bytes, 0, rows=rows, stats=encoded, digest=stored.digest)


def _figures(con: duckdb.DuckDBPyConnection, columns: Mapping[str, str], path: Path) -> list[str | None]:
    if not columns:
        return []
    [(figures,)] = con.execute(f"SELECT {figures_sql(columns)} FROM read_parquet({quote_text(str(path))})").fetchall()
    return list(figures)
