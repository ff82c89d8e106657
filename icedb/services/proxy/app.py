"""The ASGI application of the proxy.

    authenticate (`signing`) -> check limits (`limits`) -> respond (`routing`) -> metrics and a line of the access log

The proxy trusts no part of a request before it has checked the signature. After that, it shows only what the tenant's
buckets contain. An unexpected error is InternalError for the client and a traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from starlette.types import Message, Receive, Scope, Send

from icedb.errors import IceDBError
from icedb.services.http.health import CLIENT_HEALTH_PATH, CLIENT_READY_PATH, client_document
from icedb.services.http.log_lines import LineSink
from icedb.services.http.trace_context import trace_context
from icedb.services.proxy.access_log import ProxyAccessRecord, access_line
from icedb.services.proxy.bucket_operations import Listings
from icedb.services.proxy.catalog.table_catalog import TableCatalog
from icedb.services.proxy.config.settings import IcebergSettings, ServerSettings
from icedb.services.proxy.config.tenants import TenantDirectory
from icedb.services.proxy.iceberg.metadata_catalog import MetadataCatalog
from icedb.services.proxy.iceberg.rest import RestError, rest_error, rest_error_response
from icedb.services.proxy.iceberg_routes import TOKENS_OPERATION, IcebergRoutes
from icedb.services.proxy.limits import TenantLimiter
from icedb.services.proxy.metrics import ABORTED, ProxyMetrics
from icedb.services.proxy.request_body import check_body, check_head, has_body
from icedb.services.proxy.routing import NO_OPERATION, Operations, operation_name
from icedb.services.proxy.s3.address import Address, parse_address
from icedb.services.proxy.s3.request import S3Request
from icedb.services.proxy.s3.response import ObjectRange, S3Response
from icedb.services.proxy.s3.s3_errors import S3Error, error_document
from icedb.services.proxy.signing import AuthenticatedCaller, authenticate
from icedb.storage.obstore_store import ObjectNotFound, open_stream
from icedb.util.clock import Clock, SystemClock

__all__ = ["ProxyApp"]

logger = logging.getLogger("icedb.proxy")

# Codes that are logged for the operator. The reason was logged before.
_SERVER_ERRORS = frozenset({"InternalError", "ServiceUnavailable"})
# An unauthenticated client gets one response on a connection, so that it cannot occupy the connection.
_CLOSE_HEADER = ("connection", "close")
STEPS_PER_SECOND = 4
STEP_BYTES_MIN = 4 * 1024


@dataclass
class _Exchange:
    """A request and its response."""

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
    #: True for Iceberg's REST protocol, whose errors are JSON.
    is_rest: bool = False


class ProxyApp:
    """The ASGI application. Belongs to one event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        directory: TenantDirectory,
        tables: TableCatalog,
        limiter: TenantLimiter,
        metrics: ProxyMetrics,
        access_log: LineSink,
        *,
        iceberg: IcebergSettings | None = None,
        clock: Clock | None = None,
        not_ready_reasons: Callable[[], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._limiter = limiter
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock or SystemClock()
        self._not_ready_reasons = not_ready_reasons
        redirect_for = timedelta(milliseconds=settings.redirect_expires_ms) if settings.redirect else None
        metadata = None if iceberg is None else MetadataCatalog(tables, iceberg)
        self._operations = Operations(tables, Listings(tables), settings.region, redirect_for, metadata)
        self._iceberg = None
        if iceberg is not None and metadata is not None:
            self._iceberg = IcebergRoutes(metadata, directory, iceberg, settings, self._clock.now_ms)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        if scope["path"] in (CLIENT_HEALTH_PATH, CLIENT_READY_PATH) and scope["method"] in ("GET", "HEAD"):
            await self._send_health(scope, send)
            return
        client = scope.get("client") or ("", 0)
        exchange = _Exchange(
            _request_of(scope), self._clock.new_id()[:16].upper(), client[0], self._clock.now_ms(), time.perf_counter()
        )
        self._metrics.in_progress.inc()
        try:
            await self._handle(exchange, receive, send)
        finally:
            self._metrics.in_progress.dec()
            self._record(exchange)

    async def _send_health(self, scope: Scope, send: Send) -> None:
        """Respond to a health check. The response has no reasons, because any client can send the request."""
        reasons = self._not_ready_reasons if scope["path"] == CLIENT_READY_PATH else None
        ok = reasons is None or not await reasons()
        body = msgspec.json.encode(client_document(ok)) + b"\n"
        headers = (("content-type", "application/json"), _CLOSE_HEADER)
        with suppress(TimeoutError):
            await self._send(send, S3Response(200 if ok else 503, headers=headers, body=body))

    async def _handle(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        try:
            check_head(exchange.request)
            if self._iceberg is not None and self._iceberg.serves(exchange.request):
                exchange.is_rest = True
                await self._finish(exchange, await self._respond_rest(self._iceberg, exchange, receive), send)
                return
            caller = await self._authenticated(exchange)
            address = parse_address(exchange.request, self._settings.domains)
            exchange.operation = operation_name(exchange.request, address)
            with self._limiter.enter(caller.tenant):
                response = await self._respond(exchange, caller, address, receive)
                if response.content is not None:
                    await self._stream(exchange, caller, response, response.content, receive, send)
                else:
                    await self._finish(exchange, response, send)
        except RestError as error:
            await self._finish(exchange, rest_error_response(error), send)
        except S3Error as error:
            if error.code in _SERVER_ERRORS and exchange.caller is not None:
                logger.error("request %s (%s) failed with %s", exchange.id, exchange.operation, error.code)
            await self._finish(exchange, _error_response(error, exchange), send)
        except IceDBError as error:
            logger.error("request %s (%s) failed: %s", exchange.id, exchange.operation, error)
            await self._finish(exchange, _error_response(S3Error("ServiceUnavailable"), exchange), send)
        except Exception:
            logger.exception("request %s (%s) failed", exchange.id, exchange.operation)
            if exchange.status:
                raise  # the server closes the connection, so that the client detects the incomplete response
            await self._finish(exchange, _error_response(S3Error("InternalError"), exchange), send)

    async def _authenticated(self, exchange: _Exchange) -> AuthenticatedCaller:
        caller = exchange.caller = await authenticate(exchange.request, self._directory, now_ms=self._clock.now_ms())
        return caller

    async def _respond(
        self, exchange: _Exchange, caller: AuthenticatedCaller, address: Address, receive: Receive
    ) -> S3Response:
        request = exchange.request
        if caller.payload_sha256 is not None or has_body(request):
            await check_body(request, receive, sha256=caller.payload_sha256)
        return await self._operations.respond(exchange.operation, caller.tenant, address, request)

    async def _respond_rest(self, iceberg: IcebergRoutes, exchange: _Exchange, receive: Receive) -> S3Response:
        request = exchange.request
        if iceberg.wants_token(request):
            exchange.operation = TOKENS_OPERATION
            owner = await iceberg.authenticate_client(request, receive)
            exchange.caller = AuthenticatedCaller(owner)
            with self._limiter.enter(owner.tenant):
                return iceberg.token_response(owner)
        caller = exchange.caller = await iceberg.authenticate(request)
        operation = iceberg.operation(request)
        exchange.operation = operation.name
        with self._limiter.enter(caller.tenant):
            if caller.payload_sha256 is not None or has_body(request):
                await check_body(request, receive, sha256=caller.payload_sha256)
            return await iceberg.respond(operation, caller.owner, request)

    # ------------------------------------------------------------------------------------ sending

    async def _finish(self, exchange: _Exchange, response: S3Response, send: Send) -> None:
        exchange.status, exchange.code = response.status, response.code
        headers = [("x-amz-request-id", exchange.id)]
        if exchange.caller is None or has_body(exchange.request):
            headers.append(_CLOSE_HEADER)  # the rest of the body stays unread
        head = exchange.request.method == "HEAD"
        try:
            await self._send(send, response, headers, head=head)
        except TimeoutError:
            exchange.code = ABORTED
        else:
            exchange.sent = 0 if head else len(response.body)

    async def _send(
        self, send: Send, response: S3Response, headers: Iterable[tuple[str, str]] = (), *, head: bool = False
    ) -> None:
        all_headers = [*response.headers, *headers]
        if response.status != 304 and not any(name == "content-length" for name, _ in all_headers):
            all_headers.append(("content-length", str(len(response.body))))
        await self._send_message(send, _start(response.status, all_headers))
        await self._send_message(send, _body(b"" if head else response.body, more=False))

    async def _send_message(self, send: Send, message: Message) -> None:
        """Send a message of a response. Raises TimeoutError if the client reads nothing for too long.

        After a TimeoutError no more may be sent: the server closes a connection whose response is incomplete.
        """
        async with asyncio.timeout(self._settings.send_timeout_ms / 1000):
            await send(message)

    async def _stream(
        self,
        exchange: _Exchange,
        caller: AuthenticatedCaller,
        response: S3Response,
        content: ObjectRange,
        receive: Receive,
        send: Send,
    ) -> None:
        """Stream a range of an object. If the read fails after the start, the server closes the connection."""
        try:
            pieces = await open_stream(content.store, content.stored_key, content.start, content.stop)
        except ObjectNotFound:
            logger.error("%s: the part %s does not exist", content.store.location.uri, content.stored_key)
            raise S3Error("NoSuchKey") from None
        exchange.status = response.status
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            async with aclosing(pieces):  # closes the stream now, and frees the connection to the store
                await self._send_message(
                    send, _start(response.status, [*response.headers, ("x-amz-request-id", exchange.id)])
                )
                async for piece in pieces:
                    for step in _steps(piece, caller.tenant.limits.bytes_per_second):
                        await self._limiter.spend(caller.tenant, len(step))
                        if disconnected.done():
                            return
                        await self._send_message(send, _body(step, more=True))
                        exchange.sent += len(step)
                await self._send_message(send, _body(b"", more=False))
        except (IceDBError, TimeoutError) as error:  # without the last message, the server closes the connection
            exchange.code = ABORTED
            why = str(error) or "the client did not read it"
            logger.error("the response to %s ended after %d bytes: %s", exchange.id, exchange.sent, why)
        finally:
            disconnected.cancel()
            with suppress(asyncio.CancelledError):
                await disconnected

    def _record(self, exchange: _Exchange) -> None:
        request, caller = exchange.request, exchange.caller
        seconds = time.perf_counter() - exchange.began
        tenant = caller.tenant.name if caller else None
        self._metrics.record_response(
            tenant, exchange.operation, exchange.status, exchange.code, seconds, exchange.sent
        )
        headers, trace = dict(reversed(request.headers)), trace_context(request.headers)
        self._access_log.write(
            access_line(
                ProxyAccessRecord(
                    time_ms=exchange.time_ms,
                    request_id=exchange.id,
                    client=exchange.client,
                    tenant=tenant,
                    access_key_id=caller.access_key_id if caller else None,
                    method=request.method,
                    host=headers.get("host", ""),
                    path=request.path,
                    query=request.query,
                    range=headers.get("range"),
                    status=exchange.status,
                    code=exchange.code,
                    bytes=exchange.sent,
                    milliseconds=seconds * 1000,
                    user_agent=headers.get("user-agent", ""),
                    trace_id=trace.trace_id,
                    span_id=trace.span_id,
                )
            )
        )


def _request_of(scope: Scope) -> S3Request:
    return S3Request(
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
    )


def _error_response(error: S3Error, exchange: _Exchange) -> S3Response:
    if exchange.is_rest:
        return rest_error_response(rest_error(error))
    document = error_document(error, resource=exchange.request.path, request_id=exchange.id)
    headers = (("content-type", "application/xml"), *error.headers)
    return S3Response(error.status, headers, document, code=error.code)


def _start(status: int, headers: list[tuple[str, str]]) -> Message:
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


def _steps(piece: bytes, bytes_per_second: int | None) -> Iterator[bytes]:
    """Split a piece for sending. With a rate limit the steps are small, so that clients never wait for long."""
    if bytes_per_second is None:
        yield piece
        return
    size = max(STEP_BYTES_MIN, bytes_per_second // STEPS_PER_SECOND)
    for start in range(0, len(piece), size):
        yield piece[start : start + size]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
