"""The metadata of a table in Dagster's UI, under Dagster's standard keys where they exist.

Figures that a snapshot has need no request. The preview must be read, and the chart must be drawn. They describe a
commit that has happened, so if one fails, its metadata has the reason, and the materialization remains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import dagster as dg

import icedb
from icedb.errors import IceDBError
from icedb.operations.health.size_chart import PartSizes
from icedb.sql.connections import quote_name
from icedb.storage.parts import Part
from icedb_dagster.metadata.markdown import table
from icedb_dagster.metadata.size_chart import markdown_picture

__all__ = [
    "COMMIT_TIME",
    "FIRST_PART",
    "KINDS",
    "LARGE_METADATA",
    "LOG_FILE",
    "PARTITION_ROWS",
    "SNAPSHOT_ID",
    "SNAPSHOT_TIME",
    "commit_metadata",
    "markdown_table",
    "materialization_metadata",
    "partition_rows",
    "table_metadata",
]

logger = logging.getLogger(__name__)

#: The kinds of an asset that is an IceDB table. The UI has an icon for `parquet`.
KINDS = frozenset({"icedb", "parquet"})

#: Metadata keys that identify a commit in an event: its time (unix milliseconds), its log file, and its first part.
#: The part is needed because two programs may commit in the same millisecond, and log files are merged.
COMMIT_TIME = "icedb/commit_time_ms"
LOG_FILE = "icedb/log_file"
FIRST_PART = "icedb/first_part"

#: Metadata keys of the snapshot that an event describes: its id, and its time.
SNAPSHOT_ID = "icedb/snapshot_id"
SNAPSHOT_TIME = "icedb/snapshot_time"

#: Dagster's key of the rows in the event's partition.
PARTITION_ROWS = "dagster/partition_row_count"
#: Metadata keys of a materialization with large values. One event of a run needs them.
LARGE_METADATA = ("icedb/preview", "icedb/part_sizes")

# A preview is stored with each event, and read on a screen.
PREVIEW_COLUMNS_MAX = 20
PREVIEW_CHARACTERS_MAX = 60


def table_metadata(snapshot: icedb.Snapshot) -> dict[str, dg.MetadataValue]:
    """Return the metadata of a snapshot: figures that need no request."""
    metadata: dict[str, dg.MetadataValue] = {
        "dagster/column_schema": dg.MetadataValue.table_schema(_column_schema(snapshot)),
        "dagster/uri": dg.MetadataValue.text(snapshot.table),
        "dagster/table_name": dg.MetadataValue.text(PurePosixPath(snapshot.table).name),
        "dagster/storage_kind": dg.MetadataValue.text("icedb"),
        "dagster/size_bytes": dg.MetadataValue.int(snapshot.bytes),  # shown as storage in the asset's overview
        "icedb/live_parts": dg.MetadataValue.int(len(snapshot.parts)),
        "icedb/partitions": dg.MetadataValue.int(len(snapshot.partitions())),
        "icedb/bytes": dg.MetadataValue.int(snapshot.bytes),
        "icedb/log_files": dg.MetadataValue.int(snapshot.log_files),
        SNAPSHOT_ID: dg.MetadataValue.text(snapshot.id),
        SNAPSHOT_TIME: dg.MetadataValue.timestamp(snapshot.as_of_ms / 1000),
    }
    if snapshot.rows is not None:
        metadata["dagster/row_count"] = dg.MetadataValue.int(snapshot.rows)
    return metadata


def materialization_metadata(
    snapshot: icedb.Snapshot, *, partitions: str | None = None, preview_rows: int = 5
) -> dict[str, dg.MetadataValue]:
    """Return `table_metadata`, with the additions of a materialization. Errors of the additions are not raised.

    `partitions` is a DuckDB predicate over the partition columns for the written partitions, which are counted and
    previewed. `preview_rows` is the number of previewed rows; 0 for none.
    """
    metadata = table_metadata(snapshot)
    if partitions is not None:
        # An empty table may have no columns.
        metadata |= partition_rows(snapshot, lambda: snapshot.in_partitions(partitions) if snapshot.parts else [])
    if preview_rows > 0:
        metadata["icedb/preview"] = _or_why_not(lambda: _preview(snapshot, partitions, preview_rows))
    metadata["icedb/part_sizes"] = _or_why_not(
        lambda: dg.MetadataValue.md(markdown_picture(PartSizes.of(snapshot.parts)))
    )
    return metadata


def partition_rows(snapshot: icedb.Snapshot, list_parts: Callable[[], Sequence[Part]]) -> dict[str, dg.MetadataValue]:
    """Return the metadata with the number of rows in parts of a snapshot, or the reason why it is unknown."""
    rows = _or_why_not(lambda: _row_count(snapshot, list_parts()))
    # Dagster's own key accepts only a number.
    return {PARTITION_ROWS if isinstance(rows, dg.IntMetadataValue) else "icedb/partition_row_count": rows}


def commit_metadata(
    created_ms: int, log_file: str | None = None, parts: Iterable[str] = ()
) -> dict[str, dg.MetadataValue]:
    """Return the metadata that identifies a commit, so that a sensor does not report it again.

    `created_ms` is its time (unix milliseconds), `log_file` the key of its log file if known, `parts` the keys of its
    parts.
    """
    metadata: dict[str, dg.MetadataValue] = {COMMIT_TIME: dg.MetadataValue.int(created_ms)}
    first = min(parts, default=None)
    texts = {LOG_FILE: log_file, FIRST_PART: first}
    return metadata | {name: dg.MetadataValue.text(text) for name, text in texts.items() if text is not None}


def markdown_table(figures: Mapping[str, object]) -> dg.MarkdownMetadataValue:
    """Return a report as a two-column table."""
    lines = [f"| {name} | {f'{value:,}' if isinstance(value, int) else value} |" for name, value in figures.items()]
    return dg.MetadataValue.md("\n".join(["| | |", "|---|---:|", *lines]))


def _column_schema(snapshot: icedb.Snapshot) -> dg.TableSchema:
    required = {c.casefold() for c in snapshot.spec.required}
    columns = [
        dg.TableColumn(c, t, constraints=dg.TableColumnConstraints(nullable=c.casefold() not in required))
        for c, t in snapshot.schema.items()
    ]
    for name, type_ in snapshot.visible_partitions.items():
        columns.append(dg.TableColumn(name, type_, description="partition column"))
    return dg.TableSchema(columns=columns)


def _or_why_not(make: Callable[[], dg.MetadataValue]) -> dg.MetadataValue:
    """Return a metadata value, or a text with the reason why there is none."""
    try:
        return make()
    except IceDBError as error:
        return dg.MetadataValue.text(f"not available: {error}")
    except Exception as error:  # any error: the rows are committed
        logger.warning("some metadata is missing", exc_info=True)
        return dg.MetadataValue.text(f"not available ({type(error).__name__}); see the run's log")


def _row_count(snapshot: icedb.Snapshot, parts: Sequence[Part]) -> dg.MetadataValue:
    if any(part.rows is None or snapshot.is_older(part) for part in parts):
        return dg.MetadataValue.text("unknown without reading: some parts are of another program or partitioning")
    return dg.MetadataValue.int(sum(part.rows or 0 for part in parts))


def _preview(snapshot: icedb.Snapshot, partitions: str | None, rows: int) -> dg.MetadataValue:
    """Return some of the rows written last, from one part: the smallest of its commit."""
    if not snapshot.parts:
        return dg.MetadataValue.md("no rows")
    # A part of an older partitioning may hold rows of other partitions.
    parts = [part for part in snapshot.in_partitions(partitions) if partitions is None or not snapshot.is_older(part)]
    if not parts:
        return dg.MetadataValue.md("no rows")
    newest = min(parts, key=lambda part: (-part.created_ms, part.bytes, part.key))
    types = snapshot.columns
    previewed = dict([*types.items()][:PREVIEW_COLUMNS_MAX])
    selected = ", ".join(_cut(name, type_) for name, type_ in previewed.items())
    answer = replace(snapshot, parts=(newest,)).query(f"SELECT {selected} FROM t LIMIT {rows}").fetchall()
    more = len(types) - len(previewed)
    cut = [[value if value is None else _shortened(value) for value in row] for row in answer]
    return dg.MetadataValue.md(table(previewed, cut) + (f"\n\nand {more} more columns" if more else ""))


def _cut(column: str, type_: str) -> str:
    """Return SQL for a column as text, cut to one character over the limit, because values may be large."""
    name = quote_name(column)
    if type_ == "BLOB":
        return f"octet_length({name}) || ' bytes'"
    return f"left(CAST({name} AS VARCHAR), {PREVIEW_CHARACTERS_MAX + 1})"


def _shortened(value: str) -> str:
    return value if len(value) <= PREVIEW_CHARACTERS_MAX else f"{value[:PREVIEW_CHARACTERS_MAX]}…"
