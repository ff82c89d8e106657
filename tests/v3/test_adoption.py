"""Tables that v3 programs made are opened and maintained; tables of ours are read and appended to by v3 programs.

The v3 program is `tests.support.programs.v3_program`, which uses nothing of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest

from icedb import Table
from icedb.errors import InvalidBatch, InvalidPartitionValue, InvalidURI, SchemaConflict, TableExists, TableNotFound
from icedb.sql.field_ids import field_id
from tests.support.object_stores.stores import Place
from tests.support.programs.v3_program import Row, V3Program
from tests.support.tables.v3_api import now_ms

SCHEMA = {"k": "VARCHAR", "n": "BIGINT"}


def rising() -> Callable[[], int]:
    """Return a clock of a v3 program: each call returns a later time, from ten minutes ago on."""
    times: Iterator[int] = iter(range(now_ms() - 600_000, now_ms()))
    return times.__next__


def rows(*ns: int, k: str = "x") -> list[Row]:
    return [{"k": k, "n": n} for n in ns]


def opened(place: Place) -> Table:
    return Table.open(place.uri, storage_options=place.storage_options)


def numbers(table: Table) -> list[int]:
    return [n for (n,) in table.query("SELECT n FROM t ORDER BY n").fetchall()]


def agree(place: Place, v3: V3Program) -> list[int]:
    """Check that our reader and that of v3 return the same rows, and return their numbers."""
    table = opened(place)
    assert [p.key for p in table.snapshot().parts] == v3.read().live
    actual = numbers(table)
    assert sorted(row["n"] for row in v3.rows()) == actual
    return actual


@pytest.fixture
def v3(shared_place: Place) -> V3Program:
    """Return a program that has inserted into two partitions, twice."""
    made = V3Program.at(shared_place, rising())
    made.insert({"u=a/d=2026-11-20": rows(1, 2), "u=b/d=2026-11-21": rows(3)}, SCHEMA)
    made.insert({"u=a/d=2026-11-20": rows(4)}, SCHEMA)
    return made


def test_an_empty_prefix_has_no_table(shared_place: Place) -> None:
    with pytest.raises(TableNotFound, match="no table"):
        opened(shared_place)
    assert not Table.exists(shared_place.uri, storage_options=shared_place.storage_options)


@pytest.mark.sampled(days=3)
def test_a_v3_table_is_opened_with_the_columns_of_its_paths(shared_place: Place, v3: V3Program) -> None:
    table = opened(shared_place)
    assert table.spec.path_columns == {"u": "VARCHAR", "d": "DATE"}
    assert table.schema() == SCHEMA
    assert numbers(table) == [1, 2, 3, 4]
    assert table.query("SELECT u, typeof(d), sum(n) FROM t GROUP BY ALL ORDER BY u").fetchall() == [
        ("a", "DATE", 7),
        ("b", "DATE", 3),
    ]
    assert len(table.snapshot().files("d >= DATE '2026-11-21'")) == 1
    assert Table.exists(shared_place.uri, storage_options=shared_place.storage_options)
    with pytest.raises(TableExists):
        Table.create(shared_place.uri, storage_options=shared_place.storage_options)


@pytest.mark.sampled(cases=1)
def test_opening_writes_nothing(shared_place: Place, v3: V3Program) -> None:
    before = v3.objects.list(v3.prefix)
    numbers(opened(shared_place))
    assert v3.objects.list(v3.prefix) == before


STAGES: dict[str, tuple[Callable[[V3Program], object], list[int]]] = {
    "inserted": (lambda v3: None, [1, 2, 3, 4]),
    "merged": (lambda v3: v3.merge("u=a/d=2026-11-20"), [1, 2, 3, 4]),
    "dropped": (lambda v3: v3.drop("u=a/d=2026-11-20"), [3]),
    "merged and dropped": (lambda v3: (v3.merge("u=a/d=2026-11-20"), v3.drop("u=b/d=2026-11-21")), [1, 2, 4]),
}


@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("stage", STAGES)
def test_a_v3_table_is_read_and_maintained_at_every_stage(shared_place: Place, v3: V3Program, stage: str) -> None:
    prepare, expected = STAGES[stage]
    prepare(v3)
    assert agree(shared_place, v3) == expected

    table = opened(shared_place)
    table.insert([{"k": "x", "n": 10, "_partition": "u=a/d=2026-11-20"}])
    assert agree(shared_place, v3) == [*expected, 10]

    v3.now = now_ms
    v3.insert({"u=a/d=2026-11-20": rows(11), "u=b/d=2026-11-21": rows(12)}, SCHEMA)
    expected = [*expected, 10, 11, 12]
    assert agree(shared_place, v3) == expected

    table.merge()
    assert len(table.snapshot().parts) == 2
    assert agree(shared_place, v3) == expected

    v3.insert({"u=a/d=2026-11-20": rows(13)}, SCHEMA)
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert agree(shared_place, v3) == [*expected, 13]
    assert len(v3.read().log_files) == 2

    table.merge()
    table.drop_partitions("u = 'b'")
    assert agree(shared_place, v3) == [n for n in [*expected, 13] if n not in (3, 12)]
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert agree(shared_place, v3) == [n for n in [*expected, 13] if n not in (3, 12)]
    assert table.verify(deep=True).ok


@pytest.mark.sampled(days=3)
def test_an_altered_v3_table_keeps_its_paths(shared_place: Place, v3: V3Program) -> None:
    opened(shared_place).alter(sort_by=["n"], compression="snappy")
    table = opened(shared_place)
    assert table.schema()  # reads the log, which has the spec
    assert (table.spec.revision, table.spec.sort_by) == (1, ("n",))
    assert table.spec.path_columns == {"u": "VARCHAR", "d": "DATE"}
    table.insert([{"k": "x", "n": n, "u": "c", "d": "2026-11-22"} for n in (7, 6)])
    assert "/u=c/d=2026-11-22/" in table.snapshot().parts[-1].key
    assert agree(shared_place, v3) == [1, 2, 3, 4, 6, 7]


@pytest.mark.sampled(days=3)
def test_rows_without_a_partition_are_refused(shared_place: Place, v3: V3Program) -> None:
    table = opened(shared_place)
    with pytest.raises(InvalidBatch, match="_partition"):
        table.insert(rows(5))
    with pytest.raises(InvalidPartitionValue, match=r"u=\.\.\./d=\.\.\."):
        table.insert([{"k": "x", "n": 5, "_partition": "d=2026-11-20"}])
    assert agree(shared_place, v3) == [1, 2, 3, 4]


@pytest.mark.sampled(cases=1, days=3)
def test_a_partition_of_a_v3_table_is_rewritten_and_rows_are_deleted(shared_place: Place, v3: V3Program) -> None:
    table = opened(shared_place)
    table.rewrite_partition("u=a/d=2026-11-20", "SELECT k, n * 10 AS n FROM t")
    assert agree(shared_place, v3) == [3, 10, 20, 40]
    table.delete("n > 15")
    assert agree(shared_place, v3) == [3, 10]
    table.overwrite([{"k": "x", "n": 9, "u": "a", "d": "2026-11-20"}], partitions="u = 'a'")
    assert agree(shared_place, v3) == [3, 9]


RAW = [
    "c=New York",
    "t=10:30",
    "c=it's",
    'c=say "hi"',
    "c=50%",
    "c=%41",
    "c=zürich",
    "c=a+b&c#d",
    "c=a=b",
    "c=[o]*",
    "c=o?her",
    "c=C:\\temp",
    "no names at all",
]


@pytest.mark.sampled(cases=4, days=3)
@pytest.mark.parametrize("path", RAW)
def test_raw_paths_of_v3_programs_work_in_a_folder(local: Place, path: str) -> None:
    check_raw_path(local, path)


@pytest.mark.s3
@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("path", ["c=New York", "c=it's 50%+#", "c=[o]*", "c=o?her", "c=C:\\temp"])
def test_raw_paths_of_v3_programs_work_in_a_bucket(s3: Place, path: str) -> None:
    check_raw_path(s3, path)


def check_raw_path(place: Place, path: str) -> None:
    v3 = V3Program.at(place, rising())
    v3.insert({path: rows(1), "z=other": rows(3)}, SCHEMA)
    v3.insert({path: rows(2)}, SCHEMA)
    assert agree(place, v3) == [1, 2, 3]
    table = opened(place)
    assert table.merge().merged_parts == 2
    assert agree(place, v3) == [1, 2, 3]
    assert table.snapshot().partitions() == sorted([path, "z=other"])
    table.rewrite_partition(path, "SELECT k, n + 10 AS n FROM t")
    assert agree(place, v3) == [3, 11, 12]
    table.cleanup(grace_ms=0, allow_short_grace=True)
    assert table.verify(deep=True).ok
    table.drop_partitions([path])
    assert agree(place, v3) == [3]


@pytest.mark.parametrize("char", ["\n", "\t"])
def test_a_raw_path_with_a_control_character_is_named(shared_place: Place, char: str) -> None:
    v3 = V3Program.at(shared_place, rising())
    v3.insert({f"c=a{char}b": rows(1)}, SCHEMA)
    v3.insert({f"c=a{char}b": rows(2)}, SCHEMA)

    def maintain() -> None:  # a merge already finds it in a bucket, a cleanup in a folder
        opened(shared_place).merge()
        opened(shared_place).cleanup(grace_ms=0, allow_short_grace=True)

    with pytest.raises(InvalidURI, match="control character"):
        maintain()
    assert sorted(row["n"] for row in v3.rows()) == [1, 2]


@pytest.mark.sampled(days=3)
def test_a_drop_of_a_path_without_names_takes_no_other(shared_place: Place) -> None:
    v3 = V3Program.at(shared_place, rising())
    v3.insert({"raw": rows(1), "other": rows(2), "raw/d=1": rows(3), "d=1": rows(4)}, SCHEMA)
    table = opened(shared_place)
    table.drop_partitions(["raw"])
    assert agree(shared_place, v3) == [2, 3, 4]
    table.rewrite_partition("raw/d=1", "SELECT k, n * 10 AS n FROM t")
    assert agree(shared_place, v3) == [2, 4, 30]


PATHS: dict[str, tuple[list[str], dict[str, str]]] = {
    "numbers": (["h=1", "h=22"], {"h": "BIGINT"}),
    "numbers with zeros": (["h=01", "h=22"], {"h": "VARCHAR"}),
    "days": (["d=2026-11-21", "d=2026-01-01"], {"d": "DATE"}),
    "days and null": (["d=2026-11-21", "d=__HIVE_DEFAULT_PARTITION__"], {"d": "DATE"}),
    "a day and text": (["d=2026-11-21", "d=never"], {"d": "VARCHAR"}),
    "times": (["h=2026-11-21 10%3A00%3A00"], {"h": "TIMESTAMP"}),
    "a data column's name": (["k=x"], {}),
    "no names": (["raw"], {}),
    "a name twice": (["a=1/a=2"], {}),
    "names that differ in case": (["a=1/A=2"], {}),
    "the newest part's": (["old=1", "d=2026-11-21"], {"d": "DATE"}),
    "an awkward name": (["a b=1"], {}),
}


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("case", PATHS)
def test_types_of_path_columns(local: Place, case: str) -> None:
    paths, expected = PATHS[case]
    v3 = V3Program.at(local, rising())
    for n, path in enumerate(paths):
        v3.insert({path: rows(n)}, SCHEMA)
    table = opened(local)
    assert table.spec.path_columns == expected
    assert numbers(table) == list(range(len(paths)))


def test_a_table_that_is_empty_again_is_opened(local: Place) -> None:
    v3 = V3Program.at(local, rising())
    v3.insert({"p=1": rows(1)}, SCHEMA)
    v3.drop("p=1")
    table = opened(local)
    assert numbers(table) == []
    table.insert([{"k": "x", "n": 5}])
    assert agree(local, v3) == [5]


def test_a_table_with_two_types_is_opened_for_repair(local: Place) -> None:
    v3 = V3Program.at(local, rising())
    v3.insert({"p=1": [{"n": 1}]}, {"n": "INTEGER"})
    v3.insert({"p=1": [{"n": 2}]}, {"n": "BIGINT"})
    table = opened(local)
    with pytest.raises(SchemaConflict, match="repair"):
        table.snapshot()
    table.repair_types()
    assert numbers(opened(local)) == [1, 2]
    assert opened(local).spec.path_columns == {"p": "BIGINT"}


CORE_STAGES: list[tuple[str, Callable[[Table], Any]]] = [
    ("insert", lambda t: t.insert(rows(20, k="a"))),
    ("insert with a new column", lambda t: t.insert([{"k": "a", "n": 21, "more": 1}])),
    ("exactly once", lambda t: t.insert(rows(22, k="b"), txn=("app", 1))),
    ("merge", lambda t: t.merge()),
    ("merge_log", lambda t: t.merge_log()),
    ("alter", lambda t: t.alter(sort_by=["n"])),
    ("delete", lambda t: t.delete("n = 20")),
    ("rewrite", lambda t: t.rewrite_partition("p=a", "SELECT k, n + 100 AS n FROM t")),
    ("cleanup", lambda t: t.cleanup(grace_ms=0, allow_short_grace=True)),
    ("overwrite", lambda t: t.overwrite(rows(30, k="b"), partitions=["p=b"])),
    ("drop", lambda t: t.drop_partitions(["p=a"])),
    ("cleanup again", lambda t: t.cleanup(grace_ms=0, allow_short_grace=True)),
]


def test_a_v3_program_reads_and_merges_parts_with_field_ids(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["k AS p"])
    table.insert([{"k": "a", "n": 1, "s": {"x": [1, 2]}}, {"k": "a", "n": 2, "s": None}])
    [part] = table.snapshot().parts
    assert pq.read_schema(part.path).field("n").metadata == {b"PARQUET:field_id": str(field_id("n")).encode()}
    v3 = V3Program.at(local, now_ms)
    assert v3.rows() == table.query("SELECT k, n, s FROM t ORDER BY n").to_arrow().to_pylist()
    v3.insert({"p=a": rows(3, k="a")}, SCHEMA)
    v3.merge("p=a")
    assert agree(local, v3) == [1, 2, 3]
    assert table.query("SELECT s.x FROM t ORDER BY n").fetchall() == [([1, 2],), (None,), (None,)]


@pytest.mark.sampled(cases=1, days=3)
def test_a_v3_program_reads_and_appends_to_a_table_of_ours_at_every_stage(shared_place: Place) -> None:
    table = Table.create(shared_place.uri, partition_by=["k AS p"], storage_options=shared_place.storage_options)
    table.insert(rows(1, 2, k="a"))
    v3 = V3Program.at(shared_place, now_ms)
    for number, (stage, act) in enumerate(CORE_STAGES):
        act(table)
        before = agree(shared_place, v3)
        k = "ab"[number % 2]
        v3.insert({f"p={k}": rows(1000 + number, k=k)}, SCHEMA)
        assert agree(shared_place, v3) == sorted([*before, 1000 + number]), stage
        assert numbers(table) == sorted([*before, 1000 + number]), stage
    assert table.verify(deep=True).ok
