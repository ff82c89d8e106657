"""A program for IceDB v3 runs unchanged, with the same results of its calls and the same objects in the bucket."""

from __future__ import annotations

import copy
import io
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import (
    IceDBError,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionValue,
    InvalidQuery,
    InvalidRequestError,
    InvalidURI,
    TableExists,
    UnknownColumn,
)
from icedb.icedb import CompressionCodec, IceDBv3
from icedb.log import IceLogIO, NoLogFilesException, S3Client, SchemaConflictException
from tests.support.object_stores.stores import BUCKET, Place
from tests.support.programs.v3_program import V3Program
from tests.support.tables.v3_api import alive, by_p, client, log_files, markers, now_ms, objects, program, rows_of

pytestmark = pytest.mark.s3

NOTHING: tuple[Any, ...] = (None, None, None, [], None)
A = [{"p": "a", "n": 2}, {"p": "a", "n": 1}]
AB = [*A, {"p": "b", "n": 3}]


# ---------------------------------------------------------------------------------------- the program of the format

EVENTS = [
    {"ts": 1686176939445, "event": "page_load", "user_id": "user_a", "properties": {"page_name": "Home"}},
    {"ts": 1676126229999, "event": "page_load", "user_id": "user_b", "properties": {"page_name": "Home"}},
    {"ts": 1686176939666, "event": "page_load", "user_id": "user_a", "properties": {"page_name": "Settings"}},
    {"ts": 1686176941445, "event": "page_load", "user_id": "user_a", "properties": {"page_name": "Home"}},
]


def by_user_and_day(row: Any) -> str:
    day = datetime.fromtimestamp(row["ts"] / 1000, UTC).strftime("%Y-%m-%d")
    return f"u={row['user_id']}/d={day}"


@pytest.mark.sampled(days=3)
def test_the_example_program_of_v3_runs_unchanged(s3: Place) -> None:
    s3c = client(s3)
    ice = program(s3, s3_client=s3c, partition_function=by_user_and_day, sort_order=["event", "ts"])
    inserted = ice.insert(EVENTS)
    data = f"{s3c.s3prefix}/_data/"
    assert sorted(m.path.removeprefix(data).rpartition("/")[0] for m in inserted) == [
        "u=user_a/d=2023-06-07",
        "u=user_b/d=2023-02-11",
    ]
    ice.insert(EVENTS)
    key, new, partition, merged, meta = ice.merge()
    assert new is not None
    assert meta is not None
    assert partition == "u=user_a/d=2023-06-07"
    assert (len(merged), meta.timestamp, new.createdMS) == (2, meta.timestamp, meta.timestamp)
    cleaned, logs, parts = ice.tombstone_cleanup(0)
    assert cleaned == [key]
    assert len(logs) == 2
    assert sorted(parts) == sorted(m.path for m in merged)
    actual = rows_of(ice, "SELECT user_id, count(*), any_value(u), any_value(d) FROM rows GROUP BY 1 ORDER BY 1")
    assert [(user, n, u, str(d)) for user, n, u, d in actual] == [
        ("user_a", 6, "user_a", "2023-06-07"),
        ("user_b", 2, "user_b", "2023-02-11"),
    ]


@pytest.mark.sampled(days=3)
def test_counts_of_log_files_and_parts_match_v3(s3: Place) -> None:
    """The counts of a test of v3, with 60 inserts instead of 200."""
    s3c = client(s3)
    ice = program(s3, s3_client=s3c)
    for _ in range(3):
        ice.insert(AB)
    assert (log_files(s3c), len(alive(s3c))) == (3, 6)
    assert ice.merge(max_file_count=2)[1] is not None
    assert (log_files(s3c), len(markers(s3c)), len(alive(s3c))) == (4, 7, 5)
    ice.tombstone_cleanup(0)
    assert (log_files(s3c), len(markers(s3c)), len(alive(s3c))) == (2, 5, 5)
    for _ in range(60):
        ice.insert(AB)
    assert (log_files(s3c), len(markers(s3c))) == (62, 125)
    assert len(ice.merge(max_file_count=2000)[3]) == 63
    assert log_files(s3c) == 63
    done = [ice.merge(max_file_count=60) for _ in range(4)]
    assert [len(d[3]) for d in done] == [60, 3, 0, 0]
    assert done[2] == done[3] == NOTHING
    assert (log_files(s3c), len(markers(s3c))) == (65, 128)
    ice.tombstone_cleanup(0)
    assert (log_files(s3c), len(markers(s3c)), len(alive(s3c))) == (1, 2, 2)
    log, meta, dropped = ice.remove_partitions(lambda partitions: [p for p in partitions if p == "p=a"])
    assert (log is not None, meta is not None, dropped) == (True, True, 1)
    assert (log_files(s3c), len(alive(s3c))) == (2, 1)
    assert rows_of(ice, "SELECT count(*), sum(n) FROM rows") == [(63, 189)]


@pytest.mark.sampled(days=3)
def test_a_cleanup_deletes_all_replaced_objects(s3: Place) -> None:
    s3c = client(s3)
    ice = program(s3, s3_client=s3c)
    for _ in range(3):
        ice.insert(AB)
    replaced = {m.path for _ in range(2) for m in ice.merge()[3]}
    before = {f["Key"] for f in IceLogIO("x").get_current_log_files(s3c)}
    cleaned, logs, parts = ice.tombstone_cleanup(0)
    assert set(parts) == replaced
    assert {*cleaned, *logs} == before
    assert len(cleaned) == log_files(s3c) == 1
    assert objects(s3c).isdisjoint(before | replaced)
    assert ice.tombstone_cleanup(0) == ([], [], [])


def test_a_cleanup_keeps_objects_younger_than_its_age(s3: Place) -> None:
    s3c = client(s3)
    ice = program(s3, s3_client=s3c)
    ice.insert(A)
    ice.insert(A)
    ice.merge()
    before = objects(s3c)
    assert ice.remove_inactive_parts(60_000) == ([], [], [])
    assert objects(s3c) == before
    assert [len(actual) for actual in ice.remove_inactive_parts(0)] == [1, 2, 2]


# ---------------------------------------------------------------------------------------- rows in


@pytest.mark.sampled(days=3)
def test_a_row_is_never_modified_and_chooses_its_partition(s3: Place) -> None:
    ice = program(s3)
    rows = [{"p": "a", "n": 1, "deep": {"x": [1]}}, {"p": "a", "n": 2, "deep": {"x": []}, "_partition": "p=z"}]
    before = copy.deepcopy(rows)
    inserted = ice.insert(rows)
    assert rows == before
    assert {m.path.split("/_data/")[1].rpartition("/")[0] for m in inserted} == {"p=a", "p=z"}
    assert "_partition" not in ice.get_schema(rows)
    assert rows_of(ice, "SELECT n FROM rows WHERE p = 'z'") == [(2,)]


def test_the_partition_is_stored_with_preserve_partition(s3: Place) -> None:
    ice = program(s3, preserve_partition=True)
    ice.insert([{"n": 1, "_partition": "p=z"}])
    assert rows_of(ice, "SELECT n, _partition FROM rows") == [(1, "p=z")]


@pytest.mark.sampled(days=3)
def test_rows_are_formatted_as_copies_after_their_partition_is_chosen(s3: Place) -> None:
    def format_row(row: dict[str, Any]) -> dict[str, Any]:
        row["p"] = row["p"].upper()
        row["tags"].append("formatted")
        return row

    ice = program(s3, partition_function=None, partition_strategy=by_p, format_row=format_row)
    ice.custom_insert_query = "SELECT n, p || '!' AS p, tags FROM _rows"
    rows = [{"p": "a", "n": 1, "tags": ["x"]}]
    [marker] = ice.insert(rows)
    assert "/p=a/" in marker.path
    assert rows == [{"p": "a", "n": 1, "tags": ["x"]}]
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=marker.path)["Body"].read()
    assert pq.read_table(io.BytesIO(body)).to_pylist() == [{"n": 1, "p": "A!", "tags": ["x", "formatted"]}]


@pytest.mark.sampled(days=3)
def test_an_insert_query_sees_the_rows_of_one_partition(s3: Place) -> None:
    ice = program(s3)
    ice.custom_insert_query = "SELECT any_value(p) AS p, max(n) AS n, count(*) AS cnt FROM _rows"
    assert ice.get_schema(AB).pairs() == [("p", "VARCHAR"), ("n", "BIGINT"), ("cnt", "BIGINT")]
    ice.insert(AB)
    assert rows_of(ice, "SELECT p, n, cnt FROM rows ORDER BY p") == [("a", 2, 2), ("b", 3, 1)]


def test_rows_of_a_part_are_sorted(s3: Place) -> None:
    ice = program(s3, sort_order=['"Start Time"', "n"])
    [marker] = ice.insert([{"p": "a", "n": n % 3, "Start Time": n // 6} for n in range(11, -1, -1)])
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=marker.path)["Body"].read()
    stored = [(row["Start Time"], row["n"]) for row in pq.read_table(io.BytesIO(body)).to_pylist()]
    assert stored == sorted(stored)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("codec", CompressionCodec)
def test_parts_use_the_chosen_codec(s3: Place, codec: CompressionCodec) -> None:
    ice = program(s3, compression_codec=codec, row_group_size=2048)
    [marker] = ice.insert([{"p": "a", "n": n} for n in range(5000)])
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=marker.path)["Body"].read()
    metadata = pq.read_metadata(io.BytesIO(body))
    assert metadata.row_group(0).column(0).compression == codec.value == codec.name
    assert metadata.num_row_groups == 3


def test_a_wrong_codec_is_an_attribute_error(s3: Place) -> None:
    with pytest.raises(AttributeError, match="compression_codec"):
        program(s3, compression_codec="ZSTD")


def test_a_conflict_is_found_before_anything_is_visible(s3: Place) -> None:
    ice = program(s3)
    ice.insert(A)
    before = objects(ice.s3c)
    with pytest.raises(SchemaConflictException) as conflict:
        ice.insert([{"p": "a", "n": "one"}])
    assert (conflict.value.column, conflict.value.current_type, conflict.value.new_type) == ("n", "BIGINT", "VARCHAR")
    with pytest.raises(SchemaConflictException):
        ice.insert([{"p": "a", "n": 1}, {"p": "b", "n": "one"}])
    assert objects(ice.s3c) == before


def test_a_program_without_a_function_gives_each_row_its_partition(s3: Place) -> None:
    ice = program(s3, partition_function=None)
    ice.insert([{"n": 1, "_partition": "p=z"}])
    with pytest.raises(InvalidPartitionValue, match="row 1"):
        ice.insert([{"n": 2, "_partition": "p=z"}, {"n": 3}])
    assert rows_of(ice, "SELECT n, p FROM rows") == [(1, "z")]


@pytest.mark.sampled(days=3)
def test_threads_share_a_program(s3: Place) -> None:
    ice = program(s3)
    ice.insert(A)

    def work(number: int) -> int:
        if number % 4 == 0:
            ice.merge()
            return 0
        ice.insert([{"p": "ab"[number % 2], "n": number}])
        return 1

    with ThreadPoolExecutor(4) as pool:
        inserted = sum(pool.map(work, range(12)))
    assert rows_of(ice, "SELECT count(*) FROM rows") == [(2 + inserted,)]
    assert Table.open(s3.uri, storage_options=s3.storage_options).verify().ok


def test_an_insert_without_rows_makes_no_commit(s3: Place) -> None:
    ice = program(s3)
    assert ice.insert([]) == []
    with pytest.raises(NoLogFilesException):
        markers(ice.s3c)


@pytest.mark.parametrize("rows", [["text"], [None], [[1]]])
def test_an_invalid_row_is_rejected(s3: Place, rows: list[Any]) -> None:
    with pytest.raises(InvalidBatch, match="row 0"):
        program(s3).insert(rows)


# ---------------------------------------------------------------------------------------- merge


@pytest.mark.sampled(days=3)
def test_a_merge_takes_the_partition_with_most_parts_and_its_smallest_ones(s3: Place) -> None:
    ice = program(s3)
    large = [{"p": "a", "n": n, "s": f"{n * 7919 % 1000}"} for n in range(2000)]
    for rows in ([*A, {"p": "b", "n": 1}], large, A, [{"p": "b", "n": 1}]):
        ice.insert(rows)
    _, _, partition, merged, _ = ice.merge(asc=True)
    assert (partition, len(merged)) == ("p=b", 2)
    before = {f["Key"] for f in IceLogIO("x").get_current_log_files(ice.s3c)}
    small = {m.path for m in alive(ice.s3c) if "/p=a/" in m.path and m.fileBytes < 2000}
    _, new, partition, merged, _ = ice.merge(max_file_count=1)
    assert new is not None
    assert (partition, {m.path for m in merged}) == ("p=a", small)
    assert all(m.tombstone is None for m in merged), "as they were"
    assert all(m.vir_source_log_file in before for m in merged)
    assert ice.merge(max_file_size=1) == NOTHING, "its smallest part is large enough alone"
    assert ice.merge()[2] == "p=a"
    assert ice.merge() == NOTHING
    assert rows_of(ice, "SELECT count(*) FROM rows") == [(2006,)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("source", ["source_files", "read_parquet(?, hive_partitioning=1)"])
def test_a_merge_query_sees_the_partition_and_its_types_stay(s3: Place, source: str) -> None:
    ice = program(s3, partition_function=lambda row: f"day={row['day']}", sort_order=["k"])
    ice.insert([{"k": "x", "n": 1, "seen": None, "day": "2026-11-21"}, {"k": "y", "n": 5, "day": "2026-11-21"}])
    ice.insert([{"k": "x", "n": 2, "seen": 0, "day": "2026-11-21"}])
    ice.custom_merge_query = (
        f"SELECT k, sum(n) AS n, CAST(max(year(CAST(day AS DATE))) AS BIGINT) AS seen FROM {source} "
        f"WHERE k IN (SELECT k FROM {source}) GROUP BY k"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ice.merge()
    assert rows_of(ice, "SELECT k, n, seen, typeof(n) FROM rows ORDER BY k") == [
        ("x", 3, 2026, "BIGINT"),
        ("y", 5, 2026, "BIGINT"),
    ]


@pytest.mark.sampled(days=3)
def test_path_columns_are_visible_to_a_merge_query_and_not_stored(s3: Place) -> None:
    ice = program(s3, partition_function=lambda row: f"u={row['k']}/d=2026-11-21", sort_order=["k"])
    ice.insert([{"k": "x", "n": 1}])
    ice.insert([{"k": "x", "n": 2}])
    ice.custom_merge_query = "SELECT * FROM source_files WHERE d = DATE '2026-11-21' AND u = 'x'"
    _, new, _, _, _ = ice.merge()
    assert new is not None
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=new.path)["Body"].read()
    assert pq.read_table(io.BytesIO(body)).sort_by("n").to_pylist() == [{"k": "x", "n": 1}, {"k": "x", "n": 2}]


@pytest.mark.sampled(days=3)
def test_a_query_without_a_sort_column_causes_a_warning(s3: Place) -> None:
    ice = program(s3)
    ice.insert(A)
    ice.insert(A)
    ice.custom_merge_query = "SELECT p FROM source_files"
    with pytest.warns(UserWarning, match=r"drops \['n'\]"):
        assert ice.merge()[1] is not None
    with pytest.warns(UserWarning, match=r"drops \['n'\]"):
        assert ice.rewrite_partition("p=a", "SELECT p FROM _rows")[0] is not None
    ice.custom_insert_query = "SELECT p FROM _rows"
    with pytest.warns(UserWarning, match="n"):
        assert len(ice.insert(A)) == 1
    assert rows_of(ice) == [("a",)] * 6


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY source_files TO '/tmp/stolen.csv'",
        "SELECT sum(n) FROM source_files",
        "SELECT *, 1 AS one FROM source_files",
        "SELECT getenv('HOME') AS p FROM source_files",
        "SELECT * FROM read_parquet('/etc/passwd', hive_partitioning=1)",
    ],
)
def test_a_merge_query_that_reaches_further_is_refused(s3: Place, query: str) -> None:
    ice = program(s3)
    ice.insert(A)
    ice.insert(A)
    before = objects(ice.s3c)
    ice.custom_merge_query = query
    with pytest.raises(InvalidQuery):
        ice.merge()
    assert objects(ice.s3c) == before


@pytest.mark.sampled(days=3)
def test_a_merge_that_leaves_no_row_has_no_new_part(s3: Place) -> None:
    ice = program(s3)
    ice.insert(A)
    ice.insert(A)
    ice.custom_merge_query = "SELECT * FROM source_files WHERE false"
    key, new, partition, merged, _ = ice.merge()
    assert (key is None, new, partition, len(merged)) == (False, None, "p=a", 2)
    assert alive(ice.s3c) == []


# ---------------------------------------------------------------------------------------- drop and rewrite


def test_partitions_are_dropped_until_enough_parts_are(s3: Place) -> None:
    ice = program(s3)
    for _ in range(2):
        ice.insert([{"p": p, "n": 1} for p in "abc"])
    offered: list[str] = []

    def choose(partitions: list[str]) -> list[str]:
        offered.extend(partitions)
        return ["p=none", *reversed(partitions)]

    log, meta, dropped = ice.remove_partitions(choose, max_files=3)
    assert offered == ["p=a", "p=b", "p=c"]
    assert dropped == 4
    assert log is not None
    assert meta is not None
    assert (meta.tombstoneLineIndex, meta.fileLineIndex) == (2, 4)
    assert {m.path.split("/_data/")[1].split("/")[0] for m in alive(ice.s3c)} == {"p=a"}
    before = log_files(ice.s3c)
    assert ice.remove_partitions(lambda _: []) == (None, None, 0)
    assert ice.remove_partitions(lambda _: ["p=none"]) == (None, None, 0)
    assert log_files(ice.s3c) == before


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("answer", [None, "p=a", 7])
def test_an_invalid_list_of_partitions_is_rejected(s3: Place, answer: Any) -> None:
    ice = program(s3)
    ice.insert(A)
    with pytest.raises(InvalidOption, match="list of partitions"):
        ice.remove_partitions(lambda _: answer)
    assert len(alive(ice.s3c)) == 1


def test_a_partition_is_rewritten_in_one_log_file(s3: Place) -> None:
    ice = program(s3)
    inserted = [m for _ in range(2) for m in ice.insert(AB)]
    key, meta, replaced = ice.rewrite_partition("p=a", "SELECT p, n * 10 AS n FROM _rows WHERE n > 1")
    assert key is not None
    assert meta is not None
    assert sorted(replaced) == sorted(m.path for m in inserted if "/p=a/" in m.path)
    assert log_files(ice.s3c) == 3
    assert sorted(rows_of(ice, "SELECT p, n FROM rows")) == [("a", 20), ("a", 20), ("b", 3), ("b", 3)]
    assert ice.rewrite_partition("p=none", "SELECT * FROM _rows") == (None, None, [])
    assert log_files(ice.s3c) == 3


# ---------------------------------------------------------------------------------------- names that attack

AWKWARD = [
    "p=it's",
    'p=say "hi"',
    "p=a?b",
    "p=[a]*{b}",
    "p=a\nb\tc",
    "p=50%",
    "p=%2e%2e",
    "p=a b+c&d",
    "p=zürich/q=日本",
    "p=x'; DROP TABLE t; --",
    "p=C:\\temp",
    "_data.x/p=a",
    "_log_",
    "raw text/without names",
    "p=",
    "p=a=b",
    "p=NULL",
    "",
]


@pytest.mark.sampled(cases=3, days=3)
@pytest.mark.parametrize("partition", AWKWARD)
def test_any_text_may_be_a_partition(s3: Place, partition: str) -> None:
    ice = program(s3, partition_function=lambda _: partition)
    table = objects(ice.s3c)
    [marker] = ice.insert([{"n": 1}])
    assert marker.path.startswith(f"{ice.s3c.s3prefix}/_data/")
    assert {"?", "*", "[", "\n", "'", '"', "\\"}.isdisjoint(marker.path)
    ice.insert([{"n": 2}])
    _, _, merged_partition, merged, _ = ice.merge()
    assert (merged_partition, len(merged)) == (partition, 2)
    assert ice.rewrite_partition(partition, "SELECT n + 1 AS n FROM _rows")[0] is not None
    assert [n for (n,) in rows_of(ice, "SELECT n FROM rows ORDER BY n")] == [2, 3]
    offered: list[str] = []

    def choose_all(partitions: list[str]) -> list[str]:
        offered.extend(partitions)
        return partitions

    assert ice.remove_partitions(choose_all)[2] == 1
    assert offered == [partition]
    ice.tombstone_cleanup(0)
    left = objects(ice.s3c) - table
    assert all(key.startswith((f"{ice.s3c.s3prefix}/_log/", f"{ice.s3c.s3prefix}/_claims/")) for key in left)


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize("partition", ["../p=a", "p=a/..", "p=a//q=b", "/p=a", "./p=a", "=x", "p=" + "x" * 300,
                                       "_data/p=a", "_log", "p=x_data", "p=a/q=_log"])  # fmt: skip
@pytest.mark.parametrize("by_row", [False, True])
def test_a_partition_that_is_no_path_is_refused(s3: Place, partition: str, by_row: bool) -> None:
    ice = program(s3, partition_function=lambda _: partition)
    before = {key for key in objects(ice.s3c) if "/_claims/" not in key}
    with pytest.raises(InvalidPartitionValue):
        ice.insert([{"n": 1, "_partition": partition} if by_row else {"n": 1}])
    assert {key for key in objects(ice.s3c) if "/_claims/" not in key} == before


@pytest.mark.parametrize("partition", [None, 7, b"p=a", ["p=a"]])
def test_a_partition_that_is_no_text_is_refused(s3: Place, partition: Any) -> None:
    with pytest.raises(InvalidPartitionValue, match="row 0"):
        program(s3, partition_function=lambda _: partition).insert([{"n": 1}])


@pytest.mark.sampled(cases=3, days=3)
@pytest.mark.parametrize("host", ["a/b", "../x", "ho_st", "m", "", "a'b\"c", "é", "x.e7", "a b\n", "h" * 500])
def test_a_host_name_is_escaped_in_log_file_names(s3: Place, host: str) -> None:
    ice = program(s3, path_safe_hostname=host)
    ice.insert(A)
    ice.insert(A)
    assert ice.merge()[1] is not None
    files = IceLogIO(host).get_current_log_files(ice.s3c)
    assert len(files) == 3
    for actual in files:
        name = ice.s3c.table.keys.parse_log_file(actual["Key"])
        assert name.is_ours
        assert "_" not in name.writer
    assert Table.open(s3.uri, storage_options=s3.storage_options).verify().ok


@pytest.mark.parametrize("prefix", ["../x", "a/../b", "a//b", "a/./b", "x?y", "x*", "[x]", "a\nb", "a\\b",
                                    "_data/x", "a/_log", "my_data"])  # fmt: skip
def test_a_prefix_that_is_no_path_is_refused(s3: Place, prefix: str) -> None:
    with pytest.raises(InvalidURI):
        client(s3, s3prefix=prefix)


@pytest.mark.parametrize("bucket", ["", "a/b", "key:secret@host", "../x"])
def test_a_bucket_that_is_no_name_is_refused(s3: Place, bucket: str) -> None:
    with pytest.raises(InvalidURI):
        client(s3, s3bucket=bucket)


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("prefix", ["it's", "a b/zürich", "_data.x/y", "50%", 'say "x"', "a#b&c+d", "x=1/{y}"])
def test_an_awkward_prefix_works(s3: Place, prefix: str) -> None:
    s3c = client(s3, s3prefix=f"{client(s3).s3prefix}/{prefix}/")
    ice = program(s3, s3_client=s3c)
    ice.insert(A)
    ice.insert(A)
    assert ice.merge()[1] is not None
    assert [len(actual) for actual in ice.tombstone_cleanup(0)] == [1, 2, 2]
    assert rows_of(ice, "SELECT sum(n) FROM rows") == [(6,)]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("column", ["n; DROP TABLE t", "n DESC", "../n", 'n"', "n' OR 1=1", "(SELECT 1)", "n\n"])
def test_a_sort_column_is_not_interpreted_as_sql(s3: Place, column: str) -> None:
    ice = program(s3, sort_order=[column])
    with pytest.raises(UnknownColumn):
        ice.insert(A)
    with pytest.raises(NoLogFilesException):
        markers(ice.s3c)


# ---------------------------------------------------------------------------------------- clients and stores


@pytest.mark.sampled(days=3)
def test_the_root_of_a_bucket_may_be_the_table(s3: Place) -> None:
    bucket = f"icedb-v3-{now_ms()}"
    client(s3).s3.create_bucket(Bucket=bucket)
    for prefix in ("", None):
        ice = program(s3, s3_client=client(s3, s3prefix=prefix, s3bucket=bucket))
        [marker] = ice.insert(A)
        assert marker.path.startswith("_data/p=a/")
    assert rows_of(ice, "SELECT count(*) FROM rows") == [(4,)]


@pytest.mark.sampled(days=3)
def test_the_log_may_be_in_another_bucket(s3: Place) -> None:
    bucket = f"icedb-v3-log-{now_ms()}"
    data, log = client(s3), client(s3, s3bucket=bucket, s3prefix="deep/log")
    data.s3.create_bucket(Bucket=bucket)
    with pytest.raises(NoLogFilesException):
        markers(log)
    ice = program(s3, s3_client=data, log_s3_client=log)
    assert (ice.data_s3c, ice.s3c, ice.log_s3c) == (data, data, log)
    for _ in range(2):
        ice.insert(A)
    assert ice.merge()[1] is not None
    reader = client(s3, s3bucket=bucket, s3prefix="deep/log")
    assert [len(alive(reader)), len(markers(log)), log_files(reader)] == [1, 3, 3]
    assert [len(actual) for actual in ice.tombstone_cleanup(0)] == [1, 2, 2]
    assert rows_of(ice, "SELECT count(*) FROM rows") == [(4,)]
    assert {key.split("/")[-2] for key in objects(log)} == {"_log", "_claims"}
    other = program(s3, s3_client=client(s3, s3prefix="another/table"), log_s3_client=reader)
    with pytest.raises(TableExists, match="another table"):
        other.insert(A)


def test_a_table_whose_log_is_elsewhere_gets_no_second_log(s3: Place) -> None:
    place, log = s3.below("data"), s3.below("log")
    table = Table.create(place.uri, partition_by=["p"], storage_options=s3.storage_options, log_uri=log.uri)
    table.insert(A)
    before = objects(client(place))
    with pytest.raises(InvalidOption, match="its log is at"):
        program(place).insert(A)
    with pytest.raises(InvalidOption, match="its log is at"):
        program(place, log_s3_client=client(s3.below("another"))).merge()
    assert objects(client(place)) == before
    program(place, log_s3_client=client(log)).insert(A)
    assert table.snapshot().rows == 4


def test_duckdb_has_the_credentials_and_shows_no_secret(s3: Place, tmp_path: Any) -> None:
    ice = program(s3, duckdb_ext_dir=str(tmp_path / "it's here"), max_threads=1)
    secret = (s3.storage_options or {})["AWS_SECRET_ACCESS_KEY"]
    with ice.get_duckdb() as con:
        settings = dict(
            con.execute(
                "SELECT name, value FROM duckdb_settings() WHERE name LIKE 's3_%' OR name IN "
                "('threads', 'extension_directory')"
            ).fetchall()
        )
    assert settings["s3_secret_access_key"] == secret
    assert (settings["s3_url_style"], settings["s3_use_ssl"], settings["threads"]) == ("path", "false", "1")
    assert settings["extension_directory"] == str(tmp_path / "it's here")
    assert secret not in f"{ice!r} {ice.s3c!r} {ice.s3c.location!r}"


def test_wrong_credentials_are_named_without_the_secret(s3: Place) -> None:
    ice = program(s3, s3_client=client(s3, s3secretkey="not-the-secret"))
    with pytest.raises(IceDBError) as refused:
        ice.insert(A)
    assert isinstance(refused.value, PermissionError)
    assert "not-the-secret" not in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"s3_client": "s3://bucket"},
        {"partition_function": "p"},
        {"row_group_size": 0},
        {"sort_order": ["n", "N"]},
        {"sort_order": [7]},
    ],
)
def test_invalid_arguments_are_rejected(s3: Place, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        program(s3, **changed)


def test_positional_arguments_are_those_of_v3(s3: Place) -> None:
    options = s3.storage_options or {}
    key, secret = options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"]
    region, endpoint = options["AWS_REGION"], options["AWS_ENDPOINT_URL"]
    s3c = S3Client("positional/" + client(s3).s3prefix, BUCKET, region, endpoint, key, secret)
    merge_query, insert_query = "SELECT p, max(n) AS n FROM source_files GROUP BY p", "SELECT p, n + 1 AS n FROM _rows"
    ice = IceDBv3(
        by_p, ["n"], region, key, secret, endpoint, s3c, "host", True, None, merge_query, insert_query,
        4096, CompressionCodec.GZIP, False, 2, s3c,
    )  # fmt: skip
    ice.insert(A)
    ice.insert(A)
    ice.merge()
    assert rows_of(ice, "SELECT p, n FROM rows") == [("a", 3)]


# ---------------------------------------------------------------------------------------- beside the core


def test_a_spec_in_the_log_does_not_replace_the_programs_own(s3: Place) -> None:
    table = Table.create(s3.uri, partition_by=["k"], sort_by=["k"], storage_options=s3.storage_options)
    table.insert([{"k": "x", "p": "a", "n": 1}])
    table.alter(sort_by=["p"], compression="gzip")
    ice = program(s3)
    [marker] = ice.insert([{"k": "x", "p": "a", "n": n} for n in (2, 1)])
    body = ice.s3c.s3.get_object(Bucket=ice.s3c.s3bucket, Key=marker.path)["Body"].read()
    assert pq.read_metadata(io.BytesIO(body)).row_group(0).column(0).compression == "SNAPPY"
    assert pq.read_table(io.BytesIO(body)).column("n").to_pylist() == [1, 2]
    assert "/p=a/" in marker.path
    assert sorted(table.query("SELECT n FROM t").fetchall()) == [(1,), (1,), (2,)]


@pytest.mark.sampled(days=3)
def test_v3_programs_see_the_same_rows_at_every_stage(s3: Place) -> None:
    """Both readers return the same after an insert, an append by v3, a merge, a drop, a rewrite and a cleanup."""
    ice = program(s3)
    v3 = V3Program.at(s3, now_ms)

    def agreed() -> list[tuple[str, int]]:
        theirs = sorted((row["p"], row["n"]) for row in v3.rows())
        assert sorted(m.path for m in alive(ice.s3c)) == v3.read().live
        assert theirs == sorted(rows_of(ice, "SELECT p, n FROM rows"))
        return theirs

    ice.insert(AB)
    v3.insert({"p=a": [{"p": "a", "n": 7}], "p=raw b": [{"p": "raw b", "n": 8}]}, {"p": "VARCHAR", "n": "BIGINT"})
    assert agreed() == [("a", 1), ("a", 2), ("a", 7), ("b", 3), ("raw b", 8)]
    ice.insert([{"p": "raw b", "n": 9}])
    assert ice.merge(asc=True)[2] == "p=a"
    agreed()
    assert ice.merge()[2] == "p=raw b", "their path and ours mean one partition"
    agreed()
    v3.insert({"p=raw b": [{"p": "raw b", "n": 10}]}, {"p": "VARCHAR", "n": "BIGINT"})
    assert len(ice.rewrite_partition("p=raw b", "SELECT p, n + 100 AS n FROM _rows")[2]) == 2
    assert agreed() == [("a", 1), ("a", 2), ("a", 7), ("b", 3), ("raw b", 108), ("raw b", 109), ("raw b", 110)]
    v3.insert({"p=raw b": [{"p": "raw b", "n": 11}]}, {"p": "VARCHAR", "n": "BIGINT"})
    assert ice.remove_partitions(lambda actual: [p for p in actual if p == "p=raw b"])[2] == 2
    assert agreed() == [("a", 1), ("a", 2), ("a", 7), ("b", 3)]
    ice.tombstone_cleanup(0)
    v3.insert({"p=a": [{"p": "a", "n": 12}]}, {"p": "VARCHAR", "n": "BIGINT"})
    assert agreed() == [("a", 1), ("a", 2), ("a", 7), ("a", 12), ("b", 3)]
    assert Table.open(s3.uri, storage_options=s3.storage_options).verify(deep=True).ok


@pytest.mark.sampled(days=3)
def test_a_table_of_v3_programs_is_maintained(s3: Place) -> None:
    times = iter(range(now_ms() - 60_000, now_ms()))
    v3 = V3Program.at(s3, times.__next__)
    schema = {"p": "VARCHAR", "n": "BIGINT"}
    for n in range(3):
        v3.insert({"p=a b": [{"p": "a b", "n": n}], "p=c": [{"p": "c", "n": n}]}, schema)
    v3.merge("p=c")
    v3.drop("p=c")
    ice = program(s3)
    assert sorted(rows_of(ice, "SELECT n FROM rows")) == [(0,), (1,), (2,)]
    assert ice.merge()[2] == "p=a b"
    ice.insert([{"p": "a b", "n": 3}])
    assert len(ice.merge()[3]) == 2
    ice.tombstone_cleanup(0)
    assert log_files(ice.s3c) == 1
    assert sorted(row["n"] for row in v3.rows()) == [0, 1, 2, 3]
    assert len(v3.read().markers) == 1, "what they merged and dropped is gone, too"
    assert len([key for key in objects(ice.s3c) if key.startswith(f"{ice.s3c.s3prefix}/_data/")]) == 1


def test_two_programs_that_bring_a_column_with_two_types(s3: Place) -> None:
    one, other = program(s3), program(s3)
    one.insert(A)
    other.insert(A)
    one.insert([{"p": "a", "n": 1, "new": 1}])
    with pytest.raises(SchemaConflictException) as conflict:
        other.insert([{"p": "a", "n": 1, "new": "text"}])
    assert conflict.value.column == "new"
    assert rows_of(one, "SELECT count(*), sum(new) FROM rows") == [(5, 1)]


@pytest.mark.sampled(days=3)
def test_errors_of_duckdb_do_not_escape_a_rewrite(s3: Place) -> None:
    ice = program(s3)
    ice.insert(A)
    with pytest.raises(InvalidQuery):
        ice.rewrite_partition("p=a", "SELECT nonsense FROM _rows")
    with pytest.raises(InvalidRequestError):
        ice.rewrite_partition("p=a", "SELECT p, CAST(p AS BIGINT) AS n FROM _rows")
    assert not issubclass(InvalidQuery, duckdb.Error)
    assert rows_of(ice, "SELECT count(*) FROM rows") == [(2,)]
