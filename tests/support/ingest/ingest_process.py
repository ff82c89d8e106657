"""A real `icedb ingest` process for tests, and clients that speak HTTP to it."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.proxy.proxy_process import ProxyProcess

JSON, LINES, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
#: The key of the tenant `acme`, and of `globex`, in the configurations of tests.
KEY, OTHER_KEY = "acme-key-0123456789", "globex-key-0123456789"
SECRET = "acme-webhook-secret"


class IngestProcess(ProxyProcess):
    """As `ProxyProcess`, of the verb `ingest`."""

    verb = "ingest"


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection to a service, kept as long as it is open; made anew when it is not."""

    def __init__(self, endpoint: str, *, key: str = KEY, seconds: float = 60) -> None:
        url = urlsplit(endpoint)
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=seconds)
        self._key = key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """What is answered. Raises OSError and HTTPException when nothing is."""
        try:
            self._connection.request(method, path, body, dict(headers or {}))
            with self._connection.getresponse() as response:
                response_headers = {name.lower(): value for name, value in response.getheaders()}
                return Reply(response.status, response_headers, response.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def send(
        self,
        table: str,
        events: Any,
        *,
        kind: str = JSON,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send events to a table: bytes as they are, all else as JSON."""
        body = events if isinstance(events, bytes) else json.dumps(events).encode()
        every = {"authorization": f"Bearer {key or self._key}", "content-type": kind, **(headers or {})}
        return self.ask("POST", f"/v1/tables/{table}/events", body, every)

    def call(self, call: str, document: Any, *, key: str | None = None) -> Reply:
        """Send a call of Segment's, as its libraries do."""
        user = base64.b64encode(f"{key or self._key}:".encode()).decode()
        headers = {"authorization": f"Basic {user}", "content-type": JSON}
        return self.ask("POST", f"/v1/{call}", json.dumps(document).encode(), headers)


def service_config(folder: str, *, server: str = "", events: str = "", more: str = "") -> str:
    """A configuration with the tables that most tests write: `events`, `shared` of two tenants, and Segment's `calls`.

    `server`, `events` and `more` are lines of [server], of the table `events`, and after all else.
    """
    return f"""
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
{server}
[[table]]
name = "events"
uri = "{folder}/events"
create = true
schema = {{ id = "VARCHAR", ts = "TIMESTAMP WITH TIME ZONE", n = "BIGINT", price = "DECIMAL(18, 2)", data = "JSON" }}
id_column = "id"
received_column = "received_at"
delay_max = "20ms"
{events}
[[table]]
name = "shared"
uri = "{folder}/shared"
create = true
partition_by = ["tenant", "CAST(day AS DATE) AS d"]
schema = {{ tenant = "VARCHAR", id = "VARCHAR", day = "VARCHAR" }}
id_column = "id"
tenant_column = "tenant"
nested = "columns"
delay_max = "20ms"
[[table]]
name = "calls"
uri = "{folder}/calls"
create = true
delay_max = "20ms"
[[tenant]]
name = "acme"
tables = ["events", "shared", "calls"]
segment = "calls"
[[tenant.keys]]
secret = "{KEY}-old"
[[tenant.keys]]
secret = "{KEY}"
[[tenant.webhooks]]
secret = "{SECRET}"
[[tenant]]
name = "globex"
tables = ["shared"]
[[tenant.keys]]
secret = "{OTHER_KEY}"
{more}
"""
