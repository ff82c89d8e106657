"""The process of the proxy, with real processes and sockets: start and its errors, reload of tenants, shutdown, silent
clients, metrics and access log.
"""

from __future__ import annotations

import http.client
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from prometheus_client.parser import text_string_to_metric_families

from icedb import Table
from tests.support.proxy.proxy_process import ROOT, ProxyProcess, proxy_command
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.process

KEY, SECRET = "ACMEKEY1", "secret-of-acme-1"
SLOW_KEY, SLOW_SECRET = "SLOWKEY1", "secret-of-slow-1"
LONG_KEY, LONG_SECRET = "LONGKEY1", "secret-of-long-1"


@dataclass(frozen=True)
class OnePartTable:
    """A table with one part of some megabytes, and configurations for it."""

    table: str
    key: str
    content: bytes

    def config(self, server: str = "", *, key: str = KEY, secret: str = SECRET) -> str:
        """Tenant `slow` downloads the part in some seconds, `long` in some minutes."""
        tenants = (("acme", key, secret, ""), ("slow", SLOW_KEY, SLOW_SECRET, "bytes_per_second = 700000"),
                   ("long", LONG_KEY, LONG_SECRET, "bytes_per_second = 20000"))  # fmt: skip
        return f'[server]\nlisten = "127.0.0.1:0"\n{server}\n' + "".join(
            f'[[tenant]]\nname = "{name}"\nkeys = [{{ id = "{id_}", secret = "{own}" }}]\n{limits}\n'
            f'[[tenant.bucket]]\nname = "events"\ntable = "{self.table}"\n'
            for name, id_, own, limits in tenants
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> OnePartTable:
    folder = tmp_path_factory.mktemp("lake") / "events"
    table = Table.create(folder, partition_by=["k"], storage_options={"fsync": "false"})
    table.insert([{"k": 1, "b": os.urandom(100_000)} for _ in range(40)])
    [part] = table.snapshot().parts
    return OnePartTable(str(folder), part.key.partition("_data/")[2], Path(part.path).read_bytes())


@pytest.fixture(scope="module")
def proxy(world: OnePartTable) -> Iterator[ProxyProcess]:
    """A proxy that the tests share and do not change, with a short header timeout."""
    with ProxyProcess(world.config('admin_listen = "127.0.0.1:0"\nheader_timeout = "1s"')) as started:
        yield started


OK = (200, '{"status":"ok"}\n')


def client(endpoint: str, key: str = KEY, secret: str = SECRET) -> Any:
    options: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}}
    config = Config(signature_version="s3v4", connect_timeout=30, read_timeout=60, **options)
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1",
        config=config,
    )  # fmt: skip


def body_of(world: OnePartTable, endpoint: str, key: str, secret: str) -> Any:
    """Start a download and return its body."""
    return client(endpoint, key, secret).get_object(Bucket="events", Key=world.key)["Body"]


def code_of(ask: Callable[[], object]) -> str:
    """Return the S3 error code, or an empty string."""
    try:
        ask()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def get(url: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_MAX, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def connect(proxy: ProxyProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS_MAX)


def receive_ok(sock: socket.socket) -> None:
    """Receive one whole response of status 200."""
    response = http.client.HTTPResponse(sock)
    response.begin()
    assert response.status == 200
    response.read()


def rest_of(sock: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    pieces = []
    try:
        while piece := sock.recv(65_536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def run(path: Path, *more: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        proxy_command(path, *more),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )


def written(folder: Path, config: str) -> Path:
    path = folder / "proxy.toml"
    path.write_text(config)
    return path


# ------------------------------------------------------------------------------------------------ starting


def test_it_prints_its_address_and_is_healthy(proxy: ProxyProcess) -> None:
    assert proxy.errors().count("\n") == 1, "one line"
    assert "tenants in the file: 3" in proxy.errors()
    pages = f"{proxy.endpoint}/-/health", f"{proxy.endpoint}/-/ready", f"{proxy.admin}/health", f"{proxy.admin}/ready"
    assert [get(page) for page in pages] == [OK] * 4


@pytest.mark.sampled(days=3)
def test_an_object_is_returned_whole(world: OnePartTable, proxy: ProxyProcess) -> None:
    assert body_of(world, proxy.endpoint, KEY, SECRET).read() == world.content


def test_a_port_in_use_is_one_line_and_status_2(world: OnePartTable, proxy: ProxyProcess, tmp_path: Path) -> None:
    address = f"127.0.0.1:{proxy.port}"
    done = run(written(tmp_path, world.config().replace("127.0.0.1:0", address)))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {address}: cannot listen on this address: Address already in use\n"


@pytest.mark.sampled(days=3)
def test_a_wrong_configuration_is_one_line_and_status_2(world: OnePartTable, tmp_path: Path) -> None:
    path = written(tmp_path, world.config("conections = 7"))
    done = run(path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {path}: [server]")
    assert "conections" in done.stderr


@pytest.mark.sampled(days=3)
def test_without_the_extra_the_error_has_the_install_command(world: OnePartTable, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')")
    done = run(written(tmp_path, world.config()), env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'icedb-dagster[proxy]'" in done.stderr


# ------------------------------------------------------------------------------------------------ tenants change


@pytest.mark.sampled(days=3)
def test_the_tenants_can_be_changed_without_a_restart(world: OnePartTable, tmp_path: Path) -> None:
    path = written(tmp_path, world.config('admin_listen = "127.0.0.1:0"'))
    with ProxyProcess(path) as proxy:
        codes = lambda key, secret: code_of(client(proxy.endpoint, key, secret).list_buckets)  # noqa: E731
        assert (codes(KEY, SECRET), codes("ACMEKEY2", "secret-of-acme-2")) == ("", "InvalidAccessKeyId")

        # Reload by a signal.
        path.write_text(world.config(key="ACMEKEY2", secret="secret-of-acme-2"))
        proxy.signal(signal.SIGHUP)
        wait_until(lambda: not codes("ACMEKEY2", "secret-of-acme-2"), "the new key is not known")
        assert codes(KEY, SECRET) == "InvalidAccessKeyId"

        # Reload after a change of the file.
        path.write_text(world.config(key="ACMEKEY3", secret="secret-of-acme-3"))
        wait_until(lambda: not codes("ACMEKEY3", "secret-of-acme-3"), "the file's change was not found")
        assert codes("ACMEKEY2", "secret-of-acme-2") == "InvalidAccessKeyId"

        # An invalid file changes nothing, and is reported once.
        path.write_text("this is no configuration")
        wait_until(lambda: "the tenants are unchanged" in proxy.errors(), "nothing was logged")
        proxy.signal(signal.SIGHUP)
        wait_until(lambda: value(proxy, "icedb_proxy_reloads_total", result="error") >= 2, "no second look")
        assert codes("ACMEKEY3", "secret-of-acme-3") == ""
        assert "secret-of" not in proxy.errors()
        assert "Traceback" not in proxy.errors()


@pytest.mark.sampled(days=3)
def test_it_is_not_ready_without_its_tables(tmp_path: Path) -> None:
    tables = [Table.create(tmp_path / name).uri for name in ("first", "second")]
    buckets = "".join(f'[[tenant.bucket]]\nname = "bucket{n}"\ntable = "{table}"\n' for n, table in enumerate(tables))
    config = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n[[tenant]]\nname = "acme"\n'
    config += f'keys = [{{ id = "{KEY}", secret = "{SECRET}" }}]\n{buckets}'
    shutil.rmtree(tables[0])
    with ProxyProcess(config) as proxy:
        assert get(f"{proxy.admin}/ready") == OK  # for the other table
    shutil.rmtree(tables[1])
    with ProxyProcess(config) as proxy:
        status, body = get(f"{proxy.admin}/ready")
        assert (status, body.count("there is no table")) == (503, 2)
        assert get(f"{proxy.endpoint}/-/ready") == (503, '{"status":"not ready"}\n')
        assert get(f"{proxy.admin}/health") == OK
        wait_until(lambda: "not ready: the table" in proxy.errors(), "the reason is in the log")


# ------------------------------------------------------------------------------------------------ stopping


@pytest.mark.sampled(days=3)
def test_on_sigterm_it_finishes_responses_in_progress(world: OnePartTable) -> None:
    with ProxyProcess(world.config('admin_listen = "127.0.0.1:0"')) as proxy:
        idle = connect(proxy)
        body = body_of(world, proxy.endpoint, SLOW_KEY, SLOW_SECRET)
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: get(f"{proxy.admin}/ready")[0] == 503, "it says that it is ready")
        assert get(f"{proxy.admin}/health")[0] == 200
        assert rest_of(idle) == b"", "a connection without a request is closed"
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert proxy.alive()
        assert body.read() == world.content
        assert proxy.wait() == 0
        assert [(line["status"], line["bytes"]) for line in proxy.access_log()] == [(200, len(world.content))]
        assert proxy.errors().count("\n") == 1


@pytest.mark.sampled(days=3)
def test_it_waits_for_responses_no_longer_than_stop_timeout(world: OnePartTable) -> None:
    with ProxyProcess(world.config('stop_timeout = "1s"')) as proxy:
        body = body_of(world, proxy.endpoint, LONG_KEY, LONG_SECRET)
        proxy.signal(signal.SIGINT)
        with pytest.raises((BotoCoreError, HTTPClientError, OSError)):
            body.read()
        assert proxy.wait() == 0
        assert "Traceback" not in proxy.errors()


@pytest.mark.sampled(days=3)
def test_a_second_signal_ends_it_at_once(world: OnePartTable) -> None:
    with ProxyProcess(world.config('admin_listen = "127.0.0.1:0"\nstop_timeout = "1h"')) as proxy:
        body = body_of(world, proxy.endpoint, LONG_KEY, LONG_SECRET)
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: get(f"{proxy.admin}/ready")[0] == 503, "it did not heed the signal")
        proxy.signal(signal.SIGINT)
        assert proxy.wait() == -signal.SIGINT
        with pytest.raises((BotoCoreError, HTTPClientError, OSError)):
            body.read()


@pytest.mark.sampled(days=3)
def test_a_hanging_store_does_not_delay_the_exit(world: OnePartTable) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        options = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "a",
                   "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}  # fmt: skip
        config = world.config('stop_timeout = "0s"').replace(world.table, "s3://lake/events")
        config += "[storage_options]\n" + "".join(f'{name} = "{value}"\n' for name, value in options.items())
        with ProxyProcess(config) as proxy, connect(proxy) as sock:
            url = client(proxy.endpoint).generate_presigned_url("list_objects_v2", Params={"Bucket": "events"})
            sock.sendall(
                f"GET {url.partition(str(proxy.port))[2]} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n\r\n".encode()
            )
            silent.settimeout(SECONDS_MAX)
            with silent.accept()[0]:  # a thread of the proxy connects
                proxy.signal(signal.SIGTERM)
                assert proxy.wait() == 0


# ------------------------------------------------------------------------------------------------ silent clients


@pytest.mark.sampled(days=3)
@pytest.mark.parametrize("sent", [b"", b"GET /-/health HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "half"])
def test_a_connection_without_a_request_is_closed(proxy: ProxyProcess, sent: bytes) -> None:
    with connect(proxy) as sock:
        sock.sendall(sent)
        assert rest_of(sock) == b""


@pytest.mark.sampled(days=3)
def test_slow_bytes_do_not_keep_a_connection(proxy: ProxyProcess) -> None:
    with connect(proxy) as sock:
        sock.sendall(b"GET /-/health HTTP/1.1\r\nX-Slow: ")

        def drip() -> bool:
            try:
                sock.send(b"a")
            except ConnectionError:
                return True
            return is_closed(sock)

        wait_until(drip, "it is still open")


@pytest.mark.sampled(days=3)
def test_the_next_request_of_a_connection_has_to_come_whole_too(proxy: ProxyProcess) -> None:
    """Responses to clients without a valid signature close the connection."""
    url = urlsplit(client(proxy.endpoint).generate_presigned_url("list_objects_v2", Params={"Bucket": "events"}))
    whole = f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
    half = whole[:16]
    with connect(proxy) as at_once, connect(proxy) as later:
        at_once.sendall(whole + half)
        later.sendall(whole)
        receive_ok(later)
        receive_ok(at_once)
        assert rest_of(at_once) == b""
        time.sleep(1.5)  # longer than the header timeout: idle connections stay
        later.sendall(whole)
        receive_ok(later)
        later.sendall(half)
        assert rest_of(later) == b""


@pytest.mark.sampled(days=3)
def test_a_thousand_slow_clients_do_not_block_others(world: OnePartTable) -> None:
    """The timeouts are long, so only the eviction of idle connections makes room."""
    allow_files(3_000)
    config = world.config('connections = 100\nheader_timeout = "1h"')
    with ProxyProcess(config) as proxy, ExitStack() as sockets:
        slow = []
        body = body_of(world, proxy.endpoint, SLOW_KEY, SLOW_SECRET)
        for number in range(1_000):
            slow.append(sockets.enter_context(connect(proxy)))
            slow[-1].sendall(b"GET /-/health HTTP/1.1\r\nX-Slow: ")
            if number % 250 == 249:
                assert code_of(client(proxy.endpoint).list_buckets) == ""
        wait_until(lambda: sum(map(is_closed, slow)) >= 900, "they were not closed")
        assert not is_closed(slow[-1])
        assert body.read() == world.content, "a response in progress is not disturbed"
        assert proxy.alive()


@pytest.mark.sampled(days=3)
def test_a_connection_beyond_the_limit_gets_503(world: OnePartTable) -> None:
    with ProxyProcess(world.config('connections = 2\nstop_timeout = "0s"')) as proxy, ExitStack() as bodies:
        for _ in range(2):
            bodies.enter_context(closing(body_of(world, proxy.endpoint, LONG_KEY, LONG_SECRET)))
        with connect(proxy) as sock:
            assert rest_of(sock).startswith(b"HTTP/1.1 503 ")
        bodies.close()
        wait_until(lambda: _is_healthy(proxy), "there is no room again")


def test_a_head_that_is_too_large_is_refused(proxy: ProxyProcess) -> None:
    with connect(proxy) as sock:
        with suppress(ConnectionError):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: aaaaaaaaaa\r\n" * 5_000)
        answer = rest_of(sock)
    assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert get(f"{proxy.endpoint}/-/health") == OK


def _is_healthy(proxy: ProxyProcess) -> bool:
    try:
        return get(f"{proxy.endpoint}/-/health")[0] == 200
    except OSError:
        return False


def allow_files(wanted: int) -> None:
    """Raise the limit of open files of this process, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


# ------------------------------------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two certificates, `a` and `b`, and their keys."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("certificates")
    for name in "ab":
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
             "-out", f"{name}.pem", "-keyout", f"{name}.key"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
    return folder


@pytest.mark.sampled(days=3)
def test_tls(world: OnePartTable, certificates: Path) -> None:
    server = f'tls_certificate = "{certificates}/a.pem"\ntls_key = "{certificates}/a.key"\nheader_timeout = "1s"'
    with ProxyProcess(world.config(server)) as proxy:
        assert proxy.endpoint.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(certificates / "a.pem"))
        assert get(f"{proxy.endpoint}/-/health", trusting) == OK
        with connect(proxy) as silent:
            assert rest_of(silent) == b"", "a connection without a handshake is closed"


@pytest.mark.sampled(days=3)
def test_a_wrong_tls_key_is_one_line_and_status_2(world: OnePartTable, certificates: Path, tmp_path: Path) -> None:
    server = f'tls_certificate = "{certificates}/a.pem"\ntls_key = "{certificates}/b.key"'
    done = run(written(tmp_path, world.config(server)))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "tls_key" in done.stderr


# ------------------------------------------------------------------------------------------------ metrics


def value(proxy: ProxyProcess, name: str, **labels: str) -> float:
    """Return a current sample of the metrics."""
    for family in text_string_to_metric_families(get(f"{proxy.admin}/metrics")[1]):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0


def test_metrics_have_only_authenticated_tenants(world: OnePartTable, proxy: ProxyProcess) -> None:
    labels = {"tenant": "acme", "operation": "GetObject", "status": "200"}
    before, bytes_before = value(proxy, "icedb_proxy_requests_total", **labels), value(
        proxy, "icedb_proxy_sent_bytes_total", tenant="acme"
    )  # fmt: skip
    body_of(world, proxy.endpoint, KEY, SECRET).read()
    wait_until(lambda: value(proxy, "icedb_proxy_requests_total", **labels) == before + 1, "it was not counted")
    assert value(proxy, "icedb_proxy_sent_bytes_total", tenant="acme") == bytes_before + len(world.content)
    assert value(proxy, "icedb_proxy_tables_open") == 1
    assert value(proxy, "icedb_proxy_table_refreshes_total", result="ok") >= 1
    age_s = value(proxy, "icedb_proxy_snapshot_age_seconds", table=world.table)
    assert 0 < age_s < time.monotonic() - proxy.started_s

    stranger = "STRANGER" + os.urandom(8).hex()
    assert code_of(client(proxy.endpoint, stranger, "x" * 20).list_buckets) == "InvalidAccessKeyId"
    refused = {"tenant": "", "reason": "InvalidAccessKeyId"}
    wait_until(lambda: value(proxy, "icedb_proxy_refused_requests_total", **refused) >= 1, "it was not counted")
    assert stranger not in get(f"{proxy.admin}/metrics")[1]


# ------------------------------------------------------------------------------------------------ the access log


@pytest.mark.sampled(days=3)
def test_the_access_log_has_each_request_and_no_secret(world: OnePartTable, proxy: ProxyProcess) -> None:
    s3 = client(proxy.endpoint)
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "events", "Key": world.key})
    signature = url.partition("X-Amz-Signature=")[2].partition("&")[0]
    assert len(signature) == 64
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"Range": "bytes=0-9", "User-Agent": "test", "traceparent": f"00-{trace}-{span}-01"}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.read() == world.content[:10]
    signed: list[str] = []
    s3.meta.events.register(
        "before-send.s3", lambda request, **_: signed.append(request.headers["Authorization"].decode())
    )
    s3.list_buckets()

    def presigned() -> list[dict[str, Any]]:
        lines = proxy.access_log()
        return [line for line in lines if line["path"] == urlsplit(url).path and "X-Amz-Signature" in line["query"]]

    wait_until(presigned, "there is no line")
    wait_until(lambda: any(line["path"] == "/" and line["tenant"] == "acme" for line in proxy.access_log()), "no line")
    [line] = presigned()
    assert (line["tenant"], line["access_key_id"], line["method"]) == ("acme", KEY, "GET")
    assert (line["status"], line["bytes"], line["range"], line["code"]) == (206, 10, "bytes=0-9", "")
    assert (line["client"], line["user_agent"]) == ("127.0.0.1", "test")
    assert (line["trace_id"], line["span_id"]) == (trace, span)
    assert "X-Amz-Signature=..." in line["query"]
    assert "X-Amz-Expires=3600" in line["query"]
    text = proxy.access_text()
    assert signature not in text
    assert f"{KEY}/" not in text
    assert f"{KEY}%2F" not in text
    assert signed[0].rpartition("Signature=")[2] not in text
    assert SECRET not in text
