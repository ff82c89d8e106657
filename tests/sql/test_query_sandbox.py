"""No query writes. In a sandbox it reads only the table's snapshot, and nothing else of the machine or the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from icedb import Dedup, Table
from icedb.cli import app
from icedb.errors import InvalidOption, InvalidQuery, InvalidRequestError
from icedb.sql.connections import connect_reader, lock_reader

ROWS = [{"k": 0, "s": "a"}, {"k": 1, "s": "b"}]

# No query may do this, also outside a sandbox. {folder} is writable, {file} is readable.
WRITES = (
    "COPY t TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{folder}/out.csv'",
    "/* c */ EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "CALL enable_logging(storage = 'file', storage_path = '{folder}/out')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{folder}/out')",
    "SELECT * FROM \"Enable_Logging\"(storage = 'file', storage_path = '{folder}/out')",
    "FROM query('FROM enable_logging(storage = ''file'', storage_path = ''{folder}/out'')')",
    "FROM (PIVOT t ON s USING sum(k)), enable_logging(storage = 'file', storage_path = '{folder}/out')",
    "SELECT write_log('x')",
    "FROM enable_profiling()",
    "ATTACH '{folder}/out.db' AS other",
    "INSTALL spatial",
    "LOAD spatial",
    "SET threads = 1",
    "RESET threads",
    "PRAGMA threads = 1",
    "PRAGMA enable_profiling",
    "CREATE TABLE x AS SELECT 1; SELECT * FROM t",
    "CREATE TYPE e AS ENUM ('a'); SELECT * FROM t",
    "SELECT * FROM t; COPY t TO '{folder}/out.csv'",
    "SELECT 1; SELECT 2",
    "INSERT INTO t VALUES (1)",
    "PREPARE p AS SELECT 1",
    "CHECKPOINT",
    "CREATE SECRET s (TYPE s3)",
    "",
)
# Queries that only a sandbox rejects.
READS = (
    "FROM read_text('{file}')",
    "FROM \"read_text\"('{file}')",
    "FROM system.main.read_text('{file}')",
    "FROM read_csv('{file}')",
    "FROM read_blob('{file}')",
    "FROM read_json('{file}')",
    "FROM read_parquet('{file}')",
    "FROM glob('{folder}/*')",
    "FROM sniff_csv('{file}')",
    "FROM '{file}'",
    'FROM "{file}"',
    "SELECT (SELECT content FROM read_text('{file}'))",
    "SELECT * FROM t WHERE s IN (FROM read_text('{file}') SELECT content)",
    "WITH x AS (FROM read_text('{file}')) FROM x",
    "SELECT * FROM t, LATERAL (FROM glob('{folder}/*'))",
    "FROM t UNION ALL BY NAME FROM '{file}'",
    "FROM query('FROM read_text(''{file}'')')",
    "FROM query_table('{file}')",
    "FROM json_execute_serialized_sql('x')",
    "FROM parquet_metadata('{part}')",
    "FROM read_parquet('{part}')",
    "FROM duckdb_secrets()",
    "FROM duckdb_settings()",
    "FROM duckdb_views()",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT current_query()",
    "FROM information_schema.tables",
    "FROM sqlite_master",
    "FROM pg_catalog.pg_tables",
    "FROM local_rows",
    "FROM 's3://other/a.parquet'",
    "FROM 'https://127.0.0.1:1/a.parquet'",
    "SUMMARIZE '{file}'",
    "DESCRIBE '{file}'",
    "SHOW TABLES",
    "EXPLAIN ANALYZE FROM read_text('{file}')",
    "-- t\nFROM /* t */ read_text('{file}')",
    "FROM t AT (VERSION => 1)",
    "FROM t WHERE k = ?",
)


@pytest.fixture
def table(local: Any) -> Table:
    table = Table.create(local.uri, partition_by=["k % 2 AS odd"])
    table.insert(ROWS)
    return table


def written(sql: str, table: Table, folder: Path) -> str:
    file = folder / "secret.csv"
    file.write_text("a\n1\n")
    part = table.handle.part_paths.readable([table.snapshot().parts[0]])[0]
    return sql.format(folder=folder, file=file, part=part)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("sandbox", [False, True])
@pytest.mark.parametrize("sql", WRITES)
def test_no_query_does_more_than_read(table: Table, tmp_path: Path, sql: str, sandbox: bool) -> None:
    with pytest.raises((InvalidRequestError, duckdb.ParserException)):
        table.query(written(sql, table, tmp_path), sandbox=sandbox)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret.csv", "table"]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("sql", READS)
def test_a_sandboxed_query_reads_the_table_and_nothing_else(table: Table, tmp_path: Path, sql: str) -> None:
    local_rows = [1]
    assert local_rows
    with pytest.raises(InvalidQuery, match="sandbox"):
        table.query(written(sql, table, tmp_path), sandbox=True)


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "sql",
    [
        "FROM t SELECT k, s ORDER BY k",
        "WITH x AS (FROM t) SELECT k, s FROM x ORDER BY k;",
        "SELECT k, s FROM final ORDER BY ALL -- all of it",
        "SELECT a.k, b.s FROM t AS a JOIN final AS b USING (k) ORDER BY k",
        "SELECT k, s FROM t, range(1) AS r ORDER BY k",
    ],
)
def test_a_sandboxed_query_has_the_result_of_a_plain_query(place: Any, sql: str) -> None:
    table = Table.create(
        place.uri, partition_by=["k % 2 AS odd"], merging=Dedup(by=("k",)), storage_options=place.storage_options
    )
    table.insert(ROWS)
    expected = [(0, "a"), (1, "b")]
    assert table.query(sql).fetchall() == table.query(sql, sandbox=True).fetchall() == expected
    assert table.query(sql, where="odd = 1", sandbox=True).fetchall() == [(1, "b")]


@pytest.mark.sampled(days=3)
def test_the_connection_of_a_sandbox_opens_the_parts_alone(place: Any, tmp_path: Path) -> None:
    """The connection alone, without the check of the SQL, rejects also another object of the same table."""
    table = Table.create(place.uri, storage_options=place.storage_options)
    for row in ROWS:
        table.insert([row])
    one, other = (table.handle.part_paths.readable([p])[0] for p in table.snapshot().parts)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with connect_reader(table.handle.location) as con:
        lock_reader(con, [one])
        assert con.execute(f"SELECT count(*) FROM read_parquet('{one}')").fetchone() == (1,)
        for refused in (
            f"FROM read_parquet('{other}')",
            f"FROM read_parquet('{one}/../*.parquet')",
            f"FROM '{tmp_path}/secret.csv'",
            f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
            "INSTALL spatial",
            "SET enable_external_access = true",
            "SET allowed_directories = ['/']",
        ):
            with pytest.raises(duckdb.Error):
                con.execute(refused)


def test_a_query_without_a_sandbox_reads_files(table: Table, tmp_path: Path) -> None:
    sql = "SELECT s FROM t JOIN '{file}' AS f ON t.k = f.a"
    assert table.query(written(sql, table, tmp_path)).fetchall() == [("b",)]
    with pytest.raises(InvalidOption, match="enable_logging"):
        table.query("SELECT * FROM enable_logging()")


def test_the_command_queries_in_a_sandbox_unless_an_option_disables_it(table: Table, tmp_path: Path) -> None:
    sql = written("SELECT a FROM '{file}'", table, tmp_path)
    refused = CliRunner().invoke(app, ["query", table.uri, sql])
    assert refused.exit_code != 0
    assert "--no-sandbox" in " ".join(refused.output.split())
    answered = CliRunner().invoke(app, ["query", table.uri, sql, "--no-sandbox", "--format", "csv"])
    assert answered.stdout == "a\n1\n"
