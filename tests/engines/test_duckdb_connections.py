"""Tables attached to DuckDB connections: names, cursors and threads, secrets, and what outlives what."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import weakref
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from icedb import Table
from icedb.engines.duckdb import bucket_access
from icedb.engines.duckdb.attached_tables import attach, detach
from icedb.errors import InvalidOption, MissingExtra, TableNotFound, UnknownColumn
from icedb.reader.snapshot import Snapshot, take_snapshot
from icedb.transaction.table_handle import Handle
from tests.support.object_stores.rotating_keys import Keys, without_keys
from tests.support.object_stores.stores import Place
from tests.support.tables.attached_tables import by_days, created, failing, numbers, rows

pytest_plugins = ["tests.support.tables.attached_tables", "tests.support.object_stores.rotating_keys"]


@pytest.mark.long
def test_names_are_replaced_when_they_are_ours_and_refused_when_not(
    local: Place, con: duckdb.DuckDBPyConnection
) -> None:
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
def test_a_date_macro_of_another_table_is_not_taken_away(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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
def test_a_column_that_comes_while_the_table_is_attached_is_no_conflict(
    local: Place, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(local)
    table.insert([{"n": 1}])
    columns = iter(["later", "latest"])

    def then_comes_a_column(handle: Handle) -> Snapshot:
        snapshot = take_snapshot(handle)
        table.insert([{"n": 2, next(columns): "x"}])
        return snapshot

    monkeypatch.setattr("icedb.engines.duckdb.attached_tables.take_snapshot", then_comes_a_column)
    attached = attach(con, table, "events")
    attached.refresh()
    monkeypatch.undo()
    assert numbers(con, "events") == [1, 2, 2]
    assert set(con.sql("FROM events").columns) >= {"n", "later", "latest"}


@pytest.mark.long
def test_odd_columns_and_parameters(local: Place, con: duckdb.DuckDBPyConnection) -> None:
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
def test_cursors_and_threads_share_what_is_attached(local: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = by_days(local)
    attach(con, table, "events")
    found: list[object] = []

    def ask(cursor: duckdb.DuckDBPyConnection) -> None:
        try:
            found.extend(numbers(cursor, "events(parity := 1)") for _ in range(10))
        except duckdb.Error as error:
            found.append(error)

    threads = [threading.Thread(target=ask, args=(con.cursor(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 3]] * 40


@pytest.mark.long
def test_an_attached_table_does_not_keep_its_connection_alive(local: Place, tmp_path: Path) -> None:
    table = by_days(local)
    con = duckdb.connect(tmp_path / "own.db")
    gone = weakref.ref(con)
    attached = attach(con, table, "events")
    del con
    gc.collect()
    assert gone() is None
    with pytest.raises(InvalidOption, match="the connection it was attached to is gone"):
        attached.refresh()
    attached.detach()
    closed = duckdb.connect()
    attached = attach(closed, table, "events")
    closed.close()
    attached.detach()


def test_what_is_not_there_is_told_when_it_is_attached(
    local: Place, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TableNotFound):
        attach(con, local.uri, "events")
    table = created(local)
    with pytest.raises(InvalidOption, match="the table is open already"):
        attach(con, table, "events", storage_options={"fsync": "false"})
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'icedb-dagster\[duckdb\]'"):
        attach(con, table, "events")


# ------------------------------------------------------------------------------------------ secrets


@pytest.mark.s3
def test_each_table_has_a_secret_of_its_own_which_goes_with_it(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
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
def test_keys_that_are_new_before_the_old_ones_end_are_used_by_all_queries(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_access, "LOOK_SECONDS", 0.05)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attached = attach(con, s3.uri, "events", storage_options=without_keys(s3), credential_provider=keys)
    key_id = "SELECT regexp_extract(secret_string, 'key_id=([^;]*)', 1) FROM duckdb_secrets()"
    for _ in range(2):
        keys.rotate()
        for _ in range(200):
            if rows(con, key_id) == [(keys.now["access_key_id"],)]:
                break
            threading.Event().wait(0.02)
        assert numbers(con, "events") == [1]
        assert con.sql("SELECT n FROM events()").fetchall() == [(1,)]
    attached.detach()
    issued = len(keys.issued)
    threading.Event().wait(0.2)
    assert len(keys.issued) <= issued + 1, "a detached table looks up no keys"


@pytest.mark.s3
def test_keys_that_ended_unseen_fail_one_statement_and_are_renewed_by_it(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
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


@pytest.mark.s3
def test_pruning_saves_requests(s3: Place, con: duckdb.DuckDBPyConnection) -> None:
    table = created(s3, partition_by=["n % 8 AS bucket"])
    table.insert([{"n": n} for n in range(16)])
    attach(con, s3.uri, "events", storage_options=s3.storage_options)

    def requests(source: str) -> int:
        [(_, plan)] = rows(con, f"EXPLAIN ANALYZE SELECT sum(n) FROM {source}")
        return sum(int(n) for n in re.findall(r"#(?:HEAD|GET): (\d+)", plan))

    everything, one = requests("events"), requests("events(bucket := 3)")
    assert 0 < one * 8 <= everything
    assert requests("events WHERE bucket = 3") == one


@pytest.mark.s3
def test_a_store_that_refuses_is_told_when_the_query_is_bound(
    s3: Place, keys: Keys, con: duckdb.DuckDBPyConnection
) -> None:
    keys.expires_in = timedelta(hours=1)
    table = Table.create(s3.uri, storage_options=without_keys(s3), credential_provider=keys)
    table.insert([{"n": 1}])
    attach(con, table, "events")
    keys.rotate()  # as nobody told that this key would end
    message = failing(con, "SELECT n FROM events")
    assert "AccessDenied: " in message
    assert keys.now["secret_access_key"] not in message


AFTER_THE_END = {
    "an open transaction sees what was replaced": """
cur.begin(); cur.execute("FROM rr").fetchall(); attached = attach(con, table, "rr"); told(cur)
""",
    "a detachment is rolled back": """
con.begin(); detach(con, "rr"); con.rollback(); told(con)
""",
    "a cursor outlives the connection": """
del con; gc.collect(); told(cur)
""",
    "a cursor attaches and is gone": """
detach(con, "rr"); attach(con.cursor(), table, "rr"); gc.collect(); told(con)
""",
    "many ask while it is replaced": """
def ask():
    mine = con.cursor()
    for _ in range(40):
        try:
            assert mine.execute("SELECT count(*) FROM rr").fetchall() == [(3,)]
        except duckdb.Error:
            pass
threads = [threading.Thread(target=ask) for _ in range(3)]
for t in threads: t.start()
for _ in range(20): attach(con, table, "rr")
for t in threads: t.join()
""",
}


@pytest.mark.process
@pytest.mark.sampled(cases=2)
@pytest.mark.parametrize("story", AFTER_THE_END)
def test_what_is_asked_after_its_end_is_an_error_and_not_the_end_of_the_process(local: Place, story: str) -> None:
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

def told(who):
    try:
        found = who.execute("FROM rr").fetchall()
    except duckdb.Error as error:
        assert "detached or replaced" in str(error), error
    else:
        assert len(found) == 3

{AFTER_THE_END[story]}
print("alive")
"""
    for _ in range(2):  # what was freed may still be there
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
