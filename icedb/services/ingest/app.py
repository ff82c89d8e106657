"""The ingest service as one ASGI application: from a request's head to the answer that its events are committed.

A request is committed whole or not at all. An answer of 2xx is given after the commit; whatever else happens, the
client is told, or its connection breaks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from icedb.services.ingest.access_log import IngestAccessLog, IngestAccessRecord
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

__all__ = ["HEALTH_PATH", "READY_PATH", "IngestApp"]

logger = logging.getLogger("icedb.ingest")

HEALTH_PATH, READY_PATH = "/healthz", "/readyz"
#: Of the body of somebody who is not known, read so that the answer arrives.
_STRANGER_BYTES_MAX = 64 * 1024
_STRANGER_SECONDS = 1.0
_LAST = ("connection", "close")


class IngestApp:
    """Answers requests. Belongs to one event loop."""

    def __init__(
        self,
        settings: IngestSettings,
        tenants: Tenants,
        writers: TableWriters,
        metrics: IngestMetrics,
        access_log: IngestAccessLog,
        *,
        stopping: Callable[[], bool],
    ) -> None:
        self._intake = Intake(settings, tenants, writers, stopping)
        #: Of bodies in memory.
        self.held = BodyMemoryBudget(settings.held_bytes_max)
        self._settings = settings
        self._writers = writers
        self._metrics = metrics
        self._access_log = access_log
        self._clock = SystemClock()
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        if scope["path"] in (HEALTH_PATH, READY_PATH) and scope["method"] in ("GET", "HEAD"):
            await self._tell_state(scope, send)
            return
        exchange = self._exchange(scope, receive)
        self._metrics.in_progress.inc()
        try:
            await self._answer(exchange, scope, send)
        finally:
            record = exchange.record
            seconds = time.perf_counter() - exchange.began
            record.milliseconds = round(seconds * 1000, 1)
            self._metrics.in_progress.dec()
            self._metrics.answered(record.tenant, exchange.endpoint, record.status, seconds, record.bytes)
            self._metrics.refused(record.tenant, record.error)
            self._access_log.write(record)

    def know(self, tenants: Tenants) -> None:
        """From now on these are the tenants. For any thread."""
        self._intake.tenants = tenants

    def ready(self) -> list[str]:
        """Why requests should go elsewhere; nothing: they should come."""
        return ["it is stopping"] if self._stopping() else self._writers.problems()

    def _exchange(self, scope: Scope, receive: Receive) -> Exchange:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        record = IngestAccessRecord(
            time_ms=self._clock.now_ms(),
            request_id=self._clock.new_id()[:16],
            client=(scope.get("client") or ("", 0))[0],
            method=scope["method"],
            path=scope["path"],
            user_agent=headers.get("user-agent", ""),
        )
        return Exchange(headers, record, time.perf_counter(), RequestBody(receive))

    async def _answer(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        record = exchange.record
        try:
            with self.held.body() as take, exchange.ends:
                check_head(scope)
                table, done = await self._intake.accept(exchange, scope, take)
            record.status, record.events, record.repeated = 200, done.rows, done.repeated_rows
            record.commit, record.log_file = commit_id(done.key, done.created_ms), done.key
            self._metrics.accepted(record.tenant or "", table.settings.name, done.rows + done.repeated_rows)
            said: dict[str, Any] = {"accepted": done.rows, "repeated": done.repeated_rows, "commit": record.commit}
            if exchange.endpoint != "events":
                said["success"] = True  # Segment's own word
            await self._send(exchange, send, 200, said)
        except RequestRejected as refusal:
            await self._refuse(exchange, send, refusal)
        except ClientDisconnected:
            await self._refuse(exchange, send, RequestRejected(400, "The request's body did not come whole."))
        except Exception:
            logger.exception("request %s failed", record.request_id)
            if record.status == 200:
                raise  # the answer was begun
            message = f"That should not happen. The operator finds the reason in the log, by {record.request_id}."
            await self._refuse(exchange, send, RequestRejected(500, message))

    # ------------------------------------------------------------------------------------ answers

    async def _refuse(self, exchange: Exchange, send: Send, refusal: RequestRejected) -> None:
        record = exchange.record
        record.status, record.error = refusal.status, refusal.error
        headers = list(refusal.headers)
        if not exchange.header("expect"):  # who asks before sending a body is not told to send it
            known = record.tenant is not None
            bytes_max = self._settings.body_bytes_max if known else _STRANGER_BYTES_MAX
            await exchange.body.drain(
                bytes_max, self._settings.header_timeout_ms / 1000 if known else _STRANGER_SECONDS
            )
        if not exchange.body.whole:
            headers.append(_LAST)  # what is left is never read
        said: dict[str, Any] = {"error": refusal.error, "message": refusal.message}
        if exchange.endpoint != "events":
            said["code"] = refusal.error  # as Segment's libraries look for it
        await self._send(exchange, send, refusal.status, said, headers)

    async def _send(
        self,
        exchange: Exchange,
        send: Send,
        status: int,
        document: dict[str, Any],
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        every = [("x-request-id", exchange.record.request_id), *(headers or ())]
        head, timeout_ms = exchange.record.method == "HEAD", self._settings.send_timeout_ms
        await send_json(send, status, document, every, head=head, timeout_ms=timeout_ms)

    async def _tell_state(self, scope: Scope, send: Send) -> None:
        """Whether the process lives, and whether it should get requests: without reasons, for strangers ask, too."""
        well = scope["path"] == HEALTH_PATH or not self.ready()
        document = {"status": "ok" if well else "not ready"}
        head, timeout_ms = scope["method"] == "HEAD", self._settings.send_timeout_ms
        await send_json(send, 200 if well else 503, document, [_LAST], head=head, timeout_ms=timeout_ms)
