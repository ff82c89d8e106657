"""Programs of v3 that quote their partition texts keep their partitions; attributes and named arguments apply."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from icedb.errors import InvalidBatch, InvalidOption, UnknownColumn
from icedb.icedb import CompressionCodec, IceDBv3
from icedb.log import FileMarker, IceLogIO, LogTombstone, NoLogFilesException, S3Client, Schema, SchemaConflictException
from tests.support.object_stores.stores import Place
from tests.support.programs.v3_program import V3Program
from tests.support.tables.v3_api import alive, client, log_files, markers, now_ms, objects, program, rows_of

SCHEMA = {"u": "VARCHAR", "n": "BIGINT"}


def rows(u: str, *ns: int) -> list[dict[str, Any]]:
    return [{"u": u, "n": n} for n in ns]


def quoting(row: Any) -> str:
    return f"u={quote(row['u'], safe='')}"


def texts(ice: IceDBv3) -> list[str]:
    """Return the partition texts that a program reads."""
    displayed: list[str] = []
    ice.remove_partitions(lambda actual: displayed.extend(actual) or [])  # type: ignore[func-returns-value]
    return displayed


def paths(ice: IceDBv3) -> list[str]:
    return sorted({m.path.split("/_data/")[1].rpartition("/")[0] for m in alive(ice.s3c)})


def v3_at(place: Place) -> V3Program:
    return V3Program.at(place, iter(range(now_ms() - 60_000, now_ms())).__next__)


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.s3
@pytest.mark.parametrize("u", ["a b", "50%", "é", "a/b", "x%2Fy z"])
def test_a_program_that_quotes_its_text_goes_on_with_its_partition(s3: Place, u: str) -> None:
    text = f"u={quote(u, safe='')}"
    v3_at(s3).insert({text: rows(u, 1)}, SCHEMA)
    ice = program(s3, partition_function=quoting)
    assert texts(ice) == [text]
    ice.insert(rows(u, 2))
    assert (texts(ice), paths(ice)) == ([text], [text]), "beside what is there"
    _, _, partition, merged, _ = ice.merge()
    assert (partition, len(merged)) == (text, 2)
    ice.tombstone_cleanup(0)
    assert texts(ice) == [text], "nothing of v3 is left, and the path is still the text"
    ice.insert(rows(u, 3))
    assert len(ice.rewrite_partition(text, "SELECT u, n + 10 AS n FROM _rows")[2]) == 2
    ice.tombstone_cleanup(0)
    assert (texts(ice), paths(ice)) == ([text], [text])
    assert rows_of(ice, "SELECT n FROM rows ORDER BY n") == [(11,), (12,), (13,)]
    assert ice.remove_partitions(lambda actual: [p for p in actual if p == text])[2] == 1


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_both_spellings_of_a_text_are_its_partition(s3: Place) -> None:
    """The insert of this API comes first, and a log file of v3 follows."""
    ice, v3, text = program(s3, partition_function=quoting), v3_at(s3), "u=a%20b"
    ice.insert(rows("a b", 1))
    v3.insert({text: rows("a b", 2)}, SCHEMA)
    assert paths(ice) == [text, "u=a%2520b"]
    assert texts(ice) == [text]
    assert len(ice.rewrite_partition(text, "SELECT u, n * 10 AS n FROM _rows")[2]) == 2
    assert (texts(ice), paths(ice)) == ([text], [text])
    assert rows_of(ice, "SELECT n FROM rows ORDER BY n") == [(10,), (20,)]
    ice.insert(rows("a b", 3))
    assert ice.merge()[2] == text


@pytest.mark.s3
def test_two_texts_of_v3_that_mean_one_value_stay_two(s3: Place) -> None:
    v3_at(s3).insert({"u=a%20b": rows("a b", 1), "u=a b": rows("a b", 2), "u=c": rows("c", 3)}, SCHEMA)
    ice = program(s3, partition_function=quoting)
    assert sorted(texts(ice)) == ["u=a b", "u=a%20b", "u=c"]
    assert ice.remove_partitions(lambda _: ["u=a%20b"])[2] == 1
    assert rows_of(ice, "SELECT n FROM rows ORDER BY n") == [(2,), (3,)]


@pytest.mark.s3
def test_columns_of_rows_need_no_partition_and_no_order(s3: Place) -> None:
    ice = program(s3, partition_function=None, sort_order=["ts"])
    assert ice.get_schema([{"n": 1}, {"n": 2, "s": "x"}]).pairs() == [("n", "BIGINT"), ("s", "VARCHAR")]
    assert "_partition" not in ice.get_schema([{"n": 1, "_partition": "p=1"}])
    with pytest.raises(NoLogFilesException):
        markers(ice.s3c)


@pytest.mark.s3
def test_assigned_attributes_take_effect(s3: Place) -> None:
    ice = program(s3, partition_function=lambda row: "p=1", duckdb_ext_dir="/tmp/x")
    options = s3.storage_options or {}
    assert (ice.sort_order, ice.row_group_size, ice.preserve_partition) == (["n"], 122_880, False)
    assert (ice.compression_codec, ice.path_safe_hostname) == (CompressionCodec.SNAPPY, "tests-host")
    assert (ice.duckdb_ext_dir, ice.s3_use_path, ice.s3_region) == ("/tmp/x", True, options["AWS_REGION"])
    assert (ice.s3_access_key, ice.s3_endpoint) == (options["AWS_ACCESS_KEY_ID"], options["AWS_ENDPOINT_URL"])
    assert ice.s3_secret_key == options["AWS_SECRET_ACCESS_KEY"]
    assert options["AWS_SECRET_ACCESS_KEY"] not in f"{ice!r} {ice}"
    ice.sort_order, ice.compression_codec, ice.row_group_size = ["m"], CompressionCodec.GZIP, 2048
    ice.preserve_partition = True
    [marker] = ice.insert([{"n": n, "m": -n} for n in range(5000)])
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=marker.path)["Body"].read()
    metadata, stored = pq.read_metadata(io.BytesIO(body)), pq.read_table(io.BytesIO(body))
    assert (metadata.num_row_groups, metadata.row_group(0).column(0).compression) == (3, "GZIP")
    assert stored.column("m").to_pylist() == sorted(stored.column("m").to_pylist())
    assert stored.column("_partition").to_pylist()[:2] == ["p=1", "p=1"]
    ice.compression_codec = "GZIP"  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="compression_codec"):
        ice.insert([{"n": 1, "m": 1}])
    ice.compression_codec, ice.sort_order = CompressionCodec.ZSTD, ["nothing"]
    with pytest.raises(UnknownColumn):
        ice.insert([{"n": 1, "m": 1, "new": 1}])


@pytest.mark.s3
def test_an_assigned_client_is_another_table(s3: Place) -> None:
    one, other, log = (client(s3.below(name)) for name in ("one", "other", "logs"))
    ice = program(s3, s3_client=one)
    ice.insert([{"p": "a", "n": 1}])
    ice.s3c = other
    assert (ice.data_s3c, ice.log_s3c) == (other, other)
    ice.insert([{"p": "a", "n": 2}])
    ice.data_s3c, ice.log_s3c = client(s3.below("third")), log
    ice.insert([{"p": "a", "n": 3}])
    assert [len(alive(c)) for c in (one, other, log)] == [1, 1, 1]
    assert {m.path.split("/")[-4] for m in alive(log)} == {"third"}
    ice.data_s3c = "s3://bucket"  # type: ignore[assignment]
    with pytest.raises(InvalidOption, match="S3Client"):
        ice.merge()


@pytest.mark.s3
def test_arguments_have_the_names_of_v3(s3: Place) -> None:
    ice, log = program(s3), IceLogIO("x")
    ice.insert([{"p": "a", "n": 1}])
    key, _, _ = ice.rewrite_partition(target_partition="p=a", filter_query="SELECT p, n + 1 AS n FROM _rows")
    assert key in {f["Key"] for f in log.get_current_log_files(s3client=ice.s3c)}
    assert ice.remove_partitions(removal_func=lambda actual: actual, max_files=5)[2] == 1
    keys = log.read_at_max_time(s3client=ice.s3c, timestamp=now_ms() + 10)[3]
    assert len(log.read_log_forward(s3client=ice.s3c, log_files=keys)[1]) == 2
    more = FileMarker(f"{ice.s3c.s3prefix}/_data/p=z/x.parquet", now_ms(), 1)
    log.append(s3client=ice.s3c, version=1, schema=Schema(), files=[more])
    assert log_files(ice.s3c) == len(keys) + 1


def test_a_conflict_takes_its_types_as_a_list_too() -> None:
    for conflict in (SchemaConflictException("c", ["A", "B"]), SchemaConflictException("c", "A", "B")):
        assert (conflict.column, conflict.current_type, conflict.new_type) == ("c", "A", "B")
        assert conflict.types == ("A", "B")


@pytest.mark.s3
def test_errors_of_append_name_its_arguments(s3: Place) -> None:
    s3c, log = client(s3), IceLogIO("x")
    ours = f"{s3c.s3prefix}/_data/x.parquet"

    def append(*files: FileMarker, **more: Any) -> Callable[[], object]:
        return lambda: log.append(s3c, 1, Schema(), files, **more)

    for call, message in (
        (lambda: FileMarker(ours, 1.5, 1), r"createdMS must be a whole number"),  # type: ignore[arg-type]
        (lambda: FileMarker(ours, 1, 1, 2.5), r"tombstone must be a whole number"),  # type: ignore[arg-type]
        (append(FileMarker(ours, 1, 1), FileMarker("else/x.parquet", 1, 1)), r"path of files\[1\] is 'else/x.parquet'"),
        (append(tombstones=[LogTombstone("else/x.jsonl", 1)]), r"path of tombstones\[0\]"),
        (append(timestamp=1.5), "timestamp must be a whole number"),
    ):
        with pytest.raises(InvalidOption, match=message) as refused:
            call()
        assert "damaged" not in str(refused.value)
    assert log.get_current_log_files(s3c) == []


@pytest.mark.s3
def test_errors_of_arguments_name_the_table(s3: Place) -> None:
    ice: Any = program(s3)
    ice.insert([{"p": "a", "n": 1}])
    before = objects(ice.s3c)
    with pytest.raises(InvalidOption, match="min_age_ms is -1") as refused:
        ice.tombstone_cleanup(-1)
    assert "allow_short_grace" not in str(refused.value)
    with pytest.raises(InvalidOption, match="max_file_size must be a whole number, not None"):
        ice.merge(max_file_size=None)
    with pytest.raises(InvalidOption, match="max_file_count must be a whole number"):
        ice.merge(max_file_count="2")
    ice.format_row = lambda row: None
    with pytest.raises(InvalidBatch, match=f"{s3.uri}: format_row returned a NoneType for row 0"):
        ice.insert([{"p": "a", "n": 1}])
    assert objects(ice.s3c) == before


@pytest.mark.s3
def test_merged_markers_have_the_log_file_that_named_them(s3: Place) -> None:
    ice: IceDBv3 = program(s3)
    named = {}
    for n in range(2):
        before = {f["Key"] for f in IceLogIO("x").get_current_log_files(ice.s3c)}
        [marker] = ice.insert([{"p": "a", "n": n}])
        [named[marker.path]] = {f["Key"] for f in IceLogIO("x").get_current_log_files(ice.s3c)} - before
    merged = ice.merge()[3]
    assert {m.path: m.vir_source_log_file for m in merged} == named
    assert [m.tombstone for m in merged] == [None, None]
    assert isinstance(ice.s3c, S3Client)
