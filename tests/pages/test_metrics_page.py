"""The page on metrics lists every metric of the services with its labels, and names follow the conventions."""

from __future__ import annotations

import re

import pytest

from tests.support.site.metric_families import ExposedMetric, metrics_of_services
from tests.support.site.pages import DOCS

PAGE = (DOCS / "metrics.md").read_text()
_ROW = re.compile(r"^\| `(icedb_\w+)` \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
METRICS = [metric for metrics in metrics_of_services().values() for metric in metrics]
#: Units that Prometheus does not use: base units are seconds and bytes.
_OTHER_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|days|kb|mb|gb|kib|mib|percent)(_|$)")


def test_the_page_lists_every_metric_with_its_labels() -> None:
    listed = {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, labels, _ in _ROW.findall(PAGE)}
    assert listed == {metric.name: metric.labels for metric in METRICS}
    assert len(_ROW.findall(PAGE)) == len(listed), "each is listed once"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_follows_the_conventions(metric: ExposedMetric) -> None:
    assert metric.help.endswith("."), "a sentence"
    assert not _OTHER_UNITS.search(metric.name), "base units are seconds and bytes"
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert not metric.name.endswith(("_count", "_sum", "_bucket")), "these endings belong to histograms"
    if "timestamp" in metric.name or metric.kind == "histogram":
        assert metric.name.endswith("_seconds")
    assert "partition" not in metric.labels, "the number of partitions is not bounded"
