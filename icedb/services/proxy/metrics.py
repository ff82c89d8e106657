"""What the proxy did, as numbers that Prometheus collects.

Labels are names of tenants that proved who they are, S3 operations and codes: what a stranger sends never becomes one,
so that nobody can make the proxy remember more and more. Of tenants that a control plane knows there can be very many:
the numbers of those are kept that asked last, and who comes back later begins at 0.
"""

from __future__ import annotations

from collections import OrderedDict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

__all__ = ["ABORTED", "CONTENT_TYPE", "ProxyMetrics"]

#: The code of an answer that began well and did not come to its end.
ABORTED = "Aborted"

#: A megabyte of text, and about a tenth of a second of work each time that somebody collects it.
TENANTS_MAX = 1_000

#: Of `ProxyMetrics.text`.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: From an answer out of memory to a large part over a slow line.
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ProxyMetrics:
    """The numbers of one proxy, since it started."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX) -> None:
        registry = self._registry = CollectorRegistry()
        self._tenants_max = tenants_max
        #: Tenants in the order of their last request, and what else the labels of their requests say.
        self._tenants: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
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
        #: Lines that the access log could not write.
        self.lost_lines = Gauge("icedb_proxy_access_log_lost_lines", "Lines that were not written.", registry=registry)
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
        outcome = "aborted" if code == ABORTED else str(status)
        self._remember(tenant, operation, outcome)
        self._requests.labels(tenant, operation, outcome).inc()
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
        """All numbers, in Prometheus' text format; see CONTENT_TYPE. For any thread: it can take a while."""
        return generate_latest(self._registry)

    def _remember(self, tenant: str, operation: str, outcome: str) -> None:
        """Note which labels a tenant has; of too many tenants, one loses them."""
        self._tenants.setdefault(tenant, set()).add((operation, outcome))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._tenants_max:
            forgotten, labels = self._tenants.popitem(last=False)
            self._bytes.remove(forgotten)
            for label in labels:
                self._requests.remove(forgotten, *label)


def _result(ok: bool) -> str:
    return "ok" if ok else "error"
