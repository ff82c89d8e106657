"""The matrix of input position by attack class: each cell is refused with one error, or kept as the data that it is.

Whatever the outcome, no object and no file that was there before is changed or gone, nothing new lies outside the
tables, no file of the host was read into anything, and no address of the network was called.
tests/sql/test_user_queries.py shows that the attacks are real.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.errors import (
    CorruptLog,
    IceDBError,
    InvalidBatch,
    InvalidOption,
    InvalidPartitionExpression,
    InvalidPartitionValue,
    InvalidQuery,
    InvalidURI,
    MissingPart,
    UnknownColumn,
)
from icedb.format.table_spec import Dedup
from icedb.icedb import IceDBv3
from icedb.log import IceLogIO, S3Client
from icedb.sql.connections import quote_text
from icedb.storage.location import parse_location
from icedb.storage.obstore_store import open_store
from tests.support.attacks.attacks import CLASSES, EXPRESSIONS, QUERIES, TEXTS, TYPES, World, make_tables
from tests.support.attacks.canary import watching
from tests.support.object_stores.stores import BUCKET, Place

ROWS = [(1, "x", "one"), (2, "y", "two")]
ROW = {"a": 1, "p": "x", "s": "one"}
#: By attack class, what refuses it. A class that is not there is kept as data.
Refusals = Mapping[str, type[IceDBError]]


@dataclass(frozen=True)
class Position:
    """Somewhere that a text of the attacker's comes in. `run` fails unless what is not refused is data and no more."""

    payloads: Mapping[str, str]
    run: Callable[[World, str], object]
    refused: Refusals
    rows: str = ""
    #: What is there for buckets only.
    s3_only: bool = False


POSITIONS: dict[str, Position] = {}


def position(
    name: str,
    payloads: Mapping[str, str],
    refused: Refusals | type[IceDBError],
    *,
    rows: str = "",
    s3_only: bool = False,
) -> Callable[[Callable[[World, str], object]], Callable[[World, str], object]]:
    refusals = dict.fromkeys(CLASSES, refused) if isinstance(refused, type) else refused

    def add(run: Callable[[World, str], object]) -> Callable[[World, str], object]:
        POSITIONS[name] = Position(payloads, run, refusals, rows, s3_only)
        return run

    return add


def only(error: type[IceDBError], *classes: str) -> Refusals:
    return dict.fromkeys(classes, error)


def all_but(error: type[IceDBError], *classes: str) -> Refusals:
    return {name: error for name in CLASSES if name not in classes}


# ---------------------------------------------------------------------------------------------- values


@position("string value", TEXTS, {})
def string_value(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "s": text}])
    assert sorted(world.rows()) == sorted([*ROWS, (3, "x", text)])
    world.table.merge(part_bytes_max=2**30)
    assert sorted(world.rows()) == sorted([*ROWS, (3, "x", text)])


@position("value in a struct, a list and a map", TEXTS, {})
def nested_value(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "n": {"k": [text]}}])
    assert world.table.query("SELECT n.k[1] FROM t WHERE a = 3").fetchall() == [(text,)]


@position("partition value", TEXTS, {})
def partition_value(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "p": text, "s": "three"}])
    assert sorted(world.rows()) == sorted([*ROWS, (3, text, "three")])
    [path] = {p.partition for p in world.table.snapshot().parts} - {"p=x", "p=y"}
    assert "/" not in path
    world.table.drop_partitions([path])
    assert world.rows() == ROWS


@position("the column _partition", TEXTS, all_but(
    InvalidPartitionValue, "single quote", "statement", "extension", "setting", "newline", "zero", "glob",
))  # fmt: skip
def partition_text(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "s": "three", "_partition": f"p={text}"}])
    assert ("three",) in world.table.query("SELECT s FROM t").fetchall()
    [path] = {p.partition for p in world.table.snapshot().parts} - {"p=x", "p=y"}
    assert "/" not in path


@position("column name", TEXTS, only(InvalidBatch, "zero"))
def column_name(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", text: "value"}])
    assert world.table.schema()[text] == "VARCHAR"
    assert world.table.query("SELECT COLUMNS(* EXCLUDE (a, p, s)) FROM t WHERE a = 3").fetchall() == [("value",)]
    world.table.merge(part_bytes_max=2**30)
    assert world.open().schema()[text] == "VARCHAR"


@position("field of a struct", TEXTS, only(InvalidBatch, "zero"))
def field_name(world: World, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "n": {text: 7}}])
    assert world.open().query("SELECT to_json(n) FROM t WHERE a = 3").fetchall() == [
        (json.dumps({text: 7}, separators=(",", ":"), ensure_ascii=False),)
    ]


@position("name of an application", TEXTS, only(InvalidOption, "newline", "zero"))
def application(world: World, text: str) -> None:
    row = {"a": 3, "p": "x", "s": "three"}
    assert not world.table.insert([row], txn=(text, 7)).repeated
    assert world.open().insert([row], txn=(text, 7)).repeated
    assert len(world.rows()) == 3


@position("sort column", TEXTS, UnknownColumn)
def sort_column(world: World, text: str) -> None:
    world.table.alter(sort_by=[text])


@position("sort column that is there", TEXTS, only(InvalidBatch, "zero"))
def sort_column_there(world: World, text: str) -> None:
    table = world.create(sort_by=[text])
    world.mark()
    table.insert([{"a": 2, text: "b"}, {"a": 1, text: "a"}])
    table.merge(part_bytes_max=2**30)
    assert table.query("SELECT a FROM t").fetchall() == [(1,), (2,)]


@position("required column", TEXTS, UnknownColumn)
def required_column(world: World, text: str) -> None:
    world.create(required=[text], schema={"a": "BIGINT"}, schema_policy="declared")


# ---------------------------------------------------------------------------------------------- names


@position("name of a pin", TEXTS, InvalidOption)
def pin_name(world: World, text: str) -> None:
    world.table.pin(text)


@position("name of a view", TEXTS, InvalidOption)
def view_name(world: World, text: str) -> None:
    world.table.create_view(text, "SELECT * FROM _rows")


#: Of a prefix in a bucket; the caller's own folders are the caller's.
NO_PREFIX = only(InvalidURI, "comment", "traversal", "newline", "zero", "glob", "network")


@position("address of a table", TEXTS, NO_PREFIX, s3_only=True)
def address(world: World, text: str) -> None:
    table = world.create(f"new/{text}")
    table.insert([ROW])
    assert table.query("SELECT s FROM t").fetchall() == [("one",)]
    assert Table.open(table.uri, storage_options=world.options).merge().commit.key is None


@position("partition to drop", TEXTS, only(InvalidOption, "zero"))
def partition_to_drop(world: World, text: str) -> None:
    assert world.table.drop_partitions([text, f"p={text}"], missing_ok=True).parts == ()


@position("partition to rewrite", TEXTS, InvalidOption)
def partition_to_rewrite(world: World, text: str) -> None:
    world.table.rewrite_partition(f"p={text}", "SELECT * FROM _rows")


# ---------------------------------------------------------------------------------------------- SQL


@position("partition expression", EXPRESSIONS, all_but(
    InvalidPartitionExpression, "newline", "glob", "internal"
))  # fmt: skip
def partition_expression(world: World, text: str) -> None:
    table = world.create(partition_by=[f"{text} AS q"])
    table.insert([{"a": 1, "p": "x"}])
    assert [p.partition for p in table.snapshot().parts] == ["q=false"]


@position("predicate of a deletion", EXPRESSIONS, all_but(InvalidOption, "newline", "glob", "internal"))
def delete_predicate(world: World, text: str) -> None:
    assert world.table.delete(text).matching_rows == 0


@position("predicate of a drop", EXPRESSIONS, all_but(InvalidPartitionExpression, "newline", "glob", "internal"))
def drop_predicate(world: World, text: str) -> None:
    assert world.table.drop_partitions(text).parts == ()


@position("predicate of an overwrite", EXPRESSIONS, {
    **all_but(InvalidPartitionExpression, "newline", "glob", "internal"),
    **only(InvalidBatch, "newline", "glob", "internal"),  # the row is in none of its partitions
})  # fmt: skip
def overwrite_predicate(world: World, text: str) -> None:
    world.table.overwrite([{"a": 3, "p": "x"}], partitions=text)


@position("predicate of a snapshot", EXPRESSIONS, all_but(InvalidOption, "newline", "glob", "internal"))
def snapshot_predicate(world: World, text: str) -> None:
    assert world.table.query("SELECT * FROM t", where=text).fetchall() == []


@position("insert query", QUERIES, InvalidQuery, rows="_rows")
def insert_query(world: World, text: str) -> None:
    world.create(insert_query=text)


@position("merge query", QUERIES, InvalidQuery, rows="source_files")
def merge_query(world: World, text: str) -> None:
    world.create(merge_query=text)


@position("query of a rewrite", QUERIES, InvalidQuery, rows="t")
def rewrite_query(world: World, text: str) -> None:
    world.table.rewrite_partition("p=x", text)


@position("query of a view", QUERIES, InvalidQuery, rows="_rows")
def view_query(world: World, text: str) -> None:
    world.table.create_view("view", text)


@position("altered insert query", QUERIES, InvalidQuery, rows="_rows")
def altered_query(world: World, text: str) -> None:
    world.table.alter(insert_query=text)


@position("declared type", TYPES, InvalidOption)
def declared_type(world: World, text: str) -> None:
    world.create(schema={"c": text})


@position("type of a path column", TYPES, InvalidOption)
def path_column_type(world: World, text: str) -> None:
    world.create(path_columns={"c": text})


@position("type of a repair", TYPES, InvalidOption)
def repair_type(world: World, text: str) -> None:
    world.table.repair_types({"a": text})


# ---------------------------------------------------------------------------------------------- what others stored


def plant_spec(world: World, **fields: Any) -> Table:
    """A table whose `_table.json` somebody else wrote, with rows that somebody else's program inserted."""
    place = world.beside("planted")
    store = open_store(parse_location(place.uri, world.options))
    table = Table.create(place.uri, storage_options=world.options)
    for number in range(2):
        table.insert([{"a": number, "p": "x", "s": "one"}])
    body = json.loads(store.get(store.location.keys.spec).body)
    store.delete([store.location.keys.spec])
    store.create(store.location.keys.spec, json.dumps({**body, **fields}).encode())
    world.mark()
    return Table.open(place.uri, storage_options=world.options)


@position("stored partition expression", EXPRESSIONS, all_but(
    CorruptLog, "newline", "glob", "internal"
))  # fmt: skip
def stored_partition_expression(world: World, text: str) -> None:
    plant_spec(world, partition_by=[f"{text} AS q"]).insert([ROW])


@position("stored insert query", QUERIES, CorruptLog, rows="_rows")
def stored_insert_query(world: World, text: str) -> None:
    plant_spec(world, insert_query=text).insert([ROW])


@position("stored merge query", QUERIES, CorruptLog, rows="source_files")
def stored_merge_query(world: World, text: str) -> None:
    plant_spec(world, merge_query=text).merge(part_bytes_max=2**30)


@position("stored query of a view", QUERIES, CorruptLog, rows="_rows")
def stored_view_query(world: World, text: str) -> None:
    plant_spec(world, views=[{"name": "neighbour", "query": text}]).insert([ROW])


@position("stored name of a view", TEXTS, CorruptLog)
def stored_view_name(world: World, text: str) -> None:
    plant_spec(world, views=[{"name": text, "query": "SELECT * FROM _rows"}]).insert([ROW])


@position("stored sort column", TEXTS, UnknownColumn)
def stored_sort_column(world: World, text: str) -> None:
    plant_spec(world, sort_by=[text]).insert([ROW])


@position("stored declared type", TYPES, CorruptLog)
def stored_declared_type(world: World, text: str) -> None:
    plant_spec(world, columns={"c": text}).insert([ROW])


@position("stored path column", TYPES, CorruptLog)
def stored_path_column(world: World, text: str) -> None:
    plant_spec(world, path_columns={"c": text}).insert([ROW])


@position("stored compression", TEXTS, CorruptLog)
def stored_compression(world: World, text: str) -> None:
    plant_spec(world, compression=text).insert([ROW])


@position("stored address of the log", TEXTS, IceDBError)
def stored_log_uri(world: World, text: str) -> None:
    plant_spec(world, log_uri=text).insert([ROW])


def plant_log_file(world: World, *, types: Mapping[str, str] | None = None, key: str | None = None) -> Table:
    """The table, with one more log file, that a program without manners wrote."""
    store = open_store(parse_location(world.beside("table").uri, world.options))
    keys = store.location.keys
    log_schema = {"a": "BIGINT", "p": "VARCHAR", "s": "VARCHAR"}
    [real, *_] = list(store.list(keys.data_prefix))
    marker = {"p": real.key if key is None else f"{keys.data_prefix}{key}.parquet", "b": real.bytes, "t": 1}
    t_ms = int(datetime.now(UTC).timestamp() * 1000)
    lines = [{"v": "1", "t": t_ms, "sch": 1, "f": 2}, {**log_schema, **(types or {})}, marker]
    store.create(keys.log_file(t_ms, merged=False, writer="foreign"), "\n".join(map(json.dumps, lines)).encode())
    world.mark()
    return world.open()


VERBS: list[Callable[[Table], object]] = [
    lambda table: table.query("SELECT * FROM t").fetchall(),
    lambda table: table.merge(part_bytes_max=2**30),
    lambda table: table.delete("a = 1"),
    lambda table: table.rewrite_partition("p=x", "SELECT * FROM _rows"),
    lambda table: table.insert([ROW]),
]


def every_verb_refuses(table: Table) -> None:
    """Fail unless each verb raises one of our errors; then raise one of them."""
    for verb in VERBS[:-1]:
        with pytest.raises(IceDBError):
            verb(table)
    VERBS[-1](table)


@position("type in a log file", TYPES, IceDBError)
def logged_type(world: World, text: str) -> None:
    every_verb_refuses(plant_log_file(world, types={"c": text}))


@position("column in a log file", TEXTS, only(IceDBError, "zero"))
def logged_column(world: World, text: str) -> None:
    table = plant_log_file(world, types={text: "VARCHAR"})
    assert len(table.query("SELECT * FROM t").fetchall()) == len(ROWS)
    assert table.schema()[text] == "VARCHAR"


@position("key of a part in a log file", TEXTS, IceDBError)
def logged_key(world: World, text: str) -> None:
    table = plant_log_file(world, key=text)
    table.query("SELECT * FROM t").fetchall()


@position("key of a merging", TEXTS, only(InvalidBatch, "zero"))
def merging_key(world: World, text: str) -> None:
    table = world.create(merging=Dedup(by=(text,)))
    world.mark()
    for key in (1, 1, 2):
        table.insert([{"a": 7, text: key}])
    table.merge(part_bytes_max=2**30)
    assert table.query("SELECT count(*), sum(a) FROM t").fetchall() == [(2, 14)]


# ---------------------------------------------------------------------------------------------- the facade


def program(world: World, *, prefix: str = "new", **options: Any) -> IceDBv3:
    s3_options = dict(world.options or {})
    client = S3Client(
        f"{world.prefix}/{prefix}", BUCKET, s3_options["AWS_REGION"], s3_options["AWS_ENDPOINT_URL"],
        s3_options["AWS_ACCESS_KEY_ID"], s3_options["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    settings: dict[str, Any] = {
        "partition_function": lambda row: f"p={row['p']}", "sort_order": ["a"], "path_safe_hostname": "host",
        "s3_client": client, "s3_use_path": True,
    }  # fmt: skip
    return IceDBv3(**{**settings, **options})


def insert_and_merge(ice: IceDBv3) -> None:
    for number in range(2):
        ice.insert([{"a": number, "p": "x", "s": "one"}])
    _, new, *_ = ice.merge()
    assert new is not None
    assert len(ice.tombstone_cleanup(0)[2]) == 2
    live = [m for m in IceLogIO("reader").read_at_max_time(ice.data_s3c, 2**43)[1] if m.tombstone is None]
    assert [m.path for m in live] == [new.path]
    sql = f"SELECT count(*) FROM read_parquet({quote_text(f's3://{BUCKET}/{new.path}')})"
    if not set(new.path) & set("?*[]\n\r\\"):
        assert ice.get_duckdb().execute(sql).fetchall() == [(2,)]


@position("host of a v3 program", TEXTS, only(InvalidOption, "zero"), s3_only=True)
def v3_host(world: World, text: str) -> None:
    insert_and_merge(program(world, path_safe_hostname=text))


@position("prefix of a v3 program", TEXTS, {**NO_PREFIX, **only(InvalidURI, "internal")}, s3_only=True)
def v3_prefix(world: World, text: str) -> None:
    insert_and_merge(program(world, prefix=f"new/{text}"))


@position("sort order of a v3 program", TEXTS, UnknownColumn, s3_only=True)
def v3_sort_order(world: World, text: str) -> None:
    insert_and_merge(program(world, sort_order=[text]))


@position("partition function of a v3 program", TEXTS, only(
    InvalidPartitionValue, "traversal", "network", "internal"
), s3_only=True)  # fmt: skip
def v3_partition(world: World, text: str) -> None:
    insert_and_merge(program(world, partition_function=lambda row: text))


@position("insert query of a v3 program", QUERIES, InvalidQuery, rows="_rows", s3_only=True)
def v3_insert_query(world: World, text: str) -> None:
    insert_and_merge(program(world, custom_insert_query=text))


@position("rewrite query of a v3 program", QUERIES, InvalidQuery, rows="_rows", s3_only=True)
def v3_rewrite_query(world: World, text: str) -> None:
    ice = program(world)
    ice.insert([{"a": 1, "p": "x", "s": "one"}])
    world.mark()
    ice.rewrite_partition("p=x", text)


@position("merge query of a v3 program", QUERIES, InvalidQuery, rows="source_files", s3_only=True)
def v3_merge_query(world: World, text: str) -> None:
    ice = program(world)
    for number in range(2):
        ice.insert([{"a": number, "p": "x", "s": "one"}])
    world.mark()
    ice.custom_merge_query = text
    ice.merge()


@position("column of a v3 program", TEXTS, only(InvalidBatch, "zero"), s3_only=True)
def v3_column(world: World, text: str) -> None:
    ice = program(world)
    ice.insert([{"a": 1, "p": "x", text: "value"}])
    assert text in IceLogIO("reader").read_at_max_time(ice.data_s3c, 2**43)[0].columns()


# ---------------------------------------------------------------------------------------------- the matrix

#: The classes that say something else to an object store than to a folder.
OVER_HTTP = ("single quote", "traversal", "file", "newline", "glob", "internal", "network")


CELLS = [
    pytest.param(kind, name, attack, id=f"{name}-{attack}-{kind}", marks=marks)
    for kind, attacks, marks in (("local", CLASSES, ()), ("s3", OVER_HTTP, pytest.mark.s3))
    for name, cell in POSITIONS.items()
    for attack in (CLASSES if cell.s3_only and kind == "s3" else attacks)
    if kind == "s3" or not cell.s3_only
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "lake"
    make_tables(Place("local", str(folder)))
    return folder


@pytest.fixture
def world(
    kind: str, tables: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    place: Place = request.getfixturevalue("s3" if kind == "s3" else "local")
    if kind == "s3":
        make_tables(place)
    else:
        shutil.copytree(tables, place.uri)
    with watching(tmp_path / "files") as canary:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        monkeypatch.chdir(canary.folder)
        yield World(place, canary)


@pytest.mark.sampled(cases=120)
@pytest.mark.parametrize(("kind", "name", "attack"), CELLS)
def test_each_cell_is_refused_or_data(world: World, name: str, attack: str) -> None:
    cell = POSITIONS[name]
    text = world.text(cell.payloads, attack, rows=cell.rows)
    refused_with: tuple[type[IceDBError], ...] = tuple(filter(None, [cell.refused.get(attack)]))
    if refused_with and attack == "zero":
        refused_with += (InvalidOption, InvalidURI)  # arguments are refused before their meaning is looked at
    if not refused_with:
        cell.run(world, text)
        assert {key.split("/")[0] for key in world.new_keys()} <= {"table", "new", "planted"}
    else:
        with pytest.raises(refused_with) as caught:
            cell.run(world, text)
        # A new place is asked first whether it honours create-only puts.
        assert [key for key in world.new_keys() if not key.endswith("/_claims/probe.json")] == []
        world.canary.check(caught.value)
    world.canary.check()


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("key", ["p=x/*", "*/*", "**/*", "p=[xy]/[0-9a-f]*", "p=?/*"])
def test_the_key_of_a_part_is_no_pattern(world: World, key: str) -> None:
    table = plant_log_file(world, key=key)
    with pytest.raises(MissingPart):
        table.query("SELECT * FROM t").fetchall()
    assert world.new_keys() == []


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("up", ["../neighbour/", "../../", "p=x/../../../neighbour/", "/", "./"])
def test_a_log_file_deletes_nothing_of_a_neighbour(world: World, up: str) -> None:
    """Its tombstones are old enough for cleanup, and their keys lead out of the table."""
    store = open_store(parse_location(world.beside("table").uri, world.options))
    keys = store.location.keys
    tombstone = {"p": f"{keys.data_prefix}{up}_data/p=x/0.parquet", "b": 1, "t": 1, "tmb": 2}
    lines = [{"v": "1", "t": 3, "sch": 1, "f": 2}, {"a": "BIGINT"}, tombstone]
    store.create(keys.log_file(3, merged=True, writer="foreign"), "\n".join(map(json.dumps, lines)).encode())
    world.mark()
    for verb in (lambda t: t.cleanup(grace_ms=0, allow_short_grace=True), lambda t: t.query("FROM t").fetchall()):
        with pytest.raises(CorruptLog, match="outside"):
            verb(world.open())
    assert world.new_keys() == []


def test_the_matrix_is_large() -> None:
    assert len(POSITIONS) >= 30
    assert len(CELLS) >= 600
