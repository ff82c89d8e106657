"""The SQL of docs/format.md in plain DuckDB, and Node.js without packages, read the same rows as the library.

Readers, examples and faults are in tests/support/site/without_us.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import duckdb
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from icedb import Table
from icedb.errors import SnapshotExpired
from icedb.testing import ClockedStore, create_table
from tests.pages.test_format_page import STEPS, steps
from tests.promises.test_state_machine import TableMachine, _settings
from tests.support.make_example_table import FOLDER, put
from tests.support.object_stores.stores import Place
from tests.support.processes import free_port, serving
from tests.support.programs.v3_program import V3Program
from tests.support.site.pages import ROOT, blocks
from tests.support.site.without_us import (
    LENIENT,
    NODE_FAULTS,
    SCRIPT,
    SQL_FAULTS,
    WORLDS,
    LibraryReader,
    Live,
    NodeReader,
    ReaderFault,
    Refused,
    SqlReader,
    answer,
    environment,
    node,
    sql_block,
)
from tests.support.tables.v3_api import now_ms
from tests.v3.test_adoption import SCHEMA, opened, rising, rows

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def sql() -> SqlReader:
    return SqlReader()


@pytest.fixture(scope="module")
def javascript() -> Iterator[NodeReader]:
    with NodeReader() as reader:
        yield reader


Readers = tuple[SqlReader, NodeReader]


@pytest.fixture
def readers(shared_place: Place) -> Iterator[Readers]:
    """Both, with the rights to the place."""
    options = shared_place.storage_options
    with NodeReader(storage_options=options) as javascript:
        yield SqlReader(storage_options=options), javascript


# ------------------------------------------------------------------------------------------------ rule by rule


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("name", WORLDS)
def test_both_readers_follow_each_rule(name: str, sql: SqlReader, javascript: NodeReader, tmp_path: Path) -> None:
    root = WORLDS[name].put(tmp_path / "t")
    for at in WORLDS[name].moments:
        expected = answer(LibraryReader(), root, at)
        assert answer(javascript, root, at) == expected
        assert answer(sql, root, at) == ("refused" if name in LENIENT else expected)


def test_the_worlds_have_answers_and_rejections(tmp_path: Path) -> None:
    answers = [answer(LibraryReader(), world.put(tmp_path / str(n))) for n, world in enumerate(WORLDS.values())]
    assert answers.count("refused") >= 10
    assert sum(len(parts) > 0 for parts in answers if parts != "refused") >= 12


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", SQL_FAULTS, ids=lambda f: f"{f.world}: {f.old}")
def test_a_fault_in_the_sql_is_detected(fault: ReaderFault, tmp_path: Path) -> None:
    macro = sql_block("macro")
    assert fault.old in macro
    assert is_found_out(SqlReader(macro.replace(fault.old, fault.new)), fault, tmp_path)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("fault", NODE_FAULTS, ids=lambda f: f"{f.world}: {f.old}")
def test_a_fault_in_the_script_is_detected(fault: ReaderFault, javascript: NodeReader, tmp_path: Path) -> None:
    text = SCRIPT.read_text()
    assert text.count(fault.old) == 1
    (tmp_path / "faulty.mjs").write_text(text.replace(fault.old, fault.new))
    assert is_found_out(javascript.by(tmp_path / "faulty.mjs"), fault, tmp_path)


def is_found_out(reader: SqlReader | NodeReader, fault: ReaderFault, folder: Path) -> bool:
    world = WORLDS[fault.world]
    root = world.put(folder / "t")
    return any(answer(reader, root, at) != answer(LibraryReader(), root, at) for at in world.moments)


@pytest.mark.sampled(days=3)
def test_errors_name_the_problem_and_the_object(sql: SqlReader, javascript: NodeReader, tmp_path: Path) -> None:
    for name, in_sql, in_javascript in [
        ("a torn listing", "torn; ask again", "were torn"),
        ("two log files of one epoch", "one epoch", r"'_log/\d+_w\S+' and '_log/\d+_w\S+' are of one epoch"),
        ("another version", r"version: \d+_v-2", r"'_log/\d+_v-2\S+' cannot be read: it has version 2"),
        ("fewer lines than counted", r"cut, .*: \d+_w-1", r"'_log/\d+_w-1\S+' cannot be read: its last lines are cut"),
        ("a part outside of the table", "is not of this table: .*_others/a", "does not name an object below '_data/'"),
        ("a line that is cut", "Malformed JSON", r"'_log/\d+_w-1\S+' cannot be read: a line of it is cut"),
    ]:
        root = WORLDS[name].put(tmp_path / name)
        for reader, message in ((sql, in_sql), (javascript, in_javascript)):
            with pytest.raises(Refused, match=message):
                reader.live(root)
    root, [expired, *_] = str(tmp_path / "expired"), WORLDS["expired"].moments[1:]
    WORLDS["expired"].put(tmp_path / "expired")
    for reader in (sql, javascript):
        with pytest.raises(Refused, match=r"expired; ask for \d{13} or later"):
            reader.live(root, expired)
        with pytest.raises(Refused, match=r"no-such: (no log file is there|there is no table)"):
            reader.live(str(tmp_path / "no-such"))


def test_the_script_rejects_a_foreign_file_among_log_files(javascript: NodeReader, tmp_path: Path) -> None:
    root = WORLDS["appends"].put(tmp_path / "t")
    (tmp_path / "t/_log/0000000000001_x.jsonl#3").write_text("a put that never finished")
    assert answer(javascript, root) == answer(LibraryReader(), root) != "refused"
    (tmp_path / "t/_log/notes.txt").write_text("")
    with pytest.raises(Refused, match=r"'_log/notes\.txt' lies among the log files"):
        javascript.live(root)
    assert answer(LibraryReader(), root) == "refused"


def test_the_script_lists_again_after_a_torn_listing(javascript: NodeReader, tmp_path: Path) -> None:
    world = WORLDS["epochs in force beside the head's"]
    root = world.put(tmp_path / "t")
    expected = LibraryReader().live(root)
    [first] = (tmp_path / "t/_log").glob("*.e1.jsonl")
    body = first.read_bytes()
    first.unlink()
    timer = threading.Timer(0.2, first.write_bytes, [body])
    timer.start()
    assert javascript.live(root) == expected
    timer.join()


# ------------------------------------------------------------------------------------------------ real tables


def agree(readers: Readers, table: Table, *, times: int) -> None:
    """Compare the parts now and at the last times of a change. At expired times, all readers must reject."""
    snapshot, state = table.snapshot(), table.handle.read(fresh=True)
    log = table.handle.location.log.uri if table.handle.location.log else None
    expected = {p.path: (p.partition, p.bytes, p.rows) for p in snapshot.parts}
    changes = {t for m in state.parts.values() for t in (m.created_ms, m.tombstoned_ms) if t is not None}
    for reader in readers:
        assert reader.live(table.uri, log=log) == expected
    for at in [t for change in sorted(changes)[-times:] for t in (change - 1, change)]:
        past = parts_at(table, at)
        pinned = at < state.horizon_ms and past != "refused"  # SQL knows no pins
        assert [answer(r, table.uri, at, log=log) for r in readers] == ["refused" if pinned else past, past]
    if expected:
        result = readers[0].rows(table.uri, "p::VARCHAR, k, n", log=log)
        assert by_text(result) == by_text(table.query("SELECT p, k, n FROM t").fetchall())


def parts_at(table: Table, at: int) -> Live | str:
    try:
        return {p.path: (p.partition, p.bytes, p.rows) for p in table.snapshot(at).parts}
    except SnapshotExpired:
        return "refused"


def by_text(result: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, result))


@pytest.mark.sampled(cases=1, days=3)
def test_both_readers_agree_after_every_verb(shared_place: Place, readers: Readers) -> None:
    options = shared_place.storage_options
    table = Table.create(shared_place.uri, partition_by=["k AS p"], sort_by=["n"], storage_options=options)
    agreed = 0
    for n, _ in enumerate(islice(steps(table), STEPS // 2)):  # one round of all verbs
        if options is None or n % 3 == 0:
            agree(readers, table, times=1)
            agreed += 1
    assert agreed >= STEPS // 6
    assert table.handle.read(fresh=True).horizon_ms > 0, "cleanup advanced no horizon"
    assert answer(readers[1], table.uri, 1_700_000_000_000) == answer(readers[0], table.uri, 1) == "refused"


@pytest.mark.sampled(days=3)
def test_both_readers_agree_on_a_table_in_two_stores(tmp_path: Path, sql: SqlReader, javascript: NodeReader) -> None:
    table = Table.create(tmp_path / "data", partition_by=["k AS p"], sort_by=["n"], log_uri=tmp_path / "log")
    for n, _ in enumerate(islice(steps(table), STEPS // 2)):
        if n % 4 == 2:
            agree((sql, javascript), table, times=1)
    (tmp_path / "log").rename(tmp_path / "unmounted")
    with pytest.raises(Refused, match="there is no table: no such folder"):
        javascript.live(table.uri)
    (tmp_path / "log").mkdir()
    with pytest.raises(Refused, match=f"its log should be at '{tmp_path}/log', but nothing of it is there"):
        javascript.live(table.uri)
    other = Table.create(tmp_path / "other", log_uri=tmp_path / "log")
    with pytest.raises(Refused, match=f"that is of '{other.uri}'"):
        javascript.live(table.uri)


V3_STEPS: list[Callable[[V3Program], object]] = [
    lambda v3: v3.merge("u=a/d=2026-11-20"),
    lambda v3: v3.insert({"u=b/d=2026-11-21": rows(5), "u=%zz/raw": rows(6)}, SCHEMA),
    lambda v3: v3.drop("u=b/d=2026-11-21"),
]


@pytest.mark.sampled(cases=1, days=3)
def test_both_readers_agree_on_a_table_that_v3_programs_wrote(shared_place: Place, readers: Readers) -> None:
    v3 = V3Program.at(shared_place, rising(), host="v3-host.e7")
    v3.insert({"u=a/d=2026-11-20": rows(1, 2), "u=b/d=2026-11-21": rows(3)}, SCHEMA)
    v3.insert({"u=a/d=2026-11-20": rows(4)}, SCHEMA)
    library = LibraryReader(shared_place.storage_options)
    for step in V3_STEPS:
        assert {tuple(r.live(shared_place.uri)) for r in (library, *readers)} == {tuple(library.live(shared_place.uri))}
        step(v3)
    table = opened(shared_place)
    v3.now = now_ms
    for act in (
        lambda: table.insert([{"k": "x", "n": 10, "_partition": "u=a/d=2026-11-20"}]),
        lambda: v3.insert({"u=a/d=2026-11-20": rows(11)}, SCHEMA),
        table.merge,
        lambda: v3.insert({"u=a/d=2026-11-20": rows(12)}, SCHEMA),
        table.merge_log,
        lambda: table.cleanup(grace_ms=0, allow_short_grace=True),
        lambda: v3.insert({"u=c/d=2026-11-22": rows(13)}, SCHEMA),
    ):
        act()
        expected = library.live(shared_place.uri)
        assert len(expected) > 1
        assert [r.live(shared_place.uri) for r in readers] == [expected, expected]


class _WithoutUs(TableMachine):
    """Any sequence of verbs, at times of its own: both agree with the library on the objects, put into a folder."""

    folder: Path
    readers: Readers
    copies = count()

    def __init__(self) -> None:
        super().__init__()
        self.store = ClockedStore(self.clock, prefix="")
        self.table = create_table(self.store, self.clock, partition_by=["k"], sort_by=["n"])

    @invariant()
    def both_agree(self) -> None:
        root = self.folder / str(next(self.copies))
        objects = {k: o for k, o in self.store.objects.items() if not k.startswith("_data/")}
        put(root, {k: o.body for k, o in objects.items()}, {k: o.stored_ms for k, o in objects.items()})
        horizon_ms = self.table.handle.read(fresh=True).horizon_ms
        for at in [None, *(t for t, _ in self.history[-9:-8])]:
            try:
                expected: object = {f"{root}/{p.key}" for p in self.table.snapshot(at).parts}
            except SnapshotExpired:
                expected = "refused"
            in_sql, in_javascript = (answer(r, str(root), at) for r in self.readers)
            if at is not None and at < horizon_ms:  # pinned or not; pins that this clock made may be history now
                assert in_sql == "refused"
                assert in_javascript == "refused" or set(in_javascript) == expected
            else:
                assert set(in_sql) == set(in_javascript) == (set("refused") if expected == "refused" else expected)
        shutil.rmtree(root)


def run_machine(examples: int, steps: int, readers: Readers, folder: Path) -> None:
    machine = type("WithoutUs", (_WithoutUs,), {"readers": readers, "folder": folder})
    run_state_machine_as_test(machine, settings=settings(_settings(examples), stateful_step_count=steps))


@pytest.mark.sampled(days=3)
def test_both_readers_agree_on_random_histories(sql: SqlReader, javascript: NodeReader, tmp_path: Path) -> None:
    run_machine(2, 12, (sql, javascript), tmp_path)


@pytest.mark.slow(seconds=60)
def test_both_readers_agree_on_many_random_histories(sql: SqlReader, javascript: NodeReader, tmp_path: Path) -> None:
    run_machine(25, 20, (sql, javascript), tmp_path)


def test_both_readers_read_the_example_table(sql: SqlReader, javascript: NodeReader, tmp_path: Path) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())
    objects = {p.relative_to(FOLDER / "table").as_posix(): p.read_bytes() for p in (FOLDER / "table").rglob("*.*")}
    root = tmp_path / "t"
    put(root, objects, expected["stored_ms"])
    parts = {f"{root}/{p['key']}": (p["bytes"], p["rows"]) for p in expected["live_parts"]}
    for reader in (sql, javascript):
        assert {path: (size, rows) for path, (_, size, rows) in reader.live(str(root)).items()} == parts
    for snapshot in expected["snapshots"]:
        at = snapshot["as_of_ms"]
        live = "refused" if "expired" in snapshot else [f"{root}/{key}" for key in snapshot["live_parts"]]
        result = answer(javascript, str(root), at)
        assert (result if result == "refused" else list(result)) == live
        pinned = at in expected["pins"].values()
        result = answer(sql, str(root), at)
        assert (result if result == "refused" else list(result)) == ("refused" if pinned else live)


@pytest.mark.sampled(days=3)
def test_every_answer_is_complete_during_merges_and_cleanup(sql: SqlReader, local: Place) -> None:
    table = Table.create(local.uri, partition_by=["k AS p"], sort_by=["n"])
    table.insert([{"k": "1", "n": n} for n in range(10)])
    writing, committed = threading.Event(), [10]

    def write() -> None:
        for n in range(6):
            committed.append(committed[-1] + 1)  # from now on, an answer may contain it
            table.insert([{"k": str(n % 2), "n": n}])
            if n % 2:
                table.merge()
                table.merge_log()
                table.cleanup(grace_ms=0, allow_short_grace=True)
        writing.set()

    writer = threading.Thread(target=write)
    writer.start()
    answered = {"sql": 0, "node": 0}
    with NodeReader() as javascript:
        while not writing.is_set() or not all(answered.values()):
            for name, reader in (("node", javascript), ("sql", sql)):
                least = len(committed) - 1  # all but the newest were committed before the query
                try:
                    live = reader.live(table.uri)
                except Refused as error:
                    if name == "node" or not re.search("ask again|Cannot open file", str(error)):
                        raise
                    continue
                answered[name] += 1
                assert 9 + least <= sum(n or 0 for _, _, n in live.values()) <= 9 + len(committed)
    writer.join()


# ------------------------------------------------------------------------------------------------ rows, in SQL


@pytest.mark.sampled(days=3)
def test_rows_of_evolved_schemas_and_partitions_are_read(sql: SqlReader, local: Place) -> None:
    table = Table.create(local.uri, partition_by=["city", "d"])
    table.insert([{"city": c, "d": "2026-11-21", "n": n} for n, c in enumerate(["New York", "a/b", "50%", "東京", ""])])
    table.insert([{"city": None, "d": "2026-11-22", "n": 9, "later": 0.5}])
    result = sql.rows(local.uri, "city, d::VARCHAR, n, later")
    assert by_text(result) == by_text(table.query("SELECT city, d, n, later FROM t").fetchall())
    table.alter(partition_by=["d"])
    table.insert([{"city": "Rome", "d": "2026-11-23", "n": 10}])
    with pytest.raises(duckdb.BinderException, match="Hive partition mismatch"):
        sql.rows(local.uri, "n")
    result = partition_query(sql, "n, city, later, icedb_value(filename, 'd') AS of_path")
    assert by_text(result) == by_text(table.query("SELECT n, city, later, d FROM t").fetchall())


def test_a_data_column_may_have_the_name_of_a_partition_column(sql: SqlReader, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "env=prod" / "t", partition_by=["upper(shop) AS shop", "n % 2 AS odd"])
    table.insert([{"shop": "north", "n": 1}, {"shop": None, "n": 2}])
    warned_of = sql.rows(table.uri, "shop, env")
    assert by_text(warned_of) == by_text([("NORTH", "prod"), (None, "prod")])
    result = partition_query(sql, "shop, n, icedb_value(filename, 'odd')::BIGINT AS odd, icedb_value(filename, 'shop')")
    assert by_text(result) == by_text([("north", 1, 1, "NORTH"), (None, 2, 0, None)])
    assert sql.con.sql(f"SELECT partition FROM icedb_live('{table.uri}')").fetchall()[0] == ("shop=NORTH/odd=1",)


def partition_query(sql: SqlReader, columns: str) -> list[tuple[Any, ...]]:
    """Read the rows in the page's second way, from the variable that is set."""
    macro, select = sql_block("partition").split("\n\n")
    sql.con.execute(macro)
    assert "SELECT *, icedb_value(filename, 'd')::DATE AS d\n" in select
    return sql.con.sql(select.replace("*, icedb_value(filename, 'd')::DATE AS d", columns)).fetchall()


def test_a_table_without_live_parts_has_an_empty_list(sql: SqlReader, javascript: NodeReader, local: Place) -> None:
    table = Table.create(local.uri)
    with pytest.raises(Refused, match="no log file is there"):
        sql.live(local.uri)
    assert javascript.live(local.uri) == {}
    table.insert([{"n": 1}])
    table.drop_partitions("true")
    assert sql.live(local.uri) == javascript.live(local.uri) == {}
    with pytest.raises(duckdb.Error, match="read_parquet"):
        sql.rows(local.uri, "n")


# ------------------------------------------------------------------------------------------------ the command


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [node(), str(SCRIPT), *arguments], env=environment(env), cwd=ROOT, capture_output=True, text=True, timeout=240
    )


EXAMPLE = "docs/example-table/table"


def test_the_command_prints_parts_as_lines_and_as_json() -> None:
    done = command(EXAMPLE, "--where-partition", "d=2026-01-05")
    key = "_data/d=2026-01-05/8527a891e224136950ff32ca212b45bc.parquet"
    assert done.stdout == f"{ROOT / EXAMPLE}/{key}\t556\t6\td=2026-01-05\n"
    done = command(f"file://{ROOT}/{EXAMPLE}/", "--json", "--as-of", "1767620400000")
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed[0] == {
        "path": f"{ROOT / EXAMPLE}/{key}",
        "bytes": 556,
        "rows": 6,
        "partition": "d=2026-01-05",
        "values": {"d": "2026-01-05"},
    }
    assert len(printed) == 2


@pytest.mark.sampled(days=3)
def test_partitions_are_selected_by_their_values(local: Place) -> None:
    table = Table.create(local.uri, partition_by=["city"])
    table.insert([{"city": c, "n": 1} for c in ("50% = x/y", None, "", "東京")])
    for value in ("50% = x/y", "__HIVE_DEFAULT_PARTITION__", "", "東京"):
        [line] = command(local.uri, "--where-partition", f"city={value}", "--json").stdout.splitlines()
        assert json.loads(line)["values"] == {"city": None if value.startswith("__") else value}
    assert command(local.uri, "--where-partition", "city=Rome").stdout == ""


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one table"),
        (["a", "b"], "give one table"),
        ([EXAMPLE, "--as-of", "yesterday"], "--as-of takes unix milliseconds"),
        ([EXAMPLE, "--as-of", "1767608400001"], "has expired; ask for 1767610800000 or later"),
        ([EXAMPLE, "--where-partition", "shop=1"], "'shop=1' chooses nothing"),
        ([EXAMPLE, "--color"], "--color"),
        (["docs"], "there is no table"),
        (["s3://key:secret@bucket/t"], "a table can be at s3://bucket/prefix or in a folder"),
    ],
    ids=str,
)
def test_invalid_arguments_of_the_command_are_errors(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "secret" not in done.stderr
    assert "    at " not in done.stderr, "a stack trace was printed"


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_denied_requests_of_the_command_print_no_secret(s3: Place) -> None:
    Table.create(s3.uri, storage_options=s3.storage_options).insert([{"n": 1}])
    options = dict(s3.storage_options or {})
    assert len(command(s3.uri, **options).stdout.splitlines()) == 1
    closed = f"http://127.0.0.1:{free_port()}"
    wrong = options | {"AWS_SECRET_ACCESS_KEY": "S" * 40}
    for done, message in (
        (command(s3.uri, **wrong), "the store answered 403 (SignatureDoesNotMatch)"),
        (command("s3://no-such-bucket/t", **options), "(NoSuchBucket)"),
        (command(f"{s3.uri}-2", **options), "there is no table"),
        (command(s3.uri, AWS_ENDPOINT_URL=closed), "did not serve a request (ECONNREFUSED)"),
        (command(s3.uri, AWS_ENDPOINT_URL="localhost:1"), "AWS_ENDPOINT_URL must start with http:// or https://"),
    ):
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
        assert not any(o["AWS_SECRET_ACCESS_KEY"] in done.stderr for o in (options, wrong))


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_prefixes_with_odd_characters_are_signed_and_listed(s3: Place) -> None:
    options = s3.storage_options
    uri = f"{s3.uri}/a b+c&d'e=f%20(ü)!~"
    table = Table.create(uri, partition_by=["k AS p"], storage_options=options)
    table.insert([{"k": "x y/z&+%", "n": 1}, {"k": None, "n": 2}])
    with NodeReader(storage_options=options) as javascript:
        expected = LibraryReader(options).live(uri)
        assert len(expected) == 2
        assert javascript.live(uri) == SqlReader(storage_options=options).live(uri) == expected


class PagedBucket(BaseHTTPRequestHandler):
    """An S3 of two keys a page, over a folder, which answers each third request with 503."""

    folder: Path
    requested: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.requested.append(self.path)
        address = urlsplit(self.path)
        key = unquote(address.path).removeprefix("/bucket/")
        if len(self.requested) % 3 == 0:
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif not key:
            self._answer(200, self._page(parse_qs(address.query)).encode())
        elif (self.folder / key).is_file():
            self._answer(200, (self.folder / key).read_bytes())
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _page(self, query: dict[str, list[str]]) -> str:
        [prefix], [after] = query["prefix"], query.get("continuation-token", [""])
        keys = sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        matching = [k for k in keys if k.startswith(prefix) and k > after]
        page, rest = matching[:2], matching[2:]
        listed = "<Contents><Key>{}</Key><LastModified>2026-11-21T00:00:00Z</LastModified></Contents>"
        more = "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>"
        body = "".join(listed.format(escape(k)) for k in page) + (more.format(escape(page[-1])) if rest else "")
        return f"<ListBucketResult>{body}</ListBucketResult>"

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        """Prints nothing."""


@pytest.mark.sampled(days=3)
def test_long_listings_are_paged_and_503_is_retried(local: Place) -> None:
    table = Table.create(local.uri)
    for n in range(7):
        table.insert([{"n": n}])
    handler = type("Handler", (PagedBucket,), {"folder": Path(local.uri), "requested": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(server):
        done = command("s3://bucket", "--json", AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}/")
    assert done.stderr == ""
    paths = [json.loads(line)["path"] for line in done.stdout.splitlines()]
    assert paths == [f"s3://bucket/{p.key}" for p in table.snapshot().parts]
    assert len(paths) == 7
    assert sum("continuation-token" in path for path in handler.requested) >= 3


# ------------------------------------------------------------------------------------------------ the pages


@pytest.mark.sampled(days=3)
def test_the_page_on_reading_shows_the_output() -> None:
    page = (ROOT / "docs/reading.md").read_text()
    section = page.partition("\n## Read without this library\n")[2].partition("\n## ")[0]
    displayed = re.findall(
        r"^```(sql|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", section, flags=re.DOTALL | re.MULTILINE
    )
    reader, ran = SqlReader(), 0
    for language, text, output in displayed:
        if language == "sh":
            lines = text.replace("\\\n", " ").splitlines()
            for line in (line for line in lines if "s3://" not in line):
                words = line.split()
                assert words[:2] == ["node", "examples/readers/live_parts.mjs"]
                done = command(*words[2:])
                assert done.stdout.replace(f"{ROOT}/", "/checkout/") == output, done.stderr
                ran += 1
        elif "s3://" not in text:
            reader.con.execute(text.replace("'docs/", f"'{ROOT}/docs/"))
            if output:
                lines = [" | ".join(map(str, row)) for row in reader.con.fetchall()]
                assert "\n".join(lines) + "\n" == output
                ran += 1
    assert ran >= 2


def test_the_other_sql_of_the_pages_runs() -> None:
    reader, ran = SqlReader(), 0
    for page in ("docs/format.md", "docs/reading.md"):
        for block in blocks(ROOT / page, "sql"):
            setting, keyword, rest = block.partition("SET VARIABLE")
            if "s3://lake/clicks" in rest:
                assert "SELECT" not in setting, "only access to a bucket is left out"
                reader.con.execute(
                    (keyword + rest)
                    .replace("s3://lake/clicks", f"{ROOT}/{EXAMPLE}")
                    .replace("d=2026-11-21", "d=2026-01-05")
                )
                ran += 1
    assert ran == 2
