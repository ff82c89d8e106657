"""The fixtures and habits of all tests; each is described in its module in tests/support."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")

# Asserts of modules that are imported earlier would not be rewritten.
from icedb.testing import ClockedStore, ManualClock
from tests.support.bytecode import keep_bytecode
from tests.support.spark.quick_java import use_quick_java

pytest_plugins = [
    "pytester",
    "tests.support.report",
    "tests.support.scopes",
    "tests.support.spark.spark_session",
    "tests.support.object_stores.stores",
]

# How long an example takes depends on what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

LONGEST_FIRST = ("spark", "dagster", "simulation")

keep_bytecode()
use_quick_java()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt modules and test items, a million objects that live until the end, from garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that take longest first: at the end one worker would be left with one of them.

    The tests of a file stay together, in their order, because they share fixtures.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next((n for n, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)), len(LONGEST_FIRST))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(autouse=True, scope="session")
def _environment_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the home directory and the accounts of the developer from all tests."""
    before = dict(os.environ)
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True, scope="module")
def _process_state() -> Iterator[None]:
    """Restore the logger's level and the signals' handlers, which Dagster and servers in this process change.

    A shell that starts the suite in the background ignores SIGINT. Dagster restores SIGTERM to what SIGINT was, so that
    the processes of later tests would inherit that, and could not be ended.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logger = logging.getLogger("icedb")
    level = logger.level
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    logger.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock()


@pytest.fixture
def clocked(clock: ManualClock) -> ClockedStore:
    """An empty store whose time is the test's."""
    return ClockedStore(clock)
