"""Reads through the Iceberg catalog while merges, drops and cleanup run: each answer is of one whole snapshot.

The values of a batch sum to zero over all of its rows, which are in several partitions. Batches of an era are dropped
together. So an answer shows half a batch, half an era, and a part beside the merged part that replaced it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import duckdb
import pytest

from icedb import Table, Timing
from tests.support.proxy.iceberg_catalogs import NAMESPACE, duckdb_catalog, pyiceberg_catalog
from tests.support.proxy.proxy_clients import Access
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

PARTITIONS, ERA, ERAS_KEPT = 2, 3, 1
ROWS = 2 * PARTITIONS
# So short that replaced parts are deleted during the slow test. The proxy promises a reader its parts for HOLD_S only.
HOLD_S = 4
TIMING = Timing(max_skew_ms=1_000, commit_timeout_ms=3_000, grace_ms=6_000)
CONFIG = """
[server]
listen = "127.0.0.1:0"
refresh = "100ms"
hold = "{hold_s}s"

[iceberg]
enabled = true

[[tenant]]
name = "acme"
keys = [{{ id = "ACMEKEY1", secret = "acme-secret" }}]
bucket = [{{ name = "changing", table = "{lake}/changing" }}]
"""


@dataclass
class Changes:
    """The writer's operations so far."""

    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    #: Reads that took longer than HOLD_S, on a busy machine, and then failed: the seconds of each.
    late_reads: list[float] = field(default_factory=list)


def change(table: Table, changes: Changes, stop: threading.Event) -> None:
    while not stop.is_set():
        number = changes.batches
        values = [(p, v) for p in range(PARTITIONS) for v in (number + p, -(number + p))]
        table.insert([{"era": number // ERA, "p": p, "batch": number, "v": v} for p, v in values])
        changes.batches += 1
        if changes.batches % ERA == 0:
            changes.counts["merged"] += table.merge().merged_parts
            if (old := changes.batches // ERA - ERAS_KEPT - 1) >= -1:
                table.drop_partitions(table.snapshot().partitions(f"era = {old}"))
                changes.counts["dropped"] += 1
            changes.counts["deleted"] += len(table.cleanup().deleted_parts)
        stop.wait(0.02)


def ask_pyiceberg(access: Access) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    catalog = pyiceberg_catalog(access)

    def ask() -> list[tuple[int, int]]:
        rows = catalog.load_table(f"{NAMESPACE}.changing").scan(selected_fields=("batch", "v")).to_arrow()
        return list(zip(rows["batch"].to_pylist(), rows["v"].to_pylist(), strict=True))

    yield ask


def ask_duckdb(access: Access) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    with duckdb_catalog(access) as con:
        yield lambda: con.execute(f"SELECT batch, v FROM lake.{NAMESPACE}.changing").fetchall()


def ask_until(
    reader: Any, access: Access, stop: threading.Event, answers: list[list[tuple[int, int]]], changes: Changes
) -> None:
    for ask in reader(access):
        while not stop.is_set():
            began = time.monotonic()
            try:
                answers.append(ask())
            except (FileNotFoundError, duckdb.Error):
                took_s = time.monotonic() - began
                if took_s < HOLD_S:
                    raise
                changes.late_reads.append(took_s)


def check_whole(answer: list[tuple[int, int]]) -> int:
    """Check that an answer is a snapshot, and return its newest batch."""
    rows, sums = Counter(batch for batch, _ in answer), Counter[int]()
    for batch, value in answer:
        sums[batch] += value
    batches = sorted(rows)
    assert batches == list(range(batches[0], batches[-1] + 1))
    assert batches[0] % ERA == 0
    assert set(rows.values()) == {ROWS}
    assert set(sums.values()) == {0}
    return batches[-1]


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize("seconds", [1, pytest.param(120, marks=pytest.mark.slow(seconds=130))])
def test_each_answer_is_one_whole_snapshot(tmp_path: Any, seconds: int) -> None:
    table = Table.create(str(tmp_path / "changing"), partition_by=["era", "p"], sort_by=["batch"], timing=TIMING)
    changes, stop = Changes(), threading.Event()
    table.insert([{"era": -1, "p": 0, "batch": -ERA + n, "v": v} for n in range(ERA) for v in [0] * ROWS])
    with ProxyProcess(CONFIG.format(lake=tmp_path, hold_s=HOLD_S)) as proxy, ThreadPoolExecutor(5) as pool:
        access = Access(proxy.endpoint, "ACMEKEY1", "acme-secret")
        writer = pool.submit(change, table, changes, stop)
        answers: list[list[list[tuple[int, int]]]] = [[] for _ in range(4)]
        readers = (ask_pyiceberg, ask_duckdb) * 2
        reading = [pool.submit(ask_until, r, access, stop, a, changes) for r, a in zip(readers, answers, strict=True)]
        began = time.monotonic()

        def is_over() -> bool:
            enough = (
                changes.counts["dropped"] > 1
                and all(len(a) > 2 and max(a[0]) < max(a[-1]) for a in answers)
                and time.monotonic() - began >= seconds
            )
            return enough or writer.done() or any(r.done() for r in reading)

        try:
            wait_until(is_over, "the writer makes enough changes, and each reader sees some")
        finally:
            stop.set()
        writer.result()
        for one in reading:
            one.result()
        errors = [line["status"] for line in proxy.access_log() if line["status"] >= 400]
        assert set(errors) <= ({HTTPStatus.NOT_FOUND} if changes.late_reads else set()), errors
    assert changes.counts["merged"] > 0
    assert changes.counts["deleted"] > 0 or seconds < 10
    for of_reader in answers:
        newest = [check_whole(answer) for answer in of_reader]
        assert newest == sorted(newest)
        assert newest[-1] > newest[0]
