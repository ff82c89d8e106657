"""Compare parts with their markers: the rows in the footer, or the whole content.

DuckDB reads footers, many parts in a query and several queries at a time. A part is reported as damaged only after the
whole object was fetched and could not be read either, because a network failure is no damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from icedb.format.records import Marker
from icedb.operations.integrity.log_audit import Problem
from icedb.sql.connection_pool import reader
from icedb.sql.connections import RESERVED, quote_text, read_file
from icedb.storage.object_store import chunks
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import Handle
from icedb.util.progress import Advance, progress
from icedb.util.temporary_files import temporary_folder
from icedb.writer.encoding.parquet_encoder import file_digest

__all__ = ["check_contents", "check_footers"]

# A query of so many footers takes a second or two from a bucket; so many concurrent queries hide the latency.
FOOTERS_AT_ONCE = 64
QUERIES_AT_ONCE = 8
# A connection keeps some 6 kB for each object of a bucket that it has read, until it is closed.
FOOTERS_OF_A_CONNECTION = 4_096
# Whole parts are fetched into memory before they are written to disk: at worst some hundred megabytes each.
FETCHES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a part's object. If `rows` is None, `error` is why it is no Parquet. `digest` is optional."""

    digest: str | None
    rows: int | None
    error: str = ""


def check_footers(handle: Handle, markers: Sequence[Marker]) -> list[Problem]:
    """Return problems of parts whose footer and marker differ in the number of rows. Raises the store's errors."""
    if not handle.location.is_opened_by_engines:
        return check_contents(handle, markers, deep=False)
    suspicious: list[Marker] = []
    with progress("reading footers", len(markers), "parts") as advance:
        for of_connection in chunks(markers, FOOTERS_OF_A_CONNECTION):
            suspicious += _suspicious(handle, of_connection, advance)
    # The object itself decides, because a footer may have failed to load.
    return check_contents(handle, suspicious, deep=False)


def _suspicious(handle: Handle, markers: Sequence[Marker], advance: Advance) -> list[Marker]:
    """Return the parts whose footer cannot be read or has other rows. Several queries of one connection read them."""
    of_queries = list(chunks(markers, FOOTERS_AT_ONCE))
    suspicious: list[Marker] = []
    with reader(handle.location, read_bytes=0) as con, ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        checked = pool.map(lambda some: _suspects(handle, con.cursor(), some), of_queries)
        for some, suspects in zip(of_queries, checked, strict=True):
            suspicious += suspects
            advance(len(some))
    return suspicious


def _suspects(handle: Handle, con: duckdb.DuckDBPyConnection, markers: Sequence[Marker]) -> list[Marker]:
    """Return such parts of one query. A bad part fails it: halves are retried."""
    by_path = dict(zip(handle.part_paths.original([handle.part(m) for m in markers]), markers, strict=True))
    paths = ", ".join(map(quote_text, by_path))
    query = f"SELECT file_name, num_rows FROM parquet_file_metadata([{paths}])"
    try:
        rows = {str(path): int(n) for path, n in con.execute(query).fetchall()}
    except duckdb.Error:
        with suppress(ObjectNotFound):
            handle.store.head(markers[0].key)  # raises early if the store does not answer
        if len(markers) == 1:
            return list(markers)
        half = len(markers) // 2
        return [*_suspects(handle, con, markers[:half]), *_suspects(handle, con, markers[half:])]
    return [m for path, m in by_path.items() if m.rows not in (None, rows.get(path))]


def check_contents(handle: Handle, markers: Sequence[Marker], *, deep: bool) -> list[Problem]:
    """Return problems of parts whose content differs from their markers. `deep` compares digests and decodes every row.

    Missing parts are skipped here. Raises the store's errors.
    """
    if not markers:
        return []
    problems: list[Problem] = []
    sizes = sum(m.bytes for m in markers)
    with (
        temporary_folder("verify") as folder,
        reader(handle.location, read_bytes=sizes) as con,
        progress("checking parts", sizes, "bytes") as advance,
        ThreadPoolExecutor(FETCHES_AT_ONCE) as pool,
    ):
        checked = pool.map(
            lambda numbered: _check_part(handle, con, numbered[1], folder / f"{numbered[0]}.parquet", deep=deep),
            enumerate(markers),
        )
        for marker, of_part in zip(markers, checked, strict=True):
            problems += of_part
            advance(marker.bytes)
    return problems


def _check_part(
    handle: Handle, con: duckdb.DuckDBPyConnection, marker: Marker, path: Path, *, deep: bool
) -> list[Problem]:
    try:
        with con.cursor() as own, _fetched(handle, marker, path) as local:
            content = _content(own, local, deep=deep)
    except (ObjectNotFound, FileNotFoundError):
        return []
    return list(_compare(handle.table, marker, content))


@contextmanager
def _fetched(handle: Handle, marker: Marker, path: Path) -> Iterator[Path]:
    """Yield the object as a local file: itself, or a temporary copy at `path`."""
    if handle.location.scheme == "file":
        yield Path(*handle.part_paths.original([handle.part(marker)]))
        return
    path.write_bytes(handle.store.get(marker.key).body)
    try:
        yield path
    finally:
        path.unlink()


def _content(con: duckdb.DuckDBPyConnection, path: Path, *, deep: bool) -> _Content:
    hashed = file_digest(path) if deep else None
    try:
        counted = f"SELECT sum(num_rows) FROM parquet_file_metadata({quote_text(str(path))})"
        return _Content(hashed, _decode_rows(con, path) if deep else int(con.execute(counted).fetchall()[0][0]))
    except duckdb.Error as error:
        if not path.exists():
            raise FileNotFoundError(path) from None
        return _Content(hashed, None, str(error).splitlines()[0].replace(str(path), "it"))


def _decode_rows(con: duckdb.DuckDBPyConnection, path: Path) -> int:
    """Count the rows and hash each of them, which makes DuckDB decode every page."""
    row = f"{RESERVED}row"
    return int(con.execute(f"SELECT count(*), bit_xor(hash({row})) FROM {read_file(path)} AS {row}").fetchall()[0][0])


def _compare(table: str, marker: Marker, content: _Content) -> Iterator[Problem]:
    remedy = "Restore the object from a backup or an earlier version of it."
    if None not in (marker.digest, content.digest) and marker.digest != content.digest:
        yield Problem(
            "part_digest",
            "error",
            marker.key,
            f"{table}: the live part '{marker.key}' has the digest {content.digest} instead of {marker.digest}, so its "
            f"content was changed. {remedy}",
        )
    if content.rows is None:
        yield Problem(
            "damaged_part",
            "error",
            marker.key,
            f"{table}: the live part '{marker.key}' cannot be read as Parquet ({content.error}). {remedy}",
        )
    elif marker.rows not in (None, content.rows):
        yield Problem(
            "part_rows",
            "error",
            marker.key,
            f"{table}: the live part '{marker.key}' has {content.rows} rows instead of {marker.rows}. {remedy}",
        )
