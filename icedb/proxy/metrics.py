"""What the proxy did, as numbers that Prometheus collects.

Labels are names of tenants that proved who they are, S3 operations and codes: what a stranger sends never becomes one,
so that nobody can make the proxy remember more and more.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

__all__ = ["CONTENT_TYPE", "Metrics"]

#: Of `Metrics.text`.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: From an answer out of memory to a large part over a slow line.
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The numbers of one proxy, since it started."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "icedb_proxy_requests", "Answers to tenants.", ("tenant", "operation", "status"), registry=registry
        )
        self._seconds = Histogram(
            "icedb_proxy_request_seconds",
            "From a request's head to the end of its answer, of tenants.",
            ("operation",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._bytes = Counter("icedb_proxy_sent_bytes", "Bodies of answers to tenants.", ("tenant",), registry=registry)
        self._refused = Counter(
            "icedb_proxy_refused",
            "Requests answered before it was known whose they were.",
            ("code",),
            registry=registry,
        )
        #: Requests that are being answered.
        self.in_progress = Gauge("icedb_proxy_requests_in_progress", "Requests being answered.", registry=registry)
        #: Tables whose snapshot is held.
        self.tables_open = Gauge("icedb_proxy_tables_open", "Tables whose snapshot is held.", registry=registry)
        #: The live parts of all of them.
        self.live_parts = Gauge("icedb_proxy_live_parts", "Live parts of the tables held.", registry=registry)
        self._refreshes = Counter(
            "icedb_proxy_table_refreshes", "Looks for what is new in a table.", ("result",), registry=registry
        )
        self._refresh_seconds = Histogram(
            "icedb_proxy_table_refresh_seconds", "How long such a look took.", buckets=_SECONDS, registry=registry
        )
        self._reloads = Counter(
            "icedb_proxy_reloads", "Times that the tenants' file was loaded again.", ("result",), registry=registry
        )
        self._control_plane_errors = Counter(
            "icedb_proxy_control_plane_errors", "Questions that the control plane did not answer.", registry=registry
        )
        for labelled in (self._refreshes, self._reloads):
            for result in ("ok", "error"):
                labelled.labels(result)  # shown as 0 from the start: an alert needs the number before the first error

    def answered(self, tenant: str | None, operation: str, status: int, code: str, seconds: float, bytes_: int) -> None:
        """An answer is over. `tenant`: the name, once it is proven whose request it was.

        `operation`: one of S3's, by a name of ours and not the client's. `code`: of S3's error, or nothing.
        `bytes_`: of the body, as far as they were sent.
        """
        if tenant is None:
            self._refused.labels(code).inc()
            return
        self._requests.labels(tenant, operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)
        self._bytes.labels(tenant).inc(bytes_)

    def refreshed(self, ok: bool, seconds: float) -> None:
        """Somebody looked for what is new in a table; `ok`: and now knows it."""
        self._refreshes.labels(_result(ok)).inc()
        self._refresh_seconds.observe(seconds)

    def reloaded(self, ok: bool) -> None:
        """The tenants' file was loaded again; `ok`: and holds."""
        self._reloads.labels(_result(ok)).inc()

    def control_plane_failed(self) -> None:
        """The control plane did not answer, or nothing that could be understood."""
        self._control_plane_errors.inc()

    def text(self) -> bytes:
        """All numbers, in Prometheus' text format; see CONTENT_TYPE."""
        return generate_latest(self._registry)


def _result(ok: bool) -> str:
    return "ok" if ok else "error"
