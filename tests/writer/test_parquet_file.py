"""What the writer of a file tells of its columns is what the file holds."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from icedb.format.table_spec import TableSpec
from icedb.sql.column_stats import TEXT_TYPES, figures_sql
from icedb.sql.connections import connect_sandbox, quote_name, quote_text
from icedb.writer.parquet_file import WrittenFile, min_max_counts, write_file

WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN")
ODD_NAME = 'a "b".c'
SPEC = TableSpec(row_group_rows=2048)

#: SQL of a value of each type, from `h`, a BIGINT of any size.
VALUES = {
    "TIME": "TIME '00:00:00' + to_microseconds(h % 86400000000)",
    "DATE": "DATE '0002-01-01' + (h % 200000 - 100000)::INT",
    "TIMESTAMP": "make_timestamp(h // 100 - 60000000000000000)",
    "TIMESTAMP_NS": "make_timestamp_ns(h // 2)",
    "TIMESTAMP WITH TIME ZONE": "make_timestamptz(h // 100)",
    "UUID": "CAST(md5(h::VARCHAR) AS UUID)",
    "VARCHAR": "['é', '', chr(0), 'Z', '\U0010ffff'][1 + h % 5] || h",
    "FLOAT": "(h % 1000 - 500) / 7",
    "DOUBLE": "(h % 1000 - 500) / 7",
    "BOOLEAN": "h % 2 = 0",
}
#: What is between the others, and greater or less than all.
EXTREME = {
    "DATE": ["'infinity'", "'-infinity'", "'0044-03-15 (BC)'"],
    "TIMESTAMP": ["'infinity'", "'-infinity'"],
    "TIMESTAMP WITH TIME ZONE": ["'infinity'"],
    "FLOAT": ["'nan'", "'-0.0'", "'inf'"],
    "DOUBLE": ["'nan'"],
    "VARCHAR": ["repeat('\U0010ffff', 64)", "repeat('\U0010ffff', 300)", "''"],
    "UBIGINT": ["18446744073709551615"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
}


def written(path: Path, columns: dict[str, str], query: str) -> tuple[duckdb.DuckDBPyConnection, WrittenFile]:
    con = connect_sandbox(path.parent)
    return con, write_file(con, query, path, SPEC)


def asked(con: duckdb.DuckDBPyConnection, columns: dict[str, str], path: Path) -> list[str | None]:
    [(found,)] = con.execute(f"SELECT {figures_sql(columns)} FROM read_parquet({quote_text(str(path))})").fetchall()
    return list(found)


@pytest.mark.parametrize("type_", [*WHOLE, *TEXT_TYPES])
def test_figures_of_many_row_groups_are_those_of_the_rows(tmp_path: Path, type_: str) -> None:
    value = VALUES.get(type_, "h % 100")
    extremes = "".join(f" UNION ALL SELECT CAST({e} AS {type_})" for e in EXTREME.get(type_, []))
    with_nulls = "SELECT CASE WHEN i % 10 = 0 THEN NULL ELSE "
    for number, more in enumerate(("", extremes)):
        rows = "SELECT i, (hash(i) >> 2)::BIGINT AS h FROM range(9000) r(i)"
        query = f"{with_nulls} CAST({value} AS {type_}) END AS {quote_name(ODD_NAME)} FROM ({rows}){more}"
        columns = {ODD_NAME: type_}
        con, file = written(tmp_path / f"{number}.parquet", columns, query)
        with con:
            found = min_max_counts(con, file, columns)
            assert found == asked(con, columns, file.path)
            assert found[2] == str(8100 + more.count("UNION ALL"))


def test_what_the_writer_tells_exactly_is_not_read_again(tmp_path: Path) -> None:
    columns = {"n": "BIGINT", "s": "VARCHAR", "nothing": "DATE"}
    con, file = written(tmp_path / "a.parquet", columns, "SELECT 9 AS n, 'a' AS s, NULL::DATE AS nothing FROM range(3)")
    with con:
        file.path.unlink()
        assert min_max_counts(con, file, columns) == ["9", "9", "3", "a", "a", "3", None, None, "0"]
        with pytest.raises(duckdb.IOException):
            min_max_counts(con, file, {**columns, "s": "DOUBLE"})


def test_columns_keep_their_order_when_some_are_read_from_the_file(tmp_path: Path) -> None:
    columns = {"a": "BIGINT", "b": "BOOLEAN", "c": "VARCHAR", "d": "DOUBLE"}
    con, file = written(tmp_path / "a.parquet", columns, "SELECT 1::BIGINT AS a, true AS b, 'x' AS c, 0.5::DOUBLE AS d")
    with con:
        assert min_max_counts(con, file, columns) == [
            "1",
            "1",
            "1",
            "true",
            "true",
            "1",
            "x",
            "x",
            "1",
            "0.5",
            "0.5",
            "1",
        ]


def test_long_texts_are_read_from_the_file(tmp_path: Path) -> None:
    columns = {"s": "VARCHAR"}
    query = "SELECT unnest([repeat('x', 300), repeat('\U0010ffff', 64), repeat('y', 63)]) AS s"
    con, file = written(tmp_path / "a.parquet", columns, query)
    with con:
        assert min_max_counts(con, file, columns) == ["x" * 300, "\U0010ffff" * 64, "3"]
