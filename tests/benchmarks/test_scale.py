"""The simulated year: its counts equal those of a real server, and its sums a calculation by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.scale import DAY_S, LOADS, Inputs, Load, Prices, limits_of, on_paper, simulate
from benchmarks.scale_requests import Costs, count_all, read_costs, requests_of
from tests.support.object_stores.counting_proxy import CountingProxy


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_the_stored_counts_equal_those_of_a_server(
    s3_server: object, storage_options: Mapping[str, str], s3: object
) -> None:
    with CountingProxy(s3_server.endpoint).running() as proxy:  # type: ignore[attr-defined]
        counted = count_all(proxy, s3.uri, {**storage_options, "AWS_ENDPOINT_URL": proxy.endpoint})  # type: ignore[attr-defined]
    assert counted == read_costs()


def test_requests_have_a_fixed_part_and_a_part_for_each_unit() -> None:
    costs: Costs = {"merge": {"PUT": {"each": 2, "group": 1}, "GET": {"input": 3}}}
    assert requests_of(costs, "merge", group=4, input=10) == {"PUT": 6, "GET": 30}


def test_a_tiny_year_equals_a_manual_count() -> None:
    # One day, a commit a minute with a full part, and one reader that looks once a minute. Nothing is merged.
    costs: Costs = {
        "append": {"PUT": {"each": 1, "part": 1}},
        "refresh": {"LIST": {"each": 1}, "GET": {"log_file": 1}},
        "open": {"GET": {"each": 1}},
        "merge_log": {"PUT": {"each": 2}},
        "cleanup": {"LIST": {"each": 1}},
    }
    inputs = Inputs(event_bytes=100, readers=1, refresh_s=60, keep_days=30)
    load = Load(1_000, 60, part_bytes_max=1_000_000)
    assert limits_of(load.part_bytes(inputs), load.part_bytes_max) == []
    prices = Prices(put=1, get=0.1, gb_month=1_000)
    month = simulate(load, days=30, inputs=inputs, prices=prices, costs=costs)
    days, minutes = 30, 30 * 1_440
    # Every hour there are 60 log files more, enough to be merged; at the very first there are 5. Four cleanups a day.
    log_merges, cleanups = days * 24 - 1, days * 4
    assert month.requests == pytest.approx(
        {
            "PUT": 2 * minutes + 3 * log_merges + cleanups,
            "GET": minutes + log_merges + cleanups,
            "LIST": minutes + cleanups,
            "DELETE MANY": 0,
        }
    )
    assert month.live_parts == pytest.approx(minutes)
    assert month.stored_bytes == pytest.approx(days * DAY_S * 1_000 * 100)
    assert month.dollars["PUT"] == pytest.approx(month.requests["PUT"])
    assert month.dollars["GET"] == pytest.approx(month.requests["GET"] * 0.1)
    assert month.dollars["storage"] == pytest.approx(259.2 * 1_000)
    assert (month.rewrites, month.merge_machines) == (0, 0)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_formulas_and_simulation_agree(load: Load) -> None:
    simulated, paper = simulate(load, days=40), on_paper(load)
    for kind in ("PUT", "GET"):
        assert simulated.requests[kind] == pytest.approx(paper.requests[kind], rel=0.15), kind
    assert simulated.total_dollars == pytest.approx(paper.total_dollars, rel=0.1)
    assert simulated.live_parts == pytest.approx(paper.live_parts, rel=0.1)
    assert simulated.rewrites == pytest.approx(paper.rewrites, abs=0.2)
