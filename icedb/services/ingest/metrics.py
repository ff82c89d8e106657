"""What the service did, as numbers that Prometheus collects. Labels are names of the configuration and ours, never a
stranger's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from icedb.buffering.submissions import BufferStats

__all__ = ["CONTENT_TYPE", "IngestMetrics"]

#: Of `IngestMetrics.text`.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NOBODY = ""
#: Of each table: a name, what it is, a number of `BufferStats`, and by what it is divided.
_TOTALS = (
    ("icedb_ingest_commits", "Commits.", "commits", 1),
    ("icedb_ingest_committed_rows", "Rows that were committed.", "committed_rows", 1),
    ("icedb_ingest_repeated_rows", "Rows that were there before, by their id.", "repeated_rows", 1),
    ("icedb_ingest_quarantined_rows", "Rows that were set aside.", "quarantined_rows", 1),
    ("icedb_ingest_failed_rows", "Rows that were refused, or could not be committed.", "failed_rows", 1),
    ("icedb_ingest_retries", "Times that a commit was tried again.", "retries", 1),
    ("icedb_ingest_commit_seconds", "Time that commits took.", "total_commit_ms", 1000),
)
_NOW = (
    ("icedb_ingest_pending_rows", "Rows that wait to be committed.", "pending_rows", 1),
    ("icedb_ingest_pending_bytes", "Bytes of rows that wait to be committed.", "pending_bytes", 1),
    ("icedb_ingest_oldest_pending_seconds", "How long the oldest of them waits.", "oldest_pending_ms", 1000),
    ("icedb_ingest_last_commit_seconds", "Time that the last commit took.", "last_commit_ms", 1000),
    ("icedb_ingest_known_ids", "Ids that are remembered.", "known_ids", 1),
)


class IngestMetrics:
    """The numbers of one service, since it started."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "icedb_ingest_requests",
            "Requests that were answered; tenant is empty when it was not known whose they were.",
            ("tenant", "endpoint", "status"),
            registry=registry,
        )
        self._refused = Counter(
            "icedb_ingest_refused_requests",
            "Requests of tenants that were refused, by the name of the error.",
            ("tenant", "error"),
            registry=registry,
        )
        self._seconds = Histogram(
            "icedb_ingest_request_seconds",
            "From a request's head to its answer, the commit included.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._events = Counter(
            "icedb_ingest_events", "Events that were answered with 2xx.", ("tenant", "table"), registry=registry
        )
        self._bytes = Counter(
            "icedb_ingest_received_bytes", "Bodies of requests, as they were sent.", ("tenant",), registry=registry
        )
        #: Requests that are being answered.
        self.in_progress = Gauge("icedb_ingest_requests_in_progress", "Requests being answered.", registry=registry)
        #: Of bodies that are in memory.
        self.held_bytes = Gauge("icedb_ingest_held_bytes", "Bytes of bodies in memory.", registry=registry)
        #: Lines that the access log could not write.
        self.lost_lines = Gauge("icedb_ingest_access_log_lost_lines", "Lines that were not written.", registry=registry)
        self._reloads = Counter(
            "icedb_ingest_reloads", "Times that the tenants' file was loaded again.", ("result",), registry=registry
        )
        for result in ("ok", "error"):
            self._reloads.labels(result)  # shown as 0 from the start: an alert needs the number before the first error
        self._tables = _TableCollector()
        registry.register(self._tables)

    def answered(self, tenant: str | None, endpoint: str, status: int, seconds: float, bytes_: int) -> None:
        """An answer is over. `tenant`: once it is proven whose request it was. `endpoint`: by a name of ours."""
        self._requests.labels(tenant or _NOBODY, endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        if tenant is not None:
            self._bytes.labels(tenant).inc(bytes_)

    def refused(self, tenant: str | None, error: str | None) -> None:
        """Count a refusal of a tenant's request; nothing without a tenant or an error."""
        if tenant is not None and error is not None:
            self._refused.labels(tenant, error).inc()

    def accepted(self, tenant: str, table: str, events: int) -> None:
        """Events are committed."""
        self._events.labels(tenant, table).inc(events)

    def reloaded(self, ok: bool) -> None:
        """The tenants' file was loaded again; `ok`: and holds."""
        self._reloads.labels("ok" if ok else "error").inc()

    def text(self, tables: Mapping[str, BufferStats], columns: Mapping[str, int]) -> bytes:
        """All numbers, in Prometheus' text format; see CONTENT_TYPE. `columns`: of each table."""
        self._tables.stats, self._tables.columns = tables, columns
        return generate_latest(self._registry)


class _TableCollector:
    """What the writers of tables count themselves."""

    def __init__(self) -> None:
        self.stats: Mapping[str, BufferStats] = {}
        self.columns: Mapping[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        for name, text, field, unit in _TOTALS:
            yield self._filled(CounterMetricFamily(name, text, labels=["table"]), field, unit)
        for name, text, field, unit in _NOW:
            yield self._filled(GaugeMetricFamily(name, text, labels=["table"]), field, unit)

        columns = GaugeMetricFamily("icedb_ingest_table_columns", "Columns of the table.", labels=["table"])
        for name, number in self.columns.items():
            columns.add_metric([name], number)
        yield columns

    def describe(self) -> Iterable[Metric]:
        return ()

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, field: str, unit: int) -> Metric:
        for table, stats in self.stats.items():
            family.add_metric([table], getattr(stats, field) / unit)
        return family
