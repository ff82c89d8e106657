"""Snapshots for Polars: the rows and types of a query. Parts that a filter excludes are not opened."""

from __future__ import annotations

import pickle
import sys
import time
from datetime import UTC, date, datetime
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from icedb import Snapshot, Table
from icedb.engines.polars.bucket_access import access
from icedb.engines.polars.lazy_frames import scan
from icedb.errors import InvalidOption, MissingExtra, UnsupportedType
from icedb.storage.location import parse_location
from tests.operations.integrity.test_repair_types import foreign_append
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import created
from tests.support.tables.reader_tables import by_hour, every_type, forget, widened


def assert_as_queried(snapshot: Snapshot, lazy: pl.LazyFrame | None = None) -> None:
    """Assert the columns, their order, the types and the rows of `Snapshot.to_arrow`."""
    lazy = scan(snapshot) if lazy is None else lazy
    expected = pl.DataFrame(pl.from_arrow(snapshot.to_arrow()))
    assert dict(lazy.collect_schema()) == dict(expected.schema)
    order = [c for c in ("n", "later") if c in expected.columns]
    assert_frame_equal(lazy.collect().sort(order), expected.sort(order))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_scan_has_the_rows_and_types_of_a_query(place: Place) -> None:
    snapshot = every_type(place).snapshot()
    assert_as_queried(snapshot)
    lazy = scan(snapshot)
    assert lazy.filter(pl.col("odd") == "a/b 1", pl.col("late")).select("n").collect()["n"].sort().to_list() == [3, 9]
    assert lazy.collect(engine="streaming").height == 5
    assert lazy.filter(pl.col("json") == '{"a": 1}').select(pl.len()).collect().item() == 4


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_scan_at_a_time_of_changes_and_with_later_columns(shared_place: Place) -> None:
    table, before = by_hour(shared_place)
    then = table.snapshot(before.as_of_ms)
    for snapshot in (before, then, table.snapshot(), table.changes()):
        assert_as_queried(snapshot)
    assert "later" not in scan(then).collect_schema()
    assert scan(table.snapshot()).filter(pl.col("later").is_null()).collect().height == 3


def test_narrower_types_in_parts_are_widened(local: Place) -> None:
    snapshot = widened(local).snapshot()
    assert_as_queried(snapshot)
    assert scan(snapshot).filter(pl.col("whole") == 7, pl.col("double") < 1).select("n").collect().item() == 2


def test_a_type_that_polars_does_not_widen_raises_its_own_error(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert(duckdb.connect().sql("SELECT 1 AS n, DATE '2026-11-21'::TIMESTAMP AS at"))
    columns: dict[str, Any] = {"n": ("INTEGER", pa.int32(), [2]), "at": ("TIMESTAMP", pa.date32(), [20_000])}
    foreign_append(table.handle.store, table.handle.read().newest_ms + 1, columns)
    lazy = scan(table.snapshot())
    assert sorted(lazy.select("n").collect()["n"].to_list()) == [1, 2]
    with pytest.raises(pl.exceptions.SchemaError, match="at"):
        lazy.collect()


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_filters_on_partition_columns_skip_parts(shared_place: Place) -> None:
    day = "CAST(DATE '2026-11-20' + n::INT AS DATE) AS day"
    table = created(shared_place, partition_by=[day, "nullif('a/b ' || (n % 2), 'a/b 0') AS odd"])
    table.insert([{"n": n, "text": f"é{n}"} for n in range(4)])
    snapshot = table.snapshot()
    lazy = scan(snapshot)
    assert 'alias("day")' not in lazy.explain()
    wanted = lazy.filter(pl.col("day") == date(2026, 11, 21)).select("n", "odd")
    assert "day=2026-11-21" in wanted.explain()
    assert "other source" not in wanted.explain()
    of_null = lazy.filter(pl.col("odd").is_null(), pl.col("n") >= 0)
    plan = of_null.explain()
    assert plan.count(".parquet") == 2
    assert plan.count("odd=__HIVE_DEFAULT_PARTITION__") == 2
    assert 'SELECTION: (col("n") >= 0)' in plan or 'col("n") >= 0' in plan.partition("SELECTION")[2]
    assert "PROJECT 2/4 COLUMNS" in lazy.select("text", "n").explain()
    assert_as_queried(snapshot)
    assert forget(snapshot, "day = '2026-11-21'") == 3
    assert wanted.collect().rows() == [(1, "a/b 1")]
    with pytest.raises((FileNotFoundError, pl.exceptions.PolarsError, OSError)):
        lazy.collect()


OF_PATHS = [
    "n - 9223372036854775807", "n::UTINYINT", "n / 3", "(CASE WHEN n = 0 THEN 'nan' ELSE '-inf' END)::DOUBLE",
    "(n || '.25')::DECIMAL(10, 2)", "n = 1", "nullif(n, 1)", "['', 'null', 'é a/b%+#?*[]=\\n', '07'][n + 1]",
    "make_timestamp(n)", "make_timestamp_ns(n)", "make_timestamp(n)::TIMESTAMPTZ", "DATE '2026-11-21' + n::INT",
    "'{\"a\": 1}'::JSON", "('b1e4e0b4-0000-4000-8000-00000000000' || n)::UUID",
]  # fmt: skip
# Values that Polars cannot print are a series. Filters stay above it.
CONSTANTS = [
    "make_timestamp(n)::TIMESTAMP_S",
    "make_time(n, 2, 3.5)",
    "encode('ä' || n)",
    "n::HUGEINT",
    "(['a', 'b', NULL, 'b'][n + 1])::ENUM ('a', 'b')",
]
SERIES = ["(['infinity', '12026-11-21', '-infinity', NULL][n + 1])::TIMESTAMP", "[n, NULL]", "{'a': n}"]
YEARS_BC = ["DATE '0044-03-15 (BC)' + n::INT"]


@pytest.mark.long
@pytest.mark.parametrize(
    "expressions", [OF_PATHS, CONSTANTS, SERIES, YEARS_BC], ids=["paths", "constants", "series", "bc"]
)
def test_partition_columns_of_every_type_are_exact(memory: Place, expressions: list[str]) -> None:
    table = Table.create(memory.uri, partition_by=[f"{sql} AS p{i}" for i, sql in enumerate(expressions)])
    table.insert(duckdb.connect().sql("SELECT n FROM range(4) AS r(n)"))
    snapshot = table.snapshot()
    assert_as_queried(snapshot)
    lazy, expected = scan(snapshot), snapshot.to_arrow()
    assert ('alias("p0")' not in lazy.explain()) == (expressions is OF_PATHS)
    if expressions in (OF_PATHS, CONSTANTS):
        assert 'SELECTION: col("n") > 0' in lazy.filter(pl.col("n") > 0).explain()
    assert lazy.filter(pl.col("n") > 0).collect().height == 3
    for column in expected.column_names:
        assert lazy.filter(pl.col(column).is_null()).collect().height == expected[column].null_count


def test_a_type_that_polars_lacks_is_rejected(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["to_days(n::INT) AS p"])
    table.insert([{"n": 1}])
    with pytest.raises(UnsupportedType, match="'p' is INTERVAL, for which Polars has no type"):
        scan(table.snapshot())


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("path", ["p=07", "p=+7", "p=7/x=1", "x=1/p=7", "p=%37"])
def test_paths_of_other_programs_have_the_values_of_a_query(local: Place, path: str) -> None:
    table = Table.create(local.uri, partition_by=["n AS p"])
    table.insert([{"n": 1}])
    foreign = {"n": ("BIGINT", pa.int64(), [2])}
    foreign_append(table.handle.store, table.handle.read().newest_ms + 1, foreign, partition=path)
    snapshot = table.snapshot()
    assert_as_queried(snapshot)
    assert scan(snapshot).filter(pl.col("p") == 7).collect()["n"].to_list() == [2]


@pytest.mark.long
def test_names_that_need_encoding_and_folders_that_look_like_partitions(local: Place) -> None:
    table = Table.create(f"{local.uri}/env=prod/t", partition_by=['n % 2 AS "é a/b=%"', "n > 1 AS late"])
    table.insert([{"n": n} for n in range(4)])
    assert_as_queried(table.snapshot())
    plain = Table.create(f"{local.uri}/plain", partition_by=['n % 2 AS "é a/b=%"', "n > 1 AS late"])
    plain.insert([{"n": n} for n in range(4)])
    assert_as_queried(plain.snapshot())
    assert scan(plain.snapshot()).filter(pl.col("é a/b=%") == 1).collect()["n"].sort().to_list() == [1, 3]


def test_a_data_column_wins_over_a_partition_column_of_its_name(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["upper(shop) AS shop", "n % 2 AS parity"])
    table.insert([{"shop": "north", "n": 1}, {"shop": "south", "n": 2}])
    snapshot = table.snapshot()
    assert_as_queried(snapshot)
    assert scan(snapshot).filter(pl.col("shop") == "north", pl.col("parity") == 1).collect().height == 1


@pytest.mark.long
def test_uuids_and_json_are_text_wherever_they_are(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert(
        duckdb.connect().sql("""
            SELECT n, CASE WHEN n > 0 THEN uuid() END AS id, [uuid(), NULL] AS ids, MAP {uuid(): '[1]'::JSON} AS map,
                CASE WHEN n > 1 THEN {'id': uuid(), 'deep': [{'json': '{}'::JSON, 'n': n}]} END AS nested
            FROM range(3) AS r(n)
        """)
    )
    snapshot = table.snapshot()
    assert_as_queried(snapshot)
    text = scan(snapshot).filter(pl.col("n") == 2).select("id").collect().item()
    assert scan(snapshot).filter(pl.col("id") == text).select("n").collect().item() == 2


def test_parts_that_a_predicate_leaves_out_are_not_opened_and_others_are_not_filtered(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["n // 10 AS tens"])
    table.insert([{"n": n} for n in range(30)])
    snapshot = table.snapshot()
    assert forget(snapshot, "tens = 1") == 2
    lazy = scan(snapshot, "tens = 1")
    assert lazy.select(pl.len()).collect().item() == 10
    assert lazy.filter(pl.col("n") > 15).collect()["n"].sort().to_list() == [16, 17, 18, 19]
    assert_frame_equal(scan(snapshot, "tens = 7").collect(), pl.DataFrame(schema={"n": pl.Int64, "tens": pl.Int64}))


def test_tables_without_rows_or_columns(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["day"])
    assert scan(table.snapshot()).collect().shape == (0, 0)
    table.insert(duckdb.connect().sql("SELECT uuid() AS id, '2026-11-21' AS day"))
    table.drop_partitions("true")
    empty = scan(table.snapshot()).collect()
    assert (empty.schema, empty.height) == ({"id": pl.String, "day": pl.String}, 0)


def test_a_part_of_an_older_partitioning_is_named(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    table.alter(partition_by=["n % 2 AS parity"])
    with pytest.raises(InvalidOption, match=r"the part '.*' was written before .* by \['parity'\].*record batches"):
        scan(table.snapshot())


def test_without_polars_the_extra_is_named(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(local.uri)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[polars\]'"):
        scan(table.snapshot())


@pytest.mark.s3
def test_credentials_are_fetched_when_a_frame_is_collected(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icedb.engines.polars.bucket_access.KEPT_S", 0)
    assert s3.storage_options is not None
    table = Table.create(s3.uri, partition_by=["n % 2 AS parity"], storage_options=s3.storage_options)
    table.insert([{"n": 1}, {"n": 2}])
    good = s3.storage_options["AWS_SECRET_ACCESS_KEY"]
    credentials = {"access_key_id": s3.storage_options["AWS_ACCESS_KEY_ID"], "secret_access_key": good}
    calls = []

    def provider() -> dict[str, Any]:
        calls.append(datetime.now(UTC))
        return credentials

    options = {name: s3.storage_options[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
    lazy = scan(Table.open(s3.uri, storage_options=options, credential_provider=provider).snapshot())
    before = len(calls)
    assert lazy.collect().height == 2
    assert len(calls) > before
    credentials = {**credentials, "secret_access_key": "wrong-secret"}
    with pytest.raises(Exception, match=r"(?s)403|Forbidden|SignatureDoesNotMatch|denied") as refused:
        lazy.collect()
    credentials = {**credentials, "secret_access_key": good}
    assert lazy.collect().height == 2
    for text in (str(refused.value), lazy.explain(), repr(lazy)):
        assert good not in text
        assert "wrong-secret" not in text


def test_the_storage_options_of_polars_for_a_bucket() -> None:
    endpoint = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "eu-west-1"}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
    fixed = access(parse_location("s3://bucket/t", endpoint | keys | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}))
    assert fixed["storage_options"] == {
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "true",
    }
    answer = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
    assert fixed["credential_provider"]() == (answer, None)
    assert "secret" not in repr(fixed)
    credentials = {"access_key_id": "key", "secret_access_key": "secret"}
    provider = access(parse_location("s3://bucket/t", endpoint, credential_provider=lambda: credentials))[
        "credential_provider"
    ]
    before_s = time.time()
    answer, until = provider()
    assert before_s < until <= time.time() + 11
    credentials["secret_access_key"] = "next"
    assert provider()[0]["aws_secret_access_key"] == "next"
    assert pickle.loads(pickle.dumps(provider))() == (answer | {"aws_secret_access_key": "next"}, None)
    anonymous = access(parse_location("s3://bucket/t", endpoint, credential_provider=lambda: None))
    assert (anonymous["storage_options"]["aws_skip_signature"], anonymous["credential_provider"]) == ("true", None)
    assert access(parse_location("/a/folder")) == {"credential_provider": None}


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["a", "", None, "__HIVE_DEFAULT_PARTITION__", "é/=%"], "VARCHAR"),
        ([1, 0, None, -5], "BIGINT"),
        ([True, False, None], "BOOLEAN"),
        ([1.5, 0.0, None], "DOUBLE"),
        ([date(1970, 1, 1), date(2026, 11, 21), None], "DATE"),
    ],
)
def test_a_filter_on_a_partition_column_is_exact_for_nulls_too(local: Place, values: list[Any], type_: str) -> None:
    table = Table.create(local.uri, partition_by=[f"CAST(p AS {type_}) AS q"])
    table.insert([{"id": n, "p": value} for n, value in enumerate(values)])
    snapshot, q = table.snapshot(), pl.col("q")
    everything = scan(snapshot).collect()
    assert everything.sort("id")["q"].to_list() == values
    for value in (v for v in values if v is not None):
        conditions = [q == value, q != value, q < value, q <= value, q > value, q >= value, q.is_in([value])]
        conditions += [~q.is_in([value]), q.eq_missing(value), q.ne_missing(value), q.is_null(), q.is_not_null()]
        conditions += [(q == value) & (pl.col("id") >= 0), (q == value) | (pl.col("id") < 0)]
        conditions += [q.fill_null(value) == value]
        for condition in conditions:
            rows = scan(snapshot).filter(condition).collect()
            assert rows.sort("id").equals(everything.filter(condition).sort("id")), (value, str(condition))
