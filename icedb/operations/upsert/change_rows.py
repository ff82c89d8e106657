"""The frame of an upsert and of an update: checks, resources, the commit, and what the log knows afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from icedb.errors import InvalidOption
from icedb.format.replay import TableState
from icedb.operations.rewrite.engine import Engine, LocalEngine, ResourceLimits
from icedb.operations.upsert.row_changes import RowChanges
from icedb.sql.connections import MEMORY_BYTES_MIN, connect_reader, disk_full, is_disk_full, memory_bytes_default
from icedb.transaction.append import Commit, nothing_to_commit
from icedb.transaction.exclusive import commit_exclusive
from icedb.transaction.table_handle import Handle
from icedb.util.temporary_files import temporary_folder

__all__ = [
    "CHANGE_MEMORY_BYTES_MIN",
    "ChangedParts",
    "Resources",
    "check_changeable",
    "commit_changes",
    "no_changes",
    "resources",
]

# The shares of the memory for the rows that were found, and for searching, sorting and rewriting, as divisors. The rest
# is for rows in transit between these, in Arrow.
_MATCHES_SHARE = 4
_WORK_SHARE = 2
CHANGE_MEMORY_BYTES_MIN = MEMORY_BYTES_MIN * _WORK_SHARE


@dataclass(frozen=True)
class ChangedParts:
    """The effect of an upsert or update, or of its dry run, on the parts of the table."""

    #: The live parts, and the parts that were opened to search for rows, in all attempts of the commit. Partitions and
    #: statistics exclude the others.
    live_parts: int
    searched_parts: int
    #: Parts that were rewritten without the rows that changed, and parts of which every row changed. In a dry run, a
    #: part whose row count the log does not have counts as rewritten.
    rewritten_parts: int
    removed_parts: int
    #: The size of the rewritten and removed parts in bytes.
    bytes: int
    commit: Commit = field(repr=False)
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Resources:
    """The connection and the folder of a change, and the memory and the engine for its work."""

    con: duckdb.DuckDBPyConnection
    folder: Path
    memory_bytes: int
    engine: Engine


def no_changes(state: TableState, commit: Commit, *, dry_run: bool) -> dict[str, Any]:
    """Return the fields of ChangedParts if no part was searched."""
    return {
        "live_parts": len(state.live),
        "searched_parts": 0,
        "rewritten_parts": 0,
        "removed_parts": 0,
        "bytes": 0,
        "commit": commit,
        "dry_run": dry_run,
    }


def check_changeable(handle: Handle, verb: str) -> None:
    """Raise InvalidOption for a table whose rows a merge combines."""
    if handle.spec.merging is not None or handle.spec.merge_query:
        raise InvalidOption(
            f"{handle.table}: {verb} changes stored rows, but merges combine the rows of this table. Insert rows "
            "instead, and query `final`; or delete(where) rows and insert others."
        )


@contextmanager
def resources(handle: Handle, memory_bytes: int | None, engine: Engine | None) -> Iterator[Resources]:
    """Yield the resources of a change. Raises InvalidOption if the memory is too little."""
    memory_bytes = memory_bytes_default() if memory_bytes is None else memory_bytes
    if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int) or memory_bytes < CHANGE_MEMORY_BYTES_MIN:
        raise InvalidOption(
            f"{handle.table}: memory_bytes is {memory_bytes!r}. Pass at least {CHANGE_MEMORY_BYTES_MIN}."
        )
    held, working = memory_bytes // _MATCHES_SHARE, memory_bytes // _WORK_SHARE
    with (
        temporary_folder("change") as folder,
        connect_reader(handle.location, memory_bytes=held, folder=folder) as con,
    ):
        con.execute("SET arrow_lossless_conversion = true")
        try:
            yield Resources(con, folder, working, engine or LocalEngine(ResourceLimits(memory_bytes=working)))
        except duckdb.OutOfMemoryException as error:
            if is_disk_full(error):
                raise disk_full(handle.table) from None
            raise InvalidOption(
                f"{handle.table}: memory_bytes {memory_bytes} is too little for the rows that change "
                f"({str(error).splitlines()[0]}). Give more, or change fewer rows at a time."
            ) from None


def commit_changes(handle: Handle, changes: RowChanges) -> dict[str, Any] | None:
    """Commit the changes, or with `dry_run` only find them, and return the fields of the report.

    Returns None if another writer has committed the transaction.

    Raises the errors of `RowChanges` and of the commit.
    """
    if changes.dry_run:
        changes.prepare(handle.read(fresh=True))
        commit = nothing_to_commit(handle)
    else:
        commit = commit_exclusive(handle, changes)
        if changes.repeated:
            return None
    return {**changes.counts(commit.created_ms), "commit": commit, "dry_run": changes.dry_run}
