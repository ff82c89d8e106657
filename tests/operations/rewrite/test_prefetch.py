"""Rewrites of remote parts: each part is fetched once, ahead of its turn, and no local copy stays."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.errors import MissingPart, StoreUnavailable
from icedb.operations.rewrite import prefetch, rewriter
from icedb.operations.rewrite.engine import ResourceLimits
from icedb.operations.rewrite.prefetch import concurrent_fetches, fetch_parts
from icedb.sql.connection_pool import reader
from icedb.sql.connections import MEMORY_BYTES_MIN
from icedb.storage.obstore_store import FETCH_BYTES
from icedb.storage.parts import Part
from icedb.writer.part_writer import put_part
from tests.support.object_stores.counting_proxy import CountingProxy
from tests.support.tables.numbered_rows import data_keys


@pytest.fixture
def proxy(s3_server: Any) -> Iterator[CountingProxy]:
    with CountingProxy(s3_server.endpoint).running() as running:
        yield running


@pytest.fixture
def table(s3: Any, storage_options: dict[str, str], proxy: CountingProxy) -> Table:
    """A table of two partitions with three parts each."""
    options = storage_options | {"AWS_ENDPOINT_URL": proxy.endpoint}
    made = Table.create(s3.uri, partition_by=["n % 2 AS p"], sort_by=["n"], storage_options=options)
    for at in range(3):
        made.insert([{"n": n, "k": at} for n in range(10)])
    proxy.reset()
    return made


def rows(table: Table) -> list[tuple[int, int]]:
    return table.query("SELECT n, k FROM t ORDER BY ALL").fetchall()


def requests_for_parts(proxy: CountingProxy, parts: tuple[Part, ...]) -> list[str]:
    return sorted(r.kind for r in proxy.requests for p in parts if r.path.endswith(p.key))


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_merge_fetches_each_part_once(table: Table, proxy: CountingProxy) -> None:
    before, inputs = rows(table), tuple(table.snapshot().parts)
    proxy.reset()
    report = table.merge()
    assert (report.merged_parts, report.new_parts) == (6, 2)
    assert requests_for_parts(proxy, inputs) == ["GET"] * 6
    assert rows(table) == before


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_rewrite_fetches_each_part_once(table: Table, proxy: CountingProxy) -> None:
    inputs = tuple(p for p in table.snapshot().parts if p.partition == "p=0")
    proxy.reset()
    table.rewrite_partition("p=0", "SELECT * FROM _rows WHERE p = 0 AND k > 0")
    assert requests_for_parts(proxy, inputs) == ["GET"] * 3
    assert [r for r in rows(table) if r[0] % 2 == 0] == [(n, k) for n in range(0, 10, 2) for k in (1, 2)]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_deletion_uses_the_partition_of_fetched_parts(table: Table) -> None:
    table.delete("n = 4 OR (p = 1 AND k < 2)")
    assert rows(table) == [(n, k) for n in range(10) for k in range(3) if n != 4 and (n % 2 == 0 or k == 2)]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_long_names_are_not_fetched(table: Table, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    before, inputs = rows(table), tuple(table.snapshot().parts)
    monkeypatch.setattr(prefetch, "_NAME_BYTES_MAX", 3)
    proxy.reset()
    assert table.merge().new_parts == 2
    assert set(requests_for_parts(proxy, inputs)) > {"GET"}
    assert rows(table) == before


@pytest.mark.s3
def test_local_parts_and_unsafe_keys_are_not_fetched(local: Any, s3: Any, tmp_path: Path) -> None:
    here = Table.create(local.uri)
    here.insert([{"n": 1}])
    [part] = here.snapshot().parts
    far = Table.create(s3.uri, storage_options=s3.storage_options)
    with ThreadPoolExecutor(1) as pool, fetch_parts(here.handle, [part], tmp_path / "a", pool).here() as parts:
        assert parts == (part,)
    odd = [replace(part, key=key) for key in ("t/_data/../../x", "t/_data//x", f"t/_data/{'x' * 256}/y")]
    large = replace(part, bytes=prefetch.PART_BYTES_MAX + 1)
    with ThreadPoolExecutor(1) as pool, fetch_parts(far.handle, [*odd, large], tmp_path / "b", pool).here() as parts:
        assert parts == (*odd, large)
    assert list(tmp_path.glob("[ab]")) == []


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_missing_part_is_named_and_no_copy_stays(table: Table, tmp_path: Path) -> None:
    gone = table.snapshot().parts[2]
    table.handle.store.delete([gone.key])
    listed = data_keys(table.handle.store)
    with pytest.raises(MissingPart, match=gone.key.rpartition("/")[2]):
        table.merge()
    assert data_keys(table.handle.store) == listed


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_copies_are_deleted_after_their_rewrite(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriter, "AHEAD_BYTES", 1)
    local_copies: list[int] = []

    def putting(*args: Any) -> Any:
        # Other threads delete copies meanwhile, on which `Path.rglob` fails.
        local_copies.append(sum(name.endswith(".parquet") for _, _, names in os.walk(tmp_path) for name in names))
        return put_part(*args)

    monkeypatch.setattr(rewriter, "put_part", putting)
    work = rewriter.Rewriting(dict(table.snapshot().schema))
    rewrites = [rewriter.Rewrite("p=0", (p,)) for p in table.snapshot().parts if p.partition == "p=0"]
    new = work.do(table.handle, rewrites, ResourceLimits(memory_bytes=MEMORY_BYTES_MIN, threads=1, folder=tmp_path))
    assert [n.marker.rows for n in new if n.marker] == [5, 5, 5]
    assert len(local_copies) == 3
    assert max(local_copies) <= 4, "the written part and those fetched next, and not all"
    assert list(tmp_path.iterdir()) == []


def test_concurrent_fetches_use_a_share_of_the_memory() -> None:
    for memory in (MEMORY_BYTES_MIN, 2**30, 2**40):
        assert concurrent_fetches(memory) >= 1
        assert concurrent_fetches(memory) * FETCH_BYTES <= memory // 4
    assert concurrent_fetches(2**30) == prefetch.CONCURRENT_FETCHES_MAX


def test_a_failed_put_leaves_no_part_of_any_rewrite(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(local.uri, partition_by=["n"])
    for _ in range(2):
        table.insert([{"n": n} for n in range(9)])
    before = data_keys(table.handle.store)
    lock, puts = threading.Lock(), 0

    def putting(*args: Any) -> Any:
        nonlocal puts
        with lock:
            puts += 1
            if puts == 4:
                raise StoreUnavailable("no")
        return put_part(*args)

    monkeypatch.setattr(rewriter, "put_part", putting)
    with pytest.raises(StoreUnavailable):
        table.merge()
    assert puts >= 4
    assert data_keys(table.handle.store) == before


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(("partitions", "memory_bytes", "threads"), [(8, 2**31, 1), (7, 2**31, None), (8, 2**30, None)])
def test_many_small_rewrites_get_one_thread_each(
    local: Any, monkeypatch: pytest.MonkeyPatch, partitions: int, memory_bytes: int, threads: int | None
) -> None:
    table = Table.create(local.uri, partition_by=["n"])
    for _ in range(2):
        table.insert([{"n": n} for n in range(partitions)])
    used: list[int | None] = []

    def borrowing(*args: Any, **named: Any) -> Any:
        used.append(named["threads"])
        return reader(*args, **named)

    monkeypatch.setattr(rewriter, "reader", borrowing)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert table.merge(memory_bytes=memory_bytes).new_parts == partitions
    assert used == [threads]
    counts = table.query("SELECT n, count(*) FROM t GROUP BY n ORDER BY n").fetchall()
    assert counts == [(n, 2) for n in range(partitions)]


def test_a_fetched_part_is_not_copied_again(memory: Any) -> None:
    table = Table.create(memory.uri, storage_options=memory.storage_options)
    table.insert([{"n": 1}])
    [part] = table.snapshot().parts
    assert table.handle.part_paths.readable([replace(part, path="/here/part.parquet")])[0] == "/here/part.parquet"
    assert table.handle.part_paths.readable([part])[0] != part.path


@pytest.mark.sampled(days=3)
def test_concurrent_threads_share_the_folder_of_copies(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB does not read this process's memory. Each part is copied once, by the first thread."""
    table = Table.create(memory.uri, storage_options=memory.storage_options)
    table.insert([{"n": 1}])
    made, together = [], threading.Barrier(4)
    make = tempfile.mkdtemp

    def slowly(*arguments: Any, **options: Any) -> str:
        time.sleep(0.05)
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("icedb.util.temporary_files.tempfile.mkdtemp", slowly)
    [part] = table.snapshot().parts

    def ask(_: int) -> str:
        together.wait()
        return table.handle.part_paths.readable([part])[0]

    with ThreadPoolExecutor(4) as pool:
        [path] = set(pool.map(ask, range(4)))
    assert Path(path).is_file()
    assert len({folder for folder in made if Path(folder).name.startswith("memory-")}) == 1
