"""The metrics that each service exposes, with their types and labels, after each of them has a sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry

from icedb import Table
from icedb.buffering.submissions import BufferStats
from icedb.services.exporter.metrics import ExporterMetrics
from icedb.services.exporter.settings import exporter_settings
from icedb.services.exporter.table_set import TableSet
from icedb.services.ingest.metrics import IngestMetrics
from icedb.services.proxy.metrics import ProxyMetrics
from icedb.transaction import exclusive

#: The endings of the samples of a family.
_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@dataclass(frozen=True)
class ExposedMetric:
    """A metric as a page lists it: counters end in `_total`, and a histogram has the name of its samples' beginning."""

    name: str
    kind: str
    labels: frozenset[str]
    help: str

    @property
    def series(self) -> frozenset[str]:
        """The names of its series."""
        beginning = self.name.removesuffix("_total") if self.kind == "counter" else self.name
        return frozenset(f"{beginning}{ending}" for ending in _ENDINGS[self.kind])


def exposed(registry: CollectorRegistry) -> list[ExposedMetric]:
    """Return the metrics of a registry that have samples, without those of the process itself."""
    metrics = []
    for family in registry.collect():
        if not family.name.startswith("process_"):
            samples = [s for s in family.samples if not s.name.endswith("_created")]
            assert samples, f"{family.name} has no sample"
            labels = frozenset(label for s in samples for label in s.labels) - {"le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            metrics.append(ExposedMetric(name, family.type, labels, family.documentation))
    return metrics


@cache
def metrics_of_services() -> dict[str, list[ExposedMetric]]:
    """Return the metrics of each service."""
    exclusive._rebases.setdefault("events", 0)
    return {
        "exporter": exposed(_exporter()),
        "proxy": exposed(_proxy()),
        "ingest": exposed(_ingest()),
        "dagster": exposed(_dagster()),
    }


def series_of(services: Iterable[list[ExposedMetric]]) -> dict[str, frozenset[str]]:
    """Return the labels of each series of these services, by name."""
    labels: dict[str, frozenset[str]] = {}
    for metrics in services:
        for metric in metrics:
            for name in metric.series:
                labels[name] = metric.labels | ({"le"} if name.endswith("_bucket") else set())
    return labels


def _exporter() -> CollectorRegistry:
    Table.create("memory://metrics/events").insert([{"n": 1}])
    tables = TableSet(exporter_settings("memory://metrics"))
    tables.run_round()
    [watch] = tables.tables.values()
    assert watch.figures.health is not None
    # What a table has after errors, and after a cleanup.
    watch.figures = replace(
        watch.figures, errors={"StoreUnavailable": 1}, health=replace(watch.figures.health, horizon_ms=1)
    )
    return ExporterMetrics(tables).registry


def _proxy() -> CollectorRegistry:
    metrics = ProxyMetrics()
    metrics.record_response("acme", "GetObject", 503, "SlowDown", 0.1, 10)
    metrics.record_refresh(True, 0.1)
    metrics.snapshot_times = {"lake/events": 0}
    return metrics.registry


def _ingest() -> CollectorRegistry:
    metrics = IngestMetrics(
        lambda: {"events": BufferStats(commit_durations=((10, 1), (float("inf"), 1)))}, lambda: {"events": 1}
    )
    metrics.record_response("acme", "events", 429, 0.1, 10)
    metrics.record_rejection("acme", "slow_down")
    metrics.record_events("acme", "events", 1)
    return metrics.registry


def _dagster() -> CollectorRegistry:
    import dagster as dg

    from icedb_dagster.dev.exporter.instance_figures import InstanceFigures, LockFigures, SensorFigures
    from icedb_dagster.dev.exporter.source import DagsterFigures

    tags = {"icedb/table": "events", "icedb/verb": "verify"}
    run = dg.DagsterRun("events_verify", tags=tags, status=dg.DagsterRunStatus.SUCCESS)
    at = datetime(2026, 11, 1, tzinfo=UTC)
    record = dg.RunRecord(1, run, at, at, start_time=at.timestamp(), end_time=at.timestamp())

    registry = CollectorRegistry()
    with dg.DagsterInstance.ephemeral() as instance:
        figures = DagsterFigures(instance, Path(), doctor_interval_ms=None)
        figures.register(registry)
        assert figures._runs is not None
        figures._runs._record(record, count=True)
        figures._runs._count_active([])
    figures._state = InstanceFigures({"events": LockFigures(1, 0)}, {"s": SensorFigures(1, False)}, {"SENSOR": 1})
    figures._findings["pools", "problem"], figures._doctor_ms = 1, 1
    return registry
