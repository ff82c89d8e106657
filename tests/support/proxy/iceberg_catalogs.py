"""The Iceberg catalog of a proxy: engines that attach it by address and key, and requests to it."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table as PyIcebergTable

from icedb.sql.connections import load_httpfs, quote_text
from tests.support.proxy.proxy_clients import REGION, Access
from tests.support.tables.iceberg_reading import duckdb_with_iceberg

NAMESPACE = "tables"
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class CatalogAnswer:
    """An answer of the catalog."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Return status and type of Iceberg's error document."""
        error = self.json["error"]
        assert error["code"] == self.status
        return self.status, error["type"]


def send(
    access: Access, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> CatalogAnswer:
    """Send a request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(access.endpoint).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return CatalogAnswer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def ask_token(access: Access, **form: str) -> CatalogAnswer:
    """Request a bearer token."""
    fields = {"grant_type": "client_credentials", "client_id": access.key_id, "client_secret": access.secret, **form}
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return send(access, "POST", "/iceberg/v1/oauth/tokens", kind, urlencode(fields).encode())


def bearer(access: Access) -> dict[str, str]:
    """Return the header with a new token."""
    return {"authorization": f"Bearer {ask_token(access).json['access_token']}"}


def load(access: Access, table: str, headers: Mapping[str, str] | None = None) -> CatalogAnswer:
    """Load a table."""
    path = f"/iceberg/v1/namespaces/{NAMESPACE}/tables/{quote(table, safe='')}"
    return send(access, "GET", path, {**bearer(access), **(headers or {})})


def pyiceberg_catalog(access: Access, **properties: str) -> RestCatalog:
    """Attach with pyiceberg: by default with a key."""
    key = {
        "credential": f"{access.key_id}:{access.secret}",
        "oauth2-server-uri": f"{access.endpoint}/iceberg/v1/oauth/tokens",
    }
    catalog = load_catalog("lake", type="rest", uri=f"{access.endpoint}/iceberg", **(properties or key))
    assert isinstance(catalog, RestCatalog)
    return catalog


def signing(access: Access, service: str) -> dict[str, str]:
    """Return the properties by which pyiceberg signs its requests."""
    return {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": REGION,
        "rest.signing-name": service,
        "client.region": REGION,
        "client.access-key-id": access.key_id,
        "client.secret-access-key": access.secret,
    }


def duckdb_catalog(access: Access) -> Any:
    """Attach with DuckDB, as `lake`."""
    con = duckdb_with_iceberg()
    load_httpfs(con)
    con.execute(
        f"CREATE SECRET (TYPE iceberg, CLIENT_ID {quote_text(access.key_id)}, "
        f"CLIENT_SECRET {quote_text(access.secret)}, OAUTH2_SERVER_URI '{access.endpoint}/iceberg/v1/oauth/tokens')"
    )
    con.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{access.endpoint}/iceberg')")
    return con


def chdb_session(access: Access) -> tuple[Any, str]:
    """Attach with ClickHouse, and return the session and the name of the database."""
    from chdb.session import Session

    session, name = Session(), f"lake_{uuid.uuid4().hex}"
    session.query("SET allow_experimental_database_iceberg = 1")
    session.query(
        f"CREATE DATABASE {name} ENGINE = DataLakeCatalog('{access.endpoint}/iceberg') SETTINGS catalog_type = 'rest', "
        f"catalog_credential = '{access.key_id}:{access.secret}', warehouse = 'lake', vended_credentials = 1, "
        f"oauth_server_uri = '{access.endpoint}/iceberg/v1/oauth/tokens'"
    )
    return session, name


def io_options(table: PyIcebergTable) -> dict[str, str]:
    """Return the options by which Polars reads the files of a table."""
    return {name: value for name, value in table.io.properties.items() if name.startswith(("s3.", "client."))}


def _by_pyiceberg(access: Access, table: str, snapshot_id: int | None, where: str | None = None) -> pa.Table:
    loaded = pyiceberg_catalog(access).load_table(f"{NAMESPACE}.{table}")
    return loaded.scan(row_filter=where or AlwaysTrue(), snapshot_id=snapshot_id).to_arrow()


def _by_duckdb(access: Access, table: str, snapshot_id: int | None, where: str | None = None) -> pa.Table:
    at = "" if snapshot_id is None else f" AT (VERSION => {snapshot_id})"
    with duckdb_catalog(access) as con:
        return con.execute(f'SELECT * FROM lake.{NAMESPACE}."{table}"{at} {_clause(where)}').to_arrow_table()


def _by_polars(access: Access, table: str, snapshot_id: int | None, where: str | None = None) -> pa.Table:
    loaded = pyiceberg_catalog(access).load_table(f"{NAMESPACE}.{table}")
    rows = pl.scan_iceberg(loaded, snapshot_id=snapshot_id, storage_options=io_options(loaded))
    return rows.sql(f"SELECT * FROM self {_clause(where)}").collect().to_arrow()


def _by_clickhouse(access: Access, table: str, snapshot_id: int | None, where: str | None = None) -> pa.Table:
    session, name = chdb_session(access)
    settings = "" if snapshot_id is None else f"SETTINGS iceberg_snapshot_id = {snapshot_id}"
    query = f"SELECT * FROM {name}.`{NAMESPACE}.{table}` {_clause(where)} {settings}"
    body = session.query(query, "Arrow").bytes()
    return pa.ipc.open_file(pa.py_buffer(body)).read_all() if body else pa.table({})


def _clause(where: str | None) -> str:
    return "" if where is None else f"WHERE {where}"


class CatalogReader(Protocol):
    """Returns the rows of a table: of a snapshot with this id, for which a predicate is true."""

    def __call__(self, access: Access, table: str, snapshot_id: int | None, where: str | None = None) -> pa.Table: ...


READERS: dict[str, CatalogReader] = {
    "pyiceberg": _by_pyiceberg,
    "duckdb": _by_duckdb,
    "polars": _by_polars,
    "clickhouse": _by_clickhouse,
}
