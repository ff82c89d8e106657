"""Experiments with the layout of parts: size, order, row groups, compression, and types of columns."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.experiments.lab import FULL_SCAN, Lab, counted, million_bytes
from benchmarks.harness.figures import Finding
from benchmarks.harness.memory import memory_bytes
from icedb import Table
from icedb.format.table_spec import Compression, TableSpec
from icedb.sql.connections import ROWS_PER_BATCH
from icedb.writer.encoding.parquet_encoder import INSERT_LEVEL, ParquetSettings, encode

__all__ = ["compressions", "part_sizes", "row_groups", "sort_orders", "types"]

SORT_BY = ("user_id", "ts")
# Sizes of parts; each is four times the one before.
PART_BYTES = tuple(1024 * 4**n for n in range(3, 9))
# The size of the tables in S3, which limits the number of their small parts.
BYTES_IN_S3 = 16 * 1024 * 1024
ROW_GROUPS = {"10k": 10_240, "31k": 30_720, "123k": 122_880, "492k": 491_520, "983k": 983_040}
CODECS: Mapping[str, tuple[Compression, int | None]] = {
    "none": ("uncompressed", None), "lz4": ("lz4_raw", None), "snappy": ("snappy", None),
    **{f"zstd {level}": ("zstd", level) for level in (1, 2, 3, 6, 9, 12)},
}  # fmt: skip
# Readings of a machine: numbers that hardly repeat, and similar lines of text.
_READINGS = """
    SELECT TIMESTAMP '2026-10-01' + to_milliseconds(i * 1300) AS ts, hash(i) % 1000000 AS counter,
        (hash(i, 1) % 1000000) / 1e6 AS share, hash(i, 2) % 100 AS sensor,
        'GET /api/v1/users/' || hash(i, 3) % 10000 || '/orders?page=' || i % 17 || ' 200 ' || hash(i, 4) % 9000 || ' ms'
            AS line
    FROM range({rows}) r(i)
"""


# ------------------------------------------------------------------------------------------ parts


def part_sizes(lab: Lab) -> list[Finding]:
    """Query the same rows in few and in many parts. Each part has rows of all users, like a commit."""
    whole = _one_part(lab, lab.events, "whole")
    size = whole.snapshot().bytes
    tables = {
        _name(part_bytes): _in_parts(
            lab, lab.events, lab.table(f"parts-{part_bytes}", sort_by=SORT_BY), part_bytes * lab.rows // size
        )
        for part_bytes in PART_BYTES
        if 2 * part_bytes <= size
    }
    tables[_name(size)] = whole
    findings = [counted("part-size", "parts", "", {name: len(t.snapshot().parts) for name, t in tables.items()})]
    findings += lab.query("part-size", "all rows", tables, FULL_SCAN)
    findings += lab.query("part-size", "one user", tables, lab.of_one_user)
    return findings + _part_sizes_in_s3(lab, size / lab.rows)


def _part_sizes_in_s3(lab: Lab, per_row: float) -> list[Finding]:
    """Query tables in S3 with as many rows as `BYTES_IN_S3` hold."""
    rows = lab.events.slice(0, int(BYTES_IN_S3 / per_row))
    sizes = {
        _name(n): max(1, int(n / per_row)) for n in PART_BYTES if n <= max(1.1 * per_row * len(rows), PART_BYTES[0])
    }
    for step in sizes.values():
        _in_parts(lab, rows, lab.store.create(f"parts-{step}", sort_by=SORT_BY), step)
    tables = {name: lab.store.open(f"parts-{step}") for name, step in sizes.items()}
    return [
        *lab.query_in_s3("part-size", "all rows", tables, FULL_SCAN),
        *lab.query_in_s3("part-size", "one user", tables, lab.of_one_user),
    ]


def _name(size: float) -> str:
    return f"{size / 2**20:.0f} MB" if size >= 2**20 else f"{size / 1024:.0f} KB"


def _one_part(lab: Lab, rows: pa.Table, name: str, **options: object) -> Table:
    table = lab.table(name, **{"sort_by": SORT_BY, **options})
    table.insert(rows)
    return table


def _in_parts(lab: Lab, rows: pa.Table, table: Table, rows_per_part: int) -> Table:
    """Insert each part in its own commit, then merge the log, so that the log does not affect the measurement."""
    lab.on_step(f"parts of {rows_per_part:,} rows")
    step = max(1, rows_per_part)
    for first in range(0, len(rows), step):
        table.insert(rows.slice(first, step))
    table.merge_log()
    return table


# ------------------------------------------------------------------------------------------ order and row groups


def sort_orders(lab: Lab) -> list[Finding]:
    """Query one part of all rows in different orders."""
    tables = {name: _one_part(lab, lab.events, f"order-{name}", sort_by=order) for name, order in lab.ORDERS.items()}
    return [
        counted("sort-order", "size", "MB", {name: million_bytes(t) for name, t in tables.items()}),
        *lab.query("sort-order", "one user", tables, lab.of_one_user),
        *lab.query("sort-order", "one kind of event", tables, lab.OF_A_KIND),
        *lab.query("sort-order", "one hour", tables, lab.OF_AN_HOUR),
        *lab.query("sort-order", "all rows", tables, FULL_SCAN),
    ]


def row_groups(lab: Lab) -> list[Finding]:
    """Query one part of all rows with row groups of different sizes."""
    tables, memory = {}, {}
    for name, rows in ROW_GROUPS.items():
        tables[name] = _one_part(lab, lab.events, f"groups-{name}", row_group_rows=rows)
        [part] = tables[name].snapshot().parts
        memory[name] = _in_a_child(_memory_of_writing, part.path, lab.folder / "copy.parquet", rows) / 1e6
    findings = [
        counted("row-groups", "size", "MB", {name: million_bytes(t) for name, t in tables.items()}),
        counted("row-groups", "memory of writing", "MB", memory),
        *lab.query("row-groups", "all rows", tables, FULL_SCAN),
        *lab.query("row-groups", "one user", tables, lab.of_one_user),
    ]

    for name, rows in ROW_GROUPS.items():
        lab.store.create(f"groups-{name}", sort_by=SORT_BY, row_group_rows=rows).insert(lab.some)
    in_s3 = {name: lab.store.open(f"groups-{name}") for name in ROW_GROUPS}
    findings += lab.query_in_s3("row-groups", "all rows", in_s3, FULL_SCAN)
    return findings + lab.query_in_s3("row-groups", "one user", in_s3, lab.of_one_user)


def _in_a_child(work: Callable[[str, Path, int], int], path: str, target: Path, rows: int) -> int:
    """Run the work in a new process with unused memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, path, target, rows).result()


def _memory_of_writing(source: str, target: Path, row_group_rows: int) -> int:
    """Return the additional memory of a process that writes a part's rows again."""
    with duckdb.connect() as con:
        con.execute(f"SET threads = {os.cpu_count()}; SET enable_progress_bar = false")
        con.execute(f"SELECT count(*) FROM read_parquet('{source}')").fetchall()
        before = memory_bytes("VmRSS")
        settings = ParquetSettings(source, TableSpec(row_group_rows=row_group_rows), INSERT_LEVEL)
        batches = con.sql(f"SELECT * FROM read_parquet('{source}')").to_arrow_reader(ROWS_PER_BATCH)
        encode(map(pa.Table.from_batches, ([batch] for batch in batches)), settings, rows=row_group_rows, path=target)
    target.unlink()
    return memory_bytes("VmHWM") - before


# ------------------------------------------------------------------------------------------ bytes


def compressions(lab: Lab) -> list[Finding]:
    """Write rows with each compression, and read all their columns."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        con.register("events", lab.some)
        events = con.sql(f"FROM events ORDER BY {', '.join(SORT_BY)}").to_arrow_table()
        readings = con.sql(_READINGS.format(rows=lab.some.num_rows)).to_arrow_table()
        return [*_compressions(lab, con, "events", events), *_compressions(lab, con, "readings", readings)]


def _compressions(lab: Lab, con: duckdb.DuckDBPyConnection, kind: str, rows: pa.Table) -> list[Finding]:
    paths = {name: lab.folder / f"{kind}-{name.replace(' ', '-')}.parquet" for name in CODECS}

    def write(name: str) -> object:
        codec, level = CODECS[name]
        paths[name].unlink(missing_ok=True)
        settings = ParquetSettings(kind, TableSpec(compression=codec), level or INSERT_LEVEL)
        return encode([rows], settings, rows=rows.num_rows, path=paths[name]).rows

    def read(name: str) -> object:
        figures = ", ".join(f"max({c})" for c in rows.schema.names)
        return con.execute(f"SELECT {figures} FROM read_parquet('{paths[name]}')").fetchall()

    written = lab.turns("compression", f"writing {kind}", {name: partial(write, name) for name in CODECS})
    reading = lab.turns("compression", f"reading {kind}", {name: partial(read, name) for name in CODECS})
    sizes = {name: path.stat().st_size / 1e6 for name, path in paths.items()}
    return [counted("compression", f"size of {kind}", "MB", sizes), *written, *reading]


# ------------------------------------------------------------------------------------------ types and partitions


def types(lab: Lab) -> list[Finding]:
    """Query the same rows in typed columns, in text columns, and in one JSON column."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        con.register("rows", lab.some)
        typed_rows = con.execute(
            "SELECT * EXCLUDE (properties), properties->>'ab' AS ab, (properties->>'scroll')::INT AS scroll, "
            "(properties->>'ms')::INT AS ms FROM rows"
        ).to_arrow_table()
        con.register("typed_rows", typed_rows)
        columns = [c for c in typed_rows.schema.names if c not in ("event", "ts")]
        fields = ", ".join(f"{c} := {c}" for c in columns)
        shapes = {
            "typed": typed_rows,
            "text": con.execute("SELECT COLUMNS(*)::VARCHAR FROM typed_rows").to_arrow_table(),
            "JSON": con.execute(
                f"SELECT event, ts, to_json(struct_pack({fields})) AS j FROM typed_rows"
            ).to_arrow_table(),
        }
    tables = {name: lab.table(f"types-{name}", sort_by=("event", "ts")) for name in shapes}
    for name, data in shapes.items():
        tables[name].insert(data)
    ms = {"typed": "ms", "text": "ms::INT", "JSON": "(j->>'ms')::INT"}
    amount = {"typed": "amount", "text": "amount::DECIMAL(12, 2)", "JSON": "(j->>'amount')::DECIMAL(12, 2)"}
    country = {"typed": "country", "text": "country", "JSON": "j->>'country'"}
    works = {
        name: partial(
            lambda table, sql: table.query(sql).fetchall(),
            table,
            f"SELECT {country[name]} AS c, max({ms[name]}), sum({amount[name]}) FROM t GROUP BY c ORDER BY c",
        )
        for name, table in tables.items()
    }
    sizes = {name: million_bytes(table) for name, table in tables.items()}
    return [counted("types", "size", "MB", sizes), *lab.turns("types", "an aggregate of three columns", works)]
