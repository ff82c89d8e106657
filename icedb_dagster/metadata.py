"""What Dagster's UI shows of a table."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

import icedb

__all__ = ["markdown_table", "table_metadata"]


def table_metadata(snapshot: icedb.Snapshot) -> dict[str, dg.MetadataValue]:
    """Metadata of a snapshot, under Dagster's standard keys where it has one."""
    columns = [dg.TableColumn(name=c, type=t) for c, t in {**snapshot.schema, **snapshot.partition_schema}.items()]
    metadata: dict[str, dg.MetadataValue] = {
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns=columns)),
        "dagster/uri": dg.MetadataValue.text(snapshot.table),
        "icedb/live_parts": dg.MetadataValue.int(len(snapshot.parts)),
        "icedb/partitions": dg.MetadataValue.int(len(snapshot.partitions())),
        "icedb/bytes": dg.MetadataValue.int(snapshot.bytes),
        "icedb/log_files": dg.MetadataValue.int(snapshot.log_files),
        "icedb/snapshot_id": dg.MetadataValue.text(snapshot.id),
        "icedb/snapshot_time": dg.MetadataValue.timestamp(snapshot.as_of_ms / 1000),
    }
    if snapshot.rows is not None:
        metadata["dagster/row_count"] = dg.MetadataValue.int(snapshot.rows)
    return metadata


def markdown_table(figures: Mapping[str, object]) -> dg.MarkdownMetadataValue:
    """A report as a two-column table."""
    lines = [f"| {name} | {f'{value:,}' if isinstance(value, int) else value} |" for name, value in figures.items()]
    return dg.MetadataValue.md("\n".join(["| | |", "|---|---:|", *lines]))
