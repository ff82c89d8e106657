"""Engines attach the Iceberg catalog of a real proxy, and read the rows that the table's own query reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from icedb import Table
from icedb.util.clock import SystemClock
from tests.support.proxy.iceberg_catalogs import (
    NAMESPACE,
    READERS,
    duckdb_catalog,
    load,
    pyiceberg_catalog,
    signing,
)
from tests.support.proxy.proxy_clients import Access
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.tables.delta_reading import texts
from tests.support.tables.exported_tables import TYPES, rows_of

pytestmark = pytest.mark.process

CONFIG = """
[server]
listen = "127.0.0.1:0"
refresh = "0s"

[iceberg]
enabled = true

[[tenant]]
name = "acme"
keys = [{{ id = "ACMEKEY1", secret = "acme-secret/+1=" }}]
bucket = [
    {buckets}
    {{ name = "ones", table = "{lake}/flat", partitions = ["u=1"] }},
    {{ name = "fixed", table = "{lake}/merged", as_of = {before_ms} }},
    {{ name = "latest", table = "{lake}/merged", time_travel = false }},
    {{ name = "big", table = "{lake}/big" }},
    {{ name = "small", table = "{lake}/big", exclude_columns = ["big"] }},
]
"""


def tick() -> int:
    """Return the time, after all commits before and before all commits after."""
    now_ms = SystemClock().now_ms()
    time.sleep(0.005)
    return now_ms


def flat(table: Table) -> None:
    table.insert(
        [{"u": n % 3, "d": date(2026, 11, 20 + n % 2), "n": n, "x": n / 4, "s": f"text {n}"} for n in range(40)]
    )


def nested(table: Table) -> None:
    table.insert([{"n": n, "s": {"a": n, "b": [str(n)]}, "l": [n, n + 1], "m": {"k": n}} for n in range(10)])


def evolved(table: Table) -> None:
    table.insert([{"n": 1}, {"n": 2}])
    tick()
    table.insert([{"n": 3, "later": "x"}])


def path_only(table: Table) -> None:
    table.insert([{"n": n, "c": city} for n, city in enumerate(["New York", "a%20b", "50%", "x=y", "Zürich", None])])


def nulls(table: Table) -> None:
    table.insert([{"n": None, "x": None, "s": "a"}, {"n": 1, "x": float("nan"), "s": None}])
    table.insert([{"n": None, "x": None, "s": None}])


def nothing(table: Table) -> None:
    pass


def merged(table: Table) -> None:
    for first in range(3):
        table.insert([{"u": n % 2, "n": 10 * first + n} for n in range(6)])
        tick()
    table.merge()
    table.delete("n = 13")
    table.drop_partitions(["u=0"])


def all_types(table: Table) -> None:
    table.insert(rows_of({name: sql for name, sql in TYPES.items() if name not in DIFFERENT}))


#: Values of these types have another form in one of the engines; the tests of the export compare them.
DIFFERENT = ("list_of_struct", "blob", "enum", "array")
TABLES: Mapping[str, tuple[dict[str, Any], Callable[[Table], None]]] = {
    "flat": ({"partition_by": ["u"], "sort_by": ["n", "s"]}, flat),
    "nested": ({}, nested),
    "evolved": ({}, evolved),
    "path_only": ({"partition_by": ["c || '' AS city", "n // 2 AS half"]}, path_only),
    "nulls": ({"sort_by": ["n", "x", "s"]}, nulls),
    "empty": ({"schema": {"n": "BIGINT", "s": "VARCHAR"}}, nothing),
    "merged": ({"partition_by": ["u"], "sort_by": ["n"]}, merged),
    "types": ({}, all_types),
}


@dataclass(frozen=True)
class Lake:
    tables: Mapping[str, Table]
    acme: Access
    before_ms: int


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    tables = {}
    for name, (options, fill) in TABLES.items():
        tables[name] = Table.create(str(folder / name), **options)
        fill(tables[name])
    big = Table.create(str(folder / "big"))
    big.insert(pa.table({"big": pa.array([1], pa.uint64()), "n": [1]}))
    before_ms = tick()
    tables["merged"].insert([{"u": 5, "n": 100}])
    buckets = "".join(f'{{ name = "{bucket(name)}", table = "{folder / name}" }},\n' for name in TABLES)
    with ProxyProcess(CONFIG.format(lake=folder, buckets=buckets, before_ms=before_ms)) as proxy:
        yield Lake(tables, Access(proxy.endpoint, "ACMEKEY1", "acme-secret/+1="), before_ms)


def bucket(table: str) -> str:
    return table.replace("_", "-")


def check_rows(reader: str, theirs: pa.Table, ours: pa.Table) -> None:
    # ClickHouse reads a null struct as one of nulls, and has no result without rows.
    columns = [
        c for c in ours.column_names if reader != "clickhouse" or not pa.types.is_nested(ours.schema.field(c).type)
    ]
    if reader == "clickhouse" and not ours.num_rows:
        assert not theirs.num_rows
        return
    assert sorted(theirs.column_names) == sorted(ours.column_names)
    assert texts(theirs, columns) == texts(ours, columns)


# ClickHouse shows timestamps with a zone, and Polars other texts of nested values.
@pytest.mark.parametrize(
    ("reader", "name"),
    [(r, n) for r in READERS for n in TABLES if n != "types" or r in ("pyiceberg", "duckdb")],
)
def test_each_reader_reads_the_rows_of_the_table(lake: Lake, reader: str, name: str) -> None:
    theirs = READERS[reader](lake.acme, bucket(name), None)
    check_rows(reader, theirs, lake.tables[name].query("SELECT * FROM t").to_arrow())


@pytest.mark.parametrize("reader", READERS)
def test_each_listed_snapshot_is_that_time_of_the_table(lake: Lake, reader: str) -> None:
    metadata = load(lake.acme, "merged").json["metadata"]
    assert len(metadata["snapshots"]) == 7
    for snapshot in metadata["snapshots"][::2]:
        theirs = READERS[reader](lake.acme, "merged", snapshot["snapshot-id"])
        check_rows(
            reader, theirs, lake.tables["merged"].query("SELECT * FROM t", as_of=snapshot["timestamp-ms"]).to_arrow()
        )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["fixed", "merged--{ms}"])
def test_a_name_with_a_time_and_a_fixed_bucket_are_that_time(lake: Lake, reader: str, name: str) -> None:
    name = name.format(ms=lake.before_ms)
    theirs = READERS[reader](lake.acme, name, None)
    check_rows(reader, theirs, lake.tables["merged"].query("SELECT * FROM t", as_of=lake.before_ms).to_arrow())
    assert len(load(lake.acme, name).json["metadata"]["snapshots"]) == 1


@pytest.mark.parametrize("reader", READERS)
def test_a_scoped_table_has_the_rows_of_its_partitions(lake: Lake, reader: str) -> None:
    check_rows(
        reader,
        READERS[reader](lake.acme, "ones", None),
        lake.tables["flat"].query("SELECT * FROM t WHERE u = 1").to_arrow(),
    )


@pytest.mark.parametrize("service", ["execute-api", "glue", "s3"])
def test_requests_signed_by_pyiceberg_are_accepted(lake: Lake, service: str) -> None:
    catalog = pyiceberg_catalog(lake.acme, **signing(lake.acme, service))
    assert catalog.load_table(f"{NAMESPACE}.flat").scan().to_arrow().num_rows == 40
    wrong = Access(lake.acme.endpoint, lake.acme.key_id, "another-secret")
    with pytest.raises(Exception, match=r"NotAuthorized|signature"):
        pyiceberg_catalog(wrong, **signing(wrong, service))


def test_the_catalog_lists_tables_and_answers_existence(lake: Lake) -> None:
    catalog = pyiceberg_catalog(lake.acme)
    names = {*map(bucket, TABLES), "ones", "fixed", "latest", "big", "small"}
    assert catalog.list_namespaces() == [(NAMESPACE,)]
    assert {name for _, name in catalog.list_tables(NAMESPACE)} == names
    assert catalog.namespace_exists(NAMESPACE)
    assert not catalog.namespace_exists("other")
    assert catalog.table_exists(f"{NAMESPACE}.flat")
    assert not catalog.table_exists(f"{NAMESPACE}.nothing")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{NAMESPACE}.nothing")
    with duckdb_catalog(lake.acme) as con:
        assert {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()} >= {"flat"}


def test_a_type_without_equivalent_is_named_and_can_be_excluded(lake: Lake) -> None:
    answer = load(lake.acme, "big")
    assert answer.error == (404, "NoSuchTableException")
    assert "'big' (UBIGINT)" in answer.json["error"]["message"]
    assert "exclude_columns" in answer.json["error"]["message"]
    assert READERS["pyiceberg"](lake.acme, "small", None).to_pydict() == {"n": [1]}


def test_a_bucket_without_time_travel_has_one_snapshot(lake: Lake) -> None:
    metadata = load(lake.acme, "latest").json["metadata"]
    assert [s["snapshot-id"] for s in metadata["snapshots"]] == [metadata["current-snapshot-id"]]
    assert load(lake.acme, f"latest--{lake.before_ms}").error == (403, "ForbiddenException")


def test_filters_prune_files_by_partition_values_that_paths_encode(lake: Lake) -> None:
    table = pyiceberg_catalog(lake.acme).load_table(f"{NAMESPACE}.path-only")
    assert len(list(table.scan().plan_files())) == 6
    assert len(list(table.scan(row_filter="city = 'a%20b'").plan_files())) == 1


def test_an_unchanged_table_is_answered_with_304(lake: Lake) -> None:
    first = load(lake.acme, "nested")
    assert first.status == 200
    assert load(lake.acme, "nested", {"if-none-match": first.headers["etag"]}).status == 304
    assert load(lake.acme, "nested", {"if-none-match": '"other"'}).body == first.body
