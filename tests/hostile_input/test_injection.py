"""The matrix of input position by attack class: each cell is rejected with one error, or its text is kept as data.

In each case no existing object or file is changed or deleted, nothing is written outside the tables, no file of the
host is read, and no address of the network is called. tests/sql/test_user_queries.py shows that the attacks are real.
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
from tests.support.attacks.attacks import CLASSES, EXPRESSIONS, QUERIES, TEXTS, TYPES, AttackedTables, make_tables
from tests.support.attacks.canary import watching
from tests.support.object_stores.stores import BUCKET, Place

ROWS = [(1, "x", "one"), (2, "y", "two")]
ROW = {"a": 1, "p": "x", "s": "one"}
#: Attack class -> the error that rejects it. Other classes are kept as data.
Refusals = Mapping[str, type[IceDBError]]


Run = Callable[[AttackedTables, str], object]


@dataclass(frozen=True)
class Position:
    """A place where a text of the attacker comes in. `run` fails unless a text that is not rejected is only data."""

    payloads: Mapping[str, str]
    run: Run
    refused: Refusals
    rows: str = ""
    #: The position exists in buckets only.
    s3_only: bool = False


POSITIONS: dict[str, Position] = {}


def position(
    name: str,
    payloads: Mapping[str, str],
    refused: Refusals | type[IceDBError],
    *,
    rows: str = "",
    s3_only: bool = False,
) -> Callable[[Run], Run]:
    refusals = dict.fromkeys(CLASSES, refused) if isinstance(refused, type) else refused

    def add(run: Run) -> Run:
        POSITIONS[name] = Position(payloads, run, refusals, rows, s3_only)
        return run

    return add


def only(error: type[IceDBError], *classes: str) -> Refusals:
    return dict.fromkeys(classes, error)


def all_but(error: type[IceDBError], *classes: str) -> Refusals:
    return {name: error for name in CLASSES if name not in classes}


def unless_boolean(error: type[IceDBError]) -> Refusals:
    """Return the refusals of a position that accepts the harmless boolean expressions."""
    return all_but(error, "newline", "glob", "internal")


# ---------------------------------------------------------------------------------------------- values


@position("string value", TEXTS, {})
def string_value(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "s": text}])
    assert sorted(world.rows()) == sorted([*ROWS, (3, "x", text)])
    world.table.merge(part_bytes_max=2**30)
    assert sorted(world.rows()) == sorted([*ROWS, (3, "x", text)])


@position("value in a struct, a list and a map", TEXTS, {})
def nested_value(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "n": {"k": [text]}}])
    assert world.table.query("SELECT n.k[1] FROM t WHERE a = 3").fetchall() == [(text,)]


@position("partition value", TEXTS, {})
def partition_value(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "p": text, "s": "three"}])
    assert sorted(world.rows()) == sorted([*ROWS, (3, text, "three")])
    [path] = {p.partition for p in world.table.snapshot().parts} - {"p=x", "p=y"}
    assert "/" not in path
    world.table.drop_partitions([path])
    assert world.rows() == ROWS


@position("the column _partition", TEXTS, all_but(
    InvalidPartitionValue, "single quote", "statement", "extension", "setting", "newline", "zero", "glob",
))  # fmt: skip
def partition_text(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "s": "three", "_partition": f"p={text}"}])
    assert ("three",) in world.table.query("SELECT s FROM t").fetchall()
    [path] = {p.partition for p in world.table.snapshot().parts} - {"p=x", "p=y"}
    assert "/" not in path


@position("column name", TEXTS, only(InvalidBatch, "zero"))
def column_name(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", text: "value"}])
    assert world.table.schema()[text] == "VARCHAR"
    assert world.table.query("SELECT COLUMNS(* EXCLUDE (a, p, s)) FROM t WHERE a = 3").fetchall() == [("value",)]
    world.table.merge(part_bytes_max=2**30)
    assert world.open().schema()[text] == "VARCHAR"


@position("field of a struct", TEXTS, only(InvalidBatch, "zero"))
def field_name(world: AttackedTables, text: str) -> None:
    world.table.insert([{"a": 3, "p": "x", "n": {text: 7}}])
    assert world.open().query("SELECT to_json(n) FROM t WHERE a = 3").fetchall() == [
        (json.dumps({text: 7}, separators=(",", ":"), ensure_ascii=False),)
    ]


@position("name of an application", TEXTS, only(InvalidOption, "newline", "zero"))
def application(world: AttackedTables, text: str) -> None:
    row = {"a": 3, "p": "x", "s": "three"}
    assert not world.table.insert([row], txn=(text, 7)).repeated
    assert world.open().insert([row], txn=(text, 7)).repeated
    assert len(world.rows()) == 3


position("sort column", TEXTS, UnknownColumn)(lambda world, text: world.table.alter(sort_by=[text]))


@position("sort column that is there", TEXTS, only(InvalidBatch, "zero"))
def sort_column_there(world: AttackedTables, text: str) -> None:
    table = world.create(sort_by=[text])
    world.mark()
    table.insert([{"a": 2, text: "b"}, {"a": 1, text: "a"}])
    table.merge(part_bytes_max=2**30)
    assert table.query("SELECT a FROM t").fetchall() == [(1,), (2,)]


position("column with a bloom filter", TEXTS, UnknownColumn)(
    lambda world, text: world.table.alter(bloom_filters=[text])
)


@position("column with a bloom filter that is there", TEXTS, only(InvalidBatch, "zero"))
def filtered_column_there(world: AttackedTables, text: str) -> None:
    table = world.create(bloom_filters=[text])
    world.mark()
    table.insert([{"a": 2, text: "b"}])
    assert table.query("SELECT a FROM t").fetchall() == [(2,)]


@position("required column", TEXTS, UnknownColumn)
def required_column(world: AttackedTables, text: str) -> None:
    world.create(required=[text], schema={"a": "BIGINT"}, schema_policy="declared")


# ---------------------------------------------------------------------------------------------- names


position("name of a pin", TEXTS, InvalidOption)(lambda world, text: world.table.pin(text))
position("name of a view", TEXTS, InvalidOption)(
    lambda world, text: world.table.create_view(text, "SELECT * FROM _rows")
)


#: Of a prefix in a bucket; the caller's own folders are the caller's.
NO_PREFIX = only(InvalidURI, "comment", "traversal", "newline", "zero", "glob", "network")


@position("address of a table", TEXTS, NO_PREFIX, s3_only=True)
def address(world: AttackedTables, text: str) -> None:
    table = world.create(f"new/{text}")
    table.insert([ROW])
    assert table.query("SELECT s FROM t").fetchall() == [("one",)]
    assert Table.open(table.uri, storage_options=world.options).merge().commit.key is None


@position("partition to drop", TEXTS, only(InvalidOption, "zero"))
def partition_to_drop(world: AttackedTables, text: str) -> None:
    assert world.table.drop_partitions([text, f"p={text}"], missing_ok=True).parts == ()


@position("partition to rewrite", TEXTS, InvalidOption)
def partition_to_rewrite(world: AttackedTables, text: str) -> None:
    world.table.rewrite_partition(f"p={text}", "SELECT * FROM _rows")


# ---------------------------------------------------------------------------------------------- SQL


@position("partition expression", EXPRESSIONS, unless_boolean(InvalidPartitionExpression))
def partition_expression(world: AttackedTables, text: str) -> None:
    table = world.create(partition_by=[f"{text} AS q"])
    table.insert([{"a": 1, "p": "x"}])
    assert [p.partition for p in table.snapshot().parts] == ["q=false"]


@position("predicate of a deletion", EXPRESSIONS, unless_boolean(InvalidOption))
def delete_predicate(world: AttackedTables, text: str) -> None:
    assert world.table.delete(text).matching_rows == 0


@position("predicate of a drop", EXPRESSIONS, unless_boolean(InvalidPartitionExpression))
def drop_predicate(world: AttackedTables, text: str) -> None:
    assert world.table.drop_partitions(text).parts == ()


@position("predicate of an overwrite", EXPRESSIONS, {
    **unless_boolean(InvalidPartitionExpression),
    **only(InvalidBatch, "newline", "glob", "internal"),  # the row is in none of its partitions
})  # fmt: skip
def overwrite_predicate(world: AttackedTables, text: str) -> None:
    world.table.overwrite([{"a": 3, "p": "x"}], partitions=text)


@position("predicate of a snapshot", EXPRESSIONS, unless_boolean(InvalidOption))
def snapshot_predicate(world: AttackedTables, text: str) -> None:
    assert world.table.query("SELECT * FROM t", where=text).fetchall() == []


position("insert query", QUERIES, InvalidQuery, rows="_rows")(lambda world, text: world.create(insert_query=text))
position("merge query", QUERIES, InvalidQuery, rows="source_files")(lambda world, text: world.create(merge_query=text))
position("query of a rewrite", QUERIES, InvalidQuery, rows="t")(
    lambda world, text: world.table.rewrite_partition("p=x", text)
)
position("query of a view", QUERIES, InvalidQuery, rows="_rows")(
    lambda world, text: world.table.create_view("view", text)
)
position("altered insert query", QUERIES, InvalidQuery, rows="_rows")(
    lambda world, text: world.table.alter(insert_query=text)
)
position("declared type", TYPES, InvalidOption)(lambda world, text: world.create(schema={"c": text}))
position("type of a path column", TYPES, InvalidOption)(lambda world, text: world.create(path_columns={"c": text}))
position("type of a repair", TYPES, InvalidOption)(lambda world, text: world.table.repair_types({"a": text}))


# ---------------------------------------------------------------------------------------------- stored by others


def plant_spec(world: AttackedTables, **fields: Any) -> Table:
    """Create a table with rows, and replace its `_table.json` as another program could."""
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


@position("stored partition expression", EXPRESSIONS, unless_boolean(CorruptLog))
def stored_partition_expression(world: AttackedTables, text: str) -> None:
    plant_spec(world, partition_by=[f"{text} AS q"]).insert([ROW])


@position("stored merge query", QUERIES, CorruptLog, rows="source_files")
def stored_merge_query(world: AttackedTables, text: str) -> None:
    plant_spec(world, merge_query=text).merge(part_bytes_max=2**30)


STORED: list[tuple[str, Mapping[str, str], type[IceDBError], str, Callable[[str], dict[str, Any]]]] = [
    ("insert query", QUERIES, CorruptLog, "_rows", lambda text: {"insert_query": text}),
    ("query of a view", QUERIES, CorruptLog, "_rows", lambda text: {"views": [{"name": "neighbour", "query": text}]}),
    ("name of a view", TEXTS, CorruptLog, "", lambda text: {"views": [{"name": text, "query": "SELECT * FROM _rows"}]}),
    ("sort column", TEXTS, UnknownColumn, "", lambda text: {"sort_by": [text]}),
    ("column with a bloom filter", TEXTS, UnknownColumn, "", lambda text: {"bloom_filters": [text]}),
    ("declared type", TYPES, CorruptLog, "", lambda text: {"columns": {"c": text}}),
    ("path column", TYPES, CorruptLog, "", lambda text: {"path_columns": {"c": text}}),
    ("compression", TEXTS, CorruptLog, "", lambda text: {"compression": text}),
    ("address of the log", TEXTS, IceDBError, "", lambda text: {"log_uri": text}),
]
for name, payloads, error, rows, fields in STORED:
    position(f"stored {name}", payloads, error, rows=rows)(
        lambda world, text, fields=fields: plant_spec(world, **fields(text)).insert([ROW])  # type: ignore[misc]
    )


def plant_log_file(world: AttackedTables, *, types: Mapping[str, str] | None = None, key: str | None = None) -> Table:
    """Add a log file to the table, as a hostile program could."""
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
def logged_type(world: AttackedTables, text: str) -> None:
    every_verb_refuses(plant_log_file(world, types={"c": text}))


@position("column in a log file", TEXTS, only(IceDBError, "zero"))
def logged_column(world: AttackedTables, text: str) -> None:
    table = plant_log_file(world, types={text: "VARCHAR"})
    assert len(table.query("SELECT * FROM t").fetchall()) == len(ROWS)
    assert table.schema()[text] == "VARCHAR"


@position("key of a part in a log file", TEXTS, IceDBError)
def logged_key(world: AttackedTables, text: str) -> None:
    table = plant_log_file(world, key=text)
    table.query("SELECT * FROM t").fetchall()


@position("key of a merging", TEXTS, only(InvalidBatch, "zero"))
def merging_key(world: AttackedTables, text: str) -> None:
    table = world.create(merging=Dedup(by=(text,)))
    world.mark()
    for key in (1, 1, 2):
        table.insert([{"a": 7, text: key}])
    table.merge(part_bytes_max=2**30)
    assert table.query("SELECT count(*), sum(a) FROM t").fetchall() == [(2, 14)]


# ---------------------------------------------------------------------------------------------- the facade


def program(world: AttackedTables, *, prefix: str = "new", **options: Any) -> IceDBv3:
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


position("host of a v3 program", TEXTS, only(InvalidOption, "zero"), s3_only=True)(
    lambda world, text: insert_and_merge(program(world, path_safe_hostname=text))
)
position("prefix of a v3 program", TEXTS, {**NO_PREFIX, **only(InvalidURI, "internal")}, s3_only=True)(
    lambda world, text: insert_and_merge(program(world, prefix=f"new/{text}"))
)
position("sort order of a v3 program", TEXTS, UnknownColumn, s3_only=True)(
    lambda world, text: insert_and_merge(program(world, sort_order=[text]))
)


@position("partition function of a v3 program", TEXTS, only(
    InvalidPartitionValue, "traversal", "network", "internal"
), s3_only=True)  # fmt: skip
def v3_partition(world: AttackedTables, text: str) -> None:
    insert_and_merge(program(world, partition_function=lambda row: text))


position("insert query of a v3 program", QUERIES, InvalidQuery, rows="_rows", s3_only=True)(
    lambda world, text: insert_and_merge(program(world, custom_insert_query=text))
)


@position("rewrite query of a v3 program", QUERIES, InvalidQuery, rows="_rows", s3_only=True)
def v3_rewrite_query(world: AttackedTables, text: str) -> None:
    ice = program(world)
    ice.insert([{"a": 1, "p": "x", "s": "one"}])
    world.mark()
    ice.rewrite_partition("p=x", text)


@position("merge query of a v3 program", QUERIES, InvalidQuery, rows="source_files", s3_only=True)
def v3_merge_query(world: AttackedTables, text: str) -> None:
    ice = program(world)
    for number in range(2):
        ice.insert([{"a": number, "p": "x", "s": "one"}])
    world.mark()
    ice.custom_merge_query = text
    ice.merge()


@position("column of a v3 program", TEXTS, only(InvalidBatch, "zero"), s3_only=True)
def v3_column(world: AttackedTables, text: str) -> None:
    ice = program(world)
    ice.insert([{"a": 1, "p": "x", text: "value"}])
    assert text in IceLogIO("reader").read_at_max_time(ice.data_s3c, 2**43)[0].columns()


# ---------------------------------------------------------------------------------------------- the matrix

#: The classes with another meaning in an object store than in a folder.
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
) -> Iterator[AttackedTables]:
    place: Place = request.getfixturevalue("s3" if kind == "s3" else "local")
    if kind == "s3":
        make_tables(place)
    else:
        shutil.copytree(tables, place.uri)
    with watching(tmp_path / "files") as canary:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        monkeypatch.chdir(canary.folder)
        yield AttackedTables(place, canary)


@pytest.mark.sampled(cases=60)
@pytest.mark.parametrize(("kind", "name", "attack"), CELLS)
def test_each_cell_is_rejected_or_data(world: AttackedTables, name: str, attack: str) -> None:
    cell = POSITIONS[name]
    text = world.text(cell.payloads, attack, rows=cell.rows)
    refused_with: tuple[type[IceDBError], ...] = tuple(filter(None, [cell.refused.get(attack)]))
    if refused_with and attack == "zero":
        refused_with += (InvalidOption, InvalidURI)  # arguments are checked before their meaning
    if not refused_with:
        cell.run(world, text)
        assert {key.split("/")[0] for key in world.new_keys()} <= {"table", "new", "planted"}
    else:
        with pytest.raises(refused_with) as caught:
            cell.run(world, text)
        # The probe tests whether a new store rejects overwrites.
        assert [key for key in world.new_keys() if not key.endswith("/_claims/probe.json")] == []
        world.canary.check(caught.value)
    world.canary.check()


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("key", ["p=x/*", "*/*", "**/*", "p=[xy]/[0-9a-f]*", "p=?/*"])
def test_the_key_of_a_part_is_not_a_pattern(world: AttackedTables, key: str) -> None:
    table = plant_log_file(world, key=key)
    with pytest.raises(MissingPart):
        table.query("SELECT * FROM t").fetchall()
    assert world.new_keys() == []


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.parametrize("up", ["../neighbour/", "../../", "p=x/../../../neighbour/", "/", "./"])
def test_a_log_file_deletes_nothing_of_a_neighbour(world: AttackedTables, up: str) -> None:
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
