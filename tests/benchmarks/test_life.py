"""Few bytes are rewritten during the life of a table, counted with the real planners and commits."""

from __future__ import annotations

import pytest

from benchmarks.harness.figures import Plan
from benchmarks.life import LOG_GOAL, MIXES, PARTS_GOAL, Life, Mix, finding, live, measure
from icedb.operations.retention.merge_log import LOG_FILES_MIN
from icedb.operations.rewrite.merge import TieredMerge

STEADY, SMALL, TENANTS = MIXES


@pytest.fixture(scope="module")
def steady() -> Life:
    return live(STEADY, 1_500)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_maintenance_rewrites_few_bytes(steady: Life) -> None:
    assert 1 < steady.parts_ratio <= PARTS_GOAL
    assert 1 < steady.log_ratio <= LOG_GOAL


@pytest.mark.sampled(days=3)
def test_the_number_of_small_parts_and_log_files_stays_small(steady: Life) -> None:
    assert max(p.most_small_parts for p in steady.points) < TieredMerge().hot_parts
    assert max(p.log_files for p in steady.points) < 2 * LOG_FILES_MIN
    # No row is lost: what lives is what was inserted.
    assert steady.written["append"].parts == sum(steady.live_bytes.values())


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_tenants_that_share_commits_rewrite_few_bytes() -> None:
    life = live(Mix("tenants", 120_000, 400_000, tenants=4, of_tenants=12), 300)
    assert life.parts_ratio <= PARTS_GOAL
    assert life.log_ratio <= LOG_GOAL


@pytest.mark.long
def test_a_simulated_life_is_deterministic() -> None:
    one, other = (live(SMALL, 100, seed=7) for _ in range(2))
    assert (one.written, one.points) == (other.written, other.points)
    assert one.points != live(SMALL, 100, seed=8).points


@pytest.mark.sampled(days=3)
def test_the_finding_has_both_goals_of_each_mix(tmp_path: object, steady: Life) -> None:
    life_finding = finding([steady])
    assert [(c.value, c.limit, c.met) for c in life_finding.checks] == [
        (steady.parts_ratio, PARTS_GOAL, True),
        (steady.log_ratio, LOG_GOAL, True),
    ]
    assert {len(values) for curve in life_finding.curves for values in [curve.x, *curve.lines.values()]} == {
        len(steady.points)
    }
    steps: list[str] = []
    [of_all] = measure(Plan(shrink=200), tmp_path, steps.append)  # type: ignore[arg-type]
    assert of_all.key == "life"
    assert len(of_all.checks) == 2 * len(MIXES)
    assert steps
