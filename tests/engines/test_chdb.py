"""Snapshots for ClickHouse: chDB reads the live parts itself and returns the rows of a query.

All tests are in one module, and each closes its sessions, because a process has one ClickHouse.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest

from icedb import Table
from icedb.engines import chdb as reader
from icedb.engines.clickhouse.part_files import LOST, part_relations
from icedb.engines.clickhouse.types import clickhouse_types
from icedb.errors import (
    AccessDenied,
    InvalidOption,
    MissingExtra,
    MissingPart,
    SnapshotExpired,
    StoreUnavailable,
    UnsupportedType,
)
from icedb.storage.location import parse_location
from tests.support.object_stores.stores import BUCKET, Place
from tests.support.programs.v3_program import V3Program
from tests.support.tables.attached_tables import created
from tests.support.tables.v3_api import alive, now_ms, program

#: Four rows with a column of each type.
EVERY_TYPE = """
    SELECT n, n::TINYINT - 2 AS i8, n::SMALLINT AS i16, n::INTEGER AS i32, n::UTINYINT AS u8, n::USMALLINT AS u16,
        n::UINTEGER AS u32, 18446744073709551615::UBIGINT - n::UBIGINT AS u64,
        ['1.5', 'nan', '-inf', '-0.0'][n + 1]::FLOAT AS f32,
        ['1e300', 'nan', 'inf', '-0.0'][n + 1]::DOUBLE AS f64, n % 2 = 0 AS yes, -1.25::DECIMAL(4, 2) * n AS d4,
        1.25::DECIMAL(18, 4) AS d18, '12345678901234567890123456789012345.678'::DECIMAL(38, 3) AS d38,
        'é' || chr(0) || n || '''\\' AS text, encode('ab' || n) AS bytes, uuid() AS id,
        '{"a":  1, "a": 2}'::JSON AS json,
        'b'::ENUM ('a', 'b') AS choice, DATE '0001-01-01' + (n * 1000000)::INT AS day,
        TIMESTAMP '1677-11-21 01:02:03.000004' AS wall, TIMESTAMP_NS '2026-11-21 00:00:00.000000001' AS nanos,
        TIMESTAMPTZ '2500-11-21 00:00:00+01' AS instant, TIME '23:59:59.999999' AS time, [n, NULL, 3] AS list,
        ARRAY [1, 2]::FLOAT[2] AS pair, {'a b': n, 'c': [{'deep': [true, NULL]}], 'u': uuid()} AS nested,
        MAP {'k': n, 'l': NULL} AS map, MAP {n: {'x': ['y']}} AS numbered, [[n], []] AS lists
    FROM range(4) AS r(n)
"""


@pytest.fixture
def session() -> Iterator[Any]:
    from chdb.session import Session

    opened = Session()
    yield opened
    opened.close()


def rows(table: pa.Table) -> list[str]:
    """Return sorted rows as text, in which a NaN equals itself. ClickHouse returns a TIMESTAMP in UTC."""
    plain = [{k: _plain(v) for k, v in row.items()} for row in table.to_pylist()]
    return sorted(map(repr, plain))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode()  # ClickHouse has one type for both
    if type(value).__name__ in ("UUID", "Timestamp"):
        return str(value).removesuffix("+00:00")
    if hasattr(value, "tzinfo") and value.tzinfo is not None and hasattr(value, "date"):
        return value.replace(tzinfo=None)
    return value


def parts_read(session: Any, sql: str) -> int:
    """Return the number of parts (of one row group each) that ClickHouse reads for a query."""
    counter = "SELECT sum(value) FROM system.events WHERE event = 'ParquetReadRowGroups'"
    before = int(session.query(counter, "TSV").bytes())
    session.query(sql)
    return int(session.query(counter, "TSV").bytes()) - before


def texts(session: Any, sql: str) -> list[str]:
    return session.query(sql, "TSV").bytes().decode().splitlines()


# ------------------------------------------------------------------------------------------ rows and types


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_every_type_has_the_values_of_a_query(place: Place) -> None:
    odd = "'a/b, {é} 100%+?' || (n % 2) AS odd"
    table = created(place, partition_by=["n", "n % 2 AS parity", odd, "n > 1 AS late"])
    table.insert(duckdb.connect().sql(EVERY_TYPE))
    snapshot = table.snapshot()
    result, expected = reader.query("SELECT * FROM t", snapshot), snapshot.to_arrow()
    assert result.column_names == expected.column_names
    assert rows(result) == rows(expected)
    assert result.num_rows == 4
    typed = {field.name: field.type for field in result.schema}
    assert (typed["n"], typed["u64"]) == (pa.int64(), pa.uint64())
    assert (typed["d38"], typed["late"]) == (pa.decimal128(38, 3), pa.bool_())
    assert (typed["time"], typed["day"], typed["wall"]) == (pa.time64("us"), pa.date32(), pa.timestamp("us", "UTC"))


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_partition_values_have_the_types_of_their_expressions(local: Place) -> None:
    values = {
        "i": "n - 3",
        "u": "18446744073709551615::UBIGINT",
        "f": "['0.1', '-inf', NULL][n + 1]::DOUBLE",
        "d": "DATE '1969-12-31' + n::INT",
        "ts": "TIMESTAMP '1900-01-01 00:00:00.000001' + to_days(n::INT)",
        "tz": "make_timestamp(n * 1000001)::TIMESTAMPTZ",
        "dec": "(n / 4)::DECIMAL(9, 2)",
        "id": "'00000000-0000-0000-0000-00000000000a'::UUID",
        "t": "['a=b/c', '', NULL][n + 1]",
        "e": "['__HIVE_DEFAULT_PARTITION__', 'NULL', '%41'][n + 1]",
        "time": "TIME '01:02:03.000004'",
    }
    table = Table.create(local.uri, partition_by=[f'{sql} AS "{name}"' for name, sql in values.items()])
    table.insert([{"n": n} for n in range(3)])
    snapshot = table.snapshot()
    assert rows(reader.query("SELECT * FROM t", snapshot)) == rows(snapshot.to_arrow())
    # The filters that skip files use the same values.
    for condition in ("i = -3", "d = '1969-12-31'", "f = 0.1", "t = 'a=b/c'", "e = '__HIVE_DEFAULT_PARTITION__'"):
        assert reader.query(f"SELECT n FROM t WHERE {condition}", snapshot)["n"].to_pylist() == [0], condition
    assert reader.query("SELECT n FROM t WHERE t IS NULL AND f IS NULL", snapshot)["n"].to_pylist() == [2]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_older_parts_have_nulls_for_new_columns_and_narrower_types_widen(place: Place) -> None:
    table = created(place, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 1}, {"n": 2}])
    before = table.snapshot()
    table.insert([{"n": 3, "list": [1], "struct": {"a": 1}, "text": "x"}])
    snapshot = table.snapshot()
    assert rows(reader.query("SELECT n, text, parity FROM t", snapshot)) == rows(
        snapshot.to_arrow(["n", "text", "parity"])
    )
    # ClickHouse has no null for these types.
    assert reader.query("SELECT list, struct FROM t WHERE n = 2", snapshot).to_pylist() == [
        {"list": [], "struct": {"a": None}}
    ]
    table.merge()
    table.drop_partitions("parity = 1")
    assert reader.query("SELECT n FROM t", table.snapshot())["n"].to_pylist() == [2]
    assert sorted(reader.query("SELECT n FROM t", snapshot)["n"].to_pylist()) == [1, 2, 3]
    then = table.snapshot(as_of=before.as_of_ms)
    assert sorted(reader.query("SELECT n FROM t", then)["n"].to_pylist()) == [1, 2]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_parts_of_narrower_types_have_the_types_of_the_table(local: Place) -> None:
    table = Table.create(local.uri)
    wide = "n, (n / 4)::DECIMAL(12, 4) AS price, n::DOUBLE AS f, make_timestamp_ms(n) AS ts"
    narrow = "n::TINYINT AS n, (n / 4)::DECIMAL(4, 2) AS price, n::FLOAT AS f, make_timestamp_ms(n)::TIMESTAMP_MS AS ts"
    table.insert(duckdb.connect().sql(f"SELECT {wide} FROM range(100) AS r(n)"))
    [part] = table.snapshot().parts
    # As another program may write it: the log has the wider types.
    duckdb.connect().execute(f"COPY (SELECT {narrow} FROM range(100) AS r(n)) TO '{part.path}' (FORMAT parquet)")
    snapshot = table.snapshot()
    assert rows(reader.query("SELECT * FROM t", snapshot)) == rows(snapshot.to_arrow())
    for condition in ("n = 70", "price > 24", "f >= 98.5", "ts = '1970-01-01 00:00:00.007'"):
        expected = snapshot.query(f"SELECT n FROM t WHERE {condition}").fetchall()
        assert reader.query(f"SELECT n FROM t WHERE {condition}", snapshot)["n"].to_pylist() == [n for (n,) in expected]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_names_are_quoted_and_do_not_collide_with_those_of_clickhouse(local: Place) -> None:
    names = ["a.b", "we`ird \\ 'q", "_file", "_row_id", "select", "é", "_size"]
    table = Table.create(local.uri, partition_by=['"a.b" AS "a b"', "upper(select_) AS select_"])
    table.insert([{"select_": "x", **{name: n for n, name in enumerate(names)}}])
    snapshot = table.snapshot()
    assert rows(reader.query("SELECT * FROM t", snapshot)) == rows(snapshot.to_arrow())
    assert snapshot.partitions() == ["a%20b=0/select_=X"]
    assert reader.query("SELECT select_, `a b` FROM t", snapshot).to_pylist() == [{"select_": "x", "a b": 0}]


def test_changes_are_read_like_snapshots(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    cursor = table.changes().cursor
    table.insert([{"n": 2}])
    table.merge()
    assert reader.query("SELECT n FROM t", table.changes(cursor))["n"].to_pylist() == [2]


def test_tables_without_rows_or_columns(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["day"])
    assert reader.query("SELECT count() AS c FROM t", table.snapshot())["c"].to_pylist() == [0]
    table.insert([{"day": "2026-11-21", "n": 1}])
    table.drop_partitions("true")
    empty = reader.query("SELECT * FROM t", table.snapshot())
    assert (empty.column_names, empty.num_rows) == (["day", "n"], 0)


# ------------------------------------------------------------------------------------------ views


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_view_has_the_rows_of_its_snapshot_until_another_is_attached(place: Place, session: Any) -> None:
    table = created(place, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 1}, {"n": 2}])
    reader.attach(session, "my events", table.snapshot())
    table.overwrite([{"n": 3}])
    assert texts(session, "SELECT n, parity FROM `my events` ORDER BY n") == ["1\t1", "2\t0"]
    reader.attach(session, "my events", table.snapshot(), parts_where="parity = 1")
    assert texts(session, "SELECT n FROM `my events`") == ["3"]
    frame = session.query("SELECT count() AS c FROM `my events`", "DataFrame")
    assert frame["c"].tolist() == [1]
    text = reader.source(table.snapshot(), session=session)
    assert texts(session, f"SELECT sum(a.n + b.n) FROM {text} AS a JOIN {text} AS b USING (n)") == ["6"]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_filters_on_partition_columns_skip_parts(place: Place, session: Any) -> None:
    table = created(place, partition_by=["day", "n % 3 AS third"])
    days = [date(2026, 11, d) for d in (20, 21, 22)]
    table.insert(pa.table({"day": days * 3, "n": range(9)}))
    snapshot = table.snapshot()
    reader.attach(session, "t", snapshot)
    assert texts(session, "SELECT sum(n) FROM t WHERE third = 1") == ["12"]
    assert parts_read(session, "SELECT sum(n) FROM t WHERE third = 1") == 1
    assert parts_read(session, "SELECT sum(n) FROM t WHERE day > '2026-11-20' AND third IN (1, 2)") == 2
    assert parts_read(session, "SELECT sum(n) FROM t") == len(snapshot.parts) == 3
    listed = reader.source(snapshot, session=session, parts_where="third = 1")
    assert [p.key.rpartition("/")[2] in listed for p in snapshot.parts] == [False, True, False]
    assert texts(session, f"SELECT sum(n) FROM {listed}") == ["12"]


def many_parts(place: Place, count: int) -> Table:
    """Create a table with that many partitions `p` of one row each."""
    v3 = V3Program.at(place, itertools.count(now_ms() - 600_000).__next__)
    v3.insert({f"p={n}": [{"n": n}] for n in range(count)}, {"n": "BIGINT"})
    return Table.open(place.uri)


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_selective_query_over_a_thousand_parts_reads_two(local: Place, session: Any) -> None:
    table = many_parts(local, 1_200)
    table.insert([{"p": 7, "n": -1}])
    reader.attach(session, "t", table.snapshot())
    selective = "SELECT n FROM t WHERE p = 7 ORDER BY n"
    assert texts(session, selective) == ["-1", "7"]
    assert parts_read(session, selective) == 2
    assert texts(session, "SELECT sum(n), count() FROM t") == [f"{sum(range(1_200)) - 1}\t1201"]
    assert parts_read(session, "SELECT sum(n) FROM t") == 1_201


@pytest.mark.slow(seconds=30)
def test_ten_thousand_parts_are_one_view(local: Place, session: Any) -> None:
    reader.attach(session, "t", many_parts(local, 10_000).snapshot())
    assert texts(session, "SELECT count(), sum(p) FROM t") == [f"10000\t{sum(range(10_000))}"]
    assert parts_read(session, "SELECT * FROM t WHERE p = 5000") == 1
    assert texts(session, "SELECT getSetting('max_query_size')") == ["262144"], "the setting is unchanged"


# ------------------------------------------------------------------------------------------ deleted parts


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_a_deleted_part_raises_and_never_removes_rows(place: Place, session: Any) -> None:
    table = created(place, partition_by=["n AS p"])
    table.insert([{"n": n} for n in range(3)])
    snapshot = table.snapshot()
    reader.attach(session, "t", snapshot)
    if place.kind == "memory":
        reader.query("SELECT n FROM t", snapshot)  # makes the copies that ClickHouse reads, and keeps them
    table.drop_partitions("p < 2")
    table.cleanup(grace_ms=0, allow_short_grace=True)
    if place.kind == "memory":
        assert texts(session, "SELECT sum(n) FROM t") == ["3"]
        return
    with pytest.raises(SnapshotExpired, match="was cleaned up"):
        reader.query("SELECT sum(n) FROM t", snapshot)
    with pytest.raises(RuntimeError, match=LOST if place.kind == "local" else "404"):
        session.query("SELECT sum(n) FROM t")
    reader.attach(session, "t", table.snapshot())
    assert texts(session, "SELECT sum(n) FROM t") == ["2"]


@pytest.mark.sampled(days=3)
def test_a_deleted_live_part_is_named(shared_place: Place) -> None:
    table = created(shared_place, partition_by=["n AS p"])
    table.insert([{"n": n} for n in range(3)])
    snapshot = table.snapshot()
    for parts, count in ((snapshot.parts[:1], 1), (snapshot.parts, 0)):
        snapshot.handle.store.delete([p.key for p in parts])
        with pytest.raises(MissingPart, match=f"'{parts[0].key}'"):
            reader.query("SELECT count(*) FROM t" if count else "SELECT * FROM t WHERE p = 5", snapshot)
        if shared_place.kind == "s3":
            return  # in S3, a query that skips all parts requests none


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_each_query_is_exact_during_inserts_merges_and_cleanup(shared_place: Place) -> None:
    place = shared_place
    table = created(place, partition_by=["n % 2 AS parity"])
    table.insert([{"n": 0}])
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(1, 8):
                table.insert([{"n": n}])
                if n % 3 == 0:
                    table.merge()
                    table.cleanup()
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    queries = 0
    reading = Table.open(place.uri, storage_options=place.storage_options)
    while not done.is_set() or queries == 0:
        snapshot = reading.snapshot()
        read = reader.query("SELECT n, parity FROM t ORDER BY n", snapshot).to_pylist()
        assert read == [{"n": n, "parity": n % 2} for n in range(snapshot.rows or 0)]
        queries += 1
    writer.join()
    assert reader.query("SELECT n FROM t", reading.snapshot()).num_rows == 8


@pytest.mark.long
def test_a_query_without_a_result_and_an_invalid_query_raise(local: Place, session: Any) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    for sql in ("SET max_threads = 1", "SELECT n FROM t FORMAT CSV"):
        with pytest.raises(InvalidOption, match=r"returned no result.*one SELECT over t"):
            reader.query(sql, table.snapshot())
    with pytest.raises(RuntimeError, match=r"nonsense.*UNKNOWN_IDENTIFIER"):
        reader.query("SELECT nonsense FROM t", table.snapshot())
    session.query("CREATE VIEW t AS SELECT 'another' AS n")
    assert reader.query("SELECT n FROM t", table.snapshot())["n"].to_pylist() == [1]
    assert texts(session, "SELECT n FROM t") == ["another"]


# ------------------------------------------------------------------------------------------ unsupported tables


@pytest.mark.parametrize("type_", ["HUGEINT", "INTERVAL", "BIT[]", "STRUCT(a TIMETZ)", "MAP(VARCHAR, UHUGEINT)"])
def test_a_type_that_clickhouse_lacks_is_named(type_: str) -> None:
    with pytest.raises(UnsupportedType, match=r"^events: column 'c' is .*for which ClickHouse has no type.*DuckDB"):
        clickhouse_types({"n": "BIGINT", "c": type_}, table="events")


@pytest.mark.long
def test_partitions_that_clickhouse_would_misread_are_rejected(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["day::TIMESTAMP AS at"])
    table.insert([{"day": "2026-11-21", "n": 1}, {"day": "infinity", "n": 2}])
    with pytest.raises(UnsupportedType, match="the partition 'at=infinity' is beyond"):
        reader.query("SELECT n FROM t", table.snapshot())
    early = reader.query('SELECT n, "at" FROM t', table.snapshot(), parts_where="\"at\" < '2030-01-01'")
    assert early.to_pylist() == [{"n": 1, "at": datetime(2026, 11, 21, tzinfo=UTC)}]
    table = Table.create(f"{local.uri}-2", partition_by=["make_date(year, 1, 1) AS day"])
    table.insert([{"year": -44}, {"year": 44}])
    with pytest.raises(UnsupportedType, match=r"partition 'day=0045-01-01.*beyond ClickHouse's dates.*parts_where"):
        reader.query("SELECT * FROM t", table.snapshot())
    table = Table.create(f"{local.uri}-3", partition_by=["encode(k) AS b"])
    table.insert([{"k": "a"}])
    with pytest.raises(UnsupportedType, match=r"partition column 'b' is BLOB.*partition by text"):
        reader.query("SELECT * FROM t", table.snapshot())
    table = Table.create(f"{local.uri}-4", partition_by=["n AS p"])
    table.insert([{"n": 1, "_path": "x"}])
    with pytest.raises(InvalidOption, match="the column '_path' hides that of ClickHouse"):
        reader.query("SELECT * FROM t", table.snapshot())


def test_a_part_of_an_older_partitioning_is_named(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    [part] = table.snapshot().parts
    table.alter(partition_by=["n"])
    assert reader.query("SELECT n FROM t", table.snapshot())["n"].to_pylist() == [1], "the part has the column"
    table.alter(partition_by=["n % 2 AS parity"])
    with pytest.raises(InvalidOption, match=r"the part '.*' was written before .* by \['parity'\]") as caught:
        reader.query("SELECT n FROM t", table.snapshot())
    assert part.key in str(caught.value)


def test_without_chdb_the_error_names_the_extra(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    monkeypatch.setitem(sys.modules, "chdb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[chdb\]'"):
        reader.query("SELECT n FROM t", table.snapshot())
    assert table.snapshot().parts[0].key in reader.source(table.snapshot()), "a text needs no chDB"


def test_a_session_with_another_folder_needs_attach(local: Place, tmp_path: Path) -> None:
    from chdb.session import Session

    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    with Session(str(tmp_path / "clickhouse")) as session:
        with pytest.raises(InvalidOption, match=r"a folder of its own.*attach\(\)"):
            reader.query("SELECT n FROM t", table.snapshot())
        reader.attach(session, "t", table.snapshot())
        assert texts(session, "SELECT n FROM t") == ["1"]


# ------------------------------------------------------------------------------------------ S3


@pytest.mark.s3
def test_keys_are_in_no_text_and_are_renewed_for_existing_views(s3: Place, session: Any) -> None:
    options = dict(s3.storage_options or {})
    key, secret = options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"]
    table = Table.create(s3.uri, storage_options=options)
    table.insert([{"n": 1}])
    snapshot = table.snapshot()
    reader.attach(session, "t", snapshot)
    messages = [reader.source(snapshot, session=session)]
    messages += texts(session, "SHOW CREATE VIEW t")
    messages += texts(session, "SELECT * FROM system.named_collections")
    wrong = Table.open(s3.uri, storage_options={**options, "AWS_SECRET_ACCESS_KEY": secret}).snapshot()
    object.__setattr__(wrong.handle.location.explicit_credentials, "secret_access_key", "not'the\\secret")
    with pytest.raises(AccessDenied, match="access was refused") as refused:
        reader.query("SELECT * FROM t", wrong)
    messages.append(str(refused.value))
    with pytest.raises(RuntimeError, match="403") as refused_view:  # a table has one collection, with the last keys
        session.query("SELECT * FROM t")
    messages.append(str(refused_view.value))
    for sql in ("SELECT nonsense FROM t", "SELEC 1"):
        with pytest.raises(RuntimeError) as other:
            reader.query(sql, snapshot)
        messages.append(str(other.value))
    assert texts(session, "SELECT n FROM t") == ["1"], "the right keys are back"
    assert not [text for text in messages if secret in text or key in text or "not'the" in text]
    with pytest.raises(InvalidOption, match=r"needs keys.*session="):
        reader.source(snapshot)


@pytest.mark.slow(seconds=30)
@pytest.mark.s3
def test_an_unreachable_store_is_unavailable(s3: Place) -> None:
    table = Table.create(s3.uri, storage_options=s3.storage_options)
    table.insert([{"n": 1}])
    snapshot = table.snapshot()
    unreachable = dataclasses.replace(snapshot.handle.location, endpoint="http://127.0.0.1:1")
    snapshot.handle.store.location = unreachable
    with pytest.raises(StoreUnavailable, match=f"cannot read '{snapshot.parts[0].key}'.*could not connect"):
        reader.query("SELECT * FROM t", snapshot)


class DeniedSession:
    """A session of a user without the right to create named collections."""

    def query(self, sql: str, fmt: str = "", /) -> Any:
        raise RuntimeError(f"Code: 497. DB::Exception: Not enough privileges for {sql}")


def test_a_denied_named_collection_does_not_quote_the_keys(local: Place) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": 1}])
    snapshot = table.snapshot()
    location = parse_location("s3://b/t", {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "very-secret"})
    with pytest.raises(AccessDenied, match=r"Code: 497.*named collections") as refused:
        part_relations(_HandleAt(snapshot.handle, location), snapshot.parts, "n Int64", DeniedSession())  # type: ignore[arg-type]
    assert "very-secret" not in repr(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


class _HandleAt:
    """A handle with the address of another location."""

    def __init__(self, handle: Any, location: Any) -> None:
        self.location, self.keys, self.table = location, handle.keys, location.uri


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com/bucket/t/_data/"),
        ({"AWS_REGION": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/bucket/t/_data/"),
        ({"AWS_ENDPOINT_URL": "http://localhost:1/"}, "http://localhost:1/bucket/t/_data/"),
        (
            {"AWS_ENDPOINT_URL": "https://minio", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            "https://bucket.minio/t/_data/",
        ),
    ],
)
def test_the_address_of_a_bucket_for_clickhouse(options: dict[str, str], expected: str, local: Place) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "token"}
    queries: list[str] = []

    class RecordingSession:
        def query(self, sql: str, fmt: str = "", /) -> Any:
            queries.append(sql)

    table = Table.create(local.uri, partition_by=["k"])
    table.insert([{"k": "é/%"}])
    location = parse_location("s3://bucket/t", {**keys, **options})
    handle, session = _HandleAt(table.handle, location), RecordingSession()
    [text] = part_relations(handle, table.snapshot().parts, "k String", session)  # type: ignore[arg-type]
    assert f"url = '{expected.removesuffix('t/_data/')}_data/k=%C3%A9%252F%2525/" in text
    assert all("session_token = 'token'" in sql and "no_sign_request = 0" in sql for sql in queries)


# ------------------------------------------------------------------------------------------ tables of IceDB v3

ODD = ["k=a,b", "k=a{b}", "k=*", "k=a?b", "k=[a]", "k=a b%", "k=é", "k=x"]


@pytest.mark.long
def test_paths_with_pattern_characters_are_read_exactly(shared_place: Place) -> None:
    v3 = V3Program.at(shared_place, itertools.count(now_ms() - 600_000).__next__)
    v3.insert({path: [{"n": n}] for n, path in enumerate(ODD)}, {"n": "BIGINT"})
    v3.insert({path: [{"n": n + 10}] for n, path in enumerate(ODD)}, {"n": "BIGINT"})
    table = Table.open(shared_place.uri, storage_options=shared_place.storage_options)
    snapshot = table.snapshot()
    expected = snapshot.to_arrow()
    assert set(expected["k"].to_pylist()) == {path.removeprefix("k=") for path in ODD}
    assert rows(reader.query("SELECT * FROM t", snapshot)) == rows(expected)
    alone = reader.query("SELECT * FROM t WHERE n > 5", snapshot, parts_where="k = 'a{b}'").to_pylist()
    assert alone == [{"n": 11, "k": "a{b}"}]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_queries_of_v3_run_over_our_tables_and_those_of_v3_programs(s3: Place, session: Any) -> None:
    """They list the live files, take partition values from `_path`, and read columns that some files lack."""
    ice = program(s3, partition_function=lambda row: f"u={row['user']}/d={row['day']}", sort_order=["n"])
    ours = Table.create(f"{s3.uri}-2", partition_by=["user AS u", "day AS d"], storage_options=s3.storage_options)
    first = [{"user": "a", "day": "2026-11-20", "n": 1}, {"user": "b c", "day": "2026-11-21", "n": 2}]
    second = [{"user": "a", "day": "2026-11-21", "n": 4, "price": 2.5}]
    for batch in (first, second):
        ice.insert(copy.deepcopy(batch))
        ours.insert(batch)
    options = s3.storage_options or {}
    keys = f"'{options['AWS_ACCESS_KEY_ID']}', '{options['AWS_SECRET_ACCESS_KEY']}'"
    root = f"{options['AWS_ENDPOINT_URL']}/{BUCKET}/"
    of_v3 = [m.path for m in alive(ice.log_s3c)]
    for paths in (of_v3, [p.key for p in ours.snapshot().parts]):
        assert len(paths) == 3
        listed = ",".join(quote(path, safe="/=") for path in paths)
        files = f"s3('{root}{{{listed}}}', {keys}, 'Parquet', 'n Int64, price Nullable(Float64)')"
        by_day = f"""
            SELECT toDate(extract(_path, '/d=([^/]+)/')) AS day, sum(n) AS n, max(price) AS price
            FROM {files} GROUP BY day ORDER BY day
            SETTINGS input_format_parquet_allow_missing_columns = 1, use_hive_partitioning = 0
        """
        assert texts(session, by_day) == ["2026-11-20\t1\t\\N", "2026-11-21\t6\t2.5"]
        steps = "arrayFirst(s -> startsWith(s, 'u='), splitByChar('/', _path))"
        by_user = f"SELECT decodeURLComponent(substring({steps}, 3)) AS u, sum(n) FROM {files} GROUP BY u ORDER BY u"
        assert texts(session, by_user) == ["a\t5", "b c\t2"]
    reader.attach(session, "t", Table.open(s3.uri, storage_options=options).snapshot())
    assert texts(session, "SELECT d, sum(n), max(price) FROM t GROUP BY d ORDER BY d") == [
        "2026-11-20\t1\t\\N",
        "2026-11-21\t6\t2.5",
    ]
