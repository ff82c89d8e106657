"""A Spark session, a table in the S3 server's bucket, and faults of the requests between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from icedb import Table
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.spark.spark_clusters import RemoteError, SharedDriver
from tests.support.spark.spark_tables import log_keys, part_keys

DENIED = (403, b"<Error><Code>AccessDenied</Code></Error>")


def rows(table: Table) -> list[int]:
    """Return the sorted numbers of all events, without the first row of the table."""
    events = table.query("SELECT n, label FROM t WHERE n >= 0 ORDER BY n").fetchall()
    assert [label for _, label in events] == [f"é{n}" for n, _ in events]
    return [n for n, _ in events]


def orphans(table: Table) -> set[str]:
    """Return stored parts that no log file names."""
    return part_keys(table) - {p.key for p in table.snapshot().parts}


@dataclass(frozen=True)
class SparkScene:
    """A Spark session, a table in the S3 server's bucket, and the proxy through which Spark opens it."""

    driver: SharedDriver
    table: Table
    place: dict[str, str]
    proxy: CountingProxy

    def append(self, **options: Any) -> None:
        """Append the events 0 to 99."""
        self.driver.ask("append", place=self.place, first=0, last=100, **options)

    def check(self, numbers: Iterable[int], *, log_files: int | None = None, has_orphans: bool | None = None) -> None:
        """Check the rows and the number of log files, whether there are orphans, and that nothing else is wrong."""
        assert rows(self.table) == list(numbers)
        assert log_files in (None, len(log_keys(self.table)))
        assert has_orphans in (None, bool(orphans(self.table)))
        assert self.table.verify(deep=True).problems == ()


def first_line(error: pytest.ExceptionInfo[RemoteError]) -> str:
    """Return the first line of an error, without Spark's prefix."""
    return error.value.text.removeprefix("An exception was thrown from the Python worker:\n").splitlines()[0]


def is_part(request: HttpRequest) -> bool:
    return request.kind == "PUT" and "/_data/" in request.path


def is_log_file(request: HttpRequest) -> bool:
    return request.kind == "PUT" and "/_log/" in request.path


def once(condition: Callable[[HttpRequest], bool], do: Callable[[HttpRequest], None]) -> Callable[[HttpRequest], None]:
    """Call a function at the first matching request. Requests arrive in several threads."""
    lock, done = threading.Lock(), []

    def disturb(request: HttpRequest) -> None:
        with lock:
            first = not done and condition(request)
            done.extend([1] if first else [])
        if first:
            do(request)

    return disturb


def refuse_first_part(proxy: CountingProxy) -> list[str]:
    """Deny the first put of a part. Returns the list that receives its path."""
    refused: list[str] = []

    def answer(kind: str, path: str, _: bytes) -> tuple[int, bytes] | None:
        if kind != "PUT" or "/_data/" not in path or refused:
            return None
        refused.append(path)
        return DENIED

    proxy.answer = answer
    return refused
