"""Prometheus metrics of the proxy.

Labels are names of authenticated tenants, S3 operations and error codes. Texts of unauthenticated clients never become
labels, so that clients cannot fill the memory. A control plane may have very many tenants. So the proxy keeps the
metrics of the most recent ones, and the counters of a tenant that returns later start at 0.
"""

from __future__ import annotations

from collections import OrderedDict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

__all__ = ["ABORTED", "CONTENT_TYPE", "ProxyMetrics"]

#: The code of a response that started and was not completed.
ABORTED = "Aborted"

#: Maximum number of tenants: a megabyte of text, and about a tenth of a second of work for each scrape.
TENANTS_MAX = 1_000

#: The media type of `ProxyMetrics.text`.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: From a response out of memory to a large part over a slow connection.
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ProxyMetrics:
    """The metrics of one process."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX) -> None:
        registry = self._registry = CollectorRegistry()
        self._tenants_max = tenants_max
        #: Tenants in the order of their last request, with the other labels of their requests.
        self._tenants: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "icedb_proxy_requests", "Responses to tenants.", ("tenant", "operation", "status"), registry=registry
        )
        self._seconds = Histogram(
            "icedb_proxy_request_seconds",
            "Time from a request's head to the end of its response, of tenants.",
            ("operation",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._bytes = Counter(
            "icedb_proxy_sent_bytes", "Bytes of response bodies to tenants.", ("tenant",), registry=registry
        )
        self._refused = Counter(
            "icedb_proxy_refused", "Responses to unauthenticated requests.", ("code",), registry=registry
        )
        self.in_progress = Gauge("icedb_proxy_requests_in_progress", "Requests in progress.", registry=registry)
        self.tables_open = Gauge("icedb_proxy_tables_open", "Open tables.", registry=registry)
        self.live_parts = Gauge("icedb_proxy_live_parts", "Live parts of the open tables.", registry=registry)
        self._refreshes = Counter("icedb_proxy_table_refreshes", "Refreshes of tables.", ("result",), registry=registry)
        self._refresh_seconds = Histogram(
            "icedb_proxy_table_refresh_seconds", "Time of a refresh of a table.", buckets=_SECONDS, registry=registry
        )
        self.lost_lines = Gauge(
            "icedb_proxy_access_log_lost_lines", "Lines of the access log that were lost.", registry=registry
        )
        self._reloads = Counter("icedb_proxy_reloads", "Reloads of the tenants.", ("result",), registry=registry)
        self._control_plane_errors = Counter(
            "icedb_proxy_control_plane_errors", "Lookups that the control plane did not answer.", registry=registry
        )
        for labelled in (self._refreshes, self._reloads):
            for result in ("ok", "error"):
                labelled.labels(result)  # start at 0: alerts need a sample before the first error

    def record_response(
        self, tenant: str | None, operation: str, status: int, code: str, seconds: float, bytes_: int
    ) -> None:
        """Record a response.

        Args:
            tenant: The authenticated tenant, or None.
            operation: The S3 operation, never a text of the client.
            status: The HTTP status.
            code: The S3 error code, or an empty string.
            seconds: Time since the request's head.
            bytes_: Bytes of the body that were sent.
        """
        if tenant is None:
            self._refused.labels(code).inc()
            return
        outcome = "aborted" if code == ABORTED else str(status)
        self._note_labels(tenant, operation, outcome)
        self._requests.labels(tenant, operation, outcome).inc()
        self._seconds.labels(operation).observe(seconds)
        self._bytes.labels(tenant).inc(bytes_)

    def record_refresh(self, ok: bool, seconds: float) -> None:
        """Record a refresh of a table."""
        self._refreshes.labels(_result(ok)).inc()
        self._refresh_seconds.observe(seconds)

    def record_reload(self, ok: bool) -> None:
        """Count a reload of the tenants; `ok` means that the file was valid."""
        self._reloads.labels(_result(ok)).inc()

    def record_control_plane_error(self) -> None:
        """Count a failed lookup of the control plane."""
        self._control_plane_errors.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus. Thread-safe. It can take a tenth of a second."""
        return generate_latest(self._registry)

    def _note_labels(self, tenant: str, operation: str, outcome: str) -> None:
        """Note the labels of a tenant, and drop those of the least recent tenant if there are too many."""
        self._tenants.setdefault(tenant, set()).add((operation, outcome))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._tenants_max:
            dropped, labels = self._tenants.popitem(last=False)
            self._bytes.remove(dropped)
            for label in labels:
                self._requests.remove(dropped, *label)


def _result(ok: bool) -> str:
    return "ok" if ok else "error"
