"""SQL from configuration or from users of the caller: no predicate or expression reads a file, the environment, a
setting or the catalog, in any position. A predicate is true or false in each of them: `icedb.sql.predicates`.

tests/hostile_input/test_injection.py has texts that break out of a position. Here each text is one expression.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

import icedb.engines.duckdb.attached_tables as duckdb_reader
from icedb import Table
from icedb.engines import arrow, chdb, datafusion, pandas, polars
from icedb.errors import InvalidRequestError
from icedb_dagster.io.inputs import Rows, load
from icedb_dagster.maintenance.time_to_live import expired
from tests.support.attacks.canary import Canary, watching

#: Conditions. {file} contains the canary's secret, and HOME is set.
EXPRESSIONS = (
    "(SELECT count(*) FROM read_text('{file}')) > 0",
    "(SELECT count(*) FROM read_blob('{file}')) > 0",
    "(SELECT count(*) FROM read_csv('{file}')) > 0",
    "(SELECT count(*) FROM '{file}') > 0",
    "(SELECT content FROM read_text('{file}')) LIKE '%canary%'",
    "EXISTS (FROM read_text('{file}'))",
    "p IN (FROM read_text('{file}') SELECT content)",
    "p = ANY (SELECT content FROM read_text('{file}'))",
    "p = (WITH x AS (FROM read_text('{file}')) SELECT content FROM x)",
    "p = (WITH x AS (COPY (SELECT 1) TO '{folder}/new.csv') SELECT 1)",
    "p = (FROM query('FROM read_text(''{file}'')') SELECT content)",
    "p = (FROM glob('{folder}/*') SELECT file)",
    "p = ARRAY(SELECT content FROM read_text('{file}'))[1]",
    "list_contains(ARRAY(SELECT content FROM read_text('{file}')), p)",
    "list_filter(['a'], x -> x = (SELECT content FROM read_text('{file}')))[1] = 'a'",
    "CASE WHEN p = 'x' THEN (SELECT true FROM read_text('{file}')) ELSE false END",
    "read_text('{file}') IS NOT NULL",
    "read_blob('{file}') IS NOT NULL",
    "p = 'x' OR parquet_metadata('{file}') IS NOT NULL",
    "getenv('HOME') <> ''",
    "\"getenv\"('HOME') <> ''",
    "main.getenv('HOME') <> ''",
    "system.main.getenv('HOME') <> ''",
    "p = concat(getenv('HOME'))",
    "current_setting('temp_directory') <> ''",
    "getvariable('x') IS NULL",
    "nextval('s') > 0",
    "write_log('x') IS NULL",
    "current_query() <> ''",
    "current_database() <> ''",
    "json_execute_serialized_sql('x') IS NULL",
    "which_secret('{file}', 's3') IS NULL",
    "a_macro(p)",
    "p = 'x' UNION SELECT content FROM read_text('{file}')",
    "p = 'x' LIMIT (SELECT 1 FROM read_text('{file}'))",
    "true; COPY (SELECT 1) TO '{folder}/new.csv'",
    "count(*) OVER () > 0",
    "p = ?",
    "p = $1",
    "COLUMNS('p') = 'x'",
)

#: Values that are neither true nor false.
NO_CONDITIONS = ("42", "2026-11-21", "p AND 7", "NOT 0", "NULL")
ROW = {"a": 1, "p": "x"}
Run = Callable[[Table, str], object]


def of_input(type_: Any) -> Run:
    return lambda table, text: load(Rows.of(table.snapshot(), None, {"where": text}), type_)


@cache
def attached(uri: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE MACRO a_macro(x) AS true")
    duckdb_reader.attach(con, uri, "events")
    return con


def filtered(table: Table, text: str) -> object:
    try:
        return attached(table.uri).execute("SELECT * FROM events(filter := $1)", [text]).fetchall()
    except duckdb.InvalidInputException as error:  # DuckDB wraps the error of a Python function
        raise InvalidRequestError(str(error)) from None


def created(**settings: str) -> Run:
    """Return a call that creates a table, and inserts and merges rows: some texts are rejected only then."""

    def run(table: Table, text: str) -> None:
        options = {name: sql.format(text) for name, sql in settings.items()}
        new = Table.create(
            f"{table.uri}_{uuid4().hex}", **{n: [v] if n == "partition_by" else v for n, v in options.items()}
        )
        for number in range(2):
            new.insert([{"a": number, "p": "x"}])
        new.merge(part_bytes_max=2**30)

    return run


def registered(table: Table, text: str) -> object:
    from datafusion import SessionContext

    return datafusion.register(SessionContext(), "events", table.snapshot(), text)


POSITIONS: dict[str, Run] = {
    "Table.query(where)": lambda t, x: t.query("SELECT * FROM t", where=x).fetchall(),
    "Snapshot.query(where)": lambda t, x: t.snapshot().query("SELECT * FROM t", where=x).fetchall(),
    "Changes.query(where)": lambda t, x: t.changes().query("SELECT * FROM t", where=x).fetchall(),
    "Table.query(where), sandbox": lambda t, x: t.query("SELECT * FROM t", where=x, sandbox=True).fetchall(),
    "Snapshot.to_arrow(where)": lambda t, x: t.snapshot().to_arrow(where=x),
    "Snapshot.files": lambda t, x: t.snapshot().files(x),
    "Snapshot.partitions": lambda t, x: t.snapshot().partitions(x),
    "Snapshot.in_partitions": lambda t, x: t.snapshot().in_partitions(x),
    "Changes.in_partitions": lambda t, x: t.changes(t.snapshot().as_of_ms - 60_000).in_partitions(x),
    "Table.delete": lambda t, x: t.delete(x),
    "Table.delete, dry run": lambda t, x: t.delete(x, dry_run=True),
    "Table.drop_partitions": lambda t, x: t.drop_partitions(x),
    "Table.overwrite(partitions)": lambda t, x: t.overwrite([ROW], partitions=x),
    "Table.overwrite(partitions), dry run": lambda t, x: t.overwrite([ROW], partitions=x, dry_run=True),
    "Table.export_parquet(where)": lambda t, x: t.export_parquet(Path(t.uri + "_out"), where=x),
    "Table.create(partition_by)": created(partition_by="({}) AS q"),
    "Table.alter(partition_by)": lambda t, x: t.alter(partition_by=[f"({x}) AS q"]),
    "Table.create(insert_query)": created(insert_query="SELECT * FROM _rows WHERE {}"),
    "Table.create(merge_query)": created(merge_query="SELECT * FROM source_files WHERE {}"),
    "Table.create_view": lambda t, x: t.create_view("v", f"SELECT * FROM _rows WHERE {x}"),
    "Table.rewrite_partition": lambda t, x: t.rewrite_partition("p=x", f"SELECT * FROM _rows WHERE {x}"),
    "Table.query, sandbox": lambda t, x: t.query(f"SELECT * FROM t WHERE {x}", sandbox=True).fetchall(),
    "readers.arrow.dataset": lambda t, x: arrow.dataset(t.snapshot(), x),
    "readers.arrow.record_batches": lambda t, x: arrow.record_batches(t.snapshot(), where=x).read_all(),
    "readers.pandas": lambda t, x: pandas.read(t.snapshot(), where=x),
    "readers.polars": lambda t, x: polars.scan(t.snapshot(), x),
    "readers.datafusion": registered,
    "readers.chdb": lambda t, x: chdb.query("SELECT 1", t.snapshot(), parts_where=x),
    "readers.duckdb filter": filtered,
    "AssetIn where, pyarrow.Table": of_input(pa.Table),
    "AssetIn where, list": of_input(list),
    "AssetIn where, pyarrow.Dataset": of_input(pa.dataset.Dataset),
    "time to live by a function": lambda t, x: t.drop_partitions(
        expired(lambda *_: x, t, datetime.now().astimezone(), keep_days=0)[0]
    ),
}
#: Positions of whole queries.
QUERIES = ("Table.create(insert_query)", "Table.create(merge_query)", "Table.create_view", "Table.rewrite_partition",
           "Table.query, sandbox")  # fmt: skip
HARMLESS_IN_QUERIES = ("COLUMNS('p') = 'x'",)
#: Positions of predicates over the rows or partitions of an existing table.
PREDICATES = [p for p in POSITIONS if p not in QUERIES and "create" not in p and "alter" not in p]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    with watching(tmp_path_factory.mktemp("host") / "files") as canary:
        yield canary


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    table = Table.create(tmp_path_factory.mktemp("lake") / "events", partition_by=["p"])
    for p in ("x", "y"):
        table.insert([{"a": 1, "p": p}])
    yield table
    attached(table.uri).close()
    attached.cache_clear()


@pytest.mark.sampled(cases=6)
@pytest.mark.parametrize("position", POSITIONS)
def test_an_expression_that_reads_more_than_its_row_is_rejected(table: Table, canary: Canary, position: str) -> None:
    assert os.environ["HOME"]
    before = sorted(p.key for p in table.snapshot().parts), table.spec
    refusals = (
        (InvalidRequestError, duckdb.ProgrammingError) if position == "Table.query, sandbox" else InvalidRequestError
    )
    for expression in EXPRESSIONS:
        if position in QUERIES and expression in HARMLESS_IN_QUERIES:
            continue
        text = expression.format(file=canary.csv, folder=canary.folder)
        with pytest.raises(refusals) as refused:
            POSITIONS[position](table, text)
        canary.check(refused.value)
        message = str(refused.value).replace(str(canary.folder), "").replace(table.uri, "")
        assert os.environ["HOME"] not in message
    canary.check()
    assert (sorted(p.key for p in table.snapshot().parts), table.spec) == before


@pytest.mark.sampled(cases=10)
@pytest.mark.parametrize("position", PREDICATES)
def test_a_predicate_that_is_neither_true_nor_false_is_rejected(table: Table, position: str) -> None:
    before = table.snapshot().id
    for text in NO_CONDITIONS:
        with pytest.raises(InvalidRequestError, match=r"neither true nor false|does not fit"):
            POSITIONS[position](table, text)
    assert table.snapshot().id == before


@pytest.mark.sampled(cases=12)
@pytest.mark.parametrize("position", [p for p in POSITIONS if "create" not in p and "alter" not in p])
def test_a_condition_over_the_row_is_accepted(tmp_path: Path, position: str) -> None:
    """Otherwise the other expressions could be rejected for another reason."""
    table = Table.create(tmp_path / "events", partition_by=["p"])
    for p in ("x", "y"):
        table.insert([{"a": 1, "p": p}])
    POSITIONS[position](table, "p = 'x'" if "overwrite" in position else "p = 'y' AND p <> 'z'")
    attached(table.uri).close()
    attached.cache_clear()
