"""The requests of each operation to an S3 server by kind, and the bytes of objects in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.harness import proxy_world
from benchmarks.harness.slow_store import BUCKET, SlowStore, slow
from icedb import Table
from icedb.engines.duckdb.attached_tables import attach
from icedb.util.clock import SystemClock

__all__ = ["requests"]

ROWS = 3_000
DAYS = 30
#: The writer's name of each handle. Log files contain such names, so their lengths must be equal.
WRITER = "guard"
FIRST = datetime(2026, 10, 1, tzinfo=UTC)


class _Counts:
    """The sum of requests and bytes of each step, by name."""

    def __init__(self, store: SlowStore, on_step: Callable[[str], None]) -> None:
        self._store = store
        self._on_step = on_step
        self.requests: dict[str, float] = {}
        self.bytes: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the requests of the block to the step of that name."""
        self._on_step(name)
        self._store.reset()
        yield
        new_requests = self._store.requests
        self.requests |= {f"{name}: {kind}": n for kind, n in sorted(Counter(r.kind for r in new_requests).items())}
        self.requests[f"{name}: all requests"] = len(new_requests)
        # The bytes of listings and deletions depend on the server.
        self.bytes[f"{name}: up"] = sum(r.up for r in new_requests if r.kind == "PUT")
        self.bytes[f"{name}: down"] = sum(r.down for r in new_requests if r.kind == "GET")


def requests(
    options: Mapping[str, str], folder: Path, *, on_step: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the requests and bytes of each operation in the life of a table in the bucket.

    `options` are those of the server without the proxy. `folder` is a new folder for `icedb proxy`.
    """
    with slow(options["AWS_ENDPOINT_URL"], 0) as store:
        counts = _Counts(store, on_step)
        _live(
            counts,
            f"s3://{BUCKET}/guard-{SystemClock().new_id()}",
            {**options, "AWS_ENDPOINT_URL": store.endpoint},
            folder,
        )
        return counts.requests, counts.bytes


def _live(counts: _Counts, uri: str, options: dict[str, str], folder: Path) -> None:
    """Run the operations of a table's life, from its creation."""
    rows, one_day = _events(ROWS, DAYS), _events(ROWS // DAYS, 1)
    with counts.of("create"):
        table = Table.create(
            uri,
            partition_by=["CAST(ts AS DATE) AS day"],
            sort_by=["event", "ts", "user_id"],
            storage_options=options,
        )
    table = Table(replace(table.handle, writer=WRITER))
    with counts.of("first insert, 30 partitions"):
        table.insert(rows)
    with counts.of("insert, 1 partition"):
        table.insert(one_day)
    with counts.of("insert, 30 partitions"):
        table.insert(rows)
    with counts.of("exactly-once insert, 1 partition"):
        table.insert(one_day, txn=("guard", 1))
    with counts.of("exactly-once insert, repeated"):
        table.insert(one_day, txn=("guard", 1))
    with counts.of("open and snapshot"):
        reader = Table.open(uri, storage_options=options)
        reader.snapshot()
    with counts.of("refresh, nothing new"):
        reader.snapshot()
    table.insert(one_day)
    with counts.of("refresh after a commit"):
        reader.snapshot()
    _ask(counts, reader)
    _maintain(counts, table, uri, options, folder)


def _ask(counts: _Counts, table: Table) -> None:
    of_day = "SELECT count(*), sum(amount) FROM t WHERE day = DATE '2026-10-01'"
    with counts.of("query of a day"):
        table.query(of_day).fetchone()
    with counts.of("query of nothing"):
        table.query("SELECT sum(amount) FROM t", where="event = 'no such event'").fetchone()
    with duckdb.connect() as con:
        con.execute("SET enable_progress_bar = false")
        attach(con, table.uri, "t", storage_options=table.handle.location.storage_options)
        con.execute(of_day).fetchone()
        with counts.of("attached, query of a day again"):
            con.execute(of_day).fetchone()
    with counts.of("changes since the beginning"):
        table.changes(None)


def _maintain(counts: _Counts, table: Table, uri: str, options: dict[str, str], folder: Path) -> None:
    with counts.of("merge, 30 partitions"):
        table.merge()
    with counts.of("merge, nothing to do"):
        table.merge()
    for _ in range(4):
        table.insert(_events(10, 1))
    with counts.of("merge_log"):
        table.merge_log()
    with counts.of("open and snapshot of a merged log"):
        Table.open(uri, storage_options=options).snapshot()
    with counts.of("condition"):
        table.health()
    with counts.of("delete of a day's rows"):
        table.delete("day = DATE '2026-10-06'")
    with counts.of("drop of a partition"):
        table.drop_partitions("day = DATE '2026-10-07'")
    with counts.of("cleanup"):
        table.cleanup(grace_ms=0, allow_short_grace=True)
    with counts.of("verify"):
        table.verify()
    _ask_proxy(counts, uri, options, folder)


def _ask_proxy(counts: _Counts, uri: str, options: Mapping[str, str], folder: Path) -> None:
    """List all parts as a tenant, and read one."""
    server = proxy_world.S3(
        "any", options["AWS_ENDPOINT_URL"], options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"]
    )
    name = uri.rpartition("/")[2]
    with proxy_world.proxy(folder, server, [name], redirect=False) as (endpoint, _):
        client = proxy_world.boto_client(endpoint)
        with counts.of("proxy, first listing"):
            listed = client.list_objects_v2(Bucket=name)["Contents"]
        largest = max(listed, key=lambda part: part["Size"])
        with counts.of("proxy, reading a part"):
            client.get_object(Bucket=name, Key=largest["Key"])["Body"].read()


def _events(count: int, days: int) -> pa.Table:
    """Return unsorted events of so many days, equal in every run."""
    numbers = range(count)
    ts = [FIRST + timedelta(days=n % days, seconds=(n * 7919) % 86_400) for n in numbers]
    return pa.table(
        {
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "user_id": pa.array([(n * 104_729) % 1_000 for n in numbers], pa.int64()),
            "event": [f"event-{n % 17}" for n in numbers],
            "page": [f"https://shop.example/product/{(n * 31) % 500}" for n in numbers],
            "amount": [n % 97 / 4 for n in numbers],
        }
    )
