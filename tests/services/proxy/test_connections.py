"""Misbehaving connections over real sockets: clients that stop reading their responses, connect and send nothing,
do not shake hands for TLS, or send what is no HTTP. None of them keeps others out, and the log tells what they got.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from icedb import Table
from icedb.services.proxy.config.tenants import AccessKey
from tests.services.proxy.test_server import allow_files, certificates, rest_of, value  # noqa: F401  # a fixture
from tests.support.proxy.proxy_attacks import replies
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.proxy.proxy_worlds import signed_headers
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.process

KEY = AccessKey("ACMEKEY1", "secret-of-acme-1")


@dataclass(frozen=True)
class OnePartLake:
    """A table with one part that is larger than the system's buffers for a client that does not read."""

    table: str
    path: str

    def config(self, server: str) -> str:
        return (
            f'[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n{server}\n'
            f'[[tenant]]\nname = "acme"\nkeys = [{{ id = "{KEY.id}", secret = "{KEY.secret}" }}]\n'
            f'[[tenant.bucket]]\nname = "events"\ntable = "{self.table}"\n'
        )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> OnePartLake:
    folder = tmp_path_factory.mktemp("lake") / "events"
    table = Table.create(folder, partition_by=["k"], storage_options={"fsync": "false"})
    table.insert([{"k": 1, "b": os.urandom(100_000)} for _ in range(100)])
    [part] = table.snapshot().parts
    return OnePartLake(str(folder), quote(f"/events/{part.key.partition('_data/')[2]}"))


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def signed_request(port: int, path: str, *, more: Iterable[str] = ()) -> bytes:
    """Return the head of a signed request."""
    headers = signed_headers("GET", f"http://127.0.0.1:{port}{path}", {}, b"", key=KEY)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), *more, "", ""]
    return "\r\n".join(lines).encode()


def unsigned(path: str = "/events", *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *more, "", ""]).encode()


def connect(port: int, context: ssl.SSLContext | None = None, *, keeps: int | None = None) -> socket.socket:
    """Connect. `keeps` limits the receive buffer of the client."""
    sock = socket.socket()
    if keeps is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, keeps)
    sock.settimeout(SECONDS_MAX)
    sock.connect(("127.0.0.1", port))
    return sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1")


def statuses(port: int, sent: bytes, context: ssl.SSLContext | None = None) -> list[int]:
    """Return the statuses of all responses on a connection until the server closes it."""
    with connect(port, context) as sock:
        sock.sendall(sent)
        return [reply.status for reply in replies(rest_of(sock))]


def listing_is_answered(port: int, context: ssl.SSLContext | None = None) -> bool:
    question = signed_request(port, "/events?list-type=2", more=["Connection: close"])
    return statuses(port, question, context) == [200]


def files_of(proxy: ProxyProcess) -> int:
    return len(list(Path(f"/proc/{proxy.process.pid}/fd").iterdir()))


# ------------------------------------------------------------------------------------------ answers not read


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_that_stops_reading_is_disconnected(
    lake: OnePartLake,
    sockets: ExitStack,
    certificates: Path,  # noqa: F811
    tls: bool,
) -> None:
    """The connections of such a client are freed, and do not delay the exit, which may take an hour."""
    server = 'connections = 4\nsend_timeout = "1s"\nstop_timeout = "1h"\n'
    server += with_tls(certificates) if tls else ""
    with ProxyProcess(lake.config(server)) as proxy:
        context = trusting(certificates) if tls else None
        for _ in range(4):
            sock = sockets.enter_context(connect(proxy.port, context, keeps=4096))
            sock.sendall(signed_request(proxy.port, lake.path))
        wait_until(lambda: [line["code"] for line in proxy.access_log()] == ["Aborted"] * 4, "they were not cut off")
        assert listing_is_answered(proxy.port, context)
        proxy.signal(signal.SIGTERM)
        assert proxy.wait() == 0
        assert "Traceback" not in proxy.errors()
        assert "ASGI" not in proxy.errors()


@pytest.mark.sampled(days=6)
def test_unread_responses_do_not_block_others(lake: OnePartLake, sockets: ExitStack) -> None:
    """An authenticated client does not read. Responses are short, and the last one would wait for ever."""
    with ProxyProcess(lake.config('connections = 2\nsend_timeout = "1s"\nstop_timeout = "1h"')) as proxy:
        question = signed_request(proxy.port, f"/events/{'a' * 900}")
        full = [sockets.enter_context(connect(proxy.port, keeps=4096)) for _ in range(2)]
        for sock in full:
            sock.setblocking(False)
        left = {sock: memoryview(question * 40_000) for sock in full}

        def fill() -> bool:
            """Send until the server closes the connections because their responses are not read."""
            for sock in list(left):
                try:
                    left[sock] = left[sock][sock.send(left[sock][:1_000_000]) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    del left[sock]
            return not left

        wait_until(fill, "they are kept")
        assert listing_is_answered(proxy.port)
        assert "Aborted" in {line["code"] for line in proxy.access_log()}
        proxy.signal(signal.SIGTERM)
        assert proxy.wait() == 0


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("path", ["/events", "/-/health"])
def test_an_unauthenticated_client_gets_one_response_per_connection(lake: OnePartLake, path: str) -> None:
    with ProxyProcess(lake.config("")) as proxy:
        assert statuses(proxy.port, unsigned(path) * 3) == [200 if path == "/-/health" else 403]
        listing = signed_request(proxy.port, "/events?list-type=2")
        assert statuses(proxy.port, listing * 2 + unsigned()) == [200, 200, 403], (
            "an authenticated client gets several responses"
        )


# ------------------------------------------------------------------------------------------ before there is a request


def trusting(certificates: Path) -> ssl.SSLContext:  # noqa: F811
    return ssl.create_default_context(cafile=str(certificates / "a.pem"))


def with_tls(certificates: Path) -> str:  # noqa: F811
    return f'tls_certificate = "{certificates}/a.pem"\ntls_key = "{certificates}/a.key"\nheader_timeout = "1h"'


def answer_over_tls(proxy: ProxyProcess, certificates: Path) -> bytes:  # noqa: F811
    with connect(proxy.port, trusting(certificates)) as sock:
        sock.sendall(unsigned("/-/health"))
        return rest_of(sock)


def test_connections_without_a_handshake_count(lake: OnePartLake, sockets: ExitStack, certificates: Path) -> None:  # noqa: F811
    """With 600 clients, 50 connections and long timeouts, the proxy has open files left for other clients."""
    allow_files(2_000)
    with ProxyProcess(lake.config("connections = 50\n" + with_tls(certificates))) as proxy:
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (300, 300))
        before = files_of(proxy)
        for _ in range(600):
            sockets.enter_context(connect(proxy.port))
        assert answer_over_tls(proxy, certificates).endswith(b'{"status":"ok"}\n')
        with urllib.request.urlopen(f"{proxy.admin}/health", timeout=SECONDS_MAX) as answer:
            assert answer.read() == b'{"status":"ok"}\n'
        wait_until(lambda: files_of(proxy) <= before + 60, "they are kept open")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait() == 0
        assert proxy.errors().count("\n") == 1


@pytest.mark.sampled(days=3)
def test_a_tls_connection_beyond_the_limit_gets_503(lake: OnePartLake, sockets: ExitStack, certificates: Path) -> None:  # noqa: F811
    """If all connections are in use, those without a handshake are evicted for each other and for the next."""
    server = 'connections = 2\nstop_timeout = "0s"\n' + with_tls(certificates)
    with ProxyProcess(lake.config(server)) as proxy:
        for _ in range(2):
            sock = sockets.enter_context(connect(proxy.port, trusting(certificates), keeps=4096))
            sock.sendall(signed_request(proxy.port, lake.path))
            assert sock.recv(12) == b"HTTP/1.1 200"
        silent = [sockets.enter_context(connect(proxy.port)) for _ in range(5)]
        assert answer_over_tls(proxy, certificates).startswith(b"HTTP/1.1 503 ")
        for sock in silent:
            assert rest_of(sock) == b""


@pytest.mark.sampled(days=3)
def test_it_accepts_again_once_files_can_be_opened(lake: OnePartLake, sockets: ExitStack) -> None:
    allow_files(2_000)
    with ProxyProcess(lake.config('connections = 500\nheader_timeout = "1h"')) as proxy:
        pid = proxy.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files_of(proxy) + 10, hard))
        for _ in range(50):
            sockets.enter_context(connect(proxy.port))
        wait_until(lambda: "cannot accept connections: Too many open files" in proxy.errors(), "the error is logged")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert listing_is_answered(proxy.port)


# ------------------------------------------------------------------------------------------ what is no HTTP


@pytest.mark.sampled(days=3)
def test_a_malformed_body_fails_only_its_request(lake: OnePartLake) -> None:
    """The request gets one response, which the access log has, and standard error stays empty."""
    with ProxyProcess(lake.config("")) as proxy:
        port, chunked = proxy.port, "Transfer-Encoding: chunked"
        assert statuses(port, unsigned("/at-once", chunked) + b"ZZZ\r\n") == [403]
        assert statuses(port, signed_request(port, "/events/at-once", more=[chunked]) + b"ZZZ\r\n") == [400]
        with connect(port) as sock:
            sock.sendall(signed_request(port, "/events/later", more=[chunked]) + b"1\r\na")
            wait_until(lambda: value(proxy, "icedb_proxy_requests_in_progress") == 1, "it does not wait for the body")
            sock.sendall(b"\r\nZZZ\r\n")
            (reply,) = replies(rest_of(sock))
        assert (reply.status, reply.texts("Code")) == (400, ["InvalidRequest"])
        assert statuses(port, b"NO HTTP\r\n\r\n") == [400]
        assert statuses(port, signed_request(port, "/events?list-type=2") + b"NO HTTP\r\n\r\n") == [200, 400]
        wait_until(lambda: len(proxy.access_log()) == 4, "lines are missing")
        assert [(line["path"], line["status"], line["code"]) for line in proxy.access_log()] == [
            ("/at-once", 403, "AccessDenied"),
            ("/events/at-once", 400, "InvalidRequest"),
            ("/events/later", 400, "InvalidRequest"),
            ("/events", 200, ""),
        ]
        assert proxy.errors().count("\n") == 1


@pytest.mark.sampled(days=3)
def test_a_malformed_body_after_the_response_closes_the_connection(lake: OnePartLake) -> None:
    """Health and metrics respond without waiting for the bodies of requests."""
    with ProxyProcess(lake.config("")) as proxy, connect(int(proxy.admin.rpartition(":")[2])) as sock:
        sock.sendall(b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 405 ")
        sock.sendall(b"ZZZ\r\n")
        assert b"HTTP/1.1" not in rest_of(sock)
        assert proxy.errors().count("\n") == 1
