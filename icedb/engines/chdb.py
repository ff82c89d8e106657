"""A snapshot as a table of chDB (ClickHouse as a library), which reads the live parts itself.

    query("SELECT day, count() FROM t GROUP BY day", table.snapshot())
    attach(session, "events", table.snapshot())

A table is SQL text: ClickHouse's function `file` or `s3` with the live parts and the snapshot's columns. Columns that a
part lacks are null in its rows, and narrower types of older parts are widened. Partition columns come from the paths,
and a filter on them skips parts. A data column of the same name takes precedence. `icedb.engines.clickhouse.types`
lists the values that ClickHouse's types cannot represent.

Keys for S3 are in a ClickHouse named collection, never in the text of a query or view. A process has one ClickHouse
instance. All sessions share it, and it ends with the last of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from icedb.engines.clickhouse.part_files import LOST, ChdbSession, part_relations
from icedb.engines.clickhouse.types import clickhouse_types, partition_value, quote_name, quote_text
from icedb.engines.engine_parts import chosen_parts
from icedb.errors import InvalidOption
from icedb.reader.scan_sql import translate_read_error
from icedb.reader.snapshot import Snapshot
from icedb.util.arguments import checks_arguments
from icedb.util.optional_deps import import_optional

__all__ = ["attach", "query", "source"]

# These override the session's settings. ClickHouse's own partition columns are not decoded and would hide data columns.
# The attempts take some ten seconds; ClickHouse's default of 500 takes hours if the store is unreachable.
_SETTINGS = (
    "use_hive_partitioning = 0, input_format_parquet_allow_missing_columns = 1, "
    "input_format_parquet_case_insensitive_column_matching = 1, s3_ignore_file_doesnt_exist = 0, s3_retry_attempts = 9"
)
_STATUS = re.compile(r"HTTP response code: (\d{3})\b")
_UNREACHABLE = re.compile(r"HTTP response code: \d{4,}")  # -1, as a number without a sign
# The bytes that ClickHouse's parser needs in addition to the text of a view.
_QUERY_MARGIN = 10_000


@checks_arguments
def query(sql: str, snapshot: Snapshot, *, parts_where: str | None = None) -> pa.Table:
    """Run a ClickHouse query over the table `t` in a temporary session.

    Args:
        sql: One SELECT over `t`, without FORMAT.
        snapshot: The snapshot to read.
        parts_where: A DuckDB predicate. Parts that cannot contain matching rows are skipped.

    Returns:
        The result as an Arrow table.

    Raises:
        MissingExtra: If chDB is not installed.
        InvalidOption: If the statement returns no result. Also the other errors of `source`.
        SnapshotExpired: If cleanup deleted a part of an older snapshot.
        MissingPart: If a live part does not exist.
        AccessDenied: If the store rejects the credentials.
        StoreUnavailable: If the store is unreachable.
        RuntimeError: ClickHouse's own errors.

    Example:
        >>> query("SELECT day, count() FROM t GROUP BY day", table.snapshot())
    """
    session = _open_session(snapshot.table)
    try:
        _create_view(session, "TEMPORARY VIEW t", snapshot, parts_where)
        result = _run(session, sql, snapshot)
    finally:
        session.close()
    try:
        return pa.ipc.open_file(result).read_all()
    except pa.ArrowInvalid:
        raise InvalidOption(
            f"{snapshot.table}: the statement returned no result: {sql.strip()[:80]!r}. Write one SELECT over t, "
            "without FORMAT."
        ) from None


def _run(session: ChdbSession, sql: str, snapshot: Snapshot) -> bytes:
    try:
        # A copy, because ClickHouse owns the memory of the result.
        return bytes(session.query(sql, "Arrow").bytes())
    except RuntimeError as error:
        raise _translate(error, snapshot) from None


@checks_arguments
def attach(session: ChdbSession, name: str, snapshot: Snapshot, *, parts_where: str | None = None) -> None:
    """Create or replace a view of the snapshot in the session's database.

    The view does not follow later commits. Its keys for S3 are those of this call: attach the table again before they
    expire.

    Args:
        session: A `chdb.session.Session`.
        name: The name of the view.
        snapshot: The snapshot to read.
        parts_where: A DuckDB predicate. Parts that cannot contain matching rows are skipped.

    Raises:
        SnapshotExpired: If cleanup deleted a part of an older snapshot.
        MissingPart: If a live part does not exist.
        InvalidOption: If an argument is invalid. Also the other errors of `source`.
        RuntimeError: ClickHouse's own errors.

    Example:
        >>> attach(session, "events", table.snapshot())
    """
    _create_view(session, f"OR REPLACE VIEW {quote_name(name)}", snapshot, parts_where)


def _create_view(session: ChdbSession, view: str, snapshot: Snapshot, parts_where: str | None) -> None:
    text = f"CREATE {view} AS SELECT * FROM {source(snapshot, session=session, parts_where=parts_where)}"
    size = int(session.query("SELECT getSetting('max_query_size')", "TSV").bytes())
    session.query(f"SET max_query_size = {max(size, len(text.encode()) + _QUERY_MARGIN)}")
    try:
        _run(session, text, snapshot)  # ClickHouse looks for the parts already
    finally:
        session.query(f"SET max_query_size = {size}")


@checks_arguments
def source(snapshot: Snapshot, *, session: ChdbSession | None = None, parts_where: str | None = None) -> str:
    """Return a table expression with the rows of a snapshot, for the FROM clause of a ClickHouse query.

    A list of many parts needs a greater `max_query_size`, which `attach` and `query` set.

    Args:
        snapshot: The snapshot to read.
        session: The session that will run the query. Required for a table in S3, because it receives the keys.
        parts_where: A DuckDB predicate. Parts that cannot contain matching rows are skipped. All rows of the other
            parts are returned.

    Returns:
        SQL text.

    Raises:
        InvalidOption: If a part was written before the last `alter` of the partitioning, because its path lacks
            partition columns, or if an argument is invalid.
        UnsupportedType: If ClickHouse has no type for a column.
        InvalidPartitionExpression: If a partition expression does not fit the snapshot's schema.

    Example:
        >>> session.query(f"SELECT count() FROM {source(table.snapshot(), session=session)}")
    """
    parts = chosen_parts(snapshot, parts_where)
    visible = snapshot.visible_partitions
    types = clickhouse_types({**snapshot.schema, **visible}, table=snapshot.table)
    if not types:
        return "(SELECT NULL AS nothing WHERE false)"
    if not parts:
        return f"(SELECT * FROM null({quote_text(_structure(types))}))"
    if visible and "_path" in snapshot.schema:
        raise InvalidOption(
            f"{snapshot.table}: the column '_path' hides that of ClickHouse, from which it would read the partition "
            f"columns {sorted(visible)}. Query the snapshot with DuckDB."
        )
    selected = [quote_name(column) for column in snapshot.schema]
    for name, type_ in visible.items():
        texts = {text for p in parts if (text := p.values[name]) is not None}
        value = partition_value(name, type_, types[name], texts, table=snapshot.table)
        selected.append(f"{value} AS {quote_name(name)}")
    structure = _structure({column: types[column] for column in snapshot.schema})
    selects = (
        f"SELECT {', '.join(selected)} FROM {rows} SETTINGS {_SETTINGS}"
        for rows in part_relations(snapshot.handle, parts, structure, session)
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
            f"{table}: this process has a chDB session with a folder of its own, so it cannot open another session. "
            "Use attach() with that session, or close it."
        ) from None


def _translate(error: RuntimeError, snapshot: Snapshot) -> Exception:
    """Translate an error of ClickHouse about a part; other errors are returned unchanged."""
    handle, message = snapshot.handle, str(error)
    if LOST in message:
        lost = (p for p in snapshot.parts if handle.location.scheme == "file" and not Path(p.path).exists())
        if (part := next(lost, None)) is not None:
            return translate_read_error(
                handle, snapshot.parts, _PartError(f"no such file: {part.key}"), as_of_ms=snapshot.as_of_ms
            )
    status = _STATUS.search(message)
    part_error = _PartError(
        f"could not connect to the store: {message}" if _UNREACHABLE.search(message) else message,
        int(status[1]) if status else 0,
    )
    translated = translate_read_error(handle, snapshot.parts, part_error, as_of_ms=snapshot.as_of_ms)
    return error if translated is part_error else translated


class _PartError(Exception):
    """An error of ClickHouse in the form of DuckDB's errors, which `translate_read_error` recognizes."""

    def __init__(self, message: str, status_code: int = 0) -> None:
        super().__init__(message)
        self.status_code = status_code
