"""The benchmark of concurrent commits: every row of every commit is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.figures import OURS, Plan

pytestmark = pytest.mark.s3


@pytest.mark.slow(seconds=6)
def test_concurrent_commits_are_measured_in_a_folder_and_over_a_network(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from benchmarks.writes import commits

    steps: list[str] = []
    local, network = commits.measure(Plan(rounds=1, shrink=50, latency_ms=1), tmp_path / "work", steps.append)
    for finding in (local, network):
        assert finding.key == "commits"
        assert [way.name for way in finding.ways] == [OURS, commits.DELTALAKE]
        assert all(rate > 0 for way in finding.ways for rate in way.values)
        goal = finding.checks[0]
        ours, theirs = (way.median for way in finding.ways)
        assert goal.at_least
        assert goal.value == ours / theirs
        assert goal.why
    assert network.counts == {"PUT of an append": 2}  # the part and the log file: nothing is listed or read
    rate, cost = local.curves
    # Two writers: 20 commits a tenth of both, and one each when they come back from the new table.
    assert rate.x == cost.x
    assert {b - a for a, b in zip(rate.x, rate.x[1:], strict=False)} == {2 * (1_200 // 50 // 20) + 2}
    assert {len(values) for curve in local.curves for values in curve.lines.values()} == {10}
    assert steps


@pytest.mark.parametrize("way", [OURS, "deltalake"])
def test_a_lost_commit_is_detected(tmp_path: Path, way: str) -> None:
    pytest.importorskip("deltalake")
    from benchmarks.writes import commits

    writers = commits.Writers(way)
    writers.open(str(tmp_path / "table"), {})
    writers.check()
    writers.commits += 1
    with pytest.raises(AssertionError, match="has 0 rows after 1 commits of 100"):
        writers.check()
