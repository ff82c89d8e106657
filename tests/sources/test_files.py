"""Files in a folder or in S3 become a batch: texts are unchanged, no number is rounded, no line is skipped."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icedb.errors import AccessDenied, IceDBError, InvalidBatch, SchemaConflict, StoreUnavailable, UnsupportedType
from icedb.sources.open_source import open_batch
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from tests.support.tables.input_reader import Found, read


class SourceFiles:
    """The files of a test, in a folder or in a bucket with the credentials of the table."""

    def __init__(self, place: Any) -> None:
        self.table = parse_location(place.uri, place.storage_options)
        self.uri = place.uri.rpartition("/")[0] + "/in"
        self._where = parse_location(self.uri, place.storage_options)

    def put(self, name: str, body: str | bytes) -> str:
        content = body if isinstance(body, bytes) else body.encode()
        key = f"{self._where.prefix}/{name}".lstrip("/")
        open_store(self._where).create(key, content)
        return f"{self.uri}/{name}"

    def parquet(self, name: str, sql: str) -> str:
        return self.arrow(name, duckdb.connect().sql(sql).to_arrow_table())

    def arrow(self, name: str, table: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return self.put(name, sink.getvalue().to_pybytes())

    def read(self, data: Any, columns: dict[str, str] | None = None, **options: Any) -> Found:
        return read(data, columns, location=self.table, **options)

    def refuses(self, data: Any, error: type[IceDBError], message: str, columns: dict[str, str] | None = None) -> None:
        with pytest.raises(error, match=message) as caught:
            self.read(data, columns)
        assert str(caught.value).startswith(f"{self.table.uri}: ")
        assert type(caught.value) is error


@pytest.fixture
def folder(shared_place: Any) -> SourceFiles:
    """Files in a folder or bucket, for a table beside it."""
    return SourceFiles(shared_place)


@pytest.fixture
def here(local: Any) -> SourceFiles:
    """Files in a folder."""
    return SourceFiles(local)


# ------------------------------------------------------------------------------------------ all formats

WRITERS: dict[str, Callable[[SourceFiles, str, int], str]] = {
    "parquet": lambda f, name, n: f.arrow(f"{name}.parquet", pa.table({"a": [n], f"c{n}": ["x"]})),
    "jsonl": lambda f, name, n: f.put(f"{name}.jsonl", f'{{"a":{n},"c{n}":"x"}}\n'),
    "ndjson.gz": lambda f, name, n: f.put(f"{name}.ndjson.gz", gzip.compress(f'{{"a":{n},"c{n}":"x"}}'.encode())),
    "json.zst": lambda f, name, n: f.put(f"{name}.json.zst", _zstd(f'{{"a":{n},"c{n}":"x"}}\n')),
    "csv": lambda f, name, n: f.put(f"{name}.csv", f"a,c{n}\n{n},x\n"),
    "csv.gz": lambda f, name, n: f.put(f"{name}.csv.gz", gzip.compress(f"a,c{n}\n{n},x\n".encode())),
    "tsv": lambda f, name, n: f.put(f"{name}.tsv", f"a\tc{n}\n{n}\tx\n"),
}


def _zstd(text: str) -> bytes:
    return bytes(pa.Codec("zstd").compress(text.encode(), asbytes=True))


@pytest.mark.sampled(cases=3, days=3)
@pytest.mark.parametrize("kind", WRITERS)
def test_paths_lists_and_globs_are_united_by_column_name(folder: SourceFiles, kind: str) -> None:
    one, two = WRITERS[kind](folder, "one", 1), WRITERS[kind](folder, "two", 2)
    assert folder.read(one).rows == [(1, "x")]
    both = folder.read([one, two])
    assert both.types == {"a": "BIGINT", "c1": "VARCHAR", "c2": "VARCHAR"}
    assert both.rows == [(1, "x", None), (2, None, "x")]
    assert folder.read(f"{folder.uri}/*.{kind}").rows == both.rows
    assert "one." in both.source


def test_paths_may_be_path_objects_and_file_addresses(here: SourceFiles) -> None:
    path = here.put("a b.csv", "a\n1\n")
    assert here.read(Path(path)).column == [1]
    assert here.read([Path(path), path]).column == [1, 1]
    assert here.read(f"file://{path.replace(' ', '%20')}").column == [1]


@pytest.mark.sampled(cases=1, days=3)
def test_the_folders_of_the_paths_are_columns(folder: SourceFiles) -> None:
    name = "d=2026-01-0{}/u={}/s=a%2Fb/n={}/x"
    for kind, write in WRITERS.items():
        write(folder, f"{kind}/" + name.format(1, 7, "007"), 1)
        write(folder, f"{kind}/" + name.format(2, 8, "__HIVE_DEFAULT_PARTITION__"), 1)
        batch = folder.read(f"{folder.uri}/{kind}/*/*/*/*/*.{kind}")
        assert {c: batch.types[c] for c in "duns"} == {"d": "DATE", "u": "BIGINT", "n": "VARCHAR", "s": "VARCHAR"}
        by_name = [dict(zip(batch.types, row, strict=True)) for row in batch.rows]
        assert [(r["d"], r["u"], r["n"], r["s"], r["a"]) for r in by_name] == [
            (date(2026, 1, 1), 7, "007", "a/b", 1),
            (date(2026, 1, 2), 8, None, "a/b", 1),
        ]
        with_schema = folder.read(f"{folder.uri}/{kind}/*/*/*/*/*.{kind}", {"u": "INTEGER"})
        assert with_schema.types["u"] == "VARCHAR"
        assert "u" in with_schema.parsed


@pytest.mark.long
def test_a_column_of_the_files_wins_over_the_folders(here: SourceFiles) -> None:
    for kind, write in WRITERS.items():
        write(here, f"{kind}/a=5/x", 1)
        assert here.read(f"{here.uri}/{kind}/*/*.{kind}").rows == [(1, "x")]


def test_folders_that_some_paths_lack_are_not_columns(here: SourceFiles) -> None:
    paths = [here.put("d=1/a.csv", "a\n1\n"), here.put("e=1/a.csv", "a\n2\n")]
    assert here.read(paths).types == {"a": "BIGINT"}


# ------------------------------------------------------------------------------------------ missing files


def test_invalid_paths_are_rejected(here: SourceFiles) -> None:
    one, other = here.put("a.csv", "a\n1\n"), here.put("a.parquet", "x")
    here.put("a[1].csv", "a\n1\n")
    for data, message in [
        (here.uri, r"is a folder\. Give a glob"),
        (f"{here.uri}/nowhere.csv", "there is no file"),
        (f"{here.uri}/nowhere*.csv", r"no file matches .*\. Correct the glob"),
        (here.put("a.txt", "x"), r"'.*a\.txt'.*"),
        (f"{here.uri}/a.*", "cannot take rows from a builtins.str"),
        ([one, other], r"several formats \(csv, parquet\)"),
        (f"{here.uri}/*.csv", r"'.*a\[1\]\.csv' has one of"),
        ("gs://bucket/x.parquet", "not from gs://"),
        ("https://user:secret@host/x.parquet", "not from https://"),
        ("a,b", "cannot take rows from a builtins.str"),
        ("a\0b", "no path"),
    ]:
        here.refuses(data, InvalidBatch, message)


@pytest.mark.s3
def test_missing_objects_are_rejected(s3: Any) -> None:
    folder = SourceFiles(s3)
    folder.put("a.csv", "a\n1\n")
    for name in ("no.parquet", "no.jsonl", "no.csv"):
        folder.refuses(f"{folder.uri}/{name}", InvalidBatch, rf"{name}' does not exist.*Correct the path")
    folder.refuses(f"{folder.uri}/no*.csv", InvalidBatch, "no file matches")
    folder.refuses("s3://no-such-bucket/a*.csv", InvalidBatch, "no-such-bucket")
    folder.refuses(f"{folder.uri}/in", InvalidBatch, "cannot take rows from a builtins.str")


@pytest.mark.s3
def test_denied_access_and_an_unreachable_store_raise(s3: Any) -> None:
    folder = SourceFiles(s3)
    path = folder.put("a.csv", "a\n1\n")
    secret = "wrong" * 8
    wrong = parse_location(s3.uri, s3.storage_options | {"AWS_SECRET_ACCESS_KEY": secret})
    for name in (path, f"{folder.uri}/*.csv"):
        with pytest.raises(AccessDenied, match="Check the credentials") as caught:
            read(name, location=wrong)
        assert secret not in str(caught.value)
    unreachable = parse_location(s3.uri, s3.storage_options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(StoreUnavailable):
        read(path, location=unreachable)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_a_table_in_a_folder_reads_a_bucket_with_the_credentials_of_the_environment(
    s3: Any, local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SourceFiles(s3).put("a.csv", "a\n1\n")
    for name, value in s3.storage_options.items():
        monkeypatch.setenv(name, value)
    assert read(path, location=parse_location(local.uri)).column == [1]
    assert read("s3a" + path.removeprefix("s3"), location=parse_location(local.uri)).column == [1]


# ------------------------------------------------------------------------------------------ Parquet


@pytest.mark.sampled(days=3)
def test_parquet_keeps_its_types(folder: SourceFiles) -> None:
    sql = (
        "SELECT 1::INTEGER i, 2::UBIGINT u, 1.5::DECIMAL(9,2) d, '\\xFF'::BLOB b, TIME '01:02:03' t, "
        "MAP {'k': 1.5::FLOAT} m, "
        "TIMESTAMPTZ '2026-01-01 00:00:00+00' z, TIMESTAMP_NS '2026-01-01 00:00:00.000000001' ns, [{'x': [1]}] n"
    )
    batch = folder.read(folder.parquet("a.parquet", sql))
    assert batch.types == {
        "i": "INTEGER", "u": "UBIGINT", "d": "DECIMAL(9,2)", "b": "BLOB", "t": "TIME", "m": "MAP(VARCHAR, FLOAT)",
        "z": "TIMESTAMP WITH TIME ZONE", "ns": "TIMESTAMP_NS", "n": "STRUCT(x INTEGER[])[]",
    }  # fmt: skip
    assert batch.rows[0][:4] == (1, 2, Decimal("1.50"), b"\xff")
    assert batch.rows[0][4:7] == (time(1, 2, 3), {"k": 1.5}, datetime(2026, 1, 1, tzinfo=UTC))


def test_uuids_and_json_of_parquet_keep_their_types(here: SourceFiles) -> None:
    path = Path(here.put("x.csv", "a\n1\n")).with_name("a.parquet")
    duckdb.sql(f"COPY (SELECT uuid() u, '[1]'::JSON j, {{'u': [uuid()]}} s) TO '{path}'")
    batch = here.read(path)
    assert batch.types == {"u": "UUID", "j": "JSON", "s": "STRUCT(u UUID[])"}
    assert batch.rows == duckdb.sql(f"FROM '{path}'").fetchall()


@pytest.mark.sampled(days=3)
def test_files_with_two_types_of_a_column_conflict_or_become_json(folder: SourceFiles) -> None:
    one = folder.parquet("1.parquet", "SELECT 1::BIGINT a, 1 b")
    two = folder.parquet("2.parquet", "SELECT 'x' a, 2 b")
    with pytest.raises(
        SchemaConflict, match=r"'a' is BIGINT in '.*1\.parquet' and VARCHAR in '.*2\.parquet'"
    ) as caught:
        folder.read([one, two])
    assert (caught.value.column, caught.value.types) == ("a", ("BIGINT", "VARCHAR"))
    batch = folder.read([one, two], on_conflict="quarantine")
    assert (batch.types, batch.mixed) == ({"a": "JSON", "b": "INTEGER"}, {"a"})
    assert batch.rows == [("1", 1), ('"x"', 2)]


def test_bytes_in_one_of_two_files_always_conflict(here: SourceFiles) -> None:
    paths = [here.parquet("1.parquet", "SELECT 1 a"), here.parquet("2.parquet", "SELECT 'x'::BLOB a")]
    with pytest.raises(SchemaConflict, match="BLOB"):
        here.read(paths, on_conflict="quarantine")


@pytest.mark.long
def test_columns_without_values_have_no_type(here: SourceFiles) -> None:
    empty = here.arrow("1.parquet", pa.table({"n": pa.nulls(2)}))
    assert here.read(here.put("a.csv", "n,m\n,\n,\n")).types == {"n": "NULL", "m": "NULL"}
    typed = here.arrow("2.parquet", pa.table({"n": ["x"], "a": [1]}))
    assert here.read(empty).types == {"n": "NULL"}
    assert here.read(empty).rows == [(None,), (None,)]
    batch = here.read([empty, typed])
    assert batch.types == {"n": "VARCHAR", "a": "BIGINT"}
    assert batch.rows == [(None, None), (None, None), ("x", 1)]


@pytest.mark.sampled(days=3)
def test_an_invalid_parquet_file_is_named(folder: SourceFiles) -> None:
    whole = folder.parquet("ok.parquet", "SELECT range a, uuid() u FROM range(5000)")
    folder.refuses([whole, folder.put("a.parquet", "garbage")], InvalidBatch, r"a\.parquet.*Correct or leave out")
    folder.refuses(folder.put("b.parquet", b"PAR1" + b"x" * 100 + b"PAR1"), InvalidBatch, r"b\.parquet")


def test_a_type_that_parts_cannot_store_is_rejected(here: SourceFiles) -> None:
    path = Path(here.put("x.csv", "a\n1\n")).with_name("a.parquet")
    duckdb.sql(f"COPY (SELECT '01:00:00+01'::TIMETZ a) TO '{path}'")
    here.refuses(path, UnsupportedType, "'a' is TIME WITH TIME ZONE")


def test_a_damaged_parquet_file_is_named_while_it_is_read(here: SourceFiles) -> None:
    path = Path(here.parquet("a.parquet", "SELECT range a, uuid()::VARCHAR u FROM range(50000)"))
    body = bytearray(path.read_bytes())
    body[1000:200_000] = b"\0" * 199_000
    path.write_bytes(bytes(body))
    here.refuses(path, InvalidBatch, r"a\.parquet.*cannot be read")


# ------------------------------------------------------------------------------------------ JSON lines


@pytest.mark.sampled(days=3)
def test_json_texts_are_unchanged_and_numbers_exact(folder: SourceFiles) -> None:
    lines = [
        '{"d": "2026-01-01", "u": "00000000-0000-0000-0000-00000000000A", "i": 1, "f": 1, "n": {"a": 1}, "l": [1, 2.5]}'
        "  ",
        "",
        '{"i": 18446744073709551615, "f": 0.1, "n": {"b": "x"}, "l": [], "t": "ä\\u0000\\n\\ud83d\\ude00", "z": null}',
        '{"f": 5e-324, "b": true}',
    ]
    batch = folder.read(folder.put("a.jsonl", "\n".join(lines)))
    assert batch.types == {
        "d": "VARCHAR", "u": "VARCHAR", "i": "UBIGINT", "f": "DOUBLE", "n": "STRUCT(a BIGINT, b VARCHAR)",
        "l": "DOUBLE[]", "t": "VARCHAR", "z": "NULL", "b": "BOOLEAN",
    }  # fmt: skip
    assert batch.parsed == {"d", "u", "t"}
    assert batch.rows == [
        (
            "2026-01-01", "00000000-0000-0000-0000-00000000000A", 1, 1.0, {"a": 1, "b": None}, [1.0, 2.5], None,
            None, None,
        ),
        (None, None, 2**64 - 1, 0.1, {"a": None, "b": "x"}, [], "ä\0\n😀", None, None),
        (None, None, None, 5e-324, None, None, None, None, True),
    ]  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("number", "type_", "value"),
    [
        ("1", "DOUBLE", 1.0),
        ("9007199254740992", "DOUBLE", 2.0**53),
        ("0.1", "DECIMAL(9,2)", Decimal("0.10")),
        ("0.10000000000000001", "DECIMAL(38,20)", Decimal("0.10000000000000001")),
        ("3", "DECIMAL(9,2)", Decimal("3.00")),
        ("12345678901234567890123", "DECIMAL(38,0)", Decimal(12345678901234567890123)),
        ("12345678901234567890.5", "DECIMAL(38,1)", Decimal("12345678901234567890.5")),
        ("12345678901234567890123", "HUGEINT", 12345678901234567890123),
        ("0.5", "FLOAT", 0.5),
        ("300", "SMALLINT", 300),
    ],
)
def test_a_json_number_gets_the_exact_type_of_the_table(here: SourceFiles, number: str, type_: str, value: Any) -> None:
    batch = here.read(here.put("a.jsonl", f'{{"a": {number}}}\n'), {"a": type_})
    assert batch.types == {"a": type_}
    assert batch.column == [value]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "number", ["0.10000000000000001", "1.7976931348623157e308", "123456789.123456", "1e22", "-0.0"]
)
def test_a_number_that_a_double_prints_is_a_double(here: SourceFiles, number: str) -> None:
    batch = here.read(here.put("a.jsonl", f'{{"a": {number}}}\n'))
    assert batch.types == {"a": "DOUBLE"}
    assert str(batch.column[0]) == str(float(number))


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "number", ["1e400", "1e-400", "12345678901234567890.5", "9007199254740993.0", "0.123456789012345678"]
)
def test_a_number_that_no_double_represents_is_rejected_and_not_rounded(here: SourceFiles, number: str) -> None:
    path = here.put("a.jsonl", f'{{"a": 1}}\n{{"a": {number}}}\n')
    here.refuses(path, InvalidBatch, r"'a' holds, in line 2 of '.*a\.jsonl'.* no DOUBLE holds exactly.*DECIMAL")
    assert here.read(path, on_conflict="quarantine").mixed == {"a"}
    here.refuses(path, InvalidBatch, "no DOUBLE holds exactly", {"a": "DOUBLE"})


def test_an_integer_beyond_64_bits_is_rejected_with_its_line(here: SourceFiles) -> None:
    path = here.put("a.jsonl", '{"a": 1}\n\n{"a": 12345678901234567890123}\n')
    here.refuses(path, InvalidBatch, r"line 2 of .* \(empty lines not counted\).*DECIMAL\(38,0\)")


@pytest.mark.sampled(days=3)
def test_json_values_of_several_types_conflict_or_become_json(folder: SourceFiles) -> None:
    one, two = folder.put("1.jsonl", '{"a": 1}\n'), folder.put("2.jsonl", '{"b": 1}\n{"a": "x"}\n')
    folder.refuses([one, two], SchemaConflict, r"BIGINT, and VARCHAR in line 2 of '.*2\.jsonl'")
    batch = folder.read([one, two], on_conflict="cast")
    assert (batch.types["a"], batch.mixed) == ("JSON", {"a"})
    assert [r[0] for r in batch.rows] == ["1", None, '"x"']


def test_a_json_column_accepts_every_json_value(here: SourceFiles) -> None:
    path = here.put("a.jsonl", '{"a": "x"}\n{"a": 1.50}\n{"a": {"b": [null]}}\n{"a": null}\n')
    assert here.read(path, {"a": "JSON"}).column == ['"x"', "1.5", '{"b":[null]}', None]


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ('{"a":1}\n{"a":\n{"a":2}\n', 2, "not valid JSON"),
        ('{"a":1}\n{"a":1', 2, "not valid JSON"),
        ('{"a":1}\n\n[1]\n', 2, "is an array"),
        ("[\n{},\n{}]", 1, "not valid JSON"),
        ("null\n", 1, "is null"),
        ("5", 1, "not an object"),
        ("{", 1, "not an object"),
        ('{"a":1}{"a":2}\n', 1, "not valid JSON"),
        ('{"a":NaN}\n', 1, "not valid JSON"),
        ('{"a":1,}\n', 1, "not valid JSON"),
        (b'{"a":1}\n{"a":"\xff"}\n', 2, "not valid JSON"),
        ('{"a":"\\ud800"}\n', 1, "not valid JSON"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(here: SourceFiles, body: str | bytes, line: int, message: str) -> None:
    here.refuses(
        here.put("a.jsonl", body), InvalidBatch, rf"line {line} of '.*a\.jsonl'.*{message}.*JSON lines have one"
    )


def test_json_that_is_nested_too_deep_is_rejected(here: SourceFiles) -> None:
    """The limit depends on the version of Python."""
    path = here.put("a.jsonl", '{"a":' + "[" * 50_000 + "]" * 50_000 + "}")
    here.refuses(path, InvalidBatch, "not valid JSON that can be read exactly|nested too deep")


@pytest.mark.sampled(days=3)
def test_an_empty_json_file_has_no_rows(folder: SourceFiles) -> None:
    assert folder.read(folder.put("a.jsonl", "")).rows == []
    assert folder.read(folder.put("b.jsonl", "\n \n")).rows == []
    folder.refuses(folder.put("c.jsonl", "{}\n{}\n"), InvalidBatch, "none of the 2 rows has a column")


# ------------------------------------------------------------------------------------------ CSV


def test_csv_columns_have_the_types_of_their_texts(folder: SourceFiles) -> None:
    text = (
        "i,f,b,d,t,ts,z,s,zip,big,none\n"
        "1,0.1,true,2026-01-01,01:02:03,2026-01-01 01:02:03,2026-01-01T01:02:03Z,"
        '"a,""b""\n c",007,12345678901234567890123,\n'
        '-2,1e3,FALSE,,,2026-01-01T00:00:00.5,2026-01-01 00:00:00+02:00,"",8,1,\n'
    )
    batch = folder.read(folder.put("a.csv", text))
    assert batch.types == {
        "i": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "d": "DATE", "t": "TIME", "ts": "TIMESTAMP",
        "z": "TIMESTAMP WITH TIME ZONE", "s": "VARCHAR", "zip": "VARCHAR", "big": "VARCHAR",
    }  # fmt: skip
    assert batch.parsed == {"s", "zip", "big"}
    assert batch.rows == [
        (1, 0.1, True, date(2026, 1, 1), time(1, 2, 3), datetime(2026, 1, 1, 1, 2, 3),
         datetime(2026, 1, 1, 1, 2, 3, tzinfo=UTC), 'a,"b"\n c', "007", "12345678901234567890123"),
        (-2, 1000.0, False, None, None, datetime(2026, 1, 1, 0, 0, 0, 500000),
         datetime(2025, 12, 31, 22, tzinfo=UTC), "", "8", "1"),
    ]  # fmt: skip


def test_csv_columns_of_the_table_stay_text(here: SourceFiles) -> None:
    batch = here.read(here.put("a.csv", "a,b\n1,2\n"), {"a": "DECIMAL(9,2)"})
    assert batch.types == {"a": "VARCHAR", "b": "BIGINT"}
    assert batch.parsed == {"a"}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_that_of_the_first_line(here: SourceFiles, delimiter: str) -> None:
    text = f'﻿a{delimiter}"b{delimiter} c"\r\n1{delimiter}x\r\n'
    batch = here.read(here.put("a.csv", text))
    assert batch.types == {"a": "BIGINT", f"b{delimiter} c": "VARCHAR"}
    assert batch.rows == [(1, "x")]


@pytest.mark.parametrize("number", ["1e400", "12345678901234567890.5"])
def test_a_number_that_no_double_represents_makes_its_column_text(here: SourceFiles, number: str) -> None:
    batch = here.read(here.put("a.csv", f"a\n1.5\n{number}\n"))
    assert (batch.types, batch.column) == ({"a": "VARCHAR"}, ["1.5", number])


@pytest.mark.long
def test_the_last_value_decides_the_type_like_the_first(here: SourceFiles) -> None:
    batch = here.read(here.put("a.csv", "a\n" + "1\n" * 300_000 + "x\n"))
    assert batch.types == {"a": "VARCHAR"}
    assert len(batch.rows) == 300_001


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a,b\n1,2\n3\n", "Line: 3"),
        ("a,b\n1,2\n3,4,5\n", "Line: 3"),
        ('a,b\n1,"x\n', "Line: 2.*unterminated"),
        (b"a,b\n1,2\n3,\xff\n", "Line: 3.*unicode"),
        ("", "has no line"),
        ("a,a\n1,2\n", "the name 'a' twice"),
        ("a,A\n1,2\n", "the name 'A' twice"),
        ("a,,b\n1,2,3\n", "an empty name"),
    ],
)
def test_a_malformed_csv_file_is_rejected(here: SourceFiles, body: str | bytes, message: str) -> None:
    here.refuses(here.put("a.csv", body), InvalidBatch, rf"a\.csv'.*{message}")


def test_a_csv_file_with_only_a_header_has_no_rows(here: SourceFiles) -> None:
    batch = here.read(here.put("a.csv", "a,b\n"), {"a": "BIGINT"})
    assert batch.types == {"a": "VARCHAR"}
    assert batch.rows == []


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_files_are_read_in_a_stream(here: SourceFiles, tmp_path: Path) -> None:
    """A bounded amount is read before the first row, because the stream consists of chunks."""
    path = here.parquet("a.parquet", "SELECT range a, md5(range::VARCHAR) s FROM range(1000000)")
    with open_batch(path, location=here.table, table_columns={}) as batch:
        sizes = [b.num_rows for b in batch.stream]
    assert sum(sizes) == 1_000_000
    assert max(sizes) <= 20_000


def test_no_temporary_file_is_left(here: SourceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "temp"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    here.read(here.put("a.csv", "a\n1\n"))
    here.refuses(here.put("b.csv", "a,b\n1\n"), InvalidBatch, "Line: 2")
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_nanoseconds_of_a_zone_are_never_truncated(folder: SourceFiles, nested: bool) -> None:
    def put(name: str, ns: int) -> str:
        column: Any = pa.array([None, ns], pa.timestamp("ns", tz="UTC"))
        return folder.arrow(name, pa.table({"a": pa.StructArray.from_arrays([column], ["x"]) if nested else column}))

    assert "0, 0, 0, 7, tzinfo" in repr(folder.read(put("a.parquet", 7000)).column[1])
    folder.refuses(put("b.parquet", 7001), InvalidBatch, "column 'a' of '.*b.parquet' holds zoned times in nanos")


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parquet_names_that_differ_in_case_are_one_column(here: SourceFiles) -> None:
    one = here.parquet("a.parquet", "SELECT 1::BIGINT AS a")
    two = here.parquet("b.parquet", "SELECT 2::BIGINT AS A")
    other = here.parquet("c.parquet", "SELECT 2.5::DOUBLE AS A")
    empty = here.arrow("d.parquet", pa.table({"A": pa.nulls(1)}))
    batch = here.read([one, two, empty])
    assert (batch.types, batch.column) == ({"a": "BIGINT"}, [1, 2, None])
    here.refuses([one, other], SchemaConflict, "column 'a' is BIGINT in '.*a.parquet' and DOUBLE in '.*c.parquet'")
    mixed = here.read([one, other], on_conflict="cast")
    assert (mixed.mixed, mixed.column) == ({"a"}, ["1", "2.5"])


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines_may_begin_with_a_byte_order_mark(folder: SourceFiles, name: str) -> None:
    body = '\ufeff{"a": 1, "b": "x,\\"y"}\r\n{"a": 2}\n'.encode()
    path = folder.put(name, gzip.compress(body) if name.endswith(".gz") else body)
    assert folder.read(path).rows == [(1, 'x,"y'), (2, None)]
