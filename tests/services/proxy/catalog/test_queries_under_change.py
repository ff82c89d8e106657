"""Queries through a real proxy while its table changes: each result is of one whole snapshot.

The values of each batch sum to zero only over all of its rows, which are in several partitions. So a result shows half
a batch, and also a part together with the merged part that replaced it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from icedb import Table, Timing
from tests.support.object_stores.stores import BUCKET, S3Server
from tests.support.proxy.proxy_clients import CLIENTS, Access, Ask, Group, ask_boto3
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.s3

PARTITIONS = 3
ROWS = 2 * PARTITIONS
# The grace is short, so that replaced parts are deleted during the test. A query that takes longer may find a part
# deleted, as with any reader.
TIMING = Timing(max_skew_ms=1_000, commit_timeout_ms=3_000, grace_ms=6_000)
SECONDS_MIN = 10
QUERIES_MIN = 20
MERGES_MIN = 4
REFRESH_SECONDS = 0.2
ASKING = ("duckdb", "polars", "pyarrow", "boto3")

CONFIG = """
[server]
listen = "127.0.0.1:0"
refresh = "{refresh}ms"

[storage_options]
{options}

[[tenant]]
name = "acme"
keys = [{{ id = "ACMEKEY1", secret = "{secret}" }}]
bucket = [
    {{ name = "changing", table = "{lake}/changing" }},
    {{ name = "sessions", table = "{lake}/sessions" }},
]
"""


@dataclass
class WriterHistory:
    """The operations of the writer so far. Times are seconds of the monotonic clock."""

    #: Time of the commit of each batch, from number 0.
    committed: list[float] = field(default_factory=list)
    #: Start and end of each merge that replaced parts.
    merges: list[tuple[float, float]] = field(default_factory=list)
    deleted_parts: int = 0
    #: Unix milliseconds. No later commit has this or an earlier time.
    quiet_ms: int = 0


@dataclass(frozen=True)
class ClientQuery:
    """A query of a client with its result or error."""

    client: str
    began: float
    ended: float
    answer: list[Group]
    error: Exception | None = None


@dataclass(frozen=True)
class ChangingLake:
    """A proxy and the location of its tables."""

    acme: Access
    lake: str
    options: dict[str, str]

    def table(self, name: str) -> Table:
        return Table.create(f"{self.lake}/{name}", partition_by=["p"], storage_options=self.options, timing=TIMING)


@pytest.fixture(scope="module")
def world(s3_server: S3Server) -> Iterator[ChangingLake]:
    lake, secret, options = f"s3://{BUCKET}/{uuid.uuid4().hex}", uuid.uuid4().hex, s3_server.storage_options
    written = "\n".join(f'{name} = "{value}"' for name, value in options.items())
    config = CONFIG.format(refresh=round(REFRESH_SECONDS * 1000), options=written, secret=secret, lake=lake)
    with ProxyProcess(config) as proxy:
        yield ChangingLake(Access(proxy.endpoint, "ACMEKEY1", secret), lake, options)


def insert(table: Table, changes: WriterHistory) -> None:
    """Insert the next batch: rows in each partition whose values sum to 0 only if none is missing."""
    number = len(changes.committed)
    values = [*(number + p for p in range(1, ROWS)), -sum(number + p for p in range(1, ROWS))]
    table.insert([{"batch": number, "p": n % PARTITIONS, "v": v} for n, v in enumerate(values)])
    changes.committed.append(time.monotonic())


def change(table: Table, changes: WriterHistory, stop: threading.Event, *, cleanup: bool) -> None:
    """Insert, merge and clean up until `stop` is set. A merge also replaces log files."""
    while not stop.is_set():
        insert(table, changes)
        if len(changes.committed) % 2 == 0:
            began = time.monotonic()
            if table.merge().merged_parts:
                changes.merges.append((began, time.monotonic()))
            changes.quiet_ms = time.time_ns() // 1_000_000 - 1
        if cleanup and len(changes.committed) % 5 == 0:
            changes.deleted_parts += len(table.cleanup().deleted_parts)


@contextmanager
def changing(table: Table, *, cleanup: bool) -> Iterator[tuple[WriterHistory, Future[None]]]:
    """Change the table in the background during the block."""
    changes, stop = WriterHistory(), threading.Event()
    insert(table, changes)
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(change, table, changes, stop, cleanup=cleanup)
        try:
            yield changes, writer
        finally:
            stop.set()
    writer.result()


def ask_on(ask: Ask, client: str, access: Access, stop: threading.Event, queries: list[ClientQuery]) -> None:
    """Repeat a query until `stop` is set, and append each to `queries`."""
    while not stop.is_set():
        began = time.monotonic()
        try:
            answer = ask(access, "changing", "batch", "v")
        except Exception as error:  # any error of a client; checked later
            queries.append(ClientQuery(client, began, time.monotonic(), [], error))
        else:
            queries.append(ClientQuery(client, began, time.monotonic(), answer))


def wait_for(condition: Callable[[], bool], writer: Future[None]) -> None:
    """Wait for a condition, and fail if the writer ends before."""

    def look() -> bool:
        assert not writer.done(), writer.exception()
        return condition()

    wait_until(look, "the writer makes enough changes")


@pytest.mark.sampled(days=3)
def test_each_response_is_of_one_snapshot_while_the_table_changes(world: ChangingLake) -> None:
    table, stop = world.table("changing"), threading.Event()
    with ThreadPoolExecutor(len(ASKING)) as pool, changing(table, cleanup=True) as (changes, writer):
        began = time.monotonic()
        queries: list[ClientQuery] = []
        asking = [pool.submit(ask_on, CLIENTS[name], name, world.acme, stop, queries) for name in ASKING]

        def is_enough() -> bool:
            good = [a for a in queries if a.error is None]
            return (
                time.monotonic() - began >= SECONDS_MIN
                and len(changes.merges) >= MERGES_MIN
                and changes.deleted_parts > 0
                and len(good) >= QUERIES_MIN
                and {a.client for a in good} == set(ASKING)
                and len({len(a.answer) for a in good}) > 3
                and any(a.began < ended and begun < a.ended for a in good for begun, ended in changes.merges)
            )

        try:
            wait_for(is_enough, writer)
        finally:
            stop.set()
        for one in asking:
            one.result()
    excused = [a for a in queries if a.error is not None and a.ended - a.began > TIMING.grace_ms / 1000]
    failed = [(a.client, a.error) for a in queries if a.error is not None and a not in excused]
    assert not failed
    good = [a for a in queries if a.error is None]
    for one in good:
        batches = len(one.answer)
        assert one.answer == [(number, ROWS, 0) for number in range(batches)], one
        # The result has all batches from before the last possible refresh, and none from after the end.
        assert batches >= sum(at < one.began - REFRESH_SECONDS for at in changes.committed), one
        assert batches <= sum(at < one.ended for at in changes.committed) + 1, one
    for client in ASKING:
        sizes = [len(a.answer) for a in good if a.client == client]
        assert sizes == sorted(sizes), client  # results never go back in time


@pytest.mark.sampled(days=3)
def test_a_bucket_with_a_time_stays_as_it_is_while_the_table_changes(world: ChangingLake) -> None:
    table = world.table("sessions")
    with changing(table, cleanup=False) as (changes, writer):
        wait_for(lambda: changes.quiet_ms > 0 and len(changes.merges) >= 1, writer)
        at_ms = changes.quiet_ms
        name, queries = f"sessions--{at_ms}", len(changes.merges)
        first = {client: CLIENTS[client](world.acme, name, "batch", "v") for client in ASKING}
        wait_for(lambda: len(changes.merges) >= queries + 2, writer)
        again = {client: CLIENTS[client](world.acme, name, "batch", "v") for client in ASKING}
    answers = [*first.values(), *again.values()]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == [(number, ROWS, 0) for number in range(len(answers[0]))]
    later = ask_boto3(world.acme, "sessions", "batch", "v")
    assert len(later) > len(answers[0])
    of_table = table.query("SELECT batch, count(*), sum(v) FROM t GROUP BY batch ORDER BY batch", as_of=at_ms)
    assert [(batch, rows, int(total)) for batch, rows, total in of_table.fetchall()] == answers[0]
