"""An `icedb ingest` process for tests, and HTTP clients for it."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa

from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

JSON, LINES, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
#: The key of the tenant `acme`, and of `globex`, in the configurations of tests.
KEY, OTHER_KEY = "acme-key-0123456789", "globex-key-0123456789"
SECRET = "acme-webhook-secret"


class IngestProcess(ProxyProcess):
    """A process of `icedb ingest`."""

    verb = "ingest"

    def metrics(self) -> str:
        """Request the metrics in Prometheus's text format."""
        with IngestClient(self.admin) as admin:
            return admin.ask("GET", "/metrics").body.decode()

    def wait_for_metric(self, sample: str, value: float) -> None:
        """Wait until a sample, which is a name with labels, has a value."""
        wait_until(lambda: f"\n{sample} {float(value)}\n" in self.metrics(), f"{sample} is {value}")


@dataclass(frozen=True)
class IngestReply:
    """A response of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class IngestClient:
    """A client with one connection to a service. It connects again after an error."""

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

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> IngestReply:
        """Send a request and return the response. Raises OSError or HTTPException if there is none."""
        try:
            self._connection.request(method, path, body, dict(headers or {}))
            with self._connection.getresponse() as response:
                response_headers = {name.lower(): value for name, value in response.getheaders()}
                return IngestReply(response.status, response_headers, response.read())
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
    ) -> IngestReply:
        """Send events to a table. Bytes are sent as they are, other values as JSON."""
        body = events if isinstance(events, bytes) else json.dumps(events).encode()
        every = {"authorization": f"Bearer {key or self._key}", "content-type": kind, **(headers or {})}
        return self.ask("POST", f"/v1/tables/{table}/events", body, every)

    def call(self, call: str, document: Any, *, key: str | None = None) -> IngestReply:
        """Send a call as Segment's libraries do."""
        user = base64.b64encode(f"{key or self._key}:".encode()).decode()
        headers = {"authorization": f"Basic {user}", "content-type": JSON}
        return self.ask("POST", f"/v1/{call}", json.dumps(document).encode(), headers)


def arrow_stream(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    """Encode a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def service_config(folder: str, *, server: str = "", events: str = "", more: str = "") -> str:
    """Return a configuration with the tables `events`, `shared` of two tenants, and `calls` for Segment.

    `server` and `events` are lines of [server] and of the table `events`. `more` is added at the end.
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
