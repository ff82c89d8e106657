"""The metrics that all services have.

Names follow the conventions of Prometheus: counters end in `_total`, units are seconds and bytes, and each label has a
bounded number of values. Names of tenants come from the configuration or a control plane, never from unauthenticated
clients.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from icedb import __version__
from icedb.storage.request_counts import REQUEST_COUNTS
from icedb.transaction.exclusive import rebases

__all__ = ["ClientServiceMetrics", "ComputedMetrics", "ServiceMetrics"]


class ComputedMetrics(Collector):
    """Metrics that a function computes for each scrape."""

    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._compute()

    def describe(self) -> Iterable[Metric]:
        """Return no names, so that the registry does not compute the metrics when they are registered."""
        return ()


class ServiceMetrics:
    """The metrics of one process. The names of its own begin with `prefix`, such as `icedb_proxy`."""

    def __init__(self, prefix: str) -> None:
        #: Further collectors are registered here.
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(ComputedMetrics(lambda: _process_metrics(prefix)))

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus. Thread-safe. It can take a tenth of a second."""
        return generate_latest(self.registry)

    def _outcomes(self, name: str, help_text: str) -> Counter:
        """Return a counter of results. It starts at 0, because alerts need a sample before the first error."""
        counter = Counter(name, help_text, ("result",), registry=self.registry)
        for result in ("ok", "error"):
            counter.labels(result)
        return counter

    def _count_outcome(self, counter: Counter, ok: bool) -> None:
        counter.labels("ok" if ok else "error").inc()


class ClientServiceMetrics(ServiceMetrics):
    """The metrics of a service that has clients, tenants and an access log."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._prefix = prefix
        self.in_progress = Gauge(f"{prefix}_requests_in_progress", "Requests in progress.", registry=self.registry)
        #: Lines of the access log that were lost since the start of the process.
        self.lost_lines = 0
        self.registry.register(ComputedMetrics(self._log_metrics))
        self._reloads = self._outcomes(f"{prefix}_reloads", "Reloads of the tenants.")

    def record_reload(self, ok: bool) -> None:
        """Count a reload of the tenants; `ok` means that the file was valid."""
        self._count_outcome(self._reloads, ok)

    def _log_metrics(self) -> Iterator[Metric]:
        name, text = f"{self._prefix}_access_log_lost_lines", "Lines of the access log that were lost."
        yield CounterMetricFamily(name, text, value=self.lost_lines)


def _process_metrics(prefix: str) -> Iterator[Metric]:
    """Yield the build, and the use of stores by this process."""
    build = GaugeMetricFamily(
        "icedb_build_info", "The version of IceDB and of Python; 1.", labels=["service", "version", "python"]
    )
    build.add_metric([prefix.removeprefix("icedb_"), __version__, platform.python_version()], 1)
    yield build
    counts = REQUEST_COUNTS.read()
    for name, text, field in (
        ("icedb_store_requests", "Requests to object stores.", "requests"),
        ("icedb_store_request_errors", "Requests to object stores that failed.", "errors"),
        ("icedb_store_request_seconds", "Time until the responses of object stores.", "seconds"),
        ("icedb_store_transferred_bytes", "Bytes of objects that were read or written.", "bytes"),
    ):
        family = CounterMetricFamily(name, text, labels=["operation"])
        for operation, count in counts.items():
            family.add_metric([operation], getattr(count, field))
        yield family
    conflicts = CounterMetricFamily(
        "icedb_commit_conflicts",
        "Attempts at an exclusive commit that this process repeated, because another writer took the claim.",
        labels=["table"],
    )
    for table, times in rebases().items():
        conflicts.add_metric([table], times)
    yield conflicts
