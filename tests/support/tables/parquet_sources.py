"""Parquet of other programs, in a folder or bucket beside a table, for tests of imports."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icedb.storage.location import parse_location
from icedb.storage.obstore_store import ObjectStore, open_store
from tests.support.object_stores.stores import Place

__all__ = ["beside", "encode", "put_files", "stored"]

Rows = Sequence[Mapping[str, Any]]


def encode(rows: Rows | pa.Table, **options: Any) -> bytes:
    """Return the bytes of a Parquet file."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def beside(place: Place, name: str = "source") -> str:
    """Return an address beside the table's, in the same store."""
    return f"{place.uri.rpartition('/')[0]}/{name}"


def put_files(
    uri: str, files: Mapping[str, Rows | pa.Table | bytes], storage_options: Mapping[str, str] | None = None
) -> ObjectStore:
    """Put files below an address; bytes as they are, rows as Parquet. The store, whose location is the address."""
    location = parse_location(uri, storage_options)
    store = open_store(location)
    for name, content in files.items():
        body = content if isinstance(content, bytes) else encode(content)
        store.create(f"{location.prefix}/{name}".lstrip("/"), body)
    return store


def stored(store: ObjectStore) -> dict[str, bytes]:
    """Return every object below the store's address."""
    prefix = f"{store.location.prefix}/" if store.location.prefix else ""
    return {i.key: store.get(i.key).body for i in store.list(prefix)}
