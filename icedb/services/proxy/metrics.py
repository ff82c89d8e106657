"""Prometheus metrics of the proxy.

Labels are names of authenticated tenants, S3 operations and error codes. Texts of unauthenticated clients never become
labels, so that clients cannot fill the memory. A control plane may have very many tenants. So the proxy keeps the
metrics of the most recent ones, and the counters of a tenant that returns later start at 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from icedb.services.http.metrics import ClientServiceMetrics, ComputedMetrics
from icedb.util.clock import Clock, SystemClock

__all__ = ["ABORTED", "ProxyMetrics"]

#: The code of a response that started and was not completed.
ABORTED = "Aborted"

#: Maximum number of tenants: a megabyte of text, and about a tenth of a second of work for each scrape.
TENANTS_MAX = 1_000

#: From a response out of memory to a large part over a slow connection.
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ProxyMetrics(ClientServiceMetrics):
    """The metrics of one process."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX, clock: Clock | None = None) -> None:
        super().__init__("icedb_proxy")
        self._clock = clock or SystemClock()
        registry = self.registry
        self._tenants_max = tenants_max
        #: Tenants in the order of their last request, with the other labels of their requests and rejections.
        self._tenants: OrderedDict[str, tuple[set[tuple[str, str]], set[str]]] = OrderedDict()
        self._requests = Counter(
            "icedb_proxy_requests", "Responses to tenants.", ("tenant", "operation", "status"), registry=registry
        )
        self._seconds = Histogram(
            "icedb_proxy_request_duration_seconds",
            "Time from a request's head to the end of its response, of tenants.",
            ("operation",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._bytes = Counter(
            "icedb_proxy_sent_bytes", "Bytes of response bodies to tenants.", ("tenant",), registry=registry
        )
        self._refused = Counter(
            "icedb_proxy_refused_requests",
            "Rejected requests, with the error code as the reason; tenant is empty for unauthenticated requests.",
            ("tenant", "reason"),
            registry=registry,
        )
        self.tables_open = Gauge("icedb_proxy_tables_open", "Open tables.", registry=registry)
        self.live_parts = Gauge("icedb_proxy_live_parts", "Live parts of the open tables.", registry=registry)
        self._refreshes = self._outcomes("icedb_proxy_table_refreshes", "Refreshes of tables.")
        self._refresh_seconds = Histogram(
            "icedb_proxy_table_refresh_duration_seconds",
            "Time of a refresh of a table.",
            buckets=_SECONDS,
            registry=registry,
        )
        #: The time of the state of each open table, in unix milliseconds, by address.
        self.snapshot_times: Mapping[str, int] = {}
        registry.register(ComputedMetrics(self._snapshot_ages))
        self._control_plane_errors = Counter(
            "icedb_proxy_control_plane_errors", "Lookups of the control plane that failed.", registry=registry
        )

    def record_response(
        self, tenant: str | None, operation: str, status: int, code: str, seconds: float, bytes_: int
    ) -> None:
        """Record a response to a tenant, or to an unauthenticated client (None).

        `operation` is S3's, never a text of the client. `code` is S3's error code, or an empty string.
        """
        if tenant is None:
            self._refused.labels("", code).inc()
            return
        outcome = "aborted" if code == ABORTED else str(status)
        refusal = code if code != ABORTED else ""
        self._note_labels(tenant, operation, outcome, refusal)
        if refusal:
            self._refused.labels(tenant, refusal).inc()
        self._requests.labels(tenant, operation, outcome).inc()
        self._seconds.labels(operation).observe(seconds)
        self._bytes.labels(tenant).inc(bytes_)

    def record_refresh(self, ok: bool, seconds: float) -> None:
        """Record a refresh of a table."""
        self._count_outcome(self._refreshes, ok)
        self._refresh_seconds.observe(seconds)

    def record_control_plane_error(self) -> None:
        """Count a failed lookup of the control plane."""
        self._control_plane_errors.inc()

    def _snapshot_ages(self) -> Iterator[Metric]:
        now_ms = self._clock.now_ms()
        ages = GaugeMetricFamily(
            "icedb_proxy_snapshot_age_seconds", "Time since the state of an open table was read.", labels=["table"]
        )
        for address, read_ms in self.snapshot_times.items():
            ages.add_metric([address], max(0, now_ms - read_ms) / 1000)
        yield ages

    def _note_labels(self, tenant: str, operation: str, outcome: str, refusal: str) -> None:
        """Note the labels of a tenant, and drop those of the least recent tenant if there are too many."""
        requests, refusals = self._tenants.setdefault(tenant, (set(), set()))
        requests.add((operation, outcome))
        if refusal:
            refusals.add(refusal)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._tenants_max:
            dropped, (requests, refusals) = self._tenants.popitem(last=False)
            self._bytes.remove(dropped)
            for labels in requests:
                self._requests.remove(dropped, *labels)
            for code in refusals:
                self._refused.remove(dropped, code)
