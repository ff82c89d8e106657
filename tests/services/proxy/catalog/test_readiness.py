"""The readiness of a proxy: which tables a check opens, and its results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from icedb.errors import StoreUnavailable
from icedb.services.proxy.catalog import readiness
from icedb.services.proxy.catalog.readiness import CACHE_SECONDS, TABLES_MAX, TableReadiness
from tests.support.proxy.proxy_worlds import ProxyWorld, in_still_loop


class Store:
    """Tables of a store, of which some are gone. `opened` are the addresses that a check opened."""

    def __init__(self) -> None:
        self.tables = ["a", "b", "c"]
        self.gone: set[str] = set()
        self.opened: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self.check = TableReadiness(lambda: self.tables, self.open)

    def open(self, table: str) -> None:
        self.opened.append(table)
        assert self.answers.wait(60)
        if table in self.gone:
            raise StoreUnavailable("gone")

    async def reasons(self) -> tuple[tuple[str, ...], list[str]]:
        """Return the reasons, and the tables that were opened for them."""
        self.opened.clear()
        return await self.check.reasons(), sorted(self.opened)


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.answers.set()
    made.check.close()


@in_still_loop
async def _checked(store: Store) -> None:
    world = ProxyWorld()

    async def after_cache() -> tuple[tuple[str, ...], list[str]]:
        assert await store.reasons() == (before, [])
        world.advance(int(CACHE_SECONDS * 1000) + 1)
        return await store.reasons()

    before, opened = await store.reasons()
    assert (before, opened) == ((), ["a", "b", "c"])
    assert await after_cache() == ((), ["a"])  # the last one that was opened
    store.gone = {"a"}
    assert await after_cache() == ((), ["a", "b", "c"])
    assert await after_cache() == ((), ["b"])
    store.gone = {"a", "b", "c"}
    world.advance(int(CACHE_SECONDS * 1000) + 1)
    before, opened = await store.reasons()
    assert before == tuple(f"the table {table} cannot be read: gone" for table in "bac")
    store.gone = {"a", "b"}
    assert (await after_cache())[0] == ()
    before = ()
    store.tables = [f"t{n}" for n in range(100)]
    reasons, opened = await after_cache()
    assert (reasons, len(opened)) == ((), TABLES_MAX)
    store.gone = set(store.tables[:-1])  # each check tries others, until it has found the one that exists
    for _ in range(20):
        world.advance(int(CACHE_SECONDS * 1000) + 1)
        before, opened = await store.reasons()
    assert (before, opened) == ((), ["t99"])
    store.tables = []
    assert await after_cache() == ((), [])


def test_a_proxy_is_ready_while_a_checked_table_exists(store: Store) -> None:
    _checked(store)


def test_a_store_that_does_not_answer_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "WAIT_SECONDS", 0.05)

    async def ask() -> None:
        store.answers.clear()
        assert (await store.reasons())[0] == ("the store has not answered for 0 s",)
        assert (await store.reasons())[1] == []  # one check at a time
        store.answers.set()

    asyncio.run(ask())
