"""Work without new threads, as during the shutdown of the interpreter since Python 3.12."""

from __future__ import annotations

import threading

import pytest

from icedb import Table
from icedb.util.thread_pool import start_thread_pool
from tests.support.object_stores.stores import Place


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_pool_has_threads() -> None:
    both = threading.Barrier(2)
    with start_thread_pool(2) as pool:
        waited = [pool.submit(both.wait, 30) for _ in range(2)]
        assert sorted(done.result() for done in waited) == [0, 1]


@pytest.mark.usefixtures("ending")
def test_without_threads_work_runs_in_the_calling_thread() -> None:
    done: list[int] = []
    with start_thread_pool(2) as pool:
        pool.submit(done.append, 1)
        assert done == [1]
        failed = pool.submit(int, "no number")
        assert isinstance(failed.exception(), ValueError)


@pytest.mark.usefixtures("ending")
def test_rows_are_inserted_and_read_without_threads(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n % 3 AS m"])
    for n in range(3):
        table.insert([{"n": n}, {"n": n + 1}])
    again = Table.open(local.uri)
    assert again.query("SELECT count(*), sum(n) FROM t").fetchall() == [(6, 9)]
