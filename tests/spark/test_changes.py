"""A table as a streaming source, and changes as a frame: each added row is read once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import icedb.spark
from icedb import Table, Timing
from icedb.errors import InvalidOption
from icedb.format.change_feed import Cursor, Limits
from icedb.spark.datasource.read_options import batch_read_options, stream_read_options
from icedb.spark.datasource.stream_reader import StreamReader, _StreamPlanner
from icedb.spark.datasource.type_mapping import spark_schema
from icedb.testing import ClockedStore, ManualClock, create_table
from icedb.util.times import UNIX_MS_MIN

pytestmark = pytest.mark.spark

Place = Any


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "table"), partition_by=["k"], sort_by=["n"])


def insert(table: Table, *ns: int) -> None:
    table.insert([{"k": n % 2, "n": n} for n in ns])


def numbers(frame: Any) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def run_query(writer: Any, checkpoint: Path, target: str | None = None, **trigger: Any) -> Any:
    """Run a streaming query to its end: until everything is read, unless another trigger is named."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(**(trigger or {"availableNow": True}))
    query = writer.start(target)
    query.awaitTermination()
    return query


class Stream:
    """A stream from a table to files. Each run continues from its checkpoint."""

    def __init__(self, spark: Any, table: Table, folder: Path, **options: str) -> None:
        self._spark, self._table, self._options = spark, table, options
        self._checkpoint, self._out = folder / "checkpoint", folder / "out"
        #: The number of rows that each micro-batch of the last run read.
        self.batches: list[int] = []

    def run(self, **trigger: Any) -> list[int]:
        """Read everything, and return all numbers that were read so far."""
        source = self._spark.readStream.format("icedb").options(**self._options).load(self._table.uri)
        query = run_query(source.writeStream.format("json"), self._checkpoint, str(self._out), **trigger)
        self.batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
        return numbers(self._spark.read.schema("n long").json(str(self._out)))


@pytest.mark.slow(seconds=15)
def test_a_stream_reads_existing_rows_then_appended_rows(spark: Any, table: Table, tmp_path: Path) -> None:
    insert(table, 0, 1)
    insert(table, 2, 3)
    stream = Stream(spark, table, tmp_path)
    assert stream.run() == [0, 1, 2, 3]
    table.merge()
    assert stream.run() == [0, 1, 2, 3], "a merge adds no rows"
    assert stream.batches == []
    insert(table, 4)
    table.merge()
    insert(table, 5)
    table.delete("n = 0")
    table.overwrite([{"k": 1, "n": 7}], partitions=["k=1"])
    assert stream.run() == [0, 1, 2, 3, 4, 5, 7]
    again = Stream(spark, table, tmp_path / "again")
    assert again.run() == [2, 4, 7], "a new stream begins with the present rows"


@pytest.mark.sampled(days=3)
def test_batches_are_bounded_unless_spark_requests_all_rows(spark: Any, table: Table, tmp_path: Path) -> None:
    for n in range(5):
        insert(table, n)
    bounded = Stream(spark, table, tmp_path / "bounded", batch_parts_max="2")
    assert bounded.run() == [0, 1, 2, 3, 4]
    assert bounded.batches == [2, 2, 1]
    at_once = Stream(spark, table, tmp_path / "at_once", batch_parts_max="2")
    assert at_once.run(once=True) == [0, 1, 2, 3, 4]
    assert at_once.batches == [5]


@pytest.mark.sampled(days=6)
def test_a_stream_with_since_where_and_columns(spark: Any, table: Table, tmp_path: Path) -> None:
    insert(table, 0, 1)
    since = table.snapshot().as_of_ms
    insert(table, 2, 3, 4)
    stream = Stream(spark, table, tmp_path, since=str(since), where="k = 0", columns="n")
    assert stream.run() == [2, 4]
    insert(table, 5, 6)
    assert stream.run() == [2, 4, 6]


@pytest.mark.sampled(days=6)
def test_a_repeated_batch_has_the_same_rows(spark: Any, table: Table, tmp_path: Path) -> None:
    insert(table, 0, 1)
    stream = Stream(spark, table, tmp_path)
    stream.run()
    insert(table, 2)
    batches: list[list[int]] = []

    def run() -> None:
        source = spark.readStream.format("icedb").load(table.uri)
        writer = source.writeStream.foreachBatch(lambda batch, _: batches.append(numbers(batch)))
        run_query(writer, tmp_path / "again")

    run()
    for file in (tmp_path / "again" / "commits").glob("*0*"):
        file.unlink()  # as if the driver had died in the middle of the batch
    insert(table, 3)
    table.merge()
    run()
    assert batches == [[0, 1, 2], [0, 1, 2], [3]]


@pytest.mark.sampled(days=6)
def test_a_stream_from_table_to_table_is_exact(spark: Any, table: Table, tmp_path: Path) -> None:
    copy = Table.create(str(tmp_path / "copy"), sort_by=["n"])
    copy.insert([{"k": -1, "n": -1}])
    for n in range(2):
        insert(table, n)
        source = spark.readStream.format("icedb").load(table.uri)
        run_query(source.writeStream.format("icedb"), tmp_path / "checkpoint", copy.uri)
        table.merge()
    assert copy.query("SELECT n FROM t WHERE n >= 0 ORDER BY n").fetchall() == [(n,) for n in range(2)]


def test_an_idle_stream_stays_ahead_of_cleanup() -> None:
    """Batches without rows advance its checkpoint, so that it can be restarted much later."""
    clock = ManualClock()
    quiet = create_table(ClockedStore(clock), clock, sort_by=["n"])
    quiet.insert([{"n": 1}])
    planner = _StreamPlanner(stream_read_options({"path": quiet.uri}), quiet.handle)
    start = planner.end(planner.begin(), Limits(), ["n"])
    clock.advance(60_000)
    assert planner.end(start, Limits(), ["n"]) == start, "without new rows, Spark does nothing"
    clock.advance(Timing().grace_ms // 4 + 60_000)
    moved = planner.end(start, Limits(), ["n"])
    assert moved.t_ms > start.t_ms
    assert moved == Cursor(moved.t_ms)


def test_columns_added_during_a_stream_are_an_error(table: Table) -> None:
    insert(table, 0)
    planner = _StreamPlanner(stream_read_options({"path": table.uri}), table.handle)
    start = planner.end(planner.begin(), Limits(), ["k", "n"])
    table.insert([{"k": 0, "n": 2, "price": 9.5}])
    with pytest.raises(InvalidOption, match=r"after the stream started: \['price'\]. Restart the stream"):
        planner.end(start, Limits(), ["k", "n"])
    assert planner.end(start, Limits(), ["k", "n", "price"]) != start
    named = _StreamPlanner(stream_read_options({"path": table.uri, "columns": "n"}), table.handle)
    assert named.end(start, Limits(), ["n"]) != start


def test_columns_dropped_during_a_stream_are_an_error(table: Table) -> None:
    table.insert([{"k": 0, "n": 1, "price": 2}])
    schema = spark_schema({"k": "BIGINT", "n": "BIGINT", "price": "BIGINT"})
    reader = StreamReader(schema, {"path": table.uri})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    table.alter(drop_columns=["price"])
    table.insert([{"k": 0, "n": 2}])
    with pytest.raises(InvalidOption, match=r"dropped after the stream started: \['price'\]. Restart the stream"):
        reader.latestOffset(end, ReadAllAvailable())


def test_a_stream_keeps_its_partitions_after_a_new_partitioning(table: Table) -> None:
    insert(table, 0, 1)
    schema = spark_schema({"k": "BIGINT", "n": "BIGINT"})
    driver = StreamReader(schema, {"path": table.uri, "where": "k = 0"})
    tasks = pickle.loads(pickle.dumps(driver))  # once, when the stream begins
    start = driver.latestOffset(driver.initialOffset(), ReadAllAvailable())
    insert(table, 2, 3)
    table.alter(partition_by=["k", "n % 3 AS third"])
    insert(table, 4, 5)
    end = driver.latestOffset(start, ReadAllAvailable())
    batches = [batch for piece in driver.partitions(start, end) for batch in tasks.read(piece)]
    assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == [2, 4]
    with pytest.raises(InvalidOption, match="the stream's checkpoint is of another source"):
        driver.partitions({"logOffset": 3}, end)


@pytest.mark.sampled(days=3)
def test_the_changes_since_a_time_as_a_frame(spark: Any, table: Table) -> None:
    times = []
    for n in range(4):
        insert(table, n)
        times.append(table.handle.read().newest_ms)
    table.merge()
    read = spark.read.format("icedb").option("since", str(times[0]))
    assert numbers(read.load(table.uri)) == [1, 2, 3]
    assert numbers(read.option("until", str(times[2])).load(table.uri)) == [1, 2]
    frame = spark.read.format("icedb").option("since", str(times[2])).load(table.uri)
    insert(table, 9)
    assert numbers(frame) == [3], "every query of a frame has the same rows"
    changes = table.changes(times[2])
    for engine in ("native", "python"):
        assert numbers(icedb.spark.frame(spark, changes, engine=engine)) == [3, 9]


SINCE, UNTIL = {"since": "1700000000000"}, {"until": "1700000000001"}
NOT_FOR_STREAMS = r"\['as_of'\] is not for streams"


@pytest.mark.parametrize(
    ("check", "options", "reason"),
    [
        (batch_read_options, {"since": "yesterday"}, "since is 'yesterday'; write a time with its zone"),
        (batch_read_options, SINCE | {"as_of": "1700000000001"}, "as_of is for a snapshot"),
        (batch_read_options, UNTIL, "Pass 'since', or 'as_of'"),
        (batch_read_options, {"batch_parts_max": "1"}, r"\['batch_parts_max'\] is for streams"),
        (stream_read_options, {"as_of": "1700000000000"}, NOT_FOR_STREAMS),
        (stream_read_options, SINCE | UNTIL, r"\['until'\] is not for streams"),
        (stream_read_options, {"batch_parts_max": "some"}, "is 'some'. Pass an integer of at least 1"),
        (stream_read_options, {"batch_bytes_max": "0"}, "batch_bytes_max is '0'"),
        (stream_read_options, {"colour": "red"}, r"unknown options \['colour'\]"),
    ],
)
def test_invalid_options_are_rejected(check: Callable[..., Any], options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        check({"path": "/lake/events", **options})


@pytest.mark.sampled(days=3)
def test_errors_of_a_stream_have_messages_of_icedb(spark: Any, table: Table, tmp_path: Path) -> None:
    insert(table, 0)
    as_of = {"as_of": str(table.snapshot().as_of_ms)}
    for options, reason in ((as_of, NOT_FOR_STREAMS), ({"since": "{}"}, "InvalidOption: .* is no cursor")):
        with pytest.raises(StreamingQueryException, match=reason):
            Stream(spark, table, tmp_path / "wrong", **options).run()


@pytest.mark.sampled(days=3)
def test_a_stream_behind_cleanup_names_the_next_step(spark: Any, table: Table, tmp_path: Path) -> None:
    insert(table, 0)
    stream = Stream(spark, table, tmp_path, since=str(UNIX_MS_MIN))
    stream.run()
    insert(table, 2)
    insert(table, 4)
    table.merge()
    gone = [p.key for p in table.changes(UNIX_MS_MIN).parts if p.tombstoned_ms is not None]
    table.handle.store.delete(gone)  # as cleanup does before it updates the log
    with pytest.raises(Exception, match="is behind the grace period of cleanup"):
        stream.run()
    table.cleanup(grace_ms=0, allow_short_grace=True)
    with pytest.raises(Exception, match="Begin anew with the table as it is"):
        stream.run()
