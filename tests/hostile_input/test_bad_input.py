"""Invalid calls raise the exact error, which names the table and the next step, before anything is visible.

After each error the store has the same objects as before: no log file, no part and no claim was added.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icedb import Table, Timing
from icedb.errors import (
    AccessDenied,
    ClockSkew,
    EmptyBatch,
    GraceTooShort,
    IceDBError,
    InvalidArgument,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    InvalidPartitionValue,
    InvalidRequestError,
    InvalidURI,
    SchemaConflict,
    StoreUnavailable,
    TableNotFound,
    UnknownColumn,
    UnsupportedType,
)
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectNotFound, open_store
from icedb.testing import ClockedStore, ManualClock, create_table, open_table
from icedb.util.arguments import checks_arguments

ROWS = [{"a": 1, "s": "x"}]


def everything(place: Any) -> dict[str, int]:
    """Return the sizes of all objects of a table by key."""
    store = open_store(parse_location(place.uri, place.storage_options))
    keys = store.location.keys
    sizes = {i.key: i.bytes for p in (keys.log_prefix, keys.data_prefix, keys.claims_prefix) for i in store.list(p)}
    with contextlib.suppress(ObjectNotFound):
        sizes[keys.spec] = store.head(keys.spec).bytes
    return sizes


def lossless(sql: str) -> duckdb.DuckDBPyRelation:
    """Return a relation whose HUGEINT is not converted by Arrow."""
    con = duckdb.connect()
    con.execute("SET arrow_lossless_conversion = true")
    return con.sql(sql)


INSERTS: list[tuple[str, Any, type[IceDBError], str]] = [
    ("a type conflict", [{"a": "text"}], SchemaConflict, "Cast it to BIGINT"),
    ("a wider type", pa.table({"a": pa.array([1.5])}), SchemaConflict, "DOUBLE in the batch"),
    ("an unsigned type", pa.table({"a": pa.array([1], pa.uint64())}), SchemaConflict, "BIGINT in the table"),
    ("mixed types", [{"a": 1}, {"a": "x"}], SchemaConflict, "column 'a' are not of one type"),
    ("mixed types in a new column", [{"z": 1}, {"z": "x"}], SchemaConflict, "Convert them"),
    ("a number beyond any type", [{"z": 2**70}], InvalidBatch, "column 'z'"),
    ("names that differ in case", [{"A": 1, "a": 2}], InvalidBatch, "differ only in case"),
    ("names that differ in case among themselves", [{"z": 1, "Z": 2}], InvalidBatch, "Rename one"),
    ("an empty name", [{"": 1}], InvalidBatch, "empty name"),
    ("a name twice", pa.Table.from_arrays([pa.array([1])] * 2, ["z", "z"]), InvalidBatch, "column twice"),
    ("a reserved name", [{"__icedb_p0": 1}], InvalidBatch, "reserved"),
    ("rows without columns", [{}, {}], InvalidBatch, "none of the 2 rows has a column"),
    ("rows that are no dicts", [1, 2], InvalidBatch, "row 0 is a int"),
    ("names that are no text", [{1: 2}], InvalidBatch, "not text"),
    ("text", "a,b", InvalidBatch, "cannot take rows from a builtins.str"),
    ("nothing", None, InvalidBatch, "Give a list of dicts"),
    ("new columns without a value", [{"z": None}], InvalidBatch, "no column has a type"),
    ("a list without a type", [{"z": []}], InvalidBatch, "Give the batch a schema"),
    ("a 128-bit integer", lossless("SELECT 1::HUGEINT AS z"), UnsupportedType, r"DECIMAL\(38,0\)"),
    ("one inside a struct", lossless("SELECT {'h': 1::UHUGEINT} AS z"), UnsupportedType, "UBIGINT"),
    ("a duration", lossless("SELECT INTERVAL '1 microsecond' AS z"), UnsupportedType, "microseconds"),
    ("nanoseconds of a day", pa.table({"z": pa.array([1], pa.time64("ns"))}), UnsupportedType, "TIME "),
    ("bits", lossless("SELECT '01'::BIT AS z"), UnsupportedType, "BLOB"),
    ("a time with a zone", lossless("SELECT '01:00:00+01'::TIMETZ AS z"), UnsupportedType, "TIMESTAMP WITH TIME ZONE"),
]


@pytest.mark.parametrize(("data", "error", "message"), [c[1:] for c in INSERTS], ids=[c[0] for c in INSERTS])
def test_an_invalid_batch_is_rejected_completely(memory: Any, data: Any, error: type[IceDBError], message: str) -> None:
    table = Table.create(memory.uri)
    table.insert(ROWS)
    before = everything(memory)
    for write in (table.insert, table.overwrite):
        with pytest.raises(error, match=message) as caught:
            write(data)
        assert type(caught.value) is error
        assert memory.uri in str(caught.value)
        assert everything(memory) == before
    assert table.schema() == {"a": "BIGINT", "s": "VARCHAR"}


def test_a_conflict_with_a_column_of_another_writer_leaves_no_parts(memory: Any) -> None:
    one = Table.create(memory.uri)
    one.insert(ROWS)
    two = Table.open(memory.uri)
    two.insert(ROWS)
    one.insert([{"z": 1}])
    before = everything(memory)
    for write in (two.insert, two.overwrite):
        with pytest.raises(SchemaConflict, match="column 'z' is BIGINT in the table and VARCHAR") as caught:
            write([{"z": "text"}])
        assert (caught.value.column, caught.value.types) == ("z", ("BIGINT", "VARCHAR"))
        assert everything(memory) == before


def test_a_stream_that_fails_leaves_no_parts(memory: Any) -> None:
    table = Table.create(memory.uri, partition_by=["a"])
    table.insert([{"a": 1}])
    before = everything(memory)
    schema = pa.schema([("a", pa.int64())])

    def batches() -> Any:
        yield pa.record_batch([pa.array([1, 2])], schema=schema)
        raise OSError("the source broke off")

    with pytest.raises(InvalidBatch, match="the source broke off"):
        table.insert(pa.RecordBatchReader.from_batches(schema, batches()))
    assert everything(memory) == before


@pytest.mark.parametrize(
    "other",
    [{"b": ["x"], "a": ["y"]}, {"a": ["x"]}, {"a": ["x"], "c": ["y"]}, {"a": ["x"], "b": [1]}],
    ids=["other places", "one is missing", "another name", "another type"],
)
def test_a_batch_with_other_columns_than_its_stream_leaves_no_parts(memory: Any, other: dict[str, Any]) -> None:
    table = Table.create(memory.uri, partition_by=["a"])
    first = pa.record_batch({"a": ["1"], "b": ["2"]})
    before = everything(memory)
    stream = pa.RecordBatchReader.from_batches(first.schema, iter([first, pa.record_batch(other)]))
    with pytest.raises(InvalidBatch, match=r"columns a string, b string, and a batch has .*\. Give all batches"):
        table.insert(stream)
    assert everything(memory) == before


def test_an_unknown_sort_column_is_rejected_with_the_first_batch(place: Any) -> None:
    table = Table.create(place.uri, sort_by=["a", "nowhere"], storage_options=place.storage_options)
    before = everything(place)
    with pytest.raises(UnknownColumn, match="sort_by names 'nowhere'") as caught:
        table.insert(ROWS)
    assert place.uri in str(caught.value)
    assert "['a', 's']" in str(caught.value)
    assert everything(place) == before
    table.insert([{"a": 1, "nowhere": 2}])
    table.insert(ROWS)  # the table has the column now, so a batch may omit it


EXPRESSIONS = [
    ("", "is empty"),
    ("a +", "not valid SQL"),
    ("a + 1", "has no name"),
    ("a AS x, s AS y", "more than one expression"),
    ("a AS x FROM t", "more than one expression"),
    ("a AS x; SELECT 1", "more than one statement"),
    ("(SELECT 1) AS x", "subquery"),
    ("random() AS x", r"random\(\)"),
    ("now() AS x", r"now\(\)"),
    ("row_number() OVER () AS x", "window"),
    ("* AS x", "star|not valid|more than one"),
    ("$1 AS x", "parameter|not valid"),
    ("a AS S", "one name"),
]


@pytest.mark.parametrize(("expression", "message"), EXPRESSIONS)
def test_an_invalid_partition_expression_is_rejected_at_creation(local: Any, expression: str, message: str) -> None:
    with pytest.raises(InvalidPartitionExpression, match=message) as caught:
        Table.create(local.uri, partition_by=["s", expression])
    assert local.uri in str(caught.value)
    assert everything(local) == {}


@pytest.mark.parametrize(
    "expression", ["nowhere AS x", "strftime(a, '%Y') AS x", "no_such_function(a) AS x", "sum(a) AS x"]
)
def test_a_partition_expression_that_does_not_fit_the_rows_is_rejected(memory: Any, expression: str) -> None:
    table = Table.create(memory.uri, partition_by=[expression])
    before = everything(memory)
    with pytest.raises(InvalidPartitionExpression, match="does not fit the rows") as caught:
        table.insert(ROWS)
    assert memory.uri in str(caught.value)
    assert "(columns: a BIGINT, s VARCHAR)" in str(caught.value)
    assert everything(memory) == before


@pytest.mark.parametrize(
    ("expression", "bad", "error", "message"),
    [
        ("CAST(s AS INTEGER) AS x", "one", InvalidPartitionExpression, "cannot be partitioned by"),
        ("s", "/" * 100, InvalidPartitionValue, "hash"),
    ],
)
def test_an_invalid_partition_value_is_rejected(
    memory: Any, expression: str, bad: str, error: type[IceDBError], message: str
) -> None:
    table = Table.create(memory.uri, partition_by=[expression])
    before = everything(memory)
    with pytest.raises(error, match=message):
        table.insert([{"s": "1"}, {"s": bad}])
    assert everything(memory) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": "a"}, "must be a list of texts"),
        ({"sort_by": "a"}, "must be a list of texts"),
        ({"sort_by": ["a", "A"]}, "twice"),
        ({"bloom_filters": "a"}, "must be a list of texts"),
        ({"bloom_filters": ["a", "A"]}, "bloom_filters names a column twice"),
        ({"bloom_filters": [1]}, "bloom_filters"),
        ({"compression": "rar"}, "compression must be one of 'zstd'"),
        ({"row_group_rows": 1}, "2,048"),
        ({"storage_options": {"AWS_REGOIN": "x"}}, "unknown storage options"),
        ({"fencing": "None"}, "one of 'claims', 'none'"),
        ({"sort_by": [1]}, "sort_by"),
        ({"row_group_rows": "x"}, "row_group_rows"),
        ({"partition_by": 3}, "partition_by"),
    ],
)
def test_an_invalid_option_is_rejected(local: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Table.create(local.uri, **options)
    assert everything(local) == {}


@pytest.mark.parametrize(
    "uri",
    ["", "ftp://bucket/x", "s3://", "s3:///x", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/a*b", "memory://",
     "file://host/x", "/tmp/a[1]", "x\0y"],
)  # fmt: skip
def test_an_invalid_address_is_rejected(uri: str) -> None:
    for act in (Table.create, Table.open, Table.exists):
        with pytest.raises(InvalidURI):
            act(uri)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "only-the-id"}, "give both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SECRET_ACCESS_KEY": "only-the-secret"}, "give both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "must start with http"),
        ({"aws_acces_key": "typo"}, "Known:"),
    ],
)
def test_contradictory_storage_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        Table.open("s3://bucket/table", storage_options=options)
    assert "only-the-secret" not in str(caught.value)


# ------------------------------------------------------------------------------------------ stores and clocks


@pytest.mark.s3
@pytest.mark.parametrize(
    "wrong", [{"AWS_SECRET_ACCESS_KEY": "wrong" * 8}, {"AWS_ACCESS_KEY_ID": "AKIAWRONGWRONGWRONG0"}]
)
def test_wrong_credentials_raise_access_denied_without_quoting_them(s3: Any, wrong: dict[str, str]) -> None:
    Table.create(s3.uri, storage_options=s3.storage_options)
    before = everything(s3)
    options = s3.storage_options | wrong
    for act in (Table.create, Table.open, Table.exists):
        with pytest.raises(AccessDenied, match="Check the access key") as caught:
            act(s3.uri, storage_options=options)
        assert options["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    assert everything(s3) == before


def test_a_clock_that_is_far_off_raises_clock_skew(clocked: ClockedStore, clock: ManualClock) -> None:
    create_table(clocked, clock)
    # A second is allowed, because some stores return the time in whole seconds.
    for skew_ms, message in ((62_000, "61 s ahead of"), (-62_000, "62 s behind")):
        table = open_table(clocked, clock.skewed(skew_ms))
        with pytest.raises(ClockSkew, match=message):
            table.insert(ROWS)
    assert clocked.list(clocked.location.keys.data_prefix) == []
    assert open_table(clocked, clock).snapshot().parts == ()
    open_table(clocked, clock).insert(ROWS)


# ------------------------------------------------------------------------------------------ maintenance


MISTAKES: list[tuple[str, Callable[[Table], object], type[InvalidRequestError], str]] = [
    ("an overwrite without rows", lambda t: t.overwrite([]), EmptyBatch, "drop_partitions"),
    ("rows outside the partitions", lambda t: t.overwrite([{"a": 9}], partitions=["a=1"]), InvalidBatch, "'a=9'"),
    ("the same by predicate", lambda t: t.overwrite([{"a": 9}], partitions="a < 5"), InvalidBatch, "1 of 1 rows"),
    ("a drop of nothing", lambda t: t.drop_partitions([]), InvalidOption, "nothing is ever dropped by default"),
    ("a drop by no predicate", lambda t: t.drop_partitions(""), InvalidOption, "no partitions are named"),
    ("a broken predicate", lambda t: t.drop_partitions("a <"), InvalidPartitionExpression, "does not fit"),
    ("an unknown column", lambda t: t.drop_partitions("z = 1"), InvalidPartitionExpression, r"\(a BIGINT\)"),
    ("an unknown filter", lambda t: t.snapshot().files("nope = 1"), UnknownColumn, "no such column"),
    ("a broken filter", lambda t: t.snapshot().files("a <"), InvalidOption, "not valid SQL"),
    ("an unknown order", lambda t: t.merge(order="random"), InvalidOption, "one of 'newest', 'oldest', not 'random'"),  # type: ignore[arg-type]
    ("no grace", lambda t: t.cleanup(grace_ms=0), GraceTooShort, "allow_short_grace"),
    ("negative grace", lambda t: t.cleanup(grace_ms=-1, allow_short_grace=True), GraceTooShort, "at least"),
    ("a naive time", lambda t: t.snapshot(as_of=datetime(2026, 1, 1)), InvalidOption, "timezone"),
]


@pytest.mark.parametrize(("act", "error", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_in_maintenance_changes_nothing(
    memory: Any, act: Callable[[Table], object], error: type[InvalidRequestError], message: str
) -> None:
    table = Table.create(memory.uri, partition_by=["a"])
    table.insert([{"a": 1}, {"a": 2}])
    table.insert([{"a": 1}])
    before = everything(memory)
    with pytest.raises(error, match=message) as caught:
        act(table)
    assert type(caught.value) is error
    assert everything(memory) == before


@pytest.mark.parametrize(
    "times", [{"max_skew_ms": 300_000}, {"max_skew_ms": -1}, {"grace_ms": 599_999}, {"commit_timeout_ms": 1_800_001}]
)
def test_times_that_would_lose_rows_are_rejected(times: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=r"\d+"):
        Timing(**times)


def test_errors_are_also_builtin_errors_and_print_their_message_unchanged() -> None:
    assert issubclass(UnknownColumn, KeyError)
    assert str(UnknownColumn("a 'quoted' message")) == "a 'quoted' message"
    assert issubclass(TableNotFound, FileNotFoundError)
    assert str(TableNotFound("message")) == "message"
    assert issubclass(StoreUnavailable, ConnectionError)


@pytest.mark.parametrize(
    ("year", "message"),
    [
        (2100, r"the time 2100-01-01T00:00:00\.000Z \(4102444800000 unix ms\) is in the future"),
        (2001, r"the time 2001-01-01T00:00:00\.000Z \(978307200000 unix ms\) is before the table's creation"),
    ],
)
def test_a_time_outside_of_the_tables_life_is_rejected_everywhere(memory: Any, year: int, message: str) -> None:
    table = Table.create(memory.uri)
    table.insert(ROWS)
    before, moment = table.snapshot().id, datetime(year, 1, 1, tzinfo=UTC)
    uses: list[Callable[[], object]] = [
        lambda: table.snapshot(moment),
        lambda: table.query("SELECT 1 FROM t", as_of=moment),
        lambda: table.pin("then", moment),
        lambda: table.pin("then", moment, dry_run=True),
        lambda: table.restore(moment),
        lambda: table.restore(moment, allow_empty=True, dry_run=True),
        lambda: table.export_parquet("memory://elsewhere/copy", as_of=moment, dry_run=True),
    ]
    for use in uses:
        with pytest.raises(InvalidOption, match=message):
            use()
    assert (table.snapshot().id, table.pins()) == (before, [])


def test_a_time_within_the_clock_skew_is_not_in_the_future(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    table.insert(ROWS)
    skew_ms = table.handle.timing.max_skew_ms
    behind = open_table(clocked, clock.skewed(-2 * skew_ms))
    assert behind.snapshot(table.snapshot().as_of_ms).rows == 1
    with pytest.raises(InvalidOption, match="in the future"):
        behind.snapshot(clock.now_ms() + 1)


def test_a_table_may_be_read_as_of_a_time_before_its_first_commit(clocked: ClockedStore, clock: ManualClock) -> None:
    table = create_table(clocked, clock)
    empty_ms = clock.now_ms()
    clock.advance(10 * 60_000)
    table.insert(ROWS)
    assert table.snapshot(empty_ms).rows == 0
    with pytest.raises(InvalidOption, match="before the table's creation"):
        table.snapshot(empty_ms - 10 * 60_000)
    clock.advance(1)
    table.merge_log(files_min=1)
    assert table.snapshot(empty_ms).rows == 0


@pytest.mark.parametrize("depth", [50, 200, 600, 5_000])
def test_a_value_that_is_nested_too_deep_is_rejected(place: Any, depth: int) -> None:
    """Parquet readers allow 100 levels, and Python has a limit of its own."""
    table = Table.create(place.uri, storage_options=place.storage_options)
    value: object = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises((UnsupportedType, InvalidBatch), match=r"column 'a'.*(more than 100 levels|nested too deep)"):
        table.insert([{"a": value}])
    assert table.insert([{"a": [[1]]}]).rows == 1
    assert [p.rows for p in table.snapshot().parts] == [1]


def test_an_arrow_type_that_is_nested_too_deep_is_rejected(place: Any) -> None:
    table = Table.create(place.uri, storage_options=place.storage_options)
    type_ = pa.int64()
    for _ in range(50):
        type_ = pa.list_(type_)
    with pytest.raises(UnsupportedType, match="more than 100 levels"):
        table.insert(pa.table({"a": pa.nulls(1, type_)}))
    assert table.snapshot().parts == ()


@pytest.mark.parametrize("deep", [1, 100_000])
def test_an_argument_that_contains_itself_is_rejected(deep: int) -> None:
    nested: list[Any] = []
    if deep == 1:
        nested.append(nested)
    for _ in range(deep - 1):
        nested = [nested]
    with pytest.raises(InvalidArgument, match=r"^_takes_lists: rows contains itself, or is nested too deeply\.$"):
        _takes_lists(nested)


@checks_arguments
def _takes_lists(rows: list[Any]) -> None:
    raise AssertionError("the argument was accepted")
