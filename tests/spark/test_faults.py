"""Spark jobs under faults: no commit is partly visible, and each row is written once.

A proxy between Spark and a real S3 server sees every request. It can delay or reject it, drop its response, or kill the
process that sent it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
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
from tests.support.spark.spark_scene import (
    DENIED,
    SparkScene,
    first_line,
    is_log_file,
    is_part,
    once,
    orphans,
    refuse_first_part,
)
from tests.support.spark.spark_tables import log_keys, part_keys
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.mark.sampled(days=6)
def test_a_task_with_a_rejected_request_is_retried_and_writes_each_row_once(scene: SparkScene) -> None:
    refused = refuse_first_part(scene.proxy)
    scene.append()
    assert len(refused) == 1
    scene.check(range(100), log_files=2)


@pytest.mark.sampled(days=6)
def test_a_python_worker_killed_during_its_parts_writes_each_row_once(scene: SparkScene) -> None:
    killed = []

    def kill(request: HttpRequest) -> None:
        killed.append(owner_of(request, scene.proxy, scene.driver))
        os.kill(killed[0], signal.SIGKILL)

    scene.proxy.after = once(is_part, kill)
    scene.append()
    assert len(killed) == 1
    scene.check(range(100), log_files=2, has_orphans=True)


def owner_of(request: HttpRequest, proxy: CountingProxy, driver: SharedDriver) -> int:
    """Return the process that sent a request. Retry the search, because processes start and end meanwhile."""
    port = int(proxy.endpoint.rpartition(":")[2])

    def look() -> int | None:
        with suppress(OSError):
            return owner(request.client_port, port, descendants(driver.pid))
        return None

    return wait_until(look, f"a process is seen that sent {request.path}") or 0


def owner(port: int, to_port: int, pids: list[int]) -> int | None:
    """Return the process at this end of a connection, by the kernel's lists of connections and open files.

    Both ends count, because a connection to another server may have the same port on this side.
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
def test_of_two_concurrent_attempts_one_is_committed(scene: SparkScene, spark_home: Path, tmp_path: Path) -> None:
    """With speculation, the slow attempt has put its parts before its copy starts, and the copy ends first."""
    over, slow = threading.Event(), []

    def hold(request: HttpRequest) -> None:
        slow.append(request.path)
        over.wait(SECONDS_MAX)

    scene.proxy.after = once(is_part, hold)
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
            driver.ask("append", place=scene.place, first=0, last=100, tasks=2)
        finally:
            over.set()
    assert len(slow) == 1
    assert set(slow) <= orphans(scene.table)
    scene.check(range(100), log_files=2)


MOMENTS = {
    "a part is about to be put": ("before", "/_data/", False),
    "all parts are put": ("before", "/_claims/txn-", False),
    "the log file is about to be put": ("before", "/_log/", False),
    "the log file is put": ("after", "/_log/", True),
}


@pytest.mark.sampled(cases=1, days=6)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_driver_leaves_all_or_none(scene: SparkScene, moment: str, spark_home: Path, tmp_path: Path) -> None:
    when, key, committed = MOMENTS[moment]
    txn = {"txn_application": "app", "txn_sequence": "1"}
    with Driver({"spark.master": "local[2,1]"}, tmp_path, environment(spark_home)) as doomed:

        def kill(_: HttpRequest) -> None:
            doomed.kill()
            raise ConnectionAbortedError

        setattr(scene.proxy, when, once(lambda r: r.kind == "PUT" and key in r.path, kill))
        with pytest.raises(EOFError):
            doomed.ask("append", place=scene.place, first=0, last=100, **txn)
    scene.check(list(range(100)) if committed else [])

    scene.append(**txn)
    scene.check(range(100), log_files=2)


@pytest.mark.sampled(days=6)
def test_an_abort_keeps_a_commit_whose_response_was_lost(scene: SparkScene) -> None:
    """The log file is put, its response is lost, and the store goes down: Spark calls abort after a commit."""

    def refuse(request: HttpRequest) -> None:
        if request.kind == "PUT":
            raise ConnectionRefusedError

    def vanish(_: HttpRequest) -> None:
        scene.proxy.before, scene.proxy.answer = refuse, lambda *_: DENIED
        raise ConnectionResetError

    scene.proxy.after = once(is_log_file, vanish)
    with pytest.raises(RemoteError) as error:
        scene.append()
    assert re.search(r"CommitStateUnknown.*Nothing was deleted", first_line(error))
    assert scene.proxy.before is refuse
    assert scene.proxy.counts.get("DELETE MANY", 0) + scene.proxy.counts.get("DELETE", 0) == 0
    scene.check(range(100), has_orphans=False)


@pytest.mark.sampled(days=6)
def test_a_job_succeeds_after_one_lost_response(scene: SparkScene) -> None:
    def lose(_: HttpRequest) -> None:
        raise ConnectionResetError

    scene.proxy.after = once(is_log_file, lose)
    scene.append()
    scene.check(range(100), log_files=2)


BATCH = pa.record_batch({"n": range(10), "label": [f"é{n}" for n in range(10)]})


@pytest.mark.sampled(days=6)
def test_an_abort_after_a_commit_deletes_nothing(scene: SparkScene) -> None:
    writer = open_writer(from_arrow_schema(BATCH.schema), scene.place, overwrite=False)
    messages = [writer.write(iter([BATCH])), writer.write(iter([]))]
    writer.commit(messages)
    writer.abort(messages)
    scene.check(range(10), has_orphans=False)


def test_an_abort_after_a_failed_task_deletes_the_parts_of_the_others(scene: SparkScene) -> None:
    writer = open_writer(from_arrow_schema(BATCH.schema), scene.place, overwrite=False)
    message = writer.write(iter([BATCH]))
    assert len(orphans(scene.table)) == 3
    writer.abort([message, None])
    assert orphans(scene.table) == set()
    scene.check([])


@pytest.mark.sampled(days=6)
@pytest.mark.parametrize("how", ["access is revoked", "the store is gone"])
def test_a_store_that_goes_down_is_reported_and_the_job_can_be_repeated(scene: SparkScene, how: str) -> None:
    lost = threading.Event()

    def lose(_: HttpRequest) -> None:
        lost.set()

    def refuse(_: HttpRequest) -> None:
        if lost.is_set() and how == "the store is gone":
            raise ConnectionRefusedError

    scene.proxy.before, scene.proxy.after = refuse, once(is_part, lose)
    scene.proxy.answer = lambda *_: DENIED if lost.is_set() else None
    before = log_keys(scene.table)
    with pytest.raises(RemoteError) as error:
        scene.append()
    expected = {"access is revoked": "AccessDenied", "the store is gone": "StoreUnavailable"}[how]
    assert re.search(rf"{expected}: {re.escape(scene.place['path'])}: cannot create '\S+'", first_line(error))
    assert scene.place["AWS_SECRET_ACCESS_KEY"] not in error.value.text
    assert log_keys(scene.table) == before
    scene.check([])

    scene.proxy.before = scene.proxy.after = scene.proxy.answer = None
    scene.append()
    scene.check(range(100))


@pytest.mark.sampled(days=6)
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
def test_invalid_options_are_one_line(scene: SparkScene, wrong: dict[str, str], reason: str) -> None:
    before = log_keys(scene.table), part_keys(scene.table)
    options = scene.place | wrong
    with pytest.raises(RemoteError) as error:
        scene.driver.ask("append", place=options, first=0, last=100)
    assert reason.format(path=options["path"]) in first_line(error)
    assert "Traceback" not in error.value.text.partition("JVM stacktrace")[0]
    assert scene.place["AWS_SECRET_ACCESS_KEY"] not in error.value.text
    assert "not-the-secret" not in error.value.text
    assert (log_keys(scene.table), part_keys(scene.table)) == before


@pytest.mark.sampled(days=6)
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
