"""Scopes of test runs: `pytest --scope quick|short|all|rest`.

    quick   tests of one process that need no server and have few cases: no S3, clouds, Spark, Dagster or simulation
    short   all tests except slow ones; of each sampled test, a sample of its cases
    all     every test (the default)
    rest    all tests that `short` excludes; with `--share`, the share of them that a commit's hash selects

`@pytest.mark.sampled` marks a test with many cases. The short run has a sample in which each pair of values of two
parameters occurs, so a test with one parameter keeps all its values; `sampled(cases=3)` has three cases a day, in a
fixed order, so that all cases run within some days. `sampled(days=3)` is for a slow test without a line of its own:
other tests of each short run execute all lines of the library that it executes. It runs every third day, and its file's
other tests of this kind on the days between. The day determines the sample. It is printed, and `--day` repeats it.

`@pytest.mark.slow(seconds=120)` states about how long a test takes: a share has tests for a limited time. A test that
takes longer than a share is only in `all`.
"""

from __future__ import annotations

import os
import random
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import combinations
from typing import Any

import pytest

SCOPES = ("quick", "short", "all", "rest")
#: Marks of tests that `quick` leaves out.
NOT_QUICK = ("s3", "azure", "google", "spark", "dagster", "simulation", "process", "long", "sampled", "slow")
#: Fixtures that start a server.
SERVERS = frozenset(
    {"s3", "s3_server", "storage_options", "azure", "azure_options", "google", "google_options", "shared_session"}
)
#: The audit events of Python when a program starts another.
PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
#: Test-seconds of a share: two workers for some four minutes.
SHARE_SECONDS = 480
#: About how long a test takes that does not state it: a slow one, a sampled case, all cases of a test of some days.
SLOW_SECONDS, SAMPLED_SECONDS, SOME_DAYS_SECONDS = 30, 2, 12
#: After this time, tests of a share that were not begun are skipped: a slow machine must not hold up the check.
SHARE_SECONDS_MAX = 420
SHARE_IS_OVER = "the share's time is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("icedb", "what this project's runs have")
    group.addoption("--scope", choices=SCOPES, default="all", help="which tests: see tests/support/scopes.py [all]")
    today = datetime.now(UTC).date()
    group.addoption(
        "--day", type=date.fromisoformat, default=today, help="the day that chooses samples [today, in UTC]"
    )
    group.addoption("--share", default=None, metavar="HASH", help="with --scope rest: the share that this hash chooses")
    group.addoption(
        "--share-seconds",
        type=int,
        default=SHARE_SECONDS_MAX,
        help="skip the rest of a share after this time [%(default)s]",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each worker the day of the whole run, which may begin right before midnight."""
    node.workerinput["day"] = str(node.config.option.day)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.option.day = date.fromisoformat(config.workerinput["day"])
    if config.option.scope == "quick":
        sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a quick test that starts a process, so that the marks are true."""
    if event in PROCESS_EVENTS and "PYTEST_CURRENT_TEST" in os.environ:
        raise RuntimeError(
            f"a test of the quick scope starts a process ({event} {arguments!r:.200}): mark it `process`"
        )


def pytest_report_header(config: pytest.Config) -> str:
    day = f"samples of {config.option.day}: repeat them with --day {config.option.day}"
    share = "" if config.option.share is None else f"; the share of {config.option.share}"
    return f"scope: {config.option.scope} ({day}{share})"


@pytest.fixture
def day(request: pytest.FixtureRequest) -> date:
    """Return the day that selects samples, seeds and stories."""
    chosen: date = request.config.option.day
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = choose(items, config.option.scope, config.option.day, config.option.share)
    left_out = [item for item in items if item not in chosen]
    if left_out:
        items[:] = [item for item in items if item in chosen]
        config.hook.pytest_deselected(items=left_out)


def choose(items: Sequence[pytest.Item], scope: str, day: date, share: str | None) -> set[pytest.Item]:
    """Choose the tests of a scope."""
    if scope == "all":
        return set(items)
    if scope == "quick":
        return {item for item in items if _is_quick(item)}
    short = _short(items, day)
    if scope == "short":
        return short
    rest = [item for item in items if item not in short]
    return set(rest) if share is None else _share(rest, share)


def _is_quick(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(mark) for mark in NOT_QUICK):
        return False
    return SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def _short(items: Iterable[pytest.Item], day: date) -> set[pytest.Item]:
    chosen: set[pytest.Item] = set()
    sampled: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        if item.get_closest_marker("sampled"):
            sampled[_name(item)].append(item)
        else:
            chosen.add(item)
    waiting: Counter[str] = Counter()
    for name, cases in sampled.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        days, number = mark.kwargs.get("days"), mark.kwargs.get("cases")
        if days is not None:
            path = name.partition("::")[0]
            waiting[path] += 1
            if not is_due(day, days, path, waiting[path]):
                continue
        if number is not None:
            selected = rotation(len(cases), number, day.toordinal() // (days or 1), name)
        elif days is not None:
            selected = list(range(len(cases)))
        else:
            selected = pairwise([_values(case) for case in cases], random.Random(f"{day} {name}"))
        chosen.update(cases[n] for n in selected)
    return chosen


def _values(item: pytest.Item) -> dict[int, str]:
    """Return the id of the test's value of each parameter. Its public indices number whole cases, not values."""
    call: Any = getattr(item, "callspec", None)
    return {} if call is None else dict(enumerate(call._idlist))


def pairwise(cases: Sequence[Mapping[Any, Any]], chance: random.Random) -> list[int]:
    """Return numbers of cases in which each pair of values of two parameters occurs that occurs in any case."""
    nothing = {()}  # of a test without parameters
    pairs = [{p for size in (1, 2) for p in combinations(sorted(case.items()), size)} or nothing for case in cases]
    left = set().union(*pairs)
    order = list(range(len(cases)))
    chance.shuffle(order)
    chosen = []
    while left:
        best = max(order, key=lambda n: len(pairs[n] & left))
        chosen.append(best)
        left -= pairs[best]
    return chosen


def rotation(cases: int, number: int, run: int, name: str) -> list[int]:
    """Return the numbers of the cases of a test's nth run: `number` of them, and all within `cases / number` runs.

    The name of the test decides the order, or all tests with two stores would use the same store on a day.
    """
    order = list(range(cases))
    random.Random(name).shuffle(order)
    first = run * number
    return sorted({order[n % cases] for n in range(first, first + min(number, cases))})


def is_due(day: date, days: int, path: str, number: int) -> bool:
    """Return whether the test with this number among the tests of its file with `days` runs on a day.

    The path differs between files, or all files would run their first test on the same day.
    """
    return (day.toordinal() + zlib.crc32(path.encode()) + number) % days == 0


def estimate_seconds(items: Sequence[pytest.Item]) -> dict[pytest.Item, float]:
    """Return about how long each test takes."""
    cases = Counter(_name(item) for item in items)
    estimates: dict[pytest.Item, float] = {}
    for item in items:
        slow, sampled = item.get_closest_marker("slow"), item.get_closest_marker("sampled")
        if slow is not None:
            estimates[item] = float(slow.kwargs.get("seconds", SLOW_SECONDS))
        elif sampled is not None and "days" in sampled.kwargs:
            estimates[item] = SOME_DAYS_SECONDS / cases[_name(item)]
        else:
            estimates[item] = SAMPLED_SECONDS
    return estimates


def _name(item: pytest.Item) -> str:
    """Return the test's name, without the case's parameters."""
    return item.nodeid.partition("[")[0]


def _share(rest: Sequence[pytest.Item], share: str) -> set[pytest.Item]:
    """Choose files in an order that the hash decides, until their tests take as long as a share may.

    Tests that measure time are in none: others run beside them.
    """
    files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    seconds = estimate_seconds(rest)
    for item in rest:
        if seconds[item] <= SHARE_SECONDS and not item.get_closest_marker("alone"):
            files[item.nodeid.partition("::")[0]].append(item)
    names = sorted(files)
    random.Random(share).shuffle(names)
    chosen: set[pytest.Item] = set()
    left = float(SHARE_SECONDS)
    for name in names:
        for item in files[name]:
            if seconds[item] <= left:
                left -= seconds[item]
                chosen.add(item)
    return chosen


_started = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    options = item.config.option
    if options.share is not None and time.monotonic() - _started > options.share_seconds:
        pytest.skip(SHARE_IS_OVER)


def pytest_ignore_collect(collection_path: Any, config: pytest.Config) -> bool | None:
    """Do not import a module for `quick` whose tests all have a mark that it leaves out."""
    if config.option.scope != "quick" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return True if any(f"\npytestmark = pytest.mark.{mark}\n" in text for mark in NOT_QUICK) else None
