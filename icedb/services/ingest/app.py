"""The ASGI application of the ingest service.

A request is committed whole or not at all. The service sends a response of 2xx after the commit. In all other cases the
client gets an error response, or its connection breaks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from icedb.services.http.health import CLIENT_HEALTH_PATH, CLIENT_READY_PATH, client_document
from icedb.services.http.log_lines import LineSink
from icedb.services.http.trace_context import trace_context
from icedb.services.ingest.access_log import IngestAccessRecord, access_line
from icedb.services.ingest.config.settings import IngestSettings
from icedb.services.ingest.config.tenants import Tenants
from icedb.services.ingest.events.rejections import RequestRejected
from icedb.services.ingest.events.request_body import ClientDisconnected, RequestBody
from icedb.services.ingest.intake import Exchange, Intake
from icedb.services.ingest.limits import BodyMemoryBudget
from icedb.services.ingest.metrics import IngestMetrics
from icedb.services.ingest.response import check_head, commit_id, send_json
from icedb.services.ingest.table_writers import TableWriters
from icedb.util.clock import SystemClock

__all__ = ["IngestApp"]

logger = logging.getLogger("icedb.ingest")

#: Maximum size of an unauthenticated body that is read and discarded, so that the client receives the response.
_UNAUTHENTICATED_BYTES_MAX = 64 * 1024
_UNAUTHENTICATED_SECONDS = 1.0
_CLOSE_HEADER = ("connection", "close")


class IngestApp:
    """The ASGI application. Belongs to one event loop."""

    def __init__(
        self,
        settings: IngestSettings,
        tenants: Tenants,
        writers: TableWriters,
        metrics: IngestMetrics,
        access_log: LineSink,
        *,
        stopping: Callable[[], bool],
    ) -> None:
        self._intake = Intake(settings, tenants, writers, stopping)
        #: The memory of request bodies.
        self.body_memory = BodyMemoryBudget(settings.held_bytes_max)
        self._settings = settings
        self._writers = writers
        self._metrics = metrics
        self._access_log = access_log
        self._clock = SystemClock()
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        if scope["path"] in (CLIENT_HEALTH_PATH, CLIENT_READY_PATH) and scope["method"] in ("GET", "HEAD"):
            await self._send_health(scope, send)
            return
        exchange = self._exchange(scope, receive)
        self._metrics.in_progress.inc()
        try:
            await self._respond(exchange, scope, send)
        finally:
            record = exchange.record
            seconds = time.perf_counter() - exchange.began
            record.milliseconds = round(seconds * 1000, 1)
            self._metrics.in_progress.dec()
            self._metrics.record_response(record.tenant, exchange.endpoint, record.status, seconds, record.bytes)
            self._metrics.record_rejection(record.tenant, record.error)
            self._access_log.write(access_line(record))

    def set_tenants(self, tenants: Tenants) -> None:
        """Replace the tenants. Thread-safe."""
        self._intake.tenants = tenants

    def not_ready_reasons(self) -> list[str]:
        """Return why the service should get no requests; empty if it is ready."""
        return ["the service is stopping"] if self._stopping() else self._writers.problems()

    def _exchange(self, scope: Scope, receive: Receive) -> Exchange:
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers, trace = dict(reversed(fields)), trace_context(fields)
        record = IngestAccessRecord(
            time_ms=self._clock.now_ms(),
            request_id=self._clock.new_id()[:16],
            client=(scope.get("client") or ("", 0))[0],
            method=scope["method"],
            path=scope["path"],
            user_agent=headers.get("user-agent", ""),
            trace_id=trace.trace_id,
            span_id=trace.span_id,
        )
        return Exchange(headers, record, time.perf_counter(), RequestBody(receive))

    async def _respond(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        record = exchange.record
        try:
            with self.body_memory.body() as reserve, exchange.on_end:
                check_head(scope)
                table, done = await self._intake.accept(exchange, scope, reserve)
            record.status, record.events, record.repeated = 200, done.rows, done.repeated_rows
            record.commit, record.log_file = commit_id(done.key, done.created_ms), done.key
            self._metrics.record_events(record.tenant or "", table.settings.name, done.rows + done.repeated_rows)
            document: dict[str, Any] = {"accepted": done.rows, "repeated": done.repeated_rows, "commit": record.commit}
            if exchange.endpoint != "events":
                document["success"] = True  # the field that Segment's API returns
            await self._send(exchange, send, 200, document)
        except RequestRejected as rejection:
            await self._reject(exchange, send, rejection)
        except ClientDisconnected:
            await self._reject(exchange, send, RequestRejected(400, "The request's body is incomplete. Send it again."))
        except Exception:
            logger.exception("request %s failed", record.request_id)
            if record.status == 200:
                raise  # the response has started
            message = f"Internal error. The service's log has the reason under request id {record.request_id}."
            await self._reject(exchange, send, RequestRejected(500, message))

    # ------------------------------------------------------------------------------------ responses

    async def _reject(self, exchange: Exchange, send: Send, rejection: RequestRejected) -> None:
        record = exchange.record
        record.status, record.error = rejection.status, rejection.error
        headers = list(rejection.headers)
        if not exchange.header("expect"):  # a client that sent Expect waits, and must not get 100 Continue
            bytes_max, seconds = _UNAUTHENTICATED_BYTES_MAX, _UNAUTHENTICATED_SECONDS
            if record.tenant is not None:
                bytes_max, seconds = self._settings.body_bytes_max, self._settings.header_timeout_ms / 1000
            await exchange.body.drain(bytes_max, seconds)
        if not exchange.body.whole:
            headers.append(_CLOSE_HEADER)  # the rest of the body stays unread
        document: dict[str, Any] = {"error": rejection.error, "message": rejection.message}
        if exchange.endpoint != "events":
            document["code"] = rejection.error  # the field that Segment's libraries read
        await self._send(exchange, send, rejection.status, document, headers)

    async def _send(
        self,
        exchange: Exchange,
        send: Send,
        status: int,
        document: dict[str, Any],
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        all_headers = [("x-request-id", exchange.record.request_id), *(headers or ())]
        head, timeout_ms = exchange.record.method == "HEAD", self._settings.send_timeout_ms
        await send_json(send, status, document, all_headers, head=head, timeout_ms=timeout_ms)

    async def _send_health(self, scope: Scope, send: Send) -> None:
        """Respond to a health check. The response has no reasons, because any client can send the request."""
        ok = scope["path"] == CLIENT_HEALTH_PATH or not self.not_ready_reasons()
        head, timeout_ms = scope["method"] == "HEAD", self._settings.send_timeout_ms
        document = client_document(ok)
        await send_json(send, 200 if ok else 503, document, [_CLOSE_HEADER], head=head, timeout_ms=timeout_ms)
