"""Streams into a table write each row once, despite faults of the driver, the checkpoint and the batches."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from icedb.errors import AccessDenied, InvalidOption, InvariantViolated, SchemaConflict, StaleCheckpoint
from icedb.spark.datasource.writer import open_stream_writer
from tests.support.object_stores.counting_proxy import HttpRequest
from tests.support.spark.spark_clusters import RemoteError
from tests.support.spark.spark_scene import (
    DENIED,
    SparkScene,
    first_line,
    is_log_file,
    once,
    orphans,
    refuse_first_part,
    rows,
)
from tests.support.spark.spark_streams import ROWS, EventFolder, Moment, kill_drivers
from tests.support.spark.spark_tables import log_keys

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.fixture
def source(tmp_path: Path, place: dict[str, str]) -> EventFolder:
    return EventFolder(tmp_path, place)


@pytest.mark.sampled(days=3)
def test_each_batch_is_one_commit_and_a_stream_continues(scene: SparkScene, source: EventFolder) -> None:
    refused = refuse_first_part(scene.proxy)  # the task is retried
    source.arrive(3)
    source.stream(scene.driver)
    assert len(refused) == 1
    scene.check(source.numbers, log_files=1 + 3)
    source.stream(scene.driver)  # nothing has arrived
    assert len(log_keys(scene.table)) == 1 + 3
    source.arrive(2)
    source.stream(scene.driver)
    scene.check(source.numbers, log_files=1 + 5, has_orphans=False)


@pytest.mark.sampled(days=6)
def test_a_deleted_checkpoint_begins_a_new_stream(scene: SparkScene, source: EventFolder) -> None:
    source.arrive(2)
    source.stream(scene.driver)
    shutil.rmtree(source.checkpoint)
    source.stream(scene.driver)
    scene.check(sorted(2 * source.numbers))


@pytest.mark.sampled(cases=1, days=3)
@pytest.mark.parametrize(
    ("batches", "files_per_batch", "reason"),
    [
        (2, 1, "the stream is at batch 1, and the table has its batch 2"),
        (1, 2, "batch 1 of the stream has 40 rows now, and had 20 when it was done"),
    ],
    ids=["two batches behind", "one batch behind, and more has arrived"],
)
def test_an_older_state_of_a_checkpoint_is_rejected(
    scene: SparkScene, batches: int, files_per_batch: int, reason: str, source: EventFolder, tmp_path: Path
) -> None:
    source.arrive()
    source.stream(scene.driver)
    shutil.copytree(source.checkpoint, tmp_path / "backup")
    source.arrive(batches)
    assert source.stream(scene.driver) == batches
    shutil.rmtree(source.checkpoint)
    shutil.move(tmp_path / "backup", source.checkpoint)
    before, numbers = log_keys(scene.table), source.numbers
    source.arrive()
    with pytest.raises(RemoteError) as error:
        source.stream(scene.driver, files_per_batch=files_per_batch)
    assert f"StaleCheckpoint: {scene.table.uri}: {reason}. None of these rows were added." in error.value.text
    assert log_keys(scene.table) == before
    scene.check(numbers, has_orphans=False)


@pytest.mark.sampled(days=3)
def test_an_unrecorded_batch_is_not_committed_twice(scene: SparkScene, source: EventFolder) -> None:
    source.arrive(2)
    last = source.stream(scene.driver)
    for note in (source.checkpoint / "commits").glob(f"*{last}*"):
        note.unlink()  # as if the driver had died between the commit and the note of it
    source.arrive()
    source.stream(scene.driver)
    scene.check(source.numbers, log_files=1 + 3, has_orphans=False)


@pytest.mark.sampled(days=3)
def test_a_stream_continues_after_its_store_went_down_at_the_commit(scene: SparkScene, source: EventFolder) -> None:
    """The log file is put, its response is lost, and the store goes down: only the table has the batch."""

    def vanish(_: HttpRequest) -> None:
        scene.proxy.answer = lambda *_: DENIED
        raise ConnectionResetError

    scene.proxy.after = once(is_log_file, vanish)
    source.arrive(2)
    with pytest.raises(RemoteError, match=r"StoreUnavailable.*it is never committed twice") as error:
        source.stream(scene.driver)
    assert scene.place["AWS_SECRET_ACCESS_KEY"] not in error.value.text
    assert rows(scene.table) == source.numbers[:ROWS]
    scene.proxy.answer = None
    source.stream(scene.driver)
    scene.check(source.numbers, log_files=1 + 2)


@pytest.mark.sampled(days=3)
def test_invalid_options_are_reported_in_the_first_line(scene: SparkScene, source: EventFolder) -> None:
    source.arrive()
    before = log_keys(scene.table)
    with pytest.raises(RemoteError) as error:
        source.stream(scene.driver, mode="complete")
    assert f"InvalidOption: {scene.table.uri}: outputMode('complete') would replace the" in first_line(error)
    scene.place["path"] += "/nowhere"
    with pytest.raises(RemoteError) as error:
        source.stream(scene.driver)
    assert f"TableNotFound: {scene.place['path']}" in first_line(error)
    assert log_keys(scene.table) == before
    assert orphans(scene.table) == set()


# What the proxy sees of a micro-batch, in its order; and what Spark writes to the checkpoint. The first ones are those
# that leave different things behind.
MOMENTS: list[Moment] = [
    ("before", "GET", "/_table.json"),  # Spark has noted what the batch is, and nothing is written
    ("after", "PUT", "/_data/"),
    ("after", "PUT", "/_claims/txn-"),
    ("after", "PUT", "/_log/"),  # committed, and Spark has not noted it
    ("before", "PUT", "/_data/"),
    ("before", "PUT", "/_claims/txn-"),
    ("before", "PUT", "/_log/"),
    ("checkpoint", "", "offsets"),
    ("checkpoint", "", "commits"),
]


@pytest.mark.sampled(days=6)
@pytest.mark.parametrize(
    ("moments", "times"),
    [
        pytest.param(MOMENTS[2:3], 1, id="one"),
        pytest.param(MOMENTS, 2, id="all", marks=[pytest.mark.slow(seconds=350), pytest.mark.timeout(3600)]),
    ],
)
def test_a_driver_that_is_killed_repeatedly_writes_each_row_once(
    scene: SparkScene,
    moments: list[Moment],
    times: int,
    spark_home: Path,
    tmp_path: Path,
    source: EventFolder,
) -> None:
    for moment in kill_drivers(moments, times, source, scene.proxy, tmp_path, spark_home):
        committed = rows(scene.table)
        assert committed == source.numbers[: len(committed)], moment
    source.stream(scene.driver)
    scene.check(source.numbers, log_files=1 + source.arrived)


class LocalBatch:
    """A micro-batch of two tasks in this process. The second task has no rows."""

    def __init__(self, place: dict[str, str], numbers: range, number: int, **columns: Any) -> None:
        data = {"n": pa.array(numbers, pa.int64()), "label": [f"é{n}" for n in numbers]}
        batch = pa.record_batch(data | {name: [value] * len(numbers) for name, value in columns.items()})
        self.number = number
        self.writer: DataSourceStreamArrowWriter = open_stream_writer(
            from_arrow_schema(batch.schema), place, overwrite=False
        )
        messages = [self.writer.write(iter([batch] if len(batch) else [])), self.writer.write(iter([]))]
        self.messages: list[WriterCommitMessage | None] = [replace(m, stream="a") for m in messages]

    def commit(self) -> None:
        self.writer.commit(self.messages, self.number)

    def abort(self) -> None:
        self.writer.abort(self.messages, self.number)


@pytest.mark.sampled(days=3)
def test_a_batch_without_rows_is_no_commit(scene: SparkScene) -> None:
    before = log_keys(scene.table)
    LocalBatch(scene.place, range(0), 0).commit()
    assert log_keys(scene.table) == before
    LocalBatch(scene.place, range(10), 1).commit()
    assert rows(scene.table) == list(range(10))


@pytest.mark.sampled(days=3)
def test_a_batch_adds_columns_and_is_committed_once(scene: SparkScene) -> None:
    LocalBatch(scene.place, range(10), 0).commit()
    for _ in range(2):
        LocalBatch(scene.place, range(10, 20), 1, colour="red").commit()
    LocalBatch(scene.place, range(20, 30), 2).commit()
    assert rows(scene.table) == list(range(30))
    assert scene.table.query("SELECT count(colour) FROM t").fetchall() == [(10,)]
    with pytest.raises(SchemaConflict, match="column 'colour' is VARCHAR in the table and BIGINT in the batch"):
        LocalBatch(scene.place, range(30, 40), 3, colour=1)
    scene.check(range(30), has_orphans=False)


def test_a_late_driver_of_the_same_checkpoint_is_rejected(scene: SparkScene) -> None:
    """Both read the batch from the checkpoint, so it has the same rows. One of them was paused since."""
    first, second, sleeper = (LocalBatch(scene.place, range(10), 0) for _ in range(3))
    second.commit()
    first.commit()
    assert rows(scene.table) == list(range(10))
    LocalBatch(scene.place, range(10, 20), 1).commit()
    with pytest.raises(StaleCheckpoint, match=r"at batch 0, and the table has its batch 1.*If another driver runs"):
        sleeper.commit()
    sleeper.abort()  # as Spark does
    scene.check(range(20), has_orphans=False)


def test_the_next_attempt_publishes_a_claimed_batch(scene: SparkScene) -> None:
    """Also if the next attempt has other rows, from an older checkpoint, which is an error."""
    scene.proxy.answer = lambda kind, path, _: DENIED if kind == "PUT" and "/_log/" in path else None
    lost = LocalBatch(scene.place, range(10), 0)
    with pytest.raises(AccessDenied):
        lost.commit()
    lost.abort()
    assert rows(scene.table) == []
    scene.proxy.answer = None
    with pytest.raises(StaleCheckpoint, match="batch 0 of the stream has 20 rows now, and had 10 when it was done"):
        LocalBatch(scene.place, range(20), 0).commit()
    assert rows(scene.table) == list(range(10))
    LocalBatch(scene.place, range(10), 0).commit()
    scene.check(range(10), has_orphans=False)


@pytest.mark.sampled(days=3)
def test_an_abort_after_a_failed_task_deletes_the_parts_of_the_others(scene: SparkScene) -> None:
    failed = LocalBatch(scene.place, range(10), 0)
    failed.messages[1] = None
    failed.abort()
    assert orphans(scene.table) == set()
    assert rows(scene.table) == []


@pytest.mark.sampled(days=3)
def test_a_batch_without_a_stream_is_not_committed(scene: SparkScene) -> None:
    nameless = LocalBatch(scene.place, range(10), 0)
    nameless.messages = [replace(m, stream=None) for m in nameless.messages]
    with pytest.raises(InvariantViolated, match=r"Spark did not set the property sql\.streaming\.queryId"):
        nameless.commit()
    assert rows(scene.table) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"txn_application": "app", "txn_sequence": "1"}, "['txn_application', 'txn_sequence'] is not for streams"),
        ({"job": "mine"}, "['job'] is not for streams"),
        ({"colour": "red"}, "unknown options ['colour']"),
        ({"overwrite": "table"}, "overwrite is 'table' and the mode is append"),
    ],
)
def test_options_of_batches_are_rejected(scene: SparkScene, options: dict[str, str], reason: str) -> None:
    before = {o.key for o in scene.table.handle.store.list("")}
    with pytest.raises(InvalidOption, match=re.escape(f"{scene.table.uri}: {reason}")):
        LocalBatch(scene.place | options, range(10), 0)
    assert {o.key for o in scene.table.handle.store.list("")} == before
