"""Tables attached to DuckDB connections: names, cursors, threads, secrets and lifetimes."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from icedb import Table
from icedb.engines.duckdb import bucket_access
from icedb.engines.duckdb.attached_tables import attach, detach
from icedb.errors import InvalidOption, TableNotFound, UnknownColumn
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.rotating_keys import RotatingKeys, without_keys
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import by_days, created, failing, numbers, rows
from tests.support.waiting import wait_until

pytest_plugins = ["tests.support.tables.attached_tables", "tests.support.object_stores.rotating_keys"]


@pytest.mark.long
def test_attach_replaces_only_its_own_names(local: Place, con: DuckDBPyConnection) -> None:
    one, two = created(local), created(local.below("two"))
    one.insert([{"n": 1}])
    two.insert([{"n": 2}])
    attach(con, one, "Events", date_macro=None)
    attach(con, two, "events")
    assert numbers(con, "events") == numbers(con, "events()") == [2]
    name = 'it\'s "mine"; drop'
    attach(con, one, name)
    quoted = '"' + name.replace('"', '""') + '"'
    assert numbers(con, f"{quoted}()") == numbers(con, quoted) == [1]
    con.execute("CREATE TABLE own (n INT); CREATE VIEW seen AS SELECT 1; CREATE MACRO made() AS TABLE SELECT 1 AS n")
    for taken, kind in [("own", "table"), ("SEEN", "view"), ("made", "table macro"), ("range", "table function")]:
        with pytest.raises(InvalidOption, match=f"{taken}: there is a {kind} of this name"):
            attach(con, one, taken)
    with pytest.raises(InvalidOption, match="cannot be the name of both"):
        attach(con, one, "a", date_macro="A")
    with pytest.raises(InvalidOption, match="'' cannot be the name"):
        attach(con, one, "")
    detach(con, "events")
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM events")
    with pytest.raises(InvalidOption, match="events: no table is attached"):
        detach(con, "events")
    assert numbers(con, quoted) == [1]


@pytest.mark.long
def test_a_date_macro_of_another_table_is_not_replaced(local: Place, con: DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "one", date_macro="icedb")
    with pytest.raises(InvalidOption, match="icedb: the table attached as 'one' has a macro of this name"):
        attach(con, table, "two", date_macro="icedb")
    attach(con, table, "one").detach()
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM icedb()")
    attached = attach(con, table, "two", date_macro="icedb")
    with pytest.raises(UnknownColumn):
        attach(con, table, "two", date_macro="icedb", date_columns=["m"])
    assert numbers(con, "icedb()") == numbers(con, "two") == [*range(4)], "as it was"
    attach(con, table, "two")
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM icedb()")
    with pytest.raises(InvalidOption, match="it was detached or replaced"):
        attached.refresh()


@pytest.mark.long
def test_a_column_that_is_added_during_attach_is_not_a_conflict(
    local: Place, con: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    columns = iter(["later", "latest"])

    def add_column_after(handle: Handle) -> Snapshot:
        snapshot = take_snapshot(handle)
        table.insert([{"n": 2, next(columns): "x"}])
        return snapshot

    monkeypatch.setattr("icedb.engines.duckdb.attached_tables.take_snapshot", add_column_after)
    attached = attach(con, table, "events")
    attached.refresh()
    monkeypatch.undo()
    assert numbers(con, "events") == [1, 2, 2]
    assert set(con.sql("FROM events").columns) >= {"n", "later", "latest"}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_columns_and_parameters_may_have_any_name(local: Place, con: DuckDBPyConnection) -> None:
    table = created(local, partition_by=['"as_of" % 2 AS "we ""ird"', '"as_of"', "n % 2 AS filename"])
    table.insert(pa.table({"as_of": [1, 2], "n": [1, 2], 'a "b"': ["x", "y"], "select": [True, False]}))
    attach(con, table, "odd")
    assert rows(con, 'SELECT "as_of", "a ""b""", "select", "we ""ird", filename FROM odd ORDER BY n') == [
        (1, "x", True, 1, 1),
        (2, "y", False, 0, 0),
    ]
    assert numbers(con, 'odd("we ""ird" := 1, filename := 1)') == [1]
    assert numbers(con, "odd(filter := '\"as_of\" = 2')") == [2]


@pytest.mark.long
def test_cursors_and_threads_share_attached_tables(local: Place, con: DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "events")
    cursors = [con.cursor() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda cursor: [numbers(cursor, "events(parity := 1)") for _ in range(10)], cursors)
    assert list(results) == [[[1, 3]] * 10] * 4


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_an_attached_table_does_not_keep_its_connection_alive(local: Place, tmp_path: Path) -> None:
    table = by_days(local)
    con = duckdb.connect(tmp_path / "own.db")
    reference = weakref.ref(con)
    attached = attach(con, table, "events")
    del con
    gc.collect()
    assert reference() is None
    with pytest.raises(InvalidOption, match="the connection it was attached to is gone"):
        attached.refresh()
    attached.detach()
    closed = duckdb.connect()
    attached = attach(closed, table, "events")
    closed.close()
    attached.detach()


def test_attach_rejects_missing_tables(local: Place, con: DuckDBPyConnection) -> None:
    with pytest.raises(TableNotFound):
        attach(con, local.uri, "events")
    table = created(local)
    with pytest.raises(InvalidOption, match="the table is open already"):
        attach(con, table, "events", storage_options={"fsync": "false"})


# ------------------------------------------------------------------------------------------ secrets


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_each_table_has_a_secret_until_it_is_detached(s3: Place, keys: RotatingKeys, con: DuckDBPyConnection) -> None:
    keys.expires_in = timedelta(hours=1)
    one, two = created(s3), s3.below("two")
    one.insert([{"n": 1}])
    other = Table.create(two.uri, storage_options=without_keys(s3), credential_provider=keys)
    other.insert([{"n": 2}])
    attach(con, s3.uri, "one", storage_options=s3.storage_options)
    attach(con, two.uri, "two", storage_options=without_keys(s3), credential_provider=keys)
    assert numbers(con, "(FROM one UNION ALL FROM two)") == [1, 2]
    [(text,)] = rows(con, "SELECT string_agg(sql) FROM duckdb_views() WHERE NOT internal")
    assert keys.now["secret_access_key"] not in text
    scopes = "SELECT scope[1] FROM duckdb_secrets() ORDER BY 1"
    assert rows(con, scopes) == [(s3.uri,), (two.uri,)]
    detach(con, "two")
    assert rows(con, scopes) == [(s3.uri,)]
    assert numbers(con, "one") == [1]


@pytest.mark.s3
def test_renewed_keys_are_used_by_all_queries(
    s3: Place, keys: RotatingKeys, con: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_access, "LOOK_SECONDS", 0.05)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attached = attach(con, s3.uri, "events", storage_options=without_keys(s3), credential_provider=keys)
    key_id = "SELECT regexp_extract(secret_string, 'key_id=([^;]*)', 1) FROM duckdb_secrets()"
    for _ in range(2):
        keys.rotate()
        wait_until(lambda: rows(con, key_id) == [(keys.now["access_key_id"],)], "the secret is renewed")
        assert numbers(con, "events") == [1]
        assert con.sql("SELECT n FROM events()").fetchall() == [(1,)]
    attached.detach()
    issued = len(keys.issued)
    threading.Event().wait(0.2)
    assert len(keys.issued) <= issued + 1, "a detached table looks up no keys"


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_keys_that_expire_early_fail_one_statement(s3: Place, keys: RotatingKeys, con: DuckDBPyConnection) -> None:
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    for n in (1, 2):  # one part alone would be opened when a statement is bound
        table.insert([{"n": n}])
    attach(con, table, "events")
    keys.rotate()
    assert sorted(con.sql("SELECT n FROM events").fetchall()) == [(1,), (2,)], "a lazy relation is bound twice"
    keys.rotate()
    with pytest.raises(duckdb.HTTPException) as error:
        con.execute("SELECT n FROM events").fetchall()
    assert keys.now["secret_access_key"] not in str(error.value)
    assert numbers(con, "events") == [1, 2]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_pruning_reduces_requests(s3: Place, con: DuckDBPyConnection) -> None:
    table = created(s3, partition_by=["n % 8 AS bucket"])
    table.insert([{"n": n} for n in range(16)])
    attach(con, s3.uri, "events", storage_options=s3.storage_options)

    def requests(source: str) -> int:
        [(_, plan)] = rows(con, f"EXPLAIN ANALYZE SELECT sum(n) FROM {source}")
        return sum(int(n) for n in re.findall(r"#(?:HEAD|GET): (\d+)", plan))

    everything, one = requests("events"), requests("events(bucket := 3)")
    assert 0 < one * 8 <= everything
    assert requests("events WHERE bucket = 3") == one


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_denied_access_raises_when_the_query_is_bound(s3: Place, keys: RotatingKeys, con: DuckDBPyConnection) -> None:
    keys.expires_in = timedelta(hours=1)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    keys.rotate()  # the provider did not announce the end of this key
    message = failing(con, "SELECT n FROM events")
    assert "AccessDenied: " in message
    assert keys.now["secret_access_key"] not in message


AFTER_THE_END = {
    "an open transaction sees what was replaced": """
cur.begin(); cur.execute("FROM rr").fetchall(); attached = attach(con, table, "rr"); check(cur)
""",
    "a detachment is rolled back": """
con.begin(); detach(con, "rr"); con.rollback(); check(con)
""",
    "a cursor outlives the connection": """
del con; gc.collect(); check(cur)
""",
    "a cursor attaches and is deleted": """
detach(con, "rr"); attach(con.cursor(), table, "rr"); gc.collect(); check(con)
""",
    "queries run while it is replaced": """
def query():
    mine = con.cursor()
    for _ in range(40):
        try:
            assert mine.execute("SELECT count(*) FROM rr").fetchall() == [(3,)]
        except duckdb.Error:
            pass
threads = [threading.Thread(target=query) for _ in range(3)]
for t in threads: t.start()
for _ in range(20): attach(con, table, "rr")
for t in threads: t.join()
""",
}


@pytest.mark.process
@pytest.mark.sampled(cases=2, days=3)
@pytest.mark.parametrize("story", AFTER_THE_END)
def test_a_query_after_a_detach_raises_and_does_not_end_the_process(local: Place, story: str) -> None:
    table = Table.create(local.uri)
    table.insert([{"n": n} for n in range(3)])
    code = f"""
import gc, threading, duckdb
from icedb import Table
from icedb.engines.duckdb.attached_tables import attach, detach

table = Table.open({local.uri!r})
con = duckdb.connect()
cur = con.cursor()
attach(con, table, "rr")

def check(asker):
    try:
        rows = asker.execute("FROM rr").fetchall()
    except duckdb.Error as error:
        assert "detached or replaced" in str(error), error
    else:
        assert len(rows) == 3

{AFTER_THE_END[story]}
print("alive")
"""
    for _ in range(2):  # freed memory may still be valid in one run
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
