"""A snapshot as a table of chDB, which is ClickHouse as a library: it reads the live parts itself.

    query("SELECT day, count() FROM t GROUP BY day", table.snapshot())
    attach(session, "events", table.snapshot())

A table is SQL text: ClickHouse's function `file` or `s3` with the live parts and the columns that the table has today.
Columns that a part lacks are null in its rows, narrower types of older parts are widened, partition columns come from
the paths, and a filter on them skips parts. A data column of the same name wins. See `icedb.engines.clickhouse.types`
for what ClickHouse's types cannot say.

Keys for S3 are in a named collection of ClickHouse's, never in the text of a query or a view. One process has one
ClickHouse, which all its sessions share, and which ends with the last of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from icedb.engines.clickhouse.part_files import LOST, Session, rows_of
from icedb.engines.clickhouse.types import clickhouse_types, partition_value, quote_name, quote_text
from icedb.engines.engine_parts import chosen_parts
from icedb.errors import InvalidOption
from icedb.reader.scan_sql import translate_read_error, visible_partitions
from icedb.reader.snapshot import Snapshot
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional

__all__ = ["attach", "query", "source"]

# Whatever a session has set. ClickHouse's own partition columns come without decoding, and would hide data columns.
# The attempts take some ten seconds; ClickHouse's own 500 take hours when the store is not there.
_SETTINGS = (
    "use_hive_partitioning = 0, input_format_parquet_allow_missing_columns = 1, "
    "input_format_parquet_case_insensitive_column_matching = 1, s3_ignore_file_doesnt_exist = 0, s3_retry_attempts = 9"
)
_STATUS = re.compile(r"HTTP response code: (\d{3})\b")
_UNREACHABLE = re.compile(r"HTTP response code: \d{4,}")  # -1, as a number without a sign
# What ClickHouse's parser wants beyond the text of a view.
_QUERY_MARGIN = 10_000


@checks_arguments
def query(sql: str, snapshot: Snapshot, *, parts_where: str | None = None) -> pa.Table:
    """The answer of ClickHouse to a query over the table `t`, in a session of its own.

    `parts_where` leaves out parts; see `source`. Raises MissingExtra, what `source` raises, SnapshotExpired,
    MissingPart, AccessDenied, StoreUnavailable, and ClickHouse's own errors (RuntimeError).
    """
    session = _open_session(snapshot.table)
    try:
        _create_view(session, "TEMPORARY VIEW t", snapshot, parts_where)
        answer = _ask(session, sql, snapshot)
    finally:
        session.close()
    try:
        return pa.ipc.open_file(answer).read_all()
    except pa.ArrowInvalid:
        raise InvalidOption(
            f"{snapshot.table}: the query has no answer: {sql.strip()[:80]!r}. Write one SELECT over t, without FORMAT."
        ) from None


def _ask(session: Session, sql: str, snapshot: Snapshot) -> bytes:
    try:
        # A copy: the memory of the answer itself is ClickHouse's.
        return bytes(session.query(sql, "Arrow").bytes())
    except RuntimeError as error:
        raise _explained(error, snapshot) from None


@checks_arguments
def attach(session: Session, name: str, snapshot: Snapshot, *, parts_where: str | None = None) -> None:
    """Make the snapshot a view of the session's database, or put it into the place of the view of that name.

    The view stays as the snapshot is. Its keys for S3 are those of this moment: attach it again before they expire.
    Raises what `source` raises, SnapshotExpired, MissingPart and ClickHouse's own errors (RuntimeError).
    """
    _create_view(session, f"OR REPLACE VIEW {quote_name(name)}", snapshot, parts_where)


def _create_view(session: Session, view: str, snapshot: Snapshot, parts_where: str | None) -> None:
    text = f"CREATE {view} AS SELECT * FROM {source(snapshot, session=session, parts_where=parts_where)}"
    size = int(session.query("SELECT getSetting('max_query_size')", "TSV").bytes())
    session.query(f"SET max_query_size = {max(size, len(text.encode()) + _QUERY_MARGIN)}")
    try:
        _ask(session, text, snapshot)  # ClickHouse looks for the parts already
    finally:
        session.query(f"SET max_query_size = {size}")


@checks_arguments
def source(snapshot: Snapshot, *, session: Session | None = None, parts_where: str | None = None) -> str:
    """SQL for the place after FROM: the rows of a snapshot, in ClickHouse's language.

    `parts_where` is a predicate in DuckDB's SQL: parts that cannot hold rows for which it is true are left out. Of the
    others all rows come. For a table in S3 the `session` that will run the query is needed: it is given the keys.
    A list of many parts needs a greater `max_query_size`, which `attach` and `query` see to.

    Raises InvalidOption (among others for a part of a partitioning before the last `alter`, whose path does not say
    what the partition columns are), UnsupportedType and InvalidPartitionExpression.
    """
    parts = chosen_parts(snapshot, parts_where)
    visible = visible_partitions(snapshot.schema, snapshot.partition_schema)
    types = clickhouse_types({**snapshot.schema, **visible}, table=snapshot.table)
    if not types:
        return "(SELECT NULL AS nothing WHERE false)"
    if not parts:
        return f"(SELECT * FROM null({quote_text(_structure(types))}))"
    if visible and "_path" in snapshot.schema:
        raise InvalidOption(
            f"{snapshot.table}: the column '_path' hides that of ClickHouse, from which the partition columns "
            f"{sorted(visible)} are read. Query the snapshot with DuckDB."
        )
    chosen = [quote_name(column) for column in snapshot.schema]
    for name, type_ in visible.items():
        texts = {text for p in parts if (text := p.values[name]) is not None}
        value = partition_value(name, type_, types[name], texts, table=snapshot.table)
        chosen.append(f"{value} AS {quote_name(name)}")
    structure = _structure({column: types[column] for column in snapshot.schema})
    selects = (
        f"SELECT {', '.join(chosen)} FROM {rows} SETTINGS {_SETTINGS}"
        for rows in rows_of(snapshot.handle, parts, structure, session)
    )
    return f"({' UNION ALL '.join(selects)})"


def _structure(types: dict[str, str]) -> str:
    return ", ".join(f"{quote_name(column)} {type_}" for column, type_ in types.items())


def _open_session(table: str) -> Any:
    chdb = import_optional("chdb", extra="chdb")
    try:
        return chdb.session.Session()
    except RuntimeError:
        raise InvalidOption(
            f"{table}: this process has a chDB session with a folder of its own, and can have no other. Use attach() "
            "with that session, or close it."
        ) from None


def _explained(error: RuntimeError, snapshot: Snapshot) -> Exception:
    """What an error of ClickHouse's means, where it is about a part."""
    handle, said = snapshot.handle, str(error)
    if LOST in said:
        lost = (p for p in snapshot.parts if handle.location.scheme == "file" and not Path(p.path).exists())
        if (part := next(lost, None)) is not None:
            return translate_read_error(
                handle, snapshot.parts, _PartError(f"no such file: {part.key}"), as_of_ms=snapshot.as_of_ms
            )
    status = _STATUS.search(said)
    found = _PartError(
        f"could not connect to the store: {said}" if _UNREACHABLE.search(said) else said,
        int(status[1]) if status else 0,
    )
    explained = translate_read_error(handle, snapshot.parts, found, as_of_ms=snapshot.as_of_ms)
    return error if explained is found else explained


class _PartError(Exception):
    """An error of ClickHouse's in the shape of DuckDB's, which `translate_read_error` knows."""

    def __init__(self, message: str, status_code: int = 0) -> None:
        super().__init__(message)
        self.status_code = status_code
