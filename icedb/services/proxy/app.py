"""The proxy as one ASGI application: from a request's head to the last byte of its answer.

    who asks (`signing`) -> may they, now (`limits`) -> what (`operations`) -> bytes, counted, and a line in the log

Nothing is believed before the signature is checked, and nothing is answered after it that the tenant's buckets do not
show. A failure that nobody foresaw is InternalError for the client and a traceback for the operator.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta

from starlette.types import Message, Receive, Scope, Send

from icedb.errors import IceDBError
from icedb.services.proxy.access_log import ProxyAccessLog, ProxyAccessRecord
from icedb.services.proxy.bucket_operations import Listings
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.settings import ServerSettings
from icedb.services.proxy.config.tenants import TenantDirectory
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import ABORTED, ProxyMetrics
from icedb.services.proxy.routing import NO_OPERATION, Operations, operation_name
from icedb.services.proxy.s3.address import Address, parse_address
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import ObjectRange, S3Response
from icedb.services.proxy.s3.s3_errors import S3Error, error_document
from icedb.services.proxy.signing import AuthenticatedCaller, authenticate
from icedb.storage.obstore_store import ObjectNotFound, open_stream
from icedb.util.clock import Clock, SystemClock

__all__ = ["HEALTH_PATH", "ProxyApp"]

logger = logging.getLogger("icedb.proxy")

#: No bucket can have this name.
HEALTH_PATH = "/-/health"
# What is asked for here has no body; clients that send one all the same send little.
BODY_BYTES_MAX = 64 * 1024
# What the operator should know of: why is in the log before it.
_OUR_FAULT = frozenset({"InternalError", "ServiceUnavailable"})
# Who is not known gets one answer on a connection: nobody can keep one by questions whose answers are not read.
_LAST = ("connection", "close")
STEPS_PER_SECOND = 4
STEP_BYTES_MIN = 4 * 1024


@dataclass
class _Exchange:
    """A request and what became of it."""

    request: S3Request
    id: str
    client: str
    time_ms: int
    began: float
    caller: AuthenticatedCaller | None = None
    operation: str = NO_OPERATION
    status: int = 0
    code: str = ""
    sent: int = 0


class ProxyApp:
    """Answers requests for S3. Belongs to one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        directory: TenantDirectory,
        tables: TableCatalog,
        gate: TenantLimiter,
        metrics: ProxyMetrics,
        access_log: ProxyAccessLog,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._gate = gate
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock or SystemClock()
        redirect_for = timedelta(milliseconds=settings.redirect_expires_ms) if settings.redirect else None
        self._operations = Operations(tables, Listings(tables), settings.region, redirect_for)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        if scope["path"] == HEALTH_PATH and scope["method"] in ("GET", "HEAD"):
            headers = (("content-type", "text/plain"), _LAST)
            with suppress(TimeoutError):
                await self._send(send, S3Response(headers=headers, body=b"ok\n"))
            return
        client = scope.get("client") or ("", 0)
        exchange = _Exchange(
            _request_of(scope), self._clock.new_id()[:16].upper(), client[0], self._clock.now_ms(), time.perf_counter()
        )
        self._metrics.in_progress.inc()
        try:
            await self._exchange(exchange, receive, send)
        finally:
            self._metrics.in_progress.dec()
            self._tell(exchange)

    async def _exchange(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        try:
            caller = await self._authenticated(exchange)
            address = parse_address(exchange.request, self._settings.domains)
            exchange.operation = operation_name(exchange.request, address)
            with self._gate.enter(caller.tenant):
                answer = await self._answer(exchange, caller, address, receive)
                if answer.content is not None:
                    await self._stream(exchange, caller, answer, answer.content, receive, send)
                else:
                    await self._finish(exchange, answer, send)
        except S3Error as error:
            if error.code in _OUR_FAULT and exchange.caller is not None:
                logger.error("request %s (%s) was answered with %s", exchange.id, exchange.operation, error.code)
            await self._finish(exchange, _refusal(error, exchange), send)
        except IceDBError as error:
            logger.error("request %s (%s) failed: %s", exchange.id, exchange.operation, error)
            await self._finish(exchange, _refusal(S3Error("ServiceUnavailable"), exchange), send)
        except Exception:
            logger.exception("request %s (%s) failed", exchange.id, exchange.operation)
            if exchange.status:
                raise  # the server breaks the connection off: half an answer must not look whole
            await self._finish(exchange, _refusal(S3Error("InternalError"), exchange), send)

    async def _authenticated(self, exchange: _Exchange) -> AuthenticatedCaller:
        request = exchange.request
        request.check_size()
        if request.header("content-length") is not None and request.header("transfer-encoding") is not None:
            raise S3Error("InvalidRequest", "A request has a Content-Length or a Transfer-Encoding, not both.")
        caller = exchange.caller = await authenticate(request, self._directory, now_ms=self._clock.now_ms())
        return caller

    async def _answer(
        self, exchange: _Exchange, caller: AuthenticatedCaller, address: Address, receive: Receive
    ) -> S3Response:
        request = exchange.request
        if caller.payload_sha256 is not None or _has_body(request):
            await _check_body(caller, request, receive)
        return await self._operations.answer(exchange.operation, caller.tenant, address, request)

    # ------------------------------------------------------------------------------------ sending

    async def _finish(self, exchange: _Exchange, answer: S3Response, send: Send) -> None:
        exchange.status, exchange.code = answer.status, answer.code
        headers = [("x-amz-request-id", exchange.id)]
        if exchange.caller is None or _has_body(exchange.request):
            headers.append(_LAST)  # what is left of a body is never read
        head = exchange.request.method == "HEAD"
        try:
            await self._send(send, answer, headers, head=head)
        except TimeoutError:
            exchange.code = ABORTED
        else:
            exchange.sent = 0 if head else len(answer.body)

    async def _send(
        self, send: Send, answer: S3Response, headers: Iterable[tuple[str, str]] = (), *, head: bool = False
    ) -> None:
        every = [*answer.headers, *headers]
        if answer.status != 304 and not any(name == "content-length" for name, _ in every):
            every.append(("content-length", str(len(answer.body))))
        await self._say(send, _start(answer.status, every))
        await self._say(send, _body(b"" if head else answer.body, more=False))

    async def _say(self, send: Send, message: Message) -> None:
        """Send some of an answer. Raises TimeoutError when the client takes nothing for too long.

        The answer has to end there: the server breaks off connections whose answer has no end.
        """
        async with asyncio.timeout(self._settings.send_timeout_ms / 1000):
            await send(message)

    async def _stream(
        self,
        exchange: _Exchange,
        caller: AuthenticatedCaller,
        answer: S3Response,
        content: ObjectRange,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send a piece of an object while it is read. When that fails half way, the connection is broken off."""
        try:
            pieces = await open_stream(content.store, content.stored_key, content.start, content.stop)
        except ObjectNotFound:
            logger.error("%s: the part %s is gone", content.store.location.uri, content.stored_key)
            raise S3Error("NoSuchKey") from None
        exchange.status = answer.status
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            async with aclosing(pieces):  # ends at once, and not when nobody holds it: the store's connection is free
                await self._say(send, _start(answer.status, [*answer.headers, ("x-amz-request-id", exchange.id)]))
                async for piece in pieces:
                    for step in _steps(piece, caller.tenant.limits.bytes_per_second):
                        await self._gate.spend(caller.tenant, len(step))
                        if gone.done():
                            return
                        await self._say(send, _body(step, more=True))
                        exchange.sent += len(step)
                await self._say(send, _body(b"", more=False))
        except (IceDBError, TimeoutError) as error:  # without the last message the server breaks the connection off
            exchange.code = ABORTED
            why = str(error) or "the client did not take it"
            logger.error("the answer to %s ended after %d bytes: %s", exchange.id, exchange.sent, why)
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone

    def _tell(self, exchange: _Exchange) -> None:
        request, caller = exchange.request, exchange.caller
        seconds = time.perf_counter() - exchange.began
        tenant = caller.tenant.name if caller else None
        self._metrics.answered(tenant, exchange.operation, exchange.status, exchange.code, seconds, exchange.sent)
        said = dict(reversed(request.headers))
        self._access_log.write(
            ProxyAccessRecord(
                time_ms=exchange.time_ms,
                request_id=exchange.id,
                client=exchange.client,
                tenant=tenant,
                access_key_id=caller.access_key_id if caller else None,
                method=request.method,
                host=said.get("host", ""),
                path=request.path,
                query=request.query,
                range=said.get("range"),
                status=exchange.status,
                code=exchange.code,
                bytes=exchange.sent,
                milliseconds=seconds * 1000,
                user_agent=said.get("user-agent", ""),
            )
        )


def _request_of(scope: Scope) -> S3Request:
    return S3Request(
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
    )


def _has_body(request: S3Request) -> bool:
    said = dict(request.headers)
    return "transfer-encoding" in said or said.get("content-length", "0") != "0"


async def _check_body(caller: AuthenticatedCaller, request: S3Request, receive: Receive) -> None:
    """Read what little there may be, and compare it with what was signed. Raises S3Error."""
    digest, size = hashlib.sha256(), 0
    more = _has_body(request)
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise S3Error("InvalidRequest", "The request's body did not come whole.")
        body = message.get("body", b"")
        size += len(body)
        if size > BODY_BYTES_MAX:
            raise S3Error("EntityTooLarge")
        digest.update(body)
        more = message.get("more_body", False)
    if caller.payload_sha256 not in (None, digest.hexdigest()):
        raise S3Error("XAmzContentSHA256Mismatch")


def _refusal(error: S3Error, exchange: _Exchange) -> S3Response:
    document = error_document(error, resource=exchange.request.path, request_id=exchange.id)
    headers = (("content-type", "application/xml"), *error.headers)
    return S3Response(error.status, headers, document, code=error.code)


def _start(status: int, headers: list[tuple[str, str]]) -> Message:
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


def _steps(piece: bytes, bytes_per_second: int | None) -> Iterator[bytes]:
    """What is sent at a time: of a tenant with a limit little, so that its clients never wait for long."""
    if bytes_per_second is None:
        yield piece
        return
    size = max(STEP_BYTES_MIN, bytes_per_second // STEPS_PER_SECOND)
    for start in range(0, len(piece), size):
        yield piece[start : start + size]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
