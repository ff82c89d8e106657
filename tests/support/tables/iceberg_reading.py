"""Readers of exported Iceberg metadata: pyiceberg, DuckDB, Polars, ClickHouse, and a small one for any store."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import chdb
import duckdb
import fastavro
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

from icedb import Table
from icedb.storage.obstore_store import ObjectStore
from tests.support.tables.delta_reading import duckdb_with, texts


def by_pyiceberg(table: Table, metadata: str) -> StaticTable:
    """Open a document with pyiceberg."""
    options = table.handle.location.storage_options
    names = {
        "s3.endpoint": "AWS_ENDPOINT_URL",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.region": "AWS_REGION",
    }
    return StaticTable.from_metadata(metadata, {ours: options[name] for ours, name in names.items() if name in options})


def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """Connect to a DuckDB with the extension for Iceberg."""
    return duckdb_with("avro", "iceberg")


def rows_by_pyiceberg(table: Table, metadata: str, snapshot_id: int | None = None) -> pa.Table:
    return by_pyiceberg(table, metadata).scan(snapshot_id=snapshot_id).to_arrow()


def rows_by_duckdb(table: Table, metadata: str, snapshot_id: int | None = None) -> pa.Table:
    snapshot = "" if snapshot_id is None else f", snapshot_from_id = {snapshot_id}"
    with duckdb_with_iceberg() as con:
        return con.execute(f"SELECT * FROM iceberg_scan('{metadata}'{snapshot})").to_arrow_table()


def rows_by_polars(table: Table, metadata: str, snapshot_id: int | None = None) -> pa.Table:
    return pl.scan_iceberg(metadata, snapshot_id=snapshot_id).collect().to_arrow()


def rows_by_clickhouse(table: Table, metadata: str, snapshot_id: int | None = None) -> pa.Table:
    """Read with chDB, which reads files below the working folder, and finds the newest document by itself."""
    settings = "" if snapshot_id is None else f"SETTINGS iceberg_snapshot_id = {snapshot_id}"
    query = f"SELECT * FROM icebergLocal('{table.uri}') {settings}"
    with contextlib.chdir(table.uri):
        return pa.ipc.open_file(pa.py_buffer(chdb.query(query, "Arrow").bytes())).read_all()


#: The readers of a table in a folder, by name.
READERS: dict[str, Callable[[Table, str, int | None], pa.Table]] = {
    "pyiceberg": rows_by_pyiceberg,
    "duckdb": rows_by_duckdb,
    "polars": rows_by_polars,
    "clickhouse": rows_by_clickhouse,
}


def check_same(table: Table, metadata: str | None, *, without: tuple[str, ...] = ()) -> None:
    """Pyiceberg and DuckDB read the rows that a query reads."""
    assert metadata is not None
    ours = table.query("SELECT * FROM t").to_arrow()
    columns = [c for c in ours.column_names if c not in without]
    for read in (rows_by_pyiceberg, rows_by_duckdb) if table.handle.location.scheme == "file" else (rows_by_pyiceberg,):
        theirs = read(table, metadata)
        assert sorted(theirs.column_names) == sorted(columns), read
        assert texts(theirs, columns) == texts(ours, columns), read


def document(store: ObjectStore) -> dict[str, Any]:
    """Return the newest document of a store."""
    prefix = store.location.keys.iceberg_prefix
    newest = max(info.key for info in store.list(prefix) if info.key.endswith(".metadata.json"))
    decoded: dict[str, Any] = json.loads(store.get(newest).body)
    return decoded


def records(store: ObjectStore, address: str) -> list[dict[str, Any]]:
    """Return the records of an Avro file."""
    key = address.removeprefix(f"{store.location.root_uri}/")
    return list(fastavro.reader(io.BytesIO(store.get(key).body)))  # type: ignore[arg-type]


def files(store: ObjectStore, snapshot: dict[str, Any] | None = None) -> set[str]:
    """Return the keys of the files of the current snapshot, or of another one in the newest document."""
    newest = document(store)
    if snapshot is None:
        [snapshot] = [s for s in newest["snapshots"] if s["snapshot-id"] == newest["current-snapshot-id"]]
    entries = [
        entry
        for manifest in records(store, snapshot["manifest-list"])
        for entry in records(store, manifest["manifest_path"])
    ]
    return {entry["data_file"]["file_path"].removeprefix(f"{store.location.root_uri}/") for entry in entries}
