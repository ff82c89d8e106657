"""The samples and shares of the suite: together they have every test, and each sample has its pairs of values."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.support.report import CAPTURED_LINES_MAX
from tests.support.scopes import SHARE_IS_OVER, SHARE_SECONDS, choose, estimate_seconds, pairwise, rotation

DAY = date(2026, 1, 31)
DAYS = [DAY + timedelta(n) for n in range(6)]
TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.slow(seconds=100)
def test_slow(): pass

@pytest.mark.slow(seconds=10_000)
def test_for_hours(): pass

@pytest.mark.alone
@pytest.mark.slow
def test_time(): pass

@pytest.mark.s3
def test_server(): pass

@pytest.mark.sampled
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(5))
def test_matrix(a, b, c): pass

@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize("n", range(7))
def test_rotating(n): pass

@pytest.mark.sampled(days=2)
def test_of_even_days(): pass

@pytest.mark.sampled(days=2)
@pytest.mark.parametrize("n", range(2))
def test_of_odd_days(n): pass

@pytest.mark.sampled(days=3, cases=1)
@pytest.mark.parametrize("n", range(3))
def test_of_third_days(n): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nmarkers =\n  alone\n  slow\n  s3\n  sampled\n")
    return pytester.getitems(TESTS)


def names(items: set[pytest.Item]) -> set[str]:
    return {item.name.partition("[")[0] for item in items}


@pytest.mark.long
def test_each_scope_has_its_tests(items: list[pytest.Item]) -> None:
    short = choose(items, "short", DAY, None)
    assert choose(items, "all", DAY, None) == set(items)
    assert names(short) >= {"test_plain", "test_server", "test_matrix", "test_rotating"}
    assert not {"test_slow", "test_time"} & names(short)
    assert names(choose(items, "quick", DAY, None)) == {"test_plain"}
    assert choose(items, "rest", DAY, None) == set(items) - short


@pytest.mark.long
def test_a_sample_has_each_pair_of_values_and_few_cases(items: list[pytest.Item]) -> None:
    cases = [dict(zip("abc", values, strict=True)) for values in product(range(4), range(3), range(5))]
    for seed in range(20):
        chosen = pairwise(cases, random.Random(seed))
        pairs = {pair for n in chosen for pair in combinations(sorted(cases[n].items()), 2)}
        assert pairs == {pair for case in cases for pair in combinations(sorted(case.items()), 2)}
        assert len(chosen) <= 28 < len(cases)  # the least is 20


@pytest.mark.long
def test_samples_of_many_days_have_every_case(items: list[pytest.Item]) -> None:
    days = [DAY + timedelta(n) for n in range(30)]
    assert choose(items, "short", DAY, None) == choose(items, "short", DAY, None)
    assert set().union(*(choose(items, "short", day, None) for day in days)) >= {
        item for item in items if not item.get_closest_marker("slow")
    }


@pytest.mark.long
def test_a_test_of_some_days_runs_on_these_with_all_its_cases(items: list[pytest.Item]) -> None:
    counts = [Counter(item.name.partition("[")[0] for item in choose(items, "short", day, None)) for day in DAYS]
    for even, third in ((day["test_of_even_days"], day["test_of_third_days"]) for day in counts):
        assert (even, third) in {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert [day["test_of_odd_days"] for day in counts] == [0 if day["test_of_even_days"] else 2 for day in counts]
    assert sum(day["test_of_even_days"] for day in counts) == 3
    assert sum(day["test_of_third_days"] for day in counts) == 2


@pytest.mark.parametrize(("cases", "number"), [(7, 2), (8, 2), (3, 5), (1, 1), (10, 3)])
def test_a_rotation_has_all_cases_within_as_few_runs_as_possible(cases: int, number: int) -> None:
    first = DAY.toordinal()
    chosen = [rotation(cases, number, run, "a test") for run in range(first, first - (-cases // number))]
    assert set().union(*chosen) == set(range(cases))
    assert all(len(run) == min(number, cases) for run in chosen)


def test_tests_with_two_stores_use_different_ones_on_a_day() -> None:
    assert {tuple(rotation(2, 1, 0, f"test {n}")) for n in range(20)} == {(0,), (1,)}


@pytest.mark.long
def test_a_share_is_chosen_by_its_hash_and_takes_limited_time(items: list[pytest.Item]) -> None:
    share = choose(items, "rest", DAY, "0f3a")
    assert share == choose(items, "rest", DAY, "0f3a")
    assert share <= choose(items, "rest", DAY, None)
    seconds = estimate_seconds(items)
    assert sum(seconds[item] for item in share) <= SHARE_SECONDS
    assert names(share) >= {"test_slow", "test_matrix", "test_rotating"}
    assert not {"test_for_hours", "test_time"} & names(share), "no share has a longer test or a measurement"


@pytest.mark.process
def test_a_run_prints_a_line_for_each_file_and_the_end_of_failing_output(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.support.report"]')
    pytester.syspathinsert(Path(__file__).parents[2])
    lines = CAPTURED_LINES_MAX + 5
    pytester.makepyfile(
        test_good="def test_one(): pass\ndef test_two(): pass\n",
        test_bad=f"def test_three():\n    for n in range({lines}): print('line', n)\n    assert 1 == 2\n",
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.re_match_lines_random([r" *\d/2  test_good.py +2 passed .* s", r" *\d/2  test_bad.py +1 failed .* s"])
    result.stdout.fnmatch_lines(
        ["FAILED test_bad.py::test_three (call): assert 1 == 2", "*assert 1 == 2", "[[]5 lines before these*"]
    )
    result.stdout.no_fnmatch_line("line 4")
    result.stdout.fnmatch_lines(["line 5"])


@pytest.mark.process
def test_a_skipped_test_or_file_fails_with_no_skips(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.support.report"]')
    pytester.syspathinsert(Path(__file__).parents[2])
    pytester.makepyfile(
        test_one="import pytest\ndef test_one(): pytest.skip('no server')\n",
        test_over=f"import pytest\ndef test_over(): pytest.skip({SHARE_IS_OVER!r})\n",
        test_file="import pytest\npytest.importorskip('no_such_module')\n",
    )
    pytester.runpytest_subprocess().assert_outcomes(skipped=3)
    result = pytester.runpytest_subprocess("--no-skips", "test_one.py", "test_over.py")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*A test was skipped, and --no-skips allows none. Skipped: no server*"])
    result = pytester.runpytest_subprocess("--no-skips", "test_file.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*A file was skipped, and --no-skips allows none.*no_such_module*"])
