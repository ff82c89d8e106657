"""Keys round-trip, and any partition value makes a safe and distinct path that DuckDB reads back."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icedb.errors import CorruptLog, InvalidPartitionValue, InvalidURI
from icedb.format.keys import (
    NULL_VALUE,
    SEGMENT_BYTES_MAX,
    Keys,
    decode_partition,
    encode_partition,
    encode_value,
    partition_of,
)

AWKWARD = ["", ".", "..", "/", "a/b", "'", '"', "=", "%", "%2F", " ", "NULL", "null", "Null", NULL_VALUE,
           NULL_VALUE.lower(),
           "ü", "日本", "\0", "\n", "\x7f", "+", "a b%2Fc", "#", "?", "*", "\\", "~", "😀", "00123"]  # fmt: skip

_CONNECTION = duckdb.connect()
#: A character takes at most 9 bytes in a path.
texts = st.one_of(st.sampled_from(AWKWARD), st.text(max_size=20))
# Characters beyond ASCII that XML 1.0 allows and does not discourage, because S3 lists in XML.
XML_CHARACTER = re.compile("[\u00a0-\u2027\u202a-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")

values = st.one_of(st.none(), texts)
names = st.one_of(st.sampled_from([a for a in AWKWARD if a]), st.text(min_size=1, max_size=4))


@given(st.dictionaries(names, values, min_size=1, max_size=3))
def test_a_partition_path_round_trips(partition: dict[str, str | None]) -> None:
    assert decode_partition(encode_partition(partition)) == partition


@given(values, values)
@example(None, NULL_VALUE)
@example("NULL", "null")
@example("a/b", "a%2Fb")
@example("", None)
def test_distinct_values_have_distinct_paths(one: str | None, other: str | None) -> None:
    assert (encode_value(one) == encode_value(other)) == (one == other)


@given(st.dictionaries(names, values, min_size=1, max_size=3))
def test_a_path_is_safe_in_a_url_and_in_a_folder(partition: dict[str, str | None]) -> None:
    path = encode_partition(partition)
    segments = path.split("/")
    assert len(segments) == len(partition)
    for segment in segments:
        name, value = segment.split("=")
        assert name not in ("", ".", "..")
        for char in name + value:
            assert char in "_-.%" or (char.isalnum() if char.isascii() else XML_CHARACTER.fullmatch(char)), segment
    key = Keys("p").part(path, "id")
    assert partition_of("p/_data/", key) == path


@pytest.mark.long
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values)
@example("NULL")
@example(NULL_VALUE)
@example("")
@example("\0")
@example("a+b %2B")
def test_duckdb_reads_the_value_back_from_the_path(tmp_path: Path, value: str | None) -> None:
    folder = tmp_path / encode_partition({"p": value})
    folder.mkdir(exist_ok=True)
    path = str(folder / "x.parquet")
    con = _CONNECTION.cursor()
    con.execute("COPY (SELECT 1 AS n) TO '" + path.replace("'", "''") + "' (FORMAT parquet)")
    read = con.execute(
        "SELECT p, n FROM read_parquet(?, hive_partitioning = true, hive_types = {p: 'VARCHAR'})", [[path]]
    )
    assert read.fetchall() == [(value, 1)]


def test_a_value_too_long_for_a_file_name_is_rejected() -> None:
    assert len(encode_partition({"d": "x" * (SEGMENT_BYTES_MAX - 2)})) == SEGMENT_BYTES_MAX
    for value in ("x" * (SEGMENT_BYTES_MAX - 1), "/" * 100, "日" * 100):
        with pytest.raises(InvalidPartitionValue, match=r"'d'.*hash"):
            encode_partition({"d": value})


def test_a_key_too_long_for_a_store_is_rejected() -> None:
    partition = encode_partition({f"d{n}": "x" * 240 for n in range(4)})
    Keys("").part(partition, "0" * 32)
    with pytest.raises(InvalidPartitionValue, match="object stores allow"):
        Keys("prefix/" * 20 + "x").part(partition, "0" * 32)


@pytest.mark.parametrize("prefix", ["", "table", "a/b c/env=prod"])
def test_every_key_of_a_table_round_trips(prefix: str) -> None:
    keys = Keys(prefix)
    for merged in (False, True):
        key = keys.log_file(1_700_000_000_000, merged=merged, writer="host-1-ab.e12")
        name = keys.parse_log_file(key)
        assert (name.t_ms, name.merged, name.writer, name.epoch) == (1_700_000_000_000, merged, "host-1-ab.e12", 12)
    assert keys.parse_log_file(keys.log_file(1, merged=False, writer="v3-writer")).epoch is None
    assert keys.parse_epoch_claim(keys.epoch_claim(7)) == 7
    assert keys.parse_epoch_claim(keys.probe) is None
    assert partition_of(keys.data_prefix, keys.part("", "id")) == ""
    assert all(not k.startswith("/") and "//" not in k for k in (keys.spec, keys.probe, keys.log_prefix))


def test_only_the_first_two_fields_of_a_log_files_name_count() -> None:
    # A writer of IceDB v3 is any path-safe text: a host's name with underscores, a random id.
    keys = Keys("")
    assert keys.parse_log_file("_log/1700000000000_my_host.jsonl").writer == "my_host"
    assert not keys.parse_log_file("_log/1700000000000_my_m_host.jsonl").merged
    assert keys.parse_log_file("_log/1700000000000_m_my_host.jsonl").merged
    assert not keys.parse_log_file("_log/1700000000000_a-m.jsonl").merged
    assert keys.parse_log_file("_log/1700000000000_m_a.jsonl").merged
    assert keys.parse_log_file("_log/1700000000000_0b9e.E2.jsonl").epoch is None


@pytest.mark.parametrize(
    "name",
    ["x.jsonl", "1700000000000_a.json", "170000000000_a.jsonl", "17000000000000_a.jsonl", "1700000000000_m.jsonl",
     "1700000000000_m_m.jsonl", "1700000000000_.jsonl", "sub/1700000000000_a.jsonl",
     "1700000000000_a.jsonl.tmp", "1700000000000_a.jsonl\n", ""],
)  # fmt: skip
def test_an_object_not_named_like_a_log_file_raises_corrupt_log(name: str) -> None:
    with pytest.raises(CorruptLog, match="Move the object elsewhere") as caught:
        Keys("t").parse_log_file(f"t/_log/{name}")
    assert caught.value.key == f"t/_log/{name}"


@pytest.mark.parametrize("key", ["t/_data/../x.parquet", "t2/_data/x", "t/_data/", "t/_data/a//b", "t/_data/./x", "x"])
def test_a_part_outside_the_table_raises_corrupt_log(key: str) -> None:
    with pytest.raises(CorruptLog, match="outside"):
        partition_of("t/_data/", key)


@pytest.mark.parametrize("prefix", ["a//b", "..", "a/../b", ".", "/a", "a/"])
def test_an_unsafe_prefix_is_rejected(prefix: str) -> None:
    with pytest.raises(InvalidURI):
        Keys(prefix)


def test_a_path_that_is_not_hive_style_has_no_values() -> None:
    # A v3 program's part_func may return anything.
    assert decode_partition("2024/01") == {}
    assert decode_partition("") == {}
