"""Queries of users: an accepted query keeps its meaning, and a query that reads more than its rows is rejected."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icedb.errors import InvalidQuery
from icedb.sql.connections import connect_sandbox, load_httpfs
from icedb.sql.expressions import parse_expression
from icedb.sql.user_queries import QUERY_CHARS_MAX, TABLE_FUNCTIONS, UserQuery, check_output, check_query
from tests.support.attacks.canary import Canary, watching

ROWS = """
    CREATE TABLE _rows AS SELECT * FROM (VALUES
        (1, 'x', 1.5::DOUBLE, [1, 2], {'p': 1, 'q': 'r'}, TIMESTAMP '2026-01-01 10:00:00', '{"k": [1, 2]}'::JSON),
        (2, 'y', 2.5, [3], {'p': 2, 'q': 's'}, TIMESTAMP '2026-01-02 10:00:00', '{"k": []}'),
        (2, 'source_files', NULL, [], NULL, NULL, NULL)
    ) AS v(a, b, c, l, s, ts, j)
"""


def check(text: str, *, also: tuple[str, ...] = (), v3: bool = False, relation: str = "_rows") -> UserQuery:
    return check_query(text, relation=relation, table="memory://t", what="insert_query", also=also, v3=v3)


def result_of(con: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[tuple[str, str]], list[tuple[object, ...]]]:
    """Return the names and types of the columns, and the rows."""
    described = [(str(name), str(type_)) for name, type_, *_ in con.execute(f"DESCRIBE {sql}").fetchall()]
    return described, con.execute(sql).fetchall()


@pytest.fixture
def rows() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect_sandbox() as con:
        con.execute(ROWS)
        yield con


FINE = """
    SELECT * FROM _rows
    FROM _rows
    TABLE _rows
    FROM _rows SELECT a, b
    SELECT a, sum(c) AS c FROM _rows GROUP BY ALL ORDER BY ALL
    SELECT _rows.a, r.b FROM _rows JOIN _rows AS r ON _rows.b = r.b
    SELECT a FROM "_rows" AS "odd ""name"" here" WHERE "odd ""name"" here".a > 1
    SELECT x, y FROM _rows AS r(x, y) ORDER BY y
    SELECT * FROM (SELECT a FROM _rows) AS "from"
    SELECT 'source_files' AS t, b = '_rows' AS u FROM _rows WHERE b <> 'read_csv(''x'')'
    SELECT a FROM _rows WHERE a = (SELECT max(a) FROM _rows)
    SELECT a FROM _rows WHERE EXISTS (FROM _rows AS i WHERE i.a < _rows.a)
    SELECT a, b IN (SELECT b FROM _rows) AS here FROM _rows
    WITH n AS (SELECT a + 1 AS a FROM _rows), m AS (FROM n) SELECT m.a FROM m JOIN n USING (a)
    WITH _rows AS (SELECT a FROM _rows) SELECT * FROM _rows
    WITH n AS MATERIALIZED (FROM _rows) FROM n
    WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 4) SELECT * FROM n
    SELECT * FROM (WITH n AS (FROM _rows) FROM n)
    SELECT a FROM _rows UNION ALL SELECT a + 10 FROM _rows
    (SELECT a FROM _rows) EXCEPT ALL (SELECT 1)
    SELECT a FROM _rows INTERSECT SELECT 2
    SELECT a, b FROM _rows UNION BY NAME SELECT b, 7 AS z FROM _rows
    SELECT DISTINCT a FROM _rows ORDER BY a
    SELECT DISTINCT ON (a) a, b FROM _rows ORDER BY a, b DESC
    SELECT a, b FROM _rows QUALIFY row_number() OVER (PARTITION BY a ORDER BY b) = 1
    SELECT sum(a) OVER w AS s FROM _rows WINDOW w AS (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
    SELECT lag(a, 1, 0) OVER (ORDER BY b) AS before, a FROM _rows
    SELECT count(*) AS n, count(DISTINCT a) FILTER (WHERE b <> 'x') AS m FROM _rows HAVING count(*) > 1
    SELECT a, count(*) AS n FROM _rows GROUP BY GROUPING SETS ((a), ()) ORDER BY n
    SELECT a, b, count(*) AS n FROM _rows GROUP BY CUBE (a, b) ORDER BY ALL
    SELECT list(b ORDER BY b DESC) AS l, string_agg(b, ';' ORDER BY b) AS t FROM _rows
    SELECT arg_max(b, a) AS b, any_value(c) AS c, max(ts) AS ts FROM _rows
    SELECT * EXCLUDE (l, s) REPLACE (a * 2 AS a) RENAME (b AS text) FROM _rows
    SELECT COLUMNS(x -> x IN ('a', 'b')) FROM _rows
    SELECT max(COLUMNS('a|b')) FROM _rows
    SELECT list_transform(l, lambda x: x + 1) AS m, [x * 2 FOR x IN l IF x > 1] AS n FROM _rows
    SELECT unnest(l) AS e, a FROM _rows
    SELECT a, e FROM _rows, unnest(l) AS u(e)
    SELECT a, e FROM _rows CROSS JOIN LATERAL (SELECT unnest(l) AS e)
    SELECT * FROM range(3) AS r(i), generate_series(1, 2) AS g(k)
    SELECT * FROM unnest([10, 20]) WITH ORDINALITY
    SELECT key, value FROM _rows, json_each(j) ORDER BY ALL
    SELECT fullkey FROM _rows, json_tree(_rows.j) ORDER BY ALL
    SELECT * FROM repeat('v', 2)
    VALUES (1, 'x'), (2, NULL)
    SELECT * FROM (VALUES (1, 'x')) AS v(i, t)
    SELECT * FROM (VALUES (1)), (VALUES (2)) AS w
    SELECT a FROM _rows WHERE (a, b) IN (VALUES (1, 'x'))
    SELECT s.p, s['q'] AS q, {'n': a, 'm': {'o': b}} AS nested, MAP {'k': a} AS m FROM _rows
    SELECT j->'k' AS k, j->>'$.k[0]' AS e FROM _rows
    SELECT l[1] AS f, l[1:1] AS g, l[-1] AS h, b[1:2] AS i FROM _rows
    SELECT a::VARCHAR AS t, TRY_CAST(b AS INTEGER) AS n, CAST(a AS DECIMAL(9, 2)) AS d FROM _rows
    SELECT s::STRUCT(p BIGINT, q TEXT) AS s, l::DOUBLE[] AS d, NULL::ENUM('x', 'it''s') AS e FROM _rows
    SELECT 1e3 AS d, 1.50 AS n, 1e-7 AS e, -1e15 AS f, 12345678901234567890123 AS h, 1e400 AS i, 0.1 AS z FROM _rows
    SELECT 9223372036854775808 AS a, -9223372036854775808 AS b, 340282366920938463463374607431768211455 AS c
    SELECT 'it''s' AS q, e'\\t\\'' AS e, $$dollar 'quoted'$$ AS d, '\\x00'::BLOB AS z, 'é\u2028\u00a0' AS u FROM _rows
    SELECT INTERVAL 3 DAY AS i, DATE '2026-01-01' AS d, TIMESTAMPTZ '2026-01-01 00:00:00+02' AS z
    SELECT ts AT TIME ZONE 'Asia/Tokyo' AS t, date_trunc('hour', ts) AS h, extract(year FROM ts) AS y FROM _rows
    SELECT CASE a WHEN 1 THEN 'one' ELSE b END AS c, CASE WHEN a > 1 THEN 1 END AS d, if(a > 1, 1, 2) AS e FROM _rows
    SELECT a BETWEEN 1 AND 2 AS w, a NOT IN (1, 3) AS x, b LIKE 'x%' ESCAPE '!' AS y, b ILIKE 'X' AS z FROM _rows
    SELECT b SIMILAR TO '[xy]' AS s, b GLOB 'x*' AS g, b ~ 'x' AS r, b IS NOT NULL AS n FROM _rows
    SELECT a IS DISTINCT FROM c AS d FROM _rows
    SELECT -a AS m, +a AS p, ~a AS i, a % 2 AS r, a // 2 AS q, a ** 2 AS s, b || '!' AS t, NOT (a = 1) AS n FROM _rows
    SELECT coalesce(c, 0) AS c, nullif(a, 1) AS n, greatest(a, 2) AS g, b COLLATE NOCASE = 'X' AS k FROM _rows
    SELECT a FROM _rows ORDER BY a DESC NULLS LAST, b LIMIT 2 OFFSET 1
    SELECT a FROM _rows ORDER BY ALL LIMIT 50%
    SELECT #1, b FROM _rows ORDER BY #2
    SELECT a FROM _rows POSITIONAL JOIN (SELECT b FROM _rows)
    SELECT r.a FROM _rows AS r ASOF JOIN _rows AS q ON r.ts >= q.ts
    SELECT a FROM _rows SEMI JOIN (SELECT 1 AS a) AS o USING (a)
    SELECT a FROM _rows ANTI JOIN (SELECT 1 AS a) AS o USING (a)
    SELECT * FROM _rows NATURAL LEFT JOIN (SELECT 2 AS a, 3 AS more)
    SELECT * FROM _rows TABLESAMPLE 100%
    SELECT * FROM (UNPIVOT (SELECT a, a + 1 AS a2 FROM _rows) ON a, a2) ORDER BY ALL
    SELECT * FROM (SELECT a, b FROM _rows) PIVOT (count(*) FOR b IN ('x', 'y')) ORDER BY ALL
    SELECT row(a, b) AS r, struct_pack(x := a) AS p FROM _rows
    SELECT b.upper() AS u, (a).abs() AS n FROM _rows
    SELECT a, FROM _rows;
    SELECT /* read_csv('x') */ a FROM /* ' */ _rows
    SELECT _rows.user FROM (SELECT a AS user FROM _rows) AS _rows
    SELECT typeof(a) AS t, pg_typeof(a) AS p, hash(a) IS NULL AS h, json_serialize_sql('SELECT 1') AS j FROM _rows
    SELECT error_message FROM (SELECT 'current_setting(''x'')' AS error_message)
"""


def written(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("query", written(FINE))
def test_the_generated_query_has_the_result_of_the_original(query: str, rows: duckdb.DuckDBPyConnection) -> None:
    checked = check(query)
    types, expected = result_of(rows, query)
    for sql in (checked.sql, check(checked.sql).sql, f"SELECT * FROM (\n{checked.sql}\n)"):
        again, result = result_of(rows, sql)
        assert [type_ for _, type_ in again] == [type_ for _, type_ in types]
        assert sorted(map(repr, result)) == sorted(map(repr, expected))  # some queries have no order


def test_volatile_functions_are_accepted(rows: duckdb.DuckDBPyConnection) -> None:
    sql = check(
        "SELECT random(), now(), current_date, gen_random_uuid(), uuidv7(), today(), ago(INTERVAL 1 DAY) FROM _rows"
    )
    assert len(rows.execute(sql.sql).fetchall()) == 3


def test_comments_are_removed() -> None:
    assert check("SELECT a -- ; DROP TABLE _rows\nFROM _rows -- end").sql == "SELECT a FROM _rows"


def test_the_relation_is_an_identifier_without_case() -> None:
    query = "SELECT 'source_files', SOURCE_FILES.a FROM Source_Files JOIN \"source_files\" AS source_files2 USING (a)"
    assert check(query, relation="source_files").sql == (
        "SELECT 'source_files', SOURCE_FILES.a FROM source_files INNER JOIN source_files AS source_files2 USING (a)"
    )


def test_other_names_of_the_relation_stay_as_aliases(rows: duckdb.DuckDBPyConnection) -> None:
    also = ("t", "odd name")
    sql = check('SELECT T.a FROM T JOIN _rows USING (b) JOIN "odd name" AS o ON o.b = T.b ORDER BY ALL', also=also).sql
    assert "FROM _rows AS T INNER JOIN _rows USING (b) INNER JOIN _rows AS o ON" in sql
    assert rows.execute(sql).fetchall() == [(1,), (2,), (2,)]
    assert rows.execute(check('SELECT max("odd name".a) FROM "odd name"', also=also).sql).fetchall() == [(2,)]
    shadowed = check("WITH t AS (SELECT a FROM t WHERE a = 1) SELECT count(*) FROM t, t AS u", also=also).sql
    assert rows.execute(shadowed).fetchall() == [(1,)]


V3 = """
    SELECT count(*) FROM read_parquet(?, hive_partitioning=1)
    select count(*) from READ_PARQUET ( ? , hive_partitioning = true )
    SELECT count(*) FROM "read_parquet"(?)
    SELECT count(*) FROM read_parquet($1, hive_partitioning=1, union_by_name => true) AS f
    SELECT count(f.a) FROM read_parquet($files, hive_partitioning=1, hive_types={'u': 'VARCHAR'}) AS f
    SELECT count(read_parquet.a) FROM read_parquet(?, filename=false)
    SELECT count(*) FROM parquet_scan(?)
    WITH n AS (FROM read_parquet(?)) SELECT count(*) FROM n
    SELECT count(f.b) FROM read_parquet(?, hive_partitioning=1) f JOIN read_parquet(?) g ON f.b = g.b
    SELECT count(x) FROM read_parquet(?) AS f(x)
    SELECT count(*) FROM _rows
"""


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("query", written(V3))
def test_the_table_functions_of_v3_become_the_relation(query: str, rows: duckdb.DuckDBPyConnection) -> None:
    assert rows.execute(check(query, v3=True).sql).fetchall() == [(3,)]
    if "?" in query or "$" in query:
        with pytest.raises(InvalidQuery, match="of table functions only"):
            check(query)


REFUSED = """
    SELECT * FROM other | reads 'other'
    SELECT * FROM 'x.csv' | reads 'x.csv'
    SELECT * FROM "x.parquet" | reads 'x.parquet'
    SELECT * FROM '/etc/passwd' | reads '/etc/passwd'
    SELECT * FROM "s3://bucket/x.parquet" | reads 's3://
    SELECT * FROM _rows, 'https://127.0.0.1/x.json' | reads 'https
    SELECT * FROM main._rows | reads 'main._rows'
    SELECT * FROM memory.main._rows | reads 'memory.main._rows'
    SELECT * FROM information_schema.tables | reads 'information_schema
    SELECT * FROM pg_catalog.pg_tables | reads 'pg_catalog
    SELECT * FROM duckdb_settings | reads 'duckdb_settings'
    SELECT * FROM sqlite_master | reads 'sqlite_master'
    SELECT * FROM _rows WHERE a IN (SELECT b FROM other) | reads 'other'
    SELECT (SELECT b FROM other) | reads 'other'
    SELECT * FROM _rows ORDER BY (SELECT b FROM other) | reads 'other'
    SELECT * FROM _rows LIMIT (SELECT b FROM other) | reads 'other'
    SELECT * FROM _rows JOIN _rows AS r ON (SELECT b FROM other) | reads 'other'
    SELECT sum(a) OVER (ORDER BY (SELECT b FROM other)) FROM _rows | reads 'other'
    SELECT sum(a) FILTER (WHERE a IN (FROM other)) FROM _rows | reads 'other'
    SELECT list_transform(l, lambda x: (SELECT x FROM other)) FROM _rows | reads 'other'
    SELECT * REPLACE ((SELECT b FROM other) AS a) FROM _rows | reads 'other'
    SELECT * FROM range((SELECT b FROM other)) | reads 'other'
    SELECT CASE WHEN a = 1 THEN (FROM other) END FROM _rows | reads 'other'
    SELECT a FROM _rows GROUP BY ALL HAVING a IN (FROM other) | reads 'other'
    SELECT a FROM _rows QUALIFY a IN (FROM other) | reads 'other'
    SELECT DISTINCT ON ((SELECT b FROM other)) a FROM _rows | reads 'other'
    (SELECT a FROM _rows) UNION (FROM other) | reads 'other'
    VALUES ((SELECT b FROM other)) | reads 'other'
    WITH n AS (FROM other) FROM _rows | reads 'other'
    WITH n AS (FROM m), m AS (FROM _rows) FROM n | reads 'm'
    WITH n AS (FROM n) FROM n | reads 'n'
    FROM (WITH n AS (FROM _rows) FROM n), n | reads 'n'
    WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x FROM other) FROM n | reads 'other'
    FROM other PIVOT (count(*) FOR b IN ('x')) | reads 'other'
    UNPIVOT other ON a | reads 'other'
    FROM (FROM (FROM (FROM 'x'))) | reads 'x'
    SELECT * FROM read_csv('x') | reads read_csv()
    SELECT * FROM "READ_CSV"('x') | reads read_csv()
    SELECT * FROM read_parquet('x') | reads read_parquet()
    SELECT * FROM system.main.read_text('x') | qualified name
    SELECT * FROM glob('*') | reads glob()
    SELECT * FROM sniff_csv('x') | reads sniff_csv()
    SELECT * FROM query('FROM _rows') | reads query()
    SELECT * FROM query_table('_rows') | reads query_table()
    SELECT * FROM histogram(_rows, a) | reads histogram()
    SELECT * FROM pragma_table_info('_rows') | reads pragma_table_info()
    SELECT * FROM duckdb_secrets() | reads duckdb_secrets()
    SELECT * FROM json_execute_serialized_sql('x') | reads json_execute
    SELECT * FROM unnest((SELECT list(content) FROM read_text('x'))) | reads read_text()
    SELECT * FROM not_there() | reads not_there()
    SELECT current_setting('x') | calls current_setting()
    SELECT "Current_Setting"('x') | calls current_setting()
    SELECT system.main.current_setting('x') | calls current_setting()
    SELECT b.getvariable() FROM _rows | calls getvariable()
    SELECT getenv('HOME') | calls getenv()
    SELECT nextval('s') | calls nextval()
    SELECT currval('s') | calls currval()
    SELECT current_user | asks for current_user
    SELECT session_user | asks for session_user
    SELECT "current_schema" FROM _rows | asks for current_schema
    SELECT current_database() | calls current_database()
    SELECT current_query() | calls current_query()
    SELECT in_search_path('a', 'b') | calls in_search_path()
    SELECT txid_current() | calls txid_current()
    SELECT version() | calls version()
    SELECT pg_get_viewdef(1) | calls pg_get_viewdef()
    SELECT write_log('x') | calls write_log()
    SELECT setseed(0.5) | calls setseed()
    SELECT sleep_ms(1) | calls sleep_ms()
    SELECT pg_sleep(1) | calls pg_sleep()
    SELECT json_serialize_plan('FROM read_text(''x'')') | calls json_serialize_plan()
    SELECT ? | has a parameter
    SELECT $1 | has a parameter
    SELECT $name FROM _rows | has a parameter
    SELECT a FROM _rows LIMIT ? | has a parameter
    SELECT * FROM _rows AT (VERSION => 1) | at another time
    DESCRIBE _rows | description of a table
    SUMMARIZE _rows | description of a table
    SHOW TABLES | description of a table
    SHOW ALL TABLES | description of a table
    FROM (DESCRIBE _rows) | description of a table
    FROM (SHOW TABLES) | description of a table
    FROM (SUMMARIZE FROM 'x.csv') | description of a table
    PIVOT _rows ON a USING sum(c) | PIVOT is none
    SELECT 1; SELECT 2 | holds 2 statements
    SELECT 1; DROP TABLE _rows | is not one SELECT
    SELECT 1; COPY _rows TO 'x' | is not one SELECT
    COPY (SELECT 1) TO 'x' | is not one SELECT
    ATTACH 'x' AS y | is not one SELECT
    INSTALL httpfs | is not one SELECT
    LOAD httpfs | is not one SELECT
    SET memory_limit = '1TB' | is not one SELECT
    PRAGMA database_list | is not one SELECT
    CALL pragma_version() | is not one SELECT
    CREATE TABLE x AS SELECT 1 | is not one SELECT
    INSERT INTO _rows SELECT 1 | is not one SELECT
    UPDATE _rows SET a = 1 | is not one SELECT
    DELETE FROM _rows | is not one SELECT
    EXPLAIN SELECT 1 | is not one SELECT
    EXPORT DATABASE 'x' | is not one SELECT
    EXECUTE p | is not one SELECT
    PREPARE p AS SELECT 1 | is not one SELECT
    CHECKPOINT | is not one SELECT
    WITH n AS (DELETE FROM _rows RETURNING *) FROM n | is not one SELECT
    SELECT a FROM _rows INTO other | is not one SELECT
    SELECT a FROM _rows /* | is not one SELECT
    SELECT 'a FROM _rows | is not one SELECT
    SELECT a FROM _rows) FROM (SELECT 1 | is not one SELECT
    ; | holds 0 statements
    -- only a comment | holds 0 statements
"""


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("case", written(REFUSED))
@pytest.mark.parametrize("v3", [False, True])
def test_a_query_that_reads_more_than_its_rows_is_rejected(case: str, v3: bool) -> None:
    query, message = case.rsplit(" | ", 1)
    with pytest.raises(InvalidQuery) as caught:
        check(query, v3=v3)
    assert message in str(caught.value)
    assert str(caught.value).startswith("memory://t: insert_query ")
    assert "Write one SELECT over _rows" in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_parquet('x.parquet')",
        "SELECT * FROM read_parquet(['x.parquet'])",
        "SELECT * FROM read_parquet()",
        "SELECT * FROM read_parquet(? || 'x')",
        "SELECT * FROM read_parquet([?, 'x.parquet'])",
        "SELECT * FROM read_parquet(?, hive_partitioning = (SELECT max(a) FROM other))",
        "SELECT * FROM read_parquet(?, filename = ?)",
        "SELECT * FROM read_csv(?)",
        "SELECT * FROM system.main.read_parquet(?)",
        "SELECT ? FROM read_parquet(?)",
    ],
)
def test_only_the_files_that_are_merged_can_be_read(query: str) -> None:
    with pytest.raises(InvalidQuery):
        check(query, v3=True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1\0", "zero character"),
        ("SELECT '\ud800'", "half of a surrogate pair"),
        ("", "holds 0 statements"),
        ("SELECT * FROM _row\u017f", "reads '_row\u017f'"),  # a long s
        ("SELECT * FROM _r\u03bfws", "reads '_r\u03bfws'"),  # an omicron
        ("SELECT * FROM \u201cx.csv\u201d", "reads '\u201cx.csv\u201d'"),
        ("SELECT * FROM\u00a0'x.csv'", "reads 'x.csv'"),
        (7, "is a int, and not a text"),
        (None, "is a NoneType, and not a text"),
        ("SELECT " + "1 + " * 400 + "1", "nested too deep"),
        ("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, "is not one SELECT"),
        ("SELECT " + "[" * 5_000 + "]" * 5_000, "is not one SELECT"),
        ("SELECT 1 " + "UNION ALL SELECT 1 " * (QUERY_CHARS_MAX // 10), "is longer than"),
    ],
    ids=[
        "zero", "surrogate", "empty", "long s", "omicron", "quotes", "blank", "number", "none", "deep",
        "parentheses", "lists", "long",
    ],
)  # fmt: skip
def test_an_unparseable_query_is_rejected(query: str, message: str) -> None:
    with pytest.raises(InvalidQuery, match=message) as caught:
        check(query)
    assert len(str(caught.value)) < 1_000


def functions(condition: str) -> list[str]:
    with connect_sandbox() as con:
        names = con.execute(f"SELECT DISTINCT function_name FROM duckdb_functions() WHERE {condition} ORDER BY ALL")
        return [str(name) for (name,) in names.fetchall()]


@pytest.mark.sampled(days=3)
def test_only_table_functions_of_their_arguments_are_accepted() -> None:
    names = functions("function_type IN ('table', 'table_macro')")
    assert set(names) > TABLE_FUNCTIONS
    for name in set(names) - TABLE_FUNCTIONS:
        with pytest.raises(InvalidQuery, match="of table functions only"):
            check(f'SELECT * FROM "{name}"(1)')


# Check what a new version of DuckDB adds: the result may depend only on the arguments, the time and chance.
VOLATILE = """
    current_date error gen_random_uuid get_current_time get_current_timestamp now random today transaction_timestamp
    uuid uuidv4 uuidv7
"""


def accepted(names: list[str]) -> set[str]:
    passed = set()
    for name in names:
        with contextlib.suppress(InvalidQuery):
            check(f'SELECT "{name}"(1)')
            passed.add(name)
    return passed


@pytest.mark.sampled(days=3)
def test_only_volatile_functions_of_time_and_chance_are_accepted() -> None:
    names = functions("stability <> 'CONSISTENT' AND function_type = 'scalar'")
    assert accepted(names) == set(VOLATILE.split())


def test_macros_that_read_the_catalog_are_rejected() -> None:
    names = functions(r"function_type = 'macro' AND regexp_matches(macro_definition, '(SELECT|duckdb_|pragma_|sleep)')")
    assert "get_block_size" in names
    assert accepted(names) == set()


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "text",
    [
        "ago(INTERVAL 1 DAY)", "current_localtimestamp()", "current_localtime()", "vector_type(a)", "version()",
        "pg_sleep(1)", "get_block_size('memory')", "current_schema", "current_role", "current_catalog", "#1",
        "pg_conf_load_time()", "list_transform(l, x -> getvariable('x'))", "getenv('HOME')",
    ],
)  # fmt: skip
def test_expressions_with_changing_values_are_rejected(text: str) -> None:
    with pytest.raises(InvalidQuery, match=r"calls|holds"):
        parse_expression(text, refuse=InvalidQuery)


def test_a_double_in_an_expression_stays_a_double(rows: duckdb.DuckDBPyConnection) -> None:
    for text in ("1e3", "1e400", "-1e-7", "1e15"):
        sql = parse_expression(text, refuse=InvalidQuery).sql
        assert result_of(rows, f"SELECT {sql} AS v") == result_of(rows, f"SELECT {text} AS v")


TABLE_COLUMNS = {"id": "BIGINT", "total": "DOUBLE", "Name": "VARCHAR"}


def output(query: str, *, new_columns: bool = True, needed: tuple[str, ...] = ("id",)) -> None:
    checked = check(query)
    with connect_sandbox() as con:
        con.execute("CREATE TABLE _rows AS SELECT 1 AS a, 1 AS b, 1 AS id")
        names = [str(name) for name, *_ in con.execute(f"DESCRIBE {checked.sql}").fetchall()]
    check_output(
        names, table_columns=TABLE_COLUMNS, inputs=["a", "b", "id"], needed=needed, query=checked, what="insert_query",
        table="memory://t", new_columns=new_columns,
    )  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, sum(a) AS total FROM _rows GROUP BY id",
        "SELECT * FROM _rows",
        "SELECT *, 1 AS total FROM _rows",
        "SELECT _rows.id, a FROM _rows",
        "SELECT id, max(COLUMNS('a|b')) FROM _rows GROUP BY id",
        "SELECT ID, 'x' AS NAME FROM _rows",
        "SELECT * FROM (SELECT id, count(*) AS n FROM _rows GROUP BY id) WHERE n > (SELECT count(*) FROM _rows)",
        "SELECT id FROM _rows WHERE a IN (SELECT a + 1 FROM _rows)",
        "SELECT 1 AS id, unnest([1]) AS a",
        "SELECT u.user AS a, id FROM _rows, (SELECT 7) AS u(user)",
        "SELECT id, user AS a FROM (SELECT id, 1 AS user FROM _rows)",
    ],
)
def test_a_result_with_named_columns_is_accepted(query: str) -> None:
    output(query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, sum(a) FROM _rows GROUP BY id", "does not name 'sum(a)'. Write sum(a) AS name"),
        ("SELECT id, count(*) FROM _rows GROUP BY id", "does not name 'count_star()'"),
        ("SELECT id, CAST(a AS TEXT) FROM _rows", "does not name 'CAST(a AS VARCHAR)'"),
        ("SELECT id, a + 1 FROM _rows", "does not name '(a + 1)'"),
        ("SELECT id, 'x' FROM _rows", "does not name ''x''"),
        ("SELECT id, -a FROM _rows", "does not name"),
        ("SELECT id, NOT a = 1 FROM _rows", "does not name"),
        ("SELECT id, [a] FROM _rows", "does not name"),
        ("SELECT id, {'k': a} FROM _rows", "does not name"),
        ("SELECT id, unnest([a]) FROM _rows", "does not name"),
        ("SELECT id, CASE WHEN a = 1 THEN 2 END FROM _rows", "does not name"),
        ("SELECT id, (SELECT max(a) FROM _rows) FROM _rows", "does not name"),
        ("SELECT id, sum(a) OVER (PARTITION BY b) FROM _rows", "does not name"),
        ("SELECT id, DATE '2026-01-01' FROM _rows", "does not name"),
        ("SELECT id, INTERVAL 1 DAY FROM _rows", "does not name"),
        ("SELECT id, 1e3 FROM _rows", "does not name"),
        ("SELECT id, b.upper() FROM (SELECT id, 'x' AS b FROM _rows)", "does not name"),
        ("SELECT * FROM (SELECT id, sum(a) FROM _rows GROUP BY id)", "does not name 'sum(a)'"),
        ("WITH n AS (SELECT id, sum(a) FROM _rows GROUP BY id) FROM n", "does not name 'sum(a)'"),
        ("SELECT id, sum(a) FROM _rows GROUP BY id UNION ALL SELECT 1, 2", "does not name 'sum(a)'"),
        ("SELECT id, a, a FROM _rows", "the column 'a' twice"),
        ("SELECT id, a, b AS A FROM _rows", "twice"),
        ("SELECT *, 1 AS id FROM _rows", "the column 'id' twice"),
        ("SELECT a FROM _rows", "drops the column 'id', by which the table is partitioned or sorted"),
        ("SELECT id, user AS a FROM _rows", "names 'user', and the rows have no such column"),
    ],
)
def test_a_result_that_cannot_be_stored_is_rejected(query: str, message: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        output(query)
    assert message in str(caught.value)
    assert str(caught.value).startswith("memory://t: insert_query ")


UNNAMED = """
    interval 1 day; interval '1 day'; 1e3; a::int; a + 1; 'x'; true; null; a is null; count(*) over ();
    a in (1, 2); -1; list_transform(l, lambda x: x + 1); [x for x in l if x > 1]; s['p']; s.p::varchar; l[1]; l[1:2];
    {'k': a}; map {'k': a}; row(a, b); case a when 1 then 2 end; case when a = 1 then 2 else 3 end; a between 1 and 2;
    b like 'x%'; b not like 'x'; b ilike 'x' escape '!'; b similar to 'x'; b ~ 'x'; a = 1 and b = 'x' or c = 2; not a;
    exists(from _rows); (select max(a) from _rows); a in (select a from _rows); coalesce(a, 1); nullif(a, 1); #1 + 1;
    try_cast(b as int); b::decimal(9, 2); b::enum('x', 'y'); s::struct(p int, q text); l::double[]; a::hugeint; b::json;
    ts at time zone 'UTC'; extract(year from ts); j->'k'; j->>'k'; b[1:2]; b || 'x'; a ** 2; a // 2; ~a; @a; a!;
    b collate nocase; b.upper(); (a).abs(); unnest(l); row_number() over (partition by a order by b desc nulls last);
    sum(a) over (order by b rows between 1 preceding and unbounded following exclude current row); now(); '"'; 'it''s';
    sum(a) filter (where a > 1) over (); struct_pack(x := a); typeof(a); (1, 2); $$x$$; 1.5; 12345678901234567890123;
    '\\x00'::blob; if(a = 1, 1, 2); "first"(a); substring(b from 1 for 2); position('x' in b); trim(both 'x' from b);
    ts + interval 1 day; b::varchar(3); '2020-01-01'::timestamp_ms; r.a + 1; "a" + 1; 'B' || "b"; a::VARCHAR
"""


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("item", [item.strip() for item in UNNAMED.split(";")])
def test_a_column_without_a_name_is_rejected(item: str, rows: duckdb.DuckDBPyConnection) -> None:
    checked = check(f"SELECT {item} FROM _rows AS r{' GROUP BY ALL' if 'first' in item else ''}")
    for query in (checked, check(f"WITH n AS ({checked.sql}) SELECT * FROM n")):
        [(name, *_)] = rows.execute(f"DESCRIBE {query.sql}").fetchall()
        with pytest.raises(InvalidQuery, match="does not name"):
            check_output(
                [name], table_columns={}, inputs="abcls", needed=[], query=query, what="q", table="t", new_columns=True
            )


def test_a_column_that_the_table_lacks_is_new_or_rejected() -> None:
    output("SELECT id, a AS fresh FROM _rows")
    with pytest.raises(InvalidQuery, match=r"gives a column 'fresh', .* Give it the name of one .* Name, id, total"):
        output("SELECT id, a AS fresh FROM _rows", new_columns=False)
    output("SELECT id, a AS total, b FROM _rows", new_columns=False)


@pytest.mark.parametrize(("columns", "inputs"), [({"sum(a)": "HUGEINT"}, ["id"]), ({}, ["id", "sum(a)"])])
def test_a_column_with_the_name_of_an_input_is_accepted(columns: dict[str, str], inputs: list[str]) -> None:
    checked = check("SELECT id, sum(a) FROM _rows GROUP BY id")
    check_output(
        ["id", "sum(a)"], table_columns=columns, inputs=inputs, needed=[], query=checked, what="merge_query",
        table="t", new_columns=False,
    )  # fmt: skip


# Pieces of queries: those over the rows alone, and those that read something else.
SOURCES = (
    ["_rows", "_rows AS r2", '"_rows"', "range(3) AS g(a)", "unnest([1, 2]) AS u(a)", "(VALUES (1, 2)) AS v(a, b)",
     "repeat(1, 2) AS p(a)"],
    ["'{csv}'", '"{csv}"', "read_csv('{csv}')", "read_text('{csv}')", "glob('{folder}/*')", "'{url}'",
     "read_csv('{url}')", "query('FROM read_text(''{csv}'')')", "duckdb_settings()", "information_schema.tables",
     "(DESCRIBE _rows)", "parquet_metadata('{csv}')", "sniff_csv('{csv}')", "read_json('{folder}/secret.json')",
     "query_table('{csv}')", "_rows, '{csv}'", "main._rows"],
)  # fmt: skip
ITEMS = (
    ["1 AS k", "now() AS w", "random() AS z", "'{csv}' AS path", "[1, 2] AS l", "'FROM read_csv(''{csv}'')' AS t",
     "(SELECT 1) AS s", "list_transform([1], lambda x: x + 1) AS m"],
    ["current_setting('home_directory') AS c", "getvariable('v')", "(SELECT content FROM read_text('{csv}')) AS c",
     "nextval('s')", "? AS p", "current_user", "version()", "(FROM '{csv}' LIMIT 1) AS c",
     "list_transform([1], lambda x: (SELECT count(*) FROM '{csv}')) AS c", "json_serialize_plan('FROM ''{csv}''')"],
)  # fmt: skip
SHAPES = [
    "SELECT {item} FROM {source}",
    "FROM {source} SELECT {item}",
    "WITH n AS (SELECT {item} FROM {source}) SELECT * FROM n",
    "SELECT * FROM (SELECT {item} FROM {source}) AS s",
    "SELECT {item} FROM {source} UNION ALL SELECT {item} FROM _rows",
    "SELECT 1 AS one WHERE EXISTS (SELECT {item} FROM {source})",
    "SELECT (SELECT count(*) FROM (SELECT {item} FROM {source})) AS n FROM _rows",
    "/* '{csv}' */ SELECT {item} -- FROM '{csv}'\n FROM {source} ;",
    "SELECT DISTINCT {item} FROM {source} ORDER BY ALL LIMIT 3",
    'WITH "{csv}" AS (SELECT {item} FROM {source}) SELECT * FROM "{csv}"',
]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    with watching(tmp_path_factory.mktemp("canary") / "files") as canary:
        yield canary


@contextlib.contextmanager
def connect_unrestricted(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection without restrictions, in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with duckdb.connect() as con:
            con.execute("SET memory_limit = '256MB'; SET temp_directory = ''; SET threads = 1")
            con.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
            load_httpfs(con)
            con.execute("SET http_retries = 0")
            con.execute(ROWS)
            yield con
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def unrestricted(canary: Canary) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection without a sandbox, where accepted queries must also do no harm."""
    with connect_unrestricted(canary.folder) as con:
        yield con


ATTACKS = [
    "SELECT * FROM '{csv}'",
    "SELECT content FROM read_text('{csv}')",
    "COPY _rows TO '{folder}/new.csv'",
    "SELECT * FROM read_csv('{url}')",
    "ATTACH '{folder}/new.db' AS new",
]


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_without_checks_trigger_the_canary(attack: str, tmp_path: Path) -> None:
    """The attacks are real: without check and sandbox they read, write and call."""
    with watching(tmp_path / "files") as canary, connect_unrestricted(canary.folder) as con:
        sql = attack.format(csv=canary.csv, folder=canary.folder, url=canary.url)
        result: object = None
        with contextlib.suppress(duckdb.IOException, duckdb.HTTPException):
            result = con.execute(sql).fetchall()
        with pytest.raises(AssertionError):
            canary.check(result)


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(data=st.data())
def test_a_random_query_is_accepted_only_if_it_reads_its_rows_alone(
    data: st.DataObject, canary: Canary, unrestricted: duckdb.DuckDBPyConnection
) -> None:
    evil = data.draw(st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1)]))
    source, item = (data.draw(st.sampled_from(pieces[e])) for pieces, e in zip((SOURCES, ITEMS), evil, strict=True))
    query = data.draw(st.sampled_from(SHAPES)).replace("{item}", item).replace("{source}", source)
    query = with_places(query, canary)
    if any(evil):
        with pytest.raises(InvalidQuery):
            check(query)
    else:
        run(check(query), canary, unrestricted)


def with_places(text: str, canary: Canary) -> str:
    for name, value in (("csv", canary.csv), ("folder", canary.folder), ("url", canary.url)):
        text = text.replace("{" + name + "}", str(value))
    return text


def run(query: UserQuery, canary: Canary, unrestricted: duckdb.DuckDBPyConnection) -> None:
    """Run a checked query without and in the sandbox, and assert that it touches nothing."""
    with connect_sandbox() as sandbox:
        sandbox.execute(ROWS)
        for con in (unrestricted, sandbox):
            result: object = None
            with contextlib.suppress(duckdb.Error):  # such as a missing column
                result = con.execute(f"SELECT * FROM (\n{query.sql}\n) LIMIT 100").fetchall()
            canary.check(result)
            assert con.execute("SELECT count(*) FROM _rows").fetchall() == [(3,)]


TOKENS = [
    "'", '"', ";", "--", "/*", "*/", "\n", "(", ")", ",", ".", "*", "?", "$1", "$$", "\\", "\0", "\u2018", "\u00a0",
    "\u2028", "\uff07", "e'", "U&'", "::", "{csv}", "'{csv}'", '"{csv}"', "'{url}'", "read_csv", "read_text('{csv}')",
    "glob('*')", "SELECT", "FROM", "UNION ALL", "WITH n AS", "COPY", "TO", "ATTACH", "INSTALL", "LOAD", "SET", "PRAGMA",
    "DESCRIBE", "current_setting", "getenv", "main", "AT (VERSION => 1)", "AS", "_rows", "LATERAL", "UNNEST", "LIMIT",
    "1", "a",
]  # fmt: skip


@pytest.mark.sampled(days=3)
@pytest.mark.long
@given(data=st.data())
def test_accepted_queries_with_pieces_of_attacks_touch_nothing(
    data: st.DataObject, canary: Canary, unrestricted: duckdb.DuckDBPyConnection
) -> None:
    """Queries that are mixed with pieces of attacks."""
    text = data.draw(st.sampled_from(written(FINE)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        token = with_places(data.draw(st.sampled_from(TOKENS)), canary)
        text = text[:place] + data.draw(st.sampled_from(["", " "])) + token + text[place:]
    try:
        query = check(text, v3=data.draw(st.booleans()))
    except InvalidQuery:
        return
    run(query, canary, unrestricted)
