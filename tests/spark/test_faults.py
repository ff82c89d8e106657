"""Spark jobs under faults: no commit is partly visible, and each row is written once.

A proxy between Spark and a real S3 server sees every request. It can delay or reject it, drop its response, or kill the
process that sent it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import from_arrow_schema

from icedb import Table
from icedb.spark.datasource.writer import open_writer
from tests.support.object_stores.counting_proxy import CountingProxy, HttpRequest
from tests.support.spark.spark_clusters import (
    TWO_EXECUTORS,
    Driver,
    RemoteError,
    SharedDriver,
    descendants,
    environment,
    standalone,
)
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.s3]

DENIED = (403, b"<Error><Code>AccessDenied</Code></Error>")


def rows(table: Table) -> list[int]:
    """Return the sorted numbers of all events, without the first row of the table."""
    events = table.query("SELECT n, label FROM t WHERE n >= 0 ORDER BY n").fetchall()
    assert [label for _, label in events] == [f"é{n}" for n, _ in events]
    return [n for n, _ in events]


def keys(table: Table, prefix: str) -> set[str]:
    return {o.key for o in table.handle.store.list(prefix)}


def log_files(table: Table) -> set[str]:
    return keys(table, table.handle.keys.log_prefix)


def orphans(table: Table) -> set[str]:
    """Return stored parts that no log file names."""
    return keys(table, table.handle.keys.data_prefix) - {p.key for p in table.snapshot().parts}


def check_sound(table: Table) -> None:
    """Check that the table has no problems except orphans."""
    assert table.verify(deep=True).problems == ()


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


# ------------------------------------------------------------------------------------------ tasks


def test_a_task_with_a_rejected_request_is_retried_and_writes_each_row_once(
    driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    refused = []

    def refuse_first(kind: str, path: str, _: bytes) -> tuple[int, bytes] | None:
        if kind != "PUT" or "/_data/" not in path or refused:
            return None
        refused.append(path)
        return DENIED

    proxy.answer = refuse_first
    driver.ask("append", place=place, first=0, last=100)
    assert len(refused) == 1
    assert rows(table) == list(range(100))
    assert len(log_files(table)) == 2
    check_sound(table)


def test_a_python_worker_killed_during_its_parts_writes_each_row_once(
    driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    killed = []

    def kill(request: HttpRequest) -> None:
        killed.append(owner_of(request, proxy, driver))
        os.kill(killed[0], signal.SIGKILL)

    proxy.after = once(is_part, kill)
    driver.ask("append", place=place, first=0, last=100)
    assert len(killed) == 1
    assert rows(table) == list(range(100))
    assert len(log_files(table)) == 2
    assert orphans(table)  # what the killed one had put
    check_sound(table)


def owner_of(request: HttpRequest, proxy: CountingProxy, driver: SharedDriver) -> int:
    """Return the process that sent a request. Retry the search, because processes start and end meanwhile."""
    port = int(proxy.endpoint.rpartition(":")[2])

    def look() -> int | None:
        with suppress(OSError):
            return owner(request.client_port, port, descendants(driver.pid))
        return None

    return wait_until(look, f"a process is seen that sent {request.path}") or 0


def owner(port: int, to_port: int, pids: list[int]) -> int | None:
    """The process at this end of a connection, by what the kernel says of connections and open files.

    Both ends count: another connection, to another server, may have the same port on this side, even a closed one.
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [f"0100007F:{port:04X}", f"0100007F:{to_port:04X}"]
    sockets = [f"socket:[{line[9]}]" for line in lines if line[1:3] == ends]
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(FileNotFoundError):
                if str(descriptor.readlink()) in sockets:
                    return pid
    return None


@pytest.mark.slow(seconds=40)
def test_of_two_concurrent_attempts_one_is_committed(
    spark_home: Path, tmp_path: Path, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    """With speculation, the slow attempt has put its parts before its copy starts, and the copy ends first."""
    over, slow = threading.Event(), []

    def hold(request: HttpRequest) -> None:
        slow.append(request.path)
        over.wait(SECONDS_MAX)

    proxy.after = once(is_part, hold)
    speculation = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    env = environment(spark_home)
    with (
        standalone(tmp_path, env) as master,
        Driver({"spark.master": master, **TWO_EXECUTORS, **speculation}, tmp_path / "driver", env) as driver,
    ):
        try:
            driver.ask("append", place=place, first=0, last=100, tasks=2)
        finally:
            over.set()
    assert len(slow) == 1
    assert set(slow) <= orphans(table)
    assert rows(table) == list(range(100))
    assert len(log_files(table)) == 2
    check_sound(table)


# ------------------------------------------------------------------------------------------ the driver

MOMENTS = {
    "a part is about to be put": ("before", "/_data/", False),
    "all parts are put": ("before", "/_claims/txn-", False),
    "the log file is about to be put": ("before", "/_log/", False),
    "the log file is put": ("after", "/_log/", True),
}


@pytest.mark.sampled(cases=1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_driver_leaves_all_or_nothing_and_a_repeated_job_writes_each_row_once(
    moment: str, driver: SharedDriver, spark_home: Path, tmp_path: Path, table: Table, place: dict[str, str],
    proxy: CountingProxy,
) -> None:  # fmt: skip
    when, key, committed = MOMENTS[moment]
    job: dict[str, Any] = {"place": place, "first": 0, "last": 100, "txn_application": "app", "txn_sequence": "1"}
    with Driver({"spark.master": "local[2,1]"}, tmp_path, environment(spark_home)) as doomed:

        def kill(_: HttpRequest) -> None:
            doomed.kill()
            raise ConnectionAbortedError

        setattr(proxy, when, once(lambda r: r.kind == "PUT" and key in r.path, kill))
        with pytest.raises(EOFError):
            doomed.ask("append", **job)
    assert rows(table) == (list(range(100)) if committed else [])
    check_sound(table)

    driver.ask("append", **job)
    assert rows(table) == list(range(100))
    assert len(log_files(table)) == 2
    check_sound(table)


# ------------------------------------------------------------------------------------------ the commit


def test_an_abort_keeps_a_commit_whose_response_was_lost(
    driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    """The log file is put, its response is lost, and the store goes down: Spark calls abort after a commit."""

    def refuse(request: HttpRequest) -> None:
        if request.kind == "PUT":
            raise ConnectionRefusedError

    def vanish(_: HttpRequest) -> None:
        proxy.before, proxy.answer = refuse, lambda *_: DENIED
        raise ConnectionResetError

    proxy.after = once(is_log_file, vanish)
    with pytest.raises(RemoteError) as error:
        driver.ask("append", place=place, first=0, last=100)
    assert re.search(r"CommitStateUnknown.*Nothing was deleted", first_line(error))
    assert proxy.before is refuse
    assert proxy.counts.get("DELETE MANY", 0) + proxy.counts.get("DELETE", 0) == 0
    assert rows(table) == list(range(100))
    assert orphans(table) == set()
    check_sound(table)


def test_a_job_succeeds_after_one_lost_response(
    driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    def lose(_: HttpRequest) -> None:
        raise ConnectionResetError

    proxy.after = once(is_log_file, lose)
    driver.ask("append", place=place, first=0, last=100)
    assert rows(table) == list(range(100))
    assert len(log_files(table)) == 2
    check_sound(table)


BATCH = pa.record_batch({"n": range(10), "label": [f"é{n}" for n in range(10)]})


def test_an_abort_after_a_commit_deletes_nothing(table: Table, place: dict[str, str]) -> None:
    writer = open_writer(from_arrow_schema(BATCH.schema), place, overwrite=False)
    messages = [writer.write(iter([BATCH])), writer.write(iter([]))]
    writer.commit(messages)
    writer.abort(messages)
    assert rows(table) == list(range(10))
    assert orphans(table) == set()
    check_sound(table)


def test_an_abort_after_a_failed_task_deletes_the_parts_of_the_others(table: Table, place: dict[str, str]) -> None:
    writer = open_writer(from_arrow_schema(BATCH.schema), place, overwrite=False)
    message = writer.write(iter([BATCH]))
    assert len(orphans(table)) == 3
    writer.abort([message, None])
    assert orphans(table) == set()
    assert rows(table) == []
    check_sound(table)


# ------------------------------------------------------------------------------------------ the store


@pytest.mark.parametrize("how", ["access is revoked", "the store is gone"])
def test_a_store_that_goes_down_is_reported_and_the_job_can_be_repeated(
    how: str, driver: SharedDriver, table: Table, place: dict[str, str], proxy: CountingProxy
) -> None:
    lost = threading.Event()

    def lose(_: HttpRequest) -> None:
        lost.set()

    def refuse(_: HttpRequest) -> None:
        if lost.is_set() and how == "the store is gone":
            raise ConnectionRefusedError

    proxy.before, proxy.after = refuse, once(is_part, lose)
    proxy.answer = lambda *_: DENIED if lost.is_set() else None
    before = log_files(table)
    with pytest.raises(RemoteError) as error:
        driver.ask("append", place=place, first=0, last=100)
    expected = {"access is revoked": "AccessDenied", "the store is gone": "StoreUnavailable"}[how]
    assert re.search(rf"{expected}: {re.escape(place['path'])}: cannot create '\S+'", first_line(error))
    assert place["AWS_SECRET_ACCESS_KEY"] not in error.value.text
    assert log_files(table) == before
    assert rows(table) == []
    check_sound(table)

    proxy.before = proxy.after = proxy.answer = None
    driver.ask("append", place=place, first=0, last=100)
    assert rows(table) == list(range(100))
    check_sound(table)


# ------------------------------------------------------------------------------------------ invalid options


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"colour": "red"}, "InvalidOption: {path}: unknown options ['colour']"),
        ({"part_bytes": "much"}, "InvalidOption: {path}: part_bytes is 'much'"),
        ({"txn_application": "app"}, "InvalidOption: {path}: txn is"),
        ({"AWS_SECRET_ACCESS_KEY": "not-the-secret"}, "AccessDenied: {path}: cannot "),
        ({"path": "s3://no-such-bucket/table"}, "BucketNotFound: {path}: "),
        ({"path": "s3://icedb-tests/no/table"}, "TableNotFound: {path}: "),
    ],
)
def test_invalid_options_are_reported_in_the_first_line_and_nothing_is_written(
    wrong: dict[str, str], reason: str, driver: SharedDriver, table: Table, place: dict[str, str]
) -> None:
    before = log_files(table), keys(table, table.handle.keys.data_prefix)
    options = place | wrong
    with pytest.raises(RemoteError) as error:
        driver.ask("append", place=options, first=0, last=100)
    assert reason.format(path=options["path"]) in first_line(error)
    assert "Traceback" not in error.value.text.partition("JVM stacktrace")[0]
    assert place["AWS_SECRET_ACCESS_KEY"] not in error.value.text
    assert "not-the-secret" not in error.value.text
    assert (log_files(table), keys(table, table.handle.keys.data_prefix)) == before


def test_a_column_of_another_type_is_reported_in_the_first_line(
    driver: SharedDriver, s3: Any, place: dict[str, str]
) -> None:
    table = Table.create(s3.uri, storage_options=s3.storage_options)
    table.insert([{"n": "a text"}])
    with pytest.raises(RemoteError) as error:
        driver.ask("append", place=place, first=0, last=100)
    assert f"SchemaConflict: {s3.uri}: column 'n' is VARCHAR in the table and BIGINT in the batch" in first_line(error)
    assert table.query("SELECT * FROM t").fetchall() == [("a text",)]
    assert orphans(table) == set()
