"""Events of maintenance runs in Dagster's event log: an observation of the table, and the reason of a failure."""

from __future__ import annotations

import dagster as dg

import icedb
from icedb_dagster.maintenance.dropped_partitions import dropped_table, observed_as_dropped
from icedb_dagster.maintenance.verbs import MaintenanceReport
from icedb_dagster.metadata import markdown
from icedb_dagster.metadata.data_versions import DATA_VERSION_TAG, data_version, recorded_data_version
from icedb_dagster.metadata.problem_list import problems_table
from icedb_dagster.metadata.table_metadata import markdown_table, table_metadata

__all__ = ["log_report"]


def log_report(
    context: dg.OpExecutionContext, key: dg.AssetKey, verb: str, table: icedb.Table, report: MaintenanceReport
) -> None:
    """Log the work done and the state of the table. Raises dagster.Failure for a report with a failure."""
    context.log.info("%s of %s: %s", verb, table.uri, ", ".join(f"{n}: {v}" for n, v in report.figures.items()))
    figures = {n: markdown.escaped(v) if isinstance(v, str) else v for n, v in report.figures.items()}
    metadata: dict[str, dg.MetadataValue] = {verb: markdown_table(figures)}
    if report.problems:
        metadata["problems"] = problems_table(report.problems)
    # An observation without a data version would erase that of an observable asset.
    if report.failure:  # a damaged table may have no readable snapshot
        version, of_table = recorded_data_version(context.instance, key), {}
    else:
        snapshot = table.snapshot()
        version, of_table = data_version(context.instance, key, table, snapshot).value, table_metadata(snapshot)
        if report.dropped:
            metadata["dropped partitions"] = dropped_table(report.dropped)
        if report.dropped and not report.dry_run:
            for event in observed_as_dropped(context, key, snapshot, report.dropped):
                context.log_event(event)
    tags = {} if version is None else {DATA_VERSION_TAG: version}
    context.log_event(dg.AssetObservation(key, metadata={**metadata, **of_table}, tags=tags))
    if report.failure:
        raise dg.Failure(report.failure, metadata=metadata, allow_retries=False)
