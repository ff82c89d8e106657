"""The figures of the tables as metrics of Prometheus. A scrape makes no request to a store.

The label `table` is the path below the root. There is no label of partitions, because their number is not bounded.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from icedb.operations.health.table_health import Due, TableHealth
from icedb.reader.history import CommitKind
from icedb.services.exporter.table_set import TableSet
from icedb.services.exporter.table_watch import OrphanFigures, TableFigures, TableWatch
from icedb.services.http.metrics import ComputedMetrics, ServiceMetrics

__all__ = ["ExporterMetrics"]

#: Gauges of a table that can be read: name, help text, and the value, or None if it is unknown.
_HEALTH: tuple[tuple[str, str, Callable[[TableHealth], float | None]], ...] = (
    ("icedb_table_live_parts", "Live parts (data files).", lambda h: h.live_parts),
    ("icedb_table_live_rows", "Rows of the live parts.", lambda h: h.live_rows),
    ("icedb_table_live_bytes", "Bytes of the live parts.", lambda h: h.live_bytes),
    ("icedb_table_partitions", "Partitions that have live parts.", lambda h: len(h.partitions)),
    ("icedb_table_small_parts", "Live parts that a merge (compaction) would take.", lambda h: h.small_parts),
    ("icedb_table_log_files", "Log files that a program reads to open the table.", lambda h: h.log_files),
    ("icedb_table_small_log_files", "Log files that a merge of the log would take.", lambda h: h.small_log_files),
    ("icedb_table_dead_parts", "Superseded parts that the log still records.", lambda h: h.dead_parts),
    ("icedb_table_dead_bytes", "Bytes of superseded parts.", lambda h: h.dead_bytes),
    ("icedb_table_expired_parts", "Superseded parts that cleanup (VACUUM) may delete.", lambda h: h.expired_parts),
    ("icedb_table_expired_bytes", "Bytes of parts that cleanup may delete.", lambda h: h.expired_bytes),
    ("icedb_table_expired_log_files", "Log files that cleanup may delete.", lambda h: h.expired_log_files),
    (
        "icedb_table_newest_rows_timestamp_seconds",
        "Time of the newest rows, as far as the log records it.",
        lambda h: _seconds(h.no_rows_after_ms),
    ),
    (
        "icedb_table_horizon_timestamp_seconds",
        "Time before which no snapshot can be read. Absent if all can.",
        lambda h: _seconds(h.horizon_ms or None),
    ),
)
#: Gauges of a table whose parts were listed, likewise.
_ORPHANS: tuple[tuple[str, str, Callable[[OrphanFigures], float]], ...] = (
    ("icedb_table_orphan_parts", "Old parts that no log file names.", lambda o: o.parts),
    ("icedb_table_orphan_bytes", "Bytes of orphans.", lambda o: o.bytes),
    (
        "icedb_table_listing_timestamp_seconds",
        "Time of the last listing of the parts, which finds orphans.",
        lambda o: o.listed_ms / 1000,
    ),
)
_QUARANTINE = "_quarantine"
#: Kinds whose counter starts at 0 for each table, because a rate needs a sample before the first commit.
_FREQUENT: frozenset[CommitKind] = frozenset({"insert", "merge", "merge_log", "cleanup"})


class ExporterMetrics(ServiceMetrics):
    """The metrics of one exporter."""

    def __init__(self, tables: TableSet) -> None:
        super().__init__("icedb_exporter")
        self._tables = tables
        self.registry.register(ComputedMetrics(self._collect))

    def _collect(self) -> Iterator[Metric]:
        yield from self._of_exporter()
        yield from self._of_disks()
        watches = sorted(self._tables.tables.values(), key=lambda watch: watch.name)
        # The figures of one moment: a round may replace them during the scrape.
        figures = {watch.name: watch.figures for watch in watches}
        yield from _states(figures)
        for name, text, value in _HEALTH:
            yield _gauge(name, text, {t: value(f.health) for t, f in figures.items() if f.health is not None})
        for name, text, value_of in _ORPHANS:
            yield _gauge(name, text, {t: value_of(f.orphans) for t, f in figures.items() if f.orphans is not None})
        yield _gauge(
            "icedb_table_quarantined_rows",
            "Rows of the table's quarantine, which did not fit the table.",
            _quarantined(watches, figures),
        )
        yield from _maintenance(figures)
        yield from _commits(figures)

    def _of_exporter(self) -> Iterator[Metric]:
        tables = self._tables
        yield GaugeMetricFamily("icedb_exporter_tables", "Tables below the root.", value=len(tables.tables))
        yield GaugeMetricFamily(
            "icedb_exporter_round_duration_seconds", "Duration of the last round over the tables.",
            value=tables.round_seconds,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "icedb_exporter_round_timestamp_seconds", "End of the last round over the tables.",
            value=tables.round_ms / 1000,
        )  # fmt: skip
        yield CounterMetricFamily(
            "icedb_exporter_search_errors", "Searches for tables that failed.", value=tables.search_errors
        )

    def _of_disks(self) -> Iterator[Metric]:
        """Yield the free space of the disks on which this machine stores tables and temporary files."""
        folders = {"temporary": Path(tempfile.gettempdir()), "tables": Path(self._tables.root)}
        free = {name: _free_bytes(folder) for name, folder in folders.items() if folder.is_dir()}
        yield _gauge("icedb_disk_free_bytes", "Free bytes on the disk of a folder of this machine.", free, "folder")


def _gauge(name: str, text: str, values: Mapping[str, float | None], label: str = "table") -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for labelled, value in values.items():
        if value is not None:
            family.add_metric([labelled], value)
    return family


def _states(figures: Mapping[str, TableFigures]) -> Iterator[Metric]:
    yield _gauge(
        "icedb_table_up", "Whether the last refresh could read the table.",
        {t: float(f.health is not None) for t, f in figures.items()},
    )  # fmt: skip
    yield _gauge(
        "icedb_table_refresh_timestamp_seconds", "Time of the last refresh that could read the table.",
        {t: _seconds(f.refreshed_ms or None) for t, f in figures.items()},
    )  # fmt: skip
    errors = CounterMetricFamily(
        "icedb_table_errors", "Refreshes and listings that failed, by the error's class.", labels=["table", "error"]
    )
    for table, of_table in figures.items():
        for name, count in of_table.errors.items():
            errors.add_metric([table, name], count)
    yield errors


def _maintenance(figures: Mapping[str, TableFigures]) -> Iterator[Metric]:
    due = GaugeMetricFamily(
        "icedb_table_maintenance_due", "Whether this kind of maintenance is due.", labels=["table", "verb"]
    )
    for table, of_table in figures.items():
        if of_table.health is not None:
            recommended = {r.due for r in of_table.health.recommendations}
            for verb in get_args(Due):
                due.add_metric([table, verb], float(verb in recommended))
    yield due


def _commits(figures: Mapping[str, TableFigures]) -> Iterator[Metric]:
    commits = CounterMetricFamily(
        "icedb_table_commits", "Commits since the start of the exporter.", labels=["table", "kind"]
    )
    newest = GaugeMetricFamily(
        "icedb_table_last_commit_timestamp_seconds", "Time of the newest commit.", labels=["table", "kind"]
    )
    for table, of_table in figures.items():
        for kind in sorted(of_table.last_commits.keys() | of_table.commits.keys() | _FREQUENT):
            commits.add_metric([table, kind], of_table.commits.get(kind, 0))
        for kind, at_ms in of_table.last_commits.items():
            newest.add_metric([table, kind], at_ms / 1000)
    yield commits
    yield newest


def _quarantined(watches: list[TableWatch], figures: Mapping[str, TableFigures]) -> dict[str, float | None]:
    """Return the rows of each table's quarantine, which is the table beside it with that ending; 0 without one."""
    rows: dict[str, float | None] = {}
    for watch in watches:
        if figures[watch.name].health is None or watch.name.endswith(_QUARANTINE):
            continue
        quarantine = figures.get(f"{watch.name}{_QUARANTINE}")
        if quarantine is None:
            rows[watch.name] = 0
        elif quarantine.health is not None:
            rows[watch.name] = quarantine.health.live_rows
    return rows


def _seconds(unix_ms: int | None) -> float | None:
    return None if unix_ms is None else unix_ms / 1000


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
