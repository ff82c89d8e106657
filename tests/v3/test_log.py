"""The log API of v3: records and their JSON, and reading, listing and appending log files."""

from __future__ import annotations

import json
from typing import Any

import pytest

import icedb
from icedb import Table
from icedb.errors import CorruptLog, IceDBError, InvalidOption, SchemaConflict, SnapshotExpired
from icedb.log import (
    FileMarker,
    FileMarkerFromJSON,
    IceLogIO,
    LogMetadata,
    LogMetadataFromJSON,
    LogTombstone,
    LogTombstoneFromJSON,
    NoLogFilesException,
    S3Client,
    Schema,
    SchemaConflictException,
    get_log_file_info,
)
from tests.support.object_stores.stores import Place
from tests.support.programs.v3_program import V3Program
from tests.support.tables.v3_api import client, now_ms, objects, program

# ---------------------------------------------------------------------------------------- records


def schema(**types: str) -> Schema:
    made = Schema()
    made.accumulate(list(types), list(types.values()))
    return made


def test_a_schema_accumulates_columns() -> None:
    made = Schema()
    assert made.toJSON() == "{}"
    assert made.accumulate(["a", "b"], ["BIGINT", "VARCHAR"])
    assert not made.accumulate(["b", "c"], ["VARCHAR", "DOUBLE"])
    assert made.accumulate([], [])
    assert made.columns() == ["a", "b", "c"]
    assert made.types() == ["BIGINT", "VARCHAR", "DOUBLE"]
    assert made.pairs() == [("a", "BIGINT"), ("b", "VARCHAR"), ("c", "DOUBLE")]
    assert "a" in made
    assert "d" not in made
    assert made["b"] == "VARCHAR"
    with pytest.raises(KeyError):
        made["d"]
    assert made.toJSON() == str(made) == repr(made) == '{"a": "BIGINT", "b": "VARCHAR", "c": "DOUBLE"}'


def test_a_schema_with_a_conflict_stays_as_it_was() -> None:
    made = schema(a="BIGINT")
    with pytest.raises(SchemaConflictException) as conflict:
        made.accumulate(["b", "a"], ["VARCHAR", "DOUBLE"])
    error = conflict.value
    assert (error.column, error.current_type, error.new_type) == ("a", "BIGINT", "DOUBLE")
    assert error.message == str(error)
    assert "a" in str(error)
    assert isinstance(error, SchemaConflict)
    assert error.types == ("BIGINT", "DOUBLE")
    assert made.columns() == ["a"]
    with pytest.raises(SchemaConflictException):
        Schema().accumulate(["a", "a"], ["BIGINT", "DOUBLE"])
    with pytest.raises(InvalidOption):
        made.accumulate(["b"], [])


def test_records_are_json_as_v3_writes_it() -> None:
    marker = FileMarker("t/_data/é.parquet", 5, 100)
    assert marker.json() == str(marker) == json.dumps({"p": "t/_data/é.parquet", "b": 100, "t": 5})
    assert marker.vir_source_log_file is None
    dead = FileMarkerFromJSON('{"p": "x", "b": 1, "t": 2, "tmb": 3, "r": 9}')
    assert dead.json() == '{"p": "x", "b": 1, "t": 2, "tmb": 3}'
    dead.vir_source_log_file = "log"
    assert json.loads(repr(dead)) == {"p": "x", "b": 1, "t": 2, "tmb": 3, "vir_source_log_file": "log"}
    assert "log" not in dead.json()
    tombstone = LogTombstoneFromJSON({"p": "log", "t": 7})
    assert (tombstone.path, tombstone.createdMS) == ("log", 7)
    assert tombstone.toJSON() == str(tombstone) == '{"p": "log", "t": 7}'
    assert LogMetadata("1", 1, 2, timestamp=3).toJSON() == '{"v": "1", "t": 3, "sch": 1, "f": 2}'
    meta = LogMetadataFromJSON('{"v": 1, "t": 3, "sch": 1, "f": 4, "tmb": 2, "n": 9}')
    assert (meta.version, meta.timestamp, meta.schemaLineIndex) == (1, 3, 1)
    assert (meta.fileLineIndex, meta.tombstoneLineIndex) == (4, 2)
    assert str(meta) == '{"v": 1, "t": 3, "sch": 1, "f": 4, "tmb": 2}'


def test_the_name_of_a_log_file_contains_its_time() -> None:
    assert get_log_file_info("1686176939445_dan-mbp.jsonl") == (1686176939445, False)
    assert get_log_file_info("a/_log/1686176939445_m_dan_mbp.jsonl") == (1686176939445, True)
    with pytest.raises(CorruptLog):
        get_log_file_info("readme.txt")


def test_no_log_files_is_an_error_without_arguments() -> None:
    assert isinstance(NoLogFilesException(), IceDBError)
    assert "no log files" in str(NoLogFilesException())


@pytest.mark.parametrize("name", ["IceDBv3", "CompressionCodec", "IceLogIO", "S3Client", "Schema", "FileMarker",
                                  "LogTombstone", "LogMetadata", "SchemaConflictException", "NoLogFilesException",
                                  "get_log_file_info", "FileMarkerFromJSON", "LogTombstoneFromJSON",
                                  "LogMetadataFromJSON"])  # fmt: skip
def test_the_names_are_those_of_icedb_too(name: str) -> None:
    actual = getattr(icedb, name)
    assert actual.__name__ == name
    assert name in dir(icedb)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        icedb.Nonsense  # noqa: B018


# ---------------------------------------------------------------------------------------- reading and appending


@pytest.fixture
def s3c(s3: Place) -> S3Client:
    return client(s3)


def part(s3c: S3Client, name: str, t: int, tombstone: int | None = None) -> FileMarker:
    return FileMarker(f"{s3c.s3prefix}/_data/{name}.parquet", t, 100, tombstone)


@pytest.mark.s3
def test_appended_records_are_read(s3c: S3Client) -> None:
    log = IceLogIO("my host_1")
    assert log.get_current_log_files(s3c) == []
    t = now_ms()
    key, meta = log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "p=1/x", t), part(s3c, "p=1/y", t)])
    assert key.startswith(f"{s3c.s3prefix}/_log/{meta.timestamp}_my-host-1-")
    assert (meta.version, meta.schemaLineIndex, meta.fileLineIndex, meta.tombstoneLineIndex) == (1, 1, 2, None)
    body = s3c.s3.get_object(Bucket=s3c.s3bucket, Key=key)["Body"].read().decode()
    assert not body.endswith("\n")
    written = [json.loads(line)["p"] for line in body.split("\n")[2:]]
    assert written == [f"{s3c.s3prefix}/_data/p=1/{name}.parquet" for name in "xy"]
    second, _ = log.append(s3c, "1", schema(b="VARCHAR"), [part(s3c, "p=2/z", t)])
    read, markers, tombstones, keys = log.read_at_max_time(s3c, now_ms())
    assert read.pairs() == [("a", "BIGINT"), ("b", "VARCHAR")]
    assert [m.path.rpartition("/")[2] for m in markers] == ["x.parquet", "y.parquet", "z.parquet"]
    assert [m.vir_source_log_file for m in markers] == [key, key, second]
    assert (tombstones, keys) == ([], [key, second])
    [first, _] = log.get_current_log_files(s3c)
    assert first["Key"] == key
    assert first["Size"] == len(body)
    assert first["LastModified"].tzinfo is not None
    assert [m.path for m in log.read_log_forward(s3c, [second])[1]] == [markers[2].path]
    assert log.read_log_forward(s3c, keys)[0].columns() == ["a", "b"]
    with pytest.raises(InvalidOption, match="does not exist"):
        log.read_log_forward(s3c, [key.replace(".jsonl", "x.jsonl")])


@pytest.mark.s3
def test_a_log_file_of_exactly_that_time_is_read(s3c: S3Client) -> None:
    log, t = IceLogIO("host"), now_ms() - 1000
    key, _ = log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "x", t)], timestamp=t)
    later, _ = log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "y", t + 1)], timestamp=t + 1)
    with pytest.raises(NoLogFilesException):
        log.read_at_max_time(s3c, t - 1)
    _, markers, _, keys = log.read_at_max_time(s3c, t)
    assert ([m.createdMS for m in markers], keys) == ([t], [key])
    assert log.read_at_max_time(s3c, t + 1)[3] == [key, later]


@pytest.mark.s3
def test_a_merge_by_hand_is_read(s3c: S3Client) -> None:
    """As v3 programs merge: the new part, the old ones with tombstones, and the log files that are replaced."""
    log, t = IceLogIO("host"), now_ms() - 1000
    key, _ = log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "x", t), part(s3c, "y", t)], timestamp=t)
    files = [part(s3c, "x", t, t + 5), part(s3c, "y", t, t + 5), part(s3c, "z", t + 5)]
    merged, meta = log.append(
        s3c, 1, schema(a="BIGINT"), files, [LogTombstone(key, t + 5)], merged=True, timestamp=t + 5
    )
    assert get_log_file_info(merged) == (t + 5, True)
    assert (meta.tombstoneLineIndex, meta.fileLineIndex) == (2, 3)
    _, markers, tombstones, keys = log.read_at_max_time(s3c, t + 5)
    assert [(m.tombstone, m.vir_source_log_file) for m in markers] == [(t + 5, merged), (t + 5, merged), (None, merged)]
    assert [(x.path, x.createdMS) for x in tombstones] == [(key, t + 5)]
    assert keys == [key, merged]
    _, before, tombstones, _ = log.read_at_max_time(s3c, t + 4)
    assert ([m.tombstone for m in before], tombstones) == ([None, None], [])


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_log_file_is_never_replaced(s3c: S3Client) -> None:
    log, t = IceLogIO("host"), now_ms()
    key, _ = log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "x", t)], timestamp=t)
    body = s3c.s3.get_object(Bucket=s3c.s3bucket, Key=key)["Body"].read()
    for files in ([part(s3c, "x", t)], [part(s3c, "y", t)]):
        with pytest.raises(InvalidOption, match="exists already"):
            log.append(s3c, 1, schema(a="BIGINT"), files, timestamp=t)
    assert s3c.s3.get_object(Bucket=s3c.s3bucket, Key=key)["Body"].read() == body
    keys = {log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, f"z{n}", t)])[0] for n in range(5)}
    assert len(keys) == 5


@pytest.mark.s3
@pytest.mark.parametrize(
    "bad",
    [
        {"files": [FileMarker("other/_data/x.parquet", 1, 1)]},
        {"files": [FileMarker("../x.parquet", 1, 1)]},
        {"tombstones": [LogTombstone("other/_log/x.jsonl", 1)]},
        {"files": ["x"]},
        {"schema": schema(a="BIGINT); DROP TABLE t; --")},
        {"schema": schema(a="")},
        {"version": 2},
        {"version": "3.1"},
        {"timestamp": -1},
        {"timestamp": 10**13},
        {"timestamp": "now"},
    ],
)
def test_invalid_records_are_rejected(s3c: S3Client, bad: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"version": 1, "schema": schema(a="BIGINT"), "files": [], **bad}
    with pytest.raises(InvalidOption):
        IceLogIO("host").append(s3c, **arguments)
    assert IceLogIO("host").get_current_log_files(s3c) == []


def test_a_marker_with_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidOption, match="createdMS"):
        FileMarker("x", "soon", 1)  # type: ignore[arg-type]


@pytest.mark.s3
def test_a_type_that_the_table_does_not_have_is_refused(s3c: S3Client) -> None:
    log, t = IceLogIO("host"), now_ms()
    log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "x", t)])
    with pytest.raises(SchemaConflictException) as conflict:
        log.append(s3c, 1, schema(a="VARCHAR"), [part(s3c, "y", t)])
    assert (conflict.value.column, conflict.value.current_type, conflict.value.new_type) == ("a", "BIGINT", "VARCHAR")
    assert len(log.get_current_log_files(s3c)) == 1


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_another_spelling_of_a_type_is_the_same_type(s3c: S3Client) -> None:
    log, t = IceLogIO("host"), now_ms()
    log.append(s3c, 1, schema(a="BIGINT"), [part(s3c, "x", t)])
    log.append(s3c, 1, schema(a="int8", b="text"), [part(s3c, "y", t)])
    assert log.read_at_max_time(s3c, now_ms())[0].pairs() == [("a", "BIGINT"), ("b", "VARCHAR")]


@pytest.mark.s3
def test_a_log_with_two_types_is_a_conflict_to_its_readers(s3: Place) -> None:
    v3 = V3Program.at(s3, iter(range(now_ms(), now_ms() + 10)).__next__)
    v3.insert({"p=1": [{"a": 1}]}, {"a": "BIGINT"})
    v3.insert({"p=1": [{"a": "x"}]}, {"a": "VARCHAR"})
    for read in (
        lambda s3c: IceLogIO("host").read_at_max_time(s3c, now_ms() + 100),
        lambda s3c: IceLogIO("host").read_log_forward(s3c, v3.objects.list(f"{v3.prefix}_log/")),
    ):
        with pytest.raises(SchemaConflictException) as conflict:
            read(client(s3))
        assert conflict.value.column == "a"


@pytest.mark.s3
def test_tombstones_by_hand_are_refused_where_exclusive_commits_are(s3: Place) -> None:
    ice = program(s3)
    [marker] = ice.insert([{"p": "a", "n": 1}])
    before = objects(ice.s3c)
    marker.tombstone = now_ms()
    with pytest.raises(InvalidOption, match="exclusive commits"):
        IceLogIO("host").append(ice.s3c, 1, schema(n="BIGINT"), [marker], merged=True)
    assert objects(ice.s3c) == before
    more = part(ice.s3c, "p=a/more", now_ms())
    IceLogIO("host").append(ice.s3c, 1, schema(n="BIGINT"), [more])
    assert len(IceLogIO("host").read_at_max_time(ice.s3c, now_ms())[1]) == 2


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_time_before_the_horizon_is_rejected(s3: Place) -> None:
    ice = program(s3)
    ice.insert([{"p": "a", "n": 1}])
    ice.insert([{"p": "a", "n": 2}])
    _, new, _, _, _ = ice.merge()
    assert new is not None
    log = IceLogIO("host")
    _, then, _, _ = log.read_at_max_time(ice.s3c, new.createdMS - 1)
    assert [m.tombstone for m in then] == [None, None]
    ice.insert([{"p": "a", "n": 3}])
    ice.tombstone_cleanup(0)
    with pytest.raises(SnapshotExpired):
        log.read_at_max_time(ice.s3c, new.createdMS - 1)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_tables_of_the_core_are_read(s3: Place) -> None:
    table = Table.create(s3.uri, partition_by=["k AS p"], storage_options=s3.storage_options)
    for n in range(3):
        table.insert([{"k": "x", "n": n}])
    table.merge()
    s3c, log = client(s3), IceLogIO("host")
    read, markers, tombstones, keys = log.read_at_max_time(s3c, now_ms() + 10)
    assert read.pairs() == list(table.schema().items())
    assert [m.path for m in markers if m.tombstone is None] == [p.key for p in table.snapshot().parts]
    assert (len(markers), len(tombstones), len(keys)) == (4, 3, 4)


@pytest.mark.s3
def test_a_client_is_a_boto3_client_with_path_addressing(s3: Place) -> None:
    s3c = client(s3)
    assert s3c.s3.list_objects_v2(Bucket=s3c.s3bucket, Prefix=s3c.s3prefix)["KeyCount"] == 0
    assert s3c.s3.meta.config.s3["addressing_style"] == "path"
    assert s3c.session.region_name == "us-east-1"
    assert f"s3://{s3c.s3bucket}/{s3c.s3prefix}" == s3.uri
