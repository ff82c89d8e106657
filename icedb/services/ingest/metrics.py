"""Prometheus metrics of the ingest service.

Labels are names from the configuration and names that the service defines, never texts of unauthenticated clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from icedb.buffering.submissions import BufferStats
from icedb.services.http.metrics import ClientServiceMetrics, ComputedMetrics

__all__ = ["IngestMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Counters of each table: name, help text, field of `BufferStats`, and the divisor of its value.
_TOTALS = (
    ("icedb_ingest_commits", "Commits.", "commits", 1),
    ("icedb_ingest_committed_rows", "Rows that were committed.", "committed_rows", 1),
    ("icedb_ingest_repeated_rows", "Rows that were skipped because their id was committed before.", "repeated_rows", 1),
    ("icedb_ingest_quarantined_rows", "Rows that were committed to the quarantine.", "quarantined_rows", 1),
    ("icedb_ingest_failed_rows", "Rows that were rejected or could not be committed.", "failed_rows", 1),
    ("icedb_ingest_commit_retries", "Retries of commits.", "retries", 1),
)
#: Gauges of each table, likewise.
_NOW = (
    ("icedb_ingest_pending_rows", "Rows that are not committed yet.", "pending_rows", 1),
    ("icedb_ingest_pending_bytes", "Bytes of rows that are not committed yet.", "pending_bytes", 1),
    ("icedb_ingest_oldest_pending_age_seconds", "Age of the oldest uncommitted row.", "oldest_pending_ms", 1000),
    ("icedb_ingest_known_ids", "Ids in memory.", "known_ids", 1),
)


class IngestMetrics(ClientServiceMetrics):
    """The metrics of one process. `stats` and `columns` return statistics and number of columns of each table."""

    def __init__(
        self, stats: Callable[[], Mapping[str, BufferStats]], columns: Callable[[], Mapping[str, int]]
    ) -> None:
        super().__init__("icedb_ingest")
        registry = self.registry
        self._requests = Counter(
            "icedb_ingest_requests",
            "Responses; tenant is empty for unauthenticated requests.",
            ("tenant", "endpoint", "status"),
            registry=registry,
        )
        self._refused = Counter(
            "icedb_ingest_refused_requests",
            "Rejected requests, with the error code as the reason; tenant is empty for unauthenticated requests.",
            ("tenant", "reason"),
            registry=registry,
        )
        self._seconds = Histogram(
            "icedb_ingest_request_duration_seconds",
            "Time from a request's head to the end of its response, the commit included.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._events = Counter(
            "icedb_ingest_events", "Events that were acknowledged with 2xx.", ("tenant", "table"), registry=registry
        )
        self._bytes = Counter(
            "icedb_ingest_received_bytes", "Bytes of request bodies as they were sent.", ("tenant",), registry=registry
        )
        self.held_bytes = Gauge("icedb_ingest_held_bytes", "Bytes of request bodies in memory.", registry=registry)
        registry.register(ComputedMetrics(partial(_table_metrics, stats, columns)))

    def record_response(self, tenant: str | None, endpoint: str, status: int, seconds: float, bytes_: int) -> None:
        """Record a response. `tenant` is None for an unauthenticated request; `endpoint` is a name of the service."""
        self._requests.labels(tenant or "", endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        if tenant is not None:
            self._bytes.labels(tenant).inc(bytes_)

    def record_rejection(self, tenant: str | None, error: str | None) -> None:
        """Count a rejected request, of a tenant or of an unauthenticated client. Do nothing without an error code."""
        if error is not None:
            self._refused.labels(tenant or "", error).inc()

    def record_events(self, tenant: str, table: str, events: int) -> None:
        """Count committed events."""
        self._events.labels(tenant, table).inc(events)


def _table_metrics(
    stats_of_tables: Callable[[], Mapping[str, BufferStats]], columns_of_tables: Callable[[], Mapping[str, int]]
) -> Iterator[Metric]:
    """Yield the metrics of the table writers."""
    stats = stats_of_tables()

    def filled(family: CounterMetricFamily | GaugeMetricFamily, field: str, unit: int) -> Metric:
        for table, numbers in stats.items():
            family.add_metric([table], getattr(numbers, field) / unit)
        return family

    for name, text, field, unit in _TOTALS:
        yield filled(CounterMetricFamily(name, text, labels=["table"]), field, unit)
    for name, text, field, unit in _NOW:
        yield filled(GaugeMetricFamily(name, text, labels=["table"]), field, unit)
    commits = HistogramMetricFamily(
        "icedb_ingest_commit_duration_seconds", "Time from the start of a commit to its outcome.", labels=["table"]
    )
    for table, numbers in stats.items():
        buckets = [("+Inf" if ms == math.inf else repr(ms / 1000), count) for ms, count in numbers.commit_durations]
        commits.add_metric([table], buckets, numbers.total_commit_ms / 1000)
    yield commits
    columns = GaugeMetricFamily("icedb_ingest_table_columns", "Columns of the table.", labels=["table"])
    for name, number in columns_of_tables().items():
        columns.add_metric([name], number)
    yield columns
