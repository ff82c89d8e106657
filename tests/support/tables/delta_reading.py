"""Readers of a Delta log: deltalake, DuckDB with its extension, and a small one for stores without them."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import duckdb
import pyarrow as pa

from icedb import Table
from icedb.storage.obstore_store import ObjectStore


def texts(rows: pa.Table, columns: list[str]) -> Counter[tuple[str | None, ...]]:
    """Return the rows, with every value as DuckDB's text of it, independent of the engine's type."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.register("rows", rows)
        names = ", ".join(f'CAST("{c}" AS VARCHAR)' for c in columns)
        return Counter(con.execute(f"SELECT {names} FROM rows").fetchall())


def by_delta(table: Table, version: int | None = None) -> deltalake.DeltaTable:
    """Open the table with deltalake."""
    options = {**table.handle.location.storage_options, "AWS_ALLOW_HTTP": "true"}
    s3 = table.handle.location.scheme == "s3"
    return deltalake.DeltaTable(table.uri, version=version, storage_options=options if s3 else None)


def extension_file(name: str) -> Path:
    """Return an extension of DuckDB, from its wheel."""
    module = importlib.import_module(f"duckdb_extension_{name}")
    [path] = Path(module.__path__[0]).rglob(f"{name}.duckdb_extension")
    return path


def duckdb_with(*extensions: str) -> duckdb.DuckDBPyConnection:
    """Connect to a DuckDB with these extensions."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    for name in extensions:
        con.load_extension(str(extension_file(name)))
    return con


def by_duckdb(table: Table, version: int | None = None, *, where: str = "true") -> pa.Table:
    """Read a table in a folder with DuckDB's extension for Delta."""
    of_version = "" if version is None else f", version = {version}"
    with duckdb_with("delta") as con:
        return con.execute(f"SELECT * FROM delta_scan('{table.uri}'{of_version}) WHERE {where}").to_arrow_table()


def check_same(table: Table, *, without: tuple[str, ...] = ()) -> None:
    """Delta's readers see the rows that a query sees: deltalake, and DuckDB for a table in a folder."""
    ours = table.query("SELECT * FROM t").to_arrow()
    columns = [c for c in ours.column_names if c not in without]
    readers = {"deltalake": lambda: by_delta(table).to_pyarrow_table(), "duckdb": lambda: by_duckdb(table)}
    for name in readers if table.handle.location.scheme == "file" else ("deltalake",):
        theirs = readers[name]()
        assert sorted(theirs.column_names) == sorted(columns), name
        assert texts(theirs, columns) == texts(ours, columns), name


def actions(store: ObjectStore, version: int | None = None) -> list[dict[str, Any]]:
    """Return the actions of all JSON versions, or of one."""
    entries = []
    for info in store.list(store.location.keys.delta_prefix):
        name = info.key.rpartition("/")[2]
        if name.endswith(".json") and version in (None, int(name.removesuffix(".json"))):
            entries += [json.loads(line) for line in store.get(info.key).body.splitlines()]
    return entries


def files(store: ObjectStore) -> set[str]:
    """Return the keys of the files of the newest version, from a complete log."""
    paths: set[str] = set()
    for action in actions(store):
        if "add" in action:
            paths.add(action["add"]["path"])
        if "remove" in action:
            paths.discard(action["remove"]["path"])
    prefix = store.location.keys.data_prefix.removesuffix("_data/")
    return {prefix + unquote(path) for path in paths}
